//! Looks through a trace when it is opened: order, ranges, completeness, conservation.
//!
//! One pass over each table, reading only the columns that its laws need; `steps`, `routing` and
//! `layers` run side by side, step by step, so that memory does not grow with the trace.

use crate::StoreError;
use crate::records::{Bounds, kernel_known, link_key, rank_cell, routing_key, routing_place};
use crate::table::{LayerKey, LinkTableRow, RouteRow, StepRow};
use crate::table_file::{Cursor, TableFile};
use evenkeel_trace::{Breach, Conservation, Event, EventKind, RankCell, StepTotals, TraceHeader};
use evenkeel_types::Phase;
use std::collections::BTreeMap;
use std::ops::Range;

/// First and last step of every row group of a table, in order: where a window begins and ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupIndex {
    /// Number and first row of every row group that has rows.
    filled: Vec<(usize, u64)>,
    spans: Vec<(u64, u64)>,
}

impl GroupIndex {
    fn new(table: &TableFile) -> Self {
        Self::of(&table.groups())
    }

    fn of(groups: &[Range<u64>]) -> Self {
        let filled = groups.iter().enumerate().filter(|(_, rows)| !rows.is_empty());
        let filled = filled.map(|(number, rows)| (number, rows.start)).collect();
        Self { filled, spans: Vec::new() }
    }

    #[inline]
    fn note(&mut self, row: u64, step: u64) {
        let within = self.filled.get(self.spans.len()).is_none_or(|(_, next)| row < *next);
        match self.spans.last_mut() {
            Some(last) if within => last.1 = step,
            _ => self.spans.push((step, step)),
        }
    }

    /// Row groups that may hold steps `from..to`.
    pub fn groups(&self, from: u64, to: u64) -> Range<usize> {
        let start = self.spans.partition_point(|(_, last)| *last < from);
        let end = self.spans.partition_point(|(first, _)| *first < to);
        match (self.filled.get(start), end.checked_sub(1).and_then(|last| self.filled.get(last))) {
            (Some((first, _)), Some((last, _))) if start < end => *first..*last + 1,
            _ => 0..0,
        }
    }
}

/// What opening a trace found out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verified {
    pub breaches: Vec<Breach>,
    /// Ranks of the group: of the topology, else of the steps, else the largest rank id + 1.
    pub ranks: usize,
    pub steps: GroupIndex,
    pub layers: GroupIndex,
    pub routing: GroupIndex,
    pub links: GroupIndex,
}

/// The tables that are keyed by step.
pub(crate) struct StepTables<'a> {
    pub steps: Option<&'a TableFile>,
    pub layers: Option<&'a TableFile>,
    pub routing: Option<&'a TableFile>,
    pub links: Option<&'a TableFile>,
}

/// One step of the table `steps`.
pub(crate) struct StepGroup {
    pub step: u64,
    pub phase: Phase,
    pub start_ns: u64,
    pub end_ns: u64,
    pub map_version: u64,
    pub ranks: Vec<RankCell>,
}

/// Reads the rows of the next step: ranks 0, 1, … in order, one phase, one map version.
pub(crate) fn next_step(
    cursor: &mut Cursor<StepRow>,
    ranks: Option<usize>,
    mut note: impl FnMut(u64, u64),
) -> Result<Option<StepGroup>, StoreError> {
    let Some(first) = cursor.peek()? else { return Ok(None) };
    let place = |rank: u16| format!("step {}, rank {rank}", first.step);
    let Some(phase) = Phase::from_code(first.phase) else {
        let problem = format!("phase is {}, expected 0 (prefill) or 1 (decode)", first.phase);
        return Err(cursor.fault(place(first.rank), problem));
    };
    let mut group = StepGroup {
        step: first.step,
        phase,
        start_ns: first.start_ns,
        end_ns: first.end_ns,
        map_version: first.map_version,
        ranks: Vec::with_capacity(ranks.unwrap_or(8)),
    };
    while let Some(row) = cursor.peek()? {
        if row.step != first.step {
            break;
        }
        let expected = group.ranks.len();
        let problem = if usize::from(row.rank) != expected {
            Some(format!(
                "expected rank {expected} here: a rank is missing, there twice or unsorted"
            ))
        } else if ranks.is_some_and(|ranks| expected >= ranks) {
            Some(format!("expected ranks below {}", ranks.unwrap_or_default()))
        } else if row.phase != first.phase {
            Some("is of another phase than rank 0: a step of the group has one".to_owned())
        } else if row.map_version != first.map_version {
            Some("ran on another map version than rank 0".to_owned())
        } else if row.end_ns < row.start_ns {
            Some(format!("end_ns is {}, before start_ns {}", row.end_ns, row.start_ns))
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(cursor.fault(place(row.rank), problem));
        }
        group.start_ns = group.start_ns.min(row.start_ns);
        group.end_ns = group.end_ns.max(row.end_ns);
        group.ranks.push(rank_cell(&row));
        note(cursor.row(), row.step);
        cursor.advance();
    }
    match ranks {
        Some(ranks) if ranks != group.ranks.len() => {
            let problem = format!("has {} ranks, expected {ranks}", group.ranks.len());
            Err(cursor.fault(format!("step {}", group.step), problem))
        }
        _ => Ok(Some(group)),
    }
}

/// Runs every check on the tables that are keyed by step.
pub(crate) fn verify(
    header: &TraceHeader,
    tables: &StepTables<'_>,
    events: &[Event],
) -> Result<Verified, StoreError> {
    let mut found = Verified::default();
    let mut ranks = header.topology.as_ref().map(|topology| topology.rank_count());
    let mut pass = Pass::new(header, tables, ranks)?;
    let dropped = dropped(events);
    let mut check = Conservation::new(header.model.top_k);
    if let Some(table) = tables.steps {
        let mut cursor = table.all::<StepRow>()?;
        let mut index = GroupIndex::new(table);
        let mut last: Option<(u64, u64)> = None;
        while let Some(group) = next_step(&mut cursor, ranks, |row, step| index.note(row, step))? {
            if let Some((step, start)) = last.filter(|(step, _)| *step >= group.step) {
                let problem = format!("follows step {step} at {start} ns, expected steps to rise");
                return Err(cursor.fault(format!("step {}", group.step), problem));
            }
            if let Some((step, start)) = last.filter(|(_, start)| *start > group.start_ns) {
                let problem = format!(
                    "starts at {} ns, before step {step} at {start} ns, expected starts to rise",
                    group.start_ns
                );
                return Err(cursor.fault(format!("step {}", group.step), problem));
            }
            last = Some((group.step, group.start_ns));
            ranks = Some(group.ranks.len());
            pass.bounds.ranks = ranks;
            pass.step(&group, dropped.get(&group.step).map_or(&[], Vec::as_slice), &mut check)?;
        }
        found.steps = index;
        pass.nothing_left()?;
    } else {
        pass.routing_alone()?;
    }
    found.ranks = ranks.unwrap_or(pass.rank_end);
    if let Some(table) = tables.links {
        found.links = links(table, header, ranks)?;
    }
    (found.routing, found.layers) = (pass.routing_index, pass.layers_index);
    found.breaches = check.finish();
    Ok(found)
}

/// Step → (phase, layer, choices dropped).
type Dropped = BTreeMap<u64, Vec<(Option<Phase>, Option<u16>, u64)>>;

fn dropped(events: &[Event]) -> Dropped {
    let mut dropped = Dropped::new();
    for event in events {
        if let (EventKind::TokensDropped, Some(step)) = (event.kind, event.step) {
            let layer = event.layer.map(|layer| layer.0);
            dropped.entry(step).or_default().push((event.phase, layer, event.value));
        }
    }
    dropped
}

/// The tables that run beside `steps`.
struct Pass {
    bounds: Bounds,
    kernels: usize,
    routing: Option<Cursor<RouteRow>>,
    layers: Option<Cursor<LayerKey>>,
    routing_index: GroupIndex,
    layers_index: GroupIndex,
    rank_end: usize,
    routing_of_every_step: bool,
    choices: Vec<u64>,
    executed: Vec<u64>,
}

impl Pass {
    fn new(
        header: &TraceHeader,
        tables: &StepTables<'_>,
        ranks: Option<usize>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            bounds: Bounds::new(header, ranks),
            kernels: header.kernels.len(),
            routing: tables.routing.map(TableFile::all).transpose()?,
            layers: tables.layers.map(TableFile::all).transpose()?,
            routing_index: tables.routing.map(GroupIndex::new).unwrap_or_default(),
            layers_index: tables.layers.map(GroupIndex::new).unwrap_or_default(),
            rank_end: 0,
            routing_of_every_step: header.routing_every == 1,
            choices: Vec::new(),
            executed: Vec::new(),
        })
    }

    fn step(
        &mut self,
        group: &StepGroup,
        dropped: &[(Option<Phase>, Option<u16>, u64)],
        check: &mut Conservation,
    ) -> Result<(), StoreError> {
        let has_routing = self.routing_of(group.step, Some(group.phase))?;
        let has_layers = self.layers_of(group.step)?;
        let mut lost = vec![0_u64; usize::from(self.bounds.layers)];
        for (phase, layer, value) in dropped {
            if phase.is_some_and(|phase| phase != group.phase) {
                continue;
            }
            // Where the event names no layer, every layer dropped as many.
            for (index, sum) in lost.iter_mut().enumerate() {
                if layer.is_none_or(|layer| usize::from(layer) == index) {
                    *sum = sum.saturating_add(*value);
                }
            }
        }
        let choices = has_routing || self.routing_of_every_step;
        check.step(&StepTotals {
            step: group.step,
            phase: group.phase,
            ranks: &group.ranks,
            choices: if choices { &self.choices } else { &[] },
            executed: if has_layers { &self.executed } else { &[] },
            dropped: &lost,
        });
        Ok(())
    }

    /// Sums the routing rows of a step into `choices`; whether there were any.
    fn routing_of(&mut self, step: u64, phase: Option<Phase>) -> Result<bool, StoreError> {
        let ranks = self.bounds.ranks.unwrap_or(0);
        self.choices.clear();
        self.choices.resize(usize::from(self.bounds.layers) * ranks, 0);
        let Some(cursor) = &mut self.routing else { return Ok(false) };
        let mut last: Option<u64> = None;
        let mut code = phase.map(|phase| phase.index() as u8);
        while let Some(row) = cursor.peek()? {
            if row.step > step {
                break;
            }
            let key = routing_key(&row);
            let problem = if row.step < step {
                Some("the step is unsorted or not in the table `steps`".to_owned())
            } else if last.is_some_and(|last| last >= key) {
                Some("is there twice or unsorted".to_owned())
            } else if Phase::from_code(row.phase).is_none()
                || row.phase != *code.get_or_insert(row.phase)
            {
                Some(format!("phase is {}, expected that of the step", row.phase))
            } else {
                let host = row.host.and_then(|host| self.bounds.rank("host rank", host));
                self.bounds.routing(row.layer, row.source, row.expert).or(host)
            };
            if let Some(problem) = problem {
                let place = format!("step {}, {}", row.step, routing_place(&row));
                return Err(cursor.fault(place, problem));
            }
            last = Some(key);
            self.rank_end =
                self.rank_end.max(usize::from(row.source.max(row.host.unwrap_or(0))) + 1);
            let cell = usize::from(row.layer) * ranks + usize::from(row.source);
            if let Some(sum) = self.choices.get_mut(cell) {
                *sum += u64::from(row.tokens);
            }
            self.routing_index.note(cursor.row(), step);
            cursor.advance();
        }
        Ok(last.is_some())
    }

    /// Sums the rows executed in a step into `executed`; whether the record says them.
    fn layers_of(&mut self, step: u64) -> Result<bool, StoreError> {
        let ranks = self.bounds.ranks.unwrap_or(0);
        let cells = usize::from(self.bounds.layers) * ranks;
        self.executed.clear();
        self.executed.resize(usize::from(self.bounds.layers), 0);
        let Some(cursor) = &mut self.layers else { return Ok(false) };
        let mut seen = 0;
        while let Some(row) = cursor.peek()? {
            if row.step > step {
                break;
            }
            let index = usize::from(row.layer) * ranks + usize::from(row.rank);
            let problem = if row.step < step {
                Some("the step is unsorted or not in the table `steps`".to_owned())
            } else if usize::from(row.rank) >= ranks || index != seen || seen >= cells {
                Some("is missing before, there twice or unsorted".to_owned())
            } else if !kernel_known(row.kernel, self.kernels) {
                Some(format!("kernel {}, expected below {}", row.kernel, self.kernels))
            } else {
                None
            };
            if let Some(problem) = problem {
                let place = format!("step {}, layer {}, rank {}", row.step, row.layer, row.rank);
                return Err(cursor.fault(place, problem));
            }
            if let Some(sum) = self.executed.get_mut(usize::from(row.layer)) {
                *sum += u64::from(row.rows_in);
            }
            self.layers_index.note(cursor.row(), step);
            seen += 1;
            cursor.advance();
        }
        if seen != 0 && seen != cells {
            let problem = format!("has {seen} cells, expected {cells} (layers x ranks) or none");
            return Err(cursor.fault(format!("step {step}"), problem));
        }
        // A record without row counts has zeros throughout: then there is nothing to compare.
        Ok(seen != 0 && self.executed.iter().any(|rows| *rows > 0))
    }

    /// After the last step no table may have rows left.
    fn nothing_left(&mut self) -> Result<(), StoreError> {
        let problem = "the step is not in the table `steps`";
        if let Some(cursor) = &mut self.routing
            && let Some(row) = cursor.peek()?
        {
            return Err(cursor.fault(format!("step {}", row.step), problem));
        }
        if let Some(cursor) = &mut self.layers
            && let Some(row) = cursor.peek()?
        {
            return Err(cursor.fault(format!("step {}", row.step), problem));
        }
        Ok(())
    }

    /// Checks routing where the trace has no steps to compare with.
    fn routing_alone(&mut self) -> Result<(), StoreError> {
        while let Some(cursor) = &mut self.routing {
            let Some(row) = cursor.peek()? else { break };
            self.routing_of(row.step, None)?;
        }
        if let Some(cursor) = &mut self.layers
            && let Some(row) = cursor.peek()?
        {
            let problem = "the table `layers` needs the table `steps`";
            return Err(cursor.fault(format!("step {}", row.step), problem));
        }
        Ok(())
    }
}

fn links(
    table: &TableFile,
    header: &TraceHeader,
    ranks: Option<usize>,
) -> Result<GroupIndex, StoreError> {
    let bounds = Bounds::new(header, ranks);
    let mut index = GroupIndex::new(table);
    let mut cursor = table.all::<LinkTableRow>()?;
    let mut last = None;
    while let Some(row) = cursor.peek()? {
        let key = (row.step, link_key(&row));
        let problem = if last.is_some_and(|last| last >= key) {
            Some("is there twice or unsorted".to_owned())
        } else if row.direction > 1 {
            Some(format!("direction is {}, expected 0 (dispatch) or 1 (return)", row.direction))
        } else if row.largest_bytes > row.bytes {
            Some(format!("largest_bytes is {}, above bytes {}", row.largest_bytes, row.bytes))
        } else {
            bounds.link(row.layer, row.source, row.destination)
        };
        if let Some(problem) = problem {
            let place = format!(
                "step {}, layer {}, rank {} to rank {}",
                row.step, row.layer, row.source, row.destination
            );
            return Err(cursor.fault(place, problem));
        }
        last = Some(key);
        index.note(cursor.row(), row.step);
        cursor.advance();
    }
    Ok(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the row groups, a window's groups hold every row of its steps.
        #[test]
        fn windows_reach_every_row(
            lengths in prop::collection::vec(0_u64..6, 1..8),
            rows_per_step in 1_u64..5,
            from in 0_u64..20,
            length in 0_u64..10,
        ) {
            let mut groups = Vec::new();
            let mut rows = 0;
            for length in lengths {
                groups.push(rows..rows + length);
                rows += length;
            }
            let mut index = GroupIndex::of(&groups);
            for row in 0..rows {
                index.note(row, row / rows_per_step);
            }
            let to = from + length;
            let found = index.groups(from, to);
            for row in 0..rows {
                let step = row / rows_per_step;
                if (from..to).contains(&step) {
                    let group = groups.iter().position(|group| group.contains(&row)).unwrap();
                    prop_assert!(found.contains(&group), "row {row} of step {step}, {found:?}");
                }
            }
        }
    }
}

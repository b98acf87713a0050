//! Puts steps together again from the tables `steps`, `layers`, `routing` and `links`.

use crate::StoreError;
use crate::records::{layer_cell, link_record, routing_record};
use crate::table::{LayerRow, LinkTableRow, RouteRow, Row, StepRow};
use crate::table_file::Cursor;
use crate::verify::next_step;
use evenkeel_trace::{StepRecord, Window};

/// Steps of a window in order, read as they are asked for: memory holds one step and one batch of
/// rows per table.
pub struct Steps {
    pub(crate) window: Window,
    pub(crate) ranks: usize,
    pub(crate) steps: Option<Cursor<StepRow>>,
    pub(crate) layers: Option<Cursor<LayerRow>>,
    pub(crate) routing: Option<Cursor<RouteRow>>,
    pub(crate) links: Option<Cursor<LinkTableRow>>,
}

impl Steps {
    fn read(&mut self) -> Result<Option<StepRecord>, StoreError> {
        let Some(steps) = &mut self.steps else { return Ok(None) };
        while let Some(group) = next_step(steps, Some(self.ranks), |_, _| ())? {
            if self.window.is_past(group.step, group.start_ns) {
                return Ok(None);
            }
            if !self.window.contains(group.step, group.start_ns) {
                continue;
            }
            let mut record = StepRecord {
                step: group.step,
                phase: group.phase,
                start_ns: group.start_ns,
                end_ns: group.end_ns,
                map_version: group.map_version,
                ranks: group.ranks,
                cells: Vec::new(),
                routing: Vec::new(),
                links: Vec::new(),
            };
            let step = group.step;
            rows(
                &mut self.layers,
                step,
                |row| row.step,
                |row| {
                    record.cells.push(layer_cell(row));
                },
            )?;
            rows(
                &mut self.routing,
                step,
                |row| row.step,
                |row| {
                    record.routing.push(routing_record(row));
                },
            )?;
            rows(
                &mut self.links,
                step,
                |row| row.step,
                |row| {
                    record.links.extend(link_record(row));
                },
            )?;
            return Ok(Some(record));
        }
        Ok(None)
    }
}

/// Hands out a table's rows of one step; rows of steps before it lie outside the window.
fn rows<R: Row>(
    cursor: &mut Option<Cursor<R>>,
    step: u64,
    step_of: impl Fn(&R) -> u64,
    mut take: impl FnMut(&R),
) -> Result<(), StoreError> {
    let Some(cursor) = cursor else { return Ok(()) };
    while let Some(row) = cursor.peek()? {
        match step_of(&row).cmp(&step) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => take(&row),
            std::cmp::Ordering::Greater => break,
        }
        cursor.advance();
    }
    Ok(())
}

impl Iterator for Steps {
    type Item = Result<StepRecord, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.read();
        if !matches!(next, Ok(Some(_))) {
            // After an error the tables' places no longer agree.
            self.steps = None;
        }
        next.transpose()
    }
}

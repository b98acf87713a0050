//! An open trace and the questions it answers.

use crate::header::read_text;
use crate::limits::{LISTED_ROWS_MAX, MAP_BYTES_MAX};
use crate::records::{self, Bounds, routing_record};
use crate::stream::Steps;
use crate::table::{EventRow, LayerRow, LinkTableRow, RequestRow, RouteRow, Row, StepRow, Table};
use crate::table_file::{Cursor, TableFile};
use crate::verify::{GroupIndex, StepTables, Verified, next_step, verify};
use crate::writer::map_file_name;
use crate::{StoreError, header, tokens};
use arrow_schema::Schema;
use evenkeel_trace::{
    Breach, Event, LinkMatrix, LoadMatrix, RequestRecord, Routes, StepLoad, StepLoads, TraceHeader,
    Window,
};
use evenkeel_types::{ExpertMap, Phase};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A trace that was opened and looked through.
///
/// Opening checks the schema version, every table's columns, sizes against [`crate::limits`], order
/// and ranges of all rows, and runs the conservation laws; breaches of these do not refuse the trace
/// but are kept for the verdicts that rest on it.
#[derive(Clone, Debug)]
pub struct Trace {
    dir: PathBuf,
    header: TraceHeader,
    tables: BTreeMap<Table, TableFile>,
    verified: Verified,
}

impl Trace {
    /// Opens the trace in a folder.
    ///
    /// # Errors
    /// Names the file and place of the first thing that is wrong.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let header = header::read(dir)?;
        let mut tables = BTreeMap::new();
        for table in Table::ALL {
            let path = dir.join(table.file_name());
            if path.symlink_metadata().is_ok() {
                let schema = schema(table, usize::from(header.model.top_k));
                tables.insert(table, TableFile::open(&path, table, &schema)?);
            }
        }
        let verified = Verified::default();
        let mut trace = Self { dir: dir.to_owned(), header, tables, verified };
        trace.verify()?;
        Ok(trace)
    }

    fn verify(&mut self) -> Result<(), StoreError> {
        let events = self.events()?;
        let tables = StepTables {
            steps: self.tables.get(&Table::Steps),
            layers: self.tables.get(&Table::Layers),
            routing: self.tables.get(&Table::Routing),
            links: self.tables.get(&Table::Links),
        };
        let verified = verify(&self.header, &tables, &events)?;
        self.verified = verified;
        let recorded = self.has(Table::Tokens);
        let mut requests = Vec::new();
        self.each_request(|mut request| {
            if recorded {
                // Token times are the bulk of a request, and recorded routing does not need them.
                request.token_ns = Vec::new();
                requests.push(request);
            }
        })?;
        if let Some(table) = self.tables.get(&Table::Tokens) {
            self.need(Table::Requests, "the prompt length and slice of recorded tokens")?;
            tokens::read(table, &self.header.model, &requests, false)?;
        }
        for map in &self.header.maps {
            self.map(map.version)?;
        }
        Ok(())
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Where the record breaks a conservation law. A verdict that needs the law is withheld.
    #[must_use]
    pub fn breaches(&self) -> &[Breach] {
        &self.verified.breaches
    }

    /// Ranks of the group: of the topology, else as recorded; 0 where no table says.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.verified.ranks
    }

    /// Whether the trace has a table.
    #[must_use]
    pub fn has(&self, table: Table) -> bool {
        self.tables.contains_key(&table)
    }

    /// Rows of a table, 0 where it is absent.
    #[must_use]
    pub fn rows(&self, table: Table) -> u64 {
        self.tables.get(&table).map_or(0, TableFile::rows)
    }

    /// The maps that were live, by version.
    ///
    /// # Errors
    /// Where a map's file is missing or refused.
    pub fn maps(&self) -> Result<Vec<ExpertMap>, StoreError> {
        self.header.maps.iter().map(|map| self.map(map.version)).collect()
    }

    /// The map of one version.
    ///
    /// # Errors
    /// Where the header does not list it, its file is missing, or it is for another model, number
    /// of ranks or placement than listed.
    pub fn map(&self, version: u64) -> Result<ExpertMap, StoreError> {
        let path = self.dir.join("maps").join(map_file_name(version));
        let field = |problem: String| StoreError::Field { path: path.clone(), problem };
        let listed = self.header.maps.iter().find(|map| map.version == version);
        let listed =
            listed.ok_or_else(|| field("the header lists no map of this version".to_owned()))?;
        let text = read_text(&path, "bytes of the map", MAP_BYTES_MAX)?;
        let refused = |source| StoreError::Map { path: path.clone(), source: Box::new(source) };
        let map = ExpertMap::from_json(&text).map_err(refused)?;
        let ranks = match self.verified.ranks {
            0 => map.ranks(),
            ranks => ranks,
        };
        map.fits(&self.header.model, ranks).map_err(refused)?;
        let digest = map.digest();
        if map.version != version || digest != listed.digest {
            return Err(field(format!(
                "holds version {} with digest {digest}, the header lists version {version} with {}",
                map.version, listed.digest
            )));
        }
        Ok(map)
    }

    /// Recorded routing, where the trace has any.
    ///
    /// # Errors
    /// Where the table cannot be read.
    pub fn routes(&self) -> Result<Option<Routes>, StoreError> {
        match self.tables.get(&Table::Tokens) {
            Some(table) => tokens::read(table, &self.header.model, &self.requests()?, true),
            None => Ok(None),
        }
    }

    /// Steps of a window, put together from the tables that there are. Without a table `steps`
    /// there is none.
    ///
    /// # Errors
    /// Where a table cannot be read; later faults come from the iterator.
    pub fn steps(&self, window: Window) -> Result<Steps, StoreError> {
        let range = self.step_range(window)?;
        let index = &self.verified;
        Ok(Steps {
            window,
            ranks: index.ranks,
            steps: self.cursor::<StepRow>(&index.steps, range)?,
            layers: self.cursor::<LayerRow>(&index.layers, range)?,
            routing: self.cursor::<RouteRow>(&index.routing, range)?,
            links: self.cursor::<LinkTableRow>(&index.links, range)?,
        })
    }

    /// All requests.
    ///
    /// # Errors
    /// Where the table cannot be read, a row is out of range or a request is there twice.
    pub fn requests(&self) -> Result<Vec<RequestRecord>, StoreError> {
        let mut requests = Vec::new();
        self.each_request(|request| requests.push(request))?;
        Ok(requests)
    }

    fn each_request(&self, mut take: impl FnMut(RequestRecord)) -> Result<(), StoreError> {
        let mut seen = BTreeSet::new();
        self.listed::<RequestRow>(|row, at| {
            let place = format!("request {}", row.request);
            let request = records::request_record(row);
            let request = request.map_err(|problem| at.row(place.clone(), problem))?;
            records::check_request(at.path, at.row, &self.header, &request)?;
            if !seen.insert(request.request) {
                return Err(at.row(place, "is there twice, expected once".to_owned()));
            }
            take(request);
            Ok(())
        })
    }

    /// All events.
    ///
    /// # Errors
    /// Where the table cannot be read or a row is out of range.
    pub fn events(&self) -> Result<Vec<Event>, StoreError> {
        let topology = self.header.topology.as_ref();
        let bounds = Bounds::new(&self.header, topology.map(|topology| topology.rank_count()));
        let mut events = Vec::new();
        self.listed::<EventRow>(|row, at| {
            let place = format!("event at {} ns", row.at_ns);
            let event = records::event_record(row, &bounds);
            events.push(event.map_err(|problem| at.row(place, problem))?);
            Ok(())
        })?;
        Ok(events)
    }

    /// Loads of up to `steps_max` steps of a phase, spread evenly over the window's steps that have
    /// routing rows.
    ///
    /// # Errors
    /// Where the trace has no routing rows or a table cannot be read.
    pub fn loads(
        &self,
        phase: Phase,
        window: Window,
        steps_max: usize,
    ) -> Result<StepLoads, StoreError> {
        self.need(Table::Routing, "the load of steps")?;
        let (layers, experts) =
            (usize::from(self.header.model.moe_layers), usize::from(self.header.model.experts));
        let mut count = 0_u64;
        self.routing(window, |step, _, first| {
            count += u64::from(first && step == phase);
        })?;
        let wanted = (steps_max as u64).min(count);
        let mut steps: Vec<StepLoad> = Vec::new();
        let (mut index, mut keep) = (0_u64, false);
        self.routing(window, |of, row, first| {
            if of != phase {
                return;
            }
            if first {
                // The i-th of n is kept where ⌊i·m/n⌋ rises: m of n, evenly.
                let at = |i: u64| u128::from(i) * u128::from(wanted) / u128::from(count.max(1));
                keep = at(index + 1) > at(index);
                index += 1;
                if keep {
                    steps.push(StepLoad { tokens: 0, counts: vec![0; layers * experts] });
                }
            }
            if let (true, Some(load)) = (keep, steps.last_mut()) {
                let cell = usize::from(row.layer) * experts + usize::from(row.expert);
                load.counts[cell] = load.counts[cell].saturating_add(row.tokens);
            }
        })?;
        let top_k = u64::from(self.header.model.top_k);
        for load in &mut steps {
            // Choices of the fullest layer: a layer may have dropped some.
            let choices = load.counts.chunks_exact(experts);
            let most = choices.map(|layer| layer.iter().copied().map(u64::from).sum::<u64>()).max();
            load.tokens = u32::try_from(most.unwrap_or(0) / top_k).unwrap_or(u32::MAX);
        }
        Ok(StepLoads { phase, layers, experts, steps })
    }

    /// Sums of the routing rows of a window by phase, layer, expert and rank.
    ///
    /// # Errors
    /// Where the trace has no routing rows or the table cannot be read.
    pub fn load_matrix(&self, window: Window) -> Result<LoadMatrix, StoreError> {
        self.need(Table::Routing, "load matrices")?;
        let shape = &self.header.model;
        let (layers, experts) = (usize::from(shape.moe_layers), usize::from(shape.experts));
        let mut loads = LoadMatrix::new(layers, experts, self.verified.ranks);
        self.routing(window, |phase, row, first| {
            if first {
                loads.add_step(phase);
            }
            loads.add(phase, &routing_record(row));
        })?;
        Ok(loads)
    }

    /// Traffic of a window by link.
    ///
    /// # Errors
    /// Where the trace has no link rows or no steps, or a table cannot be read.
    pub fn link_matrix(&self, window: Window) -> Result<LinkMatrix, StoreError> {
        self.need(Table::Links, "traffic by link")?;
        self.need(Table::Steps, "the phase of link rows")?;
        let range = self.step_range(window)?;
        let mut links = LinkMatrix::default();
        let mut steps = Steps {
            window,
            ranks: self.verified.ranks,
            steps: self.cursor::<StepRow>(&self.verified.steps, range)?,
            layers: None,
            routing: None,
            links: self.cursor::<LinkTableRow>(&self.verified.links, range)?,
        };
        for step in steps.by_ref() {
            let step = step?;
            for row in &step.links {
                links.add(step.phase, row);
            }
        }
        Ok(links)
    }

    /// Gives every routing row of a window, with its phase and whether its step begins with it.
    fn routing(
        &self,
        window: Window,
        mut take: impl FnMut(Phase, &RouteRow, bool),
    ) -> Result<(), StoreError> {
        let (from, to) = self.step_range(window)?;
        let Some(mut cursor) = self.cursor::<RouteRow>(&self.verified.routing, (from, to))? else {
            return Ok(());
        };
        let bounds = Bounds::new(&self.header, Some(self.verified.ranks));
        let mut last = None;
        while let Some(row) = cursor.peek()? {
            if row.step >= to {
                break;
            }
            if row.step >= from {
                // Codes and ids were checked when the trace was opened; the file may have changed.
                let host = row.host.and_then(|host| bounds.rank("host rank", host));
                let problem = bounds.routing(row.layer, row.source, row.expert).or(host);
                match (Phase::from_code(row.phase), problem) {
                    (Some(phase), None) => take(phase, &row, last != Some(row.step)),
                    (_, problem) => {
                        let problem = problem.unwrap_or_else(|| "unknown phase".to_owned());
                        return Err(cursor.fault(format!("step {}", row.step), problem));
                    }
                }
                last = Some(row.step);
            }
            cursor.advance();
        }
        Ok(())
    }

    /// The window as a range of step numbers.
    fn step_range(&self, window: Window) -> Result<(u64, u64), StoreError> {
        match window {
            Window::All => Ok((0, u64::MAX)),
            Window::Steps { from, to } => Ok((from, to)),
            Window::Time { .. } => {
                let table = self.need(Table::Steps, "a window of time")?;
                let mut cursor = table.all::<StepRow>()?;
                let mut range: Option<(u64, u64)> = None;
                while let Some(group) =
                    next_step(&mut cursor, Some(self.verified.ranks), |_, _| ())?
                {
                    if window.is_past(group.step, group.start_ns) {
                        break;
                    }
                    if window.contains(group.step, group.start_ns) {
                        let from = range.map_or(group.step, |(from, _)| from);
                        range = Some((from, group.step.saturating_add(1)));
                    }
                }
                Ok(range.unwrap_or((0, 0)))
            }
        }
    }

    fn cursor<R: Row>(
        &self,
        index: &GroupIndex,
        (from, to): (u64, u64),
    ) -> Result<Option<Cursor<R>>, StoreError> {
        let table = self.tables.get(&R::TABLE);
        table.map(|table| table.cursor::<R>(index.groups(from, to))).transpose()
    }

    fn need(&self, table: Table, purpose: &'static str) -> Result<&TableFile, StoreError> {
        let missing = || StoreError::Missing { path: self.dir.clone(), table, purpose };
        self.tables.get(&table).ok_or_else(missing)
    }

    /// Gives every row of a table whose rows are bounded in number.
    fn listed<R: Row>(
        &self,
        mut take: impl FnMut(R, &At<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let Some(table) = self.tables.get(&R::TABLE) else { return Ok(()) };
        if table.rows() > LISTED_ROWS_MAX {
            let (path, what) = (table.path().to_owned(), "number of rows".to_owned());
            let (found, limit) = (table.rows(), LISTED_ROWS_MAX);
            return Err(StoreError::Limit { path, what, found, limit });
        }
        let mut cursor = table.all::<R>()?;
        while let Some(row) = cursor.peek()? {
            take(row, &At { path: table.path(), row: cursor.row() })?;
            cursor.advance();
        }
        Ok(())
    }
}

/// Place of a row, for messages.
struct At<'a> {
    path: &'a Path,
    row: u64,
}

impl At<'_> {
    fn row(&self, place: String, problem: String) -> StoreError {
        StoreError::Row { path: self.path.to_owned(), row: self.row, place, problem }
    }
}

fn schema(table: Table, top_k: usize) -> Schema {
    match table {
        Table::Steps => StepRow::schema(),
        Table::Layers => LayerRow::schema(),
        Table::Routing => RouteRow::schema(),
        Table::Links => LinkTableRow::schema(),
        Table::Tokens => tokens::schema(top_k),
        Table::Requests => RequestRow::schema(),
        Table::Events => EventRow::schema(),
    }
}

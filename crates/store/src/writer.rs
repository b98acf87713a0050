//! Writes a trace beside its final place and moves it there when it is whole.

use crate::limits::{HEADER_BYTES_MAX, MAPS_MAX};
use crate::table::{EventRow, LayerRow, LinkTableRow, RequestRow, RouteRow, StepRow, Table};
use crate::table_writer::RowWriter;
use crate::{StoreError, records, tokens};
use evenkeel_trace::{Event, MapVersion, RequestRecord, Routes, StepRecord, TraceHeader};
use evenkeel_types::{ExpertMap, RankId};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A trace being written.
///
/// Rows stream to a hidden folder beside the target, readable by its owner only; [`finish`] waits
/// for the disk and renames it. A writer that is dropped unfinished leaves nothing.
///
/// [`finish`]: TraceWriter::finish
pub struct TraceWriter {
    target: PathBuf,
    staging: TempDir,
    header: TraceHeader,
    steps: Option<RowWriter<StepRow>>,
    layers: Option<RowWriter<LayerRow>>,
    routing: Option<RowWriter<RouteRow>>,
    links: Option<RowWriter<LinkTableRow>>,
    requests: Option<RowWriter<RequestRow>>,
    events: Option<RowWriter<EventRow>>,
    /// Request → prompt tokens, of the rows written.
    written: BTreeMap<u64, u32>,
    tokens_written: bool,
    ranks: Option<usize>,
    last: Option<(u64, u64)>,
}

impl TraceWriter {
    /// Starts a trace that will stand at `dir`.
    ///
    /// # Errors
    /// Where `dir` exists, its parent does not or cannot be written to, or the header is refused.
    pub fn create(dir: &Path, header: TraceHeader) -> Result<Self, StoreError> {
        if dir.symlink_metadata().is_ok() {
            return Err(StoreError::Exists { path: dir.to_owned() });
        }
        crate::header::check(&dir.join("trace.json"), &header)?;
        let staging = staging_beside(dir)?;
        Ok(Self {
            target: dir.to_owned(),
            staging,
            ranks: header.topology.as_ref().map(|topology| topology.rank_count()),
            header,
            steps: None,
            layers: None,
            routing: None,
            links: None,
            requests: None,
            events: None,
            written: BTreeMap::new(),
            tokens_written: false,
            last: None,
        })
    }

    /// Keeps a map. Where the header does not list its version, it is listed as live from the next
    /// step on.
    ///
    /// # Errors
    /// Where the map is for another model or number of ranks, or differs from the listed digest.
    pub fn map(&mut self, map: &ExpertMap) -> Result<(), StoreError> {
        let dir = self.staging.path().join("maps");
        let path = dir.join(map_file_name(map.version));
        let refused = |source| StoreError::Map { path: path.clone(), source: Box::new(source) };
        map.fits(&self.header.model, self.ranks.unwrap_or(map.ranks())).map_err(refused)?;
        let field = |problem: String| StoreError::Field { path: path.clone(), problem };
        let digest = map.digest();
        match self.header.maps.iter().find(|listed| listed.version == map.version) {
            Some(listed) if listed.digest == digest => {}
            Some(listed) => {
                return Err(field(format!(
                    "digest is {digest}, the header lists {}",
                    listed.digest
                )));
            }
            None if self.header.maps.len() == MAPS_MAX => {
                return Err(field(format!("a trace holds at most {MAPS_MAX} maps")));
            }
            None => {
                let from_step = self.last.map_or(0, |(step, _)| step + 1);
                self.header.maps.push(MapVersion { version: map.version, digest, from_step });
            }
        }
        let text = map.to_json().map_err(|error| field(error.to_string()))?;
        if !dir.exists() {
            DirBuilder::new().mode(0o700).create(&dir).map_err(StoreError::io(&dir, "create"))?;
        }
        write_synced(&path, text.as_bytes())
    }

    /// Appends a step. Its routing and link rows may come in any order.
    ///
    /// # Errors
    /// Where steps or their starts do not rise, dimensions differ from the header's or the first
    /// step's, an id is out of range, a row repeats, or the disk fails.
    pub fn step(&mut self, record: &StepRecord) -> Result<(), StoreError> {
        let path = self.target.join(Table::Steps.file_name());
        let ranks = *self.ranks.get_or_insert(record.ranks.len());
        records::check_step(&path, &self.header, ranks, record, self.last)?;
        self.last = Some((record.step, record.start_ns));
        let dir = self.staging.path();
        let steps = open(&mut self.steps, dir)?;
        for (rank, cell) in record.ranks.iter().enumerate() {
            steps.push(records::step_row(record, RankId(rank as u16), cell))?;
        }
        for (index, cell) in record.cells.iter().enumerate() {
            let (layer, rank) = ((index / ranks) as u16, (index % ranks) as u16);
            open(&mut self.layers, dir)?.push(records::layer_row(
                record.step,
                layer,
                rank,
                cell,
            ))?;
        }
        for row in records::routing_rows(&self.target, record)? {
            open(&mut self.routing, dir)?.push(row)?;
        }
        for row in records::link_rows(&self.target, record)? {
            open(&mut self.links, dir)?.push(row)?;
        }
        Ok(())
    }

    /// Appends requests.
    ///
    /// # Errors
    /// Where a request repeats, its slice is not in the header, or the disk fails.
    pub fn requests(&mut self, requests: &[RequestRecord]) -> Result<(), StoreError> {
        for request in requests {
            self.request(request)?;
        }
        Ok(())
    }

    fn request(&mut self, request: &RequestRecord) -> Result<(), StoreError> {
        let path = self.target.join(Table::Requests.file_name());
        let row = self.written.len() as u64;
        records::check_request(&path, row, &self.header, request)?;
        if self.written.insert(request.request, request.prompt_tokens).is_some() {
            let place = format!("request {}", request.request);
            let problem = "is there twice, expected once".to_owned();
            return Err(StoreError::Row { path, row, place, problem });
        }
        open(&mut self.requests, self.staging.path())?.push(records::request_row(request))
    }

    /// Appends events.
    ///
    /// # Errors
    /// Where an id is out of range or the disk fails.
    pub fn events(&mut self, events: &[Event]) -> Result<(), StoreError> {
        for event in events {
            open(&mut self.events, self.staging.path())?.push(records::event_row(event))?;
        }
        Ok(())
    }

    /// Writes recorded routing, once per trace (table `tokens`).
    ///
    /// A request that [`TraceWriter::requests`] has not written gets a row here, with the slice and
    /// token counts of the recording. For one that was written, positions are counted so that the
    /// recorded prompt tokens are the last ones of the prompt.
    ///
    /// # Errors
    /// Where routing is of another shape than the header's model, was written already, or the disk
    /// fails.
    pub fn routes(&mut self, routes: &Routes) -> Result<(), StoreError> {
        let path = self.target.join(Table::Tokens.file_name());
        let shape = &self.header.model;
        let expected = (usize::from(shape.moe_layers), usize::from(shape.top_k), shape.experts);
        let found = (routes.layers(), routes.top_k(), routes.experts());
        if found != expected {
            let problem = format!(
                "routing has (layers, top-k, experts) {found:?}, expected {expected:?} as in the header"
            );
            return Err(StoreError::Field { path, problem });
        }
        if std::mem::replace(&mut self.tokens_written, true) {
            let problem = "routing was written already, expected once".to_owned();
            return Err(StoreError::Field { path, problem });
        }
        let mut starts = Vec::with_capacity(routes.requests().len());
        for recorded in routes.requests() {
            let prompt = match self.written.get(&recorded.request) {
                Some(prompt) => *prompt,
                None => {
                    self.request(&records::derived_request(recorded))?;
                    recorded.prompt_tokens
                }
            };
            let start = prompt.checked_sub(recorded.prompt_tokens);
            starts.push(start.ok_or_else(|| StoreError::Field {
                path: path.clone(),
                problem: format!(
                    "request {}: {} prompt tokens recorded, expected at most its {prompt}",
                    recorded.request, recorded.prompt_tokens
                ),
            })?);
        }
        tokens::write(&self.staging.path().join(Table::Tokens.file_name()), routes, &starts)
    }

    /// Completes the trace and moves it to its place.
    ///
    /// # Errors
    /// Where the disk fails or something has appeared at the target. Nothing is left then.
    pub fn finish(self) -> Result<(), StoreError> {
        let Self { target, staging, header, .. } = self;
        finish(self.steps)?;
        finish(self.layers)?;
        finish(self.routing)?;
        finish(self.links)?;
        finish(self.requests)?;
        finish(self.events)?;
        let path = staging.path().join("trace.json");
        crate::header::check(&path, &header)?;
        let text = serde_json::to_string_pretty(&header)
            .map_err(|source| StoreError::Header { path: path.clone(), source })?;
        if text.len() as u64 > HEADER_BYTES_MAX {
            let (what, found) = ("bytes of the header".to_owned(), text.len() as u64);
            return Err(StoreError::Limit { path, what, found, limit: HEADER_BYTES_MAX });
        }
        write_synced(&path, (text + "\n").as_bytes())?;
        let maps = staging.path().join("maps");
        if maps.exists() {
            sync_dir(&maps)?;
        }
        settle(staging, &target)
    }
}

fn open<'a, R: crate::table::Row>(
    table: &'a mut Option<RowWriter<R>>,
    dir: &Path,
) -> Result<&'a mut RowWriter<R>, StoreError> {
    match table {
        Some(table) => Ok(table),
        None => Ok(table.insert(RowWriter::create(dir)?)),
    }
}

fn finish<R: crate::table::Row>(table: Option<RowWriter<R>>) -> Result<(), StoreError> {
    table.map_or(Ok(()), RowWriter::finish)
}

/// Name of a map's file within `maps/`.
pub(crate) fn map_file_name(version: u64) -> String {
    format!("v{version}.json")
}

/// Puts the files of a trace that a program carries within itself into a folder.
///
/// `files` are (name within the trace, bytes), e.g. `("tokens.parquet", include_bytes!(…))`. The
/// folder appears whole or not at all. Its contents are checked by [`crate::Trace::open`].
///
/// # Errors
/// Where `dir` exists, a name would leave it, or the disk fails.
pub fn unpack(dir: &Path, files: &[(&str, &[u8])]) -> Result<(), StoreError> {
    if dir.symlink_metadata().is_ok() {
        return Err(StoreError::Exists { path: dir.to_owned() });
    }
    let staging = staging_beside(dir)?;
    for (name, bytes) in files {
        let path = staging.path().join(name);
        let known = match name.strip_prefix("maps/") {
            Some(map) => map.ends_with(".json") && !map.contains(['/', '\\']),
            None => !name.contains(['/', '\\']) && !name.starts_with('.'),
        };
        if !known {
            let problem = format!("`{name}` is not the name of a file of a trace");
            return Err(StoreError::Field { path: dir.to_owned(), problem });
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
            DirBuilder::new()
                .mode(0o700)
                .create(parent)
                .map_err(StoreError::io(parent, "create"))?;
        }
        write_synced(&path, bytes)?;
    }
    settle(staging, dir)
}

fn parent_of(dir: &Path) -> &Path {
    dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn staging_beside(dir: &Path) -> Result<TempDir, StoreError> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    tempfile::Builder::new()
        .prefix(&format!(".{name}.partial-"))
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent_of(dir))
        .map_err(StoreError::io(dir, "write beside"))
}

/// Moves a finished folder to its place.
fn settle(staging: TempDir, target: &Path) -> Result<(), StoreError> {
    sync_dir(staging.path())?;
    if target.symlink_metadata().is_ok() {
        return Err(StoreError::Exists { path: target.to_owned() });
    }
    fs::rename(staging.path(), target).map_err(StoreError::io(target, "move into place"))?;
    // The folder has its name: nothing is left to clean up.
    let _moved = staging.keep();
    sync_dir(parent_of(target))
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(StoreError::io(path, "create"))?;
    file.write_all(bytes).map_err(StoreError::io(path, "write"))?;
    file.sync_all().map_err(StoreError::io(path, "write"))
}

fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    let opened = File::open(dir).map_err(StoreError::io(dir, "open"))?;
    opened.sync_all().map_err(StoreError::io(dir, "write"))
}

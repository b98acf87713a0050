//! Results to stdout, the rest to stderr; files written beside and then renamed.

use crate::fail::Failure;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// Where a verb presents its result.
#[derive(Debug)]
pub(crate) struct Out {
    json: bool,
    quiet: bool,
}

impl Out {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet }
    }

    /// Whether progress may be drawn.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && std::io::stderr().is_terminal()
    }

    /// Prints the result: the value under `--json`, else the text.
    pub(crate) fn present(
        &mut self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let mut rendered = if self.json {
            serde_json::to_string_pretty(value).map_err(Failure::environment)?
        } else {
            text()
        };
        if !rendered.ends_with('\n') {
            rendered.push('\n');
        }
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(rendered.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|error| Failure::io("stdout", &error))
    }

    /// A remark on stderr that is not the result.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            complain(text);
        }
    }
}

/// One line on stderr. A closed stderr is nobody's problem.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Writes a file whole or not at all: beside it first, then renamed into place.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let place = || path.display();
    std::fs::create_dir_all(folder).map_err(|error| Failure::io(folder.display(), &error))?;
    let mut beside =
        tempfile::NamedTempFile::new_in(folder).map_err(|error| Failure::io(place(), &error))?;
    beside
        .write_all(bytes)
        .and_then(|()| beside.as_file().sync_all())
        .map_err(|error| Failure::io(place(), &error))?;
    beside.persist(path).map_err(|error| Failure::io(place(), &error.error))?;
    Ok(())
}

/// Writes a value as a JSON file, whole or not at all.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_vec_pretty(value)
        .map_err(|error| Failure::environment(error).context(path.display()))?;
    text.push(b'\n');
    write_file(path, &text)
}

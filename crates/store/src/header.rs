//! The header file: read within bounds, and checked the same way on write and on read.

use crate::StoreError;
use crate::limits::{HEADER_BYTES_MAX, MAPS_MAX};
use evenkeel_trace::{TRACE_SCHEMA, TraceHeader};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

#[derive(Deserialize)]
struct SchemaOnly {
    schema: String,
}

/// Reads and checks `trace.json` of a trace's folder.
pub(crate) fn read(dir: &Path) -> Result<TraceHeader, StoreError> {
    let path = dir.join("trace.json");
    let text = match read_text(&path, "bytes of the header", HEADER_BYTES_MAX) {
        Err(StoreError::Io { source, .. })
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Err(StoreError::NotATrace { path: dir.to_owned() });
        }
        text => text?,
    };
    parse(&path, &text)
}

/// Parses and checks the text of a header. `path` is for messages.
pub(crate) fn parse(path: &Path, text: &str) -> Result<TraceHeader, StoreError> {
    let refused = |source| StoreError::Header { path: path.to_owned(), source };
    // The version first: a newer header has fields that this reader does not know.
    let SchemaOnly { schema } = serde_json::from_str(text).map_err(refused)?;
    if schema != TRACE_SCHEMA {
        return Err(StoreError::Schema {
            path: path.to_owned(),
            found: schema,
            expected: TRACE_SCHEMA.to_owned(),
        });
    }
    let header: TraceHeader = serde_json::from_str(text).map_err(refused)?;
    check(path, &header)?;
    Ok(header)
}

/// Checks a header against its own laws.
pub(crate) fn check(path: &Path, header: &TraceHeader) -> Result<(), StoreError> {
    let bad = |problem: String| Err(StoreError::Field { path: path.to_owned(), problem });
    if header.schema != TRACE_SCHEMA {
        return Err(StoreError::Schema {
            path: path.to_owned(),
            found: header.schema.clone(),
            expected: TRACE_SCHEMA.to_owned(),
        });
    }
    let shape = |source| StoreError::Shape { path: path.to_owned(), source };
    header.model.validate().map_err(shape)?;
    if let Some(topology) = &header.topology {
        let refused =
            |source| StoreError::Topology { path: path.to_owned(), source: Box::new(source) };
        topology.validate().map_err(refused)?;
    }
    for (field, found) in [("slices", header.slices.len()), ("kernels", header.kernels.len())] {
        if found > usize::from(u16::MAX) {
            return bad(format!("field `{field}` has {found} entries, expected at most 65535"));
        }
    }
    if header.maps.len() > MAPS_MAX {
        let found = header.maps.len();
        return bad(format!("field `maps` has {found} entries, expected at most {MAPS_MAX}"));
    }
    for pair in header.maps.windows(2) {
        if pair[1].version <= pair[0].version || pair[1].from_step < pair[0].from_step {
            return bad(format!(
                "field `maps`: version {} from step {} follows version {} from step {}, \
                 expected both to rise",
                pair[1].version, pair[1].from_step, pair[0].version, pair[0].from_step
            ));
        }
    }
    Ok(())
}

/// Reads a text file of bounded length.
pub(crate) fn read_text(path: &Path, what: &str, limit: u64) -> Result<String, StoreError> {
    let file = File::open(path).map_err(StoreError::io(path, "open"))?;
    let mut bytes = Vec::new();
    // The length is that of what is read, so that a pipe or a growing file is bounded too.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(StoreError::io(path, "read"))?;
    if bytes.len() as u64 > limit {
        let (path, what) = (path.to_owned(), what.to_owned());
        return Err(StoreError::Limit { path, what, found: bytes.len() as u64, limit });
    }
    String::from_utf8(bytes).map_err(|error| StoreError::Field {
        path: path.to_owned(),
        problem: format!("is not UTF-8 text: {error}"),
    })
}

//! Looks at a Parquet file before anything in it is decoded.
//!
//! A footer and the page headers are numbers that a file claims. The decoder allocates by them, so
//! they are compared with the file's length, with each other and with [`crate::limits`] first:
//! offsets and lengths within the file, rows that add up, pages of bounded uncompressed size. This
//! is what stands between a decompression bomb and memory.

use crate::limits::{PAGE_BYTES_MAX, ROWS_MAX};
use crate::{StoreError, thrift};
use parquet::basic::Compression;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use std::fs::File;
use std::path::Path;

/// Checks the footer and every page header of the columns named; returns the number of rows.
pub(crate) fn check(
    path: &Path,
    file: &File,
    length: u64,
    metadata: &ParquetMetaData,
    columns: &[String],
) -> Result<u64, StoreError> {
    let bad = |problem: String| StoreError::Parquet { path: path.to_owned(), problem };
    let claimed = u64::try_from(metadata.file_metadata().num_rows())
        .map_err(|_| bad("the footer claims a negative number of rows".into()))?;
    if claimed > ROWS_MAX {
        let (path, what) = (path.to_owned(), "number of rows".to_owned());
        return Err(StoreError::Limit { path, what, found: claimed, limit: ROWS_MAX });
    }
    let mut rows = 0_u64;
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let count = u64::try_from(group.num_rows()).unwrap_or(u64::MAX);
        rows = rows.saturating_add(count);
        if rows > claimed {
            return Err(bad(format!("row group {index} exceeds the footer's {claimed} rows")));
        }
        check_group(path, file, length, group, index, columns)?;
    }
    if rows != claimed {
        return Err(bad(format!("row groups hold {rows} rows, the footer claims {claimed}")));
    }
    Ok(rows)
}

fn check_group(
    path: &Path,
    file: &File,
    length: u64,
    group: &RowGroupMetaData,
    index: usize,
    columns: &[String],
) -> Result<(), StoreError> {
    for chunk in group.columns() {
        let parts = chunk.column_path().parts();
        let Some(name) = parts.first().filter(|name| columns.contains(name)) else { continue };
        let bad = |problem: String| StoreError::Parquet {
            path: path.to_owned(),
            problem: format!("row group {index}, column `{name}`: {problem}"),
        };
        if !matches!(chunk.compression(), Compression::UNCOMPRESSED | Compression::ZSTD(_)) {
            return Err(StoreError::Column {
                path: path.to_owned(),
                column: name.clone(),
                problem: format!(
                    "is compressed with {}, expected ZSTD or none",
                    chunk.compression_codec()
                ),
            });
        }
        let (start, end) = extent(chunk, length).ok_or_else(|| {
            bad("lies outside the file: the file is cut off or its footer is damaged".into())
        })?;
        let pages = pages(file, start, end).map_err(|problem| match problem {
            PageFault::Io(source) => StoreError::io(path, "read page headers")(source),
            PageFault::Bad(problem) => bad(problem.to_owned()),
            PageFault::Large(found) => StoreError::Limit {
                path: path.to_owned(),
                what: format!("row group {index}, column `{name}`: bytes of a page"),
                found,
                limit: PAGE_BYTES_MAX,
            },
        })?;
        let claimed = u64::try_from(chunk.num_values()).unwrap_or(u64::MAX);
        let flat = parts.len() == 1;
        let rows = u64::try_from(group.num_rows()).unwrap_or(u64::MAX);
        if pages != claimed || (flat && claimed != rows) || claimed > ROWS_MAX {
            return Err(bad(format!(
                "pages hold {pages} values, the footer claims {claimed} in {rows} rows"
            )));
        }
    }
    Ok(())
}

/// First byte and end of a column chunk, if they lie within the file's body.
fn extent(chunk: &ColumnChunkMetaData, length: u64) -> Option<(u64, u64)> {
    let data = u64::try_from(chunk.data_page_offset()).ok()?;
    // As the decoder does it: the dictionary page, where there is one, comes first.
    let start = match chunk.dictionary_page_offset() {
        Some(offset) => u64::try_from(offset).ok()?,
        None => data,
    };
    let end = start.checked_add(u64::try_from(chunk.compressed_size()).ok()?)?;
    (start >= 4 && start <= data && data <= end && end + 8 <= length).then_some((start, end))
}

enum PageFault {
    Io(std::io::Error),
    Bad(&'static str),
    Large(u64),
}

/// Walks the page headers of a chunk; returns the number of values in its data pages.
fn pages(file: &File, start: u64, end: u64) -> Result<u64, PageFault> {
    let mut at = start;
    let mut values = 0_u64;
    while at < end {
        let header = read_header(file, at, end)?;
        if header.uncompressed_bytes > PAGE_BYTES_MAX {
            return Err(PageFault::Large(header.uncompressed_bytes));
        }
        // A bit-packed or run-length page may hold many values in few bytes, but no more than a
        // row group; a dictionary page holds at least a bit of each.
        if header.dictionary {
            if header.values > header.uncompressed_bytes.saturating_mul(8) {
                return Err(PageFault::Bad("a dictionary page claims more values than it holds"));
            }
        } else {
            values = values.saturating_add(header.values);
        }
        let next = at
            .checked_add(header.header_bytes)
            .and_then(|body| body.checked_add(header.compressed_bytes));
        at = match next {
            Some(next) if next > at && next <= end => next,
            _ => return Err(PageFault::Bad("a page runs over the end of its column")),
        };
    }
    Ok(values)
}

fn read_header(file: &File, at: u64, end: u64) -> Result<thrift::PageHeader, PageFault> {
    use std::os::unix::fs::FileExt;
    // Ours take some 40 bytes; those with text statistics may take more.
    for window in [256_u64, 1 << 16] {
        let mut buffer = vec![0; window.min(end - at) as usize];
        file.read_exact_at(&mut buffer, at).map_err(PageFault::Io)?;
        if let Some(header) = thrift::page_header(&buffer) {
            return Ok(header);
        }
    }
    Err(PageFault::Bad("a page header is not readable"))
}

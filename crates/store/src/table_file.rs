//! One Parquet file of a trace, checked when opened and read batch by batch.

use crate::cell::Source;
use crate::limits::{BATCH_ROWS, FOOTER_BYTES_MAX};
use crate::table::{Row, Table};
use crate::{StoreError, decoder, guard};
use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use evenkeel_trace::TRACE_SCHEMA;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Footer key that carries the schema version of the trace.
pub(crate) const SCHEMA_KEY: &str = "evenkeel.schema";
/// Footer key that carries the table's name.
pub(crate) const TABLE_KEY: &str = "evenkeel.table";

/// An open table.
#[derive(Clone, Debug)]
pub(crate) struct TableFile {
    path: PathBuf,
    file: Arc<File>,
    length: u64,
    metadata: ArrowReaderMetadata,
    rows: u64,
}

impl TableFile {
    /// Opens a table and checks its footer, page headers, schema version and columns.
    ///
    /// `schema` lists the columns expected; columns beside them are left alone.
    pub fn open(path: &Path, table: Table, schema: &Schema) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(StoreError::io(path, "open"))?;
        let length = file.metadata().map_err(StoreError::io(path, "look at"))?.len();
        check_ends(path, &file, length)?;
        let file = Arc::new(file);
        let chunks = Chunks { file: Arc::clone(&file), length };
        let metadata = decoder::call(path, "read the footer", || {
            ParquetMetaDataReader::new()
                .with_page_index_policy(PageIndexPolicy::Skip)
                .parse_and_finish(&chunks)
        })?;
        check_keys(path, table, metadata.file_metadata().key_value_metadata())?;
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let rows = guard::check(path, &file, length, &metadata, &names)?;
        // Types follow from Parquet's own, so that an embedded Arrow schema is not trusted.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = decoder::call(path, "read the footer", || {
            ArrowReaderMetadata::try_new(Arc::new(metadata), options)
        })?;
        let opened = Self { path: path.to_owned(), file, length, metadata, rows };
        opened.check_columns(schema)?;
        Ok(opened)
    }

    fn check_columns(&self, schema: &Schema) -> Result<(), StoreError> {
        for expected in schema.fields() {
            let bad = |problem: String| StoreError::Column {
                path: self.path.clone(),
                column: expected.name().clone(),
                problem,
            };
            let found = self.metadata.schema().field_with_name(expected.name());
            let found =
                found.map_err(|_| bad(format!("is missing, expected {}", expected.data_type())))?;
            let fits = match expected.data_type() {
                DataType::Utf8 => found.data_type() == &DataType::Utf8,
                DataType::List(_) => match found.data_type() {
                    DataType::List(item) => is_number(item.data_type()),
                    _ => false,
                },
                _ => is_number(found.data_type()),
            };
            if !fits {
                let (found, expected) = (found.data_type(), expected.data_type());
                return Err(bad(format!("holds {found}, expected {expected}")));
            }
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rows of the table.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// First row and end of every row group.
    pub fn groups(&self) -> Vec<Range<u64>> {
        let mut start = 0;
        let groups = self.metadata.metadata().row_groups().iter();
        groups
            .map(|group| {
                let first = start;
                // The guard has seen that counts are not negative.
                start += group.num_rows().unsigned_abs();
                first..start
            })
            .collect()
    }

    /// Record batches of some columns over a run of row groups.
    pub fn batches(&self, names: &[&str], groups: Range<usize>) -> Result<Scan, StoreError> {
        let chunks = Chunks { file: Arc::clone(&self.file), length: self.length };
        let first_row = self.groups().get(groups.start).map_or(self.rows, |rows| rows.start);
        let reader = decoder::call(&self.path, "read", || {
            let schema = self.metadata.parquet_schema();
            let mask = ProjectionMask::columns(schema, names.iter().copied());
            ParquetRecordBatchReaderBuilder::new_with_metadata(chunks, self.metadata.clone())
                .with_row_groups(groups.collect())
                .with_projection(mask)
                .with_batch_size(BATCH_ROWS)
                .build()
        })?;
        Ok(Scan { path: self.path.clone(), reader: Some(reader), next_row: first_row })
    }

    /// A cursor over the rows of a run of row groups.
    pub fn cursor<R: Row>(&self, groups: Range<usize>) -> Result<Cursor<R>, StoreError> {
        let scan = self.batches(R::NAMES, groups)?;
        Ok(Cursor { scan, batch: None, index: 0, length: 0, first_row: 0, row: PhantomData })
    }

    /// A cursor over all rows.
    pub fn all<R: Row>(&self) -> Result<Cursor<R>, StoreError> {
        self.cursor(0..self.metadata.metadata().num_row_groups())
    }
}

fn is_number(found: &DataType) -> bool {
    found.is_integer() || matches!(found, DataType::Float32 | DataType::Float64)
}

fn check_ends(path: &Path, file: &File, length: u64) -> Result<(), StoreError> {
    let bad =
        |problem: &str| StoreError::Parquet { path: path.to_owned(), problem: problem.to_owned() };
    let mut tail = [0; 8];
    if length < 12 {
        return Err(bad("shorter than any Parquet file: it is cut off or empty"));
    }
    file.read_exact_at(&mut tail, length - 8).map_err(StoreError::io(path, "read the footer"))?;
    if &tail[4..] != b"PAR1" {
        return Err(bad("no `PAR1` at its end: it is cut off, or another format"));
    }
    let footer = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if footer > FOOTER_BYTES_MAX {
        let (path, what) = (path.to_owned(), "footer length".to_owned());
        return Err(StoreError::Limit { path, what, found: footer, limit: FOOTER_BYTES_MAX });
    }
    if footer + 12 > length {
        return Err(bad("its footer is longer than the file: it is cut off or damaged"));
    }
    Ok(())
}

fn check_keys(
    path: &Path,
    table: Table,
    keys: Option<&Vec<parquet::file::metadata::KeyValue>>,
) -> Result<(), StoreError> {
    // A table from another tool has no keys: its columns decide.
    for key in keys.into_iter().flatten() {
        let expected = match key.key.as_str() {
            SCHEMA_KEY => TRACE_SCHEMA,
            TABLE_KEY => table.name(),
            _ => continue,
        };
        let found = key.value.clone().unwrap_or_default();
        if found != expected {
            let (path, expected) = (path.to_owned(), expected.to_owned());
            return Err(StoreError::Schema { path, found, expected });
        }
    }
    Ok(())
}

/// A stream of record batches with their place.
pub(crate) struct Scan {
    path: PathBuf,
    /// None after a failure: what the decoder would say then has no meaning.
    reader: Option<ParquetRecordBatchReader>,
    next_row: u64,
}

impl Scan {
    /// The next batch that has rows, and the row that it starts with.
    pub fn next(&mut self) -> Result<Option<(RecordBatch, u64)>, StoreError> {
        while let Some(mut reader) = self.reader.take() {
            let batch =
                decoder::call(&self.path, "read rows", || Ok(reader.next().transpose()?))?;
            let Some(batch) = batch else { break };
            self.reader = Some(reader);
            if batch.num_rows() > 0 {
                let first = self.next_row;
                self.next_row += batch.num_rows() as u64;
                return Ok(Some((batch, first)));
            }
        }
        Ok(None)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Rows one after the other.
pub(crate) struct Cursor<R: Row> {
    scan: Scan,
    batch: Option<R::Columns>,
    index: usize,
    length: usize,
    first_row: u64,
    row: PhantomData<R>,
}

impl<R: Row> Cursor<R> {
    /// The row under the cursor, without moving it.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<R>, StoreError> {
        if self.index == self.length && !self.fill()? {
            return Ok(None);
        }
        Ok(self.batch.as_ref().map(|columns| R::at(columns, self.index)))
    }

    /// Moves past the row that [`Cursor::peek`] gave.
    #[inline]
    pub fn advance(&mut self) {
        self.index += 1;
    }

    /// Number of the row under the cursor.
    pub fn row(&self) -> u64 {
        self.first_row + self.index as u64
    }

    fn fill(&mut self) -> Result<bool, StoreError> {
        let Some((batch, first_row)) = self.scan.next()? else {
            self.batch = None;
            return Ok(false);
        };
        let source = Source { path: &self.scan.path, batch: &batch, first_row };
        self.batch = Some(R::decode(&source)?);
        (self.index, self.length, self.first_row) = (0, batch.num_rows(), first_row);
        Ok(true)
    }

    /// An error about the row under the cursor.
    pub fn fault(&self, place: String, problem: impl Into<String>) -> StoreError {
        let (path, row) = (self.scan.path.clone(), self.row());
        StoreError::Row { path, row, place, problem: problem.into() }
    }
}

/// Positional reads of one file: several readers share it without sharing a position.
struct Chunks {
    file: Arc<File>,
    length: u64,
}

/// A reader that starts at an offset and keeps its own position.
struct Positioned {
    file: Arc<File>,
    at: u64,
}

impl Read for Positioned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Chunks {
    type T = io::BufReader<Positioned>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let reader = Positioned { file: Arc::clone(&self.file), at: start };
        // Only page headers are read through this.
        Ok(io::BufReader::with_capacity(512, reader))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(parquet::errors::ParquetError::EOF(format!(
                "{length} bytes at {start} lie beyond the file's {}",
                self.length
            )));
        }
        let mut buffer = vec![0; length];
        self.file.read_exact_at(&mut buffer, start)?;
        Ok(buffer.into())
    }
}

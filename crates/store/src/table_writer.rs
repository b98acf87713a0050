//! Writes one table in row groups, through a buffer of rows.

use crate::StoreError;
use crate::limits::{BATCH_ROWS, ROW_GROUP_ROWS};
use crate::table::{Row, Table};
use crate::table_file::{SCHEMA_KEY, TABLE_KEY};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Schema, SchemaRef};
use evenkeel_trace::TRACE_SCHEMA;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A table being written: columns in, row groups out.
pub(crate) struct TableWriter {
    path: PathBuf,
    schema: SchemaRef,
    writer: ArrowWriter<File>,
}

/// Properties of every table; a table may refine them.
pub(crate) fn properties(table: Table) -> WriterPropertiesBuilder {
    let keys = vec![
        KeyValue::new(SCHEMA_KEY.to_owned(), TRACE_SCHEMA.to_owned()),
        KeyValue::new(TABLE_KEY.to_owned(), table.name().to_owned()),
    ];
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_key_value_metadata(Some(keys))
        .set_created_by(concat!("evenkeel ", env!("CARGO_PKG_VERSION")).to_owned())
}

impl TableWriter {
    /// Creates the file, readable by its owner only.
    pub fn create(
        path: &Path,
        schema: Schema,
        properties: WriterPropertiesBuilder,
    ) -> Result<Self, StoreError> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .map_err(StoreError::io(path, "create"))?;
        let schema = Arc::new(schema);
        let options = ArrowWriterOptions::new()
            .with_properties(properties.build())
            .with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(file, Arc::clone(&schema), options)
            .map_err(StoreError::parquet(path, "write"))?;
        Ok(Self { path: path.to_owned(), schema, writer })
    }

    /// Appends columns in schema order.
    pub fn append(&mut self, columns: Vec<ArrayRef>) -> Result<(), StoreError> {
        let failed = StoreError::parquet(&self.path, "write rows");
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|error| failed(error.into()))?;
        self.writer.write(&batch).map_err(failed)
    }

    /// Writes the footer and waits until the disk has everything.
    pub fn finish(mut self) -> Result<(), StoreError> {
        self.writer.finish().map_err(StoreError::parquet(&self.path, "write the footer"))?;
        self.writer.inner().sync_all().map_err(StoreError::io(&self.path, "write"))
    }
}

/// A table that rows are pushed to one by one.
pub(crate) struct RowWriter<R: Row> {
    table: TableWriter,
    rows: Vec<R>,
}

impl<R: Row> RowWriter<R> {
    pub fn create(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(R::TABLE.file_name());
        let table = TableWriter::create(&path, R::schema(), properties(R::TABLE))?;
        Ok(Self { table, rows: Vec::with_capacity(BATCH_ROWS) })
    }

    pub fn push(&mut self, row: R) -> Result<(), StoreError> {
        self.rows.push(row);
        if self.rows.len() == BATCH_ROWS { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.table.append(R::arrays(&self.rows))?;
        self.rows.clear();
        Ok(())
    }

    pub fn finish(mut self) -> Result<(), StoreError> {
        if !self.rows.is_empty() {
            self.flush()?;
        }
        self.table.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::StepRow;

    #[test]
    fn a_full_disk_is_told_as_such() {
        let path = Path::new("/dev/full");
        let schema = StepRow::schema();
        let names: Vec<ArrayRef> = StepRow::arrays(&[]);
        let result =
            TableWriter::create(path, schema, properties(Table::Steps)).and_then(|mut table| {
                table.append(names)?;
                table.finish()
            });
        let error = result.unwrap_err();
        assert!(error.is_environment(), "{error}");
        assert!(error.to_string().contains("/dev/full: cannot"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("free space")), "{error}");
    }
}

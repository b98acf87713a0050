//! CSV tables with named columns; every fault by file, line and column.

use crate::ImportError;
use crate::source::{CSV_BYTES_MAX, expand};
use csv::{Reader, ReaderBuilder, StringRecord, Trim};
use std::io::Cursor;
use std::str::FromStr;

/// Columns beyond this are refused; tables in use have a dozen.
const COLUMNS_MAX: usize = 1024;

/// A CSV file being read, gzip or plain.
pub(crate) struct Table {
    name: String,
    reader: Reader<Cursor<Vec<u8>>>,
    columns: Vec<String>,
    row: StringRecord,
    line: u64,
}

impl Table {
    pub fn open(name: &str, bytes: &[u8]) -> Result<Self, ImportError> {
        let bytes = expand(name, bytes, CSV_BYTES_MAX)?;
        let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(Cursor::new(bytes));
        let header = reader.headers().map_err(|error| unreadable(name, &error))?;
        if header.len() > COLUMNS_MAX {
            let (file, limit) = (name.to_owned(), COLUMNS_MAX as u64);
            return Err(ImportError::Limit { file, what: "number of columns", limit });
        }
        let mut columns: Vec<String> = header.iter().map(str::to_owned).collect();
        if let Some(first) = columns.first_mut() {
            // Spreadsheets put a byte order mark before the first name.
            *first = first.trim_start_matches('\u{feff}').to_owned();
        }
        Ok(Self { name: name.to_owned(), reader, columns, row: StringRecord::new(), line: 1 })
    }

    /// Index of the first of these columns that is there.
    pub fn find(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|name| self.columns.iter().position(|column| column == name))
    }

    /// Index of the first of these columns that is there, or an error that names them all.
    pub fn need(&self, names: &[&str]) -> Result<usize, ImportError> {
        self.find(names).ok_or_else(|| {
            let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let found: Vec<String> =
                self.columns.iter().take(20).map(|name| format!("`{}`", show(name))).collect();
            ImportError::Column {
                file: self.name.clone(),
                expected: quoted.join(" or "),
                found: if found.is_empty() { "none".to_owned() } else { found.join(", ") },
            }
        })
    }

    /// Moves to the next line; false at the end.
    pub fn advance(&mut self) -> Result<bool, ImportError> {
        let more = self.reader.read_record(&mut self.row);
        let more = more.map_err(|error| unreadable(&self.name, &error))?;
        self.line = self.row.position().map_or(self.line + 1, csv::Position::line);
        Ok(more)
    }

    /// The field of the line.
    pub fn text(&self, column: usize) -> &str {
        self.row.get(column).unwrap_or_default()
    }

    /// The field as a number.
    pub fn number<T: FromStr>(&self, column: usize, expected: &str) -> Result<T, ImportError> {
        self.text(column).parse().map_err(|_| self.fault(column, expected))
    }

    /// An error about a field of the line.
    pub fn fault(&self, column: usize, expected: &str) -> ImportError {
        ImportError::Field {
            file: self.name.clone(),
            line: self.line,
            column: self.columns.get(column).map_or_else(String::new, |name| show(name)),
            found: show(self.text(column)),
            expected: expected.to_owned(),
        }
    }
}

/// A foreign text for a message: short, on one line.
fn show(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}

fn unreadable(name: &str, error: &csv::Error) -> ImportError {
    let line = error.position().map_or(0, csv::Position::line);
    let problem = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("line {line}: {len} fields, expected {expected_len} as in the first line")
        }
        csv::ErrorKind::Utf8 { .. } => format!("line {line}: is not UTF-8 text"),
        _ => format!("line {line}: {error}"),
    };
    ImportError::File { file: name.to_owned(), problem }
}

//! Reading measurement tables: comma-separated text with a header, errors by line and column.
//!
//! The tables are plain numbers and bare words, so a cell never holds a comma; a quoted cell is
//! taken with its quotes removed. Lines that are empty or begin with `#` are skipped.

use std::str::FromStr;

use crate::error::CostError;

/// A parsed table that borrows its text.
#[derive(Clone, Debug)]
pub struct Table<'a> {
    name: String,
    columns: Vec<&'a str>,
    rows: Vec<(usize, Vec<&'a str>)>,
}

/// One row of a [`Table`].
#[derive(Clone, Copy, Debug)]
pub struct Row<'t, 'a> {
    table: &'t Table<'a>,
    at: usize,
}

impl<'a> Table<'a> {
    /// Splits text into header and rows.
    ///
    /// # Errors
    /// [`CostError::Cell`] for a row with another number of cells than the header, naming the line.
    pub fn parse(name: &str, text: &'a str) -> Result<Self, CostError> {
        let mut lines = text
            .trim_start_matches('\u{feff}')
            .lines()
            .enumerate()
            .map(|(i, line)| (i + 1, line.trim()))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let cells = |line: &'a str| -> Vec<&'a str> {
            line.split(',').map(|cell| cell.trim().trim_matches('"')).collect()
        };
        let columns = lines.next().map(|(_, line)| cells(line)).unwrap_or_default();
        let mut rows = Vec::new();
        for (line, text) in lines {
            let row = cells(text);
            if row.len() != columns.len() {
                return Err(CostError::Cell {
                    table: name.to_owned(),
                    line,
                    column: columns.get(row.len()).copied().unwrap_or("").to_owned(),
                    found: format!("{} cells", row.len()),
                    expected: format!("{} cells as in the header", columns.len()),
                });
            }
            rows.push((line, row));
        }
        Ok(Self { name: name.to_owned(), columns, rows })
    }

    /// Name given when parsing.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of data rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True for a table without data rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Index of a column, for use with [`Row::get`].
    ///
    /// # Errors
    /// [`CostError::Column`] where there is none.
    pub fn column(&self, column: &str) -> Result<usize, CostError> {
        self.columns.iter().position(|c| *c == column).ok_or_else(|| CostError::Column {
            table: self.name.clone(),
            column: column.to_owned(),
        })
    }

    /// Indices of several columns.
    ///
    /// # Errors
    /// [`CostError::Column`] for the first that is missing.
    pub fn columns<const N: usize>(&self, names: [&str; N]) -> Result<[usize; N], CostError> {
        let mut found = [0; N];
        for (place, name) in found.iter_mut().zip(names) {
            *place = self.column(name)?;
        }
        Ok(found)
    }

    /// All rows in file order.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_, 'a>> {
        (0..self.rows.len()).map(|at| Row { table: self, at })
    }
}

impl<'a> Row<'_, 'a> {
    /// The text of a cell.
    #[must_use]
    pub fn text(&self, column: usize) -> &'a str {
        self.table.rows[self.at].1[column]
    }

    /// Line in the file, the header being line 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.table.rows[self.at].0
    }

    /// A cell as a number.
    ///
    /// # Errors
    /// [`CostError::Cell`] with line and column where it is not one.
    pub fn get<T: FromStr>(&self, column: usize) -> Result<T, CostError> {
        self.text(column).parse().map_err(|_| self.refuse(column, "a number"))
    }

    /// A cell as a positive finite number.
    ///
    /// # Errors
    /// [`CostError::Cell`] with line and column where it is not one.
    pub fn positive(&self, column: usize) -> Result<f64, CostError> {
        let value: f64 = self.get(column)?;
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.refuse(column, "a positive finite number"))
        }
    }

    /// An error that names this cell.
    #[must_use]
    pub fn refuse(&self, column: usize, expected: &str) -> CostError {
        CostError::Cell {
            table: self.table.name.clone(),
            line: self.line(),
            column: self.table.columns[column].to_owned(),
            found: self.text(column).to_owned(),
            expected: expected.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_found_by_name_and_errors_name_the_place() {
        let table = Table::parse("t", "a,b\n# note\n1,2\n3,x\n").unwrap();
        let [a, b] = table.columns(["a", "b"]).unwrap();
        let rows: Vec<_> = table.rows().collect();
        assert_eq!(rows[0].get::<u32>(a).unwrap(), 1);
        let error = rows[1].positive(b).unwrap_err().to_string();
        assert_eq!(error, "table `t`, line 4, column `b`: `x`, expected a number");
        assert!(table.column("c").unwrap_err().to_string().contains("`c`"));
        let short = Table::parse("t", "a,b\n1\n").unwrap_err().to_string();
        assert!(short.contains("line 2, column `b`"), "{short}");
    }
}

//! Cells: how one field of a row is kept in an Arrow column, and what a foreign column may hold.
//!
//! A column of exactly our type is used as it is. Any other number type is taken where every value
//! is whole, not negative and in range; the first that is not is named with its row.

use crate::StoreError;
use arrow_array::builder::{ListBuilder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, Float64Array, ListArray, PrimitiveArray, RecordBatch, StringArray, UInt64Array,
};
use arrow_schema::{DataType, Field};
use std::path::Path;
use std::sync::Arc;

/// A decoded batch and where it comes from.
pub(crate) struct Source<'a> {
    pub path: &'a Path,
    pub batch: &'a RecordBatch,
    /// Row of the table that the batch starts with.
    pub first_row: u64,
}

impl Source<'_> {
    pub fn column<T: Cell>(&self, name: &'static str) -> Result<T::Column, StoreError> {
        let array = self.batch.column_by_name(name).ok_or_else(|| StoreError::Column {
            path: self.path.to_owned(),
            column: name.to_owned(),
            problem: "is missing".to_owned(),
        })?;
        let place = Place { path: self.path, column: name, first_row: self.first_row };
        if !T::NULLABLE && array.null_count() > 0 {
            return Err(place.null(array, T::EXPECTED));
        }
        T::column(array, &place)
    }
}

/// A column's place, for messages.
pub(crate) struct Place<'a> {
    path: &'a Path,
    column: &'a str,
    first_row: u64,
}

impl<'a> Place<'a> {
    pub fn new(path: &'a Path, column: &'a str, first_row: u64) -> Self {
        Self { path, column, first_row }
    }

    /// The first null of a column that must have none.
    pub fn null(&self, array: &ArrayRef, expected: &str) -> StoreError {
        let row = (0..array.len()).find(|&row| array.is_null(row)).unwrap_or(0);
        self.value(row, "null".to_owned(), expected)
    }

    fn value(&self, row: usize, found: String, expected: &str) -> StoreError {
        StoreError::Value {
            path: self.path.to_owned(),
            row: self.first_row + row as u64,
            column: self.column.to_owned(),
            found,
            expected: expected.to_owned(),
        }
    }

    fn kind(&self, found: &DataType, expected: &str) -> StoreError {
        StoreError::Column {
            path: self.path.to_owned(),
            column: self.column.to_owned(),
            problem: format!("holds {found}, expected {expected}"),
        }
    }
}

/// A field type of a row.
pub(crate) trait Cell: Sized {
    /// The decoded column.
    type Column;
    /// Whether the column may hold nulls.
    const NULLABLE: bool;
    /// What a value must be, for messages.
    const EXPECTED: &'static str;
    fn data_type() -> DataType;
    fn array<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef
    where
        Self: 'a;
    fn column(array: &ArrayRef, place: &Place<'_>) -> Result<Self::Column, StoreError>;
    fn at(column: &Self::Column, row: usize) -> Self;
}

enum Number {
    Whole(i128),
    Real(f64),
}

fn number(array: &ArrayRef, row: usize) -> Option<Number> {
    fn whole<T: ArrowPrimitiveType>(array: &ArrayRef, row: usize) -> Option<Number>
    where
        T::Native: Into<i128>,
    {
        Some(Number::Whole(array.as_primitive_opt::<T>()?.value(row).into()))
    }
    match array.data_type() {
        DataType::Int8 => whole::<Int8Type>(array, row),
        DataType::Int16 => whole::<Int16Type>(array, row),
        DataType::Int32 => whole::<Int32Type>(array, row),
        DataType::Int64 => whole::<Int64Type>(array, row),
        DataType::UInt8 => whole::<UInt8Type>(array, row),
        DataType::UInt16 => whole::<UInt16Type>(array, row),
        DataType::UInt32 => whole::<UInt32Type>(array, row),
        DataType::UInt64 => whole::<UInt64Type>(array, row),
        DataType::Float32 => {
            let value = array.as_primitive_opt::<Float32Type>()?.value(row);
            Some(Number::Real(f64::from(value)))
        }
        DataType::Float64 => {
            Some(Number::Real(array.as_primitive_opt::<Float64Type>()?.value(row)))
        }
        _ => None,
    }
}

/// The value as a whole number, or its text where it is none.
fn whole(array: &ArrayRef, row: usize) -> Option<Result<i128, String>> {
    Some(match number(array, row)? {
        Number::Whole(value) => Ok(value),
        Number::Real(value) if value.fract().abs() < f64::MIN_POSITIVE => Ok(value as i128),
        Number::Real(value) => Err(value.to_string()),
    })
}

/// A column as unsigned numbers of our type; nulls stay nulls.
pub(crate) fn unsigned<T>(
    array: &ArrayRef,
    place: &Place<'_>,
    expected: &str,
) -> Result<PrimitiveArray<T>, StoreError>
where
    T: ArrowPrimitiveType,
    T::Native: TryFrom<i128>,
{
    if let Some(same) = array.as_primitive_opt::<T>() {
        return Ok(same.clone());
    }
    let mut values: Vec<Option<T::Native>> = Vec::with_capacity(array.len());
    for row in 0..array.len() {
        if array.is_null(row) {
            values.push(None);
            continue;
        }
        let whole = whole(array, row).ok_or_else(|| place.kind(array.data_type(), expected))?;
        let value =
            whole.and_then(|value| T::Native::try_from(value).map_err(|_| value.to_string()));
        values.push(Some(value.map_err(|found| place.value(row, found, expected))?));
    }
    Ok(values.into_iter().collect())
}

macro_rules! unsigned_cell {
    ($native:ty, $arrow:ty, $expected:literal) => {
        impl Cell for $native {
            type Column = PrimitiveArray<$arrow>;
            const NULLABLE: bool = false;
            const EXPECTED: &'static str = $expected;

            fn data_type() -> DataType {
                <$arrow>::DATA_TYPE
            }

            fn array<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef {
                Arc::new(PrimitiveArray::<$arrow>::from_iter_values(cells.copied()))
            }

            fn column(array: &ArrayRef, place: &Place<'_>) -> Result<Self::Column, StoreError> {
                unsigned::<$arrow>(array, place, Self::EXPECTED)
            }

            #[inline]
            fn at(column: &Self::Column, row: usize) -> Self {
                column.values()[row]
            }
        }

        impl Cell for Option<$native> {
            type Column = PrimitiveArray<$arrow>;
            const NULLABLE: bool = true;
            const EXPECTED: &'static str = <$native as Cell>::EXPECTED;

            fn data_type() -> DataType {
                <$arrow>::DATA_TYPE
            }

            fn array<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef {
                Arc::new(cells.copied().collect::<PrimitiveArray<$arrow>>())
            }

            fn column(array: &ArrayRef, place: &Place<'_>) -> Result<Self::Column, StoreError> {
                unsigned::<$arrow>(array, place, Self::EXPECTED)
            }

            #[inline]
            fn at(column: &Self::Column, row: usize) -> Self {
                column.is_valid(row).then(|| column.values()[row])
            }
        }
    };
}

unsigned_cell!(u8, UInt8Type, "a whole number in 0..=255");
unsigned_cell!(u16, UInt16Type, "a whole number in 0..=65535");
unsigned_cell!(u32, UInt32Type, "a whole number in 0..=4294967295");
unsigned_cell!(u64, UInt64Type, "a whole number, 0 or more");

impl Cell for Option<f64> {
    type Column = Float64Array;
    const NULLABLE: bool = true;
    const EXPECTED: &'static str = "a finite number or null";

    fn data_type() -> DataType {
        DataType::Float64
    }

    fn array<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef {
        Arc::new(cells.copied().collect::<Float64Array>())
    }

    fn column(array: &ArrayRef, place: &Place<'_>) -> Result<Self::Column, StoreError> {
        let mut values = Vec::with_capacity(array.len());
        for row in 0..array.len() {
            if array.is_null(row) {
                values.push(None);
                continue;
            }
            let value = match number(array, row) {
                Some(Number::Whole(value)) => value as f64,
                Some(Number::Real(value)) => value,
                None => return Err(place.kind(array.data_type(), Self::EXPECTED)),
            };
            if !value.is_finite() {
                return Err(place.value(row, value.to_string(), Self::EXPECTED));
            }
            values.push(Some(value));
        }
        Ok(values.into_iter().collect())
    }

    fn at(column: &Self::Column, row: usize) -> Self {
        column.is_valid(row).then(|| column.values()[row])
    }
}

impl Cell for String {
    type Column = StringArray;
    const NULLABLE: bool = false;
    const EXPECTED: &'static str = "text";

    fn data_type() -> DataType {
        DataType::Utf8
    }

    fn array<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(cells))
    }

    fn column(array: &ArrayRef, place: &Place<'_>) -> Result<Self::Column, StoreError> {
        let text = array.as_string_opt::<i32>();
        text.cloned().ok_or_else(|| place.kind(array.data_type(), Self::EXPECTED))
    }

    fn at(column: &Self::Column, row: usize) -> Self {
        column.value(row).to_owned()
    }
}

impl Cell for Vec<u64> {
    type Column = (ListArray, UInt64Array);
    const NULLABLE: bool = false;
    const EXPECTED: &'static str = "a list of whole numbers";

    fn data_type() -> DataType {
        DataType::List(Arc::new(list_item()))
    }

    fn array<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef {
        let mut list = ListBuilder::new(UInt64Builder::new()).with_field(list_item());
        for cell in cells {
            list.values().append_slice(cell);
            list.append(true);
        }
        Arc::new(list.finish())
    }

    fn column(array: &ArrayRef, place: &Place<'_>) -> Result<Self::Column, StoreError> {
        let list = array.as_list_opt::<i32>();
        let list = list.ok_or_else(|| place.kind(array.data_type(), Self::EXPECTED))?;
        let values = unsigned::<UInt64Type>(list.values(), place, Self::EXPECTED)?;
        if values.null_count() > 0 {
            return Err(place.value(0, "a null within a list".to_owned(), Self::EXPECTED));
        }
        Ok((list.clone(), values))
    }

    fn at((list, values): &Self::Column, row: usize) -> Self {
        let offsets = list.value_offsets();
        // The decoder built both; were they at odds, the list would be empty.
        let range = offsets[row] as usize..offsets[row + 1] as usize;
        values.values().get(range).map(<[u64]>::to_vec).unwrap_or_default()
    }
}

fn list_item() -> Field {
    Field::new("item", DataType::UInt64, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Float64Array, Int64Array};

    fn read<T: Cell>(array: impl Array + 'static) -> Result<T::Column, StoreError> {
        let array: ArrayRef = Arc::new(array);
        T::column(&array, &Place::new(Path::new("steps.parquet"), "tokens", 100))
    }

    #[test]
    fn foreign_numbers_are_taken_where_they_are_counts() {
        let column = read::<u32>(Int64Array::from(vec![0, 7, 4_294_967_295])).unwrap();
        assert_eq!(column.values()[2], u32::MAX);
        let column = read::<u16>(Float64Array::from(vec![3.0])).unwrap();
        assert_eq!(column.values()[0], 3);
    }

    #[test]
    fn no_count_is_refused_with_its_row_and_column() {
        let message = |found: Result<_, StoreError>| found.map(|_: ()| ()).unwrap_err().to_string();
        let error = read::<u32>(Int64Array::from(vec![1, -1])).map(|_| ());
        assert_eq!(
            message(error),
            "steps.parquet: row 101, column `tokens`: -1, expected a whole number in 0..=4294967295"
        );
        for bad in [f64::NAN, f64::INFINITY, 0.5, -3.0, 1e30] {
            assert!(read::<u64>(Float64Array::from(vec![bad])).is_err(), "{bad}");
        }
        assert!(read::<u8>(Int64Array::from(vec![256])).is_err());
        assert!(read::<u32>(StringArray::from(vec!["7"])).is_err());
        assert!(read::<Option<f64>>(Float64Array::from(vec![f64::NAN])).is_err());
    }
}

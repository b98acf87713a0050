//! One load matrix out of any file: NumPy's formats, CSV, JSON.

use crate::matrix::{LOAD_MAX, float, misfit};
use crate::source::{CSV_BYTES_MAX, SourceFile, expand};
use crate::{ImportError, LoadMatrix, expert_counts, load_matrices};
use serde_json::Value;

/// Reads the tokens per layer and expert of a file, told by its content:
///
/// - `.npy`, or `.npz` with one array, as [`load_matrices`] reads them;
/// - JSON: `[layers][experts]`, `[steps][layers][experts]` (summed over steps), or an object with
///   one such array;
/// - CSV: a line per layer, a number per expert; or the table that [`expert_counts`] reads, which
///   has a heading with `layer`.
///
/// # Errors
/// What [`load_matrices`] refuses; rows of unequal length, no rows, text that is no number, each by
/// layer and expert.
pub fn load_matrix(file: &SourceFile) -> Result<LoadMatrix, ImportError> {
    let name = &file.name;
    if file.bytes.starts_with(b"\x93NUMPY") || file.bytes.starts_with(b"PK") {
        return one_of(load_matrices(file)?, name);
    }
    let bytes = expand(name, &file.bytes, CSV_BYTES_MAX)?;
    if bytes.starts_with(b"\x93NUMPY") {
        return one_of(load_matrices(file)?, name);
    }
    let bad = |problem: String| ImportError::File { file: name.clone(), problem };
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| bad("is neither NumPy's, nor JSON, nor CSV".to_owned()))?
        .trim_start_matches('\u{feff}')
        .trim();
    if text.starts_with(['[', '{']) {
        let value =
            serde_json::from_str(text).map_err(|error| bad(format!("is not JSON: {error}")))?;
        let rows = json_rows(&value).map_err(bad)?;
        return matrix(name, &rows).map_err(bad);
    }
    let heading = text.lines().next().unwrap_or_default().to_ascii_lowercase();
    if heading.split(',').any(|column| column.trim() == "layer") {
        let counts = expert_counts(&bytes, name)?;
        let (layers, experts, tokens) = (counts.layers, counts.experts, counts.counts);
        if let Some(at) = tokens.iter().position(|tokens| *tokens > LOAD_MAX) {
            return Err(bad(misfit(at / experts, at % experts, tokens[at])));
        }
        return Ok(LoadMatrix { name: name.clone(), layers, experts, tokens });
    }
    let mut rows = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let row: Result<Vec<u64>, String> = line
            .split(',')
            .enumerate()
            .map(|(expert, field)| {
                let number: f64 = field
                    .trim()
                    .parse()
                    .map_err(|_| misfit(rows.len(), expert, format!("`{}`", field.trim())))?;
                float(number).map_err(|found| misfit(rows.len(), expert, found))
            })
            .collect();
        rows.push(row.map_err(bad)?);
    }
    matrix(name, &rows).map_err(bad)
}

fn one_of(mut matrices: Vec<LoadMatrix>, name: &str) -> Result<LoadMatrix, ImportError> {
    match (matrices.len(), matrices.pop()) {
        (1, Some(matrix)) => Ok(matrix),
        (found, _) => Err(ImportError::File {
            file: name.to_owned(),
            problem: format!("holds {found} arrays, expected one"),
        }),
    }
}

/// Rows of a nested array, summed over steps where there are three dimensions.
fn json_rows(value: &Value) -> Result<Vec<Vec<u64>>, String> {
    let shape = "[layers][experts] or [steps][layers][experts]";
    let array = match value {
        Value::Object(fields) => {
            let mut arrays = fields.values().filter_map(Value::as_array);
            match (arrays.next(), arrays.next()) {
                (Some(array), None) => array,
                (None, _) => {
                    return Err(format!("is an object without an array, expected {shape}"));
                }
                _ => return Err(format!("is an object of several arrays, expected one {shape}")),
            }
        }
        Value::Array(array) => array,
        _ => return Err(format!("is no array, expected {shape}")),
    };
    let deep = |value: &Value| value.as_array().is_some_and(|row| row.iter().any(Value::is_array));
    if !array.iter().any(deep) {
        return array.iter().enumerate().map(|(layer, row)| json_row(layer, row)).collect();
    }
    let mut sum: Vec<Vec<u64>> = Vec::new();
    for (step, layers) in array.iter().enumerate() {
        let layers = layers.as_array().ok_or_else(|| format!("step {step}: is no array"))?;
        let rows: Vec<Vec<u64>> = layers
            .iter()
            .enumerate()
            .map(|(layer, row)| json_row(layer, row).map_err(|why| format!("step {step}, {why}")))
            .collect::<Result<_, _>>()?;
        if step == 0 {
            sum = rows;
            continue;
        }
        if rows.len() != sum.len() {
            let (found, expected) = (rows.len(), sum.len());
            return Err(format!("step {step}: has {found} layers, expected {expected} as step 0"));
        }
        for (layer, (sum, row)) in sum.iter_mut().zip(rows).enumerate() {
            if row.len() != sum.len() {
                return Err(format!("step {step}, {}", ragged(layer, row.len(), sum.len())));
            }
            for (expert, (sum, load)) in sum.iter_mut().zip(row).enumerate() {
                *sum += load;
                if *sum > LOAD_MAX {
                    return Err(misfit(layer, expert, *sum));
                }
            }
        }
    }
    Ok(sum)
}

fn json_row(layer: usize, row: &Value) -> Result<Vec<u64>, String> {
    let row = row.as_array().ok_or_else(|| format!("layer {layer}: `{row}`, expected an array"))?;
    let load = |(expert, value): (usize, &Value)| {
        let number = value.as_f64().ok_or_else(|| misfit(layer, expert, format!("`{value}`")))?;
        float(number).map_err(|found| misfit(layer, expert, found))
    };
    row.iter().enumerate().map(load).collect()
}

fn ragged(layer: usize, found: usize, expected: usize) -> String {
    format!("layer {layer}: has {found} experts, expected {expected} as layer 0")
}

fn matrix(name: &str, rows: &[Vec<u64>]) -> Result<LoadMatrix, String> {
    let experts = rows.first().map_or(0, Vec::len);
    if experts == 0 {
        return Err("holds no loads, expected a row of numbers per layer".to_owned());
    }
    if let Some((layer, row)) = rows.iter().enumerate().find(|(_, row)| row.len() != experts) {
        return Err(ragged(layer, row.len(), experts));
    }
    Ok(LoadMatrix { name: name.to_owned(), layers: rows.len(), experts, tokens: rows.concat() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<LoadMatrix, ImportError> {
        load_matrix(&SourceFile { name: "loads".to_owned(), bytes: bytes.to_vec() })
    }

    #[test]
    fn all_forms_give_the_same_matrix() {
        let expected = read(&npy::compose("|u1", &[2, 2], &[1, 2, 3, 4])).unwrap();
        assert_eq!((expected.layers, expected.tokens.as_slice()), (2, [1, 2, 3, 4].as_slice()));
        for text in [
            "1,2\n3,4\n",
            "[[1, 2], [3.0, 4]]",
            "{\"weight\": [[1, 2], [3, 4]]}",
            "[[[1, 0], [1, 4]], [[0, 2], [2, 0]]]",
            "layer,expert,count\n0,0,1\n0,1,2\n1,0,3\n1,1,4\n",
        ] {
            assert_eq!(read(text.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn misfits_are_named() {
        for (text, expected) in [
            ("1,2\n3\n", "layer 1: has 1 experts, expected 2"),
            ("1,nan\n", "layer 0, expert 1: NaN"),
            ("1,-2\n", "layer 0, expert 1: -2"),
            ("1,x\n", "layer 0, expert 1: `x`"),
            ("", "no loads"),
            ("[]", "no loads"),
            ("[[]]", "no loads"),
            ("[[1], [1, 2]]", "layer 1: has 2 experts, expected 1"),
            ("[[1, null]]", "layer 0, expert 1: `null`"),
            ("[1, 2]", "layer 0: `1`, expected an array"),
            ("[[[1]], [[1], [2]]]", "step 1: has 2 layers, expected 1"),
            ("{\"a\": 1}", "without an array"),
            ("[[1,", "is not JSON"),
        ] {
            let message = read(text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_ends_without_panic(text in "[\\[\\]{}\",:0-9eE.\\-\n a]{0,60}") {
            let _ = read(text.as_bytes());
        }
    }
}

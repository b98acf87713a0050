//! Plain load matrices out of `.npy` and `.npz`: tokens per layer and expert.

use crate::source::{EXPANDED_BYTES_MAX, SourceFile, bounded, expand};
use crate::{ImportError, npy};
use std::borrow::Cow;
use std::io::Cursor;
use zip::ZipArchive;

/// Arrays in one `.npz` beyond this are refused.
const NPZ_ARRAYS_MAX: usize = 1024;

/// A load beyond this is refused: sums over a layer stay exact in 64 bits, and in a double.
pub(crate) const LOAD_MAX: u64 = 1 << 40;

/// Tokens per layer and expert, without steps or phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadMatrix {
    /// Name of the array within its file; the file's name for an `.npy`.
    pub name: String,
    /// Rows.
    pub layers: usize,
    /// Columns.
    pub experts: usize,
    /// `[layer * experts + expert]`, tokens.
    pub tokens: Vec<u64>,
}

impl LoadMatrix {
    /// Loads of one layer, `[expert]`.
    #[must_use]
    pub fn layer(&self, layer: usize) -> &[u64] {
        &self.tokens[layer * self.experts..][..self.experts]
    }
}

/// Reads every matrix of an `.npy` or `.npz` file, gzip or not, in the order of the file.
///
/// `[layers][experts]`, or `[experts]` for one layer, or `[steps][layers][experts]`, which is summed
/// over steps; integers, or floats that are rounded to whole tokens.
///
/// # Errors
/// A file that is neither, another number of dimensions, a load that is negative, no number or
/// beyond 2^40.
pub fn load_matrices(file: &SourceFile) -> Result<Vec<LoadMatrix>, ImportError> {
    let bytes = expand(&file.name, &file.bytes, EXPANDED_BYTES_MAX)?;
    if bytes.starts_with(b"\x93NUMPY") {
        return Ok(vec![matrix(&file.name, &file.name, &bytes)?]);
    }
    let bad = |problem: String| ImportError::File { file: file.name.clone(), problem };
    if !bytes.starts_with(b"PK") {
        return Err(bad("is neither `.npy` nor `.npz`".to_owned()));
    }
    let mut archive = ZipArchive::new(Cursor::new(bytes.as_slice()))
        .map_err(|error| bad(format!("is not a readable `.npz`: {error}")))?;
    if archive.len() > NPZ_ARRAYS_MAX {
        return Err(bad(format!(
            "holds {} arrays, expected at most {NPZ_ARRAYS_MAX}",
            archive.len()
        )));
    }
    let names = archive.file_names().map(|name| name.map(Cow::into_owned));
    let names: Vec<String> = names
        .collect::<Result<_, _>>()
        .map_err(|error| bad(format!("has a name that is not readable: {error}")))?;
    let mut matrices = Vec::with_capacity(names.len());
    let mut left = EXPANDED_BYTES_MAX;
    for name in names {
        let shown = name.escape_default().to_string();
        let entry =
            archive.by_name(&name).map_err(|error| bad(format!("array `{shown}`: {error}")))?;
        let place = format!("{}/{shown}", file.name);
        let bytes = bounded(&place, entry, left)?;
        left -= bytes.len() as u64;
        matrices.push(matrix(name.strip_suffix(".npy").unwrap_or(&name), &place, &bytes)?);
    }
    Ok(matrices)
}

fn matrix(name: &str, place: &str, bytes: &[u8]) -> Result<LoadMatrix, ImportError> {
    let bad = |problem: String| ImportError::File { file: place.to_owned(), problem };
    let array = npy::parse(bytes).map_err(bad)?;
    let (steps, layers, experts) = match (array.shape.as_slice(), array.fortran_order) {
        ([experts], _) => (1, 1, *experts),
        ([layers, experts], false) => (1, *layers, *experts),
        ([steps, layers, experts], false) => (*steps, *layers, *experts),
        (_, order) => {
            return Err(ImportError::Array {
                file: place.to_owned(),
                found: format!("{:?}{}", array.shape, if order { " in Fortran order" } else { "" }),
                expected: "[layers][experts] or [steps][layers][experts]".to_owned(),
            });
        }
    };
    let (width, value) = element(&array.descr).ok_or_else(|| ImportError::Array {
        file: place.to_owned(),
        found: format!("of type `{}`", array.descr.escape_default()),
        expected: "integers or floats, little endian or of one byte".to_owned(),
    })?;
    let size = [steps, layers, experts].iter().try_fold(width, |all, n| all.checked_mul(*n));
    if size != Some(array.data.len()) {
        let shape: Vec<String> = array.shape.iter().map(usize::to_string).collect();
        return Err(bad(format!(
            "holds {} bytes of data, expected {} x {width}: it is cut off",
            array.data.len(),
            shape.join(" x ")
        )));
    }
    if array.data.is_empty() {
        return Err(bad(format!("is empty, of shape {:?}: expected loads", array.shape)));
    }
    let mut tokens = vec![0_u64; layers * experts];
    for (index, bytes) in array.data.chunks_exact(width).enumerate() {
        let place = index % tokens.len();
        let added = value(bytes).and_then(|load| {
            let sum = tokens[place] + load;
            if sum <= LOAD_MAX { Ok(sum) } else { Err(sum.to_string()) }
        });
        tokens[place] =
            added.map_err(|found| bad(misfit(place / experts, place % experts, found)))?;
    }
    Ok(LoadMatrix { name: name.to_owned(), layers, experts, tokens })
}

/// What is wrong with one load.
pub(crate) fn misfit(layer: usize, expert: usize, found: impl std::fmt::Display) -> String {
    format!("layer {layer}, expert {expert}: {found}, expected a load from 0 to {LOAD_MAX}")
}

/// Reads one element; the error is the element as shown.
type Read = fn(&[u8]) -> Result<u64, String>;

fn element(descr: &str) -> Option<(usize, Read)> {
    let width = descr.get(2..)?.parse().ok()?;
    let order = descr.get(..1)?;
    let read: Read = match (descr.get(1..2)?, width) {
        ("u", 1 | 2 | 4 | 8) => |bytes| unsigned(wide(bytes)),
        ("i", 1 | 2 | 4 | 8) => |bytes| {
            let unused = 64 - 8 * bytes.len() as u32;
            let value = ((wide(bytes) << unused) as i64) >> unused;
            u64::try_from(value).map_err(|_| value.to_string()).and_then(unsigned)
        },
        ("f", 4) => |bytes| float(f64::from(f32::from_bits(wide(bytes) as u32))),
        ("f", 8) => |bytes| float(f64::from_bits(wide(bytes))),
        _ => return None,
    };
    (order == "<" || (order == "|" && width == 1)).then_some((width, read))
}

fn wide(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}

fn unsigned(value: u64) -> Result<u64, String> {
    if value <= LOAD_MAX { Ok(value) } else { Err(value.to_string()) }
}

pub(crate) fn float(value: f64) -> Result<u64, String> {
    if value >= 0.0 && value <= LOAD_MAX as f64 {
        Ok(value.round() as u64)
    } else {
        Err(value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: Vec<u8>) -> Result<Vec<LoadMatrix>, ImportError> {
        load_matrices(&SourceFile { name: "loads.npy".to_owned(), bytes })
    }

    #[test]
    fn integers_and_floats_give_the_same_matrix() {
        let values = [0_u8, 1, 2, 3, 4, 250];
        let long: Vec<u8> = values.iter().flat_map(|v| i64::from(*v).to_le_bytes()).collect();
        let float: Vec<u8> = values.iter().flat_map(|v| f32::from(*v).to_le_bytes()).collect();
        let expected = read(npy::compose("|u1", &[2, 3], &values)).unwrap();
        assert_eq!((expected[0].layers, expected[0].experts), (2, 3));
        assert_eq!(expected[0].layer(1), [3, 4, 250]);
        assert_eq!(read(npy::compose("<i8", &[2, 3], &long)).unwrap(), expected);
        assert_eq!(read(npy::compose("<f4", &[2, 3], &float)).unwrap(), expected);
        let one = read(npy::compose("|u1", &[6], &values)).unwrap();
        assert_eq!((one[0].layers, one[0].experts), (1, 6));
        let steps = read(npy::compose("|u1", &[2, 1, 3], &values)).unwrap();
        assert_eq!(steps[0].tokens, [3, 5, 252]);
    }

    #[test]
    fn misfits_are_named() {
        let message = |bytes| read(bytes).unwrap_err().to_string();
        let nan = npy::compose("<f8", &[1, 1], &f64::NAN.to_le_bytes());
        assert!(message(nan).contains("layer 0, expert 0: NaN"));
        let minus = npy::compose("|i1", &[2, 2], &[0, 1, 255, 2]);
        assert!(message(minus).contains("layer 1, expert 0: -1"));
        assert!(message(npy::compose("<u2", &[9, 2], &[0; 8])).contains("cut off"));
        assert!(message(npy::compose("|u1", &[1, 1, 2, 2], &[0; 4])).contains("[layers][experts]"));
        assert!(message(npy::compose("|u1", &[0, 4], &[])).contains("is empty"));
        assert!(message(npy::compose("<c8", &[1, 1], &[0; 8])).contains("`<c8`"));
        assert!(message(b"text".to_vec()).contains("neither"));
    }

    proptest! {
        #[test]
        fn mutated_files_end_without_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = npy::compose("<u2", &[2, 2], &[0, 0, 1, 0, 0, 0, 1, 0]);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = read(bytes);
        }
    }
}

//! NumPy's `.npy` format, as far as arrays of integers need it.
//!
//! Format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>. Versions 1 to
//! 3; the header is a Python literal with exactly the keys `descr`, `fortran_order` and `shape`.

/// Dimensions beyond this are refused: ids have three.
const DIMENSIONS_MAX: usize = 8;

/// Header texts beyond this are refused; NumPy pads them to some 120 bytes.
const HEADER_BYTES_MAX: usize = 1 << 16;

/// An array in a byte slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Npy<'a> {
    /// NumPy's type string, e.g. `<u2`, `|u1`, `<i8`.
    pub descr: String,
    /// Lengths, outermost first.
    pub shape: Vec<usize>,
    /// Whether the first index runs fastest.
    pub fortran_order: bool,
    /// The elements.
    pub data: &'a [u8],
}

/// Parses an `.npy` file; the error says what is wrong.
pub(crate) fn parse(bytes: &[u8]) -> Result<Npy<'_>, String> {
    let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or("does not begin with NumPy's magic bytes")?;
    let (length, header_at) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 4),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 6),
        [version, ..] => return Err(format!("is of NumPy format {version}, expected 1, 2 or 3")),
        [] => return Err("is cut off in its header".to_owned()),
    };
    if length > HEADER_BYTES_MAX {
        return Err(format!("has a header of {length} bytes, expected at most {HEADER_BYTES_MAX}"));
    }
    let header = rest.get(header_at..header_at + length).ok_or("is cut off in its header")?;
    let text = std::str::from_utf8(header).map_err(|_| "has a header that is not text")?;
    let (descr, fortran_order, shape) = literal(text)
        .ok_or_else(|| format!("has a header that is not NumPy's: `{}`", show(text)))?;
    Ok(Npy { descr, shape, fortran_order, data: &rest[header_at + length..] })
}

fn show(text: &str) -> String {
    text.trim().chars().take(120).flat_map(char::escape_default).collect()
}

/// `{'descr': '<u2', 'fortran_order': False, 'shape': (3, 4), }` in any key order.
fn literal(text: &str) -> Option<(String, bool, Vec<usize>)> {
    let mut rest = text.trim().strip_prefix('{')?.trim_start();
    let (mut descr, mut order, mut shape) = (None, None, None);
    while !rest.starts_with('}') {
        let (key, after) = quoted(rest)?;
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        rest = match key {
            "descr" if descr.is_none() => {
                let (text, after) = quoted(value)?;
                descr = Some(text.to_owned());
                after
            }
            "fortran_order" if order.is_none() => match value.strip_prefix("False") {
                Some(after) => {
                    order = Some(false);
                    after
                }
                None => {
                    order = Some(true);
                    value.strip_prefix("True")?
                }
            },
            "shape" if shape.is_none() => {
                let (lengths, after) = tuple(value)?;
                shape = Some(lengths);
                after
            }
            _ => return None,
        };
        rest = rest.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if rest.starts_with('}') => rest,
            None => return None,
        };
    }
    rest[1..].trim().is_empty().then_some(())?;
    Some((descr?, order?, shape?))
}

fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split_once(quote)
}

fn tuple(text: &str) -> Option<(Vec<usize>, &str)> {
    let (inner, after) = text.strip_prefix('(')?.split_once(')')?;
    let inner = inner.trim();
    let inner = inner.strip_suffix(',').unwrap_or(inner);
    let mut lengths = Vec::new();
    if !inner.is_empty() {
        for length in inner.split(',') {
            if lengths.len() == DIMENSIONS_MAX {
                return None;
            }
            // NumPy 1 on Python 2 wrote `3L`.
            lengths.push(length.trim().trim_end_matches('L').parse().ok()?);
        }
    }
    Some((lengths, after))
}

/// An `.npy` file of these bytes, for tests and for writing small arrays.
#[cfg(test)]
pub(crate) fn compose(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|length| format!("{length}, ")).collect();
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}\n", shape.trim());
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numpys_own_header_is_read() {
        let bytes = compose("<u2", &[2, 3, 1], &[0; 12]);
        let array = parse(&bytes).unwrap();
        assert_eq!((array.descr.as_str(), array.shape.as_slice()), ("<u2", [2, 3, 1].as_slice()));
        assert_eq!((array.fortran_order, array.data.len()), (false, 12));
        assert_eq!(parse(&compose("|u1", &[5], b"")).unwrap().shape, [5]);
        assert_eq!(parse(&compose("|u1", &[], b"")).unwrap().shape, [0_usize; 0]);
    }

    #[test]
    fn damage_is_named() {
        assert!(parse(b"PK").unwrap_err().contains("magic"));
        assert!(parse(b"\x93NUMPY\x09\x00\x00\x00").unwrap_err().contains("format 9"));
        assert!(parse(b"\x93NUMPY\x01\x00\xff\x00{").unwrap_err().contains("cut off"));
        assert!(parse(b"\x93NUMPY\x01\x00\x02\x00{]").unwrap_err().contains("not NumPy's"));
    }

    proptest! {
        #[test]
        fn any_header_ends_without_panic(text in "\\PC{0,80}", cut in 0_usize..200) {
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text.as_bytes());
            bytes.truncate(cut);
            let _ = parse(&bytes);
        }

        #[test]
        fn mutated_headers_end_without_panic(at in 0_usize..80, byte in any::<u8>()) {
            let mut bytes = compose("<u2", &[2, 3, 1], &[0; 12]);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = parse(&bytes);
        }
    }
}

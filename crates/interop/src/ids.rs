//! Expert ids out of `.npy`, `.npz` and raw dumps.

use crate::source::{EXPANDED_BYTES_MAX, SourceFile, bounded, expand};
use crate::{ImportError, npy};
use evenkeel_types::ModelShape;
use std::borrow::Cow;
use std::io::Cursor;
use zip::ZipArchive;

/// Arrays in one `.npz` beyond this are refused; a dump has a handful.
const NPZ_ARRAYS_MAX: usize = 1024;

/// Reads the ids of a dump, `[token][layer][k]`, layers and k as in `shape`.
///
/// What the file is follows from its first bytes, for raw dumps from its name: `.u8` or `.u16le`
/// (little endian), with or without `.gz`. An `.npz` must hold one array that fits, or name it
/// `topk_ids`. Ids are not compared with the number of experts here.
pub(crate) fn read(file: &SourceFile, shape: &ModelShape) -> Result<Vec<u16>, ImportError> {
    let bytes = expand(&file.name, &file.bytes, EXPANDED_BYTES_MAX)?;
    if bytes.starts_with(b"\x93NUMPY") {
        return array(&file.name, &bytes, shape);
    }
    if bytes.starts_with(b"PK") {
        return archive(&file.name, &bytes, shape);
    }
    let name = file.name.strip_suffix(".gz").unwrap_or(&file.name);
    let (width, dtype) = if name.ends_with(".u8") || name.ends_with(".u8.bin") {
        (1, "|u1")
    } else if name.ends_with(".u16le") || name.ends_with(".u16le.bin") {
        (2, "<u2")
    } else {
        return Err(ImportError::File {
            file: file.name.clone(),
            problem: "is neither NumPy's nor named `.u8` or `.u16le`".to_owned(),
        });
    };
    let row = usize::from(shape.moe_layers) * usize::from(shape.top_k) * width;
    if row == 0 || !bytes.len().is_multiple_of(row) {
        return Err(ImportError::Array {
            file: file.name.clone(),
            found: format!("{} bytes", bytes.len()),
            expected: format!("a multiple of {row} ({})", expected(shape)),
        });
    }
    elements(&file.name, dtype, &bytes, shape)
}

fn expected(shape: &ModelShape) -> String {
    format!("[token][{} layers][{} choices]", shape.moe_layers, shape.top_k)
}

fn archive(name: &str, bytes: &[u8], shape: &ModelShape) -> Result<Vec<u16>, ImportError> {
    let bad = |problem: String| ImportError::File { file: name.to_owned(), problem };
    let mut archive = ZipArchive::new(Cursor::new(bytes))
        .map_err(|error| bad(format!("is not a readable `.npz`: {error}")))?;
    if archive.len() > NPZ_ARRAYS_MAX {
        return Err(bad(format!("holds {} arrays, expected one", archive.len())));
    }
    let names = archive.file_names().map(|name| name.map(Cow::into_owned));
    let names: Vec<String> = names
        .collect::<Result<_, _>>()
        .map_err(|error| bad(format!("has a name that is not readable: {error}")))?;
    let chosen = match names.iter().position(|name| name == "topk_ids.npy") {
        Some(_) => "topk_ids.npy".to_owned(),
        None if names.len() == 1 => names[0].clone(),
        None => {
            let names: Vec<String> =
                names.iter().take(20).map(|name| name.escape_default().to_string()).collect();
            return Err(bad(format!(
                "holds the arrays {}, expected one, or one named `topk_ids`",
                names.join(", ")
            )));
        }
    };
    let entry = archive
        .by_name(&chosen)
        .map_err(|error| bad(format!("array `{}`: {error}", chosen.escape_default())))?;
    let name = format!("{name}/{}", chosen.escape_default());
    let bytes = bounded(&name, entry, EXPANDED_BYTES_MAX)?;
    array(&name, &bytes, shape)
}

fn array(name: &str, bytes: &[u8], shape: &ModelShape) -> Result<Vec<u16>, ImportError> {
    let array = npy::parse(bytes)
        .map_err(|problem| ImportError::File { file: name.to_owned(), problem })?;
    let (layers, top_k) = (usize::from(shape.moe_layers), usize::from(shape.top_k));
    let fits = matches!(array.shape.as_slice(), [_, l, k] if (*l, *k) == (layers, top_k));
    if !fits || array.fortran_order {
        let order = if array.fortran_order { " in Fortran order" } else { "" };
        return Err(ImportError::Array {
            file: name.to_owned(),
            found: format!("{:?}{order}", array.shape),
            expected: expected(shape),
        });
    }
    let tokens = array.shape[0];
    let width = width(&array.descr).ok_or_else(|| ImportError::Array {
        file: name.to_owned(),
        found: format!("of type `{}`", array.descr.escape_default()),
        expected: "integers, little endian or of one byte".to_owned(),
    })?;
    let needed = tokens.checked_mul(layers * top_k * width);
    if needed != Some(array.data.len()) {
        return Err(ImportError::File {
            file: name.to_owned(),
            problem: format!(
                "holds {} bytes of data, expected {tokens} x {layers} x {top_k} x {width}: it is cut off",
                array.data.len()
            ),
        });
    }
    elements(name, &array.descr, array.data, shape)
}

fn width(descr: &str) -> Option<usize> {
    match descr {
        "|u1" | "|i1" | "<u1" | "<i1" => Some(1),
        "<u2" | "<i2" => Some(2),
        "<u4" | "<i4" => Some(4),
        "<u8" | "<i8" => Some(8),
        _ => None,
    }
}

fn elements(
    name: &str,
    descr: &str,
    data: &[u8],
    shape: &ModelShape,
) -> Result<Vec<u16>, ImportError> {
    let width = width(descr).unwrap_or(1);
    let signed = descr.contains('i');
    let mut ids = Vec::with_capacity(data.len() / width);
    for (index, element) in data.chunks_exact(width).enumerate() {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(element);
        let value = u64::from_le_bytes(wide);
        // A negative number of this width has its top bit set: beyond any id, but shown as it is.
        let negative = signed && value >> (8 * width - 1) == 1;
        match u16::try_from(value) {
            Ok(id) if !negative => ids.push(id),
            _ => {
                let (layers, top_k) = (usize::from(shape.moe_layers), usize::from(shape.top_k));
                let unused = 64 - 8 * width as u32;
                let found = if negative {
                    (((value << unused) as i64) >> unused).to_string()
                } else {
                    value.to_string()
                };
                return Err(ImportError::Id {
                    file: name.to_owned(),
                    token: index / (layers * top_k),
                    layer: index / top_k % layers,
                    choice: index % top_k,
                    found,
                });
            }
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn shape() -> ModelShape {
        ModelShape { moe_layers: 2, top_k: 2, ..ModelShape::known("olmoe-1b-7b").unwrap() }
    }

    fn file(name: &str, bytes: Vec<u8>) -> SourceFile {
        SourceFile { name: name.to_owned(), bytes }
    }

    fn npz(arrays: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in arrays {
            writer.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    #[test]
    fn every_container_gives_the_same_ids() {
        let ids: Vec<u16> = vec![0, 1, 2, 3, 4, 5, 6, 7];
        let one: Vec<u8> = ids.iter().map(|id| *id as u8).collect();
        let two: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let eight: Vec<u8> = ids.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
        let array = npy::compose("<i8", &[2, 2, 2], &eight);
        let other = npy::compose("<i8", &[2], &eight[..16]);
        for file in [
            file("a.u8", one),
            file("a.u16le", two),
            file("whatever", array.clone()),
            file("a.npz", npz(&[("arr_0.npy", array.clone())])),
            file("a.npz", npz(&[("x.npy", other), ("topk_ids.npy", array)])),
        ] {
            assert_eq!(read(&file, &shape()).unwrap(), ids, "{}", file.name);
        }
    }

    #[test]
    fn misfits_are_named() {
        let message = |file: &SourceFile| read(file, &shape()).unwrap_err().to_string();
        assert!(message(&file("a.u8", vec![0; 7])).contains("expected a multiple of 4"));
        assert!(message(&file("a.txt", vec![0; 8])).contains("neither NumPy's"));
        let flat = npy::compose("|u1", &[2, 4], &[0; 8]);
        assert!(message(&file("a.npy", flat)).contains("[2, 4], expected [token][2 layers]"));
        let float = npy::compose("<f4", &[1, 2, 2], &[0; 16]);
        assert!(message(&file("a.npy", float)).contains("`<f4`"));
        let short = npy::compose("<u2", &[9, 2, 2], &[0; 8]);
        assert!(message(&file("a.npy", short)).contains("cut off"));
        let minus = npy::compose("|i1", &[1, 2, 2], &[0, 1, 255, 2]);
        assert!(message(&file("a.npy", minus)).contains("layer 1, choice 0: -1"));
        let huge =
            npy::compose("<u4", &[1, 2, 2], &[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(message(&file("a.npy", huge)).contains("65536"));
        let two = npz(&[("x.npy", vec![]), ("y.npy", vec![])]);
        assert!(message(&file("a.npz", two)).contains("x.npy, y.npy"));
        let endless = npy::compose("|u1", &[usize::MAX, 2, 2], &[0; 4]);
        assert!(message(&file("a.npy", endless)).contains("cut off"));
    }

    proptest! {
        #[test]
        fn mutated_files_end_without_panic(
            kind in 0_usize..3,
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let array = npy::compose("<u2", &[2, 2, 2], &[0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0]);
            let mut bytes = match kind {
                0 => array,
                1 => npz(&[("topk_ids.npy", array)]),
                _ => vec![3; 64],
            };
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let whole = file("a.u8", bytes.clone());
            let _ = read(&whole, &shape());
            bytes.truncate(cut.index(bytes.len()));
            let _ = read(&file("a.u8", bytes), &shape());
        }
    }
}

//! Bytes in: files and gzip streams, never more than a bound.

use crate::ImportError;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// A file as stored. 1 GiB of compressed ids are some two billion choices.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// A file when decompressed: 4 million tokens of 61 layers × 8 choices.
pub const EXPANDED_BYTES_MAX: u64 = 2 << 30;

/// A CSV file when decompressed: ten million requests.
pub const CSV_BYTES_MAX: u64 = 512 << 20;

/// A file read into memory, with the name that messages use.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// File name without folder.
    pub name: String,
    /// Its bytes as stored.
    pub bytes: Vec<u8>,
}

impl SourceFile {
    /// Reads a file of at most [`FILE_BYTES_MAX`].
    ///
    /// # Errors
    /// Where it cannot be read or is larger.
    pub fn read(path: &Path) -> Result<Self, ImportError> {
        let file = path.display().to_string();
        let failed = |source| ImportError::Io { file: file.clone(), source };
        let mut bytes = Vec::new();
        let opened = File::open(path).map_err(failed)?;
        opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(ImportError::Limit { file, what: "size in bytes", limit: FILE_BYTES_MAX });
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self { name: name.unwrap_or(file), bytes })
    }
}

/// The bytes of a file, decompressed where it is gzip, at most `limit` of them.
pub(crate) fn expand(name: &str, bytes: &[u8], limit: u64) -> Result<Vec<u8>, ImportError> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return bounded(name, MultiGzDecoder::new(bytes), limit);
    }
    bounded(name, bytes, limit)
}

/// Reads a stream to its end, at most `limit` bytes.
pub(crate) fn bounded(name: &str, from: impl Read, limit: u64) -> Result<Vec<u8>, ImportError> {
    let mut expanded = Vec::new();
    from.take(limit + 1).read_to_end(&mut expanded).map_err(|error| cut_off(name, &error))?;
    if expanded.len() as u64 > limit {
        let (file, what) = (name.to_owned(), "size in bytes, decompressed,");
        return Err(ImportError::Limit { file, what, limit });
    }
    Ok(expanded)
}

fn cut_off(name: &str, error: &io::Error) -> ImportError {
    let problem = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the compressed data end early: it is cut off".to_owned(),
        _ => format!("the compressed data are damaged: {error}"),
    };
    ImportError::File { file: name.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_bomb_is_stopped_and_a_cut_stream_named() {
        let bomb = gzip(&vec![0; 1 << 20]);
        assert!(bomb.len() < 2000);
        let error = expand("x.u8.gz", &bomb, 1 << 16).unwrap_err();
        assert!(matches!(error, ImportError::Limit { .. }), "{error}");
        assert_eq!(expand("x.u8.gz", &bomb, 1 << 20).unwrap().len(), 1 << 20);
        let error = expand("x.u8.gz", &gzip(b"abcdefgh")[..15], 100).unwrap_err();
        assert!(error.to_string().contains("cut off"), "{error}");
        assert_eq!(expand("x.u8", b"abc", 3).unwrap(), b"abc");
    }
}

//! A file, mapped for reading.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// The bytes of a file, mapped read-only.
#[derive(Debug)]
pub struct Mapping {
    map: memmap2::Mmap,
}

impl Mapping {
    /// Maps a whole file. The file must stay as it is while it is mapped: checkpoints are written
    /// once, and a file that is cut short under a mapping ends the process with a bus error.
    ///
    /// # Errors
    /// A file that cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the mapping is private and read-only; see above for files that change.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map })
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_reads_what_was_written() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("weights");
        std::fs::write(&path, [1, 2, 3])?;
        assert_eq!(&Mapping::open(&path)?[..], [1, 2, 3]);
        assert!(Mapping::open(&folder.path().join("absent")).is_err());
        Ok(())
    }
}

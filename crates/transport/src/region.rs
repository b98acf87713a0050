//! Memory that processes share: an anonymous file, private to its descendants.

use crate::TransportError;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;

/// Shared memory. Cloned by handing its file descriptor to a child process.
#[derive(Debug)]
pub struct Region {
    file: OwnedFd,
    map: MmapRaw,
}

impl Region {
    /// New memory, zeroed. The descriptor is inherited by children.
    ///
    /// # Errors
    /// The system has none.
    pub fn new(bytes: usize) -> Result<Self, TransportError> {
        let name = "evenkeel-ranks";
        let refused = |error: rustix::io::Errno| TransportError::System {
            what: "shared memory",
            source: error.into(),
        };
        // Not closed on exec: rank processes inherit it, and nobody else can name it.
        let file = memfd_create(name, MemfdFlags::empty()).map_err(refused)?;
        ftruncate(&file, bytes as u64).map_err(refused)?;
        Self::of(file)
    }

    /// Maps a descriptor that the parent process has handed over.
    ///
    /// # Errors
    /// No such descriptor, or one that cannot be mapped.
    pub fn of(file: OwnedFd) -> Result<Self, TransportError> {
        let file = File::from(file);
        let map = MmapOptions::new().map_raw(&file).map_err(TransportError::system("mapping"))?;
        Ok(Self { file: file.into(), map })
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// The descriptor, to hand to a child.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The word at a byte offset, shared with other processes.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len(), "word at {offset}");
        // SAFETY: in bounds and aligned (a mapping starts at a page); an atomic may be shared with
        // other processes, and nobody reads or writes these bytes in another way.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    /// Copies bytes in.
    ///
    /// The caller must be the only one to touch this range until an atomic says otherwise.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len(), "write at {offset}");
        // SAFETY: in bounds; `bytes` is not part of the mapping, which no reference points into.
        unsafe {
            let to = self.map.as_mut_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Appends bytes of the region to a buffer.
    ///
    /// The caller must know by an atomic that nobody writes to this range.
    pub(crate) fn read(&self, offset: usize, len: usize, into: &mut Vec<u8>) {
        assert!(offset + len <= self.len(), "read at {offset}");
        into.reserve(len);
        // SAFETY: in bounds on both sides, `reserve` made room, and the bytes are initialised (a
        // memfd is zeroed).
        unsafe {
            let from = self.map.as_ptr().add(offset);
            let to = into.as_mut_ptr().add(into.len());
            std::ptr::copy_nonoverlapping(from, to, len);
            into.set_len(into.len() + len);
        }
    }
}

//! Lends one object, in its own memory, to one process, and takes it back whatever that process does.
//!
//! ```text
//! created: growth sealed -> filled -> sealed: no write, no writable mapping, forever -> lent -> truncated to nothing
//! ```
//! A process keeps memory alive with any descriptor or mapping, and can hide them. So this memory is not sealed against
//! shrinking: [`Lent::take_back`] frees its pages, and SIGBUS kills a process that still reads it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{self, SealFlags};
use rustix::io::Errno;

use crate::available::Available;
use crate::error::ShmError;
use crate::mapping::{MAPPING_BYTES_MAX, Mapping};
use crate::ready::Ready;
use crate::slot::{Slot, slot_bytes};

/// An object in its own memory, with its slot at the beginning. Dropping this leaves the memory to the processes that
/// map it.
#[derive(Debug)]
pub struct Lent {
    descriptor: OwnedFd,
    extent_len: u64,
}

impl Lent {
    /// Copies an object into its own memory.
    ///
    /// # Errors
    /// [`ShmError::NoMemory`] if the host or the control group cannot provide that much.
    pub fn copy_of(bytes: Ready<'_>) -> Result<Self, ShmError> {
        let len = bytes.len() as u64;
        let wanted = slot_bytes(len).ok_or(ShmError::TooLarge { len, max: MAPPING_BYTES_MAX })?;
        let (mapping, descriptor) =
            Mapping::create_sealed(wanted, &Available::default(), true, SealFlags::GROW)?;
        let extent_len = mapping.len();
        let slot = Slot::new(Arc::new(mapping), 0, len, true, None);
        slot.reset();
        let mut copy = slot.claim(0..len).ok_or(ShmError::Claimed { range: 0..len, len })?;
        bytes.copy_to(&mut copy);
        copy.commit();
        let failed = |errno: Errno| ShmError::System { call: "fcntl", len, source: errno.into() };
        fs::fcntl_add_seals(&descriptor, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(failed)?;
        Ok(Self { descriptor, extent_len })
    }

    /// Bytes of the memory.
    pub fn extent_len(&self) -> u64 {
        self.extent_len
    }

    /// Frees the memory. Call it only when its reader has reported, or must have reported, that it no longer reads.
    pub fn take_back(&self) {
        let cut = rustix::io::retry_on_intr(|| fs::ftruncate(&self.descriptor, 0));
        debug_assert!(cut.is_ok(), "{cut:?}");
    }
}

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn a_reader_can_neither_change_nor_keep_lent_memory() {
        let lent = Lent::copy_of((&[7; 100_000][..]).into()).unwrap();
        let theirs = File::from(lent.as_fd().try_clone_to_owned().unwrap());
        let mapping = Mapping::map_lent(&theirs, lent.extent_len()).unwrap();
        let slot = Slot::open(Arc::new(mapping), 0, 100_000).unwrap();
        assert_eq!(slot.bytes().unwrap().to_vec(), [7; 100_000]);
        let path = format!("/proc/self/fd/{}", theirs.as_raw_fd());
        let again = OpenOptions::new().read(true).write(true).open(path).unwrap();
        for file in [&theirs, &again] {
            assert!(Mapping::map_writable(file, lent.extent_len()).is_err());
            assert!(file.write_at(&[9], 0).is_err());
            assert!(file.set_len(1 << 30).is_err());
        }
        // Memory that other processes write must not be truncatable.
        assert!(matches!(
            Mapping::map_readonly(&theirs, lent.extent_len()),
            Err(ShmError::NotSealed { .. })
        ));
        assert!(theirs.metadata().unwrap().blocks() * 512 >= 100_000);
        lent.take_back();
        assert_eq!(theirs.metadata().unwrap().blocks(), 0);
        assert!(Mapping::map_lent(&again, lent.extent_len()).is_err());
    }
}

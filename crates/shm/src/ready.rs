//! Ready bytes of a slot, and whether another process could still write them. It handles bytes, not slots.
//!
//! The program that put an object keeps a writable mapping of it. Nothing stops that program from writing there after
//! the seal, so a reference to these bytes would be undefined behavior. They are read with atomic loads instead, once,
//! into memory of the reader: what it then verifies, encrypts or computes with is what it read.

use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Ready bytes of a slot.
#[derive(Clone, Copy, Debug)]
pub enum Ready<'a> {
    /// No other process can write them.
    Own(&'a [u8]),
    /// Another process may have them mapped writable.
    Foreign(Foreign<'a>),
}

/// Bytes that another process may write at any time.
#[derive(Clone, Copy, Debug)]
pub struct Foreign<'a>(&'a [AtomicU8]);

impl<'a> Ready<'a> {
    /// Number of bytes.
    pub const fn len(self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Foreign(Foreign(bytes)) => bytes.len(),
        }
    }

    /// Whether there are no bytes.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The bytes in place; `None` if another process could change them.
    pub const fn own(self) -> Option<&'a [u8]> {
        match self {
            Self::Own(bytes) => Some(bytes),
            Self::Foreign(_) => None,
        }
    }

    /// The bytes in place, for a reader that trusts their writer, such as a client that maps an object of another
    /// program of its user. A node must not use this: its clients are not trusted.
    pub const fn trusting_writer(self) -> &'a [u8] {
        match self {
            Self::Own(bytes) => bytes,
            // SAFETY: the range is mapped for 'a, and every byte is a valid u8. It does not change as long as the
            // writer keeps its contract never to write ready bytes, which the caller trusts it to.
            Self::Foreign(Foreign(bytes)) => unsafe {
                slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len())
            },
        }
    }

    /// Copies the bytes. If another process writes them meanwhile, each byte is one that was there at some time.
    ///
    /// # Panics
    /// If `into` has another length.
    pub fn copy_to(self, into: &mut [u8]) {
        assert!(into.len() == self.len(), "{} bytes copied into {}", self.len(), into.len());
        match self {
            Self::Own(bytes) => into.copy_from_slice(bytes),
            Self::Foreign(foreign) => foreign.copy_to(into),
        }
    }

    /// Copies the bytes into new memory, as [`copy_to`](Self::copy_to) does.
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = vec![0; self.len()];
        self.copy_to(&mut copy);
        copy
    }

    /// A part of the bytes; `None` if it is not inside.
    pub fn get(self, range: Range<usize>) -> Option<Self> {
        Some(match self {
            Self::Own(bytes) => Self::Own(bytes.get(range)?),
            Self::Foreign(Foreign(bytes)) => Self::Foreign(Foreign(bytes.get(range)?)),
        })
    }

    /// Consecutive parts of `bytes` bytes; the last may be shorter.
    ///
    /// # Panics
    /// If `bytes` is 0.
    pub fn chunks(self, bytes: usize) -> impl Iterator<Item = Self> + Clone + 'a {
        assert!(bytes > 0, "chunks of no bytes");
        let starts = (0..self.len()).step_by(bytes);
        starts.filter_map(move |start| self.get(start..(start + bytes).min(self.len())))
    }
}

impl<'a> From<&'a [u8]> for Ready<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Own(bytes)
    }
}

impl Foreign<'_> {
    /// Creates a view of memory that other processes may write.
    ///
    /// # Safety
    /// The `len` bytes from `start` on must be mapped for the lifetime of the result, and this process must not write
    /// them during it.
    pub(crate) const unsafe fn new(start: *const u8, len: usize) -> Self {
        // SAFETY: the caller promises mapped memory. A shared reference to atomics permits changes by others.
        Self(unsafe { slice::from_raw_parts(start.cast(), len) })
    }

    /// As fast as a copy of ordinary memory that is not in the cache.
    fn copy_to(self, into: &mut [u8]) {
        // SAFETY: eight atomic bytes, aligned as `align_to` does, are an atomic word, and every word is valid.
        let (before, words, after) = unsafe { self.0.align_to::<AtomicU64>() };
        let (into_before, rest) = into.split_at_mut(before.len());
        let (into_words, into_after) = rest.split_at_mut(8 * words.len());
        for (word, into) in words.iter().zip(into_words.as_chunks_mut().0) {
            // Relaxed: memory may be mapped read-only, where only such loads are defined. The check that the bytes are
            // ready has acquired them.
            *into = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        for (bytes, into) in [(before, into_before), (after, into_after)] {
            for (byte, into) in bytes.iter().zip(into) {
                *into = byte.load(Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(bytes: &[u8]) -> Ready<'_> {
        // SAFETY: the slice lives as long as the result, and nobody writes it.
        Ready::Foreign(unsafe { Foreign::new(bytes.as_ptr(), bytes.len()) })
    }

    #[test]
    fn foreign_bytes_are_copied_whole_from_any_alignment() {
        let bytes: Vec<u8> = (0..100).collect();
        for start in 0..20 {
            for end in start..=bytes.len() {
                let part = foreign(&bytes).get(start..end).unwrap();
                assert_eq!(part.to_vec(), bytes[start..end]);
            }
        }
        assert!(foreign(&bytes).get(0..101).is_none());
    }

    #[test]
    fn chunks_are_the_bytes_in_order() {
        let bytes: Vec<u8> = (0..100).collect();
        for whole in [Ready::from(&bytes[..]), foreign(&bytes)] {
            let chunks: Vec<Vec<u8>> = whole.chunks(30).map(Ready::to_vec).collect();
            assert_eq!(chunks.iter().map(Vec::len).collect::<Vec<_>>(), [30, 30, 30, 10]);
            assert_eq!(chunks.concat(), bytes);
        }
        assert_eq!(foreign(&[]).chunks(30).count(), 0);
    }

    #[test]
    fn only_own_bytes_are_lent_in_place() {
        assert_eq!(Ready::from(&b"own"[..]).own(), Some(&b"own"[..]));
        assert_eq!(foreign(b"theirs").own(), None);
        assert_eq!(foreign(b"theirs").trusting_writer(), b"theirs");
    }
}

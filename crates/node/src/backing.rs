//! What holds the bytes of a copy: shared memory ([`crate::store::StoredCopy`]) or a file
//! ([`crate::disk::file::OpenFile`]).
//!
//! Everything that moves bytes uses this interface. A place that this process can't address, such
//! as the memory of a device, offers no view, and its claims lead through a buffer. Knows bytes,
//! not objects.

use std::{io, ops::Range};

use hoplite_shm::Ready;

/// Bytes copied at once between two backings, and the least that a claim offers if it has more: 1
/// MiB, about a millisecond of disk time.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;

/// The bytes of a copy in one place. Dropping the last reference frees them.
pub(crate) trait Backing {
    /// The exclusive right to write a range.
    type Claim<'a>: Claim
    where
        Self: 'a;

    /// Number of bytes.
    fn len(&self) -> u64;

    /// Whether all bytes of a range are ready.
    fn is_ready(&self, range: Range<u64>) -> bool;

    /// Claims a range; None if a part of it is ready, claimed or not writable.
    fn claim(&self, range: Range<u64>) -> Option<Self::Claim<'_>>;

    /// The ready bytes of a range in place; None if this process can't address them.
    fn view(&self, range: Range<u64>) -> Option<Ready<'_>>;

    /// Copies ready bytes from `at` on. A file is read by whole chunks. May block.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if they are not ready, and the errors of the place.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.view(at..at + into.len() as u64).ok_or_else(missing)?;
        bytes.copy_to(into);
        Ok(())
    }

    /// The ready bytes of a range: in place, or else copied to `buffer`.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn bytes<'a>(&'a self, range: Range<u64>, buffer: &'a mut Vec<u8>) -> io::Result<Ready<'a>> {
        if let Some(bytes) = self.view(range.clone()) {
            return Ok(bytes);
        }
        if !self.is_ready(range.clone()) {
            return Err(missing());
        }
        buffer.resize((range.end - range.start) as usize, 0);
        self.read(range.start, buffer)?;
        Ok(buffer[..].into())
    }

    /// Claims the bytes from `at` on, and fills them.
    ///
    /// # Errors
    /// The range can't be claimed, and the errors of the place.
    fn write(&self, at: u64, mut bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut claim = self.claim(at..at + bytes.len() as u64).ok_or_else(claimed)?;
        while !bytes.is_empty() {
            let place = claim.place(bytes.len() as u64);
            let (now, later) = bytes.split_at(place.len());
            place.copy_from_slice(now);
            claim.commit(now.len() as u64)?;
            bytes = later;
        }
        Ok(())
    }
}

/// A claimed range. Bytes that are not committed when it is dropped stay missing.
pub(crate) trait Claim {
    /// The rest of the range.
    fn range(&self) -> Range<u64>;

    /// Memory for up to `most` bytes from the start of the rest on. It keeps what was written until
    /// that is committed.
    fn place(&mut self, most: u64) -> &mut [u8];

    /// Makes the whole blocks of the first `bytes` ready, and wakes waiting readers. The rest of
    /// the range starts after them.
    ///
    /// # Errors
    /// The error of the place. They are not ready then.
    fn commit(&mut self, bytes: u64) -> io::Result<()>;
}

/// Copies all bytes of one backing to another. Returns false if `goes_on` did before the end.
/// Blocks.
///
/// # Errors
/// The errors of both, and [`io::ErrorKind::InvalidData`] if their lengths differ.
pub(crate) fn copy(
    from: &impl Backing,
    to: &impl Backing,
    goes_on: impl Fn() -> bool,
) -> io::Result<bool> {
    if from.len() != to.len() {
        let said = "its length differs from that of the copy";
        return Err(io::Error::new(io::ErrorKind::InvalidData, said));
    }
    for range in chunks(to.len()) {
        if !goes_on() {
            return Ok(false);
        }
        let mut claim = to.claim(range.clone()).ok_or_else(claimed)?;
        from.read(range.start, claim.place(CHUNK_BYTES))?;
        claim.commit(CHUNK_BYTES)?;
    }
    Ok(true)
}

/// The ranges of the chunks of `length` bytes.
pub(crate) fn chunks(length: u64) -> impl Iterator<Item = Range<u64>> {
    (0..length.div_ceil(CHUNK_BYTES))
        .map(move |chunk| chunk * CHUNK_BYTES..((chunk + 1) * CHUNK_BYTES).min(length))
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "its bytes are missing")
}

fn claimed() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another task writes these bytes")
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard};

    use hoplite_proto::id::{Instance, NodeId};

    use super::*;
    use crate::{store::Store, sync::lock};

    const LENGTH: usize = 2 * CHUNK_BYTES as usize + 100;

    /// A place that this process can't address, like the memory of a device. Its claims lead
    /// through a buffer.
    struct Device(Mutex<Vec<u8>>);

    struct Staged<'a> {
        bytes: MutexGuard<'a, Vec<u8>>,
        buffer: Vec<u8>,
    }

    impl Backing for Device {
        type Claim<'a> = Staged<'a>;

        fn len(&self) -> u64 {
            LENGTH as u64
        }

        fn is_ready(&self, range: Range<u64>) -> bool {
            range.end <= lock(&self.0).len() as u64
        }

        fn claim(&self, range: Range<u64>) -> Option<Staged<'_>> {
            let bytes = lock(&self.0);
            (range.start == bytes.len() as u64).then_some(Staged { bytes, buffer: Vec::new() })
        }

        fn view(&self, _: Range<u64>) -> Option<Ready<'_>> {
            None
        }

        fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
            into.copy_from_slice(&lock(&self.0)[at as usize..][..into.len()]);
            Ok(())
        }
    }

    impl Claim for Staged<'_> {
        fn range(&self) -> Range<u64> {
            self.bytes.len() as u64..LENGTH as u64
        }

        fn place(&mut self, most: u64) -> &mut [u8] {
            let left = LENGTH as u64 - self.bytes.len() as u64;
            self.buffer.resize(left.min(most).min(CHUNK_BYTES) as usize, 0);
            &mut self.buffer
        }

        fn commit(&mut self, bytes: u64) -> io::Result<()> {
            let end = self.buffer.len().min(bytes as usize);
            self.bytes.extend_from_slice(&self.buffer[..end]);
            Ok(())
        }
    }

    #[test]
    fn copy_moves_between_memory_and_a_place_without_addresses() {
        let (store, instance) = (Store::new(1 << 30), Instance { node: NodeId(1), serial: 1 });
        store.create(instance, LENGTH as u64, None, || {}).unwrap();
        let memory = store.get(instance).unwrap();
        let (first, second) = (Device(Mutex::default()), Device(Mutex::default()));
        let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
        first.write(0, &bytes).unwrap();
        assert!(copy(&first, &*memory, || true).unwrap());
        assert!(copy(&*memory, &second, || true).unwrap());
        let mut buffer = Vec::new();
        let read = second.bytes(5..LENGTH as u64, &mut buffer).unwrap();
        assert!(read.own().unwrap() == &bytes[5..]);
        assert!(memory.bytes(0..7, &mut Vec::new()).unwrap().own().unwrap() == &bytes[..7]);
        assert!(second.bytes(0..LENGTH as u64 + 1, &mut buffer).is_err(), "beyond the end");
        assert!(!copy(&second, &Device(Mutex::default()), || false).unwrap());
        assert!(copy(&second, &*memory, || true).is_err(), "it is filled");
    }
}

//! Claims: the exclusive right to write some blocks of a slot. Also fills a slot from bytes of this process.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::slice;

use crate::error::ShmError;
use crate::slot::Slot;
use crate::units::BLOCK_BYTES;

/// [`Slot::copy_from`] copies this much before it reports progress: 1 MiB. At 10 GB/s, a streaming reader waits at most
/// 0.1 ms, and the cost of the report is spread over enough bytes.
pub(crate) const COPY_BYTES: u64 = 64 * BLOCK_BYTES;

/// A claim that borrows its slot.
pub type WriteGuard<'a> = ClaimGuard<&'a Slot>;

/// A claim that keeps its slot alive; `Send` and `'static`, so that an asynchronous read can own it.
pub type OwnedWriteGuard = ClaimGuard<Slot>;

/// The bytes of a claim. If it is dropped without [`commit`](Self::commit), the blocks are free again and their bytes
/// are undefined.
#[must_use = "a claim ends when it is dropped"]
pub struct ClaimGuard<S: Borrow<Slot>> {
    slot: S,
    range: Range<u64>,
}

impl Slot {
    /// Claims `range` for writing. It must start at a block, and end at a block boundary or at the end of the payload.
    ///
    /// Returns `None` if the range contains a ready block, overlaps another claim or has other boundaries, or if this
    /// process may not write the slot. The bytes are whatever the memory held before, not zero.
    pub fn claim(&self, range: Range<u64>) -> Option<WriteGuard<'_>> {
        self.take(&range).then(|| ClaimGuard::new(self, range))
    }

    /// Like [`claim`](Self::claim), with a clone of the slot inside, for writers that outlive the borrow.
    pub fn claim_owned(&self, range: Range<u64>) -> Option<OwnedWriteGuard> {
        self.take(&range).then(|| ClaimGuard::new(self.clone(), range))
    }

    /// Fills the slot with `source`, 1 MiB at a time, and calls `after_each` with the new prefix after each step.
    ///
    /// # Errors
    /// [`ShmError::LengthDiffers`]; [`ShmError::Claimed`] if a part is ready, claimed, or not writable by this process.
    /// Parts copied before that stay.
    pub fn copy_from(
        &self,
        source: &[u8],
        mut after_each: impl FnMut(u64),
    ) -> Result<(), ShmError> {
        self.copy_from_parts(&[source], &mut after_each)
    }

    /// Like [`copy_from`](Self::copy_from), from a source in several consecutive parts.
    ///
    /// # Errors
    /// As [`copy_from`](Self::copy_from).
    pub fn copy_from_parts(
        &self,
        parts: &[&[u8]],
        mut after_each: impl FnMut(u64),
    ) -> Result<(), ShmError> {
        let len = self.len();
        let source_len = parts.iter().map(|part| part.len() as u64).sum();
        if source_len != len {
            return Err(ShmError::LengthDiffers { source_len, len });
        }
        let (mut parts, mut rest) = (parts.iter(), &[][..]);
        let mut start = 0;
        while start < len {
            let range = start..(start + COPY_BYTES).min(len);
            let Some(mut guard) = self.claim(range.clone()) else {
                return Err(ShmError::Claimed { range, len });
            };
            let mut at = 0;
            while at < guard.len() {
                if rest.is_empty() {
                    // There is another part, because the lengths add up.
                    rest = parts.next().copied().unwrap_or_default();
                    continue;
                }
                let count = rest.len().min(guard.len() - at);
                let (now, later) = rest.split_at(count);
                guard[at..at + count].copy_from_slice(now);
                (at, rest) = (at + count, later);
            }
            guard.commit();
            start = range.end;
            after_each(self.progress().prefix());
        }
        Ok(())
    }
}

impl<S: Borrow<Slot>> ClaimGuard<S> {
    /// The caller has added `range` to the slot's list of claims; the guard removes it.
    pub(crate) fn new(slot: S, range: Range<u64>) -> Self {
        Self { slot, range }
    }

    /// The claimed bytes of the payload.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Commits the whole claim: its blocks are ready and immutable from now on.
    pub fn commit(mut self) {
        self.commit_front(u64::MAX);
    }

    /// Commits the first `bytes`. Whole blocks among them become ready and leave the claim, which then starts after
    /// them. Returns the number of bytes committed.
    ///
    /// For data that arrives in pieces, and to keep what arrived before a source was lost.
    pub fn commit_front(&mut self, bytes: u64) -> u64 {
        let len = self.range.end - self.range.start;
        let whole = if bytes >= len { len } else { bytes - bytes % BLOCK_BYTES };
        if whole > 0 {
            let end = self.range.start + whole;
            self.slot.borrow().commit(&self.range, end);
            self.range.start = end;
        }
        whole
    }
}

impl<S: Borrow<Slot>> Drop for ClaimGuard<S> {
    fn drop(&mut self) {
        if !self.range.is_empty() {
            self.slot.borrow().release(&self.range);
        }
    }
}

impl<S: Borrow<Slot>> Deref for ClaimGuard<S> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.slot.borrow().payload(self.range.start);
        let len = (self.range.end - self.range.start) as usize;
        // SAFETY: `claim` checked that the range is inside the payload, which is mapped while the slot lives. No other
        // code has these bytes: no other claim overlaps, none of them is ready until `commit_front` removes them from
        // this guard, and no other process writes the memory of this slot (see the crate documentation).
        unsafe { slice::from_raw_parts(start, len) }
    }
}

impl<S: Borrow<Slot>> DerefMut for ClaimGuard<S> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.slot.borrow().payload(self.range.start);
        let len = (self.range.end - self.range.start) as usize;
        // SAFETY: as in `deref`; the slot is writable or `claim` would have refused, and `&mut self` makes this the
        // only view.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }
}

impl<S: Borrow<Slot>> AsRef<[u8]> for ClaimGuard<S> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<S: Borrow<Slot>> AsMut<[u8]> for ClaimGuard<S> {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl<S: Borrow<Slot>> fmt::Debug for ClaimGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimGuard").field("range", &self.range).finish_non_exhaustive()
    }
}

//! The right to write some blocks of a slot, held by one writer at a time; and a slot filled from bytes of this process.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::slice;

use crate::error::ShmError;
use crate::slot::Slot;
use crate::units::BLOCK_BYTES;

/// How much of the source [`Slot::copy_from`] copies before it tells: 1 MiB. A reader that streams waits no longer than
/// 0.1 ms for it at 10 GB/s, and the cost of telling is spread over enough bytes.
pub(crate) const COPY_BYTES: u64 = 64 * BLOCK_BYTES;

/// A claim that borrows its slot.
pub type WriteGuard<'a> = ClaimGuard<&'a Slot>;

/// A claim that keeps its slot alive; `Send` and `'static`, so that an asynchronous read can own it.
pub type OwnedWriteGuard = ClaimGuard<Slot>;

/// The bytes of a claim. Dropped without [`commit`](Self::commit), it leaves the blocks free and their bytes undefined.
#[must_use = "a claim ends when it is dropped"]
pub struct ClaimGuard<S: Borrow<Slot>> {
    slot: S,
    range: Range<u64>,
}

impl Slot {
    /// Takes the right to write `range`, which must start at a block and end at one or at the end of the payload.
    ///
    /// None if it holds a ready block, overlaps a live claim, has other bounds than these, or if this process may not
    /// write the slot. The bytes are what the memory held before, not zero.
    pub fn claim(&self, range: Range<u64>) -> Option<WriteGuard<'_>> {
        self.take(&range).then(|| ClaimGuard::new(self, range))
    }

    /// The same as [`claim`](Self::claim) with a clone of the slot inside, for writers that outlive the borrow.
    pub fn claim_owned(&self, range: Range<u64>) -> Option<OwnedWriteGuard> {
        self.take(&range).then(|| ClaimGuard::new(self.clone(), range))
    }

    /// Fills the slot with `source`, 1 MiB at a time, and says the new prefix after each.
    ///
    /// # Errors
    /// [`ShmError::LengthDiffers`], or [`ShmError::Claimed`] when a part is ready, claimed or not ours to write; what
    /// was copied before that stays.
    pub fn copy_from(
        &self,
        source: &[u8],
        mut after_each: impl FnMut(u64),
    ) -> Result<(), ShmError> {
        self.copy_from_parts(&[source], &mut after_each)
    }

    /// The same with a source in several parts, one after the other.
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
                    // There is a next part: the lengths add up.
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
    /// The caller has entered `range` in the slot's list of claims; the guard takes it out.
    pub(crate) fn new(slot: S, range: Range<u64>) -> Self {
        Self { slot, range }
    }

    /// The claimed bytes of the payload.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Says that all bytes are written: the blocks are ready and immutable from now on.
    pub fn commit(mut self) {
        self.commit_front(u64::MAX);
    }

    /// Says that the first `bytes` are written. Whole blocks of them become ready and leave the claim, which then
    /// starts behind them; returns how many bytes that were.
    ///
    /// For what arrives little by little, and to keep what arrived before a source was lost.
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
        // SAFETY: `claim` checked that the range lies in the payload, which is mapped while the slot lives. No other code
        // has these bytes: no other claim overlaps, none of them is ready until `commit_front` has taken them off this
        // guard, and the memory of this slot is written by no other process (see the crate's page).
        unsafe { slice::from_raw_parts(start, len) }
    }
}

impl<S: Borrow<Slot>> DerefMut for ClaimGuard<S> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.slot.borrow().payload(self.range.start);
        let len = (self.range.end - self.range.start) as usize;
        // SAFETY: as in `deref`; the slot is writable or `claim` had refused, and `&mut self` makes this the only view.
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

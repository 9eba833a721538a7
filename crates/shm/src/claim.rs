//! The right to write some blocks of a slot, held by one writer at a time.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::slice;

use crate::{BLOCK_BYTES, Slot};

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

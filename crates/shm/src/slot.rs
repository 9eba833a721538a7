//! One object's space in an extent: its progress, then its payload. It handles offsets and blocks, not objects.
//!
//! Readers access ready bytes, writers access claimed bytes. Within one process, a byte is never both: a claim of ready
//! blocks is refused, and only committing a claim makes blocks ready. Bytes of a writer in another process are read
//! with atomic loads ([`Ready`]), because that writer may not keep to this.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::ShmError;
use crate::extent::ExtentId;
use crate::mapping::{MAPPING_BYTES_MAX, Mapping};
use crate::progress::{ProgressRef, ProgressWriter, header_bytes, word_count};
use crate::ready::{Foreign, Ready};
use crate::sync::{AtomicU64, Ordering};
use crate::units::{BLOCK_BYTES, PAGE_BYTES};

/// Bytes that a slot for `len` bytes takes in an extent, a multiple of a page. `None` if no mapping can be that long.
pub(crate) fn slot_bytes(len: u64) -> Option<u64> {
    let bytes = header_bytes(len).checked_add(len)?.checked_next_multiple_of(PAGE_BYTES)?;
    (bytes <= MAPPING_BYTES_MAX).then_some(bytes)
}

/// A slot's right to its place; dropping it frees the place.
pub(crate) trait Allocation: fmt::Debug + Send + Sync {}

/// One object's space; clones share it. When the last clone is dropped, the space returns to its arena.
#[derive(Clone, Debug)]
pub struct Slot(Arc<SlotInner>);

#[derive(Debug)]
pub(crate) struct SlotInner {
    mapping: Arc<Mapping>,
    offset: u64,
    len: u64,
    writable: bool,
    /// Set once this process knows that every byte is ready, whatever the header contains later.
    complete: AtomicBool,
    /// Claimed ranges, start to end. They do not overlap and contain no ready block.
    claims: Mutex<BTreeMap<u64, u64>>,
    /// Frees the space; `None` for a slot in another process's memory.
    lease: Option<Box<dyn Allocation>>,
}

impl Slot {
    /// Opens the slot for `len` bytes whose header is at `offset`, as reported by another process.
    ///
    /// The mapping determines whether it is writable. If the slot is still open, the same one is returned. The owner
    /// must not reuse the space before it is notified that the last clone was dropped.
    ///
    /// # Errors
    /// [`ShmError::OutOfBounds`] and [`ShmError::Overlap`] for an invalid place.
    pub fn open(mapping: Arc<Mapping>, offset: u64, len: u64) -> Result<Self, ShmError> {
        let out_of_bounds = ShmError::OutOfBounds { offset, len, extent: mapping.len() };
        // A peer may map only up to the end of the payload, which truncates the last page of the extent.
        let end = header_bytes(len).checked_add(len).and_then(|bytes| bytes.checked_add(offset));
        let end = match end {
            Some(end) if end <= mapping.len() && offset.is_multiple_of(PAGE_BYTES) => end,
            _ => return Err(out_of_bounds),
        };
        let mut opened = mapping.opened();
        let known = opened.find(offset, end).and_then(|slot| slot.downcast().ok());
        if let Some(slot) = known {
            return Ok(Self(slot));
        }
        if let Some(other) = opened.overlapping(offset, end) {
            return Err(ShmError::Overlap { offset, len, other });
        }
        let writable = mapping.is_writable();
        let slot = Self::new(mapping.clone(), offset, len, writable, None);
        let known: Arc<dyn Any + Send + Sync> = slot.0.clone();
        opened.insert(offset, end, Arc::downgrade(&known));
        drop(known);
        drop(opened);
        Ok(slot)
    }

    /// Creates a slot that the arena placed. The caller has checked that it is inside the mapping and overlaps no other
    /// slot.
    pub(crate) fn new(
        mapping: Arc<Mapping>,
        offset: u64,
        len: u64,
        writable: bool,
        lease: Option<Box<dyn Allocation>>,
    ) -> Self {
        let (complete, claims) = (AtomicBool::new(false), Mutex::default());
        Self(Arc::new(SlotInner { mapping, offset, len, writable, complete, claims, lease }))
    }

    /// Bytes of the payload.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether the payload has no bytes; it is then complete.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Which bytes are ready.
    pub fn progress(&self) -> ProgressRef<'_> {
        let progress = ProgressRef::new(self.words(), self.0.len);
        // Acquire: whoever set it has seen the bytes.
        if self.0.complete.load(Ordering::Acquire) { progress.completed() } else { progress }
    }

    /// Records in this process's own memory that every byte is ready. From now on the header is not read: its writer
    /// could reset it, and a complete object would be missing bytes.
    ///
    /// Call it once the writer has reported the end, and [`is_complete`](Self::is_complete) has confirmed that.
    pub fn record_complete(&self) {
        self.0.complete.store(true, Ordering::Release);
    }

    /// Whether every byte is ready.
    pub fn is_complete(&self) -> bool {
        self.progress().is_complete()
    }

    /// Whether this process may claim parts of it. False for memory mapped read-only, and for space that the arena
    /// allocated to another writer.
    pub fn is_writable(&self) -> bool {
        self.0.writable
    }

    /// The extent of the slot; for an opened slot see [`Mapping::with_extent`].
    pub fn extent(&self) -> ExtentId {
        self.0.mapping.extent()
    }

    /// Offset of its header in the extent. Another process can open the slot with the extent, the offset and the
    /// length.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Returns the bytes of `range` if all of them are ready. Their writer must not change them again.
    ///
    /// Returns `None` if a byte is not ready yet, or if the range is not inside the payload.
    pub fn ready(&self, range: Range<u64>) -> Option<Ready<'_>> {
        if !self.progress().is_range_ready(range.clone()) {
            return None;
        }
        let (start, len) = (self.payload(range.start), (range.end - range.start) as usize);
        Some(if self.0.writable {
            // SAFETY: `is_range_ready` found the range inside the payload, which stays mapped while the slot lives. No
            // `&mut` covers it: `claim` refuses ready blocks, and a claim ends before its blocks become ready. No other
            // process writes it: memory that this process may claim is either in an extent of the pool, which was
            // sealed before another process got it, or this process is its only writer.
            Ready::Own(unsafe { slice::from_raw_parts(start, len) })
        } else {
            // SAFETY: as above, the range is mapped while the slot lives. This process cannot claim any of it.
            Ready::Foreign(unsafe { Foreign::new(start, len) })
        })
    }

    /// Returns the whole payload if it is complete.
    pub fn bytes(&self) -> Option<Ready<'_>> {
        self.ready(0..self.0.len)
    }

    /// Resets the header, which may contain the state of an earlier slot. Only for the arena, before it returns the
    /// slot.
    pub(crate) fn reset(&self) {
        self.writer().reset();
    }

    /// Makes the part of a claim up to `end` ready, and keeps the rest of the claim.
    pub(crate) fn commit(&self, claim: &Range<u64>, end: u64) {
        // Mark ready first, then release: in between, the blocks must not look free.
        self.writer().mark_blocks(claim.start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES));
        let mut claims = self.claims();
        claims.remove(&claim.start);
        if end < claim.end {
            claims.insert(end, claim.end);
        }
    }

    /// Ends a claim; its blocks are free again.
    pub(crate) fn release(&self, claim: &Range<u64>) {
        self.claims().remove(&claim.start);
    }

    /// Returns the address of the payload's byte `at`, which may be one past the end.
    pub(crate) fn payload(&self, at: u64) -> *mut u8 {
        assert!(at <= self.0.len, "byte {at} of {}", self.0.len);
        self.0.mapping.at(self.0.offset + header_bytes(self.0.len) + at).as_ptr()
    }

    /// Adds a claim; see [`Slot::claim`](crate::Slot::claim).
    pub(crate) fn take(&self, range: &Range<u64>) -> bool {
        let len = self.0.len;
        let aligned = range.start.is_multiple_of(BLOCK_BYTES)
            && (range.end.is_multiple_of(BLOCK_BYTES) || range.end == len);
        if !self.0.writable || !aligned || range.start > range.end || range.end > len {
            return false;
        }
        if range.is_empty() {
            return true;
        }
        let mut claims = self.claims();
        // Claims do not overlap, so only the last one that starts before the end can overlap the range.
        if claims.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start) {
            return false;
        }
        // Under the lock: a claim that has ended has either made its blocks ready or left them free.
        if self.progress().is_any_ready(range.clone()) {
            return false;
        }
        claims.insert(range.start, range.end);
        true
    }

    fn claims(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> ProgressWriter<'_> {
        assert!(self.0.mapping.is_writable(), "progress in memory that is mapped read-only");
        ProgressWriter::new(self.words(), self.0.len)
    }

    fn words(&self) -> &[AtomicU64] {
        let start = self.0.mapping.at(self.0.offset).cast::<AtomicU64>();
        // SAFETY: the header is inside the mapping (`open` checked that, or the arena placed it so). It starts on a
        // page and is therefore aligned, and it has at least `word_count` words. All processes access it with atomics
        // only, and this one stores only through `writer`, which requires a writable mapping.
        unsafe { slice::from_raw_parts(start.as_ptr(), word_count(self.0.len) as usize) }
    }
}

impl Drop for SlotInner {
    fn drop(&mut self) {
        if self.lease.is_none() {
            self.mapping.opened().forget(self.offset, ptr::from_ref(self).cast());
        }
    }
}

#[cfg(test)]
mod tests;

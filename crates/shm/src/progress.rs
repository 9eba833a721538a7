//! Tracks which bytes of a payload are ready, in words shared by several processes. It handles counts, never the
//! payload.
//!
//! ```text
//! word 0     prefix: bytes ready from the start
//! word 1..   one bit per block of 16 KiB, for blocks that became ready out of order and for those below the prefix
//! ```
//! Both only grow. A writer sets bits after writing the blocks; a reader that sees a bit or a prefix sees those bytes.

use core::ops::Range;

use crate::sync::{AtomicU64, Ordering, fence};
use crate::units::{BLOCK_BYTES, PAGE_BYTES};

/// Number of progress words for a payload of `len` bytes.
pub(crate) const fn word_count(len: u64) -> u64 {
    1 + len.div_ceil(BLOCK_BYTES).div_ceil(64)
}

/// Size of the header in front of a payload of `len` bytes, rounded up so that the payload starts on a page.
pub const fn header_bytes(len: u64) -> u64 {
    (word_count(len) * 8).next_multiple_of(PAGE_BYTES)
}

/// A reader's view of the progress of one payload.
#[derive(Clone, Copy, Debug)]
pub struct ProgressRef<'a> {
    words: &'a [AtomicU64],
    len: u64,
    /// Every byte is ready, whatever the words contain.
    completed: bool,
}

impl<'a> ProgressRef<'a> {
    /// Creates a view of `words` as the progress of a payload of `len` bytes. All zeros mean that nothing is ready.
    ///
    /// # Panics
    /// If there are fewer words than one plus a bit per block.
    pub fn new(words: &'a [AtomicU64], len: u64) -> Self {
        let needed = word_count(len);
        assert!(words.len() as u64 >= needed, "{} of {needed} progress words", words.len());
        Self { words: &words[..needed as usize], len, completed: false }
    }

    /// The same progress with every byte ready, whatever the words contain.
    #[cfg_attr(loom, expect(dead_code, reason = "for slots, which loom does not build"))]
    pub(crate) const fn completed(self) -> Self {
        Self { completed: true, ..self }
    }

    /// Bytes of the payload.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the payload has no bytes; it is then complete.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of blocks; the last one may be short.
    pub fn blocks(&self) -> u64 {
        self.len.div_ceil(BLOCK_BYTES)
    }

    /// Bytes ready from the start, with acquire ordering: these bytes may be read afterwards.
    pub fn prefix(&self) -> u64 {
        if self.completed {
            return self.len;
        }
        // Another process may have written the words: a wrong one must not lead past the payload.
        load(&self.words[0]).min(self.len)
    }

    /// Whether `block` is ready, with acquire ordering. False for a block beyond the end.
    pub fn is_ready(&self, block: u64) -> bool {
        block < self.blocks() && (self.completed || load(self.word(block)) & bit(block) != 0)
    }

    /// Whether every byte of `range` is ready, with acquire ordering. False if it is not inside the payload.
    pub fn is_range_ready(&self, range: Range<u64>) -> bool {
        if range.start > range.end || range.end > self.len {
            return false;
        }
        if range.is_empty() || range.end <= self.prefix() {
            return true;
        }
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        masks(blocks).all(|(index, mask)| load(&self.words[index]) & mask == mask)
    }

    /// Whether any byte of the blocks that `range` touches is ready.
    #[cfg_attr(loom, expect(dead_code, reason = "for slots, which loom does not build"))]
    pub(crate) fn is_any_ready(&self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return false;
        }
        let blocks = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        range.start < self.prefix()
            || masks(blocks).any(|(index, mask)| load(&self.words[index]) & mask != 0)
    }

    /// Number of ready bytes, wherever they are.
    pub fn ready_bytes(&self) -> u64 {
        let prefix = self.prefix();
        if prefix == self.len {
            return prefix;
        }
        let blocks = self.blocks();
        let missing_of_last = blocks * BLOCK_BYTES - self.len;
        let whole: u64 = masks(0..blocks)
            .map(|(index, mask)| {
                // One load for both checks: the last bit may appear between two.
                let ready = load(&self.words[index]) & mask;
                let has_last =
                    (blocks - 1) / 64 == index as u64 - 1 && ready & bit(blocks - 1) != 0;
                u64::from(ready.count_ones()) * BLOCK_BYTES
                    - if has_last { missing_of_last } else { 0 }
            })
            .sum();
        // A prefix may end inside a block that is not completely ready.
        let partial = if self.is_ready(prefix / BLOCK_BYTES) { 0 } else { prefix % BLOCK_BYTES };
        whole + partial
    }

    /// Whether every byte is ready, with acquire ordering.
    pub fn is_complete(&self) -> bool {
        self.prefix() == self.len
    }

    fn word(&self, block: u64) -> &'a AtomicU64 {
        &self.words[1 + (block / 64) as usize]
    }
}

/// A writer's view, which marks blocks as ready. Any number of threads may mark at the same time.
///
/// A [`Slot`](crate::Slot) does not expose its writer: blocks become ready by committing a claim.
#[derive(Clone, Copy, Debug)]
pub struct ProgressWriter<'a>(ProgressRef<'a>);

impl<'a> ProgressWriter<'a> {
    /// Creates a writer of `words`, see [`ProgressRef::new`]. The words must be writable memory.
    ///
    /// # Panics
    /// If there are too few words.
    pub fn new(words: &'a [AtomicU64], len: u64) -> Self {
        Self(ProgressRef::new(words, len))
    }

    /// Returns a view of the same progress for reading.
    pub fn reader(&self) -> ProgressRef<'a> {
        self.0
    }

    /// Marks every block as missing. Only for memory without readers.
    #[cfg_attr(loom, expect(dead_code, reason = "for slots, which loom does not build"))]
    pub(crate) fn reset(&self) {
        for word in self.0.words {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Marks one block ready, and moves the prefix past all contiguous ready blocks.
    ///
    /// # Panics
    /// If the block is beyond the end.
    pub fn mark_block(&self, block: u64) {
        self.mark_blocks(block..block + 1);
    }

    /// Marks a range of blocks ready, and moves the prefix past all contiguous ready blocks.
    ///
    /// # Panics
    /// If the range extends beyond the end.
    pub fn mark_blocks(&self, blocks: Range<u64>) {
        assert!(blocks.end <= self.0.blocks(), "block {} of {}", blocks.end, self.0.blocks());
        if blocks.is_empty() {
            return;
        }
        for (index, mask) in masks(blocks) {
            self.0.words[index].fetch_or(mask, Ordering::Release);
        }
        self.join_prefix();
    }

    /// Marks the first `bytes` ready. A smaller number than before has no effect.
    ///
    /// # Panics
    /// If `bytes` exceeds the payload.
    pub fn advance_prefix(&self, bytes: u64) {
        assert!(bytes <= self.0.len, "prefix {bytes} of {}", self.0.len);
        let whole = if bytes == self.0.len { self.0.blocks() } else { bytes / BLOCK_BYTES };
        for (index, mask) in masks(0..whole) {
            // Most bits below a growing prefix are already set, and a load is cheaper than a read-modify-write.
            if load(&self.0.words[index]) & mask != mask {
                self.0.words[index].fetch_or(mask, Ordering::Release);
            }
        }
        self.0.words[0].fetch_max(bytes, Ordering::AcqRel);
        self.join_prefix();
    }

    /// Moves the prefix to the first block that is not ready.
    fn join_prefix(&self) {
        // If two writers set bits in different words, the later one must see the earlier one's bit. Otherwise both stop
        // early and the prefix never catches up. Release and acquire allow that; this fence does not.
        fence(Ordering::SeqCst);
        let blocks = self.0.blocks();
        let start = self.0.prefix() / BLOCK_BYTES;
        let mut block = start;
        while block < blocks {
            let ones = (!(load(self.0.word(block)) >> (block % 64))).trailing_zeros() as u64;
            // The shift fills with zeros from the top, so `ones` never passes the end of the word.
            block += ones;
            if ones == 0 || !block.is_multiple_of(64) {
                break;
            }
        }
        if block > start {
            self.0.words[0]
                .fetch_max((block.min(blocks) * BLOCK_BYTES).min(self.0.len), Ordering::AcqRel);
        }
    }
}

/// Loads with acquire ordering.
///
/// Uses a relaxed load and a fence: readers map these words read-only, where only relaxed atomic loads are defined.
fn load(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

fn bit(block: u64) -> u64 {
    1 << (block % 64)
}

/// Returns the words that contain the bits of `blocks`, each with the mask of these bits.
fn masks(blocks: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let words = if blocks.is_empty() { 0..0 } else { blocks.start / 64..blocks.end.div_ceil(64) };
    words.map(move |word| {
        let first = blocks.start.saturating_sub(word * 64);
        let end = (blocks.end - word * 64).min(64);
        let mask = (u64::MAX >> (64 - end)) & (u64::MAX << first);
        (1 + word as usize, mask)
    })
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;

//! Allocates byte ranges of one extent. It handles offsets and lengths, and never touches memory.
//!
//! Best fit with immediate coalescing. Invariants: a range is either free or allocated; two free ranges are never
//! adjacent.

use std::collections::{BTreeMap, BTreeSet};

/// Allocates and frees ranges of `0..len`.
#[derive(Debug)]
pub struct Allocator {
    len: u64,
    used: u64,
    /// Length of each allocated range by its offset.
    taken: BTreeMap<u64, u64>,
    /// Length of each free range by its offset.
    free: BTreeMap<u64, u64>,
    /// The same free ranges as (length, offset), to find the tightest one first.
    by_len: BTreeSet<(u64, u64)>,
}

impl Allocator {
    /// Returns an allocator in which all of `0..len` is free.
    pub fn new(len: u64) -> Self {
        let mut empty = Self {
            len,
            used: 0,
            taken: BTreeMap::new(),
            free: BTreeMap::new(),
            by_len: BTreeSet::new(),
        };
        if len > 0 {
            empty.insert_free(0, len);
        }
        empty
    }

    /// Allocates `len` bytes at a multiple of `align` and returns their offset.
    ///
    /// Returns `None` if no free range is large enough, or if `len` is zero.
    ///
    /// # Panics
    /// If `align` is not a power of two.
    pub fn allocate(&mut self, len: u64, align: u64) -> Option<u64> {
        assert!(align.is_power_of_two(), "alignment {align} is not a power of two");
        if len == 0 {
            return None;
        }
        let (hole_len, hole, offset) =
            self.by_len.range((len, 0)..).find_map(|&(size, start)| {
                let offset = start.checked_next_multiple_of(align)?;
                (offset - start <= size - len).then_some((size, start, offset))
            })?;
        self.remove_free(hole, hole_len);
        if offset > hole {
            self.insert_free(hole, offset - hole);
        }
        let (end, hole_end) = (offset + len, hole + hole_len);
        if end < hole_end {
            self.insert_free(end, hole_end - end);
        }
        self.taken.insert(offset, len);
        self.used += len;
        Some(offset)
    }

    /// Frees the range that [`allocate`](Self::allocate) returned at `offset`.
    ///
    /// # Panics
    /// If nothing is allocated at `offset`: a slot was freed twice.
    pub fn free(&mut self, offset: u64) {
        let Some(len) = self.taken.remove(&offset) else {
            panic!("offset {offset} is freed but not allocated (extent of {} bytes)", self.len);
        };
        self.used -= len;
        let (mut start, mut end) = (offset, offset + len);
        if let Some((&before, &before_len)) = self.free.range(..start).next_back()
            && before + before_len == start
        {
            self.remove_free(before, before_len);
            start = before;
        }
        if let Some(&after_len) = self.free.get(&end) {
            self.remove_free(end, after_len);
            end += after_len;
        }
        self.insert_free(start, end - start);
    }

    /// Bytes currently allocated.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Length of the longest free range.
    pub fn largest_free(&self) -> u64 {
        self.by_len.last().map_or(0, |&(len, _)| len)
    }

    /// Whether nothing is allocated.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    fn insert_free(&mut self, offset: u64, len: u64) {
        self.free.insert(offset, len);
        self.by_len.insert((len, offset));
    }

    fn remove_free(&mut self, offset: u64, len: u64) {
        self.free.remove(&offset);
        self.by_len.remove(&(len, offset));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tightest_hole_is_taken() {
        let mut alloc = Allocator::new(1000);
        let at: Vec<u64> =
            [300, 10, 100, 10, 580].iter().map(|&len| alloc.allocate(len, 1).unwrap()).collect();
        alloc.free(at[0]);
        alloc.free(at[2]);
        assert_eq!(alloc.allocate(90, 1), Some(at[2]));
        assert_eq!(alloc.largest_free(), 300);
    }

    #[test]
    fn nothing_wraps_at_the_end_of_u64() {
        let mut alloc = Allocator::new(u64::MAX);
        assert_eq!(alloc.allocate(5 << 32, 4096), Some(0));
        assert_eq!(alloc.allocate(u64::MAX, 1), None);
        assert_eq!(alloc.allocate(1, 1 << 63), Some(1 << 63));
        assert_eq!(alloc.allocate(1 << 63, 1 << 63), None);
        assert_eq!(alloc.allocate(0, 1), None);
        assert_eq!(Allocator::new(0).allocate(1, 1), None);
    }

    #[test]
    #[should_panic(expected = "offset 0 is freed but not allocated")]
    fn freeing_twice_is_a_bug() {
        let mut alloc = Allocator::new(64);
        let offset = alloc.allocate(8, 8).unwrap();
        alloc.free(offset);
        alloc.free(offset);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate { len: u64, align_log2: u32 },
        Free { pick: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u64..400, 0u32..8).prop_map(|(len, align_log2)| Step::Allocate { len, align_log2 }),
            any::<usize>().prop_map(|pick| Step::Free { pick }),
        ]
    }

    /// Computes the free ranges from the allocated ones, coalesced.
    fn gaps(len: u64, taken: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
        let mut gaps = BTreeMap::new();
        let mut at = 0;
        for (&offset, &size) in taken {
            if offset > at {
                gaps.insert(at, offset - at);
            }
            at = offset + size;
        }
        if at < len {
            gaps.insert(at, len - at);
        }
        gaps
    }

    proptest! {
        /// No overlap, exact accounting, full coalescing, and `None` only if nothing fits.
        #[test]
        fn behaves_like_a_list_of_ranges(len in 0u64..4000, steps in prop::collection::vec(step(), 0..120)) {
            let mut alloc = Allocator::new(len);
            let mut model = BTreeMap::<u64, u64>::new();
            for step in steps {
                match step {
                    Step::Allocate { len: want, align_log2 } => {
                        let align = 1 << align_log2;
                        let fits = gaps(len, &model)
                            .iter()
                            .any(|(start, size)| start.next_multiple_of(align) + want <= start + size);
                        let got = alloc.allocate(want, align);
                        prop_assert_eq!(got.is_some(), fits);
                        if let Some(offset) = got {
                            prop_assert_eq!(offset % align, 0);
                            prop_assert!(offset + want <= len);
                            for (&other, &size) in &model {
                                prop_assert!(offset + want <= other || other + size <= offset);
                            }
                            model.insert(offset, want);
                        }
                    }
                    Step::Free { pick } if !model.is_empty() => {
                        let offset = *model.keys().nth(pick % model.len()).unwrap();
                        model.remove(&offset);
                        alloc.free(offset);
                    }
                    Step::Free { .. } => {}
                }
                let free = gaps(len, &model);
                prop_assert_eq!(&alloc.free, &free);
                prop_assert_eq!(alloc.used(), model.values().sum::<u64>());
                prop_assert_eq!(alloc.largest_free(), free.values().max().copied().unwrap_or(0));
                prop_assert_eq!(alloc.is_empty(), model.is_empty());
            }
            for offset in model.into_keys() {
                alloc.free(offset);
            }
            prop_assert_eq!(alloc.largest_free(), len);
        }
    }
}

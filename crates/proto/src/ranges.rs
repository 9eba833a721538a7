//! Sets of byte ranges: the bytes of a copy that are ready, or still missing.
//!
//! A set does not depend on blocks, objects or the total size. A caller that needs a bound passes
//! it.

use alloc::vec::Vec;
use core::{fmt, iter, ops::Range};

/// A set of bytes, stored as sorted, disjoint, half-open runs that are not empty. Most copies grow
/// from the front, so a set usually has one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    runs: Vec<Range<u64>>,
}

impl Ranges {
    /// The empty set.
    pub const fn new() -> Self {
        Self { runs: Vec::new() }
    }

    /// The bytes `0..len`.
    pub fn full(len: u64) -> Self {
        iter::once(0..len).collect()
    }

    /// Adds the bytes of `range`.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Runs that only touch the range are joined with it, otherwise one stretch would appear as
        // two.
        let first = self.runs.partition_point(|run| run.end < range.start);
        let after = self.runs.partition_point(|run| run.start <= range.end);
        let joined = match self.runs[first..after] {
            [] => range,
            [ref only] => range.start.min(only.start)..range.end.max(only.end),
            [ref low, .., ref high] => range.start.min(low.start)..range.end.max(high.end),
        };
        self.runs.splice(first..after, [joined]);
    }

    /// Removes the bytes of `range`.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.runs.partition_point(|run| run.end <= range.start);
        let after = self.runs.partition_point(|run| run.start < range.end);
        if first == after {
            return;
        }
        let before = self.runs[first].start..range.start;
        let behind = range.end..self.runs[after - 1].end;
        self.runs
            .splice(first..after, [before, behind].into_iter().filter(|rest| !rest.is_empty()));
    }

    /// Whether every byte of `range` is in the set; true for an empty range.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        let reaching = self.runs.partition_point(|run| run.end < range.end);
        range.is_empty() || self.runs.get(reaching).is_some_and(|run| run.start <= range.start)
    }

    /// Whether no byte is in the set.
    pub const fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Length of the run that starts at byte 0; 0 without one.
    pub fn prefix(&self) -> u64 {
        self.runs.first().filter(|run| run.start == 0).map_or(0, |run| run.end)
    }

    /// The runs, in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + ExactSizeIterator {
        self.runs.iter().cloned()
    }

    /// The bytes of `0..len` that are not in the set.
    pub fn complement(&self, len: u64) -> Self {
        let mut missing = Self::full(len);
        for run in &self.runs {
            missing.remove(run.clone());
        }
        missing
    }

    /// The bytes that are in both sets.
    pub fn intersect(&self, other: &Self) -> Self {
        let mut runs = Vec::new();
        let (mut ours, mut theirs) = (self.runs.iter().peekable(), other.runs.iter().peekable());
        while let (Some(left), Some(right)) = (ours.peek(), theirs.peek()) {
            let common = left.start.max(right.start)..left.end.min(right.end);
            if left.end <= right.end {
                ours.next();
            } else {
                theirs.next();
            }
            if !common.is_empty() {
                runs.push(common);
            }
        }
        Self { runs }
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<T: IntoIterator<Item = Range<u64>>>(ranges: T) -> Self {
        let mut set = Self::new();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.runs.is_empty() {
            return f.write_str("nothing");
        }
        for (index, run) in self.runs.iter().enumerate() {
            write!(f, "{}{}..{}", if index == 0 { "" } else { ", " }, run.start, run.end)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;

    impl Ranges {
        fn covers(&self, other: &Self) -> bool {
            other.runs.iter().all(|run| self.contains(run))
        }

        fn total(&self) -> u64 {
            self.runs.iter().map(|run| run.end - run.start).sum()
        }
    }

    /// Number of bytes in the model: few, so that random ranges meet, touch and contain each other.
    const MODEL_BYTES: u64 = 24;

    #[derive(Clone, Debug)]
    enum Change {
        Insert(Range<u64>),
        Remove(Range<u64>),
    }

    fn any_range() -> impl Strategy<Value = Range<u64>> {
        // Includes reversed ranges, which are empty.
        (0..=MODEL_BYTES, 0..=MODEL_BYTES).prop_map(|(start, end)| start..end)
    }

    fn any_changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            2 => any_range().prop_map(Change::Insert),
            1 => any_range().prop_map(Change::Remove),
        ];
        prop::collection::vec(change, 0..12)
    }

    fn bits(range: &Range<u64>) -> u64 {
        range.clone().fold(0, |bits, byte| bits | 1 << byte)
    }

    /// Whether the runs are sorted, disjoint and not empty.
    fn is_valid(set: &Ranges) -> bool {
        set.runs.iter().all(|run| run.start < run.end)
            && set.runs.is_sorted_by(|low, high| low.end < high.start)
    }

    fn apply(changes: &[Change]) -> (Ranges, u64) {
        let (mut set, mut model) = (Ranges::new(), 0);
        for change in changes {
            match change {
                Change::Insert(range) => {
                    set.insert(range.clone());
                    model |= bits(range);
                }
                Change::Remove(range) => {
                    set.remove(range.clone());
                    model &= !bits(range);
                }
            }
            assert!(is_valid(&set), "{set:?}");
            assert_eq!(model_of(&set), model, "{set:?} after {change:?}");
        }
        (set, model)
    }

    fn model_of(set: &Ranges) -> u64 {
        set.iter().fold(0, |model, run| model | bits(&run))
    }

    proptest! {
        /// Goal: a set contains the inserted bytes without the removed ones. Method: compare with a
        /// bitmap.
        #[test]
        fn a_set_agrees_with_a_bitmap(
            changes in any_changes(),
            others in any_changes(),
            range in any_range(),
            len in 0..=MODEL_BYTES,
        ) {
            let (set, model) = apply(&changes);
            let (other, other_model) = apply(&others);
            prop_assert_eq!(set.contains(&range), model & bits(&range) == bits(&range));
            prop_assert_eq!(set.covers(&other), model & other_model == other_model);
            prop_assert_eq!(set.is_empty(), model == 0);
            prop_assert_eq!(set.total(), u64::from(model.count_ones()));
            prop_assert_eq!(set.prefix(), u64::from(model.trailing_ones()));
            prop_assert_eq!(set == other, model == other_model);

            let common = set.intersect(&other);
            prop_assert!(is_valid(&common));
            prop_assert_eq!(model_of(&common), model & other_model);

            let missing = set.complement(len);
            prop_assert!(is_valid(&missing));
            prop_assert_eq!(model_of(&missing), bits(&(0..len)) & !model);

            prop_assert_eq!(&set.iter().rev().collect::<Ranges>(), &set);
        }
    }

    #[test]
    fn the_last_byte_of_the_address_space_is_a_byte() {
        let mut set = Ranges::full(u64::MAX);
        assert_eq!(set.total(), u64::MAX);
        set.remove(5..u64::MAX - 1);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0..5, u64::MAX - 1..u64::MAX]);
        assert_eq!(set.complement(u64::MAX).total(), u64::MAX - 6);
    }

    #[test]
    fn display_lists_the_runs() {
        assert_eq!([7..9, 0..4].into_iter().collect::<Ranges>().to_string(), "0..4, 7..9");
        assert_eq!(Ranges::full(0).to_string(), "nothing");
    }
}

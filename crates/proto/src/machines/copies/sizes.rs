//! Sums over all copies that wait for at most a given size: the first of them, and their total.
//!
//! A tree over the hexadecimal digits of sizes: a query and a change each visit at most 16 of its
//! nodes per digit, however many copies wait and however many sizes there are. Knows sizes and
//! tickets; does not know who waits, nor for what.

use alloc::collections::BTreeMap;

const DIGIT_BITS: u32 = 4;
const DIGITS: u32 = u64::BITS / DIGIT_BITS;

/// A sum over the copies that wait for some sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    /// The lowest ticket among them, and its size.
    pub(crate) first: (u64, u64),
    pub(crate) bytes: u64,
}

impl Sum {
    fn with(self, other: Self) -> Self {
        let first = self.first.min(other.first);
        Self { first, bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// The sums of all sizes with the same leading digits; the key is the number of omitted digits, and
/// the leading digits.
#[derive(Debug, Default)]
pub(crate) struct Sizes(BTreeMap<(u32, u64), Sum>);

impl Sizes {
    /// Sets the sum of one size; `None` if no copy waits for it any more.
    pub(crate) fn set(&mut self, size: u64, sum: Option<Sum>) {
        self.put((0, size), sum);
        for left_out in 1..DIGITS {
            let begin = size >> (left_out * DIGIT_BITS);
            let first = begin << DIGIT_BITS;
            let last = first | ((1 << DIGIT_BITS) - 1);
            let parts = self.0.range((left_out - 1, first)..=(left_out - 1, last));
            let sum = parts.map(|(_, sum)| *sum).reduce(Sum::with);
            self.put((left_out, begin), sum);
        }
    }

    fn put(&mut self, key: (u32, u64), sum: Option<Sum>) {
        match sum {
            Some(sum) => drop(self.0.insert(key, sum)),
            None => drop(self.0.remove(&key)),
        }
    }

    /// The sum of all sizes up to this one; `None` if no copy waits for so little.
    pub(crate) fn within(&self, size: u64) -> Option<Sum> {
        if self.0.is_empty() {
            return None;
        }
        let itself = self.0.get(&(0, size)).copied();
        let below = (0..DIGITS).flat_map(|left_out| {
            let end = size >> (left_out * DIGIT_BITS);
            // Sizes that first differ from it in this digit.
            let begin = end >> DIGIT_BITS << DIGIT_BITS;
            self.0.range((left_out, begin)..(left_out, end)).map(|(_, sum)| *sum)
        });
        below.chain(itself).reduce(Sum::with)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sums_are_those_of_all_that_wait(
            changes in prop::collection::vec((size(), prop::option::weighted(0.7, 0..50_u64)), 1..40),
            asked in prop::collection::vec(size(), 1..20),
        ) {
            let (mut sizes, mut all) = (Sizes::default(), BTreeMap::new());
            for (size, ticket) in changes {
                let sum = ticket.map(|ticket| Sum { first: (ticket, size), bytes: size });
                sizes.set(size, sum);
                all.remove(&size);
                all.extend(sum.map(|sum| (size, sum)));
            }
            let most = all.keys().copied();
            for size in asked.into_iter().chain(most) {
                let within = all.range(..=size).map(|(_, sum)| *sum).reduce(Sum::with);
                prop_assert_eq!(sizes.within(size), within);
            }
            all.into_keys().for_each(|size| sizes.set(size, None));
            prop_assert!(sizes.0.is_empty());
        }
    }

    fn size() -> impl Strategy<Value = u64> {
        prop_oneof![0..40_u64, (0..64_u32).prop_map(|bits| 1 << bits), any::<u64>()]
    }
}

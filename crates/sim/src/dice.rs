//! Chance, all of it out of one seed.

use rand_pcg::{
    Pcg64,
    rand_core::{Rng, SeedableRng},
};

/// The only source of chance in a simulation.
#[derive(Debug)]
pub(crate) struct Dice(Pcg64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg64::seed_from_u64(seed))
    }

    /// A number from 0 to `bound - 1`; 0 if there is none.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The bias of a remainder is of no concern with bounds far below 2^64.
        self.0.next_u64() % bound.max(1)
    }

    /// A number from `low` to `high`, both of them included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `items`; none if there is none.
    pub(crate) fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        items.get(self.below(items.len() as u64) as usize).cloned()
    }

    /// Any order is as likely as any other.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

//! Generates all random decisions from one seed.

use rand_pcg::{
    Pcg64,
    rand_core::{Rng, SeedableRng},
};

/// The only source of randomness in a simulation.
#[derive(Debug)]
pub(crate) struct Dice(Pcg64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg64::seed_from_u64(seed))
    }

    /// Returns a number from 0 to `bound - 1`, or 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The modulo bias is irrelevant for bounds far below 2^64.
        self.0.next_u64() % bound.max(1)
    }

    /// Returns a number from `low` to `high`, inclusive.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Returns true with a probability of `percent`.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of `items`, or `None` if there are none.
    pub(crate) fn pick<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        items.get(self.below(items.len() as u64) as usize).cloned()
    }

    /// Shuffles the items; all permutations are equally likely.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

//! Counts of copies by state, kept as copies change. Does not know which copies there are.

use super::copy::{Copy, Residency, State};

/// The states of a copy, as clients see them.
const STATES: [&str; 6] = ["filling", "flowing", "folding", "complete", "spilled", "returning"];

/// The index of [`Copy::state_name`] for copies that come back from disk.
const RETURNING: usize = 5;

/// Number and bytes of the copies in each state, and the number of pinned copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    states: [(u64, u64); STATES.len()],
    pinned: u64,
}

/// What the census counts of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    state: usize,
    bytes: u64,
    pinned: bool,
}

impl Copy {
    /// Its state, as clients see it.
    pub fn state_name(&self) -> &'static str {
        STATES[self.state_number()]
    }

    /// The index of its state in [`STATES`].
    const fn state_number(&self) -> usize {
        match self.state {
            State::Filling(_) => 0,
            State::Arriving => 1,
            State::Folding => 2,
            State::Complete => match self.residency {
                Residency::Memory => 3,
                Residency::Disk => 4,
                Residency::Pending | Residency::Restoring(_) => RETURNING,
            },
        }
    }

    pub(super) const fn counted(&self) -> Counted {
        Counted { state: self.state_number(), bytes: self.meta.size, pinned: self.pinned }
    }
}

impl Census {
    /// Counts these copies.
    pub fn of<'a>(copies: impl Iterator<Item = &'a Copy>) -> Self {
        let mut census = Self::default();
        copies.for_each(|copy| census.add(copy.counted()));
        census
    }

    /// Number and bytes of the copies in each state.
    pub fn states(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        STATES.into_iter().zip(self.states).map(|(name, (objects, bytes))| (name, objects, bytes))
    }

    /// Number of pinned copies.
    pub const fn pinned(&self) -> u64 {
        self.pinned
    }

    /// Number of copies that come back from disk.
    pub(crate) const fn returning(&self) -> u64 {
        self.states[RETURNING].0
    }

    pub(super) fn add(&mut self, Counted { state, bytes: size, pinned }: Counted) {
        let (objects, bytes) = &mut self.states[state];
        *objects += 1;
        *bytes = bytes.saturating_add(size);
        self.pinned += u64::from(pinned);
    }

    pub(super) fn remove(&mut self, Counted { state, bytes: size, pinned }: Counted) {
        let (objects, bytes) = &mut self.states[state];
        *objects -= 1;
        *bytes = bytes.saturating_sub(size);
        self.pinned -= u64::from(pinned);
    }
}

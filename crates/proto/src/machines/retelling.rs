//! How far new owners have been told of the copies here after changes of members.
//!
//! Does not know copies, nor what is told.

use alloc::vec::Vec;

use crate::{id::Instance, machines::change::Change, time::Instant};

/// Changes of which the owners of some copies have not been told.
#[derive(Debug, Default)]
pub(crate) struct Retelling {
    /// Those that the walk through the copies is about, and those that came since it began.
    changes: Vec<Change>,
    later: Vec<Change>,
    /// How far the walk has come.
    after: Option<Instance>,
    next_at: Instant,
}

impl Retelling {
    /// When the next slice is to be told.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (!self.changes.is_empty()).then_some(self.next_at)
    }

    /// All changes of which some owners have not been told.
    pub(crate) fn all(&self) -> [&[Change]; 2] {
        [&self.changes, &self.later]
    }

    /// The changes that the next slice is about, and the copy after which it begins.
    pub(crate) fn next(&self) -> (&[Change], Option<Instance>) {
        (&self.changes, self.after)
    }

    /// A change of members concerns all copies.
    pub(crate) fn note(&mut self, change: Change) {
        if self.after.is_some() {
            self.later.push(change);
        } else {
            self.changes.push(change);
        }
    }

    /// A slice of `most` copies was told of; whether there are more, the next one at a given time.
    pub(crate) fn told(&mut self, some: &[Instance], most: usize, next_at: Instant) {
        self.after = some.last().copied().filter(|_| some.len() == most);
        if self.after.is_none() {
            self.changes = core::mem::take(&mut self.later);
        }
        self.next_at = next_at;
    }
}

//! Progress of re-announcing local copies to new owners after membership changes.
//!
//! Does not know copies, nor the contents of announcements.

use alloc::vec::Vec;

use crate::{id::Instance, machines::membership_change::MembershipChange, time::Instant};

/// Membership changes after which some copies are not re-announced yet.
#[derive(Debug, Default)]
pub(crate) struct Reannouncements {
    /// The changes that the current walk through the copies handles, and those that came since it began.
    changes: Vec<MembershipChange>,
    later: Vec<MembershipChange>,
    /// The last copy that the walk has handled.
    after: Option<Instance>,
    next_at: Instant,
}

impl Reannouncements {
    /// When the next slice is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (!self.changes.is_empty()).then_some(self.next_at)
    }

    /// All changes after which some copies are not re-announced yet.
    pub(crate) fn all(&self) -> [&[MembershipChange]; 2] {
        [&self.changes, &self.later]
    }

    /// The changes that the next slice handles, and the copy after which it begins.
    pub(crate) fn next(&self) -> (&[MembershipChange], Option<Instance>) {
        (&self.changes, self.after)
    }

    /// Adds a membership change, which affects all copies.
    pub(crate) fn note(&mut self, change: MembershipChange) {
        if self.after.is_some() {
            self.later.push(change);
        } else {
            self.changes.push(change);
        }
    }

    /// Records that a slice of at most `most` copies is re-announced; the next one is due at `next_at`.
    pub(crate) fn advance(&mut self, some: &[Instance], most: usize, next_at: Instant) {
        self.after = some.last().copied().filter(|_| some.len() == most);
        if self.after.is_none() {
            self.changes = core::mem::take(&mut self.later);
        }
        self.next_at = next_at;
    }
}

//! Which copies may leave memory, and in which order: those that other nodes have too, then originals that are in a file;
//! of each the least recently used first. Does not know how much has to go, or what the shell does for it.

use alloc::collections::{BTreeMap, BTreeSet};

use super::copy::{Copy, Filed};
use crate::{
    id::Instance,
    planted::{self, Bug},
};

/// Which copies may go and which may not, so that neither the next of them nor what they take has to be looked for.
#[derive(Debug, Default)]
pub(super) struct Evictable {
    /// Copies that are had again elsewhere. No two copies have a last use in common.
    by_last_use: BTreeMap<u64, Instance>,
    /// Originals that are in memory and in a file.
    filed: BTreeMap<u64, Instance>,
    /// Bytes of all of these.
    pub(super) bytes: u64,
    /// Originals that could be written to a file, and their bytes.
    pub(super) unfiled: BTreeMap<u64, Instance>,
    pub(super) unfiled_bytes: u64,
    /// All that may not go now, by what they take.
    pub(super) held: BTreeSet<(u64, Instance)>,
}

/// Whether a copy may leave memory, and when it goes among those that do so alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Evictable(u64),
    Filed(u64),
    Unfiled(u64),
    Held,
}

impl Evictable {
    pub(super) fn insert(&mut self, instance: Instance, copy: &Copy) {
        let cost = copy.cost();
        match copy.turn() {
            Turn::Evictable(turn) => {
                self.by_last_use.insert(turn, instance);
                self.bytes += cost;
            }
            Turn::Filed(turn) => {
                self.filed.insert(turn, instance);
                self.bytes += cost;
            }
            Turn::Unfiled(turn) => {
                self.unfiled.insert(turn, instance);
                self.unfiled_bytes += cost;
                self.held.insert((cost, instance));
            }
            Turn::Held => drop(self.held.insert((cost, instance))),
        }
    }

    /// Takes a copy out that was put in when it had this turn.
    pub(super) fn remove(&mut self, instance: Instance, turn: Turn, cost: u64) {
        match turn {
            Turn::Evictable(turn) => {
                self.by_last_use.remove(&turn);
                self.bytes -= cost;
            }
            Turn::Filed(turn) => {
                self.filed.remove(&turn);
                self.bytes -= cost;
            }
            Turn::Unfiled(turn) => {
                self.unfiled.remove(&turn);
                self.unfiled_bytes -= cost;
                self.held.remove(&(cost, instance));
            }
            Turn::Held => drop(self.held.remove(&(cost, instance))),
        }
    }

    pub(super) fn least_recently_used(&self) -> Option<Instance> {
        self.by_last_use.first_key_value().map(|(_, instance)| *instance)
    }

    pub(super) fn least_recently_used_on_disk(&self) -> Option<Instance> {
        self.filed.first_key_value().map(|(_, instance)| *instance)
    }
}

impl Copy {
    /// When it goes among those that may, if it may.
    pub(super) fn turn(&self) -> Turn {
        let is_read = self.pins > 0 && !planted::has(Bug::EvictsWhatIsRead);
        if !self.is_readable() || is_read {
            return Turn::Held;
        }
        match (self.origin, self.filed) {
            (false, _) if self.holds > 0 => Turn::Held,
            (false, _) => Turn::Evictable(self.last_use),
            // The few bytes of a small one stay.
            (true, _) if self.inline.is_some() || self.doomed => Turn::Held,
            (true, Filed::Written) => Turn::Filed(self.last_use),
            (true, Filed::No) => Turn::Unfiled(self.last_use),
            (true, Filed::Writing) => Turn::Held,
        }
    }
}

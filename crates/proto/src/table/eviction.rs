//! Order of eviction: cached copies, then pinned copies that are in a file; least recently used first within each. How
//! many bytes to evict is decided elsewhere.

use alloc::collections::{BTreeMap, BTreeSet};

use super::copy::{Copy, Filed};
use crate::{
    id::Instance,
    planted::{self, Bug},
};

/// Copies that may and may not be evicted, indexed so that the next one and the total bytes need no search.
#[derive(Debug, Default)]
pub(super) struct Evictable {
    /// Cached copies. No two copies have the same last use.
    by_last_use: BTreeMap<u64, Instance>,
    /// Pinned copies that are in memory and in a file.
    filed: BTreeMap<u64, Instance>,
    /// Bytes of all of these.
    pub(super) bytes: u64,
    /// Pinned copies that could be written to a file, and their bytes.
    pub(super) unfiled: BTreeMap<u64, Instance>,
    pub(super) unfiled_bytes: u64,
    /// All copies that may not be evicted now, by cost.
    pub(super) held: BTreeSet<(u64, Instance)>,
}

/// Whether a copy may leave memory, and its rank within its kind.
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

    /// Removes a copy that was inserted with this turn.
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
    /// Whether the copy may leave memory, and its rank.
    pub(super) fn turn(&self) -> Turn {
        let is_read = self.pins > 0 && !planted::has(Bug::EvictsWhatIsRead);
        if !self.is_readable() || is_read {
            return Turn::Held;
        }
        match (self.origin, self.filed) {
            (false, _) if self.holds > 0 => Turn::Held,
            (false, _) => Turn::Evictable(self.last_use),
            // Inline bytes stay in memory: they are few.
            (true, _) if self.inline.is_some() || self.doomed => Turn::Held,
            (true, Filed::Written) => Turn::Filed(self.last_use),
            (true, Filed::No) => Turn::Unfiled(self.last_use),
            (true, Filed::Writing) => Turn::Held,
        }
    }
}

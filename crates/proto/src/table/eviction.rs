//! Order of eviction: cached copies, then pinned copies that are in a file; least recently used
//! first within each. How many bytes to evict is decided elsewhere.

use alloc::collections::{BTreeMap, BTreeSet};

use super::copy::{Copy, FileState};
use crate::{
    id::Instance,
    mutants::{self, Mutant},
};

/// Copies that may and may not be evicted, indexed so that the next one and the total bytes need no
/// search.
#[derive(Debug, Default)]
pub(super) struct Evictable {
    /// Cached copies. No two copies have the same last use.
    by_last_use: BTreeMap<u64, Instance>,
    /// Pinned copies that are in memory and in a file.
    with_file: BTreeMap<u64, Instance>,
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
pub(super) enum EvictionRank {
    Evictable(u64),
    Filed(u64),
    Unfiled(u64),
    Held,
}

impl Evictable {
    pub(super) fn insert(&mut self, instance: Instance, copy: &Copy) {
        let cost = copy.cost();
        match copy.eviction_rank() {
            EvictionRank::Evictable(turn) => {
                self.by_last_use.insert(turn, instance);
                self.bytes += cost;
            }
            EvictionRank::Filed(turn) => {
                self.with_file.insert(turn, instance);
                self.bytes += cost;
            }
            EvictionRank::Unfiled(turn) => {
                self.unfiled.insert(turn, instance);
                self.unfiled_bytes += cost;
                self.held.insert((cost, instance));
            }
            EvictionRank::Held => drop(self.held.insert((cost, instance))),
        }
    }

    /// Removes a copy that was inserted with this turn.
    pub(super) fn remove(&mut self, instance: Instance, turn: EvictionRank, cost: u64) {
        match turn {
            EvictionRank::Evictable(turn) => {
                self.by_last_use.remove(&turn);
                self.bytes -= cost;
            }
            EvictionRank::Filed(turn) => {
                self.with_file.remove(&turn);
                self.bytes -= cost;
            }
            EvictionRank::Unfiled(turn) => {
                self.unfiled.remove(&turn);
                self.unfiled_bytes -= cost;
                self.held.remove(&(cost, instance));
            }
            EvictionRank::Held => drop(self.held.remove(&(cost, instance))),
        }
    }

    pub(super) fn least_recently_used(&self) -> Option<Instance> {
        self.by_last_use.first_key_value().map(|(_, instance)| *instance)
    }

    pub(super) fn least_recently_used_on_disk(&self) -> Option<Instance> {
        self.with_file.first_key_value().map(|(_, instance)| *instance)
    }
}

impl Copy {
    /// Whether the copy may leave memory, and its rank.
    pub(super) fn eviction_rank(&self) -> EvictionRank {
        let is_read = self.readers > 0 && !mutants::is_active(Mutant::EvictsCopiesInUse);
        if !self.is_readable() || is_read {
            return EvictionRank::Held;
        }
        match (self.pinned, self.file_state) {
            (false, _) if self.expected_readers > 0 => EvictionRank::Held,
            (false, _) => EvictionRank::Evictable(self.last_use),
            // Inline bytes stay in memory: they are few.
            (true, _) if self.inline.is_some() || self.doomed => EvictionRank::Held,
            (true, FileState::Written) => EvictionRank::Filed(self.last_use),
            (true, FileState::No) => EvictionRank::Unfiled(self.last_use),
            (true, FileState::Unwritable | FileState::Writing(_)) => EvictionRank::Held,
        }
    }
}

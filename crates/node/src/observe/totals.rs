//! Counters that the status of a node does not have.

use serde::Serialize;

use super::events::CHOICES;

/// How members changed, by the state of their events.
pub(super) const MEMBERSHIPS: [&str; 7] =
    ["joined", "left", "failed", "reconnected", "suspected", "trusted", "barred"];

/// Counters since the start of the node.
#[derive(Debug, Default, Serialize)]
pub(super) struct Totals {
    pub(super) puts: u64,
    pub(super) deletes: u64,
    pub(super) gets_waited: u64,
    pub(super) serves_direct: u64,
    pub(super) serves_relayed: u64,
    pub(super) fetches_resumed: u64,
    pub(super) reduces: u64,
    pub(super) reduces_ring: u64,
    pub(super) folds: u64,
    pub(super) folds_failed: u64,
    pub(super) spilled_bytes: u64,
    pub(super) unspilled_bytes: u64,
    #[serde(skip)]
    pub(super) choices: [u64; CHOICES.len()],
    #[serde(skip)]
    pub(super) memberships: [u64; MEMBERSHIPS.len()],
}

impl Totals {
    pub(super) fn member(&mut self, state: &str) {
        if let Some(index) = MEMBERSHIPS.iter().position(|name| *name == state) {
            self.memberships[index] += 1;
        }
    }
}

//! Counters that the status of a node does not have.

use super::{events::CHOICES, json::Json};

/// How members changed, by the state of their events.
pub(super) const MEMBERSHIPS: [&str; 7] =
    ["joined", "left", "failed", "reconnected", "suspected", "trusted", "barred"];

/// Counters since the start of the node.
#[derive(Debug, Default)]
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
    pub(super) choices: [u64; CHOICES.len()],
    pub(super) memberships: [u64; MEMBERSHIPS.len()],
}

impl Totals {
    pub(super) fn member(&mut self, state: &str) {
        if let Some(index) = MEMBERSHIPS.iter().position(|name| *name == state) {
            self.memberships[index] += 1;
        }
    }

    pub(super) fn write(&self, json: &mut Json, events: u64) {
        json.key("totals").object(|json| {
            json.number("puts", self.puts);
            json.number("deletes", self.deletes);
            json.number("gets_waited", self.gets_waited);
            json.number("serves_direct", self.serves_direct);
            json.number("serves_relayed", self.serves_relayed);
            json.number("fetches_resumed", self.fetches_resumed);
            json.number("reduces", self.reduces);
            json.number("reduces_ring", self.reduces_ring);
            json.number("folds", self.folds);
            json.number("folds_failed", self.folds_failed);
            json.number("spilled_bytes", self.spilled_bytes);
            json.number("unspilled_bytes", self.unspilled_bytes);
            json.number("events", events);
        });
        json.key("choices").object(|json| write_all(json, &CHOICES, &self.choices));
        json.key("memberships").object(|json| write_all(json, &MEMBERSHIPS, &self.memberships));
    }
}

fn write_all(json: &mut Json, names: &[&str], counts: &[u64]) {
    names.iter().zip(counts).for_each(|(name, count)| json.number(name, *count));
}

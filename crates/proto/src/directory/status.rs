//! Reports about the directory: for its node, for the status command, and for checkers.

use alloc::vec::Vec;

use super::{entry::Entry, questions::Kind, state::Directory};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    members::Members,
};

impl Directory {
    /// Whether a node waits for an object that does not exist yet.
    pub fn is_awaited(&self, id: &ObjectId, by: NodeId) -> bool {
        let Some(entry) = self.entries.get(id) else { return false };
        entry.open_of(Kind::Source, by).next().is_some() && !self.entries.is_void(entry, by)
    }

    /// Why an object cannot come any more, if that is remembered.
    pub fn why_gone(&self, id: &ObjectId) -> Option<Error> {
        Some(self.entries.get(id)?.tombstone.as_ref()?.error(id))
    }

    /// Bytes of other members' small objects that are stored here, and the limit.
    pub fn inline_bytes(&self) -> (u64, u64) {
        self.accounts.bytes()
    }

    /// Limits the entries for objects of other members.
    #[cfg(test)]
    pub(crate) fn limit_entries(&mut self, most: u64) {
        self.accounts = super::accounts::Accounts::new(u64::MAX, most);
    }

    /// Returns the limits that rejected input since the last call, each with the member.
    pub fn take_limited(&mut self) -> Vec<(NodeId, &'static str)> {
        core::mem::take(&mut self.limited)
    }

    /// The number of live objects and of those whose loss is not reported yet.
    pub fn len(&self) -> usize {
        self.recorded.len()
    }

    /// The same by counting the entries; for checkers.
    pub fn recount(&self) -> usize {
        self.entries.iter().filter(|(_, entry)| entry.live.is_some()).count()
    }

    /// The objects that are recorded here; for checkers.
    pub fn live(&self) -> impl Iterator<Item = (&ObjectId, Instance)> {
        self.entries.iter().filter_map(|(id, entry)| Some((id, entry.live.as_ref()?.instance)))
    }

    /// Whether a name is reserved; for checkers.
    pub fn is_reserved(&self, id: &ObjectId) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.reserved.is_some())
    }

    /// The number of nodes that are not members but have records about their rates; for checkers.
    pub fn strangers(&self, members: &Members) -> usize {
        self.speeds.strangers(members)
    }

    /// The number of waiting requests; for checkers. Requests that arrived before a membership
    /// change, or while the members did not agree, may remain at nodes that are not owners; they
    /// are not counted.
    pub fn questions(&self, members: &Members) -> usize {
        let of = |(id, entry): (&ObjectId, &Entry)| {
            let owners = members.owners(id);
            let count = |kind| entry.open(kind).count();
            let is_primary_owner = owners.primary == members.me();
            let waiting = if is_primary_owner { count(Kind::Source) } else { 0 };
            let listening = [Kind::Watch, Kind::Locations, Kind::Latest].map(count);
            let listening: usize = listening.iter().sum();
            if owners.contains(members.me()) { waiting + listening } else { 0 }
        };
        self.entries.iter().map(of).sum()
    }

    /// The number of names reserved for reduces; for checkers.
    pub fn reservations(&self) -> usize {
        self.entries.iter().filter(|(_, entry)| entry.reserved.is_some()).count()
    }

    /// Whether `len` is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The holders of a live object; for checkers.
    pub fn holders(&self, id: &ObjectId) -> Vec<NodeId> {
        let Some(entry) = self.entries.get(id) else { return Vec::new() };
        let holders = entry.live.iter().flat_map(|live| live.tree.nodes());
        holders.filter(|node| !self.entries.is_void(entry, *node)).collect()
    }

    /// The source of each partial copy of each object; for checkers.
    pub fn sources(&self) -> impl Iterator<Item = (&ObjectId, NodeId, NodeId)> {
        self.entries.iter().flat_map(|(id, entry)| {
            let trees = entry.live.iter().map(|live| &live.tree);
            let edges = trees.flat_map(|tree| tree.nodes().map(|node| (node, tree.source(node))));
            edges.filter_map(move |(node, source)| Some((id, node, source?)))
        })
    }
}

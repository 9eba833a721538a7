//! What a directory says of itself: to its node, to those who look at its status, and to checkers.

use alloc::vec::Vec;

use super::{
    entry::Asking,
    names::prefix_owner,
    state::{Directory, LatestWaiter},
};
use crate::{
    error::Error,
    id::{NodeId, ObjectId},
    members::Members,
};

impl Directory {
    /// Whether a node has asked for an object that is not there yet.
    pub fn is_awaited(&self, id: &ObjectId, by: NodeId) -> bool {
        let Some(entry) = self.entries.get(id) else { return false };
        let asks = |asking: &Asking| asking.waiters.iter().any(|waiter| waiter.node == by);
        entry.asking().is_some_and(asks) && !self.entries.is_void(entry, by)
    }

    /// Why an object can't come, if that is remembered.
    pub fn why_gone(&self, id: &ObjectId) -> Option<Error> {
        Some(self.entries.get(id)?.gone.as_ref()?.error(id))
    }

    /// Bytes of small objects of other members that are kept here, and that may be.
    pub fn small_bytes(&self) -> (u64, u64) {
        self.accounts.bytes()
    }

    /// Keeps so many entries of objects that other members tell of.
    #[cfg(test)]
    pub(crate) fn limit_entries(&mut self, most: u64) {
        self.accounts = super::accounts::Accounts::new(u64::MAX, most);
    }

    /// The limits that have turned away what members said since this was last asked, each with the member.
    pub fn take_limited(&mut self) -> Vec<(NodeId, &'static str)> {
        core::mem::take(&mut self.limited)
    }

    /// How many objects are known to exist.
    pub fn len(&self) -> usize {
        self.entries.iter().filter(|(_, entry)| entry.is_alive()).count()
    }

    /// How many nodes that are no members are remembered for their pace; for checkers.
    pub fn strangers(&self, members: &Members) -> usize {
        self.speeds.strangers(members)
    }

    /// What others wait for or listen to here; for checkers. Questions that came here before a change of members, or while
    /// the members did not agree, may stay where no member asks any more.
    pub fn questions(&self, members: &Members) -> usize {
        let of = |(id, asking): (&ObjectId, &Asking)| {
            let owners = members.owners(id);
            let is_first = owners.first == members.me();
            let waiting = if is_first { asking.waiters.len() } else { 0 };
            let listening = asking.watchers.len() + asking.locators.len();
            if owners.contains(members.me()) { waiting + listening } else { 0 }
        };
        let is_mine =
            |waiter: &&LatestWaiter| prefix_owner(&waiter.prefix, members) == Some(members.me());
        let latest = self.latest.iter().filter(is_mine).count();
        let asked = self.entries.iter().filter_map(|(id, entry)| Some((id, entry.asking()?)));
        latest + asked.map(of).sum::<usize>()
    }

    /// Names that are kept for reduces; for checkers.
    pub fn reservations(&self) -> usize {
        self.entries.iter().filter(|(_, entry)| entry.reserved.is_some()).count()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Who holds a living object; for checkers.
    pub fn holders(&self, id: &ObjectId) -> Vec<NodeId> {
        let Some(entry) = self.entries.get(id) else { return Vec::new() };
        let holders = entry.live.iter().flat_map(|live| live.tree.nodes());
        holders.filter(|node| !self.entries.is_void(entry, *node)).collect()
    }

    /// For each partial copy of each object, who feeds it; for checkers.
    pub fn feeds(&self) -> impl Iterator<Item = (&ObjectId, NodeId, NodeId)> {
        self.entries.iter().flat_map(|(id, entry)| {
            let trees = entry.live.iter().map(|live| &live.tree);
            let edges = trees.flat_map(|tree| tree.nodes().map(|node| (node, tree.source(node))));
            edges.filter_map(move |(node, source)| Some((id, node, source?)))
        })
    }
}

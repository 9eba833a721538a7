//! The entries of a directory, and the membership changes that are not applied to all of them yet.
//!
//! Each entry has the number of the last change that was applied to it. This module does not know
//! what a change does to an entry.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    vec::Vec,
};
use core::ops::{Bound, RangeBounds};

use serde::{Deserialize, Serialize};

use super::entry::Entry;
use crate::{
    id::{NodeId, ObjectId},
    members::Members,
};

/// How much one event of a membership change handles.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Slice {
    /// Visits of a walk: one lease, request, copy or entry each, with the owners of one object. 1
    /// to 2 us up to 64 members; in larger clusters, a visit counts as several. So does one that
    /// sends messages.
    pub entries: usize,
    /// Pause until the next slice, at least 1 ns.
    pub pause_ns: u64,
}

/// Members up to which a slice has its full number of entries: their owners are found among all
/// members.
const MEMBERS_OF_FULL_SLICES: usize = 64;

impl Slice {
    /// How many visits one event makes in a cluster of these members.
    pub(crate) fn of(self, members: &Members) -> usize {
        (self.entries / self.search(members)).max(1)
    }

    /// The work of a visit that sends nothing.
    pub(crate) fn search(self, members: &Members) -> usize {
        members.len().div_ceil(MEMBERS_OF_FULL_SLICES).max(1)
    }
}

impl Default for Slice {
    /// Slices of up to 1 ms; events that arrived meanwhile are handled in between.
    fn default() -> Self {
        Self { entries: 512, pause_ns: 1 }
    }
}

/// A membership change.
#[derive(Clone, Debug)]
pub(super) enum EntryChange {
    /// All announcements and requests of `node` are void. `members` are those right after that.
    Removed { node: NodeId, members: Arc<Members> },
    /// Objects have new owners, or a node has lost what was announced to it ([`OwnerChanges`]).
    Owners,
}

/// Changes of owners, as one.
#[derive(Clone, Debug)]
pub(super) struct OwnerChanges {
    /// The nodes that were a member after any of them: an owner among those was an owner after
    /// each.
    pub(super) members: Arc<Members>,
    /// Nodes that have lost what was announced to them.
    pub(super) rejoined: BTreeSet<NodeId>,
    /// The number of the last one.
    last: u32,
}

impl OwnerChanges {
    fn new(members: Arc<Members>) -> Self {
        Self { members, rejoined: BTreeSet::new(), last: 0 }
    }
}

/// The changes that are not applied to an entry yet.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The removed members, oldest first, each with the members right after that.
    pub(super) removed: Vec<(NodeId, Arc<Members>)>,
    /// Two at most. They may have changes that are applied already.
    pub(super) owners: Vec<Arc<OwnerChanges>>,
}

/// All entries, and the changes that are not applied to all of them yet.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Boxed, because the nodes of the tree have room for up to twice as many entries as they
    /// contain.
    all: BTreeMap<ObjectId, Box<Entry>>,
    /// Oldest first; the last one has the number `last`.
    changes: VecDeque<EntryChange>,
    last: u32,
    /// The changes of owners: those before the present walk of the entries, and those since.
    before_walk: Option<Arc<OwnerChanges>>,
    during_walk: Option<Arc<OwnerChanges>>,
}

impl Entries {
    pub(super) fn get(&self, id: &ObjectId) -> Option<&Entry> {
        self.all.get(id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: &ObjectId) -> Option<&mut Entry> {
        self.all.get_mut(id).map(Box::as_mut)
    }

    /// Returns the entry of an object; creates an empty one, to which all changes are applied, if
    /// it is missing.
    pub(super) fn open(&mut self, id: &ObjectId) -> &mut Entry {
        let new = || Box::new(Entry::new(self.last));
        self.all.entry(id.clone()).or_insert_with(new)
    }

    pub(super) fn remove(&mut self, id: &ObjectId) -> Option<Box<Entry>> {
        self.all.remove(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Entry)> {
        self.range(..)
    }

    pub(super) fn range(
        &self,
        ids: impl RangeBounds<ObjectId>,
    ) -> impl Iterator<Item = (&ObjectId, &Entry)> {
        self.all.range(ids).map(|(id, entry)| (id, entry.as_ref()))
    }

    /// The entry after another one, or the first.
    pub(super) fn next_after(&self, after: Option<&ObjectId>) -> Option<&ObjectId> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.all.range::<ObjectId, _>((begin, Bound::Unbounded)).next().map(|(id, _)| id)
    }

    /// The number of the last change.
    pub(super) const fn last_change(&self) -> u32 {
        self.last
    }

    /// The changes after the one with this number.
    pub(super) fn changes_since(&self, seen: u32) -> impl Iterator<Item = &EntryChange> {
        let count = self.changes.len().min(self.age(seen) as usize);
        self.changes.range(self.changes.len() - count..)
    }

    fn news(&self, entry: &Entry) -> impl Iterator<Item = &EntryChange> {
        self.changes_since(entry.changes_seen)
    }

    /// Whether a pending change makes void what an entry records of a node.
    pub(super) fn is_void(&self, entry: &Entry, of: NodeId) -> bool {
        self.news(entry)
            .any(|change| matches!(change, EntryChange::Removed { node, .. } if *node == of))
    }

    fn note(&mut self, change: EntryChange) {
        self.changes.push_back(change);
        self.last = self.last.wrapping_add(1);
    }

    /// Notes that a node is gone, or has lost its state.
    pub(super) fn note_removed(&mut self, node: NodeId, members: &Members) {
        self.note(EntryChange::Removed { node, members: Arc::new(members.clone()) });
    }

    /// Notes new owners: adds them to those since the last walk began.
    pub(super) fn note_owners(&mut self, rejoined: Option<NodeId>, members: &Members) {
        let mut changes = match (self.during_walk.take(), self.changes.back()) {
            (Some(changes), _) => Arc::unwrap_or_clone(changes),
            (None, Some(EntryChange::Removed { members, .. })) => {
                OwnerChanges::new(members.clone())
            }
            (None, _) => OwnerChanges::new(Arc::new(members.clone())),
        };
        for member in members.iter() {
            if !changes.members.contains(member.id) {
                Arc::make_mut(&mut changes.members).insert(member);
            }
        }
        self.note(EntryChange::Owners);
        changes.rejoined.extend(rejoined);
        changes.last = self.last;
        self.during_walk = Some(Arc::new(changes));
    }

    /// Returns the changes that are not applied to an entry yet, and marks them as applied.
    pub(super) fn take_news(&mut self, id: &ObjectId) -> News {
        let Some(entry) = self.all.get(id).filter(|entry| entry.changes_seen != self.last) else {
            return News::default();
        };
        let removed = |change: &EntryChange| match change {
            EntryChange::Removed { node, members } => Some((*node, members.clone())),
            EntryChange::Owners => None,
        };
        let removed = self.news(entry).filter_map(removed).collect();
        let age = self.age(entry.changes_seen);
        let is_new = |changes: &&Arc<OwnerChanges>| self.age(changes.last) < age;
        let owners = self.before_walk.iter().chain(&self.during_walk).filter(is_new);
        let news = News { removed, owners: owners.cloned().collect() };
        let last = self.last;
        if let Some(entry) = self.get_mut(id) {
            entry.changes_seen = last;
        }
        news
    }

    /// How many changes came after the one with this number.
    const fn age(&self, number: u32) -> u32 {
        self.last.wrapping_sub(number)
    }

    /// Forgets the changes up to this one: they are applied everywhere. The next walk applies the
    /// others.
    pub(super) fn forget_changes(&mut self, number: u32) {
        let later = self.changes.len().min(self.age(number) as usize);
        self.changes.drain(..self.changes.len() - later);
        let (last, age) = (self.last, self.age(number));
        let is_later = |changes: &mut Arc<OwnerChanges>| last.wrapping_sub(changes.last) < age;
        self.before_walk = self.before_walk.take_if(is_later);
        self.during_walk = self.during_walk.take_if(is_later);
        if self.before_walk.is_none() {
            self.before_walk = self.during_walk.take();
        }
    }

    /// Whether all changes are applied to all entries.
    pub(super) fn is_settled(&self) -> bool {
        self.changes.is_empty()
    }

    /// How often a visit finds the owners of an entry.
    #[cfg(test)]
    pub(super) fn pending_owners(&self) -> usize {
        self.before_walk.iter().chain(&self.during_walk).count()
    }
}

//! The entries of a directory, and the membership changes that are not applied to all of them yet.
//!
//! Each entry has the number of the last change that was applied to it. This module does not know what a change does
//! to an entry.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, VecDeque},
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

/// How many entries or copies one step of a membership change updates.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Slice {
    /// Entries of the directory, or local copies: 1 to 2 us each.
    pub entries: usize,
    /// Pause until the next slice, at least 1 ns.
    pub pause_ns: u64,
}

/// Members up to which a slice has its full number of entries: their owners are found among all members.
const MEMBERS_OF_FULL_SLICES: usize = 64;

impl Slice {
    /// How many entries or copies one event handles in a cluster of these members.
    pub(crate) fn of(self, members: &Members) -> usize {
        (self.entries / members.len().div_ceil(MEMBERS_OF_FULL_SLICES).max(1)).max(1)
    }
}

impl Default for Slice {
    /// Slices of 1 to 2 ms; events that arrived meanwhile are handled in between.
    fn default() -> Self {
        Self { entries: 1024, pause_ns: 1 }
    }
}

/// A membership change, with the members right after it.
#[derive(Clone, Debug)]
pub(super) enum EntryChange {
    /// All announcements and requests of `node` are void.
    Removed { node: NodeId, members: Arc<Members> },
    /// Objects have new owners, or `rejoined` has lost what was announced to it.
    Owners { rejoined: Option<NodeId>, members: Arc<Members> },
}

/// All entries, and the changes that are not applied to all of them yet.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Boxed, because the nodes of the tree have room for up to twice as many entries as they contain.
    all: BTreeMap<ObjectId, Box<Entry>>,
    /// Oldest first; the last one has the number `last`.
    changes: VecDeque<EntryChange>,
    last: u32,
}

impl Entries {
    pub(super) fn get(&self, id: &ObjectId) -> Option<&Entry> {
        self.all.get(id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: &ObjectId) -> Option<&mut Entry> {
        self.all.get_mut(id).map(Box::as_mut)
    }

    /// Returns the entry of an object; creates an empty one, to which all changes are applied, if it is missing.
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
        let count = self.changes.len().min(self.last.wrapping_sub(seen) as usize);
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

    pub(super) fn note(&mut self, change: EntryChange) {
        self.changes.push_back(change);
        self.last = self.last.wrapping_add(1);
    }

    /// Returns the changes that are not applied to an entry yet, and marks them as applied.
    pub(super) fn take_news(&mut self, id: &ObjectId) -> Vec<EntryChange> {
        let Some(entry) = self.all.get(id) else { return Vec::new() };
        let news = self.news(entry).cloned().collect();
        let last = self.last;
        if let Some(entry) = self.get_mut(id) {
            entry.changes_seen = last;
        }
        news
    }

    /// Forgets the changes up to this one: they are applied everywhere.
    pub(super) fn forget_changes(&mut self, number: u32) {
        let later = self.changes.len().min(self.last.wrapping_sub(number) as usize);
        self.changes.drain(..self.changes.len() - later);
    }

    /// Whether all changes are applied to all entries.
    pub(super) fn is_settled(&self) -> bool {
        self.changes.is_empty()
    }
}

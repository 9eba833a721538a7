//! The entries of a directory, and the changes of members that some of them do not know yet.
//!
//! Every entry has the number of the last change that was applied to it. Does not know what a change does to an entry.

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

/// How much is worked off in one go of what a change of members touches.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Slice {
    /// Entries of the directory, or copies: 1 to 2 us each.
    pub entries: usize,
    /// Time until the next, from 1 on.
    pub pause_ns: u64,
}

impl Default for Slice {
    /// A millisecond or two at a time, and then whatever has come meanwhile.
    fn default() -> Self {
        Self { entries: 1024, pause_ns: 1 }
    }
}

/// A change of members, with the members as they were right after it.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// All that a node has said is void.
    Gone { node: NodeId, members: Arc<Members> },
    /// Objects have other owners, or `renewed` has lost what it was told.
    Owners { renewed: Option<NodeId>, members: Arc<Members> },
}

/// All entries, and the changes that some of them do not know.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Boxed, for a tree has room for twice as many as it holds.
    all: BTreeMap<ObjectId, Box<Entry>>,
    /// Oldest first; the last has the number `last`.
    changes: VecDeque<Change>,
    last: u32,
    walk: Option<Walk>,
}

/// Once through all entries.
#[derive(Debug)]
struct Walk {
    /// Entries up to this one know the changes up to `upto`.
    after: Option<ObjectId>,
    upto: u32,
}

impl Entries {
    pub(super) fn get(&self, id: &ObjectId) -> Option<&Entry> {
        self.all.get(id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: &ObjectId) -> Option<&mut Entry> {
        self.all.get_mut(id).map(Box::as_mut)
    }

    /// The entry of an object; an empty one if there is none, which knows all changes.
    pub(super) fn open(&mut self, id: &ObjectId) -> &mut Entry {
        let new = || Box::new(Entry::new(self.last));
        self.all.entry(id.clone()).or_insert_with(new)
    }

    pub(super) fn remove(&mut self, id: &ObjectId) {
        self.all.remove(id);
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

    /// The changes that an entry does not know.
    fn news(&self, entry: &Entry) -> impl Iterator<Item = &Change> {
        let count = self.changes.len().min(self.last.wrapping_sub(entry.knows) as usize);
        self.changes.range(self.changes.len() - count..)
    }

    /// Whether what an entry has of a node is void.
    pub(super) fn is_void(&self, entry: &Entry, of: NodeId) -> bool {
        self.news(entry).any(|change| matches!(change, Change::Gone { node, .. } if *node == of))
    }

    pub(super) fn note(&mut self, change: Change) {
        self.changes.push_back(change);
        self.last = self.last.wrapping_add(1);
        let upto = self.last;
        match &mut self.walk {
            Some(walk) if walk.after.is_some() => {}
            // It has not begun.
            walk => *walk = Some(Walk { after: None, upto }),
        }
    }

    /// The changes that an entry does not know; from now on it does.
    pub(super) fn take_news(&mut self, id: &ObjectId) -> Vec<Change> {
        let Some(entry) = self.all.get(id) else { return Vec::new() };
        let news = self.news(entry).cloned().collect();
        let last = self.last;
        if let Some(entry) = self.get_mut(id) {
            entry.knows = last;
        }
        news
    }

    /// The entries that the walk comes to next, `most` of them if there are so many.
    pub(super) fn next(&self, most: usize) -> Vec<ObjectId> {
        let Some(walk) = &self.walk else { return Vec::new() };
        let begin = walk.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.all.range::<ObjectId, _>((begin, Bound::Unbounded));
        next.take(most).map(|(id, _)| id.clone()).collect()
    }

    /// All up to an entry know what the walk tells; or all of them.
    pub(super) fn walked(&mut self, to: Option<ObjectId>) {
        let Some(walk) = &mut self.walk else { return };
        if to.is_some() {
            walk.after = to;
            return;
        }
        let later = self.last.wrapping_sub(walk.upto) as usize;
        self.changes.drain(..self.changes.len() - later);
        let upto = self.last;
        self.walk = (later > 0).then_some(Walk { after: None, upto });
    }

    /// Whether all entries know all changes.
    pub(super) fn is_settled(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whether there is a change that the entries are gone through for.
    pub(super) const fn is_walking(&self) -> bool {
        self.walk.is_some()
    }
}

//! Changes of members, worked off a slice of the entries at a time, so that what is asked in between is answered in between.
//!
//! Every entry has the number of the last change that was applied to it. The directory applies the later ones before it
//! reads or changes an entry for a message: so no answer is older than the last change, and no change undoes what a member
//! has said since.
//!
//! ```text
//!   changes that some entry does not know:   4: node 7 is gone   5: there are other owners
//!   entries, in order of id:                 [5] [5] [3] [5: was asked for] [3] [3]
//!                                                    ^ the walk has come so far
//! ```

use alloc::{
    boxed::Box,
    collections::{BTreeMap, VecDeque},
    format,
    sync::Arc,
    vec::Vec,
};
use core::ops::{Bound, RangeBounds};

use serde::{Deserialize, Serialize};

use super::{
    Directory,
    entry::{Entry, Reserved},
    names::prefix_owner,
    world::World,
};
use crate::{
    id::{Instance, NodeId, ObjectId},
    limits::ORPHAN_GRACE_NS,
    members::Members,
    message::{Message, Paced},
    planted::{self, Bug},
    time::Instant,
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
enum Change {
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

    fn note(&mut self, change: Change) {
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
    fn take_news(&mut self, id: &ObjectId) -> Vec<Change> {
        let Some(entry) = self.all.get(id) else { return Vec::new() };
        let news = self.news(entry).cloned().collect();
        let last = self.last;
        if let Some(entry) = self.get_mut(id) {
            entry.knows = last;
        }
        news
    }

    /// The entries that the walk comes to next, `most` of them if there are so many.
    fn next(&self, most: usize) -> Vec<ObjectId> {
        let Some(walk) = &self.walk else { return Vec::new() };
        let begin = walk.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.all.range::<ObjectId, _>((begin, Bound::Unbounded));
        next.take(most).map(|(id, _)| id.clone()).collect()
    }

    /// All up to an entry know what the walk tells; or all of them.
    fn walked(&mut self, to: Option<ObjectId>) {
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
}

impl Directory {
    /// Forgets a member: its copies, its questions. [`Directory::members_changed`] follows.
    pub fn member_gone(&mut self, world: &World<'_>, node: NodeId) {
        let (now, members) = (world.now, world.members);
        self.latest.retain(|waiter| waiter.node != node);
        self.parked.retain(|parked| parked.from != node);
        self.accounts.sort_out();
        self.speeds.forget(node);
        self.leases.member_gone(now, node);
        self.entries.note(Change::Gone { node, members: Arc::new(members.clone()) });
    }

    /// Tells owners of deletions, which no holder could repeat: each once, but `renewed` again, for which what was said may
    /// be lost. Entries that others own now are kept for a while: the next change may make this node their owner again,
    /// while their holders never took it for anything else.
    ///
    /// Begins with the first slice; [`Directory::expire`] goes on.
    pub fn members_changed(&mut self, world: &mut World<'_>, renewed: Option<NodeId>) {
        let (now, members) = (world.now, world.members);
        self.changed_at = Some(now);
        self.entries.note(Change::Owners { renewed, members: Arc::new(members.clone()) });
        self.leases.members_changed(world, self.stray_ns);
        let me = members.me();
        self.latest.retain(|waiter| {
            prefix_owner(&waiter.prefix, members).is_some_and(|owner| owner == me)
        });
        self.work_off(world);
    }

    /// What the members will be when this node has left: tells the owners of then all that they have to know, at once.
    pub fn leave(&mut self, world: &mut World<'_>) {
        self.members_changed(world, None);
        while self.entries.walk.is_some() {
            self.work_off(world);
        }
    }

    /// When the next slice is to be worked off, if there is one.
    pub(super) fn next_slice(&self) -> Option<Instant> {
        self.entries.walk.as_ref().map(|_| self.next_slice_at)
    }

    /// Works off one slice.
    pub(super) fn work_off(&mut self, world: &mut World<'_>) {
        let now = world.now;
        let ids = self.entries.next(self.slice.entries);
        for id in &ids {
            self.settle(world, id);
        }
        let is_last = ids.len() < self.slice.entries;
        self.entries.walked(ids.into_iter().next_back().filter(|_| !is_last));
        self.next_slice_at = now + self.slice.pause_ns;
    }

    /// Brings an entry up to date before it is looked at.
    pub(super) fn settle(&mut self, world: &mut World<'_>, id: &ObjectId) {
        let (now, members) = (world.now, world.members);
        let (mut others, mut all_renewed, me) = (false, Vec::new(), members.me());
        for change in self.entries.take_news(id) {
            match change {
                Change::Gone { node, members } => {
                    let world = &mut World { members: &members, mail: world.mail, ..*world };
                    self.forget_member(world, id, node);
                }
                Change::Owners { renewed, members } => {
                    others = true;
                    all_renewed.extend(renewed);
                    // Also if it owns it again by now: it may have missed what became of it meanwhile.
                    if let Some(entry) = self.entries.get_mut(id)
                        && !members.owners(id).contains(me)
                    {
                        entry.kept_until = now + self.stray_ns;
                        self.alarms.insert((entry.kept_until, id.clone()));
                    }
                }
            }
        }
        if others {
            self.tell_owners(world, id, &all_renewed);
        }
    }

    /// Brings up to date what a message makes this owner look at. A listing is of what the slices have come to.
    pub(super) fn settle_for(&mut self, world: &mut World<'_>, message: &Message) {
        if self.entries.changes.is_empty() || planted::has(Bug::ReadsWhatIsNotSettled) {
            return;
        }
        let prefix = match message {
            Message::Watch { id, .. }
            | Message::Unwatch { id }
            | Message::Paced(Paced { id, .. })
            | Message::Locations { id, .. }
            | Message::Unlocations { id, .. }
            | Message::Dropped { id, .. } => return self.settle(world, id),
            Message::Latest { prefix, .. } => prefix.clone(),
            Message::Older { name, .. } => format!("{}/", name.group()),
            other => {
                let id = other.object();
                return id.into_iter().for_each(|id| self.settle(world, id));
            }
        };
        let names: Vec<ObjectId> = self.under(&prefix).map(|(id, _)| id.clone()).collect();
        for id in names {
            self.settle(world, &id);
        }
    }

    fn forget_member(&mut self, world: &mut World<'_>, id: &ObjectId, node: NodeId) {
        let (now, members) = (world.now, world.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.take_back(|asking| {
            asking.waiters.retain(|waiter| waiter.node != node);
            asking.watchers.remove(&node);
            asking.locators.retain(|locator| locator.node != node);
        });
        if let Some(gone) = &mut entry.gone {
            gone.dropping.retain(|(holder, _)| *holder != node);
            gone.answer(id, world.mail);
        }
        let held = !planted::has(Bug::KeepsHoldersThatAreGone)
            && entry.live.as_mut().is_some_and(|live| live.remove_holder(node));
        let is_its = |reserved: &mut Box<Reserved>| reserved.instance.node == node;
        let reserved = entry.reserved.take_if(is_its).is_some();
        if reserved && entry.live.is_none() {
            // After the grace, so that those who ask the next owner instead of one that died are told too.
            entry.orphan_since = Some(now);
            self.alarms.insert((now + ORPHAN_GRACE_NS, id.clone()));
        }
        if held {
            entry.seek_bytes(id, world.mail);
        }
        if held || reserved || id.minter() == Some(node) {
            self.check_orphan(now, id, members);
        }
        if let Some(entry) = self.entries.get_mut(id) {
            entry.answer_locators(id, world.mail);
        }
        self.forget_if_empty(id);
    }

    fn tell_owners(&mut self, world: &mut World<'_>, id: &ObjectId, renewed: &[NodeId]) {
        let (now, members) = (world.now, world.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        let (all, me) = (members.owners(id), members.me());
        let owners = || all.iter().filter(|owner| *owner != me);
        if let Some(gone) = &mut entry.gone {
            gone.known_to.retain(|owner| !renewed.contains(owner));
            gone.tell(id, owners(), world.mail);
            if all.contains(me) {
                gone.drop_again(id, world.mail);
            }
        }
        // What a name was before it was put again must not come back either.
        let buried: Vec<Instance> = entry.buried(now).collect();
        if !buried.is_empty() {
            for owner in owners() {
                let (id, instances) = (id.clone(), buried.clone());
                let (error, pruned) = (None, false);
                world.mail.push((owner, Message::Remember { id, instances, error, pruned }));
            }
        }
    }
}

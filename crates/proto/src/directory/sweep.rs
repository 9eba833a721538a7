//! Membership changes, applied to a slice of the entries at a time, so that other requests are handled in between.
//!
//! Each entry has the number of the last change that was applied to it. The directory applies the later ones before it
//! reads or changes an entry for a message. Therefore no reply predates the last change, and no change undoes what a
//! member has announced since.
//!
//! ```text
//!   changes not yet applied everywhere:      4: node 7 is gone   5: other owners
//!   entries, in order of id:                 [5] [5] [3] [5: was requested] [3] [3]
//!                                                    ^ the walk has come so far
//! ```

use alloc::{boxed::Box, format, sync::Arc, vec::Vec};

use super::{
    context::Context, entries::EntryChange, entry::Reserved, live::Live, names::prefix_owners,
    state::Directory,
};
use crate::{
    id::{Instance, NodeId, ObjectId},
    limits::ORPHAN_GRACE_NS,
    message::{Message, RateReport},
    mutants::{self, Mutant},
    time::Instant,
};

impl Directory {
    /// Removes the copies and requests of a member. The caller then calls [`Directory::members_changed`].
    pub fn member_removed(&mut self, context: &Context<'_>, node: NodeId) {
        let (now, members) = (context.now, context.members);
        self.latest.remove_node(node);
        self.parked.retain(|parked| parked.from != node);
        self.accounts.prune();
        self.speeds.forget(node);
        self.leases.member_removed(now, node);
        self.entries.note(EntryChange::Removed { node, members: Arc::new(members.clone()) });
    }

    /// Applies new ownership. Sends deletions to new owners, because no holder could repeat them: once to each, but
    /// again to `rejoined`, for which earlier messages may be lost. Entries that other nodes own now are kept for a
    /// while: the next change may make this node their owner again, without their holders having noticed any change.
    ///
    /// Handles the first slice; [`Directory::expire`] continues.
    pub fn members_changed(&mut self, context: &mut Context<'_>, rejoined: Option<NodeId>) {
        let (now, members) = (context.now, context.members);
        self.changed_at = Some(now);
        self.entries.note(EntryChange::Owners { rejoined, members: Arc::new(members.clone()) });
        self.leases.members_changed(context, self.stray_ns);
        let me = members.me();
        self.latest.retain(|prefix| {
            prefix_owners(prefix, members).is_some_and(|owners| owners.primary == me)
        });
        self.work_off(context);
    }

    /// Sends all that they need to the nodes that are owners after this node has left, at once: only deletions, since
    /// no holder could repeat them. `context` has the members without this node.
    pub fn leave(&mut self, context: &mut Context<'_>) {
        self.leases.members_changed(context, self.stray_ns);
        let remembered: Vec<ObjectId> = self.remembered.iter().map(|(_, id)| id.clone()).collect();
        for id in remembered {
            self.settle(context, &id);
            self.notify_owners(context, &id, &[]);
        }
    }

    /// When the next slice is due, if one is left.
    pub(super) fn next_slice(&self) -> Option<Instant> {
        self.entries.is_walking().then_some(self.next_slice_at)
    }

    /// Handles one slice.
    pub(super) fn work_off(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        let ids = self.entries.next(self.slice.entries);
        for id in &ids {
            self.settle(context, id);
        }
        let is_last = ids.len() < self.slice.entries;
        self.entries.walked(ids.into_iter().next_back().filter(|_| !is_last));
        self.next_slice_at = now + self.slice.pause_ns;
    }

    /// Applies pending membership changes to an entry before it is used.
    pub(super) fn settle(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let (now, members) = (context.now, context.members);
        let (mut others, mut all_renewed, me) = (false, Vec::new(), members.me());
        for change in self.entries.take_news(id) {
            match change {
                EntryChange::Removed { node, members } => {
                    let context =
                        &mut Context { members: &members, outbox: context.outbox, ..*context };
                    self.forget_member(context, id, node);
                }
                EntryChange::Owners { rejoined, members } => {
                    others = true;
                    all_renewed.extend(rejoined);
                    // Even if this node owns it again by now, it may have missed what happened meanwhile.
                    if let Some(entry) = self.entries.get_mut(id)
                        && !members.owners(id).contains(me)
                    {
                        entry.stray_until = now + self.stray_ns;
                        self.alarms.insert((entry.stray_until, id.clone()));
                    }
                }
            }
        }
        if others {
            self.notify_owners(context, id, &all_renewed);
        }
    }

    /// Applies pending changes to the entries that a message concerns. A listing uses entries as they are.
    pub(super) fn settle_for(&mut self, context: &mut Context<'_>, message: &Message) {
        if self.entries.is_settled() || mutants::is_active(Mutant::ReadsStaleEntries) {
            return;
        }
        let prefix = match message {
            Message::Watch { id, .. }
            | Message::Unwatch { id }
            | Message::RateReport(RateReport { id, .. })
            | Message::Locations { id, .. }
            | Message::CancelLocations { id, .. }
            | Message::Dropped { id, .. } => return self.settle(context, id),
            Message::Latest { prefix, .. } => prefix.clone(),
            Message::OlderVersions { name, .. } => format!("{}/", name.group()),
            other => {
                let id = other.object();
                return id.into_iter().for_each(|id| self.settle(context, id));
            }
        };
        let names: Vec<ObjectId> = self.under(&prefix).map(|(id, _)| id.clone()).collect();
        for id in names {
            self.settle(context, &id);
        }
    }

    fn forget_member(&mut self, context: &mut Context<'_>, id: &ObjectId, node: NodeId) {
        let (now, members) = (context.now, context.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.take_back(|subscribers| {
            subscribers.waiters.retain(|waiter| waiter.node != node);
            subscribers.watchers.remove(&node);
            subscribers.locators.retain(|locator| locator.node != node);
        });
        if let Some(tombstone) = &mut entry.tombstone {
            tombstone.dropping.retain(|(holder, _)| *holder != node);
            tombstone.answer(id, context.outbox);
        }
        let held = !mutants::is_active(Mutant::KeepsFailedHolders)
            && entry.live.as_mut().is_some_and(|live| live.remove_holder(node));
        let is_its = |reserved: &mut Box<Reserved>| reserved.instance.node == node;
        let is_fed = entry.live.as_ref().is_some_and(Live::is_fed);
        let reserved = entry.reserved.as_mut().is_some_and(is_its);
        if reserved && is_fed {
            // Others have the object.
            entry.reserved = None;
        } else if reserved {
            // The reservation ends after a grace period, unless its node has only lost the connection and repeats it.
            entry.orphan_since = Some(now);
            self.alarms.insert((now + ORPHAN_GRACE_NS, id.clone()));
        }
        if held {
            entry.seek_bytes(id, context.outbox);
        }
        if held || id.minter() == Some(node) {
            self.check_orphan(now, id, members);
        }
        if let Some(entry) = self.entries.get_mut(id) {
            entry.notify_location_waiters(id, context.outbox);
        }
        self.forget_if_empty(id);
    }

    fn notify_owners(&mut self, context: &mut Context<'_>, id: &ObjectId, rejoined: &[NodeId]) {
        let (now, members) = (context.now, context.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        let (all, me) = (members.owners(id), members.me());
        let owners = || all.iter().filter(|owner| *owner != me);
        if let Some(tombstone) = &mut entry.tombstone {
            tombstone.known_to.retain(|owner| !rejoined.contains(owner));
            tombstone.tell(id, owners(), context.outbox);
            if all.contains(me) {
                tombstone.drop_again(id, context.outbox);
            }
        }
        // Earlier instances of a name that was put again must not come back either.
        let buried: Vec<Instance> = entry.buried(now).collect();
        if !buried.is_empty() {
            for owner in owners() {
                let (id, instances) = (id.clone(), buried.clone());
                let (error, pruned) = (None, false);
                context.outbox.push((owner, Message::Tombstone { id, instances, error, pruned }));
            }
        }
    }
}

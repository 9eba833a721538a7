//! Membership changes, applied to one lease or entry at a time, so that other requests are handled
//! in between.
//!
//! The walks of the node visit all of them. Each has the number of the last change that was applied
//! to it. The directory applies the later ones before it reads or changes it for a message.
//! Therefore no reply predates the last change, and no change undoes what a member has announced
//! since. Changes of owners count as one for each walk, so that a visit finds the owners of an
//! entry twice at most, however many there were.
//!
//! ```text
//!   changes not yet applied everywhere:      4: node 7 is gone   5: other owners
//!   entries, in order of id:                 [5] [5] [3] [5: was requested] [3] [3]
//!                                                    ^ the walk has come so far
//! ```

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use super::{
    context::Context,
    entries::{EntryChange, News, OwnerChanges},
    entry::{Entry, Reserved},
    live::Live,
    questions::Kind,
    state::Directory,
};
use crate::{
    id::{Instance, Name, NodeId, ObjectId},
    lifetime::Lease,
    limits::ORPHAN_GRACE_NS,
    message::Message,
    mutants::{self, Mutant},
    timed::key_after,
};

impl Directory {
    /// Removes the copies and requests of a member. The caller then calls
    /// [`Directory::members_changed`].
    pub fn member_removed(&mut self, context: &Context<'_>, node: NodeId) {
        let members = context.members;
        self.parked.retain(|parked| parked.from != node);
        self.accounts.prune();
        self.speeds.forget(node);
        self.entries.note_removed(node, members);
    }

    /// Notes new ownership, and returns its number. The caller then visits all that the `next_`
    /// methods of this file return, a slice at a time, and calls [`Directory::changes_applied`].
    ///
    /// A visit sends deletions to new owners, because no holder could repeat them: once to each,
    /// but again to `rejoined`, for which earlier messages may be lost. Entries that other nodes
    /// own now are kept for a while: the next change may make this node their owner again, without
    /// their holders having noticed any change.
    pub fn members_changed(&mut self, context: &Context<'_>, rejoined: Option<NodeId>) -> u32 {
        self.changed_at = Some(context.now);
        self.entries.note_owners(rejoined, context.members);
        self.entries.last_change()
    }

    /// Everything has the changes up to the one with this number.
    pub(crate) fn changes_applied(&mut self, number: u32) {
        self.entries.forget_changes(number);
    }

    /// The lease after another one, or the first.
    pub(crate) fn next_lease(&self, after: Option<&Lease>) -> Option<Lease> {
        self.leases.all.next_after(after)
    }

    /// The job with objects in this shard after another one, or the first.
    pub(crate) fn next_job(&self, after: Option<&Name>) -> Option<Name> {
        key_after(&self.leases.covered, after)
    }

    /// The entry after another one, or the first.
    pub(crate) fn next_entry(&self, after: Option<&ObjectId>) -> Option<&ObjectId> {
        self.entries.next_after(after)
    }

    /// Applies pending membership changes to a lease before it is used.
    pub(crate) fn settle_lease(&mut self, context: &Context<'_>, lease: &Lease) {
        let (seen, last) = (self.leases.all.get(lease), self.entries.last_change());
        let Some(seen) = seen.map(|record| record.changes_seen).filter(|seen| *seen != last) else {
            return;
        };
        let removed = |change: &EntryChange| match change {
            EntryChange::Removed { node, .. } => Some(*node),
            EntryChange::Owners => None,
        };
        let removed: Vec<NodeId> = self.entries.changes_since(seen).filter_map(removed).collect();
        self.leases.settle(context.now, lease, &removed, last);
        self.leases.keep_as_stray(context, lease, self.stray_ns);
    }

    /// Sends a deletion, or a small object of which no node has a copy, to the nodes that are
    /// owners after this node has left, since no holder could repeat it. `context` has the
    /// members without this node.
    pub(crate) fn pass_on(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        self.settle(context, id);
        self.notify_owners(context, id, &[]);
        self.pass_on_stored(context, id);
    }

    /// Applies pending membership changes to an entry before it is used.
    pub(crate) fn settle(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let (now, members) = (context.now, context.members);
        let News { removed, owners } = self.entries.take_news(id);
        for (node, members) in removed {
            let context = &mut Context { members: &members, outbox: context.outbox, ..*context };
            self.forget_member(context, id, node);
        }
        if owners.is_empty() {
            return;
        }
        let was_owner = owners.iter().all(|it| it.members.owners(id).contains(members.me()));
        let was_doubtful = self.entries.get(id).is_some_and(Entry::is_doubtful);
        // Even if this node owns it again by now, it may have missed what happened meanwhile.
        if let Some(entry) = self.entries.get_mut(id)
            && (!was_owner || was_doubtful)
        {
            entry.stray_until = now + self.stray_ns;
            self.alarms.insert((entry.stray_until, id.clone()));
        }
        self.notify_owners(context, id, &owners);
        self.check_unrecorded(now, id, members);
        // A former owner receives no deletions: it makes only one offer, when it ceases to be one.
        if !was_doubtful || members.owners(id).contains(members.me()) {
            self.offer_stored(context, id);
        }
    }

    /// Applies pending changes to the entry that a message concerns. A listing uses entries as they
    /// are, and what looks at other entries settles them itself.
    pub(super) fn settle_for(&mut self, context: &mut Context<'_>, message: &Message) {
        if self.entries.is_settled() {
            return;
        }
        let id = match message {
            Message::Ask { question, .. } => question.subject(),
            other => other.object().cloned(),
        };
        id.iter().for_each(|id| self.settle_before_use(context, id));
    }

    /// Applies pending changes to an entry that is about to be read.
    pub(super) fn settle_before_use(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        if !self.entries.is_settled() && !mutants::is_active(Mutant::ReadsStaleEntries) {
            self.settle(context, id);
        }
    }

    fn forget_member(&mut self, context: &mut Context<'_>, id: &ObjectId, node: NodeId) {
        let (now, members) = (context.now, context.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        Kind::ALL.iter().for_each(|kind| entry.close_of(*kind, node, &mut self.asked));
        if let Some(tombstone) = &mut entry.tombstone {
            tombstone.forget_holder(node);
            entry.answer_deletions(now, &mut self.asked, context.outbox);
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
            // The reservation ends after a grace period, unless its node has only lost the
            // connection and repeats it.
            entry.orphan_since = Some(now);
            self.alarms.insert((now + ORPHAN_GRACE_NS, id.clone()));
        }
        if held {
            entry.seek_bytes(id, context.outbox);
        }
        if held || id.minter() == Some(node) {
            self.check_orphan(now, id, members);
        }
        self.notify_locators(context, id);
        self.forget_if_empty(id);
    }

    fn notify_owners(
        &mut self,
        context: &mut Context<'_>,
        id: &ObjectId,
        changes: &[Arc<OwnerChanges>],
    ) {
        let (now, members) = (context.now, context.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        if entry.tombstone.is_none() && entry.buried(now).next().is_none() {
            return;
        }
        let (all, me) = (members.owners(id), members.me());
        if let Some(tombstone) = &mut entry.tombstone {
            let has_rejoined = |node: &NodeId| changes.iter().any(|it| it.rejoined.contains(node));
            tombstone.known_to.retain(|owner| !has_rejoined(owner));
            tombstone.send_to(id, all.except(me), context.outbox);
            if all.contains(me) {
                tombstone.drop_again(id, context.outbox);
            }
        }
        // Earlier instances of a name that was put again must not come back either.
        let buried: Vec<Instance> = entry.buried(now).collect();
        if !buried.is_empty() {
            for owner in all.except(me) {
                let (id, instances) = (id.clone(), buried.clone());
                let (error, pruned) = (None, false);
                context.outbox.push((owner, Message::Tombstone { id, instances, error, pruned }));
            }
        }
    }
}

//! Deletions: every holder drops its copy, and a tombstone rejects late announcements.
//!
//! ```text
//!   live --bury--> gone: remembered as a tombstone --reuse--> live again as another instance;
//!                   |                                         the old ones are buried
//!                   |  every holder has sent Dropped
//!                   +------------------------------> Deleted, to the requesters
//! ```
//!
//! Deletions go to the primary owner, which has granted the name and knows which object they mean.
//! It reports the ended instances to the other owner, where the next object may be already.
//!
//! A new owner may receive a deletion before the holders have announced their copies. For a grace
//! period after a membership change it delays the reply for a name whose state is not certain.
//! Until the grace period ends, or a put claims the name, it makes holders drop every copy that
//! they announce, of any instance.

use alloc::{boxed::Box, collections::BTreeSet, vec::Vec};

use super::{
    context::Context,
    entry::{Entry, Reserved, Tombstone, answer},
    live::Live,
    questions::{Asker, Kind, OpenQuestion, OpenQuestions},
    state::{Directory, Parked},
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    limits::{BURIED_MAX, DELETERS_MAX, REMEMBERED_MAX, TOMBSTONE_NS, limit_name},
    members::Members,
    message::{Announce, Message},
    mutants::{self, Mutant},
    question::Answer,
    time::Instant,
};

impl Directory {
    pub(super) fn delete(
        &mut self,
        context: &mut Context<'_>,
        asker: Asker,
        id: &ObjectId,
        pruned: bool,
    ) {
        let now = context.now;
        let (mut lost, mut is_known, mut is_sure, mut is_gone) = (None, false, false, false);
        if let Some(entry) = self.entries.get_mut(id) {
            lost = entry.lost.take().map(|lost| lost.0);
            is_known = lost.is_some() || entry.live.is_some() || entry.reserved.is_some();
            is_sure = is_known && !entry.is_doubtful();
            is_gone = entry.tombstone.is_some();
        }
        // A name that no client has put is free: deleting it changes nothing.
        if is_known || id.minter().is_some() && !is_gone {
            self.bury(context, id, Error::ObjectDeleted { id: id.clone() }, Vec::new());
        }
        if id.minter().is_none() {
            self.drop_what_waits(context, id);
        }
        // Holders of a deleted name may not have announced their copies here yet. Then the reply is
        // delayed.
        let is_unheard = !is_sure
            && id.minter().is_none()
            && !mutants::is_active(Mutant::DeletesBeforeReannouncement);
        let until = self.unsettled_until(now).filter(|_| is_unheard);
        let is_certain = is_sure || id.minter().is_some();
        let entry = self.entries.open(id);
        if let Some(tombstone) = &mut entry.tombstone {
            if until.is_none() {
                if tombstone.reason.is_some() {
                    // The other owner has it too.
                    tombstone.known_to.clear();
                }
                tombstone.free(id);
                tombstone.pruned = pruned;
            }
            // Its holder may come back with it.
            tombstone.instances.extend(lost);
        }
        self.notify_other_owners(context, id);
        if is_certain {
            self.notify_deleter(context, asker.0, id);
        }
        let entry = self.entries.open(id);
        if entry.open(Kind::Delete).count() < DELETERS_MAX {
            let question = OpenQuestion { until, is_known: is_certain, ..OpenQuestion::default() };
            entry.ask(id, Kind::Delete, asker, question, &mut self.asked);
            self.alarms.extend(until.map(|until| (until, id.clone())));
        } else {
            self.limited.push((asker.0, limit_name!(DELETERS_MAX)));
            let reply = if is_certain { Answer::Deleted } else { Answer::Unknown };
            context.outbox.push(answer(asker, reply));
        }
        entry.answer_deletions(now, &mut self.asked, context.outbox);
        self.forget_if_empty(id);
    }

    /// Sends the deletion to the other owners.
    pub(super) fn notify_other_owners(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let others = context.members.owners(id).except(context.members.me());
        let entry = self.entries.get_mut(id);
        if let Some(tombstone) = entry.and_then(|entry| entry.tombstone.as_mut()) {
            tombstone.send_to(id, others, context.outbox);
        }
    }

    /// Sends the deletion to the node that requested it, which passes it on: the path to the other
    /// owner may be broken.
    fn notify_deleter(&self, context: &mut Context<'_>, deleter: NodeId, id: &ObjectId) {
        let (me, owners) = (context.members.me(), context.members.owners(id));
        if deleter == me || owners.contains(deleter) || owners.primary != me {
            return;
        }
        let tombstone = self.entries.get(id).and_then(|entry| entry.tombstone.as_ref());
        let report = tombstone.and_then(|tombstone| tombstone.report(id));
        context.outbox.extend(report.map(|report| (deleter, report)));
    }

    /// Passes on a deletion that this node has requested, to the owners that did not report it.
    /// Returns whether it needs no record here: this node was not an owner of late.
    pub(super) fn pass_on_deletion(
        &self,
        context: &mut Context<'_>,
        from: NodeId,
        tombstone: &Message,
    ) -> bool {
        let Some(id) = tombstone.object() else { return false };
        let owners = context.members.owners(id);
        if owners.contains(context.members.me()) || owners.primary != from {
            return false;
        }
        context.outbox.extend(owners.except(from).map(|owner| (owner, tombstone.clone())));
        self.entries.get(id).is_none()
    }

    /// Makes holders drop copies that they have announced and that this owner has parked.
    fn drop_what_waits(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let is_its = |parked: &mut Parked| parked.announce.id == *id && !parked.announce.claim;
        let waiting: Vec<Parked> = self.parked.extract_if(.., is_its).collect();
        for Parked { from, announce, .. } in waiting {
            self.drop_deleted(context, from, &announce);
        }
    }

    /// Buries an announced instance of a name that was deleted before, and makes its holder drop
    /// it.
    pub(super) fn drop_deleted(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        announce: &Announce,
    ) {
        let Announce { id, instance, .. } = announce;
        let error = Error::ObjectDeleted { id: id.clone() };
        self.bury(context, id, error.clone(), Vec::from([*instance]));
        let entry = self.entries.get_mut(id);
        if let Some(tombstone) = entry.and_then(|entry| entry.tombstone.as_mut())
            && tombstone.dropping.len() < BURIED_MAX
        {
            tombstone.dropping.insert((from, *instance));
        }
        context.outbox.push((from, announce.refused(Some(error))));
        self.notify_other_owners(context, id);
    }

    /// Sends the replies that were delayed until the holders have had time to announce their
    /// copies.
    pub(super) fn answer_delayed(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.answer_deletions(context.now, &mut self.asked, context.outbox);
        }
        self.settle_latest(context, id);
    }

    /// Forwards a deletion to the owners, if this node is not one of them. The sender's membership
    /// view is stale, and the sender does not repeat the deletion when its view changes.
    pub(super) fn forward_to_owners(&mut self, id: &ObjectId, context: &mut Context<'_>) {
        let members = context.members;
        let owners = members.owners(id);
        if !owners.contains(members.me())
            && let Some(tombstone) =
                self.entries.get_mut(id).and_then(|entry| entry.tombstone.as_mut())
        {
            tombstone.send_to(id, owners.iter(), context.outbox);
        }
    }

    pub(super) fn dropped(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
    ) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if let Some(tombstone) = &mut entry.tombstone {
            tombstone.dropped(from, instance);
            entry.answer_deletions(context.now, &mut self.asked, context.outbox);
        }
    }

    /// Handles the report of a node that an object can't appear.
    pub(super) fn failed(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        id: &ObjectId,
        error: &Error,
        reserved: Option<Instance>,
    ) {
        let now = context.now;
        let entry = self.entries.get(id);
        let is_over = |entry: &Entry| reserved.is_some_and(|it| entry.is_over(now, &it));
        // The name may belong to another object by now.
        let maker = entry.and_then(|entry| entry.maker());
        let is_its = |entry: &Entry| entry.reserved.as_ref().map(|it| it.instance) == reserved;
        if entry.is_some_and(is_over) {
            // The name was deleted meanwhile, and is free.
        } else if id.is_slot() && !entry.is_some_and(is_its) {
            // The slot is filled, or was deleted.
        } else if id.minter().is_some() || maker.is_none_or(|maker| maker == from) {
            self.bury(context, id, error.clone(), Vec::new());
            self.forward_to_owners(id, context);
        } else if let Some(entry) = self.entries.get_mut(id) {
            entry.reserved.take_if(|reserved| reserved.instance.node == from);
            self.check_orphan(now, id, context.members);
        }
    }

    /// Handles the report of a holder that it can no longer keep its pinned copy.
    pub(super) fn abandoned(&mut self, from: NodeId, id: &ObjectId, instance: Instance) {
        let live = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut());
        if let Some(live) = live.filter(|live| live.instance == instance)
            && live.tree.get(from).is_some()
        {
            live.abandoned_by = Some(Box::new(from));
        }
    }

    /// Handles the end of an object that another owner reports.
    pub(super) fn buried_elsewhere(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        (id, instances, error): (&ObjectId, &[Instance], &Error),
        pruned: bool,
    ) {
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        let live = live.map(|live| live.instance);
        let is_other = |live| !instances.is_empty() && !instances.contains(&live);
        if id.minter().is_none() && live.is_some_and(is_other) {
            // The next object came first.
            self.bury_older(context, id, instances);
            return self.check_orphan(context.now, id, context.members);
        }
        // Without instances it is not clear which object of that name has ended.
        let is_clear = id.minter().is_some() || !instances.is_empty();
        // A repetition is ignored: the name may have been deleted since, and the reason with it.
        let tombstone = self.entries.get(id).and_then(|entry| entry.tombstone.as_ref());
        let is_known = tombstone.is_some_and(|tombstone| {
            instances.iter().all(|instance| tombstone.instances.contains(instance))
        });
        if is_clear && !is_known {
            self.bury(context, id, error.clone(), instances.to_vec());
        }
        let entry = self.entries.get_mut(id);
        let Some(tombstone) = entry.and_then(|entry| entry.tombstone.as_mut()) else { return };
        if *error == (Error::ObjectDeleted { id: id.clone() }) {
            // Its object failed before.
            tombstone.free(id);
        }
        if !tombstone.known_to.contains(&from) {
            tombstone.known_to.push(from);
            tombstone.pruned |= pruned;
        }
    }

    /// Returns the end of the object if it applies to a request from a node that has, or has not,
    /// `seen` the object. A deleted name is free: a later request waits for the next put. But a
    /// pruned version counts as gone while a newer one is live, because a program that follows
    /// [`crate::question::Question::Latest`] may request it late. Only the primary owner has
    /// entries of all live versions.
    pub(super) fn end_for(
        &mut self,
        context: &mut Context<'_>,
        id: &ObjectId,
        seen: bool,
    ) -> Option<Error> {
        let members = context.members;
        if self.is_spent(id, members) {
            return Some(slot_ended(id));
        }
        let tombstone = self.entries.get(id)?.tombstone.as_ref()?;
        let error = tombstone.error(id);
        if tombstone.concerns(id, seen) {
            return Some(error);
        }
        let is_primary_owner = members.owners(id).primary == members.me();
        let is_pruned = tombstone.pruned && is_primary_owner;
        (is_pruned && self.has_newer(context, id)).then_some(error)
    }

    /// Whether no object can fill a slot of this node any more, although it was not deleted.
    fn is_spent(&self, id: &ObjectId, members: &Members) -> bool {
        let can_come = |entry: &Entry| {
            entry.live.is_some() || entry.reserved.is_some() || entry.tombstone.is_some()
        };
        id.is_slot_of(members.me()) && !self.entries.get(id).is_some_and(can_come)
    }

    /// Ends an object: every holder drops it, waiting nodes get the reason, and a tombstone
    /// remembers it for a while.
    pub(super) fn bury(
        &mut self,
        context: &mut Context<'_>,
        id: &ObjectId,
        error: Error,
        mut instances: Vec<Instance>,
    ) {
        let now = context.now;
        let entry = self.entries.open(id);
        // An end that another owner repeats does not apply to requests that came after it.
        let is_moved = !instances.is_empty();
        let mut has_ended = !is_moved;
        let mut dropping = BTreeSet::new();
        if let Some(live) =
            entry.live.take_if(|live| !is_moved || instances.contains(&live.instance))
        {
            live.drop_copies(id, Some(&error), context.outbox);
            dropping.extend(live.tree.nodes().map(|holder| (holder, live.instance)));
            instances.push(live.instance);
            has_ended = true;
        }
        if entry.live.is_some() {
            return;
        }
        let is_void =
            |reserved: &mut Box<Reserved>| !is_moved || instances.contains(&reserved.instance);
        let is_lost = entry.orphan_since.is_some();
        let reserved = entry.reserved.take_if(is_void).map(|reserved| reserved.instance);
        has_ended |= reserved.is_some();
        instances.extend(reserved);
        // The node of a lost reservation is gone, and confirms nothing.
        if let Some(reserved) = reserved.filter(|_| !is_lost) {
            let (id, error) = (id.clone(), Some(error.clone()));
            context.outbox.push((reserved.node, Message::Drop { id, instance: reserved, error }));
            dropping.insert((reserved.node, reserved));
        }
        // Later requesters wait for another object, which is not lost with this one. A reservation
        // whose node is gone still has to end.
        if entry.reserved.is_none() {
            entry.orphan_since = None;
        }
        if let Some(before) = entry.tombstone.take() {
            instances.extend(before.instances);
            dropping.extend(before.dropping);
        }
        let mut tombstone = Tombstone::new(id, instances, error.clone(), now + TOMBSTONE_NS);
        entry.notify_gone(
            &error,
            |seen| has_ended || tombstone.concerns(id, seen),
            &mut self.asked,
            context.outbox,
        );
        tombstone.dropping = dropping;
        entry.tombstone = Some(Box::new(tombstone));
        self.remember(now, id);
    }

    /// Remembers instances of a name that must not come back, while the name refers to another
    /// instance.
    pub(super) fn bury_older(
        &mut self,
        context: &mut Context<'_>,
        id: &ObjectId,
        instances: &[Instance],
    ) {
        let now = context.now;
        let entry = self.entries.open(id);
        let is_old = |live: &mut Live| instances.contains(&live.instance);
        if let Some(old) = entry.live.take_if(is_old) {
            old.drop_copies(id, None, context.outbox);
        }
        entry.reserved.take_if(|reserved| instances.contains(&reserved.instance));
        // Owners repeat this at each membership change; only the first report counts.
        let is_news = |instance: &&Instance| !entry.is_buried(now, instance);
        let news: Vec<Instance> = instances.iter().filter(is_news).copied().collect();
        if !news.is_empty() {
            entry.bury(now, &news, now + TOMBSTONE_NS);
            self.remember(now, id);
        }
        self.forget_if_empty(id);
    }

    /// Remembers what happened to an object for [`TOMBSTONE_NS`], or until [`REMEMBERED_MAX`] newer
    /// events exist. An object whose copies are not all dropped is not forgotten early.
    pub(super) fn remember(&mut self, now: Instant, id: &ObjectId) {
        self.remembered.push_back((now + TOMBSTONE_NS, id.clone()));
        while self.remembered.len() > REMEMBERED_MAX {
            let front = self.remembered.front().and_then(|(_, id)| self.entries.get(id));
            if front.is_some_and(|entry| {
                entry.tombstone.as_ref().is_some_and(|tombstone| !tombstone.is_settled())
            }) {
                // Check it again later; others need not wait for it.
                self.remembered.rotate_left(1);
                break;
            }
            self.forget_oldest();
        }
    }

    /// Forgets the oldest remembered deletion or loss.
    pub(super) fn forget_oldest(&mut self) {
        let Some((then, id)) = self.remembered.pop_front() else { return };
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.forget(then);
        }
        self.forget_if_empty(&id);
    }
}

/// The error of a slot that is neither open nor has an object.
pub(super) fn slot_ended(id: &ObjectId) -> Error {
    let detail = "its object is lost, or the client that made the slot has ended".into();
    Error::ObjectLost { id: id.clone(), detail }
}

impl Entry {
    /// Frees a deleted name for another instance.
    pub(super) fn reuse(&mut self, context: &mut Context<'_>, open: &mut OpenQuestions) {
        // The name refers to another object now: the client that deleted the old one need not wait
        // for its last copies.
        self.close_deletions(|_| true, open, context.outbox);
        if let Some(tombstone) = self.tombstone.take() {
            self.bury(context.now, &tombstone.instances, tombstone.until);
        }
    }
}

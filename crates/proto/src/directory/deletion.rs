//! Deletions: every holder drops its copy, and a tombstone rejects late announcements.
//!
//! ```text
//!   live --bury--> gone: remembered as a tombstone --reuse--> live again as another instance; the old ones are buried
//!                   |  every holder has sent Dropped
//!                   +------------------------------> Deleted, to the requesters
//! ```
//!
//! A new owner may receive a deletion before the holders have announced their copies. For a grace period after a
//! membership change it delays the reply for a name whose state is not certain. Until the grace period ends, or a put
//! claims the name, it makes holders drop every copy that they announce, of any instance.

use alloc::{boxed::Box, collections::BTreeSet, vec::Vec};

use super::{
    entry::{Entry, Reserved, Tombstone, deleted},
    live::Live,
    state::{Directory, Parked},
    world::{Mail, World},
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    limits::{BURIED_MAX, DELETERS_MAX, ORPHAN_GRACE_NS, REMEMBERED_MAX, TOMBSTONE_NS, limit_name},
    members::Members,
    message::{Announce, Message},
    planted::{self, Bug},
    time::Instant,
};

impl Directory {
    pub(super) fn delete(
        &mut self,
        world: &mut World<'_>,
        from: NodeId,
        id: &ObjectId,
        request: RequestId,
        pruned: bool,
    ) {
        let now = world.now;
        let (mut lost, mut is_known, mut is_sure, mut is_gone) = (None, false, false, false);
        if let Some(entry) = self.entries.get_mut(id) {
            lost = entry.lost.take().map(|lost| lost.0);
            is_known = lost.is_some() || entry.live.is_some() || entry.reserved.is_some();
            is_sure = is_known && !entry.is_doubtful();
            is_gone = entry.gone.is_some();
        }
        // A name that no client has put is free: deleting it changes nothing.
        if is_known || id.minter().is_some() && !is_gone {
            self.bury(world, id, Error::ObjectDeleted { id: id.clone() }, Vec::new());
        }
        if id.minter().is_none() {
            self.drop_what_waits(world, id);
        }
        let is_unheard = !is_sure && id.minter().is_none();
        if is_unheard && self.may_hear_of(now, from, id, request) {
            let gone = self.entries.get_mut(id).and_then(|entry| entry.gone.as_mut());
            gone.into_iter().for_each(|gone| gone.instances.extend(lost));
            return;
        }
        if let Some(gone) = self.entries.get_mut(id).and_then(|entry| entry.gone.as_mut()) {
            gone.free(id);
            gone.pruned = pruned;
            // Its holder may come back with it.
            gone.instances.extend(lost);
            if gone.askers.len() < DELETERS_MAX {
                gone.askers.push((from, request));
            } else {
                world.mail.push(deleted(id, (from, request)));
                self.limited.push((from, limit_name!(DELETERS_MAX)));
            }
            gone.answer(id, world.mail);
        } else {
            world.mail.push(deleted(id, (from, request)));
        }
    }

    /// Makes holders drop copies that they have announced and that this owner has parked.
    fn drop_what_waits(&mut self, world: &mut World<'_>, id: &ObjectId) {
        let is_its = |parked: &mut Parked| parked.announce.id == *id && !parked.announce.claim;
        let waiting: Vec<Parked> = self.parked.extract_if(.., is_its).collect();
        for Parked { from, announce, .. } in waiting {
            self.drop_unheard(world, from, &announce);
        }
    }

    /// Whether holders of a deleted name may not have announced their copies here yet. Then the requester gets its
    /// reply later.
    fn may_hear_of(
        &mut self,
        now: Instant,
        from: NodeId,
        id: &ObjectId,
        request: RequestId,
    ) -> bool {
        let until = self.changed_at.map(|changed| changed + ORPHAN_GRACE_NS);
        let Some(until) = until.filter(|until| now < *until) else { return false };
        if planted::has(Bug::DeletesUnheard) {
            return false;
        }
        let deleters = &mut self.entries.open(id).asking_mut().deleters;
        if deleters.len() >= DELETERS_MAX {
            self.limited.push((from, limit_name!(DELETERS_MAX)));
            return false;
        }
        deleters.push((from, request, until));
        self.alarms.insert((until, id.clone()));
        true
    }

    /// Buries an announced instance of a name that was deleted before, and makes its holder drop it.
    pub(super) fn drop_unheard(
        &mut self,
        world: &mut World<'_>,
        from: NodeId,
        announce: &Announce,
    ) {
        let Announce { id, instance, .. } = announce;
        let error = Error::ObjectDeleted { id: id.clone() };
        self.bury(world, id, error.clone(), Vec::from([*instance]));
        if let Some(entry) = self.entries.get_mut(id) {
            entry.drop_waiter(from);
            if let Some(gone) = entry.gone.as_mut().filter(|gone| gone.dropping.len() < BURIED_MAX)
            {
                gone.dropping.insert((from, *instance));
            }
        }
        world.mail.push((from, announce.refused(Some(error))));
    }

    /// Replies to requesters of deletions, after the holders have had time to announce their copies.
    pub(super) fn answer_deleters(&mut self, world: &mut World<'_>, id: &ObjectId) {
        let now = world.now;
        let Some(entry) = self.entries.get_mut(id) else { return };
        let due = entry.take_deleters(|until| until <= now);
        match &mut entry.gone {
            Some(gone) => {
                gone.askers.extend(due);
                gone.answer(id, world.mail);
            }
            None => world.mail.extend(due.into_iter().map(|asker| deleted(id, asker))),
        }
    }

    /// Forwards a deletion to the owners, if this node is not one of them. The sender's membership view is stale, and
    /// the sender does not repeat the deletion when its view changes.
    pub(super) fn pass_on(&mut self, id: &ObjectId, world: &mut World<'_>) {
        let members = world.members;
        let owners = members.owners(id);
        if !owners.contains(members.me())
            && let Some(gone) = self.entries.get_mut(id).and_then(|entry| entry.gone.as_mut())
        {
            gone.tell(id, owners.iter(), world.mail);
        }
    }

    pub(super) fn dropped(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        mail: &mut Mail,
    ) {
        if let Some(gone) = self.entries.get_mut(id).and_then(|entry| entry.gone.as_mut()) {
            gone.dropping.remove(&(from, instance));
            gone.answer(id, mail);
        }
    }

    /// Returns the end of the object if it applies to a request from a node that has, or has not, `seen` the object. A
    /// deleted name is free: a later request waits for the next put. But a pruned version counts as gone while a newer
    /// one is live, because a program that follows [`Message::Latest`] may request it late. Only the primary owner
    /// has entries of all live versions.
    pub(super) fn end_for(&self, id: &ObjectId, seen: bool, members: &Members) -> Option<Error> {
        let gone = self.entries.get(id)?.gone.as_ref()?;
        let is_first = members.owners(id).first == members.me();
        let is_over = gone.concerns(id, seen) || gone.pruned && is_first && self.has_newer(id);
        is_over.then(|| gone.error(id))
    }

    /// Ends an object: every holder drops it, waiting nodes get the reason, and a tombstone remembers it for a while.
    pub(super) fn bury(
        &mut self,
        world: &mut World<'_>,
        id: &ObjectId,
        error: Error,
        mut instances: Vec<Instance>,
    ) {
        let now = world.now;
        let entry = self.entries.open(id);
        // An end that another owner repeats does not apply to requests that came after it.
        let is_moved = !instances.is_empty();
        let mut has_ended = !is_moved;
        let (mut dropping, mut askers) = (BTreeSet::new(), Vec::new());
        if let Some(live) =
            entry.live.take_if(|live| !is_moved || instances.contains(&live.instance))
        {
            live.drop_copies(id, Some(&error), world.mail);
            dropping.extend(live.tree.nodes().map(|holder| (holder, live.instance)));
            instances.push(live.instance);
            has_ended = true;
        }
        if entry.live.is_some() {
            return;
        }
        let is_void =
            |reserved: &mut Box<Reserved>| !is_moved || instances.contains(&reserved.instance);
        if let Some(reserved) = entry.reserved.take_if(is_void).map(|reserved| reserved.instance) {
            let (id, error) = (id.clone(), Some(error.clone()));
            world.mail.push((reserved.node, Message::Drop { id, instance: reserved, error }));
            dropping.insert((reserved.node, reserved));
            instances.push(reserved);
            has_ended = true;
        }
        // Later requesters wait for another object, which is not lost with this one.
        entry.orphan_since = None;
        if let Some(before) = entry.gone.take() {
            instances.extend(before.instances);
            dropping.extend(before.dropping);
            askers = before.askers;
        }
        let mut gone = Tombstone::new(id, instances, error.clone(), now + TOMBSTONE_NS);
        entry.tell_gone(id, &error, |seen| has_ended || gone.concerns(id, seen), world.mail);
        (gone.dropping, gone.askers) = (dropping, askers);
        entry.gone = Some(Box::new(gone));
        self.remember(now, id);
    }

    /// Remembers instances of a name that must not come back, while the name refers to another instance.
    pub(super) fn bury_older(
        &mut self,
        world: &mut World<'_>,
        id: &ObjectId,
        instances: &[Instance],
    ) {
        let now = world.now;
        let entry = self.entries.open(id);
        let is_old = |live: &mut Live| instances.contains(&live.instance);
        if let Some(old) = entry.live.take_if(is_old) {
            old.drop_copies(id, None, world.mail);
        }
        // Owners repeat this at each membership change; only the first report counts.
        let is_news = |instance: &&Instance| !entry.is_buried(now, instance);
        let news: Vec<Instance> = instances.iter().filter(is_news).copied().collect();
        if !news.is_empty() {
            entry.bury(now, &news, now + TOMBSTONE_NS);
            self.remember(now, id);
        }
    }

    /// Remembers what happened to an object for [`TOMBSTONE_NS`], or until [`REMEMBERED_MAX`] newer events exist. An
    /// object whose copies are not all dropped is not forgotten early.
    pub(super) fn remember(&mut self, now: Instant, id: &ObjectId) {
        self.remembered.push_back((now + TOMBSTONE_NS, id.clone()));
        while self.remembered.len() > REMEMBERED_MAX {
            let front = self.remembered.front().and_then(|(_, id)| self.entries.get(id));
            if front.is_some_and(|entry| entry.gone.as_ref().is_some_and(|gone| !gone.is_settled()))
            {
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

impl Entry {
    /// Removes and returns the delayed requesters of a deletion whose reply time matches.
    fn take_deleters(&mut self, is_meant: impl Fn(Instant) -> bool) -> Vec<(NodeId, RequestId)> {
        let mut taken = Vec::new();
        self.take_back(|asking| {
            let meant = asking.deleters.extract_if(.., |(.., until)| is_meant(*until));
            taken.extend(meant.map(|(node, request, _)| (node, request)));
        });
        taken
    }

    /// Frees a deleted name for another instance.
    pub(super) fn reuse(&mut self, world: &mut World<'_>, id: &ObjectId) {
        let now = world.now;
        world.mail.extend(self.take_deleters(|_| true).into_iter().map(|asker| deleted(id, asker)));
        let Some(mut gone) = self.gone.take() else { return };
        // The name refers to another object now: the client that deleted the old one need not wait for its last
        // copies.
        gone.dropping.clear();
        gone.answer(id, world.mail);
        self.bury(now, &gone.instances, gone.until);
    }
}

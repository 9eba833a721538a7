//! Announcements and withdrawals of copies by their holders.
//!
//! Of two instances under one name, every owner keeps the same one, whichever it received first: the lower of those
//! that are pinned somewhere. An owner that may have missed the end of the recorded instance accepts the other one,
//! and requests confirmation from the holders (`Reannounce`).

use alloc::{boxed::Box, format};

use super::{
    accounts::StoredInline,
    context::{Context, Outbox},
    deletion::slot_ended,
    entry::{Entry, Reserved},
    holder::Holder,
    live::Live,
    state::{Directory, Parked},
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    lifetime::Terms,
    limits::{ENTRIES_MAX, PARKED_MAX, SHARE_OF_ONE, limit_name},
    members::Members,
    message::{Announce, Message, Progress},
    mutants::{self, Mutant},
    time::Instant,
};

impl Directory {
    /// Records that a node has a copy or a part of one, or claims a name. Returns false if no node waits for the
    /// object.
    pub(super) fn announce(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        announce: &Announce,
    ) -> bool {
        let (now, members) = (context.now, context.members);
        let Announce { id, instance, claim, .. } = announce;
        let owners = members.owners(id);
        let (is_owner, is_primary_owner) =
            (owners.contains(members.me()), owners.primary == members.me());
        if let Some(reply) = self.refuse_fill(announce, context) {
            context.outbox.push((from, reply));
            return true;
        }
        let entry = self.entries.open(id);
        entry.free_if_lost(instance);
        // A claim is for another object than the reserved one, even if the same node reserved the name.
        if let Some(reserved) = entry.reserved.as_ref().filter(|_| *claim && !id.is_slot()) {
            context.outbox.push((from, announce.claimed(Some(reserved.instance.node))));
            return true;
        }
        // An instance has one size and shape. With another, this owner itself would send malformed messages.
        if entry.live.as_ref().is_some_and(|live| live.contradicts(announce)) {
            context.outbox.push((from, announce.refused(None)));
            return true;
        }
        if entry.rejects_deleted(context, from, announce, is_primary_owner) {
            return true;
        }
        // The name was deleted before this owner received the announcement.
        if !*claim && entry.has_deleters() {
            self.drop_deleted(context, from, announce);
            return true;
        }
        entry.reuse(context, id);
        let is_other = |reserved: &mut Box<Reserved>| {
            let Instance { node, serial } = reserved.instance;
            !id.is_slot() && (node != instance.node || serial > instance.serial)
        };
        if let Some(reserved) = entry.reserved.take_if(is_other).map(|other| other.instance) {
            // Two owners that did not know of each other granted the name: the object that already exists keeps it.
            let (id, taken_by) = (id.clone(), Some(instance.node));
            context
                .outbox
                .push((reserved.node, Message::Claimed { id, instance: reserved, taken_by }));
        }
        let is_same = entry.live.as_ref().is_some_and(|live| live.instance == *instance);
        if is_same && is_owner {
            entry.stray_until = Instant::default();
        }
        if *claim
            && let Some(live) = entry.live.as_ref().filter(|_| is_same)
            && live.tree.get(from).is_some()
        {
            // Another node has passed it on, later than the holder announced more.
            context.outbox.push((from, announce.claimed(None)));
            return true;
        }
        let is_rival = entry.live.as_ref().is_some_and(|live| live.instance.node != instance.node);
        if is_rival && now < self.catching_up_until {
            self.parked.retain(|parked| !parked.is(from, *instance));
            if self.parked.len() < PARKED_MAX {
                let (announce, charge) = self.accounts.hold(from, announce);
                self.parked.push(Parked::new(from, announce, charge));
                return true;
            }
            self.limited.push((from, limit_name!(PARKED_MAX)));
        }
        entry.lost.take_if(|lost| lost.0 == *instance);
        let was_lost = entry.is_lost();
        if !entry.yields_name(from, announce, members, context.outbox) {
            return true;
        }
        if is_owner {
            entry.stray_until = Instant::default();
        }
        let was_complete = entry.live.as_ref().is_some_and(Live::is_complete);
        let is_new = entry.live.is_none() || was_lost;
        let stays = |live: &mut Live| live.is_at_staying_node(members);
        let stayed = !members.has_leaving() || entry.live.as_mut().is_some_and(stays);
        let meta = || announce.meta.clone();
        let is_mine = instance.node == members.me();
        let is_granted = entry.reserved.is_some();
        let accounts = &mut self.accounts;
        let charge = (entry.live.is_none() && !is_mine).then(|| match is_granted {
            true => Some(accounts.open_granted(from)),
            false => accounts.open(from),
        });
        if let Some(None) = charge {
            // Readers can still find the copy at the other owner, if that has an entry for it.
            self.limited.push((from, limit_name!(ENTRIES_MAX)));
            if *claim {
                context.outbox.push((
                    from,
                    announce.refused(Some(too_many(members.me(), announce.meta.size))),
                ));
            }
            self.forget_if_empty(id);
            return true;
        }
        let new = || Live::new(*instance, meta(), now, charge.flatten(), self.recorded.add());
        let live = entry.live.get_or_insert_with(new);
        live.take(now, from, announce, is_primary_owner, context.outbox);
        let (mut is_brought, mut has_room) = (false, true);
        if let Progress::Inline(bytes) = &announce.progress
            && live.inline.is_none()
        {
            // Objects made by this node are not charged: its store has their bytes as long as the entry has.
            let charge = (!is_mine).then(|| self.accounts.charge(from, bytes.len())).flatten();
            (is_brought, has_room) = (true, is_mine || charge.is_some());
            if !core::mem::take(&mut live.bytes_requested) && !has_room {
                self.limited.push((from, limit_name!(INLINE_SHARE)));
            }
            live.inline = Some(Box::new(StoredInline::new(bytes.clone(), charge)));
        }
        live.move_receivers(context, from, id);
        if live.is_fed() {
            entry.orphan_since = None;
        }
        if *claim {
            context.outbox.push((from, announce.claimed(None)));
        }
        let (is_complete, lacks_bytes) = (live.is_complete(), live.lacks_bytes());
        // Until now only leaving nodes had it, where no reduce folds it any more.
        let is_better = is_complete && !was_complete || !stayed && stays(live);
        let is_news = is_new || is_brought || is_better;
        // The object that the name was reserved for is complete. Only its maker's copy counts: a reader may hold a
        // complete copy from an aborted attempt.
        let is_made = announce.progress.is_complete() && from == instance.node;
        if let Some(slot) = entry.reserved.take_if(|_| is_complete && id.is_slot()) {
            let (id, instance, taken_by) = (id.clone(), slot.instance, Some(from));
            context.outbox.push((members.me(), Message::Claimed { id, instance, taken_by }));
        }
        entry.reserved.take_if(|reserved| is_made && reserved.instance.node == from);
        entry.check_orphan(now, id, members, &mut self.alarms);
        // The steps below look the entry up again; few objects need them.
        let version = match id {
            ObjectId::Named(name) => name.prefix_and_version(),
            ObjectId::Minted { .. } => None,
        };
        let is_awaited = entry.subscribers().is_some()
            || version.is_some_and(|(prefix, version)| self.latest.awaits(prefix, version));
        if let Some(lifetime) = &announce.lifetime {
            self.bind(context, id, &Terms::from_lifetime(lifetime, now));
        }
        if is_awaited {
            self.wake(context, id, is_news);
        }
        if !has_room || lacks_bytes {
            self.store_bytes(id, *instance, from, has_room, context.outbox);
        }
        is_awaited
    }

    /// The reply to the put of a slot that takes no object any more. While it is open, an object that can't be completed
    /// gives way.
    fn refuse_fill(&mut self, announce: &Announce, context: &mut Context<'_>) -> Option<Message> {
        let Announce { id, instance, claim, .. } = announce;
        if !*claim || !id.is_slot() {
            return None;
        }
        let ended = || announce.refused(Some(slot_ended(id)));
        let Some(entry) = self.entries.get_mut(id) else { return Some(ended()) };
        let is_repeated = entry.live.as_ref().is_some_and(|live| live.instance == *instance);
        if is_repeated || entry.is_over(context.now, instance) {
            return None;
        }
        if entry.reserved.is_some() {
            if let Some(lost) = entry.live.take_if(|live| !live.is_fed()) {
                lost.drop_copies(id, None, context.outbox);
            }
            return None;
        }
        Some(match (&entry.tombstone, &entry.live) {
            (Some(tombstone), _) => announce.refused(Some(tombstone.error(id))),
            (None, Some(live)) => announce.claimed(Some(live.instance.node)),
            (None, None) => ended(),
        })
    }

    /// Drops or requests the bytes of a small object, after waiting nodes have received them. Without capacity the
    /// bytes are dropped, and requested from a holder when needed. With capacity, missing bytes are requested: those
    /// that were dropped before, or that were not part of the announcement.
    fn store_bytes(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        from: NodeId,
        has_room: bool,
        outbox: &mut Outbox,
    ) {
        let live = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut());
        let Some(live) = live.filter(|live| live.instance == instance) else { return };
        let maker = instance.node;
        let teller = if live.tree.get(maker).is_some() { maker } else { from };
        if !has_room {
            live.inline = None;
        } else if live.lacks_bytes() && self.accounts.has_room(teller, live.meta.size) {
            live.seek_bytes(id, outbox);
        }
    }

    pub(super) fn withdraw(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
    ) {
        let (now, members) = (context.now, context.members);
        self.parked.retain(|parked| parked.announce.id != *id || !parked.is(from, instance));
        if let Some(entry) = self.entries.get_mut(id) {
            let is_its = |reserved: &mut Box<Reserved>| reserved.instance == instance;
            entry.reserved.take_if(|reserved| is_its(reserved) && instance.node == from);
            let mut live = entry.live.as_mut().filter(|live| live.instance == instance);
            if let Some(live) = live.as_mut().filter(|_| instance.node == from && !id.is_slot()) {
                // Its maker gave it up before its name was confirmed. A slot is filled.
                live.inline = None;
            }
            if live.is_some_and(|live| live.remove_holder(from)) {
                entry.seek_bytes(id, context.outbox);
                self.check_orphan(now, id, members);
            }
        }
        self.forget_if_empty(id);
    }

    /// Removes a holder that has no such copy according to a requester that was sent there. Requesters are sent there
    /// again only after the holder has announced its copy again.
    pub(super) fn verify_copy(
        &mut self,
        context: &mut Context<'_>,
        holder: NodeId,
        id: &ObjectId,
        instance: Instance,
    ) {
        let (now, members) = (context.now, context.members);
        let live = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut());
        let live = live.filter(|live| live.instance == instance);
        if live.is_some_and(|live| live.remove_holder(holder)) {
            context.outbox.push((holder, Message::Reannounce { id: id.clone(), instance }));
            if let Some(entry) = self.entries.get_mut(id) {
                entry.seek_bytes(id, context.outbox);
            }
            self.check_orphan(now, id, members);
            self.forget_if_empty(id);
        }
    }

    /// Whether `holder` refused `requester` after its last announcement, to the knowledge of this owner.
    pub(super) fn is_refusal_news(&self, id: &ObjectId, requester: NodeId, holder: NodeId) -> bool {
        // If the refusal was older, but the copy is gone anyway, the next requester that is sent there reports it.
        match self.holder(id, requester).and_then(|requester| requester.located) {
            Some(located) => self.was_announced_before(id, holder, located),
            None => self.holder(id, holder).is_none_or(|holder| holder.announced_at.is_none()),
        }
    }

    /// Whether a holder has not announced its copy since `then`.
    pub(super) fn was_announced_before(
        &self,
        id: &ObjectId,
        holder: NodeId,
        then: Instant,
    ) -> bool {
        let announced_at = self.holder(id, holder).and_then(|holder| holder.announced_at);
        announced_at.is_none_or(|announced_at| announced_at <= then)
    }

    fn holder(&self, id: &ObjectId, node: NodeId) -> Option<&Holder> {
        self.entries.get(id)?.live.as_ref()?.tree.get(node)
    }
}

/// The error for a member that gets no further name at this owner, for an object of `needed` bytes.
pub(super) fn too_many(owner: NodeId, needed: u64) -> Error {
    let detail = format!(
        "node {owner}, the owner of the name, stores at most {} directory entries, {} of them for one node: delete objects",
        ENTRIES_MAX,
        ENTRIES_MAX / SHARE_OF_ONE
    );
    Error::NoMemory { needed, detail }
}

impl Announce {
    /// The reply to a claim of the name; `taken_by` is `None` if the claim is granted.
    fn claimed(&self, taken_by: Option<NodeId>) -> Message {
        Message::Claimed { id: self.id.clone(), instance: self.instance, taken_by }
    }

    /// The reply that makes the announcing node drop its copy.
    pub(super) fn refused(&self, error: Option<Error>) -> Message {
        Message::Drop { id: self.id.clone(), instance: self.instance, error }
    }
}

impl Entry {
    /// Whether the announced instance was deleted; if so, notifies its holder.
    fn rejects_deleted(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        announce: &Announce,
        is_primary_owner: bool,
    ) -> bool {
        let now = context.now;
        let Announce { id, instance, claim, .. } = announce;
        let mut is_void = self.is_buried(now, instance);
        if let Some(tombstone) = &mut self.tombstone {
            // A result, or the next attempt at it, which its maker announced before it received the deletion.
            let is_earlier = |(node, dropped): &(NodeId, Instance)| {
                *node == from && dropped.node == instance.node && dropped.serial < instance.serial
            };
            if !*claim && is_primary_owner && tombstone.dropping.iter().any(is_earlier) {
                tombstone.instances.push(*instance);
                tombstone.known_to.clear();
                tombstone.dropping.insert((from, *instance));
            }
            // A deletion of a generated id applies to all instances of it, a deletion of a name only to those that
            // ended.
            is_void |= id.minter().is_some() || tombstone.instances.contains(instance);
        }
        if !is_void || mutants::is_active(Mutant::ForgetsDeletions) {
            return false;
        }
        if *claim {
            // It was deleted before the node of the put received the reply to its claim.
            context.outbox.push((from, announce.claimed(None)));
        }
        let error = self.tombstone.as_ref().map(|tombstone| tombstone.error(id));
        if error.is_some() && !*claim {
            // The holder fails the gets of its clients with this error.
            self.drop_waiter(from);
        }
        context.outbox.push((from, announce.refused(error)));
        true
    }

    /// Whether the announced instance has the name, or takes it from another instance, whose holders then drop or
    /// confirm it.
    fn yields_name(
        &mut self,
        from: NodeId,
        announce: &Announce,
        members: &Members,
        outbox: &mut Outbox,
    ) -> bool {
        let Announce { id, instance, pinned, claim, .. } = announce;
        // The node of a slot decides which object fills it.
        let minter = id.minter().filter(|minter| id.is_slot() && members.contains(*minter));
        let is_first = minter == Some(members.me());
        let is_doubtful = self.is_doubtful() || minter.is_some() && !is_first;
        let is_lost = self.is_lost();
        let is_other = |live: &mut Live| live.instance != *instance;
        let Some(other) = self.live.take_if(is_other) else { return true };
        // A later epoch of the same maker replaces its earlier ones. If two objects were put under one name while
        // their nodes did not agree on its owner, every owner keeps the lower one; otherwise both would be dropped.
        let replaces = if other.instance.node == instance.node {
            // The maker's latest announcement counts: the former owner may have granted the name to the instance with
            // the lower serial.
            other.instance.serial < instance.serial || from == instance.node && !*claim
        } else if minter.is_some() {
            is_first && is_lost
        } else {
            // A pinned copy wins over cached copies without one: the other owner may know of none of those.
            is_lost || *pinned && (*instance < other.instance || !other.has_pinned())
        };
        let is_sticky = mutants::is_active(Mutant::KeepsFirstAnnounced) && !is_lost;
        let is_void = replaces && (!*claim || is_lost) && !is_sticky;
        if is_void || is_doubtful {
            for holder in other.tree.nodes().filter(|holder| *holder != from) {
                let (id, instance) = (id.clone(), other.instance);
                // The other owner may keep the instance that this one doubts, and refuse the announced one.
                let message = match is_void {
                    true => Message::Drop { id, instance, error: None },
                    false => Message::Reannounce { id, instance },
                };
                outbox.push((holder, message));
            }
            return true;
        }
        let reply = match claim {
            true if mutants::is_active(Mutant::GrantsNamesTwice) => announce.claimed(None),
            true => announce.claimed(Some(other.instance.node)),
            false => announce.refused(None),
        };
        outbox.push((from, reply));
        self.live = Some(other);
        false
    }
}

impl Live {
    /// Whether an announcement of the same instance describes another object.
    fn contradicts(&self, announce: &Announce) -> bool {
        self.instance == announce.instance && self.meta != announce.meta
    }

    /// Records the announcement of a holder.
    fn take(
        &mut self,
        now: Instant,
        from: NodeId,
        announce: &Announce,
        is_primary_owner: bool,
        outbox: &mut Outbox,
    ) {
        let (complete, source) = match &announce.progress {
            Progress::Inline(_) | Progress::Complete => (true, None),
            Progress::Partial { source } => (false, *source),
            Progress::Parts => (false, None),
        };
        if from == self.instance.node {
            self.by_parts = announce.progress == Progress::Parts;
        }
        // A receiver with a pending move still receives from its former source.
        let is_moving = source.is_some() && self.tree.moving_from(from) == source;
        let holder = self.tree.enter(from, complete, announce.pinned);
        holder.announced_at = Some(now);
        holder.began = holder.began.or(source.map(|_| now));
        match source {
            _ if is_moving => {}
            None => self.tree.detach(from),
            // Two owners that did not know of each other's assignments can make copies receive from each other. Only
            // the primary owner breaks the circle: if both did, both sides might restart forever.
            Some(source) if !self.tree.attach(from, source) && is_primary_owner => {
                outbox.push((from, announce.refused(None)));
            }
            Some(_) => {}
        }
    }
}

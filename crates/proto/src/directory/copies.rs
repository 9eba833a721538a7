//! Announcements and withdrawals of copies by their holders.
//!
//! Of two instances under one name, the primary owner keeps the lower of those that are pinned
//! somewhere, whichever it received first. Any other owner, and one that may have missed the end of
//! the recorded instance, accepts the instance announced last, unless it claims the name, and
//! requests confirmation from the holders of the other one (`Reannounce`). If they have it, the
//! primary owner decides.

use alloc::{boxed::Box, format};

use super::{
    accounts::{Accounts, EntryCharge, StoredInline},
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

/// How long an owner that is not the primary one keeps an object before it accepts another one of
/// the same name. If both exist, their holders announce them in turn until the primary owner has
/// decided.
const PARKED_NS: u64 = 100_000_000;

impl Directory {
    /// Records that a node has a copy or a part of one, or claims a name. Returns false if no node
    /// waits for the object.
    pub(super) fn announce(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        announce: &Announce,
    ) -> bool {
        if announce.progress == Progress::Stored(None) {
            self.reply_to_offer(context, from, announce);
            return true;
        }
        if !self.has_name(context, from, announce) {
            return true;
        }
        let Some(recorded) = self.record(context, from, announce) else { return true };
        let id = &announce.id;
        // The steps below look the entry up again; few objects need them.
        let is_awaited = recorded.has_questions || self.is_followed(id);
        if let Some(lifetime) = &announce.lifetime {
            self.bind(context, id, &Terms::from_lifetime(lifetime, context.now));
        }
        if is_awaited {
            self.wake(context, id, recorded.is_news);
        }
        if !recorded.has_room || recorded.lacks_bytes {
            self.store_bytes(id, announce.instance, from, recorded.has_room, context.outbox);
            // No node may have a copy.
            self.check_orphan(context.now, id, context.members);
        }
        is_awaited
    }

    /// Whether the announced instance has the name, or gets it now. If not, its holder gets the
    /// reason, or later a reply.
    fn has_name(&mut self, context: &mut Context<'_>, from: NodeId, announce: &Announce) -> bool {
        let members = context.members;
        let Announce { id, instance, claim, .. } = announce;
        let owners = members.owners(id);
        if let Some(reply) = self.refuse_fill(announce, context) {
            context.outbox.push((from, reply));
            return false;
        }
        let entry = self.entries.open(id);
        entry.free_if_lost(instance);
        if let Some(reply) = entry.refuse(announce) {
            context.outbox.push((from, reply));
            return false;
        }
        if entry.rejects_deleted(context, from, announce, owners.primary == members.me()) {
            // Its reservation may have come after its end.
            entry.reserved.take_if(|reserved| announce.fulfills(from, reserved.instance));
            self.forget_if_empty(id);
            return false;
        }
        // The name was deleted before this owner received the announcement.
        if !*claim && entry.has_deleters() {
            self.drop_deleted(context, from, announce);
            return false;
        }
        entry.reuse(context, &mut self.asked);
        entry.end_other_reservation(announce, context.outbox);
        let known = entry.live.as_ref().filter(|live| live.instance == *instance);
        let is_passed_on = *claim && known.is_some_and(|live| live.tree.get(from).is_some());
        if known.is_some() && owners.contains(members.me()) {
            entry.stray_until = Instant::default();
        }
        if is_passed_on {
            // Another node has passed it on, later than the holder announced more.
            context.outbox.push((from, announce.claimed(None)));
            return false;
        }
        let rival = entry.live.as_ref().filter(|live| live.instance.node != instance.node);
        // The recorded object was confirmed a moment ago: the primary owner may be about to decide.
        let is_new = |live: &Live| context.now < live.since + PARKED_NS;
        let may_change = !*claim && owners.primary != members.me() && rival.is_some_and(is_new);
        let entry = if rival.is_some() && (may_change || context.now < self.catching_up_until) {
            if self.park(context.now, from, announce) {
                return false;
            }
            self.entries.open(id)
        } else {
            entry
        };
        entry.lost.take_if(|lost| lost.0 == *instance);
        entry.yields_name(from, announce, members, context.outbox)
    }

    /// Keeps the announcement of another instance for a while, and until this owner has caught up.
    /// Returns false if too many are kept.
    fn park(&mut self, now: Instant, from: NodeId, announce: &Announce) -> bool {
        self.parked.retain(|parked| !parked.is(from, announce.instance));
        if self.parked.is_empty() {
            self.parked_until = now + PARKED_NS;
        }
        if self.parked.len() >= PARKED_MAX {
            self.limited.push((from, limit_name!(PARKED_MAX)));
            return false;
        }
        let (announce, charge) = self.accounts.hold(from, announce);
        self.parked.push(Parked::new(from, announce, charge));
        true
    }

    /// Records the holder of an instance that has the name, and its bytes if there is capacity for
    /// them. Ends the reservation that it fulfills. Returns `None` if the member has too many
    /// entries.
    fn record(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        announce: &Announce,
    ) -> Option<Recorded> {
        let (now, members) = (context.now, context.members);
        let Announce { id, instance, claim, .. } = announce;
        let (me, owners) = (members.me(), members.owners(id));
        let entry = self.entries.open(id);
        if owners.contains(me) {
            entry.stray_until = Instant::default();
        }
        let before = Before::of(entry, members);
        if entry.live.is_none() {
            let Ok(charge) = charge_entry(entry, from, announce, me, &mut self.accounts) else {
                // Readers can still find the copy at the other owner, if that has an entry for it.
                self.limited.push((from, limit_name!(ENTRIES_MAX)));
                if *claim {
                    let error = Some(too_many(me, announce.meta.size));
                    context.outbox.push((from, announce.refused(error)));
                }
                self.forget_if_empty(id);
                return None;
            };
            if entry.reserved.is_none() {
                // The source of this copy gets a grace period from now on.
                entry.orphan_since = None;
            }
            let (meta, counted) = (announce.meta.clone(), self.recorded.add());
            entry.live = Some(Live::new(*instance, meta, now, charge, counted));
            self.versions.insert(id);
        }
        let live = entry.live.as_mut()?;
        live.take(now, from, announce, owners.primary == me, context.outbox);
        let (mut is_brought, mut has_room) = (false, true);
        if let Some(bytes) = announce.progress.bytes()
            && live.inline.is_none()
        {
            // Objects made by this node are not charged: its store has their bytes as long as the
            // entry has.
            let is_mine = instance.node == me;
            let charge = (!is_mine).then(|| self.accounts.charge(from, bytes.len())).flatten();
            (is_brought, has_room) = (true, is_mine || charge.is_some());
            if !core::mem::take(&mut live.bytes_requested) && !has_room {
                self.limited.push((from, limit_name!(INLINE_SHARE)));
            }
            live.inline = Some(Box::new(StoredInline::new(bytes.clone(), charge)));
        }
        live.move_receivers(context, from, id);
        if *claim {
            context.outbox.push((from, announce.claimed(None)));
        }
        let is_news = is_brought || before.is_improved_by(live, members);
        let lacks_bytes = live.lacks_bytes();
        entry.fulfill_reservation(from, announce, me, context.outbox);
        entry.check_orphan(now, id, members, &mut self.alarms);
        let has_questions = entry.has_questions();
        Some(Recorded { is_news, has_room, lacks_bytes, has_questions })
    }

    /// The reply to the put of a slot that takes no object any more. While it is open, an object
    /// that can't be completed gives way.
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

    /// Drops or requests the bytes of a small object, after waiting nodes have received them.
    /// Without capacity the bytes are dropped, and requested from a holder when needed. With
    /// capacity, missing bytes are requested: those that were dropped before, or that were not part
    /// of the announcement.
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
            let is_new = live.as_ref().is_some_and(|live| !live.was_fed);
            if live.is_some_and(|live| live.withdraw(from)) {
                entry.seek_bytes(id, context.outbox);
                if is_new || self.unsettled_until(now).is_some() {
                    // The holder may have announced nothing to an owner that joined, which may have
                    // deleted the object while this node did not own it.
                    self.offer_stored(context, id);
                }
            }
        }
        // The last copy may have gone while the name was reserved.
        self.check_orphan(now, id, members);
        self.forget_if_empty(id);
    }

    /// Removes a holder that has no such copy according to a requester that was sent there.
    /// Requesters are sent there again only after the holder has announced its copy again.
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

    /// Requests confirmation of what is recorded of an object that this node has not owned for a
    /// while: it may have missed the end of copies, or of a reservation.
    pub(super) fn verify_entry(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.stray_until = Instant::default();
        if let Some(live) = &mut entry.live {
            live.was_fed = false;
            live.verify(id, live.tree.nodes(), context.outbox);
        }
        if let Some(reserved) = entry.reserved.as_ref().filter(|_| !id.is_slot()) {
            // Its node withdraws it if it has ended.
            let (id, instance) = (id.clone(), reserved.instance);
            let confirmed = Message::Claimed { id, instance, taken_by: None };
            context.outbox.push((instance.node, confirmed));
        }
    }

    /// Whether `holder` refused `requester` after its last announcement, to the knowledge of this
    /// owner.
    pub(super) fn is_refusal_news(&self, id: &ObjectId, requester: NodeId, holder: NodeId) -> bool {
        // If the refusal was older, but the copy is gone anyway, the next requester that is sent
        // there reports it.
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
        "node {owner}, the owner of the name, stores at most {} directory entries, {} of them for \
         one node: delete objects",
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

    /// Whether it ends the reservation of its name. Only its maker's copy counts: a reader may hold
    /// a complete copy from an aborted attempt.
    fn fulfills(&self, from: NodeId, reserved: Instance) -> bool {
        let is_made = self.progress.is_complete() && from == self.instance.node;
        is_made && reserved.node == from && reserved.serial < self.instance.serial
    }

    /// The reply that makes the announcing node drop its copy.
    pub(super) fn refused(&self, error: Option<Error>) -> Message {
        Message::Drop { id: self.id.clone(), instance: self.instance, error }
    }
}

/// What an announcement has changed.
struct Recorded {
    /// Whether it changes the replies to watchers.
    is_news: bool,
    /// Whether there is capacity for the bytes of a small object.
    has_room: bool,
    /// Whether it is a small object whose bytes are only at its holders.
    lacks_bytes: bool,
    has_questions: bool,
}

/// The state of an entry before an announcement.
struct Before {
    /// Whether it has no instance, or one that is lost or whose bytes nobody has announced.
    was_empty: bool,
    was_complete: bool,
    /// Whether a member that is not leaving holds it.
    stayed: bool,
}

impl Before {
    fn of(entry: &mut Entry, members: &Members) -> Self {
        let is_unfed = |live: &Live| !live.was_fed && !live.is_fed();
        let was_empty = !entry.is_alive() || entry.live.as_ref().is_some_and(is_unfed);
        let was_complete = entry.live.as_ref().is_some_and(Live::is_complete);
        let stays = |live: &mut Live| live.is_at_staying_node(members);
        let stayed = !members.has_leaving() || entry.live.as_mut().is_some_and(stays);
        Self { was_empty, was_complete, stayed }
    }

    /// Whether a reduce can fold it now, and not before: only leaving nodes may have had it.
    fn is_improved_by(&self, live: &mut Live, members: &Members) -> bool {
        self.was_empty
            || live.is_complete() && !self.was_complete
            || !self.stayed && live.is_at_staying_node(members)
    }
}

/// Charges a member for the entry of an instance that it announces first; `None` if this node made
/// the object.
///
/// # Errors
/// `Err` if the member has too many entries. The name of a reduce is granted already, and not
/// refused any more.
fn charge_entry(
    entry: &Entry,
    from: NodeId,
    announce: &Announce,
    me: NodeId,
    accounts: &mut Accounts,
) -> Result<Option<EntryCharge>, ()> {
    if announce.instance.node == me {
        return Ok(None);
    }
    if entry.reserved.is_some() {
        return Ok(Some(accounts.open_granted(from)));
    }
    accounts.open(from).map(Some).ok_or(())
}

impl Entry {
    /// The reply to an announcement that the reservation or the instance of the name rules out.
    fn refuse(&self, announce: &Announce) -> Option<Message> {
        // A claim is for another object than the reserved one, even if the same node reserved the
        // name.
        let is_claim = announce.claim && !announce.id.is_slot();
        if let Some(reserved) = self.reserved.as_ref().filter(|_| is_claim) {
            return Some(announce.claimed(Some(reserved.instance.node)));
        }
        // An instance has one size and shape. With another, this owner itself would send malformed
        // messages.
        let is_other = self.live.as_ref().is_some_and(|live| live.contradicts(announce));
        is_other.then(|| announce.refused(None))
    }

    /// Ends a reservation of the name for another object than the announced one: two owners that
    /// did not know of each other granted the name, and the object that already exists keeps it.
    fn end_other_reservation(&mut self, announce: &Announce, outbox: &mut Outbox) {
        let Announce { id, instance, .. } = announce;
        let is_other = |reserved: &mut Box<Reserved>| {
            let Instance { node, serial } = reserved.instance;
            !id.is_slot() && (node != instance.node || serial > instance.serial)
        };
        if let Some(reserved) = self.reserved.take_if(is_other).map(|other| other.instance) {
            let (id, taken_by) = (id.clone(), Some(instance.node));
            outbox.push((reserved.node, Message::Claimed { id, instance: reserved, taken_by }));
        }
    }

    /// Ends the reservation of a name or slot whose object is complete.
    fn fulfill_reservation(
        &mut self,
        from: NodeId,
        announce: &Announce,
        me: NodeId,
        outbox: &mut Outbox,
    ) {
        let id = &announce.id;
        if let Some(live) = self.live.as_mut().filter(|live| live.is_fed()) {
            live.was_fed = true;
            self.orphan_since = None;
        }
        let is_complete = self.live.as_ref().is_some_and(Live::is_complete);
        if let Some(slot) = self.reserved.take_if(|_| is_complete && id.is_slot()) {
            let (id, instance, taken_by) = (id.clone(), slot.instance, Some(from));
            outbox.push((me, Message::Claimed { id, instance, taken_by }));
        }
        self.reserved.take_if(|reserved| announce.fulfills(from, reserved.instance));
    }

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
            // A result, or the next attempt at it, which its maker announced before it received the
            // deletion.
            let is_earlier = |(node, dropped): &(NodeId, Instance)| {
                *node == from && dropped.node == instance.node && dropped.serial < instance.serial
            };
            if !*claim && is_primary_owner && tombstone.dropping.iter().any(is_earlier) {
                tombstone.instances.push(*instance);
                tombstone.known_to.clear();
                tombstone.dropping.insert((from, *instance));
            }
            // A deletion of a generated id applies to all instances of it, a deletion of a name
            // only to those that ended.
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
        context.outbox.push((from, announce.refused(error)));
        true
    }

    /// Whether the announced instance has the name, or takes it from another instance, whose
    /// holders then drop or confirm it.
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
        // Only the primary owner has granted all claims of the name. Another one may receive the
        // next object before it receives the end of the last one.
        let is_primary = members.owners(id).primary == members.me();
        let is_doubtful =
            self.is_doubtful() || minter.is_some() && !is_first || !is_primary && !*claim;
        let is_lost = self.is_lost();
        let is_other = |live: &mut Live| live.instance != *instance;
        let Some(other) = self.live.take_if(is_other) else { return true };
        // A later epoch of the same maker replaces its earlier ones. If two objects were put under
        // one name while their nodes did not agree on its owner, the lower one stays.
        let replaces = if other.instance.node == instance.node {
            // The maker's latest announcement counts: the former owner may have granted the name to
            // the instance with the lower serial.
            other.instance.serial < instance.serial || from == instance.node && !*claim
        } else if minter.is_some() {
            is_first && is_lost
        } else {
            // A pinned copy wins over cached copies without one: the other owner may know of none
            // of those.
            is_lost || *pinned && (*instance < other.instance || !other.has_pinned())
        };
        let is_sticky = mutants::is_active(Mutant::KeepsFirstAnnounced) && !is_lost;
        let is_void = replaces && (!*claim || is_lost) && !is_sticky;
        if is_void || is_doubtful {
            for holder in other.tree.nodes().filter(|holder| *holder != from) {
                let (id, instance) = (id.clone(), other.instance);
                // The other owner may keep the instance that this one doubts, and refuse the
                // announced one.
                let message = match is_void && is_primary {
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

    /// Records the holder that sent an announcement, unless an owner without a copy did.
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
            Progress::Stored(_) => return,
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
            // Two owners that did not know of each other's assignments can make copies receive from
            // each other. Only the primary owner breaks the circle: if both did, both sides might
            // restart forever.
            Some(source) if !self.tree.attach(from, source) && is_primary_owner => {
                outbox.push((from, announce.refused(None)));
            }
            Some(_) => {}
        }
    }
}

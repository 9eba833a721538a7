//! The directory entry of one object: its live state or the reason why it is gone, and who waits
//! for it.
//!
//! Does not know messages, time, or which holder sends to which.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use core::net::SocketAddr;

use super::{
    accounts::EntryCharge,
    context::Outbox,
    live::Live,
    questions::{Asker, EntryQuestions, Kind, OpenQuestion, OpenQuestions},
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    limits::{BURIED_MAX, ORPHAN_GRACE_NS, REMEMBERED_WORDS_BYTES},
    members::Members,
    message::Message,
    mutants::{self, Mutant},
    question::Answer,
    time::Instant,
};

/// Directory entry of one object. There can be millions, most of them live and without requesters:
/// rare parts are boxed.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) live: Option<Live>,
    pub(super) tombstone: Option<Box<Tombstone>>,
    /// Earlier instances of the name, and until when each is remembered.
    buried: Option<Box<FormerInstances>>,
    pub(super) questions: Option<Box<EntryQuestions>>,
    /// The instance whose last copy was lost, and until when it is remembered. Its holder may come
    /// back, and then must learn of a deletion that happened meanwhile.
    pub(super) lost: Option<Box<(Instance, Instant)>>,
    /// The client or reduce for which the name is reserved. If `orphan_since` is set too, its node
    /// is gone, and only that node can still repeat the reservation.
    pub(super) reserved: Option<Box<Reserved>>,
    /// When the last copy was lost that is complete or can still become complete.
    pub(super) orphan_since: Option<Instant>,
    /// Until when the entry is kept although other nodes own it.
    pub(super) stray_until: Instant,
    /// The number of the last membership change that was applied to this entry.
    pub(super) changes_seen: u32,
}

/// A name that is reserved for an object of a client, or for the result of a reduce; or a slot that
/// is not filled.
#[derive(Debug)]
pub(super) struct Reserved {
    /// Identifies the reservation.
    pub(super) instance: Instance,
    /// The address of its node, which names the host after the node is gone.
    address: Option<SocketAddr>,
    _charge: Option<EntryCharge>,
}

impl Reserved {
    pub(super) fn new(instance: Instance, members: &Members, charge: Option<EntryCharge>) -> Self {
        Self { instance, address: members.address(instance.node), _charge: charge }
    }

    /// Why its object can't appear after its node is gone.
    pub(super) fn lost_detail(&self) -> String {
        let node = self.instance.node;
        let host = self.address.map(|address| format!(" ({address})")).unwrap_or_default();
        format!("node {node}{host}, which had reserved the name, left or failed before the put")
    }
}

/// Earlier instances, each with the time until which it is remembered.
#[derive(Debug, Default)]
struct FormerInstances(BTreeMap<Instance, Instant>);

/// A deleted, failed or lost object. Thousands are remembered: rare parts are boxed.
#[derive(Debug)]
pub(super) struct Tombstone {
    pub(super) instances: Vec<Instance>,
    /// Why it is gone; `None` if the object itself was deleted.
    pub(super) reason: Option<Box<Error>>,
    /// Whether it was pruned: a newer version replaced it.
    pub(super) pruned: bool,
    pub(super) until: Instant,
    /// Copies whose holders have not confirmed that they dropped them.
    pub(super) dropping: BTreeSet<(NodeId, Instance)>,
    /// Owners to which this node has sent the deletion, or from which it received it.
    pub(super) known_to: Vec<NodeId>,
}

impl Tombstone {
    /// Creates a tombstone for `instances`, which are gone because of `error`, remembered until
    /// `until`.
    pub(super) fn new(
        id: &ObjectId,
        mut instances: Vec<Instance>,
        error: Error,
        until: Instant,
    ) -> Self {
        instances.sort_unstable();
        instances.dedup();
        if instances.len() > BURIED_MAX {
            // Serial numbers of one node only grow, so this drops the oldest.
            instances.sort_unstable_by_key(|instance| (instance.serial, instance.node));
            instances.drain(..instances.len() - BURIED_MAX);
        }
        instances.shrink_to_fit();
        // If the deletion of an input ended a result, the error names the input: then it is kept as
        // the reason.
        let is_deleted = matches!(&error, Error::ObjectDeleted { id: deleted } if deleted == id);
        let reason = (!is_deleted).then(|| Box::new(error.shortened(REMEMBERED_WORDS_BYTES)));
        let (dropping, known_to) = (BTreeSet::new(), Vec::new());
        Self { instances, reason, pruned: false, until, dropping, known_to }
    }

    /// Returns why `id`, the object of this tombstone, is gone.
    pub(super) fn error(&self, id: &ObjectId) -> Error {
        let reason = self.reason.as_deref();
        reason.cloned().unwrap_or_else(|| Error::ObjectDeleted { id: id.clone() })
    }

    /// Whether it applies to a request for `id` from a node that has, or has not, `seen` the
    /// object.
    pub(super) fn concerns(&self, id: &ObjectId, seen: bool) -> bool {
        seen || id.is_unique() || self.reason.is_some()
    }

    /// Frees a name that was deleted after its object was already gone.
    pub(super) fn free(&mut self, id: &ObjectId) {
        if !id.is_unique() {
            (self.reason, self.pruned) = (None, false);
        }
    }

    /// Sends the deletion to the owners that neither received it from this node nor sent it.
    pub(super) fn send_to(
        &mut self,
        id: &ObjectId,
        owners: impl Iterator<Item = NodeId>,
        outbox: &mut Outbox,
    ) {
        let Some(report) = self.report(id) else { return };
        for owner in owners {
            if !self.known_to.contains(&owner) {
                self.known_to.push(owner);
                outbox.push((owner, report.clone()));
            }
        }
    }

    /// The deletion as other owners get it.
    pub(super) fn report(&self, id: &ObjectId) -> Option<Message> {
        // Without an instance, the receiver would end whatever object has the name there.
        let is_clear = id.minter().is_some() || !self.instances.is_empty();
        let last = self.instances.len().saturating_sub(BURIED_MAX);
        let (instances, error) = (self.instances[last..].to_vec(), Some(self.error(id)));
        let (id, pruned) = (id.clone(), self.pruned);
        is_clear.then_some(Message::Tombstone { id, instances, error, pruned })
    }

    /// Sends the drop requests again: a holder that did not consider this node an owner has ignored
    /// them.
    pub(super) fn drop_again(&self, id: &ObjectId, outbox: &mut Outbox) {
        for (holder, instance) in &self.dropping {
            let (id, instance, error) = (id.clone(), *instance, Some(self.error(id)));
            outbox.push((*holder, Message::Drop { id, instance, error }));
        }
    }

    /// Records that a holder has dropped its copy.
    pub(super) fn dropped(&mut self, holder: NodeId, instance: Instance) {
        self.dropping.remove(&(holder, instance));
        self.free_if_settled();
    }

    /// Records that a holder is gone.
    pub(super) fn forget_holder(&mut self, node: NodeId) {
        self.dropping.retain(|(holder, _)| *holder != node);
        self.free_if_settled();
    }

    fn free_if_settled(&mut self) {
        if self.dropping.is_empty() {
            // An emptied `BTreeSet` keeps its root node: replace it to free the memory.
            self.dropping = BTreeSet::new();
        }
    }

    /// Whether every holder has dropped its copy or is gone.
    pub(super) fn is_settled(&self) -> bool {
        self.dropping.is_empty()
    }
}

impl Entry {
    /// Creates an empty entry to which all membership changes up to `changes_seen` are applied.
    pub(super) fn new(changes_seen: u32) -> Self {
        Self { changes_seen, ..Self::default() }
    }

    /// Whether a copy exists that is complete or can still become complete.
    pub(super) fn is_alive(&self) -> bool {
        self.live.is_some() && !self.is_lost()
    }

    /// Whether its last instance can no longer be completed, so that another instance may take its
    /// place.
    pub(super) fn is_lost(&self) -> bool {
        // While the name is reserved, `orphan_since` is not set, even if no node has the earlier
        // object.
        let is_void = |live: &Live| live.inline.is_none() && live.tree.is_empty();
        let is_awaited = |live: &Live| live.unannounced_sources().next().is_some();
        let is_orphan = self.orphan_since.is_some() && !self.live.as_ref().is_some_and(is_awaited);
        is_orphan || self.live.as_ref().is_some_and(is_void)
    }

    /// Whether this node did not own the entry for a while, and may have missed what happened to
    /// its name.
    pub(super) fn is_doubtful(&self) -> bool {
        self.stray_until != Instant::default()
    }

    /// The node that created the object or reserved its name.
    pub(super) fn maker(&self) -> Option<NodeId> {
        let live = self.live.as_ref().map(|live| live.instance);
        let reserved = self.reserved.as_ref().map(|reserved| reserved.instance);
        live.or(reserved).map(|instance| instance.node)
    }

    /// Frees a name that a node reserved which is gone, for another instance than that of the
    /// reservation.
    pub(super) fn free_if_lost(&mut self, instance: &Instance) {
        let is_lost = self.orphan_since.is_some();
        self.reserved.take_if(|reserved| is_lost && reserved.instance != *instance);
    }

    /// Remembers `instances` as earlier instances of the name, and forgets those whose time has
    /// passed.
    pub(super) fn bury(&mut self, now: Instant, instances: &[Instance], until: Instant) {
        let mut buried = self.buried.take().unwrap_or_default();
        buried.0.retain(|_, until| *until > now);
        buried.0.extend(instances.iter().map(|instance| (*instance, until)));
        while buried.0.len() > BURIED_MAX {
            let first = buried.0.iter().min_by_key(|(_, until)| **until).map(|(first, _)| *first);
            let Some(first) = first else { break };
            buried.0.remove(&first);
        }
        self.buried = Some(buried).filter(|buried| !buried.0.is_empty());
    }

    /// Whether `instance` is remembered as an earlier instance of the name.
    pub(super) fn is_buried(&self, now: Instant, instance: &Instance) -> bool {
        let until = self.buried.as_ref().and_then(|buried| buried.0.get(instance));
        until.is_some_and(|until| *until > now)
    }

    /// Whether this instance of the name has ended, whatever the name refers to now.
    pub(super) fn is_over(&self, now: Instant, instance: &Instance) -> bool {
        self.tombstone.as_ref().is_some_and(|tombstone| tombstone.instances.contains(instance))
            || self.is_buried(now, instance)
    }

    /// The earlier instances that are still remembered.
    pub(super) fn buried(&self, now: Instant) -> impl Iterator<Item = Instance> {
        let all = self.buried.iter().flat_map(|buried| buried.0.iter());
        all.filter(move |(_, until)| **until > now).map(|(instance, _)| *instance)
    }

    /// Forgets what was to be remembered until `then`.
    pub(super) fn forget(&mut self, then: Instant) {
        self.tombstone.take_if(|tombstone| tombstone.until <= then);
        self.lost.take_if(|lost| lost.1 <= then);
        self.bury(then, &[], then);
    }

    /// Starts the grace period before the loss is reported to requesters, if no remaining node can
    /// have the object.
    pub(super) fn check_orphan(
        &mut self,
        now: Instant,
        id: &ObjectId,
        members: &Members,
        alarms: &mut BTreeSet<(Instant, ObjectId)>,
    ) {
        if self.orphan_since.is_some() {
            return;
        }
        let can_come = match id.minter() {
            // Any node can fill a slot while it is reserved, and none after that.
            Some(_) if id.is_slot_of(members.me()) => {
                self.live.is_none() || self.reserved.is_some()
            }
            // While the minter is a member it has the object, makes it, or reports that it cannot:
            // a reduce may restart. An owner may have missed that before it was one.
            Some(minter) => {
                let gave_it_up = self.live.as_ref().and_then(|live| live.abandoned_by.as_deref())
                    == Some(&minter);
                let was_fed = self.live.as_ref().is_none_or(|live| live.was_fed);
                members.contains(minter) && !gave_it_up && was_fed
            }
            // A name that no node has put yet, or that is reserved.
            None => self.live.is_none() || self.reserved.is_some(),
        };
        let is_fed = self.live.as_ref().is_some_and(Live::is_fed);
        if !can_come && !is_fed {
            self.begin_grace(now, id, alarms);
        }
    }

    /// Whether nothing is recorded of a name, or only its deletion.
    pub(super) fn is_unrecorded_name(&self, id: &ObjectId) -> bool {
        id.minter().is_none() && self.live.is_none() && self.reserved.is_none()
    }

    /// The same for a name that is not recorded at its primary owner: if its requesters have seen
    /// it at nodes that are gone, those that recorded it may be gone too.
    pub(super) fn check_unrecorded(
        &mut self,
        now: Instant,
        id: &ObjectId,
        members: &Members,
        alarms: &mut BTreeSet<(Instant, ObjectId)>,
    ) {
        if !self.is_unrecorded_name(id) {
            return;
        }
        if members.owners(id).primary != members.me() {
            self.orphan_since = None;
        } else if self.was_seen_at_gone(members) {
            self.begin_grace(now, id, alarms);
        }
    }

    /// Whether requesters have seen the object, all of them at nodes that have it no more: those
    /// are no members, or the requesters themselves, which would have announced it.
    pub(super) fn was_seen_at_gone(&self, members: &Members) -> bool {
        let asked = self.open(Kind::Source).chain(self.open(Kind::Watch));
        let mut seen = asked.filter(|(_, question)| question.seen_at.is_some()).peekable();
        let is_gone = |(asker, question): (Asker, &OpenQuestion)| {
            is_seen_at_gone(asker, question.seen_at, members)
        };
        seen.peek().is_some() && seen.all(is_gone)
    }

    pub(super) fn begin_grace(
        &mut self,
        now: Instant,
        id: &ObjectId,
        alarms: &mut BTreeSet<(Instant, ObjectId)>,
    ) {
        if self.tombstone.is_none() && self.orphan_since.is_none() {
            self.orphan_since = Some(now);
            alarms.insert((now + ORPHAN_GRACE_NS, id.clone()));
        }
    }

    /// Whether the entry records nothing and no node waits on it.
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_none()
            && self.tombstone.is_none()
            && self.questions.is_none()
            && self.lost.is_none()
            && self.buried.is_none()
            && self.reserved.is_none()
            && self.orphan_since.is_none()
    }

    /// Whether a node that deleted the name has no reply yet, because holders may still announce
    /// copies.
    pub(super) fn has_deleters(&self) -> bool {
        self.open(Kind::Delete).any(|(_, question)| question.until.is_some())
    }

    /// Requests the bytes of a small object from a holder, if requesters wait for them and this
    /// owner lacks them.
    pub(super) fn seek_bytes(&mut self, id: &ObjectId, outbox: &mut Outbox) {
        let is_wanted = self.has_open(Kind::Source) || self.has_open(Kind::Watch);
        if let Some(live) = self.live.as_mut().filter(|_| is_wanted) {
            live.seek_bytes(id, outbox);
        }
    }

    /// Replies to the nodes that do not know the current holders yet.
    pub(super) fn notify_locators(
        &mut self,
        id: &ObjectId,
        open: &mut OpenQuestions,
        outbox: &mut Outbox,
    ) {
        if !self.has_open(Kind::Locations) {
            return;
        }
        if let Some(tombstone) = &self.tombstone {
            let concerns =
                |question: &OpenQuestion| tombstone.concerns(id, question.seen_at.is_some());
            let error = tombstone.error(id);
            let ended = self.open(Kind::Locations).filter(|(_, question)| concerns(question));
            let ended: Vec<Asker> = ended.map(|(asker, _)| asker).collect();
            for asker in ended {
                self.close(Kind::Locations, asker, open);
                outbox.push(answer(asker, Answer::Gone(error.clone())));
            }
        }
        let holdings = self.live.as_ref().map_or_else(Vec::new, Live::holdings);
        let is_news = |question: &OpenQuestion| question.known.as_ref() != Some(&holdings);
        for asker in self.close_all(Kind::Locations, is_news, open) {
            outbox.push(answer(asker, Answer::Locations(holdings.clone())));
        }
    }

    /// Replies to the nodes that deleted the object, once no copy is left that a node could be sent
    /// to.
    pub(super) fn answer_deletions(
        &mut self,
        now: Instant,
        open: &mut OpenQuestions,
        outbox: &mut Outbox,
    ) {
        if self.tombstone.as_ref().is_none_or(|tombstone| tombstone.is_settled()) {
            let is_due = |question: &OpenQuestion| question.until.is_none_or(|until| until <= now);
            self.close_deletions(is_due, open, outbox);
        }
    }

    /// The same for the deletions for which `is_due` returns true. Where this owner may not have
    /// known the object, the other one gets the question.
    pub(super) fn close_deletions(
        &mut self,
        is_due: impl Fn(&OpenQuestion) -> bool,
        open: &mut OpenQuestions,
        outbox: &mut Outbox,
    ) {
        for (is_known, reply) in [(true, Answer::Deleted), (false, Answer::Unknown)] {
            let concerns = |question: &OpenQuestion| question.is_known == is_known;
            let due = |question: &OpenQuestion| concerns(question) && is_due(question);
            let askers = self.close_all(Kind::Delete, due, open).into_iter();
            outbox.extend(askers.map(|asker| answer(asker, reply.clone())));
        }
    }

    /// Reports the end of the object to the waiting nodes for which `concerns` returns true, given
    /// whether they have seen it.
    pub(super) fn notify_gone(
        &mut self,
        error: &Error,
        concerns: impl Fn(bool) -> bool,
        open: &mut OpenQuestions,
        outbox: &mut Outbox,
    ) {
        // A client that watches the holders of a lost object would otherwise wait forever.
        let kinds = [Kind::Source, Kind::Watch, Kind::Locations].into_iter();
        let askers: Vec<Asker> = kinds
            .flat_map(|kind| {
                self.close_all(kind, |question| concerns(question.seen_at.is_some()), open)
            })
            .collect();
        if mutants::is_active(Mutant::NeverReportsLosses) {
            return;
        }
        outbox.extend(askers.into_iter().map(|asker| answer(asker, Answer::Gone(error.clone()))));
    }
}

/// Whether a requester has seen an object at a node that can't have it any more.
pub(super) fn is_seen_at_gone(asker: Asker, seen_at: Option<NodeId>, members: &Members) -> bool {
    seen_at.is_some_and(|node| node == asker.0 || !members.contains(node))
}

/// The message that answers a question.
pub(super) const fn answer((node, number): Asker, answer: Answer) -> (NodeId, Message) {
    (node, Message::Answer { number, answer })
}

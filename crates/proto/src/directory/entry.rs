//! What the directory knows of one object: whether it lives, or why it is gone; who waits.
//!
//! Does not know messages, time, or which holder feeds which.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::{accounts::EntryCharge, live::Live, world::Mail};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    limits::{BURIED_MAX, ORPHAN_GRACE_NS, REMEMBERED_WORDS_BYTES},
    members::Members,
    message::{Holding, Message},
    planted::{self, Bug},
    time::Instant,
};

/// One of perhaps millions, most of which are there and which no node asks for: what few have is boxed.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) live: Option<Live>,
    pub(super) gone: Option<Box<Tombstone>>,
    /// What the name was before it was put again, and until when that is remembered.
    buried: Option<Box<Buried>>,
    asking: Option<Box<Asking>>,
    /// What the name was when its last copy was lost, and until when that is remembered: its holder may come back, and is
    /// to hear of a deletion meanwhile.
    pub(super) lost: Option<Box<(Instance, Instant)>>,
    /// The reduce that the name is kept for.
    pub(super) reserved: Option<Box<Reserved>>,
    /// Since when no copy is known that is complete, or will be.
    pub(super) orphan_since: Option<Instant>,
    /// Until when it is kept although others own it.
    pub(super) kept_until: Instant,
    /// The number of the last change of members that it knows.
    pub(super) knows: u32,
}

/// A name that is kept for a reduce.
#[derive(Debug)]
pub(super) struct Reserved {
    /// Stands for the reduce.
    pub(super) instance: Instance,
    _charge: Option<EntryCharge>,
}

impl Reserved {
    pub(super) const fn new(instance: Instance, charge: Option<EntryCharge>) -> Self {
        Self { instance, _charge: charge }
    }
}

/// By instance, until when it is remembered.
#[derive(Debug, Default)]
struct Buried(BTreeMap<Instance, Instant>);

/// Who is to hear of an object.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// Askers without a sender, in order of their questions, with those that failed them.
    pub(super) waiters: Vec<Waiter>,
    /// By node, whether it has seen the object.
    pub(super) watchers: BTreeMap<NodeId, bool>,
    /// Who wants to know of the next change of holders.
    pub(super) locators: Vec<Locator>,
    /// Who has deleted a name of which this owner may not have heard yet, and when they are answered.
    pub(super) deleters: Vec<(NodeId, RequestId, Instant)>,
}

/// A node that wants a sender.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) node: NodeId,
    /// Senders that failed it.
    pub(super) avoid: Vec<NodeId>,
    /// Until when others go first, if it was found to receive slowly.
    pub(super) yields_until: Option<Instant>,
    /// Whether it was sent a location before.
    pub(super) seen: bool,
}

impl Asking {
    pub(super) fn waiter(&self, node: NodeId) -> Option<&Waiter> {
        self.waiters.iter().find(|waiter| waiter.node == node)
    }
}

/// One of as many as are remembered: what few have is boxed.
#[derive(Debug)]
pub(super) struct Tombstone {
    pub(super) instances: Vec<Instance>,
    /// Why it is gone; none if it was deleted itself.
    reason: Option<Box<Error>>,
    /// Whether a newer version replaced it.
    pub(super) pruned: bool,
    pub(super) until: Instant,
    /// Copies whose holders have not said that they dropped them.
    pub(super) dropping: BTreeSet<(NodeId, Instance)>,
    /// Who is told when they have.
    pub(super) askers: Vec<(NodeId, RequestId)>,
    /// Owners who know of it from here, or told of it.
    pub(super) known_to: Vec<NodeId>,
}

/// A question for all holders.
#[derive(Debug)]
pub(super) struct Locator {
    pub(super) node: NodeId,
    pub(super) request: RequestId,
    /// What the asker knows already; none if it is to be answered at once.
    pub(super) known: Option<Vec<Holding>>,
}

impl Locator {
    pub(super) fn is(&self, node: NodeId, request: RequestId) -> bool {
        (self.node, self.request) == (node, request)
    }

    /// Whether the asker knows of a holder.
    fn has_seen(&self) -> bool {
        self.known.as_ref().is_some_and(|known| !known.is_empty())
    }
}

impl Tombstone {
    /// Of instances that are gone for a reason, until when that is remembered.
    pub(super) fn new(
        id: &ObjectId,
        mut instances: Vec<Instance>,
        error: Error,
        until: Instant,
    ) -> Self {
        instances.sort_unstable();
        instances.dedup();
        if instances.len() > BURIED_MAX {
            // The numbers of a maker only grow.
            instances.sort_unstable_by_key(|instance| (instance.serial, instance.node));
            instances.drain(..instances.len() - BURIED_MAX);
        }
        instances.shrink_to_fit();
        // A result ends with the deletion of an input, which is to be named.
        let is_deleted = matches!(&error, Error::ObjectDeleted { id: deleted } if deleted == id);
        let reason = (!is_deleted).then(|| Box::new(error.shortened(REMEMBERED_WORDS_BYTES)));
        let (dropping, askers, known_to) = (BTreeSet::new(), Vec::new(), Vec::new());
        Self { instances, reason, pruned: false, until, dropping, askers, known_to }
    }

    /// Why `id`, which this is of, is gone.
    pub(super) fn error(&self, id: &ObjectId) -> Error {
        let reason = self.reason.as_deref();
        reason.cloned().unwrap_or_else(|| Error::ObjectDeleted { id: id.clone() })
    }

    /// Whether it concerns a request for `id`, of a node that has `seen` the object or has not.
    pub(super) fn concerns(&self, id: &ObjectId, seen: bool) -> bool {
        seen || id.is_unique() || self.reason.is_some()
    }

    /// The name is deleted that had no object any more: it is free from now on.
    pub(super) fn free(&mut self, id: &ObjectId) {
        if !id.is_unique() {
            (self.reason, self.pruned) = (None, false);
        }
    }

    /// Tells those owners that have not heard of it from here, and did not tell of it.
    pub(super) fn tell(
        &mut self,
        id: &ObjectId,
        owners: impl Iterator<Item = NodeId>,
        mail: &mut Mail,
    ) {
        // Without an instance it would be taken for the end of whatever has the name there.
        let is_clear = id.minter().is_some() || !self.instances.is_empty();
        for owner in owners.filter(|_| is_clear) {
            if !self.known_to.contains(&owner) {
                self.known_to.push(owner);
                let last = self.instances.len().saturating_sub(BURIED_MAX);
                let (instances, error) = (self.instances[last..].to_vec(), Some(self.error(id)));
                let (id, pruned) = (id.clone(), self.pruned);
                mail.push((owner, Message::Remember { id, instances, error, pruned }));
            }
        }
    }

    /// Repeats what is to be dropped: a holder that did not take this node for an owner has not listened.
    pub(super) fn drop_again(&self, id: &ObjectId, mail: &mut Mail) {
        for (holder, instance) in &self.dropping {
            let (id, instance, error) = (id.clone(), *instance, Some(self.error(id)));
            mail.push((*holder, Message::Drop { id, instance, error }));
        }
    }

    /// Whether every holder has dropped it, or is gone.
    pub(super) fn is_settled(&self) -> bool {
        self.dropping.is_empty()
    }

    /// Answers those who deleted the object, when no copy is left that a node could be given.
    pub(super) fn answer(&mut self, id: &ObjectId, mail: &mut Mail) {
        if self.is_settled() {
            // A tree that has become empty keeps its root.
            self.dropping = BTreeSet::new();
            let askers = core::mem::take(&mut self.askers);
            mail.extend(askers.into_iter().map(|asker| deleted(id, asker)));
        }
    }
}

impl Entry {
    /// One of which nothing is known but the changes of members so far.
    pub(super) fn new(knows: u32) -> Self {
        Self { knows, ..Self::default() }
    }

    /// Whether a copy is known that is complete, or will be.
    pub(super) fn is_alive(&self) -> bool {
        self.live.is_some() && !self.is_lost()
    }

    /// Whether what it was can't be completed any more, so that another instance may take its place.
    pub(super) fn is_lost(&self) -> bool {
        // A name that is kept for a reduce is no orphan, though no node has what it was before.
        let is_void = |live: &Live| live.small.is_none() && live.tree.is_empty();
        self.orphan_since.is_some() || self.live.as_ref().is_some_and(is_void)
    }

    /// Whether this node did not own it for a while, and may have missed what became of its name.
    pub(super) fn is_doubtful(&self) -> bool {
        self.kept_until != Instant::default()
    }

    /// The node that made the object, or said that it will.
    pub(super) fn maker(&self) -> Option<NodeId> {
        let live = self.live.as_ref().map(|live| live.instance);
        let reserved = self.reserved.as_ref().map(|reserved| reserved.instance);
        live.or(reserved).map(|instance| instance.node)
    }

    /// Remembers what the name was before; what is over by `now` is forgotten.
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

    /// Whether the name was this before, and is to be remembered for it.
    pub(super) fn is_buried(&self, now: Instant, instance: &Instance) -> bool {
        let until = self.buried.as_ref().and_then(|buried| buried.0.get(instance));
        until.is_some_and(|until| *until > now)
    }

    /// Whether this instance of the name has ended, whatever the name is now.
    pub(super) fn is_over(&self, now: Instant, instance: &Instance) -> bool {
        self.gone.as_ref().is_some_and(|gone| gone.instances.contains(instance))
            || self.is_buried(now, instance)
    }

    /// What the name was before, as far as it is to be remembered.
    pub(super) fn buried(&self, now: Instant) -> impl Iterator<Item = Instance> {
        let all = self.buried.iter().flat_map(|buried| buried.0.iter());
        all.filter(move |(_, until)| **until > now).map(|(instance, _)| *instance)
    }

    /// Forgets what was to be remembered until `then`.
    pub(super) fn forget(&mut self, then: Instant) {
        self.gone.take_if(|gone| gone.until <= then);
        self.lost.take_if(|lost| lost.1 <= then);
        self.bury(then, &[], then);
    }

    /// Starts the grace after which those who wait are told of the loss, if no node is left that could have it.
    pub(super) fn check_orphan(
        &mut self,
        now: Instant,
        id: &ObjectId,
        members: &Members,
        alarms: &mut BTreeSet<(Instant, ObjectId)>,
    ) {
        let can_come = match id.minter() {
            // As long as it lives it has the object, makes it, or says that it can't: a reduce may begin again.
            Some(minter) => {
                let gave_it_up = self.live.as_ref().and_then(|live| live.abandoned_by.as_deref())
                    == Some(&minter);
                members.contains(minter) && !gave_it_up
            }
            // A name that no node has put yet, or that the result of a reduce will have.
            None => self.live.is_none() || self.reserved.is_some(),
        };
        if can_come || self.gone.is_some() || self.live.as_ref().is_some_and(Live::is_fed) {
            return;
        }
        if self.orphan_since.is_none() {
            self.orphan_since = Some(now);
            alarms.insert((now + ORPHAN_GRACE_NS, id.clone()));
        }
    }

    /// Whether nothing is known of it and no node asks.
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_none()
            && self.gone.is_none()
            && self.asking.is_none()
            && self.lost.is_none()
            && self.buried.is_none()
            && self.reserved.is_none()
            && self.orphan_since.is_none()
    }

    /// Which nodes ask, if any does or did.
    pub(super) fn asking(&self) -> Option<&Asking> {
        self.asking.as_deref()
    }

    /// Whether a client that deleted it is not answered yet, for its holders may still tell of it.
    pub(super) fn has_deleters(&self) -> bool {
        self.asking().is_some_and(|asking| !asking.deleters.is_empty())
    }

    /// Which nodes ask; there may be none.
    pub(super) fn asking_mut(&mut self) -> &mut Asking {
        self.asking.get_or_insert_default()
    }

    /// Takes back questions; the memory of the last goes too.
    pub(super) fn take_back(&mut self, forget: impl FnOnce(&mut Asking)) {
        if let Some(asking) = &mut self.asking {
            forget(asking);
        }
        self.asking.take_if(|asking| asking.is_empty());
    }

    /// Removes the request of a node for a sender.
    pub(super) fn drop_waiter(&mut self, node: NodeId) {
        self.take_back(|asking| asking.waiters.retain(|waiter| waiter.node != node));
    }

    /// Asks for the bytes of a small object that are not here, if others wait for them.
    pub(super) fn seek_bytes(&mut self, id: &ObjectId, mail: &mut Mail) {
        let waits = |asking: &Asking| !asking.waiters.is_empty() || !asking.watchers.is_empty();
        let is_wanted = self.asking().is_some_and(waits);
        if let Some(live) = self.live.as_mut().filter(|_| is_wanted) {
            live.seek_bytes(id, mail);
        }
    }

    /// Answers those for which the holders are news.
    pub(super) fn answer_locators(&mut self, id: &ObjectId, mail: &mut Mail) {
        let Some(asking) = &mut self.asking else { return };
        let live = self.live.as_ref().filter(|_| !asking.locators.is_empty());
        let holdings = live.map_or_else(Vec::new, Live::holdings);
        asking.locators.retain(|locator| {
            let gone = self.gone.as_ref().filter(|gone| gone.concerns(id, locator.has_seen()));
            let is_known = gone.is_none() && locator.known.as_ref() == Some(&holdings);
            if !is_known {
                let request = locator.request;
                let holdings =
                    gone.map_or_else(|| Ok(holdings.clone()), |gone| Err(gone.error(id)));
                mail.push((locator.node, Message::LocationsAre { request, holdings }));
            }
            is_known
        });
        self.asking.take_if(|asking| asking.is_empty());
    }

    /// Reports the end of the object to the nodes that ask for it, if it `concerns` those that have seen the object or have not.
    pub(super) fn tell_gone(
        &mut self,
        id: &ObjectId,
        error: &Error,
        concerns: impl Fn(bool) -> bool,
        mail: &mut Mail,
    ) {
        let Some(asking) = &mut self.asking else { return };
        let waiters = asking.waiters.extract_if(.., |waiter| concerns(waiter.seen));
        let mut told: BTreeSet<NodeId> = waiters.map(|waiter| waiter.node).collect();
        told.extend(
            asking.watchers.iter().filter(|(_, seen)| concerns(**seen)).map(|(node, _)| *node),
        );
        asking.watchers.retain(|_, seen| !concerns(*seen));
        let locators = asking.locators.extract_if(.., |locator| concerns(locator.has_seen()));
        let locators: Vec<Locator> = locators.collect();
        self.asking.take_if(|asking| asking.is_empty());
        if planted::has(Bug::TellsNobodyOfLosses) {
            return;
        }
        for node in told {
            mail.push((node, Message::Gone { id: id.clone(), error: error.clone() }));
        }
        // A client that watches the holders of what is lost would watch for ever.
        for Locator { node, request, .. } in locators {
            mail.push((node, Message::LocationsAre { request, holdings: Err(error.clone()) }));
        }
    }
}

impl Asking {
    fn is_empty(&self) -> bool {
        self.waiters.is_empty()
            && self.watchers.is_empty()
            && self.locators.is_empty()
            && self.deleters.is_empty()
    }
}

/// Tells who asked for it that a deletion is carried out.
pub(super) fn deleted(id: &ObjectId, (node, request): (NodeId, RequestId)) -> (NodeId, Message) {
    (node, Message::Deleted { id: id.clone(), request })
}

//! Work left before this node may close: pinned copies to hand over, folds to finish, replies of members to receive.
//!
//! The sequence is in [`crate::node`]. Does not know copies beyond its arguments.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{
    id::{Instance, NodeId},
    machines::{membership_change::MembershipChange, world::World},
    message::Message,
    table::Table,
    time::Instant,
};

/// How long the node waits for clients to seal objects that they are filling: 1 s.
const FILL_TIMEOUT_NS: u64 = 1_000_000_000;

/// Progress of leaving, and the members that wait for this node before they leave.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    stage: Stage,
    /// Leaving members that wait until no reduce of this node needs them.
    draining: BTreeSet<NodeId>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Active,
    Leaving(Work),
    Left,
}

/// Work left before this node may close.
#[derive(Debug)]
struct Work {
    /// Pinned copies to hand over, each with the members that were requested to take it.
    open: BTreeMap<Instance, BTreeSet<NodeId>>,
    /// Pinned copies that no other node can take.
    untransferred: BTreeSet<Instance>,
    /// Pinned copies that were submitted for writing to disk.
    spilling: BTreeSet<Instance>,
    /// Pinned copies that clients are filling, and until when the node waits for them.
    filling: BTreeSet<Instance>,
    filling_until: Instant,
    /// Members whose reduces may have a position here.
    undrained: BTreeSet<NodeId>,
    until: Instant,
}

impl Work {
    fn is_kept(&self) -> bool {
        self.open.is_empty() && self.filling.is_empty()
    }

    /// Requests that another member take a pinned copy.
    fn transfer(
        &mut self,
        instance: Instance,
        mut requested: BTreeSet<NodeId>,
        table: &Table,
        world: &mut World,
    ) {
        let Some(copy) = table.get(instance) else { return };
        let now = world.now();
        // In order of ownership, so that copies spread over all remaining members.
        let mut others = world.members().clone();
        others.resign();
        let all: Vec<NodeId> = others.iter().map(|other| other.id).collect();
        let leaving = all.into_iter().filter(|node| world.members().is_leaving(*node));
        for node in requested.iter().copied().chain(leaving) {
            others.remove(node);
        }
        let Some(target) = others.iter().next().map(|_| others.owners(&copy.id).primary) else {
            self.open.remove(&instance);
            self.untransferred.insert(instance);
            return;
        };
        requested.insert(target);
        self.open.insert(instance, requested);
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        let lifetime = copy.lifetime(now);
        // It may have capacity later; without that, the object is lost.
        let may_wait = true;
        world
            .send(target, Message::StoreReplica { id, instance, meta, inline, lifetime, may_wait });
    }

    /// The pinned copies that `node` was requested to take.
    fn requested_from(&self, node: NodeId) -> Vec<(Instance, BTreeSet<NodeId>)> {
        let hit = self.open.iter().filter(|(_, requested)| requested.contains(&node));
        hit.map(|(instance, requested)| (*instance, requested.clone())).collect()
    }
}

impl Leaving {
    /// Whether this node has begun to leave.
    pub(crate) const fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Active)
    }

    const fn work(&mut self) -> Option<&mut Work> {
        match &mut self.stage {
            Stage::Leaving(work) => Some(work),
            Stage::Active | Stage::Left => None,
        }
    }

    /// Records a leaving member, which waits until no reduce of this node has a position there.
    pub(crate) fn begin_draining(&mut self, node: NodeId) {
        self.draining.insert(node);
    }

    /// The number of members that wait for this node.
    pub(crate) fn draining(&self) -> usize {
        self.draining.len()
    }

    /// When the current wait times out.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let Stage::Leaving(work) = &self.stage else { return None };
        Some(if work.filling.is_empty() { work.until } else { work.filling_until })
    }

    /// Begins to leave. `filling` are the pinned copies that clients are filling.
    pub(crate) fn begin(
        &mut self,
        timeout_ns: u64,
        filling: BTreeSet<Instance>,
        world: &mut World,
    ) {
        let until = world.now() + timeout_ns;
        let filling_until = until.min(world.now() + FILL_TIMEOUT_NS);
        let (open, untransferred, undrained) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let spilling = BTreeSet::new();
        let work = Work { open, untransferred, spilling, filling, filling_until, undrained, until };
        self.stage = Stage::Leaving(work);
        let me = world.me();
        world.members_mut().begin_to_leave(me);
        for other in world.others() {
            self.notify(other, world);
        }
    }

    fn notify(&mut self, to: NodeId, world: &mut World) {
        if let Some(work) = self.work() {
            work.undrained.insert(to);
            world.send(to, Message::Leaving);
        }
    }

    /// Announces to members that are new, or have lost the announcement, that this node leaves.
    pub(crate) fn reannounce(&mut self, change: &MembershipChange, world: &mut World) {
        for other in change.new_members(world) {
            self.notify(other, world);
        }
    }

    /// Records that no reduce of a member has a position here, nor will have one.
    pub(crate) fn drained(&mut self, by: NodeId) {
        if let Some(work) = self.work() {
            work.undrained.remove(&by);
        }
    }

    /// Whether this node leaves, and no reduce of `coordinator` has a position here any more.
    pub(crate) fn rejects_orders_of(&self, coordinator: NodeId) -> bool {
        match &self.stage {
            Stage::Active => false,
            Stage::Leaving(work) => !work.undrained.contains(&coordinator),
            Stage::Left => true,
        }
    }

    /// Hands over a copy that a client was filling when this node began to leave.
    pub(crate) fn filled(&mut self, instance: Instance, table: &Table, world: &mut World) {
        if let Some(work) = self.work() {
            work.filling.remove(&instance);
            // Even after its timeout, while other copies are still open.
            work.transfer(instance, BTreeSet::new(), table, world);
        }
    }

    /// Forgets a pinned copy that no longer exists.
    pub(crate) fn forget(&mut self, instance: Instance) {
        if let Some(work) = self.work() {
            work.open.remove(&instance);
            work.untransferred.remove(&instance);
            work.filling.remove(&instance);
        }
    }

    /// Repeats requests to a member that has lost them.
    pub(crate) fn request_again(&mut self, node: NodeId, table: &Table, world: &mut World) {
        let Some(work) = self.work() else { return };
        for (instance, mut requested) in work.requested_from(node) {
            requested.remove(&node);
            work.transfer(instance, requested, table, world);
        }
    }

    /// Sends the requests of a member that is gone, with all that it took, to other members.
    pub(crate) fn forget_member(&mut self, node: NodeId, table: &Table, world: &mut World) {
        let Some(work) = self.work() else { return };
        for (instance, requested) in work.requested_from(node) {
            work.transfer(instance, requested, table, world);
        }
    }

    /// Stops waiting for positions at a member that is gone.
    pub(crate) fn stop_draining(&mut self, node: NodeId) {
        self.draining.remove(&node);
    }

    /// Handles the reply of a member that keeps a copy, or cannot.
    pub(crate) fn replica_reply(
        &mut self,
        from: NodeId,
        instance: Instance,
        accepted: bool,
        table: &Table,
        world: &mut World,
    ) {
        let Some(work) = self.work() else { return };
        let requested =
            work.open.get(&instance).filter(|requested| requested.contains(&from)).cloned();
        match requested {
            Some(_) if accepted => drop(work.open.remove(&instance)),
            Some(requested) => work.transfer(instance, requested, table, world),
            None => {}
        }
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        if let Some(work) = self.work().filter(|work| work.filling_until <= now) {
            work.filling.clear();
        }
    }

    /// Pinned copies that no other node has taken, and that were not submitted for writing to disk yet.
    pub(crate) fn take_unspilled(&mut self) -> Vec<Instance> {
        let Some(work) = self.work() else { return Vec::new() };
        let here = work.untransferred.iter().chain(work.open.keys()).copied();
        let new: Vec<Instance> =
            here.filter(|instance| !work.spilling.contains(instance)).collect();
        work.spilling.extend(&new);
        new
    }

    /// Whether `is_so` is true for each pinned copy that no other node can take.
    pub(crate) fn all_untransferred(&mut self, is_so: impl Fn(Instance) -> bool) -> bool {
        self.work().is_none_or(|work| work.untransferred.iter().all(|instance| is_so(*instance)))
    }

    /// Notifies leaving members at which no reduce of this node has a position any more.
    pub(crate) fn confirm_drained(&mut self, seats: &BTreeSet<NodeId>, world: &mut World) {
        for node in self.draining.difference(seats).copied().collect::<Vec<_>>() {
            self.draining.remove(&node);
            world.send(node, Message::Drained);
        }
    }

    /// Ends leaving if no work is left or the deadline has passed. Returns, once, the pinned copies that no other node
    /// has taken.
    pub(crate) fn end(&mut self, has_folded: bool, now: Instant) -> Option<BTreeSet<Instance>> {
        let work = self.work()?;
        let is_over = work.until <= now;
        let is_done = work.is_kept() && has_folded && work.undrained.is_empty();
        if !is_done && !is_over {
            return None;
        }
        let mut lost = core::mem::take(&mut work.untransferred);
        lost.extend(work.open.keys());
        self.stage = Stage::Left;
        Some(lost)
    }
}

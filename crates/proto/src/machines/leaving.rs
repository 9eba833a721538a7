//! Work left before this node may close: pinned copies to hand over, folds to finish, replies of members to receive.
//!
//! The sequence is in [`crate::node`]. Does not know copies beyond its arguments.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{
    id::{Instance, NodeId},
    machines::{change::Change, world::World},
    message::Message,
    table::Table,
    time::Instant,
};

/// How long the node waits for clients to seal objects that they are filling: 1 s.
const FILL_PATIENCE_NS: u64 = 1_000_000_000;

/// Progress of leaving, and the members that wait for this node before they leave.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    stage: Stage,
    /// Leaving members that wait until no reduce of this node needs them.
    unseating: BTreeSet<NodeId>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Stays,
    Leaves(Work),
    HasLeft,
}

/// Work left before this node may close.
#[derive(Debug)]
struct Work {
    /// Pinned copies to hand over, each with the members that were requested to take it.
    open: BTreeMap<Instance, BTreeSet<NodeId>>,
    /// Pinned copies that no other node can take.
    homeless: BTreeSet<Instance>,
    /// Pinned copies that were submitted for writing to disk.
    filed: BTreeSet<Instance>,
    /// Pinned copies that clients are filling, and until when the node waits for them.
    filling: BTreeSet<Instance>,
    filling_until: Instant,
    /// Members whose reduces may have a position here.
    seated_by: BTreeSet<NodeId>,
    until: Instant,
}

impl Work {
    fn is_kept(&self) -> bool {
        self.open.is_empty() && self.filling.is_empty()
    }

    /// Requests that another member take a pinned copy.
    fn hand_over(
        &mut self,
        instance: Instance,
        mut asked: BTreeSet<NodeId>,
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
        for node in asked.iter().copied().chain(leaving) {
            others.remove(node);
        }
        let Some(target) = others.iter().next().map(|_| others.owners(&copy.id).first) else {
            self.open.remove(&instance);
            self.homeless.insert(instance);
            return;
        };
        asked.insert(target);
        self.open.insert(instance, asked);
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        let lifetime = copy.lifetime(now);
        // It may have capacity later; without that, the object is lost.
        let may_wait = true;
        world.send(target, Message::Adopt { id, instance, meta, inline, lifetime, may_wait });
    }

    /// The pinned copies that `node` was requested to take.
    fn asked_of(&self, node: NodeId) -> Vec<(Instance, BTreeSet<NodeId>)> {
        let hit = self.open.iter().filter(|(_, asked)| asked.contains(&node));
        hit.map(|(instance, asked)| (*instance, asked.clone())).collect()
    }
}

impl Leaving {
    /// Whether this node has begun to leave.
    pub(crate) const fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Stays)
    }

    const fn work(&mut self) -> Option<&mut Work> {
        match &mut self.stage {
            Stage::Leaves(work) => Some(work),
            Stage::Stays | Stage::HasLeft => None,
        }
    }

    /// Records a leaving member, which waits until no reduce of this node has a position there.
    pub(crate) fn begin_unseating(&mut self, node: NodeId) {
        self.unseating.insert(node);
    }

    /// The number of members that wait for this node.
    pub(crate) fn unseating(&self) -> usize {
        self.unseating.len()
    }

    /// When the current wait times out.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let Stage::Leaves(work) = &self.stage else { return None };
        Some(if work.filling.is_empty() { work.until } else { work.filling_until })
    }

    /// Begins to leave. `filling` are the pinned copies that clients are filling.
    pub(crate) fn begin(
        &mut self,
        patience_ns: u64,
        filling: BTreeSet<Instance>,
        world: &mut World,
    ) {
        let until = world.now() + patience_ns;
        let filling_until = until.min(world.now() + FILL_PATIENCE_NS);
        let (open, homeless, seated_by) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let filed = BTreeSet::new();
        let work = Work { open, homeless, filed, filling, filling_until, seated_by, until };
        self.stage = Stage::Leaves(work);
        let me = world.me();
        world.members_mut().begin_to_leave(me);
        for other in world.others() {
            self.tell(other, world);
        }
    }

    fn tell(&mut self, to: NodeId, world: &mut World) {
        if let Some(work) = self.work() {
            work.seated_by.insert(to);
            world.send(to, Message::Leaving);
        }
    }

    /// Announces to members that are new, or have lost the announcement, that this node leaves.
    pub(crate) fn tell_again(&mut self, change: &Change, world: &mut World) {
        for other in change.new_members(world) {
            self.tell(other, world);
        }
    }

    /// Records that no reduce of a member has a position here, nor will have one.
    pub(crate) fn unseated(&mut self, by: NodeId) {
        if let Some(work) = self.work() {
            work.seated_by.remove(&by);
        }
    }

    /// Whether this node leaves, and no reduce of `coordinator` has a position here any more.
    pub(crate) fn takes_no_orders_of(&self, coordinator: NodeId) -> bool {
        match &self.stage {
            Stage::Stays => false,
            Stage::Leaves(work) => !work.seated_by.contains(&coordinator),
            Stage::HasLeft => true,
        }
    }

    /// Hands over a copy that a client was filling when this node began to leave.
    pub(crate) fn filled(&mut self, instance: Instance, table: &Table, world: &mut World) {
        if let Some(work) = self.work() {
            work.filling.remove(&instance);
            // Even after its timeout, while other copies are still open.
            work.hand_over(instance, BTreeSet::new(), table, world);
        }
    }

    /// Forgets a pinned copy that no longer exists.
    pub(crate) fn forget(&mut self, instance: Instance) {
        if let Some(work) = self.work() {
            work.open.remove(&instance);
            work.homeless.remove(&instance);
            work.filling.remove(&instance);
        }
    }

    /// Repeats requests to a member that has lost them.
    pub(crate) fn ask_anew(&mut self, node: NodeId, table: &Table, world: &mut World) {
        let Some(work) = self.work() else { return };
        for (instance, mut asked) in work.asked_of(node) {
            asked.remove(&node);
            work.hand_over(instance, asked, table, world);
        }
    }

    /// Sends the requests of a member that is gone, with all that it took, to other members.
    pub(crate) fn forget_member(&mut self, node: NodeId, table: &Table, world: &mut World) {
        let Some(work) = self.work() else { return };
        for (instance, asked) in work.asked_of(node) {
            work.hand_over(instance, asked, table, world);
        }
    }

    /// Stops waiting for positions at a member that is gone.
    pub(crate) fn stop_unseating(&mut self, node: NodeId) {
        self.unseating.remove(&node);
    }

    /// Handles the reply of a member that keeps a copy, or cannot.
    pub(crate) fn adopted(
        &mut self,
        from: NodeId,
        instance: Instance,
        kept: bool,
        table: &Table,
        world: &mut World,
    ) {
        let Some(work) = self.work() else { return };
        let asked = work.open.get(&instance).filter(|asked| asked.contains(&from)).cloned();
        match asked {
            Some(_) if kept => drop(work.open.remove(&instance)),
            Some(asked) => work.hand_over(instance, asked, table, world),
            None => {}
        }
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        if let Some(work) = self.work().filter(|work| work.filling_until <= now) {
            work.filling.clear();
        }
    }

    /// Pinned copies that no other node has taken, and that were not submitted for writing to disk yet.
    pub(crate) fn take_unfiled(&mut self) -> Vec<Instance> {
        let Some(work) = self.work() else { return Vec::new() };
        let here = work.homeless.iter().chain(work.open.keys()).copied();
        let new: Vec<Instance> = here.filter(|instance| !work.filed.contains(instance)).collect();
        work.filed.extend(&new);
        new
    }

    /// Whether `is_so` is true for each pinned copy that no other node can take.
    pub(crate) fn is_so_of_the_homeless(&mut self, is_so: impl Fn(Instance) -> bool) -> bool {
        self.work().is_none_or(|work| work.homeless.iter().all(|instance| is_so(*instance)))
    }

    /// Notifies leaving members at which no reduce of this node has a position any more.
    pub(crate) fn unseat(&mut self, seats: &BTreeSet<NodeId>, world: &mut World) {
        for node in self.unseating.difference(seats).copied().collect::<Vec<_>>() {
            self.unseating.remove(&node);
            world.send(node, Message::Unseated);
        }
    }

    /// Ends leaving if no work is left or the deadline has passed. Returns, once, the pinned copies that no other node
    /// has taken.
    pub(crate) fn end(&mut self, has_folded: bool, now: Instant) -> Option<BTreeSet<Instance>> {
        let work = self.work()?;
        let is_over = work.until <= now;
        let is_done = work.is_kept() && has_folded && work.seated_by.is_empty();
        if !is_done && !is_over {
            return None;
        }
        let mut lost = core::mem::take(&mut work.homeless);
        lost.extend(work.open.keys());
        self.stage = Stage::HasLeft;
        Some(lost)
    }
}

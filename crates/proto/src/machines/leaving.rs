//! What is left to be done before this node may close: originals to hand over, folds to finish, members to hear from.
//!
//! The order of it all is in [`crate::node`]. Does not know copies beyond what it is handed.

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

/// How long it waits for clients to seal what they are filling: 1 s.
const FILL_PATIENCE_NS: u64 = 1_000_000_000;

/// How far this node is with leaving, and which members wait for it to be ready for theirs.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    stage: Stage,
    /// Members that leave, and wait to hear that no reduce of this node needs them.
    unseating: BTreeSet<NodeId>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Stays,
    Leaves(Work),
    HasLeft,
}

/// What is still to be done before this node may close.
#[derive(Debug)]
struct Work {
    /// Originals, and who was asked to take each so far.
    open: BTreeMap<Instance, BTreeSet<NodeId>>,
    /// Originals that no other node can take.
    homeless: BTreeSet<Instance>,
    /// Originals that were to be written to disk.
    filed: BTreeSet<Instance>,
    /// Originals that clients are filling, and until when they are waited for.
    filling: BTreeSet<Instance>,
    filling_until: Instant,
    /// Members whose reduces may have a seat here.
    seated_by: BTreeSet<NodeId>,
    until: Instant,
}

impl Work {
    fn is_kept(&self) -> bool {
        self.open.is_empty() && self.filling.is_empty()
    }

    /// Asks the next member that was not asked before to keep an original.
    fn hand_over(
        &mut self,
        instance: Instance,
        mut asked: BTreeSet<NodeId>,
        table: &Table,
        world: &mut World,
    ) {
        let Some(copy) = table.get(instance) else { return };
        let now = world.now();
        // By the order of ownership, so that originals spread over all who stay.
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
        // It may have room later; without it the object is lost.
        let may_wait = true;
        world.send(target, Message::Adopt { id, instance, meta, inline, lifetime, may_wait });
    }

    /// The originals that `node` was asked to take.
    fn asked_of(&self, node: NodeId) -> Vec<(Instance, BTreeSet<NodeId>)> {
        let hit = self.open.iter().filter(|(_, asked)| asked.contains(&node));
        hit.map(|(instance, asked)| (*instance, asked.clone())).collect()
    }
}

impl Leaving {
    /// Whether this node was told to leave.
    pub(crate) const fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Stays)
    }

    const fn work(&mut self) -> Option<&mut Work> {
        match &mut self.stage {
            Stage::Leaves(work) => Some(work),
            Stage::Stays | Stage::HasLeft => None,
        }
    }

    /// A member leaves, and waits until no reduce of this node has a seat there.
    pub(crate) fn begin_unseating(&mut self, node: NodeId) {
        self.unseating.insert(node);
    }

    /// How many members wait for this node.
    pub(crate) fn unseating(&self) -> usize {
        self.unseating.len()
    }

    /// When what it waits for has had its time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let Stage::Leaves(work) = &self.stage else { return None };
        Some(if work.filling.is_empty() { work.until } else { work.filling_until })
    }

    /// This node shall leave; `filling` are the originals that clients are filling.
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

    /// Members that are new, or have forgotten it, hear that this node leaves.
    pub(crate) fn tell_again(&mut self, change: &Change, world: &mut World) {
        for other in change.new_members(world) {
            self.tell(other, world);
        }
    }

    /// No reduce of a member has a seat here, nor will have one.
    pub(crate) fn unseated(&mut self, by: NodeId) {
        if let Some(work) = self.work() {
            work.seated_by.remove(&by);
        }
    }

    /// Whether this node leaves, and has finished what `coordinator` ordered.
    pub(crate) fn takes_no_orders_of(&self, coordinator: NodeId) -> bool {
        match &self.stage {
            Stage::Stays => false,
            Stage::Leaves(work) => !work.seated_by.contains(&coordinator),
            Stage::HasLeft => true,
        }
    }

    /// A client has filled what it was filling when this node was told to leave.
    pub(crate) fn filled(&mut self, instance: Instance, table: &Table, world: &mut World) {
        if let Some(work) = self.work() {
            work.filling.remove(&instance);
            // Also one that was not waited for any more, as long as others are.
            work.hand_over(instance, BTreeSet::new(), table, world);
        }
    }

    /// An original is no more: no member need take it over.
    pub(crate) fn forget(&mut self, instance: Instance) {
        if let Some(work) = self.work() {
            work.open.remove(&instance);
            work.homeless.remove(&instance);
            work.filling.remove(&instance);
        }
    }

    /// A member that is there has forgotten what it was asked to take over: it is asked again.
    pub(crate) fn ask_anew(&mut self, node: NodeId, table: &Table, world: &mut World) {
        let Some(work) = self.work() else { return };
        for (instance, mut asked) in work.asked_of(node) {
            asked.remove(&node);
            work.hand_over(instance, asked, table, world);
        }
    }

    /// A member is gone, with all that it was asked to take over: others are asked. It need not be told of seats.
    pub(crate) fn forget_member(&mut self, node: NodeId, table: &Table, world: &mut World) {
        let Some(work) = self.work() else { return };
        for (instance, asked) in work.asked_of(node) {
            work.hand_over(instance, asked, table, world);
        }
    }

    /// A member is gone, and does not wait for this node.
    pub(crate) fn stop_unseating(&mut self, node: NodeId) {
        self.unseating.remove(&node);
    }

    /// A member keeps an original, or can't.
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

    /// Originals that no other node has taken, and that were not to be written to disk so far.
    pub(crate) fn take_unfiled(&mut self) -> Vec<Instance> {
        let Some(work) = self.work() else { return Vec::new() };
        let here = work.homeless.iter().chain(work.open.keys()).copied();
        let new: Vec<Instance> = here.filter(|instance| !work.filed.contains(instance)).collect();
        work.filed.extend(&new);
        new
    }

    /// Whether something is so of each original that no other node can take.
    pub(crate) fn is_so_of_the_homeless(&mut self, is_so: impl Fn(Instance) -> bool) -> bool {
        self.work().is_none_or(|work| work.homeless.iter().all(|instance| is_so(*instance)))
    }

    /// Members that leave hear when no reduce of this node has a seat there.
    pub(crate) fn unseat(&mut self, seats: &BTreeSet<NodeId>, world: &mut World) {
        for node in self.unseating.difference(seats).copied().collect::<Vec<_>>() {
            self.unseating.remove(&node);
            world.send(node, Message::Unseated);
        }
    }

    /// Whether nothing is left to be done, or its time is over; and the originals that no other node has then. Said once.
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

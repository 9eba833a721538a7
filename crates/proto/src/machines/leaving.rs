//! Work left before this node may close: pinned copies to hand over, folds to finish, replies of members to receive.
//!
//! The sequence is in [`crate::node`]. Does not know copies beyond its arguments.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{
    directory::Slice,
    event::LostObjects,
    id::{Instance, NodeId, ObjectId},
    limits::LOST_NAMED_MAX,
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
    Ending(Farewell),
    Left,
}

/// Work left before this node may close.
#[derive(Debug)]
struct Work {
    /// The walk through the pinned copies that begins to hand them over.
    walk: Walk,
    /// Pinned copies that are already handed over, although the walk has not reached them.
    early: BTreeSet<Instance>,
    /// Pinned copies to hand over, each with the members that were requested to take it.
    open: BTreeMap<Instance, BTreeSet<NodeId>>,
    /// The same by member.
    requested: BTreeMap<NodeId, BTreeSet<Instance>>,
    /// Members that have lost requests, each with those of its copies that another member is requested to take.
    repeated: Vec<(NodeId, BTreeSet<Instance>)>,
    /// Pinned copies that no other node can take.
    untransferred: BTreeSet<Instance>,
    /// Those of them whose write to disk may not have ended.
    unwritten: BTreeSet<Instance>,
    /// Pinned copies that were not submitted for writing to disk yet.
    unspilled: Vec<Instance>,
    /// Pinned copies that clients are filling, and until when the node waits for them.
    filling: BTreeSet<Instance>,
    filling_until: Instant,
    /// Members whose reduces may have a position here.
    undrained: BTreeSet<NodeId>,
    until: Instant,
}

/// A walk through the copies of this node, a slice at a time.
#[derive(Debug, Default)]
struct Walk {
    after: Option<Instance>,
    is_over: bool,
    /// When the next slice is due.
    next_at: Instant,
}

impl Walk {
    /// The next copies, at most `most`.
    fn next(&mut self, most: usize, table: &Table) -> Vec<Instance> {
        if self.is_over {
            return Vec::new();
        }
        let some: Vec<Instance> = table.following(self.after).take(most).collect();
        self.after = some.last().copied().or(self.after);
        self.is_over = some.len() < most;
        some
    }
}

/// What is left to do once nothing can be handed over any more.
#[derive(Debug)]
struct Farewell {
    /// What was not handed over.
    work: Work,
    report: LostObjects,
    walk: Walk,
}

/// A slice of the copies of this node at the end of leaving.
pub(crate) struct FarewellSlice {
    pub(crate) copies: Vec<Instance>,
    pub(crate) is_last: bool,
}

/// Members up to which a slice has its full number of copies: the choice of a holder looks at all members.
const MEMBERS_OF_FULL_SLICES: usize = 64;

/// How many copies one event handles.
fn slice(world: &World) -> Slice {
    let Slice { entries, pause_ns } = world.config().slice;
    let share = world.members().len().div_ceil(MEMBERS_OF_FULL_SLICES).max(1);
    Slice { entries: (entries / share).max(1), pause_ns }
}

/// Whether other members take over a copy.
fn is_handed_over(instance: Instance, table: &Table) -> bool {
    let copy = table.get(instance);
    copy.is_some_and(|copy| copy.pinned && copy.is_complete() && !copy.doomed)
}

impl Work {
    fn is_kept(&self) -> bool {
        self.walk.is_over && self.open.is_empty() && self.filling.is_empty()
    }

    /// Whether the walk has not reached a copy yet.
    fn is_ahead(&self, instance: Instance) -> bool {
        !self.walk.is_over && Some(instance) > self.walk.after
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
        let members = world.members();
        let is_candidate = |node: NodeId| !requested.contains(&node) && !members.is_leaving(node);
        // In order of ownership, so that copies spread over all remaining members.
        let target = members.owner_among(&copy.id, is_candidate);
        if !self.open.contains_key(&instance) && !self.untransferred.contains(&instance) {
            self.unspilled.push(instance);
        }
        let Some(target) = target else {
            self.close(instance);
            self.untransferred.insert(instance);
            self.unwritten.insert(instance);
            return;
        };
        requested.insert(target);
        self.requested.entry(target).or_default().insert(instance);
        self.open.insert(instance, requested);
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        let lifetime = copy.lifetime(world.now());
        // It may have capacity later; without that, the object is lost.
        let may_wait = true;
        world
            .send(target, Message::StoreReplica { id, instance, meta, inline, lifetime, may_wait });
    }

    /// Ends the requests to take a copy.
    fn close(&mut self, instance: Instance) {
        for node in self.open.remove(&instance).unwrap_or_default() {
            if let Some(requested) = self.requested.get_mut(&node) {
                requested.remove(&instance);
            }
        }
    }

    /// Sends the requests to a member that has lost them again, or to other members: a slice at a time.
    fn request_again(&mut self, node: NodeId, table: &Table, world: &mut World) {
        if let Some(requested) = self.requested.remove(&node).filter(|all| !all.is_empty()) {
            self.repeated.push((node, requested));
            self.hand_over(table, world);
        }
    }

    /// When the next slice is due.
    fn next_slice(&self) -> Option<Instant> {
        (!self.walk.is_over || !self.repeated.is_empty()).then_some(self.walk.next_at)
    }

    /// Hands over one slice of the pinned copies.
    fn hand_over(&mut self, table: &Table, world: &mut World) {
        let slice = slice(world);
        let mut left = slice.entries;
        while left > 0
            && let Some((node, instances)) = self.repeated.last_mut()
        {
            let (node, Some(instance)) = (*node, instances.pop_first()) else {
                self.repeated.pop();
                continue;
            };
            left -= 1;
            if let Some(mut requested) = self.open.get(&instance).cloned() {
                requested.remove(&node);
                self.transfer(instance, requested, table, world);
            }
        }
        if left > 0 {
            for instance in self.walk.next(left, table) {
                if is_handed_over(instance, table) && !self.early.remove(&instance) {
                    self.transfer(instance, BTreeSet::new(), table, world);
                }
            }
        }
        self.walk.next_at = world.now() + slice.pause_ns;
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
            Stage::Active | Stage::Ending(_) | Stage::Left => None,
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
        match &self.stage {
            Stage::Leaving(work) => {
                let end = if work.filling.is_empty() { work.until } else { work.filling_until };
                Some(work.next_slice().map_or(end, |at| at.min(end)))
            }
            Stage::Ending(farewell) => Some(farewell.walk.next_at),
            Stage::Active | Stage::Left => None,
        }
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
        self.stage = Stage::Leaving(Work {
            walk: Walk::default(),
            early: BTreeSet::new(),
            open: BTreeMap::new(),
            requested: BTreeMap::new(),
            repeated: Vec::new(),
            untransferred: BTreeSet::new(),
            unwritten: BTreeSet::new(),
            unspilled: Vec::new(),
            filling,
            filling_until,
            undrained: BTreeSet::new(),
            until,
        });
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
            Stage::Ending(_) | Stage::Left => true,
        }
    }

    /// Hands over a copy that a client was filling when this node began to leave.
    pub(crate) fn filled(&mut self, instance: Instance, table: &Table, world: &mut World) {
        if let Some(work) = self.work() {
            work.filling.remove(&instance);
            if work.is_ahead(instance) {
                work.early.insert(instance);
            }
            // Even after its timeout, while other copies are still open.
            work.transfer(instance, BTreeSet::new(), table, world);
        }
    }

    /// Forgets a pinned copy that no longer exists.
    pub(crate) fn forget(&mut self, instance: Instance) {
        if let Some(work) = self.work() {
            work.close(instance);
            work.untransferred.remove(&instance);
            work.unwritten.remove(&instance);
            work.filling.remove(&instance);
        }
    }

    /// Begins to hand over the pinned copies, or continues if a slice is due.
    pub(crate) fn hand_over(&mut self, table: &Table, world: &mut World) {
        let now = world.now();
        if let Some(work) = self.work()
            && work.next_slice().is_some_and(|at| at <= now)
        {
            work.hand_over(table, world);
        }
    }

    /// Sends the requests to a member that has lost them, or that is gone with all that it took, again: to it or to
    /// other members.
    pub(crate) fn request_again(&mut self, node: NodeId, table: &Table, world: &mut World) {
        if let Some(work) = self.work() {
            work.request_again(node, table, world);
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
            Some(_) if accepted => work.close(instance),
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
        let mut unspilled = core::mem::take(&mut work.unspilled);
        unspilled.retain(|instance| {
            work.open.contains_key(instance) || work.untransferred.contains(instance)
        });
        unspilled
    }

    /// Notifies leaving members at which no reduce of this node has a position any more.
    pub(crate) fn confirm_drained(&mut self, seats: &BTreeSet<NodeId>, world: &mut World) {
        for node in self.draining.difference(seats).copied().collect::<Vec<_>>() {
            self.draining.remove(&node);
            world.send(node, Message::Drained);
        }
    }

    /// Stops handing over copies if no work is left or the deadline has passed. `is_written` returns whether the write
    /// of a copy to disk has ended. Returns whether [`Self::next_farewell`] is due.
    pub(crate) fn end(
        &mut self,
        has_folded: bool,
        is_written: impl Fn(Instance) -> bool,
        now: Instant,
    ) -> bool {
        if let Stage::Ending(farewell) = &self.stage {
            return farewell.walk.next_at <= now;
        }
        let Some(work) = self.work() else { return false };
        let is_over = work.until <= now;
        let has_written = |work: &mut Work| {
            // A write that has ended is not looked at again.
            while let Some(first) = work.unwritten.first().copied().filter(|it| is_written(*it)) {
                work.unwritten.remove(&first);
            }
            work.unwritten.is_empty()
        };
        let is_done =
            work.is_kept() && has_folded && work.undrained.is_empty() && has_written(work);
        if !is_done && !is_over {
            return false;
        }
        if let Stage::Leaving(work) = core::mem::take(&mut self.stage) {
            let (report, walk) = (LostObjects::default(), Walk::default());
            self.stage = Stage::Ending(Farewell { work, report, walk });
        }
        true
    }

    /// The next slice of the copies of this node at the end of leaving.
    pub(crate) fn next_farewell(&mut self, table: &Table, world: &World) -> Option<FarewellSlice> {
        let Stage::Ending(farewell) = &mut self.stage else { return None };
        let slice = slice(world);
        let copies = farewell.walk.next(slice.entries, table);
        farewell.walk.next_at = world.now() + slice.pause_ns;
        Some(FarewellSlice { copies, is_last: farewell.walk.is_over })
    }

    /// Whether a pinned copy is lost because no other node has taken it.
    pub(crate) fn is_lost(&self, instance: Instance, table: &Table) -> bool {
        let Stage::Ending(Farewell { work, .. }) = &self.stage else { return false };
        let is_reached = !work.is_ahead(instance) || work.early.contains(&instance);
        work.untransferred.contains(&instance)
            || work.open.contains_key(&instance)
            || !is_reached && is_handed_over(instance, table)
    }

    /// Counts an object that is lost.
    pub(crate) fn count_lost(&mut self, id: ObjectId) {
        if let Stage::Ending(farewell) = &mut self.stage {
            farewell.report.count += 1;
            if farewell.report.ids.len() < LOST_NAMED_MAX {
                farewell.report.ids.push(id);
            }
        }
    }

    /// Ends leaving. Returns the objects that are lost.
    pub(crate) fn left(&mut self) -> LostObjects {
        match core::mem::replace(&mut self.stage, Stage::Left) {
            Stage::Ending(farewell) => farewell.report,
            Stage::Active | Stage::Leaving(_) | Stage::Left => LostObjects::default(),
        }
    }
}

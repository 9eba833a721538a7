//! Progress of leaving: the pinned copies that other members are requested to keep, and what this
//! node waits for before it may close. Also the members that wait for this node before they leave.
//!
//! [`crate::machines::replicas`] finds a member for each copy. The sequence is in [`crate::node`].

use alloc::{collections::BTreeSet, vec::Vec};

use crate::{
    event::LostObjects,
    id::{Instance, Name, NodeId, ObjectId},
    limits::LOST_NAMED_MAX,
    machines::{membership_change::MembershipChange, walk::Walk, world::World},
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
    /// The last copy for which another member was requested, and whether none is left.
    reached: Option<Instance>,
    is_over: bool,
    /// When the next slice is due.
    next_at: Instant,
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

/// What this node waits for, besides the replies of members that keep its copies.
#[derive(Debug)]
struct Work {
    /// Pinned copies that clients are filling, and until when the node waits for them.
    filling: BTreeSet<Instance>,
    filling_until: Instant,
    /// Members whose reduces may have a position here.
    undrained: BTreeSet<NodeId>,
    until: Instant,
}

/// What is left to do once nothing can be handed over any more.
#[derive(Debug, Default)]
pub(crate) struct Farewell {
    pub(crate) next: FarewellStage,
    report: LostObjects,
    /// Files that may be read until this node ends.
    pub(crate) files: Vec<Instance>,
}

/// What the last walk visits next: one kind of state, and the last key of it that was visited.
#[derive(Clone, Debug)]
pub(crate) enum FarewellStage {
    Copies(Option<Instance>),
    Jobs(Option<Name>),
    Entries(Option<ObjectId>),
}

impl Default for FarewellStage {
    fn default() -> Self {
        Self::Copies(None)
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

    /// When the next slice is due, or the current wait times out.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Leaving(work) => {
                let end = if work.filling.is_empty() { work.until } else { work.filling_until };
                Some(if self.is_over { end } else { end.min(self.next_at) })
            }
            Stage::Ending(_) => Some(self.next_at),
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
        let undrained = BTreeSet::new();
        self.stage = Stage::Leaving(Work { filling, filling_until, undrained, until });
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
        if self.work().is_some() {
            for other in change.new_members(world) {
                self.notify(other, world);
            }
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

    /// Removes a copy that a client was filling when this node began to leave. Returns whether the
    /// walk has passed it.
    pub(crate) fn filled(&mut self, instance: Instance) -> bool {
        let is_reached = self.is_over || Some(instance) <= self.reached;
        self.work().is_some_and(|work| {
            work.filling.remove(&instance);
            is_reached
        })
    }

    /// Forgets a pinned copy that no longer exists.
    pub(crate) fn forget(&mut self, instance: Instance) {
        if let Some(work) = self.work() {
            work.filling.remove(&instance);
        }
    }

    /// The next copies for which another member is to be requested, if a slice is due.
    pub(crate) fn next_copies(&mut self, table: &Table, world: &World) -> Vec<Instance> {
        let is_due = !self.is_over && self.next_at <= world.now();
        if !is_due || self.work().is_none() {
            return Vec::new();
        }
        let slice = Walk::slice(world);
        let some: Vec<Instance> = table.following(self.reached).take(slice).collect();
        self.reached = some.last().copied().or(self.reached);
        self.is_over = some.len() < slice;
        self.pause(world);
        some
    }

    /// Schedules the next slice.
    pub(crate) fn pause(&mut self, world: &World) {
        self.next_at = world.now() + world.config().slice.pause_ns;
    }

    /// Stops waiting for positions at a member that is gone.
    pub(crate) fn stop_draining(&mut self, node: NodeId) {
        self.draining.remove(&node);
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        if let Some(work) = self.work().filter(|work| work.filling_until <= now) {
            work.filling.clear();
        }
    }

    /// Notifies leaving members at which no reduce of this node has a position any more.
    pub(crate) fn confirm_drained(&mut self, seats: &BTreeSet<NodeId>, world: &mut World) {
        for node in self.draining.difference(seats).copied().collect::<Vec<_>>() {
            self.draining.remove(&node);
            world.send(node, Message::Drained);
        }
    }

    /// Stops handing over copies if nothing is left to wait for, or its time is over. `is_done`
    /// returns whether nothing else is.
    pub(crate) fn end_if_done(&mut self, is_done: impl FnOnce() -> bool, now: Instant) {
        let is_over = self.is_over;
        let Some(work) = self.work() else { return };
        let has_waited = is_over && work.filling.is_empty() && work.undrained.is_empty();
        if work.until <= now || has_waited && is_done() {
            self.stage = Stage::Ending(Farewell::default());
            self.next_at = now;
        }
    }

    /// The last walk of this node, if a slice of it is due.
    pub(crate) fn farewell(&mut self, now: Instant) -> Option<&mut Farewell> {
        match &mut self.stage {
            Stage::Ending(farewell) if self.next_at <= now => Some(farewell),
            _ => None,
        }
    }

    /// Whether no member was requested to take a copy in time.
    pub(crate) fn is_ahead(&self, instance: Instance) -> bool {
        !self.is_over && Some(instance) > self.reached
    }

    /// Ends leaving. Returns the objects that are lost.
    pub(crate) fn left(&mut self) -> LostObjects {
        match core::mem::replace(&mut self.stage, Stage::Left) {
            Stage::Ending(farewell) => farewell.report,
            Stage::Active | Stage::Leaving(_) | Stage::Left => LostObjects::default(),
        }
    }
}

impl Farewell {
    /// Counts an object that is lost.
    pub(crate) fn count_lost(&mut self, id: ObjectId) {
        self.report.count += 1;
        if self.report.ids.len() < LOST_NAMED_MAX {
            self.report.ids.push(id);
        }
    }
}

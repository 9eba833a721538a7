//! Hand-over: this node leaves, and replicates each pinned copy elsewhere. Then it reports the
//! copies that no other node has taken, and passes on what no holder could repeat.
//!
//! The sequence is in [`crate::node`].

use alloc::{boxed::Box, collections::BTreeSet, vec::Vec};

use super::{
    set::ReplicaSet,
    state::{Farewell, HandOver, Replicas},
};
use crate::{
    id::{Instance, ObjectId},
    limits::LOST_NAMED_MAX,
    machines::{requests::Requests, world::World},
    table::{Copy, Table},
    time::Instant,
};

/// How long the node waits for clients to seal objects that they are filling: 1 s.
const FILL_TIMEOUT_NS: u64 = 1_000_000_000;

impl HandOver {
    /// When the next slice is due, or the current wait times out.
    pub(super) fn deadline(&self) -> Instant {
        let end = self.fills_until.unwrap_or(self.until);
        match (&self.farewell, self.is_over) {
            (Some(_), _) => self.next_at,
            (None, false) => end.min(self.next_at),
            (None, true) => end,
        }
    }
}

/// The hand-over of all pinned copies.
impl Replicas {
    /// Begins to leave. `has_fills`: whether clients are filling objects.
    pub(crate) fn begin_hand_over(&mut self, timeout_ns: u64, has_fills: bool, world: &World) {
        let until = world.now() + timeout_ns;
        let fills_until = until.min(world.now() + FILL_TIMEOUT_NS);
        self.hand_over = Some(Box::new(HandOver {
            reached: None,
            is_over: false,
            untaken: BTreeSet::new(),
            fills_until: has_fills.then_some(fills_until),
            until,
            next_at: world.now(),
            farewell: None,
        }));
    }

    /// The next copies for which another node is to be requested, if a slice is due.
    pub(crate) fn next_to_hand_over(&mut self, table: &Table, world: &World) -> Vec<Instance> {
        let Some(it) = &mut self.hand_over else { return Vec::new() };
        it.fills_until.take_if(|until| *until <= world.now());
        if it.is_over || it.farewell.is_some() || it.next_at > world.now() {
            return Vec::new();
        }
        let slice = world.slice();
        let some: Vec<Instance> = table.following(it.reached).take(slice).collect();
        it.reached = some.last().copied().or(it.reached);
        it.is_over = some.len() < slice;
        self.pause_hand_over(world);
        some
    }

    /// Schedules the next slice.
    pub(crate) fn pause_hand_over(&mut self, world: &World) {
        if let Some(it) = &mut self.hand_over {
            it.next_at = world.now() + world.config().slice.pause_ns;
        }
    }

    /// Whether a copy that is complete now comes too late for the slices.
    pub(crate) fn has_passed(&self, instance: Instance) -> bool {
        let it = self.hand_over.as_ref().filter(|it| it.farewell.is_none());
        it.is_some_and(|it| it.is_over || Some(instance) <= it.reached)
    }

    /// Requests another node for a pinned copy.
    pub(crate) fn hand_over(
        &mut self,
        (instance, copy): (Instance, &Copy),
        requests: &mut Requests,
        world: &mut World,
    ) {
        self.open((instance, copy));
        self.sets.update(&instance, ReplicaSet::leave);
        self.send_requests(instance, requests, world);
    }

    /// Ends the replication of a copy of this node, which leaves, if other nodes keep it or none
    /// does.
    pub(super) fn end_hand_over(&mut self, instance: Instance, is_enough: bool, world: &mut World) {
        let set = self.sets.get(&instance).filter(|set| set.leaves());
        let Some(set) = set.filter(|set| is_enough || set.is_given_up()) else { return };
        if let Some(it) = self.hand_over.as_mut().filter(|_| !is_enough && set.reached() == 1) {
            it.untaken.insert(instance);
        }
        // Another node may have been requested in addition, and was slower.
        self.remove(instance, ReplicaSet::pending, world);
    }

    pub(super) fn forget_untaken(&mut self, instance: Instance) {
        if let Some(it) = &mut self.hand_over {
            it.untaken.remove(&instance);
        }
    }

    /// Whether the node waits for clients that are filling objects.
    pub(crate) fn awaits_fills(&self) -> bool {
        self.hand_over.as_ref().is_some_and(|it| it.fills_until.is_some())
    }

    /// Whether copies are being handed over, and the time for that is over.
    pub(crate) fn is_hand_over_late(&self, now: Instant) -> bool {
        self.handing_over().is_some_and(|it| it.until <= now)
    }

    /// Whether another node was requested for each copy, and all have replied.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handing_over().is_some_and(|it| it.is_over) && self.sets.len() == 0
    }

    fn handing_over(&self) -> Option<&HandOver> {
        self.hand_over.as_deref().filter(|it| it.farewell.is_none())
    }

    /// Whether no node takes some copies of this one.
    pub(crate) fn lack_takers(&self) -> bool {
        self.hand_over.as_ref().is_some_and(|it| !it.untaken.is_empty())
    }

    /// Whether no other node has a copy that was to be handed over.
    pub(crate) fn is_lost(&self, instance: Instance) -> bool {
        let Some(it) = &self.hand_over else { return false };
        match self.sets.get(&instance) {
            Some(set) => set.reached() == 1,
            None => {
                let is_ahead = !it.is_over && Some(instance) > it.reached;
                is_ahead || it.untaken.contains(&instance)
            }
        }
    }

    /// Stops handing over copies. The last walk begins.
    pub(crate) fn begin_farewell(&mut self, now: Instant) {
        if let Some(it) = &mut self.hand_over {
            (it.farewell, it.next_at) = (Some(Farewell::default()), now);
        }
    }

    /// The last walk of this node, if a slice of it is due.
    pub(crate) fn farewell(&mut self, now: Instant) -> Option<&mut Farewell> {
        self.hand_over.as_mut().filter(|it| it.next_at <= now)?.farewell.as_mut()
    }

    /// Ends the last walk. Returns its result.
    pub(crate) fn end_farewell(&mut self) -> Farewell {
        self.hand_over.take().and_then(|it| it.farewell).unwrap_or_default()
    }
}

impl Farewell {
    /// Counts an object that is lost.
    pub(crate) fn count_lost(&mut self, id: ObjectId) {
        self.lost.count += 1;
        if self.lost.ids.len() < LOST_NAMED_MAX {
            self.lost.ids.push(id);
        }
    }
}

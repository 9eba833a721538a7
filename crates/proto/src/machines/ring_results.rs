//! Results of ring reduces that grow on this node in parts, each part folded on another node: their
//! orders and progress.
//!
//! ```text
//!   ordered --> capacity, at once or not at all --> memory --> growing --> all here --> complete
//!                                                                |            |
//!                                                                +------------+--> void: dropped, and requested again
//! ```
//!
//! A result that is all here is complete only when the coordinator's is. Until then the coordinator
//! may start another epoch with another sum, so readers do not get this result and owners do not
//! learn of it. Does not know copies, and knows only the number of folds.

use alloc::{collections::BTreeMap, vec::Vec};

use crate::{
    id::{Instance, NodeId, ObjectId, ReduceId},
    message::{FoldKey, FoldOrder, RingOrder},
};

#[derive(Debug, Default)]
pub(crate) struct RingResults {
    all: BTreeMap<Instance, RingResult>,
    by_attempt: BTreeMap<(ReduceId, u32), Instance>,
    /// The highest serial among the orders of each coordinator.
    newest: BTreeMap<NodeId, u64>,
}

/// A result that grows here in parts.
#[derive(Debug)]
pub(crate) struct RingResult {
    pub(crate) order: RingOrder,
    /// This node's index among the contributors, if it is one; its inputs are pinned.
    pub(crate) rank: Option<usize>,
    /// The number of folds that this node has begun.
    begun: usize,
    /// Whether memory is available for the last fold and the other parts.
    has_memory: bool,
    /// Whether all parts have arrived. Then a watch at the owner reports whether the result is
    /// complete.
    pub(crate) is_all_here: bool,
    /// Whether the coordinator has all of it, and therefore starts no other epoch.
    is_decided: bool,
}

impl RingResults {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether a copy is a result that grows in parts.
    pub(crate) fn contains(&self, instance: Instance) -> bool {
        self.all.contains_key(&instance)
    }

    pub(crate) fn order(&self, instance: Instance) -> Option<&RingOrder> {
        self.all.get(&instance).map(|parts| &parts.order)
    }

    /// The result of an epoch that grows here.
    pub(crate) fn of(&self, reduce: ReduceId, epoch: u32) -> Option<Instance> {
        self.by_attempt.get(&(reduce, epoch)).copied()
    }

    /// Whether an order is newer than all others of its coordinator. Serials only grow, so an order
    /// is never carried out twice.
    pub(crate) fn is_new(&mut self, order: &RingOrder) -> bool {
        let newest = self.newest.entry(order.reduce.node).or_default();
        let is_new = order.instance.serial > *newest;
        *newest = order.instance.serial.max(*newest);
        is_new
    }

    /// Begins to make a result; `rank` is this node's index among the contributors, if it is one.
    pub(crate) fn begin(&mut self, order: RingOrder, rank: Option<usize>) {
        let (begun, has_memory, is_all_here, is_decided) = (0, false, false, false);
        let instance = order.instance;
        self.by_attempt.insert((order.reduce, order.epoch), instance);
        let parts = RingResult { order, rank, begun, has_memory, is_all_here, is_decided };
        self.all.insert(instance, parts);
    }

    pub(crate) fn end(&mut self, instance: Instance) -> Option<RingResult> {
        let parts = self.all.remove(&instance)?;
        let attempt = (parts.order.reduce, parts.order.epoch);
        if self.by_attempt.get(&attempt) == Some(&instance) {
            self.by_attempt.remove(&attempt);
        }
        Some(parts)
    }

    /// Returns the next fold of this node and whether it makes this node's own part, and counts it
    /// as begun.
    pub(crate) fn next_fold(&mut self, instance: Instance) -> Option<(FoldOrder, bool)> {
        let parts = self.all.get_mut(&instance)?;
        let fold = parts.order.fold(parts.rank?, parts.begun)?;
        let is_own = fold.key.position == FoldKey::RESULT;
        if is_own && !parts.has_memory {
            return None;
        }
        parts.begun += 1;
        Some((fold, is_own))
    }

    /// Records that memory is available for a result; returns its order.
    pub(crate) fn in_memory(&mut self, instance: Instance) -> Option<&RingOrder> {
        let parts = self.all.get_mut(&instance)?;
        parts.has_memory = true;
        Some(&parts.order)
    }

    /// Records that all of a result is here. Returns whether the coordinator has all of it too.
    pub(crate) fn all_parts_received(&mut self, instance: Instance) -> Option<bool> {
        let parts = self.all.get_mut(&instance)?;
        parts.is_all_here |= !parts.is_decided;
        Some(parts.is_decided)
    }

    /// Records that the coordinator has all of a result, so that the copy here cannot become void.
    /// Returns whether all of it is here.
    pub(crate) fn decide(&mut self, instance: Instance) -> bool {
        let Some(parts) = self.all.get_mut(&instance) else { return false };
        parts.is_decided = true;
        parts.is_all_here
    }

    /// The results of a reduce up to and including an epoch.
    pub(crate) fn up_to(&self, reduce: ReduceId, epoch: u32) -> Vec<(Instance, ObjectId)> {
        let void =
            self.by_attempt.range((reduce, 0)..=(reduce, epoch)).map(|(_, instance)| instance);
        void.filter_map(|it| Some((*it, self.order(*it)?.id.clone()))).collect()
    }

    /// Forgets a lost coordinator. Returns its results, and whether all of each is here.
    pub(crate) fn forget_node(&mut self, node: NodeId) -> Vec<(Instance, ObjectId, bool)> {
        self.newest.remove(&node);
        let theirs = self.all.iter().filter(|(_, parts)| parts.order.reduce.node == node);
        let row = |(instance, parts): (&Instance, &RingResult)| {
            (*instance, parts.order.id.clone(), parts.is_all_here)
        };
        theirs.map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::{Meta, Op};

    const COORDINATOR: NodeId = NodeId(1);

    fn order(serial: u64) -> RingOrder {
        let reduce = ReduceId { node: COORDINATOR, serial: 1 };
        let instance = Instance { node: COORDINATOR, serial };
        let id = ObjectId::Minted { node: COORDINATOR, serial: 1 };
        let (meta, op, frame, contributors) = (Meta::bytes(1 << 20), Op::Sum, 1 << 16, Vec::new());
        RingOrder { reduce, epoch: 0, id, instance, meta, op, frame, contributors }
    }

    #[test]
    fn an_order_is_carried_out_once() {
        let mut scatters = RingResults::default();
        assert!(scatters.is_new(&order(5)) && !scatters.is_new(&order(5)));
        assert!(!scatters.is_new(&order(4)) && scatters.is_new(&order(6)));
        scatters.forget_node(COORDINATOR);
        assert!(scatters.is_new(&order(5)), "it is another process, or begins anew");
    }

    #[test]
    fn a_result_is_complete_when_it_is_all_here_and_the_coordinator_has_it() {
        let (mut scatters, order) = (RingResults::default(), order(5));
        let instance = order.instance;
        scatters.begin(order, None);
        assert_eq!(scatters.all_parts_received(instance), Some(false));
        assert!(scatters.decide(instance));
        assert_eq!(scatters.all_parts_received(instance), Some(true));
        let (reduce, id) = (
            ReduceId { node: COORDINATOR, serial: 1 },
            ObjectId::Minted { node: COORDINATOR, serial: 1 },
        );
        assert_eq!(scatters.of(reduce, 0), Some(instance));
        assert_eq!(scatters.up_to(reduce, 3), [(instance, id)]);
        assert!(scatters.end(instance).is_some() && !scatters.contains(instance));
        assert!(scatters.of(reduce, 0).is_none() && scatters.up_to(reduce, 3).is_empty());
    }
}

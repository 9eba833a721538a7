//! Results that grow at this node by parts, each folded at another node: what was ordered, and how far each is.
//!
//! ```text
//!   ordered --> room, at once or not at all --> memory --> growing --> all here --> complete
//!                                                            |            |
//!                                                            +------------+--> void: dropped, and asked for anew
//! ```
//!
//! What is all here is complete only when the coordinator's is: as long as that may begin again, and come to another sum,
//! no reader is given this one, and no owner hears of it. Does not know copies, nor folds beyond their number.

use alloc::{collections::BTreeMap, vec::Vec};

use crate::{
    id::{Instance, NodeId, ObjectId, ReduceId},
    message::{FoldKey, FoldOrder, ScatterOrder},
};

#[derive(Debug, Default)]
pub(crate) struct Scatters {
    all: BTreeMap<Instance, Parts>,
    by_attempt: BTreeMap<(ReduceId, u32), Instance>,
    /// The newest serial of an order of each coordinator.
    newest: BTreeMap<NodeId, u64>,
}

/// A result that grows here by parts.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) order: ScatterOrder,
    /// This node's, if it is one; its inputs are pinned.
    pub(crate) seat: Option<usize>,
    /// How many folds it has begun.
    begun: usize,
    /// Whether there is memory for what is folded last, and for the rest.
    has_memory: bool,
    /// Whether all of it has come; then the owner is asked whether it is complete.
    pub(crate) is_all_here: bool,
    /// Whether the coordinator has all of it, and so begins no other attempt.
    is_decided: bool,
}

impl Scatters {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether a copy is a result that grows by parts.
    pub(crate) fn contains(&self, instance: Instance) -> bool {
        self.all.contains_key(&instance)
    }

    pub(crate) fn order(&self, instance: Instance) -> Option<&ScatterOrder> {
        self.all.get(&instance).map(|parts| &parts.order)
    }

    /// The result of an attempt that grows here.
    pub(crate) fn of(&self, reduce: ReduceId, epoch: u32) -> Option<Instance> {
        self.by_attempt.get(&(reduce, epoch)).copied()
    }

    /// Whether an order is newer than all that came from its coordinator: serials only grow, and one that came before is
    /// not carried out twice.
    pub(crate) fn is_new(&mut self, order: &ScatterOrder) -> bool {
        let newest = self.newest.entry(order.reduce.node).or_default();
        let is_new = order.instance.serial > *newest;
        *newest = order.instance.serial.max(*newest);
        is_new
    }

    /// Begins to make a result; `seat` is this node's, if it has one.
    pub(crate) fn begin(&mut self, order: ScatterOrder, seat: Option<usize>) {
        let (begun, has_memory, is_all_here, is_decided) = (0, false, false, false);
        let instance = order.instance;
        self.by_attempt.insert((order.reduce, order.epoch), instance);
        let parts = Parts { order, seat, begun, has_memory, is_all_here, is_decided };
        self.all.insert(instance, parts);
    }

    pub(crate) fn end(&mut self, instance: Instance) -> Option<Parts> {
        let parts = self.all.remove(&instance)?;
        let attempt = (parts.order.reduce, parts.order.epoch);
        if self.by_attempt.get(&attempt) == Some(&instance) {
            self.by_attempt.remove(&attempt);
        }
        Some(parts)
    }

    /// The fold of this node's seat that is next, and whether it makes this node's own part; counted as begun.
    pub(crate) fn next_fold(&mut self, instance: Instance) -> Option<(FoldOrder, bool)> {
        let parts = self.all.get_mut(&instance)?;
        let fold = parts.order.fold(parts.seat?, parts.begun)?;
        let is_own = fold.key.position == FoldKey::RESULT;
        if is_own && !parts.has_memory {
            return None;
        }
        parts.begun += 1;
        Some((fold, is_own))
    }

    /// There is memory for a result; what was ordered of it.
    pub(crate) fn in_memory(&mut self, instance: Instance) -> Option<&ScatterOrder> {
        let parts = self.all.get_mut(&instance)?;
        parts.has_memory = true;
        Some(&parts.order)
    }

    /// All of a result has come here; whether the coordinator has all of it as well.
    pub(crate) fn all_here(&mut self, instance: Instance) -> Option<bool> {
        let parts = self.all.get_mut(&instance)?;
        parts.is_all_here |= !parts.is_decided;
        Some(parts.is_decided)
    }

    /// The coordinator has all of a result: what is here of it will not be void. Whether all of it is here.
    pub(crate) fn decide(&mut self, instance: Instance) -> bool {
        let Some(parts) = self.all.get_mut(&instance) else { return false };
        parts.is_decided = true;
        parts.is_all_here
    }

    /// What there is of a reduce up to an attempt.
    pub(crate) fn up_to(&self, reduce: ReduceId, epoch: u32) -> Vec<(Instance, ObjectId)> {
        let void =
            self.by_attempt.range((reduce, 0)..=(reduce, epoch)).map(|(_, instance)| instance);
        void.filter_map(|it| Some((*it, self.order(*it)?.id.clone()))).collect()
    }

    /// A coordinator is lost; its results, and whether all of each is here.
    pub(crate) fn forget_node(&mut self, node: NodeId) -> Vec<(Instance, ObjectId, bool)> {
        self.newest.remove(&node);
        let theirs = self.all.iter().filter(|(_, parts)| parts.order.reduce.node == node);
        let row = |(instance, parts): (&Instance, &Parts)| {
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

    fn order(serial: u64) -> ScatterOrder {
        let reduce = ReduceId { node: COORDINATOR, serial: 1 };
        let instance = Instance { node: COORDINATOR, serial };
        let id = ObjectId::Minted { node: COORDINATOR, serial: 1 };
        let (meta, op, frame, seats) = (Meta::bytes(1 << 20), Op::Sum, 1 << 16, Vec::new());
        ScatterOrder { reduce, epoch: 0, id, instance, meta, op, frame, seats }
    }

    #[test]
    fn an_order_is_carried_out_once() {
        let mut scatters = Scatters::default();
        assert!(scatters.is_new(&order(5)) && !scatters.is_new(&order(5)));
        assert!(!scatters.is_new(&order(4)) && scatters.is_new(&order(6)));
        scatters.forget_node(COORDINATOR);
        assert!(scatters.is_new(&order(5)), "it is another process, or begins anew");
    }

    #[test]
    fn a_result_is_complete_when_it_is_all_here_and_the_coordinator_has_it() {
        let (mut scatters, order) = (Scatters::default(), order(5));
        let instance = order.instance;
        scatters.begin(order, None);
        assert_eq!(scatters.all_here(instance), Some(false));
        assert!(scatters.decide(instance));
        assert_eq!(scatters.all_here(instance), Some(true));
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

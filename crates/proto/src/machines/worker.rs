//! Folds that run on this node, for its own reduces or those of others, and the inputs of each.
//! While this node leaves, also which members may still order folds here.
//!
//! Does not know copies: the caller pins the inputs, or holds those of a fold that waits for
//! capacity.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{
    id::{Instance, NodeId, ObjectId, ReduceId},
    machines::{membership_change::MembershipChange, world::World},
    message::{FoldKey, FoldOrder, Message},
    time::Instant,
};

/// All folds of this node.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    folds: BTreeMap<FoldKey, Fold>,
    /// While this node leaves: the members whose reduces may have a position here.
    undrained: Option<BTreeSet<NodeId>>,
    /// Whether it leaves without waiting for them.
    rejects_orders: bool,
}

/// A fold that runs here. Its inputs are pinned until it ends.
#[derive(Debug)]
pub struct Fold {
    /// The result of its reduce.
    pub result: ObjectId,
    /// Node and position of each child whose stream it folds.
    pub children: Vec<(NodeId, u32)>,
    /// Its inputs on this node.
    pub inputs: Vec<Instance>,
    /// When it began.
    pub since: Instant,
    /// Whether it waits for capacity for its result: its inputs are held, and not pinned.
    is_waiting: bool,
    is_stopped: bool,
}

/// A fold that has ended.
pub(crate) struct EndedFold {
    pub(crate) inputs: Vec<Instance>,
    pub(crate) was_waiting: bool,
    pub(crate) was_stopped: bool,
}

impl Worker {
    pub(crate) fn len(&self) -> usize {
        self.folds.len()
    }

    pub(crate) fn contains(&self, key: &FoldKey) -> bool {
        self.folds.contains_key(key)
    }

    /// Whether every fold that still runs was stopped.
    pub(crate) fn is_done(&self) -> bool {
        self.folds.values().all(|fold| fold.is_stopped)
    }

    /// Whether this node leaves, and no fold can begin any more.
    pub(crate) fn is_drained(&self) -> bool {
        self.undrained.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// Announces to all members that this node leaves.
    pub(crate) fn begin_to_drain(&mut self, world: &mut World) {
        self.undrained = Some(BTreeSet::new());
        world.others().into_iter().for_each(|other| self.announce_leaving(other, world));
    }

    /// Announces to members that are new, or have lost the announcement, that this node leaves.
    pub(crate) fn reannounce_leaving(&mut self, change: &MembershipChange, world: &mut World) {
        if self.undrained.is_some() {
            let new = change.new_members(world);
            new.into_iter().for_each(|other| self.announce_leaving(other, world));
        }
    }

    fn announce_leaving(&mut self, to: NodeId, world: &mut World) {
        self.undrained.get_or_insert_default().insert(to);
        world.send(to, Message::Leaving);
    }

    /// Records that no reduce of a member has a position here, nor will have one.
    pub(crate) fn drained(&mut self, by: NodeId) {
        self.undrained.iter_mut().for_each(|undrained| _ = undrained.remove(&by));
    }

    /// Rejects all orders from now on.
    pub(crate) fn reject_orders(&mut self) {
        self.rejects_orders = true;
    }

    /// Whether this node leaves, and no reduce of `coordinator` has a position here any more.
    pub(crate) fn rejects_orders_of(&self, coordinator: NodeId) -> bool {
        self.rejects_orders
            || self.undrained.as_ref().is_some_and(|undrained| !undrained.contains(&coordinator))
    }

    /// The keys of the folds for which `is_it` is true.
    pub(crate) fn that(&self, is_it: impl Fn(&FoldKey) -> bool) -> Vec<FoldKey> {
        self.folds.keys().filter(|key| is_it(key)).copied().collect()
    }

    /// The number of folds that a coordinator has ordered.
    pub(crate) fn ordered_by(&self, coordinator: NodeId) -> usize {
        self.folds.range(FoldKey::all_of(coordinator)).count()
    }

    /// The folds of an epoch.
    pub(crate) fn of(&self, reduce: ReduceId, epoch: u32) -> Vec<FoldKey> {
        self.that(|key| key.is_of(reduce, epoch))
    }

    /// The folds that run, in the order of their keys.
    pub(crate) fn running(&self) -> impl Iterator<Item = (&FoldKey, &Fold)> {
        self.folds.iter().filter(|(_, fold)| !fold.is_waiting)
    }

    /// A fold that runs.
    pub(crate) fn get(&self, key: &FoldKey) -> Option<&Fold> {
        self.folds.get(key).filter(|fold| !fold.is_waiting)
    }

    /// Begins a fold.
    pub(crate) fn begin(&mut self, order: &FoldOrder, now: Instant) {
        self.insert(order, now, false);
    }

    /// Begins a fold that waits for capacity for its result.
    pub(crate) fn begin_to_wait(&mut self, order: &FoldOrder) {
        self.insert(order, Instant::default(), true);
    }

    fn insert(&mut self, order: &FoldOrder, since: Instant, is_waiting: bool) {
        let FoldOrder { key, ref result, ref children, ref inputs, .. } = *order;
        let (result, children, inputs) = (result.clone(), children.clone(), inputs.clone());
        let fold = Fold { result, children, inputs, since, is_waiting, is_stopped: false };
        self.folds.insert(key, fold);
    }

    /// Ends the wait of a fold; returns the inputs, which the caller must pin now.
    pub(crate) fn end_waiting(&mut self, key: &FoldKey, now: Instant) -> Vec<Instance> {
        let waiting = self.folds.get_mut(key).filter(|fold| fold.is_waiting);
        waiting.map_or_else(Vec::new, |fold| {
            (fold.is_waiting, fold.since) = (false, now);
            fold.inputs.clone()
        })
    }

    /// Marks a fold as stopped. Returns whether it runs and was not stopped before.
    pub(crate) fn stop(&mut self, key: FoldKey) -> bool {
        let running = self.folds.get_mut(&key).filter(|fold| !fold.is_stopped);
        running.is_some_and(|fold| !core::mem::replace(&mut fold.is_stopped, true))
    }

    /// The inputs that a fold reads here.
    pub(crate) fn inputs(&self, key: &FoldKey) -> &[Instance] {
        self.folds.get(key).map_or(&[], |fold| &fold.inputs)
    }

    pub(crate) fn end(&mut self, key: &FoldKey) -> Option<EndedFold> {
        let Fold { inputs, is_waiting, is_stopped, .. } = self.folds.remove(key)?;
        Some(EndedFold { inputs, was_waiting: is_waiting, was_stopped: is_stopped })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::meta::{Dtype, Op};

    const NOW: Instant = Instant(1);

    fn order() -> FoldOrder {
        let node = NodeId(1);
        FoldOrder {
            key: FoldKey::result(ReduceId { node, serial: 1 }, 0),
            result: ObjectId::Minted { node, serial: 1 },
            inputs: vec![Instance { node, serial: 7 }],
            children: Vec::new(),
            op: Op::Sum,
            dtype: Dtype::Float32,
            size: 4,
            part: 0..4,
            frame: 4,
        }
    }

    #[test]
    fn inputs_are_pinned_after_the_wait_for_capacity_and_released_in_kind() {
        let (mut worker, order) = (Worker::default(), order());
        worker.begin_to_wait(&order);
        assert!(worker.get(&order.key).is_none(), "it does not run yet");
        assert_eq!(worker.end_waiting(&order.key, NOW), order.inputs);
        assert!(worker.end_waiting(&order.key, NOW).is_empty(), "once");
        assert!(worker.get(&order.key).is_some_and(|fold| fold.since == NOW));
        assert!(worker.end(&order.key).is_some_and(|ended| !ended.was_waiting));
        worker.begin_to_wait(&order);
        assert!(worker.end(&order.key).is_some_and(|ended| ended.was_waiting));
    }

    #[test]
    fn a_fold_is_stopped_once_and_runs_until_it_ends() {
        let (mut worker, order) = (Worker::default(), order());
        worker.begin(&order, NOW);
        assert!(worker.stop(order.key) && !worker.stop(order.key));
        assert!(worker.is_done() && worker.contains(&order.key));
        assert!(worker.end(&order.key).is_some_and(|ended| ended.was_stopped));
        assert!(worker.end(&order.key).is_none());
    }
}

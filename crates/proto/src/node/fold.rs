//! Fold: this node at a position of a reduce of any coordinator. If a fold waits for a child, the
//! coordinator gets a report and may use another input.

use alloc::{format, string::String};

use super::Node;
use crate::{
    event::{Action, LimitSubject},
    id::{Instance, NodeId, ReduceId},
    limits::{FOLDS_MAX, limit_name},
    machines::worker::EndedFold,
    message::{FoldKey, FoldOrder, Message},
    table::Copy,
};

impl Node {
    /// A coordinator orders this node to fold.
    pub(super) fn fold(&mut self, from: NodeId, order: FoldOrder) {
        let key = order.key;
        if key.reduce.node != from || self.worker.contains(&key) {
            return;
        }
        let missing = self.unusable_input(&order);
        let failure = match missing {
            _ if self.worker.rejects_orders_of(from) => {
                Some(format!("node {} is closing", self.world.me()))
            }
            _ if self.worker.ordered_by(from) >= FOLDS_MAX => {
                self.world.limit_reached(LimitSubject::Member(from), limit_name!(FOLDS_MAX));
                Some(format!(
                    "node {} already runs {FOLDS_MAX} folds of this coordinator",
                    self.world.me()
                ))
            }
            Some(missing) => Some(format!("node {} has no usable copy {missing}", self.world.me())),
            None => None,
        };
        if let Some(detail) = failure {
            let FoldKey { reduce, epoch, .. } = key;
            let is_lost = false;
            return self.world.send(from, Message::FoldFailed { reduce, epoch, detail, is_lost });
        }
        self.start_fold(order, None);
    }

    pub(super) fn start_fold(&mut self, order: FoldOrder, target: Option<(Instance, u64)>) {
        order.inputs.iter().for_each(|input| self.copies.add_reader(*input));
        self.worker.begin(&order, self.world.now());
        self.world.act(Action::StartFold { order, target });
    }

    /// Whether a pinned input will be available to its end. An input that was deleted after it was
    /// complete, or is still being filled, is folded anyway.
    pub(super) fn is_foldable(&self, input: Instance) -> bool {
        let is_usable = |copy: &Copy| (!copy.doomed || copy.is_complete()) && !copy.is_unverified();
        self.claims.put(input).is_some() || self.copies.get(input).is_some_and(is_usable)
    }

    /// An input that is not on this node, or does not match the order.
    pub(super) fn unusable_input(&self, order: &FoldOrder) -> Option<Instance> {
        let usable = |input: &&Instance| {
            self.copies.get(**input).is_some_and(|copy| {
                let is_of_order = copy.inline.is_none() && copy.meta.size == order.size;
                !copy.doomed && is_of_order && !copy.is_unverified()
            })
        };
        order.inputs.iter().find(|input| !usable(input)).copied()
    }

    pub(super) fn end_epoch(&mut self, reduce: ReduceId, epoch: u32, is_aborted: bool) {
        if is_aborted {
            self.drop_parts(reduce, epoch);
        } else {
            self.parts_decided(reduce, epoch);
        }
        let is_aborted = |key: &FoldKey| {
            key.reduce == reduce && key.epoch <= epoch && key.position != FoldKey::RESULT
        };
        for key in self.worker.that(is_aborted) {
            self.stop_fold(key);
        }
    }

    pub(super) fn stop_fold(&mut self, key: FoldKey) {
        if self.worker.stop(key) {
            self.world.act(Action::StopFold { key });
        }
    }

    /// Releases the inputs of a fold. Returns whether the fold had been stopped.
    pub(super) fn end_fold(&mut self, key: FoldKey) -> bool {
        let Some(ended) = self.worker.end(&key) else { return true };
        let EndedFold { inputs, was_waiting, was_stopped } = ended;
        for input in inputs {
            if was_waiting {
                self.copies.unexpect_reader(input, &mut self.world);
            } else {
                self.remove_reader(input);
            }
        }
        was_stopped
    }

    pub(super) fn fold_ended(&mut self, key: FoldKey, failure: Option<String>) {
        // If its own inputs are available, the stream of a child broke.
        let inputs = self.worker.inputs(&key);
        let is_lost = inputs.iter().all(|input| self.is_foldable(*input));
        let was_stopped = self.end_fold(key);
        let FoldKey { reduce, epoch, position, .. } = key;
        match failure {
            _ if was_stopped => {}
            Some(detail) => {
                let failed = Message::FoldFailed { reduce, epoch, detail, is_lost };
                self.world.send(reduce.node, failed);
            }
            None if self.part_folded(&key) => {}
            None if position == FoldKey::RESULT => self.result_complete(reduce),
            None => {}
        }
    }

    /// A fold on this node waits for the stream of a child, and nothing arrives.
    pub(super) fn fold_stalled(&mut self, key: FoldKey, node: NodeId) {
        if self.worker.contains(&key) {
            let FoldKey { reduce, epoch, .. } = key;
            self.world.send(reduce.node, Message::FoldStalled { reduce, epoch, node });
        }
    }

    /// A position of a reduce of this node waits for a child on `node`.
    pub(super) fn stall_reported(&mut self, from: NodeId, key: ReduceId, epoch: u32, node: NodeId) {
        self.update_reduce(key, |reduce, _, now, steps| {
            if reduce.epoch() == epoch {
                reduce.stall_reported(now, from, node, steps);
            }
        });
    }

    /// A node that a position waits for is alive.
    pub(super) fn fold_alive(&mut self, from: NodeId, key: ReduceId, epoch: u32) {
        self.update_reduce(key, |reduce, _, _, _| {
            if reduce.epoch() == epoch {
                reduce.answered(from);
            }
        });
    }
}

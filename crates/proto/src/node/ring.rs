//! Ring reduces: this node as the coordinator of one, and as a contributor that folds parts.
//!
//! The copy of the result begins like any copy that arrives from the coordinator. But its own parts
//! are folded here, and the rest arrives from the next seat. [`crate::reduce::ring`] derives all
//! steps from the order.
//!
//! A contributor with all parts gets the confirmation that its copy is complete from the
//! coordinator ([`Message::EndEpoch`]). In case that message is lost, it also watches the result at
//! its owner ([`Question::Watch`]). [`crate::machines::incoming`] tracks the progress.

use alloc::{format, string::String, vec::Vec};

use super::Node;
use crate::{
    event::LogEvent,
    id::{Instance, NodeId, ObjectId, ReduceId},
    machines::{
        copies::PendingCopy,
        incoming::{Arrival, Parts},
        questions::Asker,
    },
    message::{FoldKey, Found, Message, RingOrder},
    question::Question,
    reduce::{assign::Contributor, ring::LANES},
    table::State,
};

impl Node {
    /// All inputs have arrived, and most contributors want the result.
    pub(super) fn start_ring(
        &mut self,
        key: ReduceId,
        contributors: Vec<Contributor<NodeId, Instance>>,
    ) {
        let Some(reduce) = self.coordinator.get(key) else { return };
        let Some(meta) = reduce.meta().cloned() else { return };
        let (id, epoch, op, frame) =
            (reduce.result().clone(), reduce.epoch(), reduce.op(), reduce.frame());
        if !self.copies.table().could_hold(meta.size) {
            let error = self.copies.store_full(meta.size);
            return self.fail_reduce_of(&id, &error);
        }
        self.world.note(LogEvent::RingChosen { id: id.clone(), parts: contributors.len() });
        let instance = self.world.next_instance();
        let contributors = contributors.into_iter().map(|rank| (rank.node, rank.inputs)).collect();
        let order = RingOrder { reduce: key, epoch, id, instance, meta, op, frame, contributors };
        self.await_result(instance, key, None);
        if self.copies.get(instance).is_none() {
            // Otherwise contributors could hold memory until this node has some, and keep it from
            // getting any.
            let detail = String::from("the calling node has no capacity for the result yet");
            return self.reduce_failed(key, epoch, detail, true);
        }
        let me = self.world.me();
        for (node, _) in order.contributors.iter().filter(|(node, _)| *node != me) {
            self.world.send(*node, Message::RingReduce(order.clone().into()));
        }
        if !self.has_inputs(&order) {
            let detail = String::from("an input on the calling node was lost");
            return self.reduce_failed(key, epoch, detail, false);
        }
        self.begin_parts(order);
        self.fold_on(instance);
    }

    /// A coordinator orders this node to contribute to a ring.
    pub(super) fn ring_ordered(&mut self, from: NodeId, order: RingOrder) {
        let RingOrder { reduce, epoch, instance, .. } = order;
        let is_theirs = reduce.node == from && instance.node == from;
        let is_for_me = order.rank(self.world.me()).is_some() && is_theirs;
        if !is_for_me || from == self.world.me() || !self.incoming.is_new(&order) {
            return;
        }
        if self.incoming.of_epoch(reduce, epoch).is_some() {
            return;
        }
        let failure = if self.worker.rejects_orders_of(from) {
            Some(format!("node {} is closing", self.world.me()))
        } else if self.copies.get(instance).is_some() {
            // Another owner's reply about the result was faster.
            Some(format!("node {} already receives the result", self.world.me()))
        } else if !self.has_inputs(&order) {
            Some(format!("node {} does not hold its inputs", self.world.me()))
        } else if !self.receive_parts(order) {
            Some(format!("node {} has no capacity for the result", self.world.me()))
        } else {
            None
        };
        if let Some(detail) = failure {
            self.world.send(from, Message::FoldFailed { reduce, epoch, detail, is_lost: false });
        }
    }

    /// Requests capacity for the whole result. Returns false if there is none at present.
    fn receive_parts(&mut self, order: RingOrder) -> bool {
        let (id, instance, meta) = (order.id.clone(), order.instance, order.meta.clone());
        // This is newer than any earlier pull or copy of the object.
        if let Some(before) = self.copies.current(&id) {
            self.doom(before);
        }
        self.end_pull(&id);
        self.begin_parts(order);
        let (state, inline) = (State::Arriving, None);
        self.want(instance, PendingCopy { id: id.clone(), meta, inline, state, terms: None });
        let has_room = self.copies.get(instance).is_some();
        if has_room {
            self.fold_on(instance);
        } else {
            self.end_parts(instance);
            self.end_pull(&id);
            self.pull_if_wanted(&id);
        }
        has_room
    }

    /// Whether this node has all inputs of its seat, if it has one.
    fn has_inputs(&self, order: &RingOrder) -> bool {
        order.rank(self.world.me()).is_none_or(|rank| {
            order.fold(rank, 0).is_some_and(|fold| self.unusable_input(&fold).is_none())
        })
    }

    /// Begins to make a result from parts. The inputs are pinned, so that one deleted before its
    /// last fold is folded anyway.
    fn begin_parts(&mut self, order: RingOrder) {
        let rank = order.rank(self.world.me());
        let inputs = rank.map_or(&[][..], |rank| order.inputs(rank));
        inputs.iter().for_each(|input| self.copies.add_reader(*input));
        self.incoming.begin_parts(order, rank, self.world.me());
    }

    /// Begins the next folds of a seat.
    pub(super) fn fold_on(&mut self, instance: Instance) {
        while let Some(parts) = self.incoming.parts(instance) {
            let order = &parts.order;
            let (reduce, epoch, count) = (order.reduce, order.epoch, order.count());
            if self.worker.of(reduce, epoch).len() >= LANES {
                return;
            }
            let Some((fold, is_own)) = self.incoming.next_fold(instance) else { return };
            let target = is_own.then_some((instance, count));
            if !fold.inputs.iter().all(|input| self.is_foldable(*input)) {
                let detail = format!("an input on node {} was lost", self.world.me());
                self.world.send(
                    reduce.node,
                    Message::FoldFailed { reduce, epoch, detail, is_lost: false },
                );
                return;
            }
            self.start_fold(fold, target);
        }
    }

    /// Continues the seat of a fold that ended. Returns false if the fold belongs to no ring.
    pub(super) fn part_folded(&mut self, key: &FoldKey) -> bool {
        let Some(instance) = self.incoming.of_epoch(key.reduce, key.epoch) else { return false };
        self.fold_on(instance);
        true
    }

    /// Memory for the coordinator's own copy is allocated: its own parts can be folded, and the
    /// rest is fetched.
    pub(super) fn parts_in_memory(&mut self, instance: Instance) {
        let source = self.incoming.copy(instance).and_then(Arrival::source);
        if let Some((arrival, source)) = self.incoming.of_copy(instance).zip(source) {
            self.fetch(arrival, source);
            self.fold_on(instance);
        }
    }

    /// A part can't arrive as ordered: the attempt fails, unless the coordinator already has the
    /// whole result.
    pub(super) fn parts_failed(&mut self, instance: Instance, detail: String) {
        let Some(parts) = self.incoming.parts(instance) else { return };
        let (reduce, epoch) = (parts.order.reduce, parts.order.epoch);
        self.world.send(reduce.node, Message::FoldFailed { reduce, epoch, detail, is_lost: true });
        if reduce.node != self.world.me() {
            self.fall_back_to_pull(instance);
        }
    }

    /// The copy that parts are folded into is doomed: the coordinator must not wait for its parts.
    pub(super) fn parts_doomed(&mut self, instance: Instance) {
        let Some(RingOrder { reduce, epoch, .. }) = self.end_parts(instance) else {
            return;
        };
        if reduce.node != self.world.me() {
            let detail = format!("node {} dropped its copy of the result", self.world.me());
            self.world
                .send(reduce.node, Message::FoldFailed { reduce, epoch, detail, is_lost: false });
        }
    }

    /// Drops what has arrived of a result, and requests it like any other object.
    fn fall_back_to_pull(&mut self, instance: Instance) {
        let Some(RingOrder { id, .. }) = self.end_parts(instance) else { return };
        self.doom(instance);
        self.end_pull(&id);
        self.pull_if_wanted(&id);
    }

    /// Ends the production of a copy from parts, since it is complete or failed. If it is complete,
    /// so are all parts. In both cases no node needs another fold.
    fn end_parts(&mut self, instance: Instance) -> Option<RingOrder> {
        let arrival =
            self.incoming.of_copy(instance).filter(|_| self.incoming.is_parts(instance))?;
        self.stop_fetches(arrival);
        let Parts { order, rank, .. } = self.incoming.end_parts(instance)?;
        if let Some(rank) = rank {
            order.inputs(rank).iter().for_each(|input| self.remove_reader(*input));
        }
        for key in self.worker.of(order.reduce, order.epoch) {
            self.stop_fold(key);
        }
        self.questions.close_of(Asker::Parts(instance), &mut self.world);
        Some(order)
    }

    /// All missing parts of a copy have arrived. If it is the coordinator's copy, the result is
    /// complete. Any other is complete once the coordinator's is.
    pub(super) fn parts_arrived(&mut self, instance: Instance) {
        let Some(parts) = self.incoming.parts(instance) else { return };
        let (id, reduce, is_decided) =
            (parts.order.id.clone(), parts.order.reduce, parts.is_decided);
        if reduce.node == self.world.me() {
            self.end_parts(instance);
            self.result_complete(reduce);
        } else if is_decided {
            self.end_parts(instance);
            self.arrived(instance);
        } else {
            let watch = Question::Watch { id, seen_at: None };
            self.questions.ask(Asker::Parts(instance), watch, &mut self.world);
        }
    }

    /// The coordinator has the whole result: the copy on this node is valid.
    fn decide_parts(&mut self, instance: Instance) {
        if self.incoming.decide(instance) {
            self.end_parts(instance);
            self.arrived(instance);
        }
    }

    pub(super) fn parts_decided(&mut self, reduce: ReduceId, epoch: u32) {
        if let Some(instance) = self.incoming.of_epoch(reduce, epoch) {
            self.decide_parts(instance);
        }
    }

    /// An owner reported the state of an object.
    pub(super) fn parts_found(&mut self, found: &Found) {
        if found.complete {
            self.decide_parts(found.instance);
        }
    }

    /// The coordinator ended an attempt: drop its partial result on this node.
    pub(super) fn drop_parts(&mut self, reduce: ReduceId, epoch: u32) {
        for instance in self.incoming.up_to(reduce, epoch) {
            self.fall_back_to_pull(instance);
        }
    }

    /// The coordinator is lost. If its process has ended it can't restart the reduce, so a copy
    /// with all parts is complete. If it is only unresponsive, it may return and produce another
    /// result.
    pub(super) fn abort_rings(&mut self, node: NodeId, process_ended: bool) {
        for (instance, is_all_here) in self.incoming.of_coordinator(node) {
            if is_all_here && process_ended {
                self.decide_parts(instance);
            } else {
                self.fall_back_to_pull(instance);
            }
        }
    }

    /// A node requested a result that does not exist yet.
    pub(super) fn result_requested(&mut self, id: &ObjectId) {
        let Some(key) = self.coordinator.maker(id) else { return };
        self.update_reduce(key, |reduce, around, now, steps| reduce.asked(now, around, steps));
    }
}

//! Ring reduces: this node as the coordinator of one, and as a contributor that folds parts.
//!
//! The copy of the result begins like any copy that arrives from the coordinator. But its own parts
//! are folded here, and the rest arrives from the next seat. [`crate::reduce::ring`] derives all
//! steps from the order.
//!
//! A contributor with all parts gets the confirmation that its copy is complete from the
//! coordinator ([`Message::EndEpoch`]). In case that message is lost, it also watches the result at
//! its owner ([`Question::Watch`]). [`crate::machines::ring_results`] tracks the progress.

use alloc::{format, string::String, vec::Vec};

use super::Node;
use crate::{
    event::{Action, FetchOrder, LogEvent},
    id::{Instance, NodeId, ObjectId, ReduceId},
    machines::{questions::Asker, ring_results::RingResult},
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
        if !self.contribute(order) {
            let detail = String::from("an input on the calling node was lost");
            self.reduce_failed(key, epoch, detail, false);
        }
    }

    /// A coordinator orders this node to contribute to a ring.
    pub(super) fn ring_ordered(&mut self, from: NodeId, order: RingOrder) {
        let RingOrder { reduce, epoch, instance, .. } = order;
        let is_theirs = reduce.node == from && instance.node == from;
        let is_for_me = order.rank(self.world.me()).is_some() && is_theirs;
        if !is_for_me || from == self.world.me() || !self.ring_results.is_new(&order) {
            return;
        }
        if self.ring_results.of(reduce, epoch).is_some() {
            return;
        }
        let failure = if self.leaving.rejects_orders_of(from) {
            Some(format!("node {} is closing", self.world.me()))
        } else if self.copies.get(instance).is_some() {
            // Another owner's reply about the result was faster.
            Some(format!("node {} already receives the result", self.world.me()))
        } else if !self.contribute(order.clone()) {
            Some(format!("node {} does not hold its inputs", self.world.me()))
        } else if !self.receive_parts(&order) {
            Some(format!("node {} has no capacity for the result", self.world.me()))
        } else {
            None
        };
        if let Some(detail) = failure {
            self.world.send(from, Message::FoldFailed { reduce, epoch, detail, is_lost: false });
        }
    }

    /// Requests capacity for the whole result. Returns false if there is none at present.
    fn receive_parts(&mut self, order: &RingOrder) -> bool {
        let (id, instance) = (&order.id, order.instance);
        // This is newer than any earlier pull or copy of the object.
        self.end_pull(id);
        if let Some(before) = self.copies.current(id) {
            self.doom(before);
        }
        self.pull_parts(order);
        let has_room = self.copies.get(instance).is_some();
        if !has_room {
            self.end_pull(id);
            self.end_parts(instance);
            self.pull_if_wanted(id);
        }
        has_room
    }

    /// Begins to fold for the parts of others. Returns false if this node does not have all inputs
    /// of its seat.
    fn contribute(&mut self, order: RingOrder) -> bool {
        let (instance, rank) = (order.instance, order.rank(self.world.me()));
        if let Some(rank) = rank {
            let first = order.fold(rank, 0);
            if first.is_none_or(|fold| self.unusable_input(&fold).is_some()) {
                return false;
            }
            // Pinned, so that an input deleted before its last fold is folded anyway.
            order.inputs(rank).iter().for_each(|input| self.copies.add_reader(*input));
        }
        self.ring_results.begin(order, rank);
        self.fold_on(instance);
        true
    }

    /// Begins the next folds of a seat.
    fn fold_on(&mut self, instance: Instance) {
        while let Some(order) = self.ring_results.order(instance) {
            let (reduce, epoch, count) = (order.reduce, order.epoch, order.count());
            if self.worker.of(reduce, epoch).len() >= LANES {
                return;
            }
            let Some((fold, is_own)) = self.ring_results.next_fold(instance) else { return };
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
        let Some(instance) = self.ring_results.of(key.reduce, key.epoch) else { return false };
        self.fold_on(instance);
        true
    }

    /// Memory for the result is allocated: its own parts can be folded, and the rest is fetched.
    pub(super) fn begin_parts(&mut self, instance: Instance) {
        let me = self.world.me();
        let Some(order) = self.ring_results.in_memory(instance) else { return };
        let (id, source, ranges) = (order.id.clone(), order.source(me), Some(order.rest(me)));
        let order = self.fetch_order(id, instance, source);
        self.world.act(Action::Fetch(FetchOrder { ranges, in_parts: true, ..order }));
        self.fold_on(instance);
    }

    /// A part can't arrive as ordered: the attempt fails, unless the coordinator already has the
    /// whole result.
    pub(super) fn parts_failed(&mut self, instance: Instance, detail: String) {
        let Some(order) = self.ring_results.order(instance) else { return };
        let (reduce, epoch, id) = (order.reduce, order.epoch, order.id.clone());
        self.world.send(reduce.node, Message::FoldFailed { reduce, epoch, detail, is_lost: true });
        if reduce.node != self.world.me() {
            self.fall_back_to_pull(instance, &id);
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
    fn fall_back_to_pull(&mut self, instance: Instance, id: &ObjectId) {
        self.end_parts(instance);
        self.doom(instance);
        self.end_pull(id);
        self.pull_if_wanted(id);
    }

    /// Ends the production of a copy from parts, since it is complete or failed. If it is complete,
    /// so are all parts. In both cases no node needs another fold.
    fn end_parts(&mut self, instance: Instance) -> Option<RingOrder> {
        let RingResult { order, rank, is_all_here, .. } = self.ring_results.end(instance)?;
        if let Some(rank) = rank {
            order.inputs(rank).iter().for_each(|input| self.remove_reader(*input));
        }
        for key in self.worker.of(order.reduce, order.epoch) {
            self.stop_fold(key);
        }
        if is_all_here {
            self.questions.close_of(Asker::Parts(instance), &mut self.world);
        }
        Some(order)
    }

    /// All parts of a result have arrived. Returns whether the copy may be served already.
    fn ring_parts_received(&mut self, instance: Instance) -> bool {
        match self.ring_results.all_parts_received(instance) {
            None => true,
            Some(true) => {
                self.end_parts(instance);
                true
            }
            Some(false) => {
                if let Some(order) = self.ring_results.order(instance) {
                    let watch = Question::Watch { id: order.id.clone(), seen: false };
                    self.questions.ask(Asker::Parts(instance), watch, &mut self.world);
                }
                false
            }
        }
    }

    /// The coordinator has the whole result: the copy on this node is valid.
    fn decide_parts(&mut self, instance: Instance) {
        if self.ring_results.decide(instance) {
            self.fetched(instance);
        }
    }

    pub(super) fn parts_decided(&mut self, reduce: ReduceId, epoch: u32) {
        if let Some(instance) = self.ring_results.of(reduce, epoch) {
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
        for (instance, id) in self.ring_results.up_to(reduce, epoch) {
            self.fall_back_to_pull(instance, &id);
        }
    }

    /// The coordinator is lost. If its process has ended it can't restart the reduce, so a copy
    /// with all parts is complete. If it is only unresponsive, it may return and produce another
    /// result.
    pub(super) fn abort_rings(&mut self, node: NodeId, process_ended: bool) {
        for (instance, id, is_all_here) in self.ring_results.forget_node(node) {
            if is_all_here && process_ended {
                self.decide_parts(instance);
            } else {
                self.fall_back_to_pull(instance, &id);
            }
        }
    }

    /// A node requested a result that does not exist yet.
    pub(super) fn result_requested(&mut self, id: &ObjectId) {
        let Some(key) = self.coordinator.maker(id) else { return };
        self.update_reduce(key, |reduce, around, now, steps| reduce.asked(now, around, steps));
    }

    /// All missing parts of a copy have arrived. If it is the coordinator's copy, the result is
    /// complete. Returns whether nothing is left to do.
    pub(super) fn ring_received(&mut self, instance: Instance) -> bool {
        let is_result = self.copies.get(instance).is_some_and(|copy| copy.state == State::Folding);
        if !is_result {
            return !self.ring_parts_received(instance);
        }
        if let Some(order) = self.end_parts(instance) {
            self.result_complete(order.reduce);
        }
        true
    }
}

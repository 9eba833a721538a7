//! Scattered reduces: this node as the coordinator of one, and as a seat that makes a part.
//!
//! The copy of the result begins like any that arrives from the coordinator; but one part of it is folded here, and the
//! rest comes from the next seat. Who does what follows from the order alone: [`crate::reduce::scatter`].
//!
//! That what is all here is complete a seat hears from the coordinator ([`Message::Unfold`]), and should that be lost, from
//! the owner, which it asks ([`Message::Watch`]). How far each is stands in [`crate::machines::scatters`].

use alloc::{format, string::String, vec::Vec};

use super::Node;
use crate::{
    event::{Action, Note},
    id::{Instance, NodeId, ObjectId, ReduceId},
    machines::{scatters::Parts, watches::Listener},
    message::{FoldKey, Found, Message, ScatterOrder},
    reduce::{assign::Seat, scatter::LANES},
    table::State,
};

impl Node {
    /// All inputs are there, and most of those who hold them want the result.
    pub(super) fn scatter(&mut self, key: ReduceId, seats: Vec<Seat<NodeId, Instance>>) {
        let Some(reduce) = self.coordinator.get(key) else { return };
        let Some(meta) = reduce.meta().cloned() else { return };
        let (id, epoch, op, frame) =
            (reduce.result().clone(), reduce.epoch(), reduce.op(), reduce.frame());
        if !self.copies.table().could_hold(meta.size) {
            let error = self.copies.store_full(meta.size);
            return self.fail_reduce_of(&id, &error);
        }
        self.world.note(Note::Scattered { id: id.clone(), parts: seats.len() });
        let instance = self.world.next_instance();
        let seats = seats.into_iter().map(|seat| (seat.node, seat.inputs)).collect();
        let order = ScatterOrder { reduce: key, epoch, id, instance, meta, op, frame, seats };
        self.await_result(instance, key, Vec::new(), Vec::new());
        if self.copies.get(instance).is_none() {
            // Seats that hold memory until this node has some might keep it from having any.
            let detail = String::from("the calling node has no room for the result yet");
            return self.reduce_failed(key, epoch, detail, true);
        }
        let me = self.world.me();
        for (node, _) in order.seats.iter().filter(|(node, _)| *node != me) {
            self.world.send(*node, Message::Scatter(order.clone().into()));
        }
        if !self.contribute(order) {
            let detail = String::from("an input on the calling node was lost");
            self.reduce_failed(key, epoch, detail, false);
        }
    }

    /// A coordinator orders this node to make a part.
    pub(super) fn scattered(&mut self, from: NodeId, order: ScatterOrder) {
        let ScatterOrder { reduce, epoch, instance, .. } = order;
        let is_theirs = reduce.node == from && instance.node == from;
        let is_for_me = order.seat(self.world.me()).is_some() && is_theirs;
        if !is_for_me || from == self.world.me() || !self.scatters.is_new(&order) {
            return;
        }
        if self.scatters.of(reduce, epoch).is_some() {
            return;
        }
        let failure = if self.leaving.takes_no_orders_of(from) {
            Some(format!("node {} is closing", self.world.me()))
        } else if self.copies.get(instance).is_some() {
            // Another owner told of it first.
            Some(format!("node {} already receives the result", self.world.me()))
        } else if !self.contribute(order.clone()) {
            Some(format!("node {} does not hold its inputs", self.world.me()))
        } else if !self.receive_parts(&order) {
            Some(format!("node {} has no room for the result", self.world.me()))
        } else {
            None
        };
        if let Some(detail) = failure {
            self.world.send(from, Message::FoldFailed { reduce, epoch, detail, is_lost: false });
        }
    }

    /// Makes room for the whole result; false if there is none at present.
    fn receive_parts(&mut self, order: &ScatterOrder) -> bool {
        let (id, instance) = (&order.id, order.instance);
        // Whatever it was that this node looked for or received, this is newer.
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

    /// Begins to fold for the parts of others; false if this node does not hold all inputs of its seat.
    fn contribute(&mut self, order: ScatterOrder) -> bool {
        let (instance, seat) = (order.instance, order.seat(self.world.me()));
        if let Some(seat) = seat {
            let first = order.fold(seat, 0);
            if first.is_none_or(|fold| self.unusable_input(&fold).is_some()) {
                return false;
            }
            // What is deleted before the last fold of them has begun is folded all the same.
            order.inputs(seat).iter().for_each(|input| self.copies.pin(*input));
        }
        self.scatters.begin(order, seat);
        self.fold_on(instance);
        true
    }

    /// Begins the folds of a seat that are next.
    fn fold_on(&mut self, instance: Instance) {
        while let Some(order) = self.scatters.order(instance) {
            let (reduce, epoch, count) = (order.reduce, order.epoch, order.count());
            if self.worker.of(reduce, epoch).len() >= LANES {
                return;
            }
            let Some((fold, is_own)) = self.scatters.next_fold(instance) else { return };
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

    /// A fold is over: the seat that it was of goes on; false if it was of none.
    pub(super) fn part_folded(&mut self, key: &FoldKey) -> bool {
        let Some(instance) = self.scatters.of(key.reduce, key.epoch) else { return false };
        self.fold_on(instance);
        true
    }

    /// There is memory for the result: its own part can be folded, the rest is received.
    pub(super) fn begin_parts(&mut self, instance: Instance) {
        let me = self.world.me();
        let Some(order) = self.scatters.in_memory(instance) else { return };
        let (id, source, parts) = (order.id.clone(), order.source(me), Some(order.rest(me)));
        self.world.act(Action::Fetch { id, instance, source, parts, digest: None });
        self.fold_on(instance);
    }

    /// A part can't come as ordered: the attempt is void, unless the coordinator has all of it already.
    pub(super) fn parts_failed(&mut self, instance: Instance, detail: String) {
        let Some(order) = self.scatters.order(instance) else { return };
        let (reduce, epoch, id) = (order.reduce, order.epoch, order.id.clone());
        self.world.send(reduce.node, Message::FoldFailed { reduce, epoch, detail, is_lost: true });
        if reduce.node != self.world.me() {
            self.begin_anew(instance, &id);
        }
    }

    /// A copy goes in which parts were to be made: those who wait for them would wait in vain.
    pub(super) fn parts_doomed(&mut self, instance: Instance) {
        let Some(ScatterOrder { reduce, epoch, .. }) = self.end_parts(instance) else {
            return;
        };
        if reduce.node != self.world.me() {
            let detail = format!("node {} dropped its copy of the result", self.world.me());
            self.world
                .send(reduce.node, Message::FoldFailed { reduce, epoch, detail, is_lost: false });
        }
    }

    /// Lets go of what has come of a result, and asks for it like for any other object.
    fn begin_anew(&mut self, instance: Instance, id: &ObjectId) {
        self.end_parts(instance);
        self.doom(instance);
        self.end_pull(id);
        self.pull_if_wanted(id);
    }

    /// A copy is no longer made of parts: it is complete or void. If it is complete, all parts are; in both
    /// cases no node needs another fold.
    fn end_parts(&mut self, instance: Instance) -> Option<ScatterOrder> {
        let Parts { order, seat, is_all_here, .. } = self.scatters.end(instance)?;
        if let Some(seat) = seat {
            order.inputs(seat).iter().for_each(|input| self.unpin(*input));
        }
        for key in self.worker.of(order.reduce, order.epoch) {
            self.stop_fold(key);
        }
        if is_all_here {
            self.watches.stop(&order.id, Listener::Parts(instance), &mut self.world);
        }
        Some(order)
    }

    /// All of a result has come to a seat: whether it may be given to others already.
    fn parts_here(&mut self, instance: Instance) -> bool {
        match self.scatters.all_here(instance) {
            None => true,
            Some(true) => {
                self.end_parts(instance);
                true
            }
            Some(false) => {
                if let Some(order) = self.scatters.order(instance) {
                    self.watches.start(&order.id, Listener::Parts(instance), &mut self.world);
                }
                false
            }
        }
    }

    /// The coordinator has all of a result: what is here of it will not be void.
    fn decide_parts(&mut self, instance: Instance) {
        if self.scatters.decide(instance) {
            self.fetched(instance);
        }
    }

    pub(super) fn parts_decided(&mut self, reduce: ReduceId, epoch: u32) {
        if let Some(instance) = self.scatters.of(reduce, epoch) {
            self.decide_parts(instance);
        }
    }

    /// An owner says what there is of an object.
    pub(super) fn parts_found(&mut self, found: &Found) {
        if found.complete {
            self.decide_parts(found.instance);
        }
    }

    /// The coordinator says that an attempt is void, and so is what there is of its result here.
    pub(super) fn drop_parts(&mut self, reduce: ReduceId, epoch: u32) {
        for (instance, id) in self.scatters.up_to(reduce, epoch) {
            self.begin_anew(instance, &id);
        }
    }

    /// The coordinator of scattered reduces is lost. If its process is over it does not begin again: what is all here is
    /// complete. One that is only silent may come back and make another result.
    pub(super) fn parts_without(&mut self, node: NodeId, is_over: bool) {
        for (instance, id, is_all_here) in self.scatters.forget_node(node) {
            if is_all_here && is_over {
                self.decide_parts(instance);
            } else {
                self.begin_anew(instance, &id);
            }
        }
    }

    /// A node asks for a result that is not there yet.
    pub(super) fn result_asked(&mut self, id: &ObjectId) {
        let Some(key) = self.coordinator.maker(id) else { return };
        self.advise(key, |reduce, around, now, steps| reduce.asked(now, around, steps));
    }

    /// All of a copy has come: what was asked for here is the result of its reduce. Whether there is nothing more to do.
    pub(super) fn parts_complete(&mut self, instance: Instance) -> bool {
        let is_result = self.copies.get(instance).is_some_and(|copy| copy.state == State::Folding);
        if !is_result {
            return !self.parts_here(instance);
        }
        if let Some(order) = self.end_parts(instance) {
            self.result_complete(order.reduce);
        }
        true
    }
}

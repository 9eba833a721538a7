//! The result of a reduce: it waits for capacity and memory, is announced while it grows, and ends
//! the reduce when it is complete.
//!
//! [`super::reduce`] decides what is folded into it, [`super::fold`] and [`super::ring`] fold.

use alloc::collections::BTreeSet;

use super::Node;
use crate::{
    event::{Action, LogEvent},
    id::{Instance, NodeId, ReduceId},
    inline::Inline,
    machines::copies::PendingCopy,
    message::{FoldKey, FoldOrder, Message},
    request::Reply,
    table::{Copy, State},
};

/// Why an attempt fails whose inputs at the coordinator were evicted or deleted.
const INPUT_LOST: &str = "an input on the calling node was lost";

impl Node {
    /// All inputs are chosen: request capacity for the result.
    pub(super) fn make_result(&mut self, order: FoldOrder) {
        let FoldKey { reduce: key, epoch, .. } = order.key;
        if !self.copies.table().could_hold(order.size) {
            let error = self.copies.store_full(order.size);
            return self.fail_reduce_of(&order.result, &error);
        }
        let is_good =
            |copy: &Copy| !copy.doomed && copy.meta.size == order.size && !copy.is_unverified();
        if !order.inputs.iter().all(|input| self.copies.get(*input).is_some_and(is_good)) {
            // Evicted or deleted since the owner's report, or different from it.
            return self.reduce_failed(key, epoch, INPUT_LOST.into(), false);
        }
        // The inputs wait together with the result: if a client deletes them meanwhile, they are
        // still folded. They may go to disk meanwhile, since pins could keep the result from
        // getting capacity.
        order.inputs.iter().for_each(|input| self.copies.expect_reader(*input));
        self.worker.begin_to_wait(&order);
        let instance = self.world.next_instance();
        self.await_result(instance, key, Some(order));
    }

    /// Waits for capacity for the result of an attempt, and for the fold into it; a ring has none.
    pub(super) fn await_result(
        &mut self,
        instance: Instance,
        key: ReduceId,
        order: Option<FoldOrder>,
    ) {
        if self.coordinator.await_result(instance, key, order) {
            self.want_result(instance, key, None);
        }
    }

    /// Requests capacity for the result of a reduce. An inline result is already complete.
    fn want_result(&mut self, instance: Instance, key: ReduceId, inline: Option<Inline>) {
        let Some(reduce) = self.coordinator.get(key) else { return };
        let Some(meta) = reduce.meta().cloned() else { return };
        let (id, terms) = (reduce.result().clone(), self.coordinator.terms(key));
        let state = if inline.is_some() { State::Complete } else { State::Folding };
        self.want(instance, PendingCopy { id, meta, inline, state, terms });
    }

    /// Memory for the result is allocated. It is announced while it grows, so that its broadcast
    /// overlaps with the reduce.
    pub(super) fn result_in_memory(&mut self, instance: Instance) {
        let Some(id) = self.copies.id_of(instance).cloned() else { return };
        let Some(awaited) = self.coordinator.take_awaited_result(&id, instance) else { return };
        let Some(reduce) = self.coordinator.get(awaited.key.reduce) else { return };
        let count = reduce.folded().len() as u64;
        self.reveal(instance);
        self.announce(instance);
        self.end_pull(&id);
        self.growing(instance);
        let Some(order) = awaited.order else { return self.parts_in_memory(instance) };
        for input in self.worker.end_waiting(&order.key, self.world.now()) {
            self.copies.pin_reserved(input);
        }
        if !order.inputs.iter().all(|input| self.is_foldable(*input)) {
            return self.fold_ended(order.key, Some(INPUT_LOST.into()));
        }
        self.world.act(Action::StartFold { order, target: Some((instance, count)) });
    }

    pub(super) fn folded_inline(&mut self, key: ReduceId, epoch: u32, result: Inline) {
        if self.coordinator.current(key, epoch).is_some() {
            let instance = self.world.next_instance();
            self.coordinator.await_result(instance, key, None);
            self.want_result(instance, key, Some(result));
        }
    }

    /// An inline result, which is complete, has capacity.
    pub(super) fn small_result_in_room(&mut self, instance: Instance) {
        let Some(id) = self.copies.id_of(instance).cloned() else { return };
        let Some(target) = self.coordinator.take_awaited_result(&id, instance) else { return };
        self.reveal(instance);
        self.announce(instance);
        self.finish_reduce(target.key.reduce, instance);
    }

    /// The result is complete.
    fn finish_reduce(&mut self, key: ReduceId, instance: Instance) {
        let Some(reduce) = self.forget_reduce(key) else { return };
        let id = reduce.result().clone();
        self.claims.forget(&id, &mut self.world);
        let (since, failure) = (reduce.since(), None);
        self.world.note(LogEvent::ReduceEnded { id: id.clone(), since, failure });
        // All positions have sent everything. A position with a duplicate order must not wait for a
        // parent forever.
        let nodes: BTreeSet<NodeId> = reduce.nodes().into_iter().collect();
        for node in nodes {
            let (epoch, is_aborted) = (reduce.epoch(), false);
            self.world.send(node, Message::EndEpoch { reduce: key, epoch, is_aborted });
        }
        let ids = self.coordinator.remember_folded(&reduce);
        self.completed(instance);
        for request in self.requests.for_inputs(&id) {
            self.requests.reply(request, Ok(Reply::Inputs { ids: ids.clone() }), &mut self.world);
        }
    }

    /// All positions have been folded into the result.
    pub(super) fn result_complete(&mut self, key: ReduceId) {
        let Some(id) = self.coordinator.get(key).map(|reduce| reduce.result().clone()) else {
            return;
        };
        let Some(instance) = self.copies.current(&id) else { return };
        if self.copies.get(instance).is_some_and(|copy| copy.state == State::Folding) {
            self.copies.set_state(instance, State::Complete);
            self.announce(instance);
            self.finish_reduce(key, instance);
        }
    }
}

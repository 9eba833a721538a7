//! Reduce: this node as the coordinator of its clients' reduces.
//!
//! [`crate::reduce`] decides; here its steps become messages, allocations and folds.

use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};

use super::Node;
use super::put::no_time;
use crate::{
    error::Error,
    event::{Action, LimitSubject, LogEvent},
    id::{ClientId, NodeId, ObjectId, QuestionId, ReduceId},
    lifetime::Terms,
    limits::{FOLDED_INPUTS_MAX, REDUCE_INPUTS_MAX, limit_name},
    machines::{
        claims::{Ending, Holder},
        coordinator::{ReduceRequest, Started},
        questions::Asker,
        requests::{RequestContext, RequestKind},
    },
    message::{FoldKey, Found, Message},
    meta::Op,
    mutants::{self, Mutant},
    reduce::{Candidates, PlanContext, Reduce, Step},
    request::Reply,
    table::State,
    time::Instant,
};

impl Node {
    pub(super) fn begin_reduce(
        &mut self,
        context: &RequestContext,
        inputs: Vec<ObjectId>,
        op: Op,
        count: u32,
        id: Option<ObjectId>,
        ttl_ns: Option<u64>,
    ) -> Option<Result<Reply, Error>> {
        if ttl_ns == Some(0) {
            return Some(Err(no_time()));
        }
        if inputs.len() > REDUCE_INPUTS_MAX {
            let limit = limit_name!(REDUCE_INPUTS_MAX);
            self.world.limit_reached(LimitSubject::Client(context.client), limit);
        }
        let (count, given) = (count as usize, inputs.len());
        if let Some(said) = why_invalid(given, count, id.as_ref()) {
            return Some(Err(Error::InvalidArgument(said)));
        }
        let (unread, candidates) = (inputs.into_iter(), Candidates::default());
        let mut reduce = ReduceRequest { op, count, id, ttl_ns, given, unread, candidates };
        if reduce.read(self.world.config().slice.entries) {
            return self.start_reduce(context, reduce);
        }
        self.requests.remember(context, RequestKind::Reduce, &self.world);
        self.coordinator.read_later(context.request, reduce);
        self.pause_inputs();
        None
    }

    fn pause_inputs(&mut self) {
        self.coordinator.pause(self.world.now() + self.world.config().slice.pause_ns);
    }

    /// Reads the next inputs of a request that has very many.
    fn read_inputs(&mut self) {
        let Some((request, mut reduce)) = self.coordinator.next_unread() else { return };
        // It may have ended.
        let Some(context) = self.requests.context(request) else { return };
        if !reduce.read(self.world.config().slice.entries) {
            return self.coordinator.read_later(request, reduce);
        }
        self.requests.end(request);
        if let Some(reply) = self.start_reduce(&context, reduce) {
            self.world.reply(context.client, request, reply);
        }
    }

    /// Starts a reduce whose inputs are read.
    fn start_reduce(
        &mut self,
        context: &RequestContext,
        reduce: ReduceRequest,
    ) -> Option<Result<Reply, Error>> {
        if let Some(said) = reduce.why_invalid() {
            return Some(Err(Error::InvalidArgument(said)));
        }
        let ReduceRequest { op, count, id, ttl_ns, candidates, .. } = reduce;
        let id = match self.claims.id_for(context.client, id, &self.directory, &mut self.world) {
            Ok(id) => id,
            Err(error) => return Some(Err(error)),
        };
        let key = ReduceId { node: self.world.me(), serial: self.world.next_serial() };
        let (now, forced_degree) = (self.world.now(), self.world.config().degree);
        let (reduce, unwatched) = Reduce::new(
            self.world.me(),
            key,
            id.clone(),
            op,
            candidates,
            count,
            now,
            context.deadline,
            forced_degree,
        );
        let terms = Terms::new(ttl_ns, self.client_leases.job(context.client));
        let (client, request) = (context.client, context.request);
        let started = Started { reduce, terms, client, request, unwatched };
        self.coordinator.begin(key, started);
        // The reduce takes over the reservation of its client, if there is one.
        let is_reserved = self.claims.pass_to_reduce(&id, context.client, key, &mut self.world);
        if id.minter().is_some() || is_reserved {
            self.watch_inputs(key);
            return Some(Ok(Reply::Reducing { id }));
        }
        // It begins once the name is granted.
        self.claims.reserve(&id, context.request, Holder::Reduce(key), &mut self.world);
        self.requests.remember(context, RequestKind::Name(id), &self.world);
        None
    }

    pub(super) fn inputs(
        &mut self,
        context: &RequestContext,
        id: ObjectId,
    ) -> Option<Result<Reply, Error>> {
        if let Some(folded) = self.coordinator.folded(&id) {
            return Some(Ok(Reply::Inputs { ids: folded.to_vec() }));
        }
        if self.coordinator.maker(&id).is_some() {
            self.requests.remember(context, RequestKind::Inputs(id), &self.world);
            return None;
        }
        Some(Err(self.no_result(&id)))
    }

    /// The inputs of a reduce that can no longer arrive.
    pub(super) fn lost(&self, id: &ObjectId) -> Result<Reply, Error> {
        let ids = self.coordinator.lost(id).ok_or_else(|| self.no_result(id))?;
        Ok(Reply::Inputs { ids })
    }

    /// Why an object is not the result of a reduce of this node.
    fn no_result(&self, id: &ObjectId) -> Error {
        // This node generated the ids of its results, so its shard of the directory has their
        // tombstones. A client that has reconnected may have ids of the node before.
        let gone = self.directory.why_gone(id).or_else(|| self.world.members().why_unmade(id));
        gone.unwrap_or_else(|| {
            let said = format!(
                "{id} is not the result of a reduce that was started on this node, or the node \
                 has forgotten its inputs, because it remembers at most {FOLDED_INPUTS_MAX}: \
                 request them when the result is complete"
            );
            Error::InvalidArgument(said)
        })
    }

    /// An owner reported the state of an input.
    pub(super) fn input_found(
        &mut self,
        key: ReduceId,
        number: QuestionId,
        id: &ObjectId,
        found: Option<Found>,
    ) {
        // The holder can't get a fold order if this node does not count it as a member, if it is
        // leaving, or if this node has evicted its own copy. The owner may not have detected that
        // yet.
        let (me, members) = (self.world.me(), self.world.members());
        let can_fold = |found: &Found| {
            let is_here = found.holder != me || self.copies.table().holds(found.instance);
            members.contains(found.holder) && !members.is_leaving(found.holder) && is_here
        };
        let exists = found.is_some();
        let usable = found.and_then(|found| match found.inline {
            // The message contains the bytes, so this node is the holder.
            Some(_) => Some(Found { holder: me, ..found }),
            None => Some(found).filter(can_fold),
        });
        if exists && usable.is_none() {
            self.questions.ask_later(number, &self.world);
        }
        self.update_reduce(key, |reduce, around, now, steps| {
            reduce.found(now, id, usable, around, steps);
        });
    }

    pub(super) fn input_gone(&mut self, key: ReduceId, id: &ObjectId, error: &Error) {
        self.update_reduce(key, |reduce, around, now, steps| {
            reduce.gone(now, id, error, around, steps);
        });
    }

    /// Passes a fact to a reduce, and executes the resulting steps.
    pub(super) fn update_reduce(
        &mut self,
        key: ReduceId,
        fact: impl FnOnce(&mut Reduce, PlanContext<'_>, Instant, &mut Vec<Step>),
    ) {
        let steps =
            self.coordinator.update(key, &self.directory, self.copies.table(), &self.world, fact);
        self.take_steps(key, steps);
    }

    /// Watches the inputs of a reduce that has begun.
    pub(super) fn watch_inputs(&mut self, key: ReduceId) {
        let inputs = self.coordinator.take_unwatched(key);
        self.questions.watch_all(Asker::Reduce(key), inputs);
    }

    fn take_steps(&mut self, key: ReduceId, steps: Vec<Step>) {
        for step in steps {
            let Some(reduce) = self.coordinator.get(key) else { return };
            let id = reduce.result().clone();
            match step {
                Step::Watch(input) => {
                    self.questions.watch_all(Asker::Reduce(key), [input].into());
                }
                Step::Order(node, order) => self.world.send(node, Message::Fold(order)),
                Step::Probe(node) => {
                    let epoch = reduce.epoch();
                    self.world.send(node, Message::FoldProbe { reduce: key, epoch });
                }
                Step::FoldInline(inputs) => {
                    let (op, epoch) = (reduce.op(), reduce.epoch());
                    if let Some(dtype) = reduce.dtype() {
                        self.world.act(Action::FoldInline {
                            reduce: key,
                            epoch,
                            op,
                            dtype,
                            inputs,
                        });
                    }
                }
                Step::Result(order) => self.make_result(order),
                Step::StartRing(contributors) => self.start_ring(key, contributors),
                Step::Void { epoch, nodes, detail } => {
                    self.world.note(LogEvent::ReduceRestarted { id: id.clone(), epoch, detail });
                    self.abort_epoch(key, &id, epoch, nodes);
                }
                Step::DegreeChosen(degree, reason) => {
                    self.world.note(LogEvent::DegreeChosen { id, degree, reason });
                }
                Step::Fail(error) => {
                    let is_late = matches!(error, Error::Timeout { .. });
                    let full = is_late.then(|| self.shortfall(&id)).flatten();
                    self.fail_reduce_of(&id, &full.unwrap_or(error));
                }
            }
        }
    }

    /// Fails a reduce: all that wait for its result get the error.
    pub(super) fn fail_reduce_of(&mut self, id: &ObjectId, error: &Error) {
        let Some(key) = self.coordinator.maker(id) else { return };
        let Some(reduce) = self.forget_reduce(key) else { return };
        let (since, failure) = (reduce.since(), Some(error.to_string()));
        self.world.note(LogEvent::ReduceEnded { id: id.clone(), since, failure });
        self.coordinator.remember_failed(&reduce);
        let is_minted = id.minter().is_some();
        let reserved = self.end_reservation(id, error);
        self.abort_epoch(key, id, reduce.epoch(), reduce.nodes());
        if is_minted || reserved.is_some() {
            self.world
                .send_owners(id, &Message::Fail { id: id.clone(), error: error.clone(), reserved });
            self.pull_failed(id, error);
        }
        for request in self.requests.for_inputs(id) {
            self.requests.reply(request, Err(error.clone()), &mut self.world);
        }
    }

    /// Fails the reduces of a client that has ended.
    pub(super) fn end_reduces_of(&mut self, client: ClientId, process: Option<u32>) {
        for id in self.coordinator.of_client(client) {
            let detail = Ending::Disconnected(process).detail(
                "started its reduce",
                "the result was complete",
                &self.world,
            );
            self.fail_reduce_of(&id, &Error::ObjectLost { id: id.clone(), detail });
        }
    }

    pub(super) fn forget_reduce(&mut self, key: ReduceId) -> Option<Reduce> {
        self.coordinator.forget(key, &mut self.questions, &mut self.world)
    }

    /// Ends an attempt: stops the nodes that fold, and drops its partial result.
    fn abort_epoch(&mut self, reduce: ReduceId, id: &ObjectId, epoch: u32, nodes: Vec<NodeId>) {
        let nodes: BTreeSet<NodeId> = nodes.into_iter().collect();
        for node in nodes {
            self.world.send(node, Message::EndEpoch { reduce, epoch, is_aborted: true });
        }
        if mutants::is_active(Mutant::KeepsAbortedEpochs) {
            return;
        }
        let key = FoldKey::result(reduce, epoch);
        if let Some(instance) = self.coordinator.drop_target(key) {
            self.copies.cancel(instance);
            self.doom(instance);
            self.end_fold(key);
        } else {
            self.stop_fold(key);
        }
        let growing = self.copies.current(id).filter(|instance| {
            self.copies.get(*instance).is_some_and(|copy| copy.state == State::Folding)
        });
        if let Some(instance) = growing {
            self.withdraw(id, instance);
            // Local readers wait for the next attempt.
            self.pull_if_wanted(id);
        }
    }

    pub(super) fn reduce_failed(
        &mut self,
        key: ReduceId,
        epoch: u32,
        detail: String,
        is_lost: bool,
    ) {
        self.update_reduce(key, |reduce, _, now, steps| {
            reduce.failed(now, epoch, detail, is_lost, steps);
        });
    }

    /// Restarts attempts that fold an input on a node that is gone. Inputs there that are not
    /// folded yet are looked up again.
    pub(super) fn abort_reduces(&mut self, node: NodeId, process_ended: bool) {
        for key in self.coordinator.keys() {
            let folding = self.coordinator.get(key).filter(|reduce| reduce.folds_at(node));
            if let Some(epoch) = folding.map(Reduce::epoch) {
                self.reduce_failed(key, epoch, format!("node {node} is gone"), true);
            } else {
                self.holder_leaves(key, node);
            }
        }
        let is_theirs = |key: &FoldKey| {
            key.reduce.node == node && !mutants::is_active(Mutant::KeepsFoldsOfFailedNodes)
        };
        for key in self.worker.that(is_theirs) {
            self.stop_fold(key);
        }
        self.abort_rings(node, process_ended);
    }

    /// Inputs of a reduce on a node that leaves are looked up again, unless they are folded there.
    pub(super) fn holder_leaves(&mut self, key: ReduceId, node: NodeId) {
        self.update_reduce(key, |reduce, around, now, steps| {
            reduce.holder_leaves(now, node, around, steps);
        });
    }

    pub(super) fn expire_reduces(&mut self) {
        if self.coordinator.resumes(self.world.now()) {
            self.read_inputs();
            self.pause_inputs();
        }
        for key in self.coordinator.due(self.world.now()) {
            self.update_reduce(key, |reduce, around, now, steps| reduce.expire(now, around, steps));
        }
    }
}

/// Why a reduce of these inputs can't begin.
fn why_invalid(all: usize, count: usize, result: Option<&ObjectId>) -> Option<String> {
    if count == 0 || count > all {
        return Some(format!(
            "count is {count}: it must be between 1 and the number of inputs, {all}"
        ));
    }
    if all > REDUCE_INPUTS_MAX {
        return Some(format!(
            "{all} inputs are too many: pass at most {REDUCE_INPUTS_MAX} to one reduce"
        ));
    }
    let result = result?;
    result.is_slot().then(|| {
        format!(
            "{result} is a slot, which only a put or create can fill: reserve the ref of a result"
        )
    })
}

//! Reduce: this node as the coordinator of its clients' reduces, and as a position in those of others.
//!
//! What a reduce decides is in [`crate::reduce`]; here its steps become messages, room and folds.

use alloc::{collections::BTreeSet, format, string::String, vec::Vec};

use super::{Action, Asked, Node, Note, Pending, SpaceFor, Waiting};
use crate::{
    ask::Answer,
    error::Error,
    id::{Instance, NodeId, ObjectId, ReduceId},
    inline::Inline,
    limits::REDUCE_INPUTS_MAX,
    message::{FoldKey, FoldOrder, Found, Message},
    meta::{Meta, Op},
    planted::{self, Bug},
    reduce::{Around, Reduce, Step},
    table::State,
    time::Instant,
};

/// The result of a reduce: what will be folded into it once there is room.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) meta: Meta,
    key: FoldKey,
    pub(super) id: ObjectId,
    local: Vec<Instance>,
    children: Vec<(NodeId, u32)>,
    count: u64,
    op: Op,
    frame: u32,
}

/// Reduces that failed and of which the node still knows which inputs were lost.
const FAILED_MAX: usize = 256;

/// What became of the inputs of a reduce that is over.
#[derive(Debug)]
pub(super) struct Folded {
    inputs: Vec<ObjectId>,
    lost: Vec<ObjectId>,
}

/// A fold that runs here; its inputs are pinned until it ends.
#[derive(Debug)]
pub(super) struct Fold {
    inputs: Vec<Instance>,
    pub(super) is_stopped: bool,
}

impl Fold {
    const fn of(inputs: Vec<Instance>) -> Self {
        Self { inputs, is_stopped: false }
    }
}

impl Node {
    pub(super) fn begin_reduce(
        &mut self,
        asked: &Asked,
        inputs: Vec<ObjectId>,
        op: Op,
        count: u32,
        id: Option<ObjectId>,
        out: &mut Vec<Action>,
    ) -> Option<Result<Answer, Error>> {
        let count = count as usize;
        let distinct: BTreeSet<&ObjectId> = inputs.iter().collect();
        let said = if count == 0 || count > inputs.len() {
            format!(
                "count is {count}: it must lie between 1 and the number of inputs, {}",
                inputs.len()
            )
        } else if inputs.len() > REDUCE_INPUTS_MAX {
            format!(
                "{} inputs are more than {REDUCE_INPUTS_MAX}, the most of one reduce",
                inputs.len()
            )
        } else if distinct.len() < inputs.len() {
            let repeated = inputs.len() - distinct.len();
            format!(
                "{repeated} of {} inputs are there twice: a reduce takes each input once",
                inputs.len()
            )
        } else if let Some(id) = id.as_ref().filter(|id| distinct.contains(id)) {
            format!("{id} is an input: the result needs a name of its own")
        } else {
            String::new()
        };
        if !said.is_empty() {
            return Some(Err(Error::InvalidArgument(said)));
        }
        let id = match self.id_for(asked.client, id) {
            Ok(id) => id,
            Err(error) => return Some(Err(error)),
        };
        self.next_serial += 1;
        let key = ReduceId { node: self.me.id, serial: self.next_serial };
        let (now, forced) = (self.now, self.config.degree);
        let (reduce, steps) = Reduce::new(
            self.me.id,
            key,
            id.clone(),
            op,
            &inputs,
            count,
            now,
            asked.deadline,
            forced,
        );
        self.reduces.insert(key, reduce);
        if id.minter().is_some() {
            self.reduce_of.insert(id.clone(), key);
            self.take_steps(key, steps, out);
            return Some(Ok(Answer::Reducing { id }));
        }
        if let Some(other) = self.reduce_of.get(&id) {
            self.reduces.remove(&key);
            let holder = other.node;
            return Some(Err(Error::NameTaken { id, holder }));
        }
        self.reduce_of.insert(id.clone(), key);
        self.remember(asked, Waiting::Reservation(key));
        self.reserve(key, &id, asked.request, steps, out);
        None
    }

    pub(super) fn inputs(&mut self, asked: &Asked, id: ObjectId) -> Option<Result<Answer, Error>> {
        if let Some(folded) = self.folded.get(&id) {
            return Some(Ok(Answer::Inputs { ids: folded.inputs.clone() }));
        }
        if self.reduce_of.contains_key(&id) {
            self.remember(asked, Waiting::Inputs(id));
            return None;
        }
        Some(Err(self.no_result(&id)))
    }

    /// Which inputs of a reduce can't come any more.
    pub(super) fn lost(&self, id: &ObjectId) -> Result<Answer, Error> {
        let reduce = self.reduce_of.get(id).and_then(|key| self.reduces.get(key));
        let failed = self.failed.iter().rev().find(|(result, _)| result == id);
        let ids = match (reduce, self.folded.get(id), failed) {
            (Some(reduce), ..) => reduce.lost(),
            (None, Some(folded), _) => folded.lost.clone(),
            (None, None, Some((_, lost))) => lost.clone(),
            (None, None, None) => return Err(self.no_result(id)),
        };
        Ok(Answer::Inputs { ids })
    }

    /// Why an object is not the result of a reduce of this node, any more or at all.
    fn no_result(&self, id: &ObjectId) -> Error {
        // Its ids are minted here, so what became of one is in this node's part of the directory.
        self.directory.why_gone(id).unwrap_or_else(|| {
            let said = format!("{id} is not the result of a reduce that was asked of this node");
            Error::InvalidArgument(said)
        })
    }

    /// An owner answers a watch, now or later.
    pub(super) fn found(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        found: Option<Found>,
        out: &mut Vec<Action>,
    ) {
        self.watch_answered(id);
        if found.is_none() {
            self.watch_at_second(from, id, out);
        }
        // Its owner has not missed its holder yet, or has met it already, or has not heard that it leaves: this node can't
        // order it to fold.
        let can_fold = |node| self.members.contains(node) && !self.members.is_leaving(node);
        let usable = found.clone().and_then(|found| match found.inline {
            // Its bytes are here from now on.
            Some(_) if !can_fold(found.holder) => Some(Found { holder: self.me.id, ..found }),
            None if !can_fold(found.holder) => None,
            _ => Some(found),
        });
        if found.is_some() && usable.is_none() {
            self.watch_later(id);
        }
        for key in self.watches.get(id).cloned().unwrap_or_default() {
            let found = usable.clone();
            let hears = |reduce: &mut Reduce, around: Around<'_>, now, steps: &mut Vec<Step>| {
                reduce.found(now, id, found, around, steps);
            };
            self.advise(key, hears, out);
        }
        if let Some(found) = &found {
            self.parts_found(found, out);
        }
        if found.is_some_and(|found| found.complete) {
            self.awaited_settled(id, out);
        } else {
            self.awaited_absent(id, out);
        }
    }

    pub(super) fn input_gone(&mut self, id: &ObjectId, error: &Error, out: &mut Vec<Action>) {
        for key in self.watches.get(id).cloned().unwrap_or_default() {
            let hears = |reduce: &mut Reduce, around: Around<'_>, now, steps: &mut Vec<Step>| {
                reduce.gone(now, id, error, around, steps);
            };
            self.advise(key, hears, out);
        }
        if matches!(error, Error::ObjectLost { .. }) && self.watches.contains_key(id) {
            // Its holder may come back with it, or somebody put it again.
            self.watch_later(id);
        }
    }

    /// Lets a reduce know something, and does what it wants done.
    pub(super) fn advise(
        &mut self,
        key: ReduceId,
        fact: impl FnOnce(&mut Reduce, Around<'_>, Instant, &mut Vec<Step>),
        out: &mut Vec<Action>,
    ) {
        let mut steps = Vec::new();
        if let Some(reduce) = self.reduces.get_mut(&key) {
            let (result, directory) = (reduce.result().clone(), &self.directory);
            let wants = |node: NodeId| directory.is_awaited(&result, node);
            let around = Around { members: &self.members, link: self.config.link, wants: &wants };
            fact(reduce, around, self.now, &mut steps);
        }
        self.take_steps(key, steps, out);
    }

    pub(super) fn take_steps(&mut self, key: ReduceId, steps: Vec<Step>, out: &mut Vec<Action>) {
        for step in steps {
            let Some(reduce) = self.reduces.get(&key) else { return };
            let id = reduce.result().clone();
            match step {
                Step::Watch(input) => {
                    self.watches.entry(input.clone()).or_default().insert(key);
                    self.watch(input, out);
                }
                Step::Order(node, order) => self.send(node, Message::Fold(order), out),
                Step::Probe(node) => {
                    let epoch = reduce.epoch();
                    self.send(node, Message::FoldProbe { reduce: key, epoch }, out);
                }
                Step::FoldInline(inputs) => {
                    let (op, epoch) = (reduce.op(), reduce.epoch());
                    if let Some(dtype) = reduce.dtype() {
                        out.push(Action::FoldInline { reduce: key, epoch, op, dtype, inputs });
                    }
                }
                Step::Result { local, children } => self.make_result(key, local, children, out),
                Step::Scatter(seats) => self.scatter(key, seats, out),
                Step::Void { epoch, nodes, detail } => {
                    out.push(Action::Note(Note::ReduceRestarted { id: id.clone(), epoch, detail }));
                    self.void(key, &id, epoch, nodes, out);
                }
                Step::Chose(degree, reason) => {
                    out.push(Action::Note(Note::DegreeChosen { id, degree, reason }));
                }
                Step::Fail(error) => {
                    let is_late = matches!(error, Error::Timeout { .. });
                    let full = is_late.then(|| self.without_room(&id)).flatten();
                    self.fail_reduce_of(&id, &full.unwrap_or(error), out);
                }
            }
        }
    }

    /// All inputs are chosen: waits for room for the result.
    fn make_result(
        &mut self,
        key: ReduceId,
        local: Vec<Instance>,
        children: Vec<(NodeId, u32)>,
        out: &mut Vec<Action>,
    ) {
        let Some(reduce) = self.reduces.get(&key) else { return };
        let Some(meta) = reduce.meta().cloned() else { return };
        let id = reduce.result().clone();
        if !self.table.could_hold(meta.size) {
            let error = self.store_full(meta.size);
            return self.fail_reduce_of(&id, &error, out);
        }
        let epoch = reduce.epoch();
        if !local.iter().all(|input| self.table.get(*input).is_some_and(|copy| !copy.doomed)) {
            // Evicted or deleted since its owner told of it.
            let failure = "an input at the caller was lost".into();
            return self.reduce_failed(key, epoch, failure, false, out);
        }
        // The inputs wait with the result: what a client deletes meanwhile is folded all the same.
        local.iter().for_each(|input| self.table.pin(*input));
        self.folds.insert(FoldKey::result(key, epoch), Fold::of(local.clone()));
        let instance = self.next_instance();
        self.await_result(instance, key, local, children, out);
    }

    /// Waits for room for the result of an attempt.
    pub(super) fn await_result(
        &mut self,
        instance: Instance,
        key: ReduceId,
        local: Vec<Instance>,
        children: Vec<(NodeId, u32)>,
        out: &mut Vec<Action>,
    ) {
        let Some(reduce) = self.reduces.get(&key) else { return };
        let Some(meta) = reduce.meta().cloned() else { return };
        let (count, op) = (reduce.folded().len() as u64, reduce.op());
        let (id, frame) = (reduce.result().clone(), reduce.frame());
        let key = FoldKey::result(key, reduce.epoch());
        let target = Target { meta, key, id, local, children, count, op, frame };
        self.results.insert(instance, target);
        self.space.push_back(SpaceFor::Result(instance));
        self.grant_space(out);
    }

    pub(super) fn result_in_room(&mut self, instance: Instance, out: &mut Vec<Action>) {
        let Some(target) = self.results.get(&instance) else { return };
        let (id, meta) = (target.id.clone(), target.meta.clone());
        let size = meta.size;
        self.table.insert(instance, id, meta, None, State::Folding, true);
        out.push(Action::CreateSlot { instance, size, writer: None });
    }

    /// There is memory: the result is published while it grows, so that its broadcast overlaps with the reduce.
    pub(super) fn result_in_memory(&mut self, instance: Instance, out: &mut Vec<Action>) {
        let Some(target) = self.results.remove(&instance) else { return };
        let Some(dtype) = self.reduces.get(&target.key.reduce).and_then(Reduce::dtype) else {
            return;
        };
        self.reveal(instance, out);
        self.announce(instance, out);
        self.born(&target.id, out);
        self.growing(instance, out);
        if self.is_scattered(instance) {
            return self.begin_parts(instance, out);
        }
        let Target { meta, key, local, children, count, op, frame, .. } = target;
        if !local.iter().all(|input| self.is_foldable(*input)) {
            let failure = Some("an input at the caller was lost".into());
            return self.fold_ended(key, failure, out);
        }
        let (inputs, size) = (local, meta.size);
        let part = 0..size;
        let order = FoldOrder { key, inputs, children, op, dtype, size, part, frame };
        out.push(Action::StartFold { order, target: Some((instance, count)) });
    }

    pub(super) fn result_failed(
        &mut self,
        instance: Instance,
        error: Error,
        out: &mut Vec<Action>,
    ) {
        if let Some(id) = self.table.get(instance).map(|copy| copy.id.clone()) {
            self.fail_reduce_of(&id, &error, out);
        }
    }

    pub(super) fn folded_inline(
        &mut self,
        key: ReduceId,
        epoch: u32,
        result: Inline,
        out: &mut Vec<Action>,
    ) {
        if self.reduces.get(&key).is_some_and(|reduce| reduce.epoch() == epoch) {
            self.small_results.insert(key, (epoch, result));
            self.space.push_back(SpaceFor::SmallResult(key));
            self.grant_space(out);
        }
    }

    pub(super) fn small_result_in_room(&mut self, key: ReduceId, out: &mut Vec<Action>) {
        let Some((epoch, result)) = self.small_results.remove(&key) else { return };
        let Some(reduce) = self.reduces.get(&key).filter(|reduce| reduce.epoch() == epoch) else {
            return;
        };
        let (id, Some(meta)) = (reduce.result().clone(), reduce.meta().cloned()) else { return };
        let instance = self.next_instance();
        self.table.insert(instance, id.clone(), meta, Some(result), State::Complete, true);
        self.reveal(instance, out);
        self.announce(instance, out);
        self.finish_reduce(key, instance, out);
    }

    /// The result is complete.
    fn finish_reduce(&mut self, key: ReduceId, instance: Instance, out: &mut Vec<Action>) {
        let Some(reduce) = self.forget_reduce(key, out) else { return };
        self.reservations.remove(&key);
        let (id, ids) = (reduce.result().clone(), reduce.folded());
        // All positions have sent all they had; an order that came twice must not wait for a parent for ever.
        let nodes: BTreeSet<NodeId> = reduce.nodes().into_iter().collect();
        for node in nodes {
            let (epoch, is_void) = (reduce.epoch(), false);
            self.send(node, Message::Unfold { reduce: key, epoch, is_void }, out);
        }
        let folded = Folded { inputs: ids.clone(), lost: reduce.lost() };
        self.folded.insert(id.clone(), folded);
        self.completed(instance, out);
        for request in self.inputs_askers(&id) {
            self.reply(request, Ok(Answer::Inputs { ids: ids.clone() }), out);
        }
    }

    /// A reduce can't succeed: everybody who waits for its result is told why.
    pub(super) fn fail_reduce_of(&mut self, id: &ObjectId, error: &Error, out: &mut Vec<Action>) {
        let Some(key) = self.reduce_of.get(id).copied() else { return };
        let Some(reduce) = self.forget_reduce(key, out) else { return };
        if self.failed.len() >= FAILED_MAX {
            self.failed.pop_front();
        }
        self.failed.push_back((id.clone(), reduce.lost()));
        let is_ours = id.minter().is_some() || self.end_reservation(key, id, error, out);
        self.void(key, id, reduce.epoch(), reduce.nodes(), out);
        if is_ours {
            self.send_owners(id, &Message::Fail { id: id.clone(), error: error.clone() }, out);
            self.pull_failed(id, error, out);
        }
        for request in self.inputs_askers(id) {
            self.reply(request, Err(error.clone()), out);
        }
    }

    pub(super) fn forget_reduce(&mut self, key: ReduceId, out: &mut Vec<Action>) -> Option<Reduce> {
        let reduce = self.reduces.remove(&key)?;
        self.small_results.remove(&key);
        self.space.retain(|waiting| *waiting != SpaceFor::SmallResult(key));
        self.reduce_of.remove(reduce.result());
        for input in reduce.candidates() {
            let Some(watchers) = self.watches.get_mut(input) else { continue };
            watchers.remove(&key);
            if watchers.is_empty() {
                self.watches.remove(input);
                self.unwatch_if_unwanted(input, out);
            }
        }
        Some(reduce)
    }

    fn inputs_askers(&self, id: &ObjectId) -> Vec<crate::id::RequestId> {
        let asks = |pending: &Pending| matches!(&pending.kind, Waiting::Inputs(of) if of == id);
        self.requests
            .iter()
            .filter(|(_, pending)| asks(pending))
            .map(|(request, _)| *request)
            .collect()
    }

    /// Ends an attempt: whoever folds stops, and what there is of its result is dropped.
    fn void(
        &mut self,
        reduce: ReduceId,
        id: &ObjectId,
        epoch: u32,
        nodes: Vec<NodeId>,
        out: &mut Vec<Action>,
    ) {
        let nodes: BTreeSet<NodeId> = nodes.into_iter().collect();
        for node in nodes {
            self.send(node, Message::Unfold { reduce, epoch, is_void: true }, out);
        }
        if planted::has(Bug::KeepsVoidAttempts) {
            return;
        }
        let key = FoldKey::result(reduce, epoch);
        let unstarted = self.results.iter().find(|(_, target)| target.key == key);
        if let Some(instance) = unstarted.map(|(instance, _)| *instance) {
            self.results.remove(&instance);
            self.space.retain(|waiting| *waiting != SpaceFor::Result(instance));
            self.doom(instance, out);
            self.end_fold(key, out);
        } else {
            self.stop_fold(key, out);
        }
        let growing = self.table.current(id).filter(|instance| {
            self.table.get(*instance).is_some_and(|copy| copy.state == State::Folding)
        });
        if let Some(instance) = growing {
            self.doom(instance, out);
            self.send_owners(id, &Message::Withdraw { id: id.clone(), instance }, out);
            // Local readers wait on for the next attempt.
            self.pull_if_wanted(id, out);
        }
    }

    pub(super) fn reduce_failed(
        &mut self,
        key: ReduceId,
        epoch: u32,
        detail: String,
        is_lost: bool,
        out: &mut Vec<Action>,
    ) {
        let mut steps = Vec::new();
        if let Some(reduce) = self.reduces.get_mut(&key) {
            reduce.failed(self.now, epoch, detail, is_lost, &mut steps);
        }
        self.take_steps(key, steps, out);
    }

    /// Attempts that read an input at a node that is gone begin again.
    pub(super) fn reduces_without(&mut self, node: NodeId, is_over: bool, out: &mut Vec<Action>) {
        let hit = self.reduces.iter().filter(|(_, reduce)| reduce.depends_on(node));
        let hit: Vec<(ReduceId, u32)> = hit.map(|(key, reduce)| (*key, reduce.epoch())).collect();
        for (key, epoch) in hit {
            self.reduce_failed(key, epoch, format!("node {node} is gone"), true, out);
        }
        let is_theirs =
            |key: &&FoldKey| key.reduce.node == node && !planted::has(Bug::LeavesFoldsOfTheDead);
        let theirs = self.folds.keys().filter(is_theirs).copied();
        for key in theirs.collect::<Vec<_>>() {
            self.stop_fold(key, out);
        }
        self.parts_without(node, is_over, out);
    }

    /// A coordinator orders this node to fold.
    pub(super) fn fold(&mut self, from: NodeId, order: FoldOrder, out: &mut Vec<Action>) {
        let key = order.key;
        if key.reduce.node != from || self.folds.contains_key(&key) {
            return;
        }
        let missing = self.unusable_input(&order);
        let failure = match missing {
            _ if self.takes_no_orders_of(from) => Some(format!("node {} is closing", self.me.id)),
            Some(missing) => Some(format!("node {} holds no instance {missing}", self.me.id)),
            None => None,
        };
        if let Some(detail) = failure {
            let FoldKey { reduce, epoch, .. } = key;
            let is_lost = false;
            return self.send(from, Message::FoldFailed { reduce, epoch, detail, is_lost }, out);
        }
        self.start_fold(order, None, out);
    }

    pub(super) fn start_fold(
        &mut self,
        order: FoldOrder,
        target: Option<(Instance, u64)>,
        out: &mut Vec<Action>,
    ) {
        order.inputs.iter().for_each(|input| self.table.pin(*input));
        self.folds.insert(order.key, Fold::of(order.inputs.clone()));
        out.push(Action::StartFold { order, target });
    }

    /// Whether a pinned input will be there to its end: what was deleted when it was complete, or is being filled still,
    /// is folded all the same.
    pub(super) fn is_foldable(&self, input: Instance) -> bool {
        self.creates.contains_key(&input)
            || self.table.get(input).is_some_and(|copy| !copy.doomed || copy.is_complete())
    }

    /// An input that is not here, or is not what it is taken for.
    pub(super) fn unusable_input(&self, order: &FoldOrder) -> Option<Instance> {
        let usable = |input: &&Instance| {
            self.table.get(**input).is_some_and(|copy| {
                !copy.doomed && copy.inline.is_none() && copy.meta.size == order.size
            })
        };
        order.inputs.iter().find(|input| !usable(input)).copied()
    }

    pub(super) fn unfold(
        &mut self,
        reduce: ReduceId,
        epoch: u32,
        is_void: bool,
        out: &mut Vec<Action>,
    ) {
        if is_void {
            self.drop_parts(reduce, epoch, out);
        } else {
            self.parts_decided(reduce, epoch, out);
        }
        let void = |key: &&FoldKey| {
            key.reduce == reduce && key.epoch <= epoch && key.position != FoldKey::RESULT
        };
        let void: Vec<FoldKey> = self.folds.keys().filter(void).copied().collect();
        for key in void {
            self.stop_fold(key, out);
        }
    }

    pub(super) fn stop_fold(&mut self, key: FoldKey, out: &mut Vec<Action>) {
        if let Some(fold) = self.folds.get_mut(&key).filter(|fold| !fold.is_stopped) {
            fold.is_stopped = true;
            out.push(Action::StopFold { key });
        }
    }

    /// Lets go of the inputs of a fold; whether it had been told to stop.
    fn end_fold(&mut self, key: FoldKey, out: &mut Vec<Action>) -> bool {
        let Some(fold) = self.folds.remove(&key) else { return true };
        for input in fold.inputs {
            self.unpin(input, out);
        }
        fold.is_stopped
    }

    pub(super) fn fold_ended(
        &mut self,
        key: FoldKey,
        failure: Option<String>,
        out: &mut Vec<Action>,
    ) {
        // If its own inputs are here, the stream of a child broke off.
        let inputs = self.folds.get(&key).map_or(&[][..], |fold| &fold.inputs);
        let is_lost = inputs.iter().all(|input| self.is_foldable(*input));
        let was_stopped = self.end_fold(key, out);
        let FoldKey { reduce, epoch, position, .. } = key;
        match failure {
            _ if was_stopped => {}
            Some(detail) => {
                let failed = Message::FoldFailed { reduce, epoch, detail, is_lost };
                self.send(reduce.node, failed, out);
            }
            None if self.part_folded(&key, out) => {}
            None if position == FoldKey::RESULT => self.result_complete(reduce, out),
            None => {}
        }
    }

    pub(super) fn result_complete(&mut self, key: ReduceId, out: &mut Vec<Action>) {
        let Some(id) = self.reduces.get(&key).map(|reduce| reduce.result().clone()) else { return };
        let Some(instance) = self.table.current(&id) else { return };
        if let Some(copy) = self.table.get_mut(instance).filter(|copy| copy.state == State::Folding)
        {
            copy.state = State::Complete;
            self.announce(instance, out);
            self.finish_reduce(key, instance, out);
        }
    }

    pub(super) fn expire_reduces(&mut self, out: &mut Vec<Action>) {
        let due = |reduce: &Reduce| reduce.deadline().is_some_and(|deadline| deadline <= self.now);
        let due: Vec<ReduceId> =
            self.reduces.iter().filter(|(_, reduce)| due(reduce)).map(|(key, _)| *key).collect();
        for key in due {
            self.advise(key, |reduce, around, now, steps| reduce.expire(now, around, steps), out);
        }
    }
}

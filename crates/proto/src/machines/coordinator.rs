//! The reduces that clients of this node started: each from its first input until its result is
//! complete or void. Also results that wait for capacity, and what happened to inputs.
//!
//! The decisions of a reduce are in [`crate::reduce`]. Does not know copies, nor how a step is
//! carried out.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    format,
    string::String,
    vec::{self, Vec},
};

use crate::{
    directory::Directory,
    event::Action,
    id::{ClientId, Instance, NodeId, ObjectId, ReduceId, RequestId},
    lifetime::Terms,
    limits::{FOLDED_INPUTS_MAX, REDUCE_INPUTS_MAX},
    machines::{
        questions::{Asker, Questions},
        world::World,
    },
    message::{FoldKey, FoldOrder, Message},
    meta::Op,
    reduce::{Candidates, PlanContext, Reduce, Step},
    table::Table,
    time::Instant,
    timed::{Deadline, Timed},
};

#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    all: Timed<ReduceId, Started>,
    by_result: BTreeMap<ObjectId, ReduceId>,
    /// Requests whose inputs are read, a slice at a time.
    reading: VecDeque<(RequestId, ReduceRequest)>,
    /// When the next slice is due.
    resumes_at: Instant,
    /// Results of current epochs that wait for capacity or memory.
    awaited_results: BTreeMap<ReduceId, AwaitedResult>,
    /// The inputs of results that are held here.
    folded: BTreeMap<ObjectId, Inputs>,
    /// These results by age, and the number of their inputs together.
    folded_by_age: BTreeMap<u64, ObjectId>,
    folded_inputs: usize,
    /// The lost inputs of failed reduces, oldest first.
    failed: VecDeque<(ObjectId, Vec<ObjectId>)>,
    /// Leaving members that wait until no reduce has a position there.
    draining: BTreeSet<NodeId>,
}

/// The result of an epoch, which waits for capacity and memory.
#[derive(Debug)]
pub(crate) struct AwaitedResult {
    instance: Instance,
    pub(crate) key: FoldKey,
    /// What is folded into it then; `None` for a ring, and for an inline result, which is complete.
    pub(crate) order: Option<FoldOrder>,
}

/// A request for a reduce, whose inputs may be very many.
#[derive(Debug)]
pub(crate) struct ReduceRequest {
    pub(crate) op: Op,
    pub(crate) count: usize,
    pub(crate) id: Option<ObjectId>,
    pub(crate) ttl_ns: Option<u64>,
    /// The number of inputs, duplicates included, and those that are not read yet.
    pub(crate) given: usize,
    pub(crate) unread: vec::IntoIter<ObjectId>,
    pub(crate) candidates: Candidates,
}

impl ReduceRequest {
    /// Reads the next inputs, at most `most`. Returns whether none is left.
    pub(crate) fn read(&mut self, most: usize) -> bool {
        self.unread.by_ref().take(most).for_each(|id| self.candidates.insert(id));
        self.unread.len() == 0
    }

    /// What is wrong with the inputs, if anything.
    pub(crate) fn why_invalid(&self) -> Option<String> {
        let (all, distinct) = (self.given, self.candidates.len());
        if distinct < all {
            let repeated = all - distinct;
            return Some(format!(
                "{repeated} of {all} inputs are duplicates: pass each input once"
            ));
        }
        let result = self.id.as_ref().filter(|id| self.candidates.contains(id))?;
        Some(format!("{result} is an input: choose another name for the result"))
    }
}

/// A reduce that a client has started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) reduce: Reduce,
    /// The lifetime of its result; `None` if it lives until it is deleted.
    pub(crate) terms: Option<Box<Terms>>,
    /// Inputs to watch once it has its name, in order.
    pub(crate) unwatched: VecDeque<ObjectId>,
    pub(crate) client: ClientId,
    /// The request, whose work ends with the reduce.
    pub(crate) request: RequestId,
}

impl Deadline for Started {
    fn deadline(&self) -> Option<Instant> {
        self.reduce.deadline()
    }
}

/// Maximum number of failed reduces whose lost inputs are remembered, and of these inputs together.
const FAILED_MAX: usize = 256;
const FAILED_INPUTS_MAX: usize = 4 * REDUCE_INPUTS_MAX;

/// The inputs of a completed reduce.
#[derive(Debug)]
struct Inputs {
    folded: Vec<ObjectId>,
    lost: Vec<ObjectId>,
    /// Its place in the order of age.
    age: u64,
}

impl Inputs {
    fn len(&self) -> usize {
        self.folded.len() + self.lost.len()
    }
}

impl Coordinator {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The number of results that wait for capacity or memory.
    pub(crate) fn unfinished_results(&self) -> usize {
        self.awaited_results.len()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next_slice = (!self.reading.is_empty()).then_some(self.resumes_at);
        self.all.deadline().into_iter().chain(next_slice).min()
    }

    /// Whether the next slice of inputs may be read.
    pub(crate) fn resumes(&self, now: Instant) -> bool {
        self.resumes_at <= now
    }

    /// Schedules the next slice.
    pub(crate) fn pause(&mut self, until: Instant) {
        self.resumes_at = until;
    }

    /// Continues to read the inputs of a request later.
    pub(crate) fn read_later(&mut self, request: RequestId, reduce: ReduceRequest) {
        self.reading.push_back((request, reduce));
    }

    /// A request whose inputs are not read completely.
    pub(crate) fn next_unread(&mut self) -> Option<(RequestId, ReduceRequest)> {
        self.reading.pop_front()
    }

    /// The inputs of a reduce that has begun, to watch them.
    pub(crate) fn take_unwatched(&mut self, key: ReduceId) -> VecDeque<ObjectId> {
        let unwatched = |started: &mut Started| core::mem::take(&mut started.unwatched);
        self.all.update(&key, unwatched).unwrap_or_default()
    }

    pub(crate) fn due(&self, now: Instant) -> Vec<ReduceId> {
        self.all.due(now)
    }

    pub(crate) fn keys(&self) -> Vec<ReduceId> {
        self.all.keys().copied().collect()
    }

    /// All reduces, the oldest first.
    pub(crate) fn reduces(&self) -> impl Iterator<Item = &Reduce> {
        self.all.values().map(|started| &started.reduce)
    }

    pub(crate) fn get(&self, key: ReduceId) -> Option<&Reduce> {
        self.all.get(&key).map(|started| &started.reduce)
    }

    /// The lifetime of the result of a reduce.
    pub(crate) fn terms(&self, key: ReduceId) -> Option<Box<Terms>> {
        self.all.get(&key)?.terms.clone()
    }

    /// The results of all reduces.
    pub(crate) fn results(&self) -> Vec<ObjectId> {
        self.by_result.keys().cloned().collect()
    }

    /// The results of the reduces that a client has started.
    pub(crate) fn of_client(&self, client: ClientId) -> Vec<ObjectId> {
        let its = self.all.values().filter(|started| started.client == client);
        its.map(|started| started.reduce.result().clone()).collect()
    }

    /// The id of the reduce that makes an object.
    pub(crate) fn maker(&self, id: &ObjectId) -> Option<ReduceId> {
        self.by_result.get(id).copied()
    }

    /// The reduce that makes an object.
    pub(crate) fn making(&self, id: &ObjectId) -> Option<&Reduce> {
        self.get(self.maker(id)?)
    }

    /// The reduce, if `epoch` is its current epoch.
    pub(crate) fn current(&self, key: ReduceId, epoch: u32) -> Option<&Reduce> {
        self.get(key).filter(|reduce| reduce.epoch() == epoch)
    }

    /// The number of leaving members that wait for this node.
    pub(crate) fn draining(&self) -> usize {
        self.draining.len()
    }

    /// Records a leaving member, which waits until no reduce has a position there.
    pub(crate) fn begin_draining(&mut self, node: NodeId) {
        self.draining.insert(node);
    }

    /// Stops waiting for positions at a member that is gone.
    pub(crate) fn stop_draining(&mut self, node: NodeId) {
        self.draining.remove(&node);
    }

    /// Notifies leaving members at which no reduce has a position any more.
    pub(crate) fn confirm_drained(&mut self, world: &mut World) {
        if self.draining.is_empty() {
            return;
        }
        let reduces = self.all.values();
        let seats: BTreeSet<NodeId> = reduces.flat_map(|started| started.reduce.nodes()).collect();
        for node in self.draining.difference(&seats).copied().collect::<Vec<_>>() {
            self.draining.remove(&node);
            world.send(node, Message::Drained);
        }
    }

    /// Begins a reduce. No other reduce of this node may make the same result.
    pub(crate) fn begin(&mut self, key: ReduceId, started: Started) {
        self.by_result.insert(started.reduce.result().clone(), key);
        self.all.insert(key, started);
    }

    /// Passes a fact to a reduce, with the state of this node that it needs to plan; returns the
    /// steps to carry out.
    pub(crate) fn update(
        &mut self,
        key: ReduceId,
        directory: &Directory,
        table: &Table,
        world: &World,
        fact: impl FnOnce(&mut Reduce, PlanContext<'_>, Instant, &mut Vec<Step>),
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        self.all.update(&key, |Started { reduce, .. }| {
            let result = reduce.result().clone();
            let wants = |node: NodeId| directory.is_awaited(&result, node);
            let (members, link) = (world.members(), world.config().link);
            let (holds, slice) = (|it: Instance| table.holds(it), world.config().slice);
            let context = PlanContext { members, holds: &holds, link, wants: &wants, slice };
            fact(reduce, context, world.now(), &mut steps);
        });
        steps
    }

    /// Makes the result of the current epoch wait for capacity. Returns false if there is no such
    /// reduce.
    pub(crate) fn await_result(
        &mut self,
        instance: Instance,
        key: ReduceId,
        order: Option<FoldOrder>,
    ) -> bool {
        let Some(epoch) = self.get(key).map(Reduce::epoch) else { return false };
        let awaited = AwaitedResult { instance, key: FoldKey::result(key, epoch), order };
        self.awaited_results.insert(key, awaited);
        true
    }

    /// Takes a result for which capacity and memory are available now.
    pub(crate) fn take_awaited_result(
        &mut self,
        id: &ObjectId,
        instance: Instance,
    ) -> Option<AwaitedResult> {
        let key = self.maker(id)?;
        self.awaited_results.get(&key).filter(|target| target.instance == instance)?;
        self.awaited_results.remove(&key)
    }

    /// The instance that waits for capacity or memory to become this result.
    pub(crate) fn instance_of(&self, id: &ObjectId) -> Option<Instance> {
        self.awaited_results.get(&self.maker(id)?).map(|target| target.instance)
    }

    /// Drops the waiting result of a void epoch; returns its instance, unless a fold into it has
    /// begun.
    pub(crate) fn drop_target(&mut self, key: FoldKey) -> Option<Instance> {
        self.awaited_results.get(&key.reduce).filter(|target| target.key == key)?;
        self.awaited_results.remove(&key.reduce).map(|target| target.instance)
    }

    /// Ends a reduce and stops watching its inputs.
    pub(crate) fn forget(
        &mut self,
        key: ReduceId,
        questions: &mut Questions,
        world: &mut World,
    ) -> Option<Reduce> {
        let Started { reduce, request, .. } = self.all.remove(&key)?;
        self.by_result.remove(reduce.result());
        world.act(Action::WorkEnded { request });
        questions.close_of(Asker::Reduce(key), world);
        Some(reduce)
    }

    /// Records and returns the inputs of a complete result. Forgets those of the oldest results
    /// beyond the limit.
    pub(crate) fn remember_folded(&mut self, reduce: &Reduce) -> Vec<ObjectId> {
        let folded = reduce.folded();
        self.remember(reduce.result(), folded.clone(), reduce.lost());
        folded
    }

    fn remember(&mut self, result: &ObjectId, folded: Vec<ObjectId>, lost: Vec<ObjectId>) {
        self.forget_folded(result);
        let age = self.folded_by_age.last_key_value().map_or(0, |(age, _)| age + 1);
        let inputs = Inputs { folded, lost, age };
        self.folded_inputs += inputs.len();
        self.folded_by_age.insert(age, result.clone());
        self.folded.insert(result.clone(), inputs);
        while self.folded_inputs > FOLDED_INPUTS_MAX
            && let Some((_, oldest)) = self.folded_by_age.first_key_value()
        {
            let oldest = oldest.clone();
            self.forget_folded(&oldest);
        }
    }

    /// Forgets the inputs of a result that no longer exists.
    pub(crate) fn forget_folded(&mut self, id: &ObjectId) {
        if let Some(inputs) = self.folded.remove(id) {
            self.folded_inputs -= inputs.len();
            self.folded_by_age.remove(&inputs.age);
        }
    }

    pub(crate) fn remember_failed(&mut self, reduce: &Reduce) {
        self.remember_lost(reduce.result(), reduce.lost());
    }

    fn remember_lost(&mut self, result: &ObjectId, lost: Vec<ObjectId>) {
        self.failed.push_back((result.clone(), lost));
        let inputs = |(_, lost): &(ObjectId, Vec<ObjectId>)| lost.len();
        let mut all: usize = self.failed.iter().map(inputs).sum();
        while self.failed.len() > FAILED_MAX || all > FAILED_INPUTS_MAX {
            all -= self.failed.pop_front().as_ref().map_or(all, inputs);
        }
    }

    /// The folded inputs of a result that is here.
    pub(crate) fn folded(&self, id: &ObjectId) -> Option<&[ObjectId]> {
        self.folded.get(id).map(|inputs| &inputs.folded[..])
    }

    /// The inputs of a reduce that are lost, or were when it ended.
    pub(crate) fn lost(&self, id: &ObjectId) -> Option<Vec<ObjectId>> {
        if let Some(reduce) = self.making(id) {
            return Some(reduce.lost());
        }
        let folded = self.folded.get(id).map(|inputs| &inputs.lost);
        let failed = || self.failed.iter().rev().find(|(result, _)| result == id);
        folded.or_else(|| failed().map(|(_, lost)| lost)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn result(serial: u64) -> ObjectId {
        ObjectId::Minted { node: NodeId(1), serial }
    }

    fn reduce(serial: u64) -> (ReduceId, Reduce) {
        let key = ReduceId { node: NodeId(1), serial };
        let (me, input, now) = (NodeId(1), result(1_000_000 + serial), Instant::default());
        let mut inputs = Candidates::default();
        inputs.insert(input);
        let reduce =
            Reduce::new(me, key, result(serial), Op::Sum, inputs, 1, now, Some(now + serial), None);
        (key, reduce.0)
    }

    #[test]
    fn the_deadline_is_the_first_of_all_reduces() {
        let mut coordinator = Coordinator::default();
        for serial in [30, 10, 20] {
            let (key, reduce) = reduce(serial);
            let (client, request) = (ClientId(1), RequestId(serial));
            let unwatched = VecDeque::new();
            coordinator.begin(key, Started { reduce, terms: None, client, request, unwatched });
        }
        assert_eq!(coordinator.deadline(), Some(Instant(10)));
        let due = coordinator.due(Instant(20));
        assert_eq!(due.iter().map(|key| key.serial).collect::<Vec<_>>(), [10, 20]);
        assert_eq!(coordinator.maker(&result(30)), Some(reduce(30).0));
    }

    #[test]
    fn lost_inputs_of_the_last_failed_reduces_are_remembered() {
        let mut coordinator = Coordinator::default();
        let last = FAILED_MAX as u64;
        (0..=last).for_each(|serial| coordinator.remember_failed(&reduce(serial).1));
        assert_eq!(coordinator.lost(&result(0)), None);
        assert_eq!(coordinator.lost(&result(last)), Some(Vec::new()));
    }

    #[test]
    fn inputs_that_are_remembered_are_limited() {
        let mut coordinator = Coordinator::default();
        let inputs = || vec![result(0); REDUCE_INPUTS_MAX];
        let most = (FOLDED_INPUTS_MAX / REDUCE_INPUTS_MAX) as u64;
        for serial in 0..=most {
            coordinator.remember(&result(serial), inputs(), Vec::new());
        }
        assert!(
            coordinator.folded(&result(0)).is_none() && coordinator.folded(&result(1)).is_some()
        );
        (1..=most).for_each(|serial| coordinator.forget_folded(&result(serial)));
        assert!(coordinator.folded_inputs == 0 && coordinator.folded_by_age.is_empty());
        let most = (FAILED_INPUTS_MAX / REDUCE_INPUTS_MAX) as u64;
        (0..=most).for_each(|serial| coordinator.remember_lost(&result(serial), inputs()));
        assert!(coordinator.lost(&result(0)).is_none() && coordinator.lost(&result(1)).is_some());
    }
}

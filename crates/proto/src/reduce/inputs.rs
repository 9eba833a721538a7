//! One reduce at its coordinator: arrived inputs, and attempts to fold them.
//!
//! [`super::plan`] decides which nodes fold.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    format,
    string::String,
    vec::Vec,
};

use super::{
    assign::{Plan, PlanShape},
    cost::DegreeReason,
    shape::Degree,
    stalled::StalledFolds,
    step::{PlanContext, Step},
};
use crate::{
    directory::Slice,
    error::{Error, List, is_reducible},
    id::{Instance, NodeId, ObjectId, ReduceId},
    inline::Inline,
    limits::INLINE_BYTES_MAX,
    message::Found,
    meta::{Dtype, Form, Meta, Op},
    mutants::{self, Mutant},
    time::Instant,
    timed::Deadline,
};

/// Precedes the names of missing inputs in the state of a reduce.
pub(crate) const MISSING: &str = "missing: ";

/// Pause before the next attempt if a node may have failed, doubled with each attempt up to 64
/// times. The first pause is thus 40 ms: long enough for the directory to detect a failed node,
/// short compared with transfers that are worth a reduce.
const LOST_PAUSE_NS: u64 = 20_000_000;

/// The same if the failed position's node is alive. The first pause is 2 ms: a few round trips, in
/// which it reports to the owners.
const ANSWERED_PAUSE_NS: u64 = 1_000_000;

/// State of one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    Unanswered,
    Absent,
    /// With the number of its arrival.
    Arrived(u64),
    Gone(Error),
}

#[derive(Clone, Debug)]
pub(super) struct Arrival {
    /// Increases with each arrival.
    number: u64,
    pub(super) id: ObjectId,
    pub(super) instance: Instance,
    pub(super) holder: NodeId,
    pub(super) inline: Option<Inline>,
    /// Whether any copy of it was complete.
    pub(super) complete: bool,
}

/// The inputs of a reduce that is about to begin.
#[derive(Debug, Default)]
pub struct Candidates {
    inputs: BTreeMap<ObjectId, Input>,
    /// As in the request.
    order: VecDeque<ObjectId>,
}

impl Candidates {
    /// Adds an input, unless it is a duplicate.
    pub fn insert(&mut self, id: ObjectId) {
        if self.inputs.insert(id.clone(), Input::Unanswered).is_none() {
            self.order.push_back(id);
        }
    }

    /// Number of inputs.
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// Whether `id` is one of them.
    pub fn contains(&self, id: &ObjectId) -> bool {
        self.inputs.contains_key(id)
    }
}

/// One reduce at its coordinator.
#[derive(Debug)]
pub struct Reduce {
    pub(super) me: NodeId,
    pub(super) key: ReduceId,
    pub(super) result: ObjectId,
    pub(super) op: Op,
    pub(super) count: usize,
    pub(super) asked_at: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) forced_degree: Option<Degree>,
    pub(super) inputs: BTreeMap<ObjectId, Input>,
    /// Number of `inputs` about which no owner has reported.
    pub(super) unanswered: usize,
    /// Number of `inputs` that can no longer arrive.
    pub(super) gone: usize,
    /// Inputs in the fold, in order of arrival.
    pub(super) chosen: Vec<Arrival>,
    /// Inputs that arrived after those, by number.
    pub(super) waiting: BTreeMap<u64, Arrival>,
    /// Number of arrivals so far.
    pub(super) arrivals: u64,
    /// Holders that are gone, while `waiting` is searched for their inputs. Each with the last
    /// arrival before: later ones were found there again.
    pub(super) gone_holders: BTreeMap<NodeId, u64>,
    /// The last arrival that was compared with them, and when the next ones are.
    pub(super) compared: (u64, Instant),
    /// Metadata that every input must have: that of the first one.
    pub(super) like: Option<(ObjectId, Meta)>,
    pub(super) plan: Option<Plan>,
    pub(super) epoch: u32,
    /// When to watch the inputs again after an attempt failed.
    pub(super) retry_at: Option<Instant>,
    pub(super) input_wait: InputWait,
    pub(super) stalled: StalledFolds,
}

/// How an attempt folds its inputs on several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceShape {
    /// In a tree, whose degree has a reason.
    Tree(Degree, DegreeReason),
    /// In a ring of so many nodes.
    Ring(usize),
}

/// How long a reduce that could begin waits for the last inputs, since with all of them it may run
/// as a ring.
///
/// It is a sixteenth of the transfer time of the object. An object larger than a window waits for
/// its last input in any case, and after that as long again for readers of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputWait {
    NotStarted,
    Until(Instant),
    Expired,
}

impl Deadline for Reduce {
    fn deadline(&self) -> Option<Instant> {
        if self.is_searching() {
            // Whatever else is due waits until the search is over.
            return self.deadline.into_iter().chain([self.compared.1]).min();
        }
        let input_wait = match self.input_wait {
            InputWait::Until(until) => Some(until),
            InputWait::NotStarted | InputWait::Expired => None,
        };
        let judged_at = self.stalled.judged_at();
        [self.deadline, self.retry_at, input_wait, judged_at].into_iter().flatten().min()
    }
}

impl Reduce {
    /// A reduce of the first `count` of `inputs`, and the inputs to watch, in order.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        me: NodeId,
        key: ReduceId,
        result: ObjectId,
        op: Op,
        inputs: Candidates,
        count: usize,
        asked_at: Instant,
        deadline: Option<Instant>,
        forced_degree: Option<Degree>,
    ) -> (Self, VecDeque<ObjectId>) {
        let Candidates { inputs, order } = inputs;
        let (chosen, waiting, like) = (Vec::new(), BTreeMap::new(), None);
        let input_wait = InputWait::NotStarted;
        let reduce = Self {
            me,
            key,
            result,
            op,
            count,
            asked_at,
            deadline,
            forced_degree,
            unanswered: inputs.len(),
            inputs,
            gone: 0,
            chosen,
            waiting,
            arrivals: 0,
            gone_holders: BTreeMap::new(),
            compared: (0, Instant::default()),
            like,
            plan: None,
            epoch: 0,
            retry_at: None,
            input_wait,
            stalled: StalledFolds::default(),
        };
        (reduce, order)
    }

    /// The id of the result.
    pub const fn result(&self) -> &ObjectId {
        &self.result
    }

    /// Number of the present attempt.
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// When its client requested it.
    pub const fn since(&self) -> Instant {
        self.asked_at
    }

    /// How the present attempt folds on other nodes, once that is decided.
    pub fn shape(&self) -> Option<ReduceShape> {
        match &self.plan.as_ref()?.shape {
            PlanShape::Tree { tree, reason, .. } => {
                Some(ReduceShape::Tree(tree.shape().degree, *reason))
            }
            PlanShape::Ring(nodes) => Some(ReduceShape::Ring(nodes.len())),
            PlanShape::Inline => None,
        }
    }

    /// The operation.
    pub const fn op(&self) -> Op {
        self.op
    }

    /// Metadata of the result, once an input has arrived.
    pub fn meta(&self) -> Option<&Meta> {
        self.like.as_ref().map(|(_, meta)| meta)
    }

    /// Element type of the result, once an input has arrived.
    pub fn dtype(&self) -> Option<Dtype> {
        self.meta().and_then(Meta::dtype)
    }

    /// Frame size of its streams in bytes, once the fold has begun.
    pub fn frame(&self) -> u32 {
        self.plan.as_ref().map_or(0, |plan| plan.frame)
    }

    /// The inputs in the fold, in order of arrival. Final when the result is complete.
    pub fn folded(&self) -> Vec<ObjectId> {
        self.chosen.iter().map(|arrival| arrival.id.clone()).collect()
    }

    /// Inputs that can no longer arrive.
    pub fn lost(&self) -> Vec<ObjectId> {
        let lost = self.inputs.iter().filter(|(_, input)| matches!(input, Input::Gone(_)));
        lost.map(|(id, _)| id.clone()).collect()
    }

    /// Nodes that received orders in this epoch.
    pub fn nodes(&self) -> Vec<NodeId> {
        match self.plan.as_ref().map(|plan| &plan.shape) {
            Some(PlanShape::Tree { tree, .. }) => {
                tree.contributors().iter().map(|contributor| contributor.node).collect()
            }
            Some(PlanShape::Ring(nodes)) => nodes.clone(),
            Some(PlanShape::Inline) | None => Vec::new(),
        }
    }

    /// A holder is leaving. It still folds what it was ordered to fold. Inputs that were only found
    /// there must be found elsewhere, except inline inputs, whose bytes are on this node. Until all
    /// are looked up again, no input is chosen.
    pub fn holder_leaves(
        &mut self,
        now: Instant,
        node: NodeId,
        context: PlanContext<'_>,
        steps: &mut Vec<Step>,
    ) {
        if self.meta().is_some_and(|meta| meta.size <= INLINE_BYTES_MAX) {
            return;
        }
        self.gone_holders.insert(node, self.arrivals);
        self.compared.0 = 0;
        self.look_up_slice(now, context, steps);
    }

    /// Looks up the next inputs again whose holders are gone.
    fn look_up_slice(&mut self, now: Instant, context: PlanContext<'_>, steps: &mut Vec<Step>) {
        let Slice { entries, pause_ns } = context.slice;
        let last = self.gone_holders.values().max().copied().unwrap_or_default();
        let next = self.waiting.range(self.compared.0 + 1..).map(|(number, _)| *number);
        let next: Vec<u64> = next.take_while(|number| *number <= last).take(entries).collect();
        for number in &next {
            let is_void = |arrival: &Arrival| {
                self.gone_holders.get(&arrival.holder).is_some_and(|last| number <= last)
            };
            if self.waiting.get(number).is_some_and(is_void) {
                self.look_up_again(*number, steps);
            }
        }
        self.compared = (next.last().copied().unwrap_or(last), now + pause_ns);
        if next.len() < entries {
            self.gone_holders.clear();
        }
        self.forget_like_if_empty();
        self.advance(now, context, steps);
    }

    /// Whether inputs of holders that are gone may still be among those that wait.
    pub(super) fn is_searching(&self) -> bool {
        !self.gone_holders.is_empty()
    }

    /// Looks up inputs on this node again that are not chosen yet and were evicted meanwhile.
    pub(super) fn look_up_evicted(
        &mut self,
        PlanContext { holds, .. }: PlanContext<'_>,
        steps: &mut Vec<Step>,
    ) {
        let me = self.me;
        let is_gone = |arrival: &&Arrival| arrival.holder == me && !holds(arrival.instance);
        let gone: Vec<u64> =
            self.waiting.values().filter(is_gone).map(|arrival| arrival.number).collect();
        gone.into_iter().for_each(|number| self.look_up_again(number, steps));
        self.forget_like_if_empty();
    }

    /// Drops the location of an input that is not chosen yet, and watches it again.
    fn look_up_again(&mut self, number: u64, steps: &mut Vec<Step>) {
        let Some(arrival) = self.waiting.remove(&number) else { return };
        self.set(&arrival.id, Input::Unanswered);
        steps.push(Step::Watch(arrival.id));
    }

    /// Inputs that have arrived, in order of arrival.
    pub(super) fn arrived(&self) -> impl Iterator<Item = &Arrival> {
        self.chosen.iter().chain(self.waiting.values())
    }

    /// Number of inputs that have arrived.
    pub(super) fn arrived_count(&self) -> usize {
        self.chosen.len() + self.waiting.len()
    }

    /// Adds arrived inputs to the fold, up to the count.
    pub(super) fn choose(&mut self) {
        while self.chosen.len() < self.count
            && let Some((_, arrival)) = self.waiting.pop_first()
        {
            self.chosen.push(arrival);
        }
    }

    /// Appends an input to those that have arrived.
    fn append(&mut self, arrival: Arrival) {
        self.arrivals += 1;
        let number = self.arrivals;
        self.set(&arrival.id, Input::Arrived(number));
        self.waiting.insert(number, Arrival { number, ..arrival });
    }

    /// Sets the state of an input, and updates the counts.
    fn set(&mut self, id: &ObjectId, input: Input) {
        let Some(present) = self.inputs.get_mut(id) else { return };
        let before = core::mem::replace(present, input);
        let is_gone = |input: &Input| usize::from(matches!(input, Input::Gone(_)));
        let is_unanswered = |input: &Input| usize::from(*input == Input::Unanswered);
        self.gone = self.gone + is_gone(present) - is_gone(&before);
        self.unanswered = self.unanswered + is_unanswered(present) - is_unanswered(&before);
    }

    /// Without inputs, the next one determines the metadata.
    fn forget_like_if_empty(&mut self) {
        if self.arrived_count() == 0 {
            self.like = None;
        }
    }

    /// Whether an input in the fold is read on `node`.
    pub fn folds_at(&self, node: NodeId) -> bool {
        self.chosen.iter().any(|arrival| arrival.holder == node)
    }

    /// Describes the progress as text.
    pub fn state(&self) -> String {
        let missing: Vec<ObjectId> = self.missing();
        if missing.is_empty() || self.chosen.len() == self.count {
            return format!("all {} inputs arrived and are being folded", self.count);
        }
        let arrived = self.arrived_count();
        format!("{arrived} of {} inputs arrived; {MISSING}{}", self.count, List(&missing))
    }

    /// An owner reported whether an input exists.
    pub fn found(
        &mut self,
        now: Instant,
        id: &ObjectId,
        found: Option<Found>,
        context: PlanContext<'_>,
        steps: &mut Vec<Step>,
    ) {
        let Some(input) = self.inputs.get(id) else { return };
        let Some(found) = found else {
            // While a retry is due, all inputs are watched again soon: this report is outdated.
            if *input == Input::Unanswered && self.retry_at.is_none() {
                self.set(id, Input::Absent);
            }
            return self.advance(now, context, steps);
        };
        if let Input::Arrived(number) = *input {
            return self.found_again(now, id, number, found, context, steps);
        }
        if let Err(error) = self.check(id, &found.meta) {
            steps.push(Step::Fail(error));
            return;
        }
        if (found.meta.size <= INLINE_BYTES_MAX) != found.inline.is_some() {
            // Every node sends small objects inline: the owner is broken, so its report is dropped.
            return;
        }
        let Found { instance, holder, inline, complete, .. } = found;
        self.append(Arrival { number: 0, id: id.clone(), instance, holder, inline, complete });
        self.advance(now, context, steps);
    }

    /// An owner reported that an input can't appear.
    pub fn gone(
        &mut self,
        now: Instant,
        id: &ObjectId,
        error: &Error,
        context: PlanContext<'_>,
        steps: &mut Vec<Step>,
    ) {
        let Some(input) = self.inputs.get(id) else { return };
        if let Input::Arrived(number) = input
            && self.waiting.remove(number).is_none()
        {
            // Its bytes are pinned where they are folded, so the result stays correct.
            return;
        }
        self.set(id, Input::Gone(error.clone()));
        self.forget_like_if_empty();
        let possible = self.inputs.len() - self.gone;
        if possible >= self.count {
            return self.advance(now, context, steps);
        }
        let error = if self.count == self.inputs.len() {
            error.clone()
        } else {
            // The first ten suffice; thousands of long names would not fit into a message.
            let gone = self.lost().into_iter().take(10).collect();
            Error::TooFewInputs { count: self.count as u64, possible: possible as u64, gone }
        };
        steps.push(Step::Fail(error));
    }

    /// A position, a stream or the result of `epoch` failed. The next attempt begins after a pause.
    /// It is long if a node may have failed that the owners of its inputs still count as a member.
    pub fn failed(
        &mut self,
        now: Instant,
        epoch: u32,
        detail: String,
        is_lost: bool,
        steps: &mut Vec<Step>,
    ) {
        if epoch != self.epoch {
            return;
        }
        self.end_attempt(detail, steps);
        self.waiting.clear();
        self.gone_holders.clear();
        self.like = None;
        self.unanswered = self.inputs.len() - self.gone;
        for input in self.inputs.values_mut().filter(|input| !matches!(input, Input::Gone(_))) {
            *input = Input::Unanswered;
        }
        let pause_ns = if is_lost { LOST_PAUSE_NS } else { ANSWERED_PAUSE_NS };
        self.retry_at = Some(now + (pause_ns << self.epoch.min(6)))
            .filter(|_| !mutants::is_active(Mutant::NeverRestartsReduces));
    }

    /// A node requested the result.
    pub fn asked(&mut self, now: Instant, context: PlanContext<'_>, steps: &mut Vec<Step>) {
        if matches!(self.input_wait, InputWait::Until(_)) {
            self.advance(now, context, steps);
        }
    }

    /// A deadline has passed: retries after a failure, begins without the last inputs, or gives up.
    pub fn expire(&mut self, now: Instant, context: PlanContext<'_>, steps: &mut Vec<Step>) {
        if let Some(deadline) = self.deadline.filter(|deadline| *deadline <= now) {
            let what = format!("the reduce result {}", self.result);
            let waited_ns = deadline.since(self.asked_at);
            steps.push(Step::Fail(Error::Timeout { what, waited_ns, state: self.state() }));
        } else if self.is_searching() {
            self.look_up_slice(now, context, steps);
            if !self.is_searching() {
                // What became due meanwhile has waited for the end of the search.
                self.expire(now, context, steps);
            }
        } else if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            let unanswered = self.inputs.iter().filter(|(_, input)| **input == Input::Unanswered);
            steps.extend(unanswered.map(|(id, _)| Step::Watch(id.clone())));
        } else if matches!(self.input_wait, InputWait::Until(until) if until <= now) {
            self.input_wait = InputWait::Expired;
            self.advance(now, context, steps);
        } else if let Some(silent) = self.stalled.judge(now) {
            self.replace(now, &silent, context, steps);
        }
    }

    /// A position at `reporter` waits for the stream of a child at `node`.
    pub fn stall_reported(
        &mut self,
        now: Instant,
        reporter: NodeId,
        node: NodeId,
        steps: &mut Vec<Step>,
    ) {
        // Reports about nodes outside this attempt would accumulate.
        let is_seat = node == self.me || self.nodes().contains(&node);
        if is_seat && self.stalled.report(now, reporter, node) {
            steps.push(Step::Probe(node));
        }
    }

    /// A node that a position waits for has replied.
    pub fn answered(&mut self, node: NodeId) {
        self.stalled.answered(node);
    }

    /// Replaces the inputs of unresponsive nodes by other inputs that have arrived, if there are
    /// enough. The next attempt then begins at once. A reduce that needs all its inputs waits.
    fn replace(
        &mut self,
        now: Instant,
        silent: &BTreeSet<NodeId>,
        context: PlanContext<'_>,
        steps: &mut Vec<Step>,
    ) {
        let is_silent = |arrival: &Arrival| silent.contains(&arrival.holder);
        let others = self.arrived().filter(|arrival| !is_silent(arrival)).count();
        let is_tree = matches!(&self.plan, Some(Plan { shape: PlanShape::Tree { .. }, .. }));
        if !is_tree || others < self.count || !self.chosen.iter().any(is_silent) {
            return;
        }
        let said: Vec<String> =
            silent.iter().map(|node| format!("node {node} is unresponsive")).collect();
        let detail = format!("{}; other inputs replace its inputs", said.join(", "));
        self.end_attempt(detail, steps);
        // Inputs of unresponsive nodes come last.
        let last = self.waiting.values().filter(|arrival| is_silent(arrival));
        let last: Vec<u64> = last.map(|arrival| arrival.number).collect();
        for number in last {
            let Some(arrival) = self.waiting.remove(&number) else { continue };
            self.append(arrival);
        }
        self.advance(now, context, steps);
    }

    /// Ends the attempt; arrived inputs stay.
    fn end_attempt(&mut self, detail: String, steps: &mut Vec<Step>) {
        let mut nodes = self.nodes();
        nodes.sort_unstable();
        nodes.dedup();
        steps.push(Step::Void { epoch: self.epoch, nodes, detail });
        self.epoch += 1;
        self.plan = None;
        self.input_wait = InputWait::Expired;
        let chosen = self.chosen.drain(..);
        self.waiting.extend(chosen.map(|arrival| (arrival.number, arrival)));
        self.stalled = StalledFolds::default();
    }

    fn missing(&self) -> Vec<ObjectId> {
        let missing = self.inputs.iter().filter(|(_, input)| !matches!(input, Input::Arrived(_)));
        missing.map(|(id, _)| id.clone()).collect()
    }

    /// An input that has arrived now exists in another instance, or is on another node.
    fn found_again(
        &mut self,
        now: Instant,
        id: &ObjectId,
        number: u64,
        found: Found,
        context: PlanContext<'_>,
        steps: &mut Vec<Step>,
    ) {
        let is_chosen = !self.waiting.contains_key(&number);
        let chosen = self.chosen.binary_search_by_key(&number, |arrival| arrival.number).ok();
        let chosen = chosen.and_then(|at| self.chosen.get_mut(at));
        let Some(arrival) = self.waiting.get_mut(&number).or(chosen) else { return };
        if arrival.instance == found.instance {
            let is_news = found.complete && !arrival.complete;
            arrival.complete |= found.complete;
            if !is_chosen {
                arrival.holder = found.holder;
            }
            if is_news && self.plan.is_none() {
                self.advance(now, context, steps);
            }
            return;
        }
        if is_chosen {
            let detail = format!("input {id} was put again");
            return self.failed(now, self.epoch, detail, false, steps);
        }
        // Treat it as a new arrival: it may have another shape.
        self.waiting.remove(&number);
        self.forget_like_if_empty();
        self.set(id, Input::Absent);
        self.found(now, id, Some(found), context, steps);
    }

    fn check(&mut self, id: &ObjectId, meta: &Meta) -> Result<(), Error> {
        if !meta.dtype().is_some_and(|dtype| is_reducible(self.op, dtype)) {
            return Err(Error::unreducible(id.clone(), meta.clone(), self.op));
        }
        let (first, like) =
            self.like.get_or_insert_with(|| (id.clone(), meta.clone().without_digest()));
        if (like.size, &like.kind) == (meta.size, &meta.kind) {
            if like.form != meta.form {
                // A result of different libraries' arrays belongs to no library in particular.
                like.form = Form::Plain;
            }
            return Ok(());
        }
        let metas = Box::new((like.clone(), meta.clone()));
        Err(Error::ShapeMismatch { first: first.clone(), other: id.clone(), metas })
    }
}

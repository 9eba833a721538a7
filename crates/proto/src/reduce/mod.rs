//! A reduce as its coordinator sees it: which inputs have arrived, which were chosen, who folds what.
//!
//! Pure: [`Reduce`] takes what the directory says of each input and answers with [`Step`]s for the node. It does not
//! know messages, memory or other reduces.
//!
//! ```text
//!   Gathering ----------------> Folding ----------------> over (the node drops it)
//!      ^   every owner has        |    count inputs chosen, the caller's own fold began
//!      |   answered once          |
//!      +--------------------------+  an input or a position was lost: the next epoch begins with all
//!             after a pause          inputs asked for again, and nothing of the old epoch is kept
//! ```
//!
//! Source: Hoplite, SIGCOMM 2021, section 3.4 (the tree is built in order of arrival) and section 4 (the degree).

pub mod assign;
pub mod cost;
pub mod shape;

use alloc::{boxed::Box, collections::BTreeMap, format, string::String, vec::Vec};

use self::{
    assign::Tree,
    cost::{DegreeReason, Link, choose_degree},
    shape::{Degree, Shape},
};
use crate::{
    error::{Error, List, is_reducible},
    id::{Instance, NodeId, ObjectId, ReduceId},
    inline::Inline,
    limits::INLINE_BYTES_MAX,
    message::{FoldKey, FoldOrder, Found},
    meta::{Dtype, Kind, Meta, Op},
    time::Instant,
};

/// What a reduce wants its node to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the owner of this input, and go on listening.
    Watch(ObjectId),
    /// Send a position its order.
    Order(NodeId, FoldOrder),
    /// All inputs are small: fold these here.
    FoldInline(Vec<Inline>),
    /// All inputs are chosen: make room for the result and fold these into it.
    Result {
        /// Inputs at the caller's node.
        local: Vec<Instance>,
        /// Positions whose streams end here.
        children: Vec<(NodeId, u32)>,
    },
    /// An attempt is over: these nodes are to stop, and its result is void.
    Void {
        /// The attempt.
        epoch: u32,
        /// Who was ordered to fold.
        nodes: Vec<NodeId>,
        /// Why, in words.
        detail: String,
    },
    /// The shape of the tree was chosen.
    Chose(Degree, DegreeReason),
    /// It can't succeed.
    Fail(Error),
}

/// What is known of one input.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Input {
    Unanswered,
    Absent,
    Arrived,
    Gone(Error),
}

#[derive(Clone, Debug)]
struct Arrival {
    id: ObjectId,
    instance: Instance,
    holder: NodeId,
    inline: Option<Inline>,
}

/// One reduce at its coordinator.
#[derive(Debug)]
pub struct Reduce {
    me: NodeId,
    key: ReduceId,
    result: ObjectId,
    op: Op,
    count: usize,
    asked_at: Instant,
    deadline: Option<Instant>,
    forced: Option<Degree>,
    inputs: BTreeMap<ObjectId, Input>,
    /// How many of `inputs` no owner has spoken of.
    unanswered: usize,
    /// In the order in which they came.
    arrived: Vec<Arrival>,
    /// How many of `arrived` are in the fold; always its first.
    chosen: usize,
    /// What every input must be: that of the first.
    like: Option<(ObjectId, Meta)>,
    plan: Option<Plan>,
    epoch: u32,
    /// When the owners are to be asked again after an attempt failed.
    retry_at: Option<Instant>,
}

#[derive(Debug)]
struct Plan {
    /// None where all inputs are folded by the coordinator out of its messages.
    tree: Option<Tree<NodeId, Instance>>,
    local: Vec<Instance>,
}

impl Reduce {
    /// A reduce of the first `count` of `inputs`, and the questions it begins with.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        me: NodeId,
        key: ReduceId,
        result: ObjectId,
        op: Op,
        inputs: &[ObjectId],
        count: usize,
        asked_at: Instant,
        deadline: Option<Instant>,
        forced: Option<Degree>,
    ) -> (Self, Vec<Step>) {
        let steps = inputs.iter().cloned().map(Step::Watch).collect();
        let inputs: BTreeMap<ObjectId, Input> =
            inputs.iter().cloned().map(|id| (id, Input::Unanswered)).collect();
        let (arrived, like, plan, retry_at) = (Vec::new(), None, None, None);
        let reduce = Self {
            me,
            key,
            result,
            op,
            count,
            asked_at,
            deadline,
            forced,
            unanswered: inputs.len(),
            inputs,
            arrived,
            chosen: 0,
            like,
            plan,
            epoch: 0,
            retry_at,
        };
        (reduce, steps)
    }

    /// The id of the result.
    pub const fn result(&self) -> &ObjectId {
        &self.result
    }

    /// The attempt that is under way.
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The operation.
    pub const fn op(&self) -> Op {
        self.op
    }

    /// Metadata of the result, once an input arrived.
    pub fn meta(&self) -> Option<&Meta> {
        self.like.as_ref().map(|(_, meta)| meta)
    }

    /// Element type of the result, once an input arrived.
    pub fn dtype(&self) -> Option<Dtype> {
        self.meta().and_then(dtype_of)
    }

    /// All candidates.
    pub fn candidates(&self) -> impl Iterator<Item = &ObjectId> {
        self.inputs.keys()
    }

    /// The inputs in the fold, in order of arrival. Final when the result is complete.
    pub fn folded(&self) -> Vec<ObjectId> {
        self.arrived[..self.chosen].iter().map(|arrival| arrival.id.clone()).collect()
    }

    /// Nodes that were ordered to fold in this epoch.
    pub fn nodes(&self) -> Vec<NodeId> {
        let tree = self.plan.as_ref().and_then(|plan| plan.tree.as_ref());
        tree.map_or_else(Vec::new, |tree| tree.seats().iter().map(|seat| seat.node).collect())
    }

    /// Whether an input in the fold is read at `node`.
    pub fn depends_on(&self, node: NodeId) -> bool {
        self.arrived.iter().any(|arrival| arrival.holder == node)
    }

    /// When [`Reduce::expire`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.retry_at).min()
    }

    /// How far it is, in words.
    pub fn state(&self) -> String {
        let missing: Vec<ObjectId> = self.missing();
        if missing.is_empty() || self.chosen == self.count {
            return format!("all {} inputs arrived, the result is being folded", self.count);
        }
        let arrived = self.arrived.len();
        format!("{arrived} of {} inputs arrived; missing: {}", self.count, List(&missing))
    }

    /// An owner says whether an input exists.
    pub fn found(
        &mut self,
        now: Instant,
        id: &ObjectId,
        found: Option<Found>,
        link: Link,
        steps: &mut Vec<Step>,
    ) {
        let Some(input) = self.inputs.get_mut(id) else { return };
        let Some(found) = found else {
            if *input == Input::Unanswered {
                *input = Input::Absent;
                self.unanswered -= 1;
            }
            return self.advance(link, steps);
        };
        if *input == Input::Arrived {
            return self.found_again(now, id, &found, steps);
        }
        if let Err(error) = self.check(id, &found.meta) {
            steps.push(Step::Fail(error));
            return;
        }
        if (found.meta.size <= INLINE_BYTES_MAX) != found.inline.is_some() {
            // Every node of this protocol sends small objects inline: the owner is broken, and its word void.
            return;
        }
        let before = self.inputs.insert(id.clone(), Input::Arrived);
        self.unanswered -= usize::from(before == Some(Input::Unanswered));
        let (instance, holder, inline) = (found.instance, found.holder, found.inline);
        self.arrived.push(Arrival { id: id.clone(), instance, holder, inline });
        self.advance(link, steps);
    }

    /// An owner says that an input can't come.
    pub fn gone(&mut self, id: &ObjectId, error: &Error, link: Link, steps: &mut Vec<Step>) {
        let Some(input) = self.inputs.get_mut(id) else { return };
        let at = self.arrived.iter().position(|arrival| arrival.id == *id);
        match at {
            // Its bytes are held fast where they are folded: the result will be right.
            Some(at) if at < self.chosen => return,
            Some(at) => drop(self.arrived.remove(at)),
            None => {}
        }
        self.unanswered -= usize::from(*input == Input::Unanswered);
        *input = Input::Gone(error.clone());
        let gone: Vec<ObjectId> = self
            .inputs
            .iter()
            .filter(|(_, input)| matches!(input, Input::Gone(_)))
            .map(|(id, _)| id.clone())
            .collect();
        let possible = self.inputs.len() - gone.len();
        if possible >= self.count {
            return self.advance(link, steps);
        }
        let error = if self.count == self.inputs.len() {
            error.clone()
        } else {
            // The first few say enough; thousands of long names would not fit a message.
            let gone = gone.into_iter().take(10).collect();
            Error::TooFewInputs { count: self.count as u64, possible: possible as u64, gone }
        };
        steps.push(Step::Fail(error));
    }

    /// A position, a stream or the result of `epoch` failed: the next attempt begins after a pause.
    pub fn failed(&mut self, now: Instant, epoch: u32, detail: String, steps: &mut Vec<Step>) {
        if epoch != self.epoch {
            return;
        }
        let mut nodes = self.nodes();
        nodes.sort_unstable();
        nodes.dedup();
        steps.push(Step::Void { epoch, nodes, detail });
        self.epoch += 1;
        self.plan = None;
        self.chosen = 0;
        self.arrived.clear();
        self.unanswered = 0;
        for input in self.inputs.values_mut().filter(|input| !matches!(input, Input::Gone(_))) {
            *input = Input::Unanswered;
            self.unanswered += 1;
        }
        // 20 ms, doubled each time up to 1.28 s: long enough for the directory to learn of a death, short against
        // any transfer that is worth a reduce.
        self.retry_at = Some(now + (20_000_000 << self.epoch.min(6)));
    }

    /// Time has passed: asks again after a failure, or gives up.
    pub fn expire(&mut self, now: Instant, steps: &mut Vec<Step>) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            let what = format!("the result {} of a reduce", self.result);
            let waited_ns = now.since(self.asked_at);
            steps.push(Step::Fail(Error::Timeout { what, waited_ns, state: self.state() }));
        } else if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            let unanswered = self.inputs.iter().filter(|(_, input)| **input == Input::Unanswered);
            steps.extend(unanswered.map(|(id, _)| Step::Watch(id.clone())));
        }
    }

    fn missing(&self) -> Vec<ObjectId> {
        let missing = self.inputs.iter().filter(|(_, input)| **input != Input::Arrived);
        missing.map(|(id, _)| id.clone()).collect()
    }

    /// An input that arrived exists in another instance now, or is held by another node.
    fn found_again(&mut self, now: Instant, id: &ObjectId, found: &Found, steps: &mut Vec<Step>) {
        let at = self.arrived.iter().position(|arrival| arrival.id == *id);
        let Some(at) = at.filter(|at| self.arrived[*at].instance != found.instance) else { return };
        if at < self.chosen {
            let detail = format!("input {id} was put again");
            return self.failed(now, self.epoch, detail, steps);
        }
        let arrival = &mut self.arrived[at];
        arrival.instance = found.instance;
        arrival.holder = found.holder;
        arrival.inline = found.inline.clone();
    }

    fn check(&mut self, id: &ObjectId, meta: &Meta) -> Result<(), Error> {
        if !dtype_of(meta).is_some_and(|dtype| is_reducible(self.op, dtype)) {
            return Err(Error::unreducible(id.clone(), meta.clone(), self.op));
        }
        let (first, like) = self.like.get_or_insert_with(|| (id.clone(), meta.clone()));
        if like == meta {
            return Ok(());
        }
        let metas = Box::new((like.clone(), meta.clone()));
        Err(Error::ShapeMismatch { first: first.clone(), other: id.clone(), metas })
    }

    /// Chooses what has arrived, up to the count, and orders what can be ordered.
    fn advance(&mut self, link: Link, steps: &mut Vec<Step>) {
        if self.chosen == self.count || self.arrived.is_empty() {
            return;
        }
        // Until every owner has answered once, inputs that exist already would look like late ones, and those of
        // one node would get a position each.
        if self.plan.is_none() && self.unanswered > 0 {
            return;
        }
        let size = self.meta().map_or(0, |meta| meta.size);
        if size <= INLINE_BYTES_MAX {
            return self.advance_small(steps);
        }
        if self.plan.is_none() {
            self.begin_tree(size, link, steps);
        } else {
            self.seat_late_arrivals();
        }
        self.order(steps);
    }

    fn advance_small(&mut self, steps: &mut Vec<Step>) {
        if self.arrived.len() < self.count {
            return;
        }
        self.chosen = self.count;
        self.plan = Some(Plan { tree: None, local: Vec::new() });
        let chosen = self.arrived[..self.count].iter();
        steps.push(Step::FoldInline(chosen.filter_map(|arrival| arrival.inline.clone()).collect()));
    }

    /// Seats what exists already, grouped by node, in a tree with a position for each input still to come.
    fn begin_tree(&mut self, size: u64, link: Link, steps: &mut Vec<Step>) {
        let batch = self.arrived.len().min(self.count);
        let mut local = Vec::new();
        let mut groups: Vec<(NodeId, Vec<Instance>)> = Vec::new();
        for arrival in &self.arrived[..batch] {
            if arrival.holder == self.me {
                local.push(arrival.instance);
            } else if let Some((_, group)) =
                groups.iter_mut().find(|(node, _)| *node == arrival.holder)
            {
                group.push(arrival.instance);
            } else {
                groups.push((arrival.holder, Vec::from([arrival.instance])));
            }
        }
        self.chosen = batch;
        let positions = (groups.len() + self.count - batch) as u32;
        let (chosen, reason) = choose_degree(positions, size, link);
        let degree = self.forced.unwrap_or(chosen);
        steps.push(Step::Chose(degree, reason));
        let mut tree = Tree::new(Shape { degree, positions });
        for (node, inputs) in groups {
            tree.seat(node, inputs);
        }
        self.plan = Some(Plan { tree: Some(tree), local });
    }

    fn seat_late_arrivals(&mut self) {
        let Some(Plan { tree: Some(tree), local }) = &mut self.plan else { return };
        for arrival in self.arrived.iter().take(self.count).skip(self.chosen) {
            if arrival.holder == self.me {
                local.push(arrival.instance);
            } else {
                tree.seat(arrival.holder, Vec::from([arrival.instance]));
            }
        }
        self.chosen = self.arrived.len().min(self.count);
    }

    fn order(&mut self, steps: &mut Vec<Step>) {
        let (Some(meta), Some(dtype)) = (self.meta(), self.dtype()) else { return };
        let (size, op, reduce, epoch) = (meta.size, self.op, self.key, self.epoch);
        let Some(Plan { tree: Some(tree), local }) = &mut self.plan else { return };
        if self.chosen == self.count {
            tree.close();
        }
        for order in tree.orders() {
            let key = FoldKey { reduce, epoch, segment: 0, position: order.position };
            let (inputs, children) = (order.inputs, order.children);
            let fold = FoldOrder { key, inputs, children, op, dtype, size };
            steps.push(Step::Order(order.node, fold));
        }
        if let Some(children) = tree.tops() {
            steps.push(Step::Result { local: local.clone(), children });
        }
    }
}

fn dtype_of(meta: &Meta) -> Option<Dtype> {
    match meta.kind {
        Kind::Bytes => None,
        Kind::Array { dtype, .. } => Some(dtype),
    }
}

#[cfg(test)]
mod tests {
    use alloc::{collections::BTreeSet, string::ToString, vec};

    use super::*;

    const ME: NodeId = NodeId(1);
    const LARGE: u64 = 1 << 20;
    const LINK: Link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };

    fn input(number: usize) -> ObjectId {
        ObjectId::Minted { node: NodeId(9), serial: number as u64 }
    }

    fn instance(number: usize) -> Instance {
        Instance { node: NodeId(9), serial: 100 + number as u64 }
    }

    fn array(size: u64) -> Meta {
        Meta::array(Dtype::Float32, vec![size / 4]).unwrap()
    }

    fn large(number: usize, holder: NodeId) -> Found {
        Found { instance: instance(number), meta: array(LARGE), holder, inline: None }
    }

    fn small(number: usize, size: u64) -> Found {
        let inline = Some(vec![number as u8; size as usize].into());
        Found { instance: instance(number), meta: array(size), holder: NodeId(2), inline }
    }

    /// A reduce of the first `count` of `inputs` that is asked at 1 s and must be there at 5 s.
    fn reduce(inputs: usize, count: usize, forced: Option<Degree>) -> Reduce {
        let ids: Vec<ObjectId> = (0..inputs).map(input).collect();
        let key = ReduceId { node: ME, serial: 2 };
        let result = ObjectId::Minted { node: ME, serial: 1 };
        let (at, until) = (Instant(1_000_000_000), Some(Instant(5_000_000_000)));
        let (reduce, steps) = Reduce::new(ME, key, result, Op::Sum, &ids, count, at, until, forced);
        assert_eq!(steps, ids.into_iter().map(Step::Watch).collect::<Vec<_>>());
        reduce
    }

    impl Reduce {
        fn hears(&mut self, number: usize, found: Option<Found>) -> Vec<Step> {
            let mut steps = Vec::new();
            self.found(Instant(2_000_000_000), &input(number), found, LINK, &mut steps);
            steps
        }

        fn hears_gone(&mut self, number: usize) -> Vec<Step> {
            let mut steps = Vec::new();
            let error = Error::ObjectDeleted { id: input(number) };
            self.gone(&input(number), &error, LINK, &mut steps);
            steps
        }
    }

    /// What reaches the caller if everybody does as ordered: the instances, as often as they are folded.
    fn folded(steps: &[Step]) -> Vec<Instance> {
        let mut orders: BTreeMap<u32, (NodeId, &FoldOrder)> = BTreeMap::new();
        let mut result = None;
        for step in steps {
            match step {
                Step::Order(node, order) => {
                    let before = orders.insert(order.key.position, (*node, order));
                    assert!(before.is_none(), "position {} was ordered twice", order.key.position);
                }
                Step::Result { local, children } => {
                    assert!(result.replace((local, children)).is_none(), "two results");
                }
                Step::Chose(..) => {}
                other => panic!("{other:?}"),
            }
        }
        let (local, children) = result.expect("all have arrived");
        let (mut all, mut next) = (local.clone(), children.clone());
        while let Some((node, position)) = next.pop() {
            let (at, order) = orders.remove(&position).expect("it was ordered");
            assert_eq!(at, node);
            all.extend(&order.inputs);
            next.extend(&order.children);
        }
        assert!(orders.is_empty(), "nobody pulls from {orders:?}");
        all.sort_unstable();
        all
    }

    /// Every order of `items`.
    fn permutations(items: usize) -> Vec<Vec<usize>> {
        let mut all = vec![vec![]];
        for item in 0..items {
            let longer = |order: Vec<usize>| {
                (0..=order.len()).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, item);
                    order
                })
            };
            all = all.into_iter().flat_map(longer).collect();
        }
        all
    }

    /// Goal: the result is the fold of exactly the first `count` to arrive, each once, whatever the order.
    /// Method: every order of up to 6 inputs, every count and degree, any number of them there from the start; inputs
    /// at the caller, several at one node, each at its own.
    #[test]
    fn the_first_to_arrive_are_folded_once_each() {
        let alone = |number: usize| NodeId(10 + number as u64);
        let together = |number: usize| NodeId(1 + number as u64 % 3);
        for inputs in 1..=6 {
            for order in permutations(inputs) {
                for (count, from_start) in
                    (1..=inputs).flat_map(|k| (0..=inputs).map(move |m| (k, m)))
                {
                    // The rest of the combinations at random would add nothing: degree and place are independent.
                    let degree = Degree::ALL[(count + from_start) % 3];
                    for holder in [&alone as &dyn Fn(usize) -> NodeId, &together] {
                        let mut reduce = reduce(inputs, count, Some(degree));
                        let mut steps = Vec::new();
                        for (place, number) in order.iter().enumerate() {
                            let is_there = place < from_start;
                            let found = is_there.then(|| large(*number, holder(*number)));
                            steps.extend(reduce.hears(*number, found));
                        }
                        for number in &order[from_start..] {
                            steps.extend(
                                reduce.hears(*number, Some(large(*number, holder(*number)))),
                            );
                        }
                        let mut expected: Vec<Instance> =
                            order[..count].iter().map(|number| instance(*number)).collect();
                        expected.sort_unstable();
                        assert_eq!(folded(&steps), expected, "{order:?}, {count}, {from_start}");
                        let ids: Vec<ObjectId> = order[..count].iter().map(|n| input(*n)).collect();
                        assert_eq!(reduce.folded(), ids);
                    }
                }
            }
        }
    }

    #[test]
    fn inputs_that_are_there_share_the_position_of_their_node() {
        let mut reduce = reduce(3, 3, None);
        let holders = [NodeId(2), NodeId(2), ME];
        let steps: Vec<Step> = (0..3)
            .flat_map(|number| reduce.hears(number, Some(large(number, holders[number]))))
            .collect();
        let orders = steps.iter().filter(|step| matches!(step, Step::Order(..))).count();
        assert_eq!(orders, 1, "{steps:?}");
        assert_eq!(folded(&steps).len(), 3);
    }

    #[test]
    fn nothing_is_ordered_before_every_owner_has_answered() {
        let mut reduce = reduce(2, 1, None);
        assert_eq!(reduce.hears(0, Some(large(0, NodeId(2)))), []);
        assert!(!reduce.hears(1, None).is_empty());
    }

    #[test]
    fn small_inputs_are_folded_at_the_caller() {
        let mut reduce = reduce(3, 2, None);
        assert_eq!(reduce.hears(2, Some(small(2, 8))), []);
        assert_eq!(reduce.hears(0, None), []);
        assert_eq!(reduce.hears(1, None), []);
        let steps = reduce.hears(1, Some(small(1, 8)));
        let inputs: Vec<Inline> = vec![vec![2; 8].into(), vec![1; 8].into()];
        assert_eq!(steps, [Step::FoldInline(inputs)]);
        assert_eq!(reduce.hears(0, Some(small(0, 8))), [], "a spare is not folded");
        assert_eq!(reduce.folded(), [input(2), input(1)]);
    }

    #[test]
    fn inputs_of_two_shapes_are_an_error_that_names_both() {
        let mut reduce = reduce(2, 2, None);
        reduce.hears(0, Some(large(0, NodeId(2))));
        let other = Found { meta: array(2 * LARGE), ..large(1, NodeId(3)) };
        let steps = reduce.hears(1, Some(other));
        let [Step::Fail(Error::ShapeMismatch { first, other, .. })] = &steps[..] else {
            panic!("{steps:?}")
        };
        assert_eq!((first, other), (&input(0), &input(1)));
    }

    #[test]
    fn bytes_without_a_dtype_cannot_be_folded() {
        let mut reduce = reduce(1, 1, None);
        let plain = Found { meta: Meta::bytes(LARGE), ..large(0, NodeId(2)) };
        assert!(matches!(
            reduce.hears(0, Some(plain))[..],
            [Step::Fail(Error::Unreducible { .. })]
        ));
    }

    #[test]
    fn a_spare_takes_the_place_of_an_input_that_is_gone() {
        let mut reduce = reduce(3, 2, None);
        assert_eq!(reduce.hears_gone(0), []);
        reduce.hears(1, Some(large(1, NodeId(2))));
        let steps = reduce.hears(2, Some(large(2, NodeId(3))));
        assert_eq!(folded(&steps), [instance(1), instance(2)]);
    }

    #[test]
    fn too_few_that_can_come_are_an_error_that_names_the_gone() {
        let mut reduce = reduce(3, 2, None);
        assert_eq!(reduce.hears_gone(0), []);
        let steps = reduce.hears_gone(2);
        let gone = vec![input(0), input(2)];
        assert_eq!(steps, [Step::Fail(Error::TooFewInputs { count: 2, possible: 1, gone })]);
    }

    #[test]
    fn all_of_the_inputs_fail_with_the_error_of_the_first_that_is_gone() {
        let mut reduce = reduce(3, 3, None);
        assert_eq!(reduce.hears_gone(1), [Step::Fail(Error::ObjectDeleted { id: input(1) })]);
    }

    #[test]
    fn an_input_that_is_deleted_while_it_is_folded_stays_in_the_fold() {
        let mut reduce = reduce(2, 2, None);
        let mut steps = reduce.hears(0, Some(large(0, NodeId(2))));
        steps.extend(reduce.hears(1, None));
        assert_eq!(reduce.hears_gone(0), []);
        steps.extend(reduce.hears(1, Some(large(1, NodeId(3)))));
        assert_eq!(folded(&steps), [instance(0), instance(1)]);
    }

    /// Goal: after any failure nothing of the attempt is kept, and the next one folds what is there then.
    #[test]
    fn a_failed_attempt_begins_again_with_all_questions() {
        let mut reduce = reduce(2, 2, None);
        (0..2).for_each(|number| drop(reduce.hears(number, Some(large(number, NodeId(2))))));
        let (now, mut steps) = (Instant(2_000_000_000), Vec::new());
        reduce.failed(now, 0, "a stream broke".into(), &mut steps);
        let detail = "a stream broke".to_string();
        assert_eq!(steps, [Step::Void { epoch: 0, nodes: vec![NodeId(2)], detail }]);
        steps.clear();
        reduce.failed(now, 0, "another stream of it broke".into(), &mut steps);
        assert_eq!(steps, [], "an attempt fails once");
        assert!(reduce.folded().is_empty());

        let retry = reduce.deadline().expect("it asks again");
        assert!(retry > now);
        reduce.expire(retry, &mut steps);
        let asked: BTreeSet<ObjectId> = steps
            .drain(..)
            .map(|step| if let Step::Watch(id) = step { id } else { panic!("{step:?}") })
            .collect();
        assert_eq!(asked, BTreeSet::from([input(0), input(1)]));
        let mut again = reduce.hears(0, Some(large(0, NodeId(3))));
        again.extend(reduce.hears(1, Some(Found { instance: instance(7), ..large(1, NodeId(3)) })));
        assert_eq!(folded(&again), [instance(0), instance(7)]);
        assert!(again.iter().all(|step| match step {
            Step::Order(_, order) => order.key.epoch == 1,
            _ => true,
        }));
    }

    #[test]
    fn an_input_that_was_put_again_voids_the_attempt_that_read_it() {
        let mut reduce = reduce(2, 1, None);
        reduce.hears(0, Some(large(0, NodeId(2))));
        reduce.hears(1, None);
        let other = Found { instance: instance(7), ..large(0, NodeId(2)) };
        assert!(matches!(reduce.hears(0, Some(other))[..], [Step::Void { epoch: 0, .. }]));
        assert_eq!(reduce.epoch(), 1);
    }

    #[test]
    fn the_same_instance_told_again_changes_nothing() {
        let mut reduce = reduce(1, 1, None);
        reduce.hears(0, Some(large(0, NodeId(2))));
        assert_eq!(reduce.hears(0, Some(large(0, NodeId(3)))), []);
        assert_eq!(reduce.epoch(), 0);
    }

    #[test]
    fn a_deadline_says_how_many_came_and_which_are_missing() {
        let mut reduce = reduce(3, 3, None);
        reduce.hears(0, Some(large(0, NodeId(2))));
        reduce.hears(1, None);
        reduce.hears(2, None);
        let mut steps = Vec::new();
        reduce.expire(Instant(5_000_000_000), &mut steps);
        let [Step::Fail(error)] = &steps[..] else { panic!("{steps:?}") };
        let text = error.to_string();
        for part in ["within 4.000 s", "1 of 3 inputs arrived", ".1,", ".2"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

//! A reduce at its coordinator: reports of owners in, steps out, in every order of arrival.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::ToString,
    vec,
    vec::Vec,
};

use super::{cost::Link, shape::Degree, *};
use crate::{
    directory::Slice,
    error::Error,
    id::{Instance, NodeId, ObjectId, ReduceId},
    inline::Inline,
    limits::WINDOW_BYTES,
    members::{Member, Members},
    message::{FoldOrder, Found},
    meta::{Dtype, Meta, Op},
    time::Instant,
    timed::Deadline,
};

const ME: NodeId = NodeId(1);
const SLICE: Slice = Slice { entries: 8, pause_ns: 1000 };

/// The caller and nodes 2 to 9: even ones in the caller's rack, the others in another rack.
fn members() -> Members {
    let member = |id: u64| {
        let address = core::net::SocketAddr::from(([127, 0, 0, 1], id as u16));
        let rack = if id == ME.0 || id.is_multiple_of(2) { "near" } else { "far" };
        Member { id: NodeId(id), address, place: rack.parse().ok() }
    };
    let mut members = Members::new(member(ME.0));
    (2..10).for_each(|id| assert!(members.insert(member(id))));
    members
}
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
    Found { instance: instance(number), meta: array(LARGE), holder, inline: None, complete: true }
}

fn small(number: usize, size: u64) -> Found {
    let inline = Some(vec![number as u8; size as usize].into());
    Found {
        instance: instance(number),
        meta: array(size),
        holder: NodeId(2),
        inline,
        complete: true,
    }
}

/// A reduce of the first `count` of `inputs`, called at 1 s with a deadline at 5 s.
fn reduce(inputs: usize, count: usize, forced_degree: Option<Degree>) -> Reduce {
    let ids: Vec<ObjectId> = (0..inputs).map(input).collect();
    let key = ReduceId { node: ME, serial: 2 };
    let result = ObjectId::Minted { node: ME, serial: 1 };
    let (at, until) = (Instant(1_000_000_000), Some(Instant(5_000_000_000)));
    let mut candidates = Candidates::default();
    ids.iter().cloned().for_each(|id| candidates.insert(id));
    let (reduce, watched) =
        Reduce::new(ME, key, result, Op::Sum, candidates, count, at, until, forced_degree);
    assert_eq!(watched, ids);
    reduce
}

/// Passes a fact to a reduce while `askers` wait for its result.
fn context<T>(askers: &[u64], tell: impl FnOnce(PlanContext<'_>) -> T) -> T {
    let wants = |node: NodeId| askers.contains(&node.0);
    let (members, slice) = (members(), SLICE);
    tell(PlanContext { members: &members, holds: &|_| true, link: LINK, wants: &wants, slice })
}

impl Reduce {
    fn hears(&mut self, number: usize, found: Option<Found>) -> Vec<Step> {
        self.hears_among(&[], number, found)
    }

    fn hears_among(&mut self, askers: &[u64], number: usize, found: Option<Found>) -> Vec<Step> {
        let mut steps = Vec::new();
        let now = Instant(2_000_000_000);
        context(askers, |context| self.found(now, &input(number), found, context, &mut steps));
        steps
    }

    fn waits_until(&mut self, now: Instant, askers: &[u64]) -> Vec<Step> {
        let mut steps = Vec::new();
        context(askers, |context| self.expire(now, context, &mut steps));
        steps
    }

    fn hears_gone(&mut self, number: usize) -> Vec<Step> {
        self.hears_of_the_end(number, &Error::ObjectDeleted { id: input(number) })
    }

    fn hears_of_the_end(&mut self, number: usize, error: &Error) -> Vec<Step> {
        let mut steps = Vec::new();
        let now = Instant(2_000_000_000);
        context(&[], |context| self.gone(now, &input(number), error, context, &mut steps));
        steps
    }
}

/// Goal: the owner of an input that is not needed delays no reduce of small inputs.
#[test]
fn small_inputs_are_folded_once_enough_arrived_although_an_owner_has_not_replied() {
    let mut reduce = reduce(3, 2, None);
    assert_eq!(reduce.hears(2, Some(small(2, 8))), []);
    let steps = reduce.hears(1, Some(small(1, 8)));
    assert!(matches!(&steps[..], [Step::FoldInline(inputs)] if inputs.len() == 2), "{steps:?}");
}

/// A first-k reduce of `MANY` inputs, `MANY - 1` of which have arrived on nodes 2 and 3.
fn nearly_begun() -> Reduce {
    let mut reduce = reduce(MANY + 2, MANY, None);
    for number in 0..MANY - 1 {
        assert_eq!(reduce.hears(number, Some(large(number, holder_of(number)))), []);
    }
    assert_eq!(reduce.hears(MANY, None), []);
    assert_eq!(reduce.hears(MANY + 1, None), []);
    reduce
}

const MANY: usize = 4 * SLICE.entries;

fn holder_of(number: usize) -> NodeId {
    NodeId(2 + number as u64 % 2)
}

impl Reduce {
    fn loses(&mut self, node: u64) -> Vec<Step> {
        let (now, mut steps) = (Instant(2_000_000_000), Vec::new());
        context(&[], |context| self.holder_leaves(now, NodeId(node), context, &mut steps));
        steps
    }

    /// The steps of all slices after `steps` until only the deadline of the client is left.
    /// `meanwhile` adds steps after each slice.
    fn searches(
        &mut self,
        mut steps: Vec<Step>,
        mut meanwhile: impl FnMut(&mut Self, &Step) -> Vec<Step>,
    ) -> Vec<Step> {
        let mut all = Vec::new();
        for _ in 0..3 * MANY {
            let watched = steps.iter().filter(|step| matches!(step, Step::Watch(_))).count();
            assert!(watched <= SLICE.entries, "{steps:?}");
            let more: Vec<Step> = steps.iter().flat_map(|step| meanwhile(self, step)).collect();
            all.extend(steps.into_iter().chain(more));
            let at = self.deadline().expect("that of the client");
            if at == Instant(5_000_000_000) {
                return all;
            }
            steps = self.waits_until(at, &[]);
        }
        panic!("the search does not end: {:?}", watched(&all));
    }
}

/// How often each input is to be watched.
fn watched(steps: &[Step]) -> BTreeMap<ObjectId, usize> {
    let mut watched = BTreeMap::new();
    for step in steps {
        if let Step::Watch(id) = step {
            *watched.entry(id.clone()).or_default() += 1;
        }
    }
    watched
}

fn once_each(numbers: impl Iterator<Item = usize>) -> BTreeMap<ObjectId, usize> {
    numbers.map(|number| (input(number), 1)).collect()
}

/// Goal: a node with very many inputs that fails holds up its coordinator by a slice at a time, and
/// none of them is folded. Method: the last input arrives meanwhile.
#[test]
fn many_inputs_of_a_lost_node_are_looked_up_a_slice_at_a_time() {
    let mut reduce = nearly_begun();
    let steps = reduce.loses(2);
    assert_eq!(reduce.deadline(), Some(Instant(2_000_000_000 + SLICE.pause_ns)));
    assert_eq!(reduce.hears(MANY - 1, Some(large(MANY - 1, NodeId(3)))), []);
    let steps = reduce.searches(steps, |_, _| Vec::new());
    assert_eq!(watched(&steps), once_each((0..MANY).step_by(2)));
    let mut steps = Vec::new();
    for number in (0..MANY).step_by(2) {
        steps.extend(reduce.hears(number, Some(large(number, NodeId(4)))));
    }
    let all: Vec<Instance> = (0..MANY).map(instance).collect();
    assert_eq!(folded(&steps), all);
}

/// A member has reconnected: its owners report its inputs there again, while the others are still
/// looked up.
#[test]
fn inputs_that_are_found_again_on_a_node_are_not_looked_up_once_more() {
    let mut reduce = nearly_begun();
    let number_of = |id: &ObjectId| (0..MANY).find(|number| input(*number) == *id);
    let steps = reduce.loses(2);
    let steps = reduce.searches(steps, |reduce, step| {
        let Step::Watch(id) = step else { return Vec::new() };
        let number = number_of(id).expect("an input");
        reduce.hears(number, Some(large(number, NodeId(2))))
    });
    assert_eq!(watched(&steps), once_each((0..MANY - 1).step_by(2)));
    let steps = reduce.hears(MANY - 1, Some(large(MANY - 1, NodeId(3))));
    assert_eq!(folded(&steps).len(), MANY);
    // Nor if another node is lost while they are looked up.
    let mut reduce = nearly_begun();
    let mut steps = reduce.loses(2);
    for number in (0..SLICE.entries).step_by(2) {
        assert_eq!(reduce.hears(number, Some(large(number, NodeId(2)))), []);
    }
    steps.extend(reduce.loses(3));
    steps.truncate(SLICE.entries);
    let steps = reduce.searches(steps, |_, _| Vec::new());
    assert!(watched(&steps).values().all(|times| *times == 1), "{steps:?}");
}

/// Goal: a reduce goes on after a search that the loss of another node ends. Method: what is left
/// after the first slice fits into one.
#[test]
fn a_reduce_goes_on_after_a_search_for_the_inputs_of_two_lost_nodes() {
    let (all, count) = (SLICE.entries + SLICE.entries / 2, SLICE.entries / 2);
    let mut reduce = reduce(all + 1, count, None);
    for number in 0..all {
        let holder = NodeId(if number < SLICE.entries { 2 } else { 4 });
        assert_eq!(reduce.hears(number, Some(large(number, holder))), []);
    }
    assert_eq!(watched(&reduce.loses(2)), once_each(0..SLICE.entries));
    for number in (0..SLICE.entries).chain([all]) {
        assert_eq!(reduce.hears(number, None), []);
    }
    let steps = reduce.loses(3);
    let late: Vec<Instance> = (SLICE.entries..all).map(instance).collect();
    assert_eq!(folded(&steps), late);
}

/// Goal: what becomes due during a search is done at its end, so no deadline has passed after it.
/// Method: a reduce that waits a moment for its last input, and whose slices come late.
#[test]
fn what_is_due_during_a_search_is_done_at_its_end() {
    let (all, askers) = (2 * SLICE.entries, [2, 3, 4, 5]);
    let mut reduce = reduce(all + 1, all + 1, None);
    assert_eq!(reduce.hears_among(&askers, all, None), []);
    for number in 0..all {
        let meta = array(WINDOW_BYTES);
        let found = Found { meta, ..large(number, NodeId(askers[number % askers.len()])) };
        assert_eq!(reduce.hears_among(&askers, number, Some(found)), []);
    }
    let mut now = reduce.deadline().expect("it waits for the last one");
    assert!(now < Instant(3_000_000_000), "{now:?}");
    reduce.loses(2);
    while reduce.is_searching() {
        now = now + SLICE.pause_ns;
        reduce.waits_until(now, &askers);
    }
    assert_eq!(reduce.deadline(), Some(Instant(5_000_000_000)), "that of the client");
}

/// The bytes of small inputs are on the node of the caller.
#[test]
fn small_inputs_of_a_lost_node_are_not_looked_up_again() {
    let mut reduce = reduce(MANY, MANY, None);
    for number in 0..MANY - 1 {
        assert_eq!(reduce.hears(number, Some(small(number, 8))), []);
    }
    assert_eq!(reduce.loses(2), []);
    let steps = reduce.hears(MANY - 1, Some(small(MANY - 1, 8)));
    assert!(matches!(&steps[..], [Step::FoldInline(inputs)] if inputs.len() == MANY), "{steps:?}");
}

/// The instances that reach the caller if all orders are executed, as often as they are folded.
fn folded(steps: &[Step]) -> Vec<Instance> {
    let mut orders: BTreeMap<u32, (NodeId, &FoldOrder)> = BTreeMap::new();
    let mut result = None;
    for step in steps {
        match step {
            Step::Order(node, order) => {
                let before = orders.insert(order.key.position, (*node, order));
                assert!(before.is_none(), "position {} was ordered twice", order.key.position);
            }
            Step::Result(order) => {
                assert!(result.replace(order).is_none(), "two results");
            }
            Step::DegreeChosen(..) => {}
            other => panic!("{other:?}"),
        }
    }
    let order = result.expect("all have arrived");
    let (mut all, mut next) = (order.inputs.clone(), order.children.clone());
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

/// Goal: the result is the fold of exactly the first `count` inputs to arrive, each once, in any
/// order of arrival. Method: every order of up to 6 inputs, every count and degree, and any number
/// of inputs present from the start. Inputs are on the caller, several on one node, or each on its
/// own node. Inputs whose orders are all tried: 6 take a debug build 20 times as long as 5.
const MOST_INPUTS: usize = if cfg!(debug_assertions) { 5 } else { 6 };

#[test]
fn the_first_to_arrive_are_folded_once_each() {
    let alone = |number: usize| NodeId(10 + number as u64);
    let together = |number: usize| NodeId(1 + number as u64 % 3);
    for inputs in 1..=MOST_INPUTS {
        for order in permutations(inputs) {
            for (count, from_start) in (1..=inputs).flat_map(|k| (0..=inputs).map(move |m| (k, m)))
            {
                // More combinations would add nothing: degree and place are independent.
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
                        steps.extend(reduce.hears(*number, Some(large(*number, holder(*number)))));
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
fn a_chain_leaves_another_rack_once() {
    let mut reduce = Reduce { forced_degree: Some(Degree::Chain), ..reduce(8, 8, None) };
    let steps: Vec<Step> = (0..8)
        .flat_map(|number| reduce.hears(number, Some(large(number, NodeId(2 + number as u64)))))
        .collect();
    let mut senders = Vec::new();
    for step in &steps {
        match step {
            Step::Order(node, order) => {
                senders.extend(order.children.iter().map(|(child, _)| (*child, *node)));
            }
            Step::Result(order) => {
                senders.extend(order.children.iter().map(|(child, _)| (*child, ME)));
            }
            _ => {}
        }
    }
    assert_eq!(senders.len(), 8, "{steps:?}");
    let apart = senders.iter().filter(|(from, to)| members().distance(*from, *to) > 0).count();
    assert_eq!(apart, 1, "{senders:?}");
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
    assert!(matches!(reduce.hears(0, Some(plain))[..], [Step::Fail(Error::Unreducible { .. })]));
}

#[test]
fn a_spare_replaces_a_lost_input() {
    let mut reduce = reduce(3, 2, None);
    assert_eq!(reduce.hears_gone(0), []);
    reduce.hears(1, Some(large(1, NodeId(2))));
    let steps = reduce.hears(2, Some(large(2, NodeId(3))));
    assert_eq!(folded(&steps), [instance(1), instance(2)]);
}

#[test]
fn an_input_that_was_lost_and_comes_back_is_folded() {
    let mut reduce = reduce(3, 2, None);
    let detail = "its only holder is gone".to_string();
    let error = Error::ObjectLost { id: input(0), detail };
    assert_eq!(reduce.hears_of_the_end(0, &error), []);
    reduce.hears(2, None);
    let mut steps = reduce.hears(1, Some(large(1, NodeId(2))));
    steps.extend(reduce.hears(0, Some(large(0, NodeId(3)))));
    assert_eq!(folded(&steps), [instance(0), instance(1)]);
}

#[test]
fn too_few_possible_inputs_are_an_error_that_names_the_lost() {
    let mut reduce = reduce(3, 2, None);
    assert_eq!(reduce.hears_gone(0), []);
    let steps = reduce.hears_gone(2);
    let gone = vec![input(0), input(2)];
    assert_eq!(steps, [Step::Fail(Error::TooFewInputs { count: 2, possible: 1, gone })]);
}

#[test]
fn a_reduce_of_all_inputs_fails_with_the_error_of_the_first_lost_one() {
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

/// Goal: after any failure nothing of the attempt remains, and the next one folds the inputs that
/// exist then.
#[test]
fn a_failed_attempt_begins_again_with_all_questions() {
    let mut reduce = reduce(2, 2, None);
    (0..2).for_each(|number| drop(reduce.hears(number, Some(large(number, NodeId(2))))));
    let (now, mut steps) = (Instant(2_000_000_000), Vec::new());
    reduce.failed(now, 0, "a stream broke".into(), true, &mut steps);
    let detail = "a stream broke".to_string();
    assert_eq!(steps, [Step::Void { epoch: 0, nodes: vec![NodeId(2)], detail }]);
    steps.clear();
    reduce.failed(now, 0, "another stream of it broke".into(), true, &mut steps);
    assert_eq!(steps, [], "an attempt fails once");
    assert!(reduce.folded().is_empty());
    assert_eq!(reduce.hears(1, None), [], "a former owner replies late");

    let retry = reduce.deadline().expect("it retries");
    assert!(retry > now);
    let asked: BTreeSet<ObjectId> = reduce
        .waits_until(retry, &[])
        .into_iter()
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
fn an_input_that_was_put_again_before_it_was_chosen_is_looked_at_again() {
    let mut reduce = reduce(3, 3, None);
    reduce.hears(0, Some(large(0, NodeId(2))));
    reduce.hears(1, Some(large(1, NodeId(2))));
    let steps = reduce.hears(1, Some(Found { instance: instance(7), ..small(1, 8) }));
    assert!(matches!(steps[..], [Step::Fail(Error::ShapeMismatch { .. })]), "{steps:?}");
}

#[test]
fn the_only_input_may_be_put_again_in_another_shape() {
    let mut reduce = reduce(2, 1, None);
    reduce.hears(0, Some(large(0, NodeId(2))));
    let again = || Some(Found { instance: instance(7), ..small(0, 8) });
    assert!(matches!(reduce.hears(0, again())[..], [Step::FoldInline(_)]));
    assert_eq!(reduce.folded(), [input(0)]);
}

#[test]
fn a_lost_input_that_is_put_again_counts_as_possible() {
    let mut reduce = reduce(4, 3, None);
    (0..3).for_each(|number| assert_eq!(reduce.hears(number, Some(large(number, ME))), []));
    assert_eq!(reduce.hears_gone(1), []);
    assert_eq!(reduce.lost(), [input(1)]);
    assert_eq!(reduce.hears(1, Some(Found { instance: instance(7), ..large(1, ME) })), []);
    assert_eq!(reduce.lost(), []);
    assert!(!reduce.hears_gone(3).is_empty(), "every owner has replied: the fold begins");
    assert_eq!(reduce.folded(), [input(0), input(2), input(1)], "in order of arrival");
    assert_eq!(reduce.hears_gone(0), [], "its bytes are pinned");
    assert_eq!(reduce.lost(), [input(3)]);
}

#[test]
fn announcing_an_instance_twice_has_no_effect() {
    let mut reduce = reduce(1, 1, None);
    reduce.hears(0, Some(large(0, NodeId(2))));
    assert_eq!(reduce.hears(0, Some(large(0, NodeId(3)))), []);
    assert_eq!(reduce.epoch(), 0);
}

#[test]
fn a_timeout_names_the_missing_inputs() {
    let mut reduce = reduce(3, 3, None);
    reduce.hears(0, Some(large(0, NodeId(2))));
    reduce.hears(1, None);
    reduce.hears(2, None);
    let steps = reduce.waits_until(Instant(5_000_000_000), &[]);
    let [Step::Fail(error)] = &steps[..] else { panic!("{steps:?}") };
    let text = error.to_string();
    for part in ["after 4 s", "1 of 3 inputs arrived", ".1,", ".2"] {
        assert!(text.contains(part), "{text}");
    }
}

const HUGE: u64 = 32 << 20;

fn huge(number: usize, holder: u64) -> Found {
    Found { meta: array(HUGE), ..large(number, NodeId(holder)) }
}

/// The nodes that fold a part, from the steps of a reduce; `None` if it does not run as a ring.
fn contributors(steps: &[Step]) -> Option<Vec<u64>> {
    match steps {
        [Step::StartRing(contributors)] => {
            Some(contributors.iter().map(|contributor| contributor.node.0).collect())
        }
        _ => None,
    }
}

#[test]
fn a_result_wanted_by_its_contributors_runs_as_a_ring() {
    let mut reduce = reduce(4, 4, None);
    let askers = [2, 4, 6];
    for number in 0..3 {
        assert_eq!(
            reduce.hears_among(&askers, number, Some(huge(number, 2 * number as u64 + 2))),
            []
        );
    }
    let steps = reduce.hears_among(&askers, 3, Some(huge(3, ME.0)));
    assert_eq!(contributors(&steps), Some(vec![ME.0, 2, 4, 6]));
    assert_eq!(reduce.nodes().len(), 4);
    assert_eq!(reduce.folded().len(), 4);
    assert_eq!(reduce.deadline(), Some(Instant(5_000_000_000)), "only its own");
}

#[test]
fn an_unwanted_result_or_a_forced_degree_runs_as_a_tree() {
    for (askers, holders, degree) in
        [(&[][..], [2, 4, 6, 8], None), (&[2, 4, 6, 8], [2, 4, 6, 8], Some(Degree::Chain))]
    {
        let mut reduce = reduce(4, 4, degree);
        let steps: Vec<Step> = (0..4)
            .flat_map(|number| {
                reduce.hears_among(askers, number, Some(huge(number, holders[number])))
            })
            .collect();
        assert_eq!(folded(&steps).len(), 4, "{askers:?}, {holders:?}");
    }
}

#[test]
fn the_ring_leaves_each_rack_once() {
    let mut reduce = reduce(8, 8, None);
    let askers: Vec<u64> = (2..10).collect();
    let steps: Vec<Step> = (0..8)
        .flat_map(|number| {
            reduce.hears_among(&askers, number, Some(huge(number, 2 + number as u64)))
        })
        .collect();
    let ring = contributors(&steps).expect("all want it");
    let next = ring.iter().cycle().skip(1);
    let apart =
        ring.iter().zip(next).filter(|(a, b)| members().distance(NodeId(**a), NodeId(**b)) > 0);
    assert_eq!(apart.count(), 2, "{ring:?}");
}

/// Goal: a reduce waits a moment for a late input that allows a ring, and no longer.
#[test]
fn the_last_input_is_waited_for_a_moment() {
    let askers = [2, 4, 6];
    // An object of the size of a window: a tree folds the existing inputs while the last one is
    // missing.
    let medium =
        |number: usize, holder: u64| Found { meta: array(WINDOW_BYTES), ..huge(number, holder) };
    for comes_in_time in [true, false] {
        let mut reduce = reduce(4, 4, None);
        assert_eq!(reduce.hears_among(&askers, 3, None), []);
        for number in 0..3 {
            let found = medium(number, 2 * number as u64 + 2);
            assert_eq!(reduce.hears_among(&askers, number, Some(found)), []);
        }
        let until = reduce.deadline().expect("it waits");
        let moment = until.since(Instant(2_000_000_000));
        assert!((600_000..1_300_000).contains(&moment), "2 MiB at 1 Gbit/s: {moment} ns");
        if comes_in_time {
            let steps = reduce.hears_among(&askers, 3, Some(medium(3, 8)));
            assert_eq!(contributors(&steps), Some(vec![2, 4, 6, 8]));
            assert_eq!(reduce.waits_until(until, &askers), []);
        } else {
            let mut steps = reduce.waits_until(until, &askers);
            assert!(matches!(steps[..], [Step::DegreeChosen(..), ..]), "{steps:?}");
            steps.extend(reduce.hears_among(&askers, 3, Some(medium(3, 8))));
            assert_eq!(folded(&steps).len(), 4);
        }
    }
}

/// Goal: folds that could only fill their windows do not begin, and leave the links to the
/// transfers behind the missing inputs.
#[test]
fn a_large_sum_begins_with_its_last_input() {
    let mut reduce = reduce(6, 4, None);
    (4..6).for_each(|number| assert_eq!(reduce.hears(number, None), []));
    for number in 0..3 {
        let found = huge(number, 2 * number as u64 + 2);
        assert_eq!(reduce.hears(number, Some(found)), []);
    }
    assert_eq!(reduce.deadline(), Some(Instant(5_000_000_000)), "its own");
    // A lost input does not begin the reduce.
    assert_eq!(reduce.hears_gone(1), []);
    assert_eq!(reduce.hears(3, Some(huge(3, 8))), []);
    let steps = reduce.hears(4, Some(huge(4, 10)));
    assert_eq!(folded(&steps).len(), 4);
}

/// Goal: the eviction of an input on the caller before the last input arrives does not restart the
/// reduce.
#[test]
fn an_input_that_was_evicted_meanwhile_is_looked_up_again() {
    let mut reduce = reduce(3, 3, None);
    for (number, holder) in [(0, ME.0), (1, 2)] {
        assert_eq!(reduce.hears(number, Some(huge(number, holder))), []);
    }
    let mut steps = Vec::new();
    let (members, now) = (members(), Instant(2_000_000_000));
    let (holds, wants) = (|held: Instance| held != instance(0), |_| false);
    let (members, link, slice) = (&members, LINK, SLICE);
    let context = PlanContext { members, holds: &holds, link, wants: &wants, slice };
    reduce.found(now, &input(2), Some(huge(2, 4)), context, &mut steps);
    assert_eq!(steps, [Step::Watch(input(0))]);
    let steps = reduce.hears(0, Some(huge(0, 6)));
    assert_eq!(folded(&steps).len(), 3);
}

#[test]
fn a_late_request_for_the_result_counts() {
    let mut reduce = reduce(4, 4, None);
    for number in 0..4 {
        let found = huge(number, 2 * number as u64 + 2);
        assert_eq!(reduce.hears_among(&[4], number, Some(found)), []);
    }
    let mut steps = Vec::new();
    let now = Instant(2_000_000_001);
    context(&[4, 6], |context| reduce.asked(now, context, &mut steps));
    assert_eq!(contributors(&steps), Some(vec![2, 4, 6, 8]));
}

#[test]
fn the_attempt_after_a_scattered_one_is_a_tree() {
    let mut reduce = reduce(3, 3, None);
    let askers = [2, 4, 6];
    let hears = |reduce: &mut Reduce, number: usize| {
        reduce.hears_among(&askers, number, Some(huge(number, 2 * number as u64 + 2)))
    };
    let steps: Vec<Step> = (0..3).flat_map(|number| hears(&mut reduce, number)).collect();
    assert!(contributors(&steps).is_some());
    let mut steps = Vec::new();
    reduce.failed(Instant(2_000_000_000), 0, "a part was lost".into(), true, &mut steps);
    let nodes = vec![NodeId(2), NodeId(4), NodeId(6)];
    let detail = "a part was lost".to_string();
    assert_eq!(steps, [Step::Void { epoch: 0, nodes, detail }]);
    let steps: Vec<Step> = (0..3).flat_map(|number| hears(&mut reduce, number)).collect();
    assert_eq!(folded(&steps).len(), 3);
}

/// A reduce of the first three of five inputs, on nodes 2, 3 and 4. Node 3 sends nothing.
fn held_up_by_three(spares: &[(usize, u64)]) -> (Reduce, Vec<Step>) {
    let mut reduce = reduce(5, 3, Some(Degree::Chain));
    (0..5).for_each(|number| drop(reduce.hears(number, None)));
    for (number, node) in [(0, 2), (1, 3), (2, 4)] {
        reduce.hears(number, Some(large(number, NodeId(node))));
    }
    for (number, node) in spares {
        reduce.hears(*number, Some(large(*number, NodeId(*node))));
    }
    // 1 <- 4 <- 3 <- 2.
    let now = Instant(3_000_000_000);
    let mut probes = Vec::new();
    reduce.stall_reported(now, ME, NodeId(4), &mut probes);
    reduce.stall_reported(now, NodeId(4), NodeId(3), &mut probes);
    reduce.stall_reported(now, NodeId(4), NodeId(9), &mut probes);
    assert_eq!(probes, [Step::Probe(NodeId(4)), Step::Probe(NodeId(3))], "node 9 has no seat");
    reduce.answered(NodeId(4));
    let steps = reduce.waits_until(reduce.deadline().unwrap(), &[]);
    (reduce, steps)
}

#[test]
fn a_silent_node_gives_its_seat_to_an_input_that_is_there() {
    let (reduce, steps) = held_up_by_three(&[(3, 5)]);
    assert!(
        matches!(&steps[0], Step::Void { epoch: 0, detail, .. } if detail.contains("is unresponsive"))
    );
    assert_eq!(reduce.epoch(), 1);
    let mut expected = vec![instance(0), instance(2), instance(3)];
    let mut folded = folded(&steps[1..]);
    folded.sort_unstable();
    expected.sort_unstable();
    assert_eq!(folded, expected, "at once, without asking anybody again");
    assert_eq!(reduce.folded().len(), 3);
}

#[test]
fn a_sum_that_needs_the_silent_node_waits_for_it() {
    let (reduce, steps) = held_up_by_three(&[]);
    assert_eq!((reduce.epoch(), steps), (0, vec![]));
    let (reduce, steps) = held_up_by_three(&[(3, 3)]);
    assert_eq!((reduce.epoch(), steps), (0, vec![]), "the only spare is at the same node");
}

#[test]
fn only_a_node_that_may_be_lost_is_waited_for() {
    let pause = |is_lost: bool| {
        let mut reduce = reduce(2, 2, None);
        (0..2).for_each(|number| drop(reduce.hears(number, Some(large(number, NodeId(2))))));
        let now = Instant(2_000_000_000);
        reduce.failed(now, 0, "it failed".into(), is_lost, &mut Vec::new());
        reduce.deadline().expect("it retries").since(now)
    };
    assert_eq!((pause(true), pause(false)), (40_000_000, 2_000_000));
}

//! Ring reduces, whose results the contributors want.

use super::*;

/// Each of the nodes 1 to `contributors` has put an input, and all nodes wait for the id that node
/// 1 has reserved.
struct Sum {
    cluster: Cluster,
    inputs: Vec<ObjectId>,
    result: ObjectId,
    gets: Vec<(u64, RequestId)>,
}

impl Sum {
    fn new(nodes: u64, contributors: impl Iterator<Item = u64>) -> Self {
        let mut cluster = Cluster::new(nodes);
        // The caller owns these names, so it gets their reports even if a seat is slow.
        let mut put = |node: u64| {
            let name = cluster.owned_name(1, nodes, &format!("input{node}"));
            cluster.put_large(node, Some(&name))
        };
        let inputs: Vec<ObjectId> = contributors.map(&mut put).collect();
        let request = cluster.ask(1, Request::Reserve { name: None });
        let Ok(Reply::Reserved { id }) = cluster.reply(request) else { panic!() };
        let result = id.clone();
        let gets = (1..=nodes).map(|node| (node, cluster.get(node, &result))).collect();
        Self { cluster, inputs, result, gets }
    }

    fn reduce(&mut self, count: u32) {
        let (inputs, id) = (self.inputs.clone(), Some(self.result.clone()));
        let request =
            self.cluster.ask(1, Request::Reduce { inputs, op: Op::Sum, count, id, ttl_ns: None });
        assert!(matches!(self.cluster.reply(request), Ok(Reply::Reducing { .. })));
    }

    /// The nodes and the parts that they folded.
    fn parts(&self) -> BTreeSet<(NodeId, u32)> {
        self.cluster.folds.iter().map(|(node, order)| (*node, order.key.segment)).collect()
    }

    /// Asserts that all remaining nodes got the same instance, and that nothing is left.
    fn assert_got(mut self) {
        let instances: BTreeSet<Instance> = self
            .gets
            .iter()
            .filter(|(node, _)| self.cluster.nodes.contains_key(&NodeId(*node)))
            .map(|(_, request)| got(self.cluster.reply(*request)))
            .collect();
        assert_eq!(instances.len(), 1, "{instances:?}");
        for (node, request) in core::mem::take(&mut self.gets) {
            if self.cluster.nodes.contains_key(&NodeId(node)) {
                let instance = got(self.cluster.reply(request));
                self.cluster.ask(node, Request::Release { instance });
            }
        }
        self.cluster.assert_at_rest();
    }
}

#[test]
fn everybody_folds_for_every_part_and_has_all() {
    let mut sum = Sum::new(4, 1..=4);
    sum.reduce(4);
    let all = (1..=4).flat_map(|node| (0..4).map(move |part| (NodeId(node), part)));
    assert_eq!(sum.parts(), all.collect());
    assert_eq!(sum.cluster.folds.len(), 16, "each once");
    sum.assert_got();
}

#[test]
fn a_caller_without_an_input_only_passes_parts_on() {
    let mut sum = Sum::new(4, 2..=4);
    sum.reduce(3);
    let contributors: BTreeSet<NodeId> = sum.parts().into_iter().map(|(node, _)| node).collect();
    assert_eq!(contributors, BTreeSet::from([2, 3, 4].map(NodeId)));
    sum.assert_got();
}

/// Goal: whichever node fails before the result is complete, all others get the fold of the
/// remaining inputs. Method: a seat that has not received its order fails, for each seat except the
/// caller.
#[test]
fn a_seat_that_dies_is_replaced_by_a_spare() {
    for dies in 2..=4 {
        // The spare is on the caller, whose input is requested last.
        let mut sum = Sum::new(5, [2, 3, 4, 1].into_iter());
        sum.cluster.slow_down(dies);
        sum.reduce(3);
        assert!(!sum.cluster.replies.contains_key(&sum.gets[0].1), "it waits for node {dies}");
        sum.cluster.slow = None;
        sum.cluster.kill(dies);
        for _ in 0..4 {
            sum.cluster.wait(SECOND);
        }
        sum.assert_got();
    }
}

#[test]
fn an_order_that_comes_twice_is_carried_out_once() {
    let mut sum = Sum::new(3, 1..=3);
    sum.cluster.slow_down(2);
    sum.reduce(3);
    let (_, waiting) = sum.cluster.slow.as_mut().expect("node 2 is slow");
    let is_order =
        |event: &&Event| matches!(event, Event::Message { message: Message::RingReduce(_), .. });
    let order = waiting.iter().find(is_order).cloned().expect("it is ordered");
    waiting.push_back(order);
    sum.cluster.catch_up();
    assert_eq!(sum.cluster.folds.len(), 9);
    sum.assert_got();
}

/// Goal: a leaving seat first folds its parts, whether the order or the leave request arrives
/// first.
#[test]
fn a_seat_that_leaves_makes_its_part_first() {
    for is_ordered in [true, false] {
        let mut sum = Sum::new(4, 1..=4);
        let leave = Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS };
        sum.cluster.slow_down(3);
        sum.reduce(4);
        let (_, waiting) = sum.cluster.slow.as_mut().expect("node 3 is slow");
        let at = if is_ordered { waiting.len() } else { 0 };
        waiting.insert(at, leave);
        sum.cluster.catch_up();
        assert_eq!(sum.cluster.folds.len(), 16, "each once");
        assert!(sum.cluster.has_left(3));
        // Readers that received the result from it find another source.
        for _ in 0..4 {
            sum.cluster.wait(SECOND);
        }
        assert_eq!(sum.cluster.done.iter().find(|what| what.contains("again")), None);
        sum.assert_got();
    }
}

#[test]
fn a_result_that_is_deleted_leaves_no_parts() {
    let mut sum = Sum::new(3, 1..=3);
    sum.cluster.slow_down(2);
    sum.reduce(3);
    sum.cluster.ask(3, Request::Delete { ids: vec![sum.result.clone()] });
    sum.cluster.catch_up();
    sum.cluster.wait(SECOND);
    for (_, request) in &sum.gets {
        assert!(matches!(sum.cluster.reply(*request), Err(Error::ObjectDeleted { .. })));
    }
    assert!((1..=3).all(|node| !sum.cluster.has(node, &sum.result)));
    sum.cluster.assert_at_rest();
}

/// All seats except the coordinator have the whole result; the coordinator has received nothing
/// since its orders.
fn undecided(nodes: u64, contributors: impl Iterator<Item = u64>, count: u32) -> Sum {
    let mut sum = Sum::new(nodes, contributors);
    sum.cluster.slow_down(2);
    sum.reduce(count);
    let (_, waiting) = sum.cluster.slow.take().expect("node 2 is slow");
    sum.cluster.slow_down(1);
    waiting.into_iter().for_each(|event| sum.cluster.tell(2, event));
    let is_answered = |(_, get): &(u64, RequestId)| sum.cluster.replies.contains_key(get);
    let answered: Vec<_> = sum.gets.iter().filter(|get| is_answered(get)).collect();
    assert!(answered.is_empty(), "{answered:?}: before the coordinator has it, it may become void");
    sum
}

#[test]
fn no_reader_gets_a_result_that_may_fail() {
    let mut sum = undecided(3, 1..=3, 3);
    sum.cluster.catch_up();
    sum.assert_got();
}

/// Goal: all get the same result, even if a failed seat had the whole result of the first attempt.
#[test]
fn a_seat_that_dies_before_the_coordinator_has_all_makes_it_void() {
    let mut sum = undecided(5, [2, 3, 4, 1].into_iter(), 3);
    // Its failure is detected before any other event, and none of its messages arrive after that;
    // the others keep their order.
    let (slow, mut waiting) = sum.cluster.slow.take().expect("node 1 is slow");
    sum.cluster.nodes.remove(&NodeId(3));
    waiting.retain(|event| !matches!(event, Event::Message { from: NodeId(3), .. }));
    waiting.push_front(Event::PeerUnreachable { node: NodeId(3), is_dead: true });
    sum.cluster.queue.extend(waiting.into_iter().map(|event| (slow, event)));
    for other in [2, 4, 5] {
        sum.cluster.tell(other, Event::PeerUnreachable { node: NodeId(3), is_dead: true });
    }
    for _ in 0..4 {
        sum.cluster.wait(SECOND);
    }
    let folded: BTreeSet<u32> =
        sum.cluster.folds.iter().map(|(_, order)| order.key.epoch).collect();
    assert_eq!(folded, BTreeSet::from([0, 1]));
    sum.assert_got();
}

#[test]
fn a_complete_result_survives_the_coordinator() {
    let mut sum = undecided(4, 1..=4, 4);
    sum.cluster.slow = None;
    sum.cluster.kill(1);
    sum.assert_got();
}

#[test]
fn a_seat_that_missed_the_end_requests_it() {
    let mut sum = undecided(3, 1..=3, 3);
    let (_, waiting) = sum.cluster.slow.take().expect("node 1 is slow");
    // Node 3 does not receive the end from the coordinator, but receives its messages as the owner.
    sum.cluster.deaf = Some(NodeId(3));
    waiting.into_iter().for_each(|event| sum.cluster.tell(1, event));
    sum.assert_got();
}

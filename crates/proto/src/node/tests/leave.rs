//! A leaving node finishes its folds, and no reduce restarts because of it.

use super::*;

const LEAVE: Event = Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS };

impl Cluster {
    fn reduce(&mut self, node: u64, inputs: &[ObjectId]) -> ObjectId {
        let (inputs, count) = (inputs.to_vec(), inputs.len() as u32);
        let answer =
            self.asks(node, Request::Reduce { inputs, op: Op::Sum, count, id: None, ttl_ns: None });
        let Ok(Reply::Reducing { id }) = answer else { panic!("{answer:?}") };
        id
    }

    fn assert_reduced(&mut self, node: u64, id: &ObjectId) {
        let request = self.get(node, id);
        let instance = got(self.reply(request));
        self.ask(node, Request::Release { instance });
        let again = self.done.iter().find(|what| what.contains("begins a reduce again"));
        assert_eq!(again, None);
        self.assert_at_rest();
    }
}

#[test]
fn it_stays_until_its_folds_are_over() {
    let mut cluster = Cluster::new(4);
    let late = named("late");
    let mut inputs: Vec<ObjectId> = (2..=4).map(|node| cluster.put_large(node, None)).collect();
    inputs.push(late);
    cluster.keeps_folding = true;
    let id = cluster.reduce(1, &inputs);
    cluster.tell(3, LEAVE);
    assert!(cluster.folds.iter().any(|(node, _)| *node == NodeId(3)));
    assert!(!cluster.has_left(3), "an input is missing");
    cluster.put_large(2, Some("late"));
    assert!(!cluster.has_left(3), "it folds");
    cluster.end_folds();
    assert!(cluster.has_left(3));
    cluster.assert_reduced(2, &id);
}

/// Goal: an input that only a leaving node has is folded on the node that adopts it.
/// Method: a fold of another reduce keeps the leaving node from ending.
#[test]
fn no_reduce_that_begins_then_takes_a_seat_there() {
    let mut cluster = Cluster::new(4);
    cluster.keeps_folding = true;
    let kept: Vec<ObjectId> = (2..=3).map(|node| cluster.put_large(node, None)).collect();
    let first = cluster.reduce(1, &kept);
    let more: Vec<ObjectId> = [2, 3, 3].map(|node| cluster.put_large(node, None)).into();
    cluster.tell(3, LEAVE);
    let before = cluster.folds.len();
    let second = cluster.reduce(4, &more);
    let contributors: BTreeSet<NodeId> =
        cluster.folds[before..].iter().map(|(node, _)| *node).collect();
    assert!(!contributors.is_empty() && !contributors.contains(&NodeId(3)), "{contributors:?}");
    assert!(!cluster.has_left(3));
    cluster.end_folds();
    assert!(cluster.has_left(3));
    cluster.assert_reduced(4, &first);
    cluster.assert_reduced(1, &second);
}

/// Goal: an input that was found on a leaving node and is not folded yet is found again on the node
/// that adopts it. Method: the owner of one input is slow, so that the reduce has not begun. In one
/// variant the adopting node is slow too.
#[test]
fn a_reduce_that_has_not_begun_looks_for_its_inputs_again() {
    for adopter_is_slow in [false, true] {
        let mut cluster = Cluster::new(4);
        let name = cluster.owned_name(4, 1, "input");
        let inputs = [cluster.put_large(2, Some(&name)), cluster.put_large(3, None)];
        cluster.slow_down(4);
        let id = cluster.reduce(1, &inputs);
        assert!(cluster.folds.is_empty(), "node 4 has not said what there is of {name}");
        cluster.tell(3, LEAVE);
        if !adopter_is_slow {
            cluster.hear_of_leaving();
        }
        cluster.catch_up();
        assert!(cluster.has_left(3));
        assert!(!cluster.folds.iter().any(|(node, _)| *node == NodeId(3)));
        cluster.wait(OWNER_TIMEOUT_NS);
        cluster.assert_reduced(2, &id);
    }
}

#[test]
fn a_leaving_node_executes_earlier_orders() {
    let mut cluster = Cluster::new(3);
    cluster.keeps_folding = true;
    // The coordinator gets reports about a name of another owner without node 3.
    let name = cluster.owned_name(1, 2, "input");
    let inputs = [cluster.put_large(2, None), cluster.put_large(3, Some(&name))];
    cluster.slow_down(3);
    let id = cluster.reduce(1, &inputs);
    let (_, waiting) = cluster.slow.as_mut().expect("node 3 is slow");
    let is_order =
        |event: &Event| matches!(event, Event::Message { message: Message::Fold(_), .. });
    assert!(waiting.iter().any(is_order));
    waiting.push_front(LEAVE);
    cluster.catch_up();
    assert!(cluster.folds.iter().any(|(node, _)| *node == NodeId(3)));
    assert!(!cluster.has_left(3));
    cluster.end_folds();
    assert!(cluster.has_left(3));
    cluster.assert_reduced(2, &id);
}

#[test]
fn small_inputs_are_folded_after_their_holder_has_left() {
    let mut cluster = Cluster::new(3);
    let inputs = [cluster.put_small(3, None), named("late")];
    let id = cluster.reduce(1, &inputs);
    cluster.tell(3, LEAVE);
    assert!(cluster.has_left(3));
    cluster.put_small(2, Some("late"));
    cluster.assert_reduced(2, &id);
}

#[test]
fn it_waits_no_longer_than_it_may() {
    let mut cluster = Cluster::new(3);
    let inputs: Vec<ObjectId> = (2..=3).map(|node| cluster.put_large(node, None)).collect();
    cluster.keeps_folding = true;
    let id = cluster.reduce(1, &inputs);
    let timeout_ns = 3 * SECOND;
    cluster.tell(3, Event::LeaveRequested { timeout_ns });
    assert_eq!(cluster.nodes[&NodeId(3)].deadline(), Some(cluster.now + timeout_ns));
    cluster.wait(timeout_ns - 1);
    assert!(!cluster.has_left(3));
    cluster.wait(1);
    assert!(cluster.has_left(3));
    // The reduce continues with the adopted copy.
    cluster.folding.retain(|(node, _)| *node != NodeId(3));
    cluster.end_folds();
    cluster.wait(SECOND);
    let request = cluster.get(2, &id);
    got(cluster.reply(request));
}

#[test]
fn a_member_that_dies_is_not_waited_for() {
    let mut cluster = Cluster::new(3);
    cluster.slow_down(2);
    cluster.tell(3, LEAVE);
    assert!(!cluster.has_left(3), "node 2 has not said whether it needs node 3");
    cluster.slow = None;
    cluster.kill(2);
    assert!(cluster.has_left(3));
}

/// Goal: a leaving coordinator ends its reduces, and stops the nodes that fold for them.
#[test]
fn the_reduces_of_its_own_clients_fail() {
    let mut cluster = Cluster::new(3);
    let inputs: Vec<ObjectId> = (2..=3).map(|node| cluster.put_large(node, None)).collect();
    cluster.keeps_folding = true;
    let id = cluster.reduce(1, &inputs);
    let waits = cluster.get(2, &id);
    cluster.tell(1, LEAVE);
    assert!(cluster.has_left(1));
    assert!(matches!(cluster.reply(waits), Err(Error::NodeDown(said)) if said.contains("left")));
    cluster.end_folds();
    cluster.assert_at_rest();
}

/// Goal: if the adopting node leaves too, the object goes to another node.
#[test]
fn two_that_leave_at_once_hand_over_to_one_that_stays() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(2, 3, "x/1");
    let id = cluster.put_large(3, Some(&name));
    cluster.slow_down(2);
    cluster.tell(3, LEAVE);
    let (_, waiting) = cluster.slow.as_mut().expect("node 2 is slow");
    waiting.push_back(LEAVE);
    cluster.catch_up();
    assert!(cluster.has_left(2) && cluster.has_left(3));
    let request = cluster.get(1, &id);
    got(cluster.reply(request));
}

/// Goal: no event of a leaving node handles all of its copies.
#[test]
fn its_copies_are_handed_over_a_slice_at_a_time() {
    let slice = Slice { entries: 2, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(3, 1 << 30, slice);
    let ids: Vec<ObjectId> = (0..5).map(|_| cluster.put_large(3, None)).collect();
    let handed_over = |cluster: &Cluster| {
        let is_elsewhere = |id: &&ObjectId| (1..=2).any(|node| cluster.has(node, id));
        ids.iter().filter(is_elsewhere).count()
    };
    cluster.tell(3, LEAVE);
    assert_eq!(handed_over(&cluster), 2);
    for count in [4, 5] {
        assert!(!cluster.has_left(3));
        cluster.wait(slice.pause_ns);
        assert_eq!(handed_over(&cluster), count);
    }
    // It looks at all of its copies and entries once more.
    let mut slices = 0;
    while !cluster.has_left(3) && slices < 10 {
        cluster.wait(slice.pause_ns);
        slices += 1;
    }
    assert!((5..10).contains(&slices), "{slices}");
    assert_eq!(cluster.lost[&NodeId(3)], LostObjects::default());
    cluster.assert_at_rest();
}

/// Goal: a leaving node whose time is over reports the copies that it has not handed over, in
/// slices too.
#[test]
fn copies_that_no_slice_has_reached_in_time_are_lost() {
    let slice = Slice { entries: 2, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(3, 1 << 30, slice);
    let ids: Vec<ObjectId> = (0..5).map(|_| cluster.put_large(3, None)).collect();
    cluster.tell(3, Event::LeaveRequested { timeout_ns: slice.pause_ns / 2 });
    cluster.wait(slice.pause_ns / 2);
    (0..8).for_each(|_| cluster.wait(slice.pause_ns));
    assert!(cluster.has_left(3));
    assert_eq!(cluster.lost[&NodeId(3)].ids, ids[2..], "only the first slice is taken");
}

/// Goal: no event of a leaving node passes on all deletions, and all are passed on before it
/// leaves.
#[test]
fn deletions_are_passed_on_a_slice_at_a_time() {
    let slice = Slice { entries: 4, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(3, 1 << 30, slice);
    let mut passed_on = BTreeSet::new();
    for number in 0..40 {
        let id = cluster.put_small(3, Some(&format!("deleted{number}/1")));
        let request = cluster.ask(1, Request::Delete { ids: vec![id] });
        cluster.reply(request);
    }
    let (mut node, mut now) = (cluster.nodes.remove(&NodeId(3)).expect("node 3"), cluster.now);
    let (mut actions, mut longest, mut event) = (Vec::new(), 0, LEAVE);
    loop {
        node.handle(now, event, &mut actions);
        let drained = (1..3).map(|from| (NodeId(from), Message::Drained));
        for (from, message) in drained {
            node.handle(now, Event::Message { from, message }, &mut actions);
        }
        let (mut count, mut has_left) = (0, false);
        for action in actions.drain(..) {
            has_left |= matches!(action, Action::Left { .. });
            if let Action::Send { message: Message::Tombstone { id, .. }, .. } = action {
                passed_on.insert(id);
                count += 1;
            }
        }
        longest = longest.max(count);
        if has_left {
            break;
        }
        now = node.deadline().expect("it leaves").max(now);
        event = Event::DeadlinePassed;
    }
    assert!(!passed_on.is_empty() && longest <= 2 * slice.entries, "{longest}");
}

/// Goal: a copy that the first member refuses goes to another one, and a replica that exists
/// counts.
#[test]
fn a_replica_elsewhere_suffices() {
    let mut cluster = Cluster::new(2);
    let id = cluster.put_large(2, None);
    let request = cluster.ask(2, Request::Replicate { id: id.clone(), replicas: 2 });
    assert!(cluster.reply(request).is_ok());
    let before = cluster.fetches.len();
    cluster.tell(2, LEAVE);
    assert!(cluster.has_left(2) && cluster.has(1, &id));
    assert_eq!(cluster.fetches.len(), before);
    assert_eq!(cluster.lost[&NodeId(2)], LostObjects::default());
}

/// Goal: the copy of a leaving node is not lost because a failed node counts as its keeper.
/// Method: node 3 leaves right after the failure, while it still repeats its leases.
#[test]
fn a_replica_on_a_failed_node_does_not_suffice() {
    let slice = Slice { entries: 1, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(3, 1 << 30, slice);
    for number in 0..5 {
        cluster.ask(3, Request::AcquireLease { id: named(&format!("lease{number}/1")) });
    }
    let id = cluster.put_large(3, None);
    let request = cluster.ask(3, Request::Replicate { id: id.clone(), replicas: 2 });
    assert_eq!(cluster.reply(request), &Ok(Reply::Replicated { replicas: 2 }));
    let keeper = if cluster.has(1, &id) { 1 } else { 2 };
    cluster.kill(keeper);
    cluster.tell(3, LEAVE);
    assert!(cluster.has(3 - keeper, &id));
    let request = cluster.ask(3, Request::Replicate { id: id.clone(), replicas: 2 });
    assert!(cluster.reply(request).is_err(), "it leaves");
    for _ in 0..30 {
        cluster.wait(slice.pause_ns);
    }
    assert!(cluster.has_left(3) && cluster.has(3 - keeper, &id));
    assert_eq!(cluster.lost[&NodeId(3)], LostObjects::default());
}

/// Goal: a client is not told that there are replicas which a failed node had.
#[test]
fn a_replica_on_a_failed_node_does_not_count() {
    let slice = Slice { entries: 1, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(3, 1 << 30, slice);
    for number in 0..5 {
        cluster.ask(3, Request::AcquireLease { id: named(&format!("lease{number}/1")) });
    }
    let id = cluster.put_large(3, None);
    let wanted = Request::Replicate { id: id.clone(), replicas: 2 };
    let request = cluster.ask(3, wanted.clone());
    assert_eq!(cluster.reply(request), &Ok(Reply::Replicated { replicas: 2 }));
    let keeper = if cluster.has(1, &id) { 1 } else { 2 };
    cluster.kill(keeper);
    let request = cluster.ask(3, wanted);
    assert_eq!(cluster.reply(request), &Ok(Reply::Replicated { replicas: 2 }));
    assert!(cluster.has(3 - keeper, &id));
}

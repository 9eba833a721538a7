//! Tests of arrivals: what becomes of their sources, and what is left of them.

use super::{arrival::pause_ns, *};
use crate::{
    meta::{Meta, Op},
    rate::STALL_NS,
};

const NOW: Instant = Instant(1_000_000_000);
const REQUEST: RequestId = RequestId(7);
const COORDINATOR: NodeId = NodeId(1);
const SOURCE: NodeId = NodeId(3);
const COPY: Instance = Instance { node: NodeId(1), serial: 5 };

fn id() -> ObjectId {
    ObjectId::Minted { node: NodeId(2), serial: 1 }
}

/// A range that waits for a source.
fn range() -> (Incoming, ArrivalId) {
    let mut incoming = Incoming::default();
    incoming.begin_range(REQUEST, id(), Selection::default());
    let range = incoming.of_request(REQUEST).expect("it has begun");
    let of = Instance { node: NodeId(2), serial: 1 };
    incoming.update(range, |it| it.set_place(RangePlace { of, start: 100, size: 50 }));
    incoming.admit(range, COPY, None);
    (incoming, range)
}

/// A whole object that waits for memory.
fn whole() -> (Incoming, ArrivalId) {
    let mut incoming = Incoming::default();
    let whole = incoming.begin_whole(&id());
    incoming.admit(whole, COPY, Some(SOURCE));
    (incoming, whole)
}

#[test]
fn a_failed_source_is_avoided_and_retries_back_off() {
    for (mut incoming, arrival) in [whole(), range()] {
        let (mut now, mut located_at) = (NOW, None);
        for failures in 1..4 {
            let not_here = incoming.update(arrival, |it| it.locate(now)).flatten();
            let requested_then = located_at.replace(now);
            assert_eq!(not_here, requested_then.map(|then| (SOURCE, then)));
            assert_eq!(incoming.avoided(arrival).len(), usize::from(failures > 1));
            let fetch = incoming.begin_fetch(arrival, SOURCE, 50, now);
            assert_eq!(incoming.get(arrival).and_then(Arrival::source), Some(SOURCE));
            assert_eq!(incoming.fetches_from(SOURCE), [fetch]);
            assert_eq!(incoming.end_fetch(fetch), Some((arrival, SOURCE)));
            assert_eq!(incoming.end_fetch(fetch), None, "once");
            let failed = incoming.update(arrival, |it| it.failed(SOURCE, true, now));
            assert_eq!(failed, Some(failures == 1));
            let until = incoming.deadline().expect("it pauses");
            assert_eq!(until, now + pause_ns(failures));
            assert_eq!(incoming.due(until), [arrival]);
            now = until;
        }
        assert_eq!(incoming.avoided(arrival), [SOURCE]);
    }
}

#[test]
fn members_that_send_corrupt_blocks_are_avoided_for_every_object() {
    let (mut incoming, arrival) = whole();
    let told = (0..2 * CORRUPT_BLOCKS_MAX).filter_map(|_| incoming.block_corrupt(NodeId(3)));
    assert_eq!(told.collect::<Vec<_>>(), [CORRUPT_BLOCKS_MAX], "reported once");
    assert_eq!(incoming.avoided(arrival), [NodeId(3)]);
    incoming.forget_node(NodeId(3));
    assert!(incoming.avoided(arrival).is_empty());
}

#[test]
fn the_owner_that_reported_a_range_last_chooses_its_source() {
    let (mut incoming, range) = range();
    for owner in [NodeId(3), NodeId(4)] {
        incoming.update(range, |it| it.locate(NOW));
        let mut report = || incoming.update(range, |it| it.reported(owner)).flatten();
        assert_eq!(report(), None, "it does not wait for a report");
        incoming.update(range, |it| it.phase = Phase::Watching);
        let reported = incoming.update(range, |it| it.reported(owner)).flatten();
        assert_eq!(reported.and_then(|range| range.owner), Some(owner));
    }
}

#[test]
fn a_copy_is_fetched_when_all_its_transfers_have_ended() {
    let (mut incoming, arrival) = whole();
    let fetches = [3, 4].map(|node| incoming.begin_fetch(arrival, NodeId(node), 50, NOW));
    assert!(incoming.end_fetch(fetches[0]).is_some());
    assert!(!incoming.get(arrival).is_some_and(Arrival::is_fetched));
    assert!(incoming.end_fetch(fetches[1]).is_some());
    assert!(incoming.get(arrival).is_some_and(Arrival::is_fetched));
}

#[test]
fn nothing_is_left_of_an_ended_arrival() {
    for (mut incoming, arrival) in [whole(), range()] {
        incoming.begin_fetch(arrival, SOURCE, 50, NOW);
        assert_eq!(incoming.of_copy(COPY), Some(arrival));
        assert_eq!(incoming.end_fetches(arrival).len(), 1);
        assert_eq!(incoming.end(arrival).and_then(|ended| ended.copy), Some(COPY));
        assert!(incoming.end(arrival).is_none());
        assert!(incoming.of_copy(COPY).is_none() && incoming.of_object(&id()).is_none());
        assert!(incoming.of_request(REQUEST).is_none() && incoming.by_fetch.is_empty());
        assert_eq!((incoming.counts(), incoming.deadline()), ((0, 0), None));
    }
}

fn order(serial: u64) -> RingOrder {
    let reduce = ReduceId { node: COORDINATOR, serial: 1 };
    let instance = Instance { node: COORDINATOR, serial };
    let id = ObjectId::Minted { node: COORDINATOR, serial: 1 };
    let (meta, op, frame) = (Meta::bytes(1 << 20), Op::Sum, 1 << 16);
    let contributors = Vec::from([(NodeId(2), Vec::new())]);
    RingOrder { reduce, epoch: 0, id, instance, meta, op, frame, contributors }
}

#[test]
fn an_order_is_carried_out_once() {
    let mut incoming = Incoming::default();
    assert!(incoming.is_new(&order(5)) && !incoming.is_new(&order(5)));
    assert!(!incoming.is_new(&order(4)) && incoming.is_new(&order(6)));
    incoming.forget_node(COORDINATOR);
    assert!(incoming.is_new(&order(5)), "it is another process, or begins anew");
}

#[test]
fn a_result_is_complete_when_it_is_all_here_and_the_coordinator_has_it() {
    let (mut incoming, order) = (Incoming::default(), order(5));
    let (instance, reduce, id) = (order.instance, order.reduce, order.id.clone());
    incoming.begin_parts(order, None, NodeId(2));
    assert_eq!(incoming.of_epoch(reduce, 0), Some(instance));
    assert_eq!(incoming.up_to(reduce, 3), [instance]);
    let arrival = incoming.of_object(&id).expect("readers wait for it");
    let fetch = incoming.begin_fetch(arrival, COORDINATOR, 1 << 20, NOW);
    assert!(incoming.fetches_from(COORDINATOR).is_empty(), "no other node can send its parts");
    assert!(!incoming.decide(instance), "a part is missing");
    assert!(incoming.end_fetch(fetch).is_some() && incoming.decide(instance));
    assert!(incoming.end_parts(instance).is_some_and(|parts| parts.is_decided));
    assert!(incoming.of_epoch(reduce, 0).is_none() && incoming.up_to(reduce, 3).is_empty());
    assert!(incoming.object(&id).is_some_and(Arrival::is_whole), "its readers get it");
}

#[test]
fn a_transfer_that_waits_for_its_turn_is_not_stalled() {
    let (mut incoming, arrival) = whole();
    let fetch = incoming.begin_fetch(arrival, SOURCE, 50, NOW);
    assert_eq!(incoming.deadline(), Some(NOW + STALL_NS));
    incoming.queued(fetch);
    assert_eq!(incoming.deadline(), None);
    let late = NOW + 10 * STALL_NS;
    incoming.started(fetch, late);
    assert_eq!(incoming.deadline(), Some(late + STALL_NS));
    let stalled = incoming.stalled(arrival, late + STALL_NS).map(|(_, due)| due);
    assert_eq!(stalled, Some(StallReport::ToPrimary));
    // Another source, whose transfers this one need not wait for.
    incoming.end_fetch(fetch);
    incoming.queued(fetch);
    incoming.begin_fetch(arrival, NodeId(4), 50, late);
    assert_eq!(incoming.deadline(), Some(late + STALL_NS), "measured from its start");
}

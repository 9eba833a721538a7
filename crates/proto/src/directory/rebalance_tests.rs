//! Slow and stalled nodes in a broadcast, as reported by their receivers.

use alloc::vec::Vec;

use super::{
    speeds::Speeds,
    tests::{
        Owner, SIZE, announced, fed_by, instance, locate, locate_with, located, minted, no_source,
    },
    *,
};
use crate::{
    id::{NodeId, ObjectId},
    message::{Message, Progress, RateReport, ReceiveRate, Source},
    rate::Rate,
    reduce::cost::Link,
    time::Instant,
};

const MS: u64 = 1_000_000;
/// Receive rate of healthy nodes in bytes per second, and a tenth of it.
const WELL: u64 = 60_000_000;
const SLOW: u64 = 6_000_000;

/// Node 3 has an object, and the receivers form a chain behind it.
fn chain(receivers: &[u64]) -> (Owner, ObjectId) {
    let (mut owner, id) = (Owner::new(), minted());
    owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    for receiver in receivers {
        joins(&mut owner, &id, *receiver);
    }
    (owner, id)
}

/// Requests a source and begins to receive from it.
fn joins(owner: &mut Owner, id: &ObjectId, receiver: u64) -> u64 {
    let source = owner.source_of(receiver, id).expect("a source");
    owner.receives(receiver, announced(id, instance(3, 1), false, fed_by(source)));
    source
}

/// Requests a source, and reports a receive rate.
fn requests(owner: &mut Owner, requester: u64, id: &ObjectId, receives: ReceiveRate) -> Outbox {
    owner.receives(requester, locate_with(id, |locate| locate.receives = receives))
}

fn sent_to(outbox: &Outbox, requester: u64) -> Option<u64> {
    let mut sent = outbox.iter().filter(|(to, _)| *to == NodeId(requester));
    sent.find_map(|(_, message)| match located(message)?.source {
        Source::Holder { node, .. } => Some(node.0),
        Source::Inline(_) => None,
    })
}

/// Sends the report of a receiver; returns the source that it is redirected to.
fn reports(
    owner: &mut Owner,
    id: &ObjectId,
    (receiver, source): (u64, u64),
    rate: u64,
    usual: Option<u64>,
) -> Option<u64> {
    redirected(owner.receives(receiver, rate_reported(id, source, rate, usual)), receiver)
}

fn rate_reported(id: &ObjectId, source: u64, rate: u64, usual: Option<u64>) -> Message {
    Message::RateReport(RateReport {
        id: id.clone(),
        instance: instance(3, 1),
        source: NodeId(source),
        rate: Rate { bytes_per_second: rate, shares: 1 },
        missing: SIZE,
        usual,
    })
}

fn redirected(outbox: Outbox, receiver: u64) -> Option<u64> {
    outbox.into_iter().find_map(|(to, message)| match message {
        Message::Redirect { source, .. } if to == NodeId(receiver) => Some(source.0),
        _ => None,
    })
}

#[test]
fn a_requester_gets_no_source_that_reports_to_be_slow() {
    let (mut owner, id) = chain(&[2]);
    owner.waits(50 * MS);
    assert_eq!(
        reports(&mut owner, &id, (2, 3), SLOW, Some(WELL)),
        None,
        "there is no other source"
    );
    assert_eq!(joins(&mut owner, &id, 4), 3, "next to a slow receiver");
    assert_eq!(joins(&mut owner, &id, 5), 4, "the next receives from the healthy one");
}

/// Goal: an owner that has received nothing yet, or is slow itself, learns from the requester which
/// nodes are slow.
#[test]
fn the_usual_rate_of_a_requester_reveals_a_slow_relay() {
    for (usual, sender) in [(Some(WELL), 3), (Some(2 * SLOW), 2)] {
        let (mut owner, id) = chain(&[2]);
        owner.waits(50 * MS);
        assert_eq!(reports(&mut owner, &id, (2, 3), SLOW, None), None);
        let outbox = requests(&mut owner, 4, &id, ReceiveRate { slowness: 1, usual });
        assert_eq!(sent_to(&outbox, 4), Some(sender), "{usual:?}");
    }
}

/// Goal: in a cluster that has moved nothing, a slow first receiver delays only itself.
#[test]
fn a_receiver_about_which_nothing_is_known_is_compared_with_the_next() {
    let (mut owner, id) = chain(&[2]);
    owner.waits(50 * MS);
    reports(&mut owner, &id, (2, 3), SLOW, None);
    assert_eq!(joins(&mut owner, &id, 4), 3, "next to it");
    assert_eq!(joins(&mut owner, &id, 5), 4, "only one is compared with it");
    owner.waits(50 * MS);
    assert_eq!(reports(&mut owner, &id, (4, 3), WELL, None), None);
    assert_eq!(joins(&mut owner, &id, 6), 5, "the slow one stays a leaf");
}

#[test]
fn a_receiver_behind_one_about_which_nothing_is_known_is_compared_with_it() {
    let (mut owner, id) = chain(&[2, 4, 5]);
    owner.waits(50 * MS);
    assert_eq!(reports(&mut owner, &id, (2, 3), SLOW, None), None);
    assert_eq!(reports(&mut owner, &id, (5, 4), SLOW, None), Some(3));
    assert_eq!(reports(&mut owner, &id, (4, 2), SLOW, None), None, "only one is");
}

#[test]
fn a_compared_receiver_goes_behind_the_first_if_the_root_s_link_is_full() {
    let (mut owner, id) = chain(&[2]);
    owner.waits(50 * MS);
    reports(&mut owner, &id, (2, 3), WELL, None);
    assert_eq!(joins(&mut owner, &id, 4), 3);
    owner.waits(50 * MS);
    reports(&mut owner, &id, (2, 3), WELL / 2, None);
    assert_eq!(reports(&mut owner, &id, (4, 3), WELL / 2, None), Some(2));
    owner.waits(50 * MS);
    assert_eq!(reports(&mut owner, &id, (4, 2), WELL, None), None);
    assert_eq!(joins(&mut owner, &id, 5), 4, "nothing is compared again");
}

/// Goal: two slow receivers that come first delay no other.
#[test]
fn two_receivers_that_leave_the_root_s_link_free_are_compared_with_a_third() {
    let (mut owner, id) = chain(&[2]);
    owner.waits(50 * MS);
    reports(&mut owner, &id, (2, 3), SLOW, None);
    assert_eq!(joins(&mut owner, &id, 4), 3);
    assert_eq!(joins(&mut owner, &id, 5), 4);
    owner.waits(70 * MS);
    reports(&mut owner, &id, (2, 3), SLOW, None);
    assert_eq!(reports(&mut owner, &id, (4, 3), SLOW, None), None);
    assert_eq!(reports(&mut owner, &id, (5, 4), SLOW, None), Some(3));
}

/// Goal: slow nodes do not show each other to be healthy.
#[test]
fn two_slow_branches_prove_nothing_about_each_other() {
    let (mut owner, id) = chain(&[]);
    for receiver in [2, 4] {
        requests(&mut owner, receiver, &id, ReceiveRate { slowness: 10, usual: None });
        owner.receives(receiver, announced(&id, instance(3, 1), false, fed_by(3)));
    }
    owner.waits(50 * MS);
    for receiver in [2, 4, 2] {
        reports(&mut owner, &id, (receiver, 3), SLOW, Some(SLOW));
    }
    assert_eq!(joins(&mut owner, &id, 5), 3, "they are still slow");
}

#[test]
fn the_link_is_measured_by_the_owner_or_else_by_the_requester() {
    let assumed = Link { latency_ns: 50_000, bytes_per_second: 1_250_000_000 };
    let mut speeds = Speeds::default();
    assert_eq!(speeds.link_of(NodeId(4), assumed), assumed);
    speeds.rate_reported(Instant(0), NodeId(4), ReceiveRate { slowness: 1, usual: Some(WELL) });
    assert_eq!(speeds.link_of(NodeId(4), assumed), Link { bytes_per_second: WELL, ..assumed });
    assert_eq!(speeds.link_of(NodeId(5), assumed), assumed);
    speeds.usual = Some(assumed.bytes_per_second);
    assert_eq!(speeds.link_of(NodeId(4), assumed), assumed);
}

/// Goal: one incident proves nothing; two mark a node for 2 s, and longer each time they repeat at
/// once.
#[test]
fn two_incidents_mark_a_slow_sender_and_retries_back_off() {
    let (node, at) = (NodeId(2), |ms: u64| Instant(ms * MS));
    let mut speeds = Speeds::default();
    speeds.sends_slowly(at(100), node, 10, at(50));
    speeds.sends_slowly(at(120), node, 10, at(50));
    speeds.sends_slowly(at(150), node, 10, at(90));
    assert_eq!(speeds.sent_slowness(at(200), node), 1, "one incident, seen by two receivers");
    speeds.sends_slowly(at(11_000), node, 10, at(10_900));
    assert_eq!(speeds.sent_slowness(at(11_000), node), 1, "the first was long ago");
    speeds.sends_slowly(at(12_000), node, 10, at(11_900));
    assert_eq!(speeds.sent_slowness(at(12_000), node), 10);
    speeds.sends_slowly(at(12_100), node, 10, at(11_950));
    assert_eq!(speeds.sent_slowness(at(13_999), node), 10);
    assert_eq!(speeds.sent_slowness(at(14_000), node), 1, "it is tried again");
    speeds.sends_slowly(at(14_500), node, 10, at(14_300));
    assert_eq!(speeds.sent_slowness(at(18_499), node), 10, "for twice as long");
    assert_eq!(speeds.sent_slowness(at(18_500), node), 1);
    speeds.sends_well(at(18_550), node);
    for incident in [18_000, 18_400, 18_550] {
        speeds.sends_slowly(at(18_600), node, 10, at(incident));
    }
    assert_eq!(speeds.sent_slowness(at(18_600), node), 1, "earlier incidents are void");
}

/// Goal: a host whose link was slow in both directions is a relay again after the first object that
/// it receives well.
#[test]
fn a_node_that_receives_well_again_sends_well_too() {
    let (node, at) = (NodeId(2), |ms: u64| Instant(ms * MS));
    let mut speeds = Speeds::default();
    for ms in [1000, 2000] {
        speeds.sends_slowly(at(ms), node, 10, at(ms));
    }
    speeds.is_quick(at(2100), node);
    assert_eq!(speeds.sent_slowness(at(2100), node), 10, "it never received slowly");
    speeds.receives_slowly(at(2200), node, 10);
    speeds.rate_reported(at(2250), node, ReceiveRate { slowness: 1, usual: None });
    assert_eq!(speeds.sent_slowness(at(2250), node), 10, "it may not have received the report yet");
    speeds.receives_slowly(at(2260), node, 10);
    speeds.is_quick(at(2300), node);
    assert_eq!(speeds.sent_slowness(at(2300), node), 1);
}

/// Goal: transfers that share a link are no evidence against the hosts at its ends.
#[test]
fn a_receiver_that_shares_a_link_is_neither_moved_nor_slow() {
    for (shares, moved_to) in [(1, Some(3)), (4, None)] {
        let (mut owner, id) = chain(&[2, 4]);
        owner.waits(50 * MS);
        reports(&mut owner, &id, (2, 3), WELL, Some(WELL));
        owner.waits(100 * MS);
        let Message::RateReport(rate_reported) =
            rate_reported(&id, 2, WELL / 10 * 3 / 2, Some(WELL))
        else {
            unreachable!("it is a report")
        };
        let rate = Rate { shares, ..rate_reported.rate };
        let outbox = owner.receives(4, Message::RateReport(RateReport { rate, ..rate_reported }));
        assert_eq!(redirected(outbox, 4), moved_to, "{shares} transfers share the link");
    }
}

#[test]
fn a_receiver_behind_a_slow_node_is_moved_and_those_behind_it_stay() {
    let (mut owner, id) = chain(&[2, 4, 5]);
    owner.waits(100 * MS);
    assert_eq!(reports(&mut owner, &id, (2, 3), SLOW, Some(SLOW)), None);
    assert_eq!(reports(&mut owner, &id, (4, 2), SLOW, Some(WELL)), Some(3));
    assert_eq!(
        reports(&mut owner, &id, (5, 4), SLOW, Some(WELL)),
        None,
        "its source has just been moved"
    );
    owner.waits(100 * MS);
    assert_eq!(reports(&mut owner, &id, (4, 3), WELL, Some(WELL)), None);
    assert_eq!(reports(&mut owner, &id, (5, 4), WELL, Some(WELL)), None);
}

#[test]
fn no_receiver_is_moved_between_equal_nodes() {
    let (mut owner, id) = chain(&[2, 4, 5]);
    for _ in 0..5 {
        owner.waits(100 * MS);
        for link in [(2, 3), (4, 2), (5, 4)] {
            assert_eq!(reports(&mut owner, &id, link, WELL, Some(WELL)), None);
        }
    }
}

#[test]
fn a_node_slower_than_another_branch_is_notified() {
    let (mut owner, id) = chain(&[2]);
    owner.waits(50 * MS);
    reports(&mut owner, &id, (2, 3), SLOW, Some(WELL));
    assert_eq!(joins(&mut owner, &id, 4), 3);
    owner.waits(200 * MS);
    reports(&mut owner, &id, (4, 3), WELL, None);
    let outbox = owner.receives(2, rate_reported(&id, 3, SLOW, None));
    let slow = Message::MarkSlow { times: 10, bytes_per_second: SLOW };
    assert!(outbox.contains(&(NodeId(2), slow)), "{outbox:?}");
}

/// Goal: a slow receiver is notified while another receiver shows that its source is healthy. It is
/// not moved to a relay of that source, where it would look like the slow end of the only branch.
#[test]
fn a_slow_receiver_of_a_healthy_source_stays_and_is_notified() {
    let (mut owner, id) = chain(&[2]);
    owner.waits(50 * MS);
    reports(&mut owner, &id, (2, 3), SLOW, Some(WELL));
    assert_eq!(joins(&mut owner, &id, 4), 3);
    assert_eq!(joins(&mut owner, &id, 5), 4);
    owner.waits(50 * MS);
    reports(&mut owner, &id, (4, 3), WELL, None);
    let outbox = owner.receives(2, rate_reported(&id, 3, SLOW, Some(SLOW)));
    let slow = Message::MarkSlow { times: 10, bytes_per_second: SLOW };
    assert!(outbox.contains(&(NodeId(2), slow)), "{outbox:?}");
    assert_eq!(redirected(outbox, 2), None);
    owner.waits(100 * MS);
    assert_eq!(
        reports(&mut owner, &id, (2, 3), SLOW, Some(SLOW)),
        None,
        "a relay would not be faster"
    );
}

#[test]
fn a_node_that_reports_to_be_slow_is_a_leaf() {
    for (slowness, sender) in [(10, 3), (1, 2)] {
        let (mut owner, id) = chain(&[]);
        requests(&mut owner, 2, &id, ReceiveRate { slowness, usual: None });
        owner.waits(100 * MS);
        owner.receives(2, announced(&id, instance(3, 1), false, fed_by(3)));
        assert_eq!(joins(&mut owner, &id, 4), sender, "node 2 is {slowness} times slower");
    }
}

/// Goal: a node that was slow delays no other, whether it is still slow or not.
#[test]
fn a_node_that_reports_to_be_slow_yields() {
    let slow = ReceiveRate { slowness: 10, usual: None };
    let (mut owner, id) = chain(&[]);
    let outbox = requests(&mut owner, 2, &id, slow);
    assert_eq!(sent_to(&outbox, 2), None);
    assert!(outbox.contains(&no_source(2, &id)));
    assert_eq!((joins(&mut owner, &id, 4), joins(&mut owner, &id, 5)), (3, 4));
    assert_eq!(sent_to(&owner.waits(100 * MS), 2), Some(5), "at the end of the chain");
    // A requester whose source has failed has yielded already.
    let again = locate_with(&id, |locate| {
        (locate.avoid, locate.receives) = (Vec::from([NodeId(5)]), slow);
    });
    assert!(sent_to(&owner.receives(2, again), 2).is_some());
}

#[test]
fn a_node_that_repeats_its_lookup_yields_once() {
    let (mut owner, id) = chain(&[]);
    let is_sent = (0..100).any(|_| {
        let outbox = requests(&mut owner, 2, &id, ReceiveRate { slowness: 10, usual: None });
        sent_to(&outbox, 2).or_else(|| sent_to(&owner.waits(MS), 2)).is_some()
    });
    assert!(is_sent);
    owner.receives(2, announced(&id, instance(3, 1), false, fed_by(3)));
    let outbox = requests(&mut owner, 2, &id, ReceiveRate { slowness: 10, usual: None });
    assert_eq!(sent_to(&outbox, 2), Some(3), "a node with a partial copy does not yield");
}

#[test]
fn nodes_that_wait_for_a_put_yield_to_each_other_too() {
    let (mut owner, id) = (Owner::new(), minted());
    requests(&mut owner, 2, &id, ReceiveRate { slowness: 10, usual: None });
    requests(&mut owner, 4, &id, ReceiveRate { slowness: 1, usual: None });
    let outbox = owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!((sent_to(&outbox, 2), sent_to(&outbox, 4)), (None, Some(3)));
    owner.receives(4, announced(&id, instance(3, 1), false, fed_by(3)));
    assert_eq!(sent_to(&owner.waits(100 * MS), 2), Some(4));
}

#[test]
fn a_slow_node_at_its_usual_rate_is_still_a_leaf() {
    let (mut owner, id) = chain(&[]);
    requests(&mut owner, 2, &id, ReceiveRate { slowness: 10, usual: None });
    owner.waits(100 * MS);
    owner.receives(2, announced(&id, instance(3, 1), false, fed_by(3)));
    owner.waits(50 * MS);
    reports(&mut owner, &id, (2, 3), SLOW, Some(SLOW));
    assert_eq!(joins(&mut owner, &id, 4), 3);
}

#[test]
fn the_rate_of_a_growing_copy_marks_no_node() {
    let (mut owner, id) = (Owner::new(), minted());
    owner.receives(3, announced(&id, instance(3, 1), true, Progress::Partial { source: None }));
    for receiver in [2, 4] {
        joins(&mut owner, &id, receiver);
    }
    owner.waits(200 * MS);
    assert_eq!(reports(&mut owner, &id, (2, 3), SLOW, Some(WELL)), None);
    assert_eq!(reports(&mut owner, &id, (4, 2), SLOW, Some(WELL)), None);
    assert_eq!(joins(&mut owner, &id, 5), 4, "the chain continues");
}

#[test]
fn a_receiver_of_an_unresponsive_source_is_moved_to_another() {
    let (mut owner, id) = chain(&[2, 4, 5]);
    owner.waits(1000 * MS);
    assert_eq!(
        reports(&mut owner, &id, (4, 2), 0, None),
        None,
        "the source may be stalled itself and report that"
    );
    assert_eq!(reports(&mut owner, &id, (5, 4), 0, None), None);
    let outbox = owner.waits(60 * MS);
    assert_eq!(redirected(outbox.clone(), 4), Some(3));
    assert_eq!(
        redirected(outbox, 5),
        Some(4),
        "its source is alive: it stays, and the reply confirms its report"
    );
    let (mut owner, id) = chain(&[2]);
    owner.waits(1000 * MS);
    reports(&mut owner, &id, (2, 3), 0, None);
    let outbox = owner.waits(60 * MS);
    assert_eq!(redirected(outbox, 2), Some(3), "there is no other source");
}

#[test]
fn a_copy_that_grows_slowly_at_its_maker_moves_no_receiver() {
    let (mut owner, id) = (Owner::new(), minted());
    owner.receives(3, announced(&id, instance(3, 1), true, Progress::Partial { source: None }));
    joins(&mut owner, &id, 2);
    joins(&mut owner, &id, 4);
    owner.waits(1000 * MS);
    reports(&mut owner, &id, (2, 3), 0, None);
    reports(&mut owner, &id, (4, 2), 0, None);
    let outbox = owner.waits(60 * MS);
    assert_eq!((redirected(outbox.clone(), 2), redirected(outbox, 4)), (Some(3), Some(2)));
}

#[test]
fn a_stalled_node_is_a_source_again_after_its_next_message() {
    let (mut owner, id) = chain(&[2, 4]);
    owner.waits(1000 * MS);
    reports(&mut owner, &id, (4, 2), 0, None);
    assert_eq!(redirected(owner.waits(60 * MS), 4), Some(3));
    assert_ne!(owner.source_of(5, &id), Some(2));
    owner.receives(2, locate(&id));
    owner.receives(2, announced(&id, instance(3, 1), false, Progress::Complete));
    owner.receives(5, Message::Decline { id: id.clone() });
    assert_eq!(owner.source_of(5, &id), Some(2), "complete and idle");
}

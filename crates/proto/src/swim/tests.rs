//! A group of members whose rumors arrive at once, except those that a test drops.

use alloc::{collections::VecDeque, vec};

use super::*;
use crate::{limits::DEPARTED_MAX, members::Member};

const SECOND: u64 = 1_000_000_000;
const DETECTION: u64 = 3 * SECOND;
const STEP: u64 = 10_000_000;

struct Group {
    now: Instant,
    all: BTreeMap<NodeId, (Swim, Members)>,
    /// Members that do not run.
    frozen: Vec<NodeId>,
    /// Pairs of sender and receiver between which all messages are lost.
    cut: Vec<(NodeId, NodeId)>,
    said: Vec<(NodeId, NodeId, SwimMessage)>,
    /// When each member declared which other dead.
    deaths: Vec<(Instant, NodeId, DetectedFailure)>,
}

impl Group {
    fn new(size: u64) -> Self {
        let member = |number| Member {
            id: NodeId(number),
            address: ([10, 0, 0, number as u8], 7420).into(),
            place: None,
        };
        let now = Instant(SECOND);
        let one = |number: u64| {
            let mut members = Members::new(member(number));
            for other in (1..=size).filter(|other| *other != number) {
                members.insert(member(other));
            }
            let mut swim = Swim::new(NodeId(number), Some(DETECTION));
            swim.members_changed(now, &members);
            (NodeId(number), (swim, members))
        };
        let all = (1..=size).map(one).collect();
        let (frozen, cut, said, deaths) = (vec![], vec![], vec![], vec![]);
        Self { now, all, frozen, cut, said, deaths }
    }

    fn run(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + STEP;
            for node in self.all.keys().copied().collect::<Vec<_>>() {
                self.wake(node);
            }
        }
    }

    fn wake(&mut self, node: NodeId) {
        if self.frozen.contains(&node) {
            return;
        }
        let Some((swim, members)) = self.all.get_mut(&node) else { return };
        if swim.deadline().is_none_or(|due| due > self.now) {
            return;
        }
        let mut outbox = Vec::new();
        for death in swim.expire(self.now, members, &mut outbox) {
            members.remove(death.node);
            swim.members_changed(self.now, members);
            self.deaths.push((self.now, node, death));
        }
        self.deliver(node, outbox);
    }

    fn deliver(&mut self, from: NodeId, outbox: Outbox) {
        let mut queue: VecDeque<_> = outbox.into_iter().map(|(to, it)| (from, to, it)).collect();
        while let Some((from, to, message)) = queue.pop_front() {
            self.said.push((from, to, message));
            if self.frozen.contains(&to) || self.cut.contains(&(from, to)) {
                continue;
            }
            let Some((swim, members)) = self.all.get_mut(&to) else { continue };
            let mut outbox = Vec::new();
            swim.responded(from);
            swim.handle(self.now, from, message, members, &mut outbox);
            queue.extend(outbox.into_iter().map(|(next, it)| (to, next, it)));
        }
    }

    /// The members that declared `node` dead.
    fn mourners(&self, node: u64) -> Vec<u64> {
        let of = self.deaths.iter().filter(|(_, _, death)| death.node == NodeId(node));
        let mut all: Vec<u64> = of.map(|(_, by, _)| by.0).collect();
        all.sort_unstable();
        all
    }

    fn cut_off(&mut self, node: u64) {
        for other in self.all.keys().copied().filter(|other| other.0 != node) {
            self.cut.extend([(NodeId(node), other), (other, NodeId(node))]);
        }
    }
}

#[test]
fn no_member_is_suspected_while_all_reply() {
    let mut group = Group::new(8);
    group.run(60 * SECOND);
    assert!(group.deaths.is_empty());
    assert!(group.all.values().all(|(swim, _)| swim.suspicions().next().is_none()));
    // Each node sends a probe and an ack in each round, and one more pair in every fourth. A member
    // that is already being probed gets no second probe.
    let rounds = 8 * 2 * 120;
    assert!((rounds..=rounds + rounds / 4).contains(&group.said.len()), "{}", group.said.len());
}

#[test]
fn a_frozen_member_is_declared_dead_by_all_in_time_and_once() {
    for frozen in 1..=8 {
        let mut group = Group::new(8);
        group.run(10 * SECOND + frozen * 70_000_000);
        let since = group.now;
        group.frozen.push(NodeId(frozen));
        group.run(20 * SECOND);
        let others: Vec<u64> = (1..=8).filter(|other| *other != frozen).collect();
        assert_eq!(group.mourners(frozen), others);
        let last = group.deaths.iter().map(|(at, _, _)| at.since(since)).max().unwrap();
        assert!(last <= DETECTION, "{last} ns");
        assert_eq!(group.deaths.len(), 7, "{:?}", group.deaths);
        assert_eq!(group.deaths.iter().filter(|(_, _, death)| death.found_here).count(), 1);
        let (_, _, death) = &group.deaths[0];
        assert!(death.reason.contains("3.0 s"), "{}", death.reason);
    }
}

#[test]
fn a_cluster_of_two_detects_a_failure() {
    let mut group = Group::new(2);
    group.frozen.push(NodeId(2));
    group.run(DETECTION + STEP);
    assert_eq!(group.mourners(2), [1]);
}

#[test]
fn a_member_that_wakes_in_time_refutes_the_suspicion() {
    let mut group = Group::new(5);
    group.frozen.push(NodeId(3));
    group.run(2 * SECOND);
    assert!(group.all[&NodeId(1)].0.suspicions().any(|(node, _)| node == NodeId(3)));
    group.frozen.clear();
    // It receives the suspicion that was sent meanwhile.
    let message = SwimMessage::Suspect { node: NodeId(3), incarnation: 0 };
    group.deliver(NodeId(1), vec![(NodeId(3), message)]);
    group.run(20 * SECOND);
    assert!(group.deaths.is_empty(), "{:?}", group.deaths);
    assert!(group.all.values().all(|(swim, _)| swim.suspicions().next().is_none()));
    assert_eq!(group.all[&NodeId(1)].0.incarnation_of(NodeId(3)), 1);
    assert!(group.all[&NodeId(1)].0.is_refuted(NodeId(3), 0));
}

#[test]
fn a_pause_of_this_process_declares_no_other_dead() {
    let mut group = Group::new(4);
    group.run(SECOND);
    group.frozen.push(NodeId(2));
    // All others are paused too: the test is about what node 2 concludes about them.
    group.frozen.extend([NodeId(1), NodeId(3), NodeId(4)]);
    group.run(60 * SECOND);
    group.frozen.clear();
    group.run(20 * SECOND);
    assert!(group.deaths.is_empty(), "{:?}", group.deaths);
}

#[test]
fn a_member_that_only_its_prober_cannot_reach_stays_alive() {
    let mut group = Group::new(5);
    group.cut.extend([(NodeId(1), NodeId(2)), (NodeId(2), NodeId(1))]);
    group.run(60 * SECOND);
    assert!(group.deaths.is_empty(), "{:?}", group.deaths);
}

#[test]
fn a_partitioned_member_and_the_others_declare_each_other_dead() {
    let mut group = Group::new(5);
    group.cut_off(4);
    group.run(30 * SECOND);
    assert_eq!(group.mourners(4), [1, 2, 3, 5]);
    let of_4 = group.deaths.iter().filter(|(_, by, _)| *by == NodeId(4));
    assert_eq!(of_4.map(|(_, _, death)| death.node.0).collect::<Vec<_>>().len(), 4);
    assert_eq!(group.deaths.len(), 8);
}

#[test]
fn neighbors_that_freeze_together_are_all_detected() {
    let mut group = Group::new(8);
    group.run(SECOND);
    let since = group.now;
    group.frozen.extend([NodeId(4), NodeId(5), NodeId(6)]);
    group.run(20 * SECOND);
    for node in 4..=6 {
        assert_eq!(group.mourners(node), [1, 2, 3, 7, 8]);
    }
    let last = group.deaths.iter().map(|(at, _, _)| at.since(since)).max().unwrap();
    assert!(last <= 2 * DETECTION, "{last} ns");
}

/// Goal: a member that its neighbor in the ring does not know is probed all the same.
#[test]
fn a_member_that_only_some_know_is_probed_by_them() {
    let mut group = Group::new(5);
    // Its predecessor in the order of ids lost it, and notifies no other.
    let (swim, members) = group.all.get_mut(&NodeId(2)).unwrap();
    members.remove(NodeId(3));
    swim.members_changed(Instant(SECOND), members);
    group.frozen.push(NodeId(3));
    group.run(5 * 4 * DETECTION);
    assert_eq!(group.mourners(3), [1, 4, 5]);
}

#[test]
fn a_refutation_reaches_members_that_cannot_reach_the_suspect() {
    let mut group = Group::new(4);
    group.cut.extend([(NodeId(1), NodeId(2)), (NodeId(2), NodeId(1))]);
    let (swim, members) = group.all.get_mut(&NodeId(1)).unwrap();
    let mut outbox = Vec::new();
    // Two parts of the detection time, in which its own probe and the indirect ones have no ack.
    swim.probe_now(group.now, NodeId(2), members, &mut outbox);
    for part in 1..=2 {
        swim.expire(group.now + part * DETECTION / 6, members, &mut outbox);
    }
    assert!(swim.suspicions().any(|(node, _)| node == NodeId(2)));
    group.now = group.now + DETECTION / 3;
    let suspect = SwimMessage::Suspect { node: NodeId(2), incarnation: 0 };
    group.deliver(NodeId(1), vec![(NodeId(3), suspect)]);
    assert!(group.all[&NodeId(1)].0.suspicions().next().is_none());
    assert_eq!(group.all[&NodeId(1)].0.incarnation_of(NodeId(2)), 1);
}

#[test]
fn an_old_suspicion_gets_the_known_refutation() {
    let mut group = Group::new(3);
    let message = SwimMessage::Alive { node: NodeId(3), incarnation: 5 };
    group.deliver(NodeId(3), vec![(NodeId(1), message)]);
    let old = SwimMessage::Suspect { node: NodeId(3), incarnation: 4 };
    group.deliver(NodeId(2), vec![(NodeId(1), old)]);
    assert!(group.all[&NodeId(1)].0.suspicions().next().is_none());
    assert_eq!(group.all[&NodeId(2)].0.incarnation_of(NodeId(3)), 5);
}

#[test]
fn a_doubted_member_is_probed_at_once() {
    let mut group = Group::new(4);
    group.frozen.push(NodeId(3));
    let (swim, members) = group.all.get_mut(&NodeId(1)).unwrap();
    let mut outbox = Vec::new();
    swim.probe_now(group.now, NodeId(3), members, &mut outbox);
    swim.probe_now(group.now, NodeId(3), members, &mut outbox);
    assert!(matches!(outbox[..], [(NodeId(3), SwimMessage::Ping { .. })]));
    swim.responded(NodeId(3));
    assert!(swim.probes.is_empty());
}

/// Goal: reports of one member about another neither silence that member nor hide its failure.
#[test]
fn reports_of_others_neither_silence_a_member_nor_keep_it_alive() {
    let mut group = Group::new(4);
    group.run(SECOND);
    let (hostile, victim) = (NodeId(4), NodeId(2));
    let all = ENDED - 1;
    for incarnation in [all, 7, 1, 2, 3, 0] {
        for other in [1, 2, 3].map(NodeId) {
            let suspect = SwimMessage::Suspect { node: victim, incarnation };
            let alive = SwimMessage::Alive { node: victim, incarnation };
            group.deliver(hostile, vec![(other, alive), (other, suspect)]);
        }
        group.run(10 * SECOND);
        assert!(group.deaths.is_empty(), "{:?}", group.deaths);
    }
    group.frozen.push(victim);
    group.run(10 * SECOND);
    assert_eq!(group.mourners(2), [1, 3, 4]);
}

#[test]
fn an_ack_counts_only_from_the_probed_member() {
    let mut group = Group::new(3);
    let (mut outbox, now) = (Vec::new(), group.now);
    let (swim, members) = group.all.get_mut(&NodeId(1)).unwrap();
    swim.probe_now(now, NodeId(2), members, &mut outbox);
    let [(NodeId(2), SwimMessage::Ping { sequence })] = outbox[..] else { panic!("{outbox:?}") };
    swim.handle(now, NodeId(3), SwimMessage::Ack { sequence }, members, &mut outbox);
    assert!(!swim.may_probe(NodeId(2)), "it is still to answer");
    swim.handle(now, NodeId(2), SwimMessage::Ack { sequence }, members, &mut outbox);
    assert!(swim.may_probe(NodeId(2)));
}

#[test]
fn indirect_probes_and_incarnations_of_departed_members_are_limited() {
    let mut group = Group::new(3);
    let now = group.now;
    let (swim, members) = group.all.get_mut(&NodeId(1)).unwrap();
    let mut outbox = Vec::new();
    for sequence in 0..2 * INDIRECT_PROBES_MAX as u64 {
        let body = SwimMessage::PingReq { node: NodeId(2), sequence };
        swim.handle(now, NodeId(3), body, members, &mut outbox);
    }
    assert_eq!(
        (swim.indirect_probes.len(), outbox.len()),
        (INDIRECT_PROBES_MAX, INDIRECT_PROBES_MAX)
    );
    for id in 100..100 + 2 * DEPARTED_MAX as u64 {
        let member = Member { id: NodeId(id), address: ([10, 0, 0, 9], 7420).into(), place: None };
        members.insert(member);
        let alive = SwimMessage::Alive { node: member.id, incarnation: 1 };
        swim.handle(now, member.id, alive, members, &mut outbox);
        members.remove(member.id);
    }
    swim.members_changed(now, members);
    assert!(swim.incarnations.len() <= DEPARTED_MAX, "{}", swim.incarnations.len());
}

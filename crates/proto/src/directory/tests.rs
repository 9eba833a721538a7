//! The directory: messages in, messages out.

use alloc::{
    collections::{BTreeSet, VecDeque},
    format,
    string::ToString,
    vec,
    vec::Vec,
};

use proptest::prelude::*;

use super::*;
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    inline::Inline,
    limits::{MERGE_NS, ORPHAN_GRACE_NS, REMEMBERED_MAX, STRAY_NS, TOMBSTONE_NS},
    members::{Member, Members},
    message::{Announce, Found, Message, Progress, Receives, Source},
    meta::Meta,
    place::{Group, Place},
    reduce::cost::Link,
    time::Instant,
};

pub(super) const SIZE: u64 = 32 << 20;
const SECOND: u64 = 1_000_000_000;

const LINK: Link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };

/// The directory of node 1 in a cluster of five.
pub(super) struct Owner {
    pub(super) directory: Directory,
    pub(super) members: Members,
    pub(super) now: Instant,
}

impl Owner {
    pub(super) fn new() -> Self {
        let member = |id: u64| Member {
            id: NodeId(id),
            address: core::net::SocketAddr::from(([127, 0, 0, 1], id as u16)),
            place: None,
        };
        let mut members = Members::new(member(1));
        (2..=5).for_each(|id| assert!(members.insert(member(id))));
        Self { directory: Directory::default(), members, now: Instant(SECOND) }
    }

    /// What the directory wants sent after `from` has said `message`.
    pub(super) fn hears(&mut self, from: u64, message: Message) -> Mail {
        self.now = self.now + 1000;
        let hears = |directory: &mut Directory, world: &mut World<'_>| {
            directory.handle(world, NodeId(from), &message)
        };
        let (taken, mail) = self.told(hears);
        assert_ne!(taken, Taken::No);
        mail
    }

    /// What the directory answers to a fact, and what it wants sent.
    pub(super) fn told<T>(
        &mut self,
        fact: impl FnOnce(&mut Directory, &mut World<'_>) -> T,
    ) -> (T, Mail) {
        let mut mail = Vec::new();
        let (now, members, link) = (self.now, &self.members, LINK);
        let answer = fact(&mut self.directory, &mut World { now, members, link, mail: &mut mail });
        (answer, mail)
    }

    pub(super) fn loses(&mut self, node: u64) -> Mail {
        self.members.remove(NodeId(node));
        let loses = |directory: &mut Directory, world: &mut World<'_>| {
            directory.member_gone(world, NodeId(node));
            directory.members_changed(world, None);
        };
        self.told(loses).1
    }

    pub(super) fn waits(&mut self, ns: u64) -> Mail {
        self.now = self.now + ns;
        let ((), mut mail) = self.told(Directory::expire);
        while self.directory.deadline().is_some_and(|at| at <= self.now + 1) {
            self.now = self.now + 1;
            mail.extend(self.told(Directory::expire).1);
        }
        mail
    }

    /// Who is named to `asker` as its sender.
    pub(super) fn source_of(&mut self, asker: u64, id: &ObjectId) -> Option<u64> {
        let mail = self.hears(asker, locate(id));
        let [(to, Message::Located { source: Source::Holder { node, .. }, .. })] = &mail[..] else {
            assert_eq!(mail, [(NodeId(asker), Message::Waiting { id: id.clone() })]);
            return None;
        };
        assert_eq!(*to, NodeId(asker));
        Some(node.0)
    }

    /// Who is told of a sender begins to receive, and says so; how many were told of another later. To those who have
    /// `unread` words more are added.
    fn begins_all(&mut self, id: &ObjectId, mail: Mail, unread: &mut Mail) -> usize {
        let mut redirected = 0;
        let mut queue: VecDeque<_> = mail.into();
        while let Some((to, message)) = queue.pop_front() {
            redirected += usize::from(matches!(message, Message::Redirect { .. }));
            if unread.iter().any(|(slow, _)| *slow == to) {
                unread.push((to, message));
                continue;
            }
            let later = queue.iter().rposition(|(other, _)| *other == to);
            let message = later.and_then(|at| queue.remove(at)).map_or(message, |(_, last)| last);
            queue.retain(|(other, _)| *other != to);
            let (source, instance) = match message {
                Message::Located { source: Source::Holder { node, .. }, instance, .. } => {
                    (node, instance)
                }
                Message::Redirect { source, instance, .. } => (source, instance),
                other => panic!("{other:?}"),
            };
            queue.extend(self.hears(to.0, told(id, instance, false, fed_by(source.0))));
        }
        redirected
    }

    pub(super) fn holders(&self, id: &ObjectId) -> Vec<u64> {
        self.directory.holders(id).into_iter().map(|node| node.0).collect()
    }
}

/// Minted by node 1, so that node 1 is its first owner.
pub(super) fn minted() -> ObjectId {
    ObjectId::Minted { node: NodeId(1), serial: 7 }
}

/// A name in a group of its own that node 1 owns first.
fn named(owner: &Owner, suffix: &str) -> ObjectId {
    let names = (0..).map(|group| format!("group{group}/{suffix}").parse().unwrap());
    let is_mine = |id: &ObjectId| owner.members.owners(id).first == NodeId(1);
    names.into_iter().find(is_mine).unwrap()
}

pub(super) fn instance(node: u64, serial: u64) -> Instance {
    Instance { node: NodeId(node), serial }
}

pub(super) fn told(id: &ObjectId, instance: Instance, origin: bool, progress: Progress) -> Message {
    let (id, meta) = (id.clone(), Meta::bytes(SIZE));
    Message::Announce(Announce {
        id,
        instance,
        meta,
        origin,
        progress,
        claim: false,
        lifetime: None,
    })
}

fn claim(id: &ObjectId, instance: Instance) -> Message {
    let progress = Progress::Partial { source: None };
    let Message::Announce(announce) = told(id, instance, true, progress) else { unreachable!() };
    Message::Announce(Announce { claim: true, ..announce })
}

pub(super) fn locate(id: &ObjectId) -> Message {
    Message::Locate {
        id: id.clone(),
        avoid: Vec::new(),
        not_here: None,
        receives: Receives::default(),
        seen: false,
    }
}

pub(super) fn fed_by(node: u64) -> Progress {
    Progress::Partial { source: Some(NodeId(node)) }
}

fn delete(id: &ObjectId) -> Message {
    Message::Delete { id: id.clone(), request: RequestId(1), pruned: false }
}

fn deleted(id: &ObjectId, to: u64) -> (NodeId, Message) {
    (NodeId(to), Message::Deleted { id: id.clone(), request: RequestId(1) })
}

#[test]
fn a_question_before_the_object_is_answered_when_it_comes() {
    let mut owner = Owner::new();
    let id = minted();
    assert_eq!(owner.source_of(2, &id), None);
    let mail = owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete));
    let [(NodeId(2), Message::Located { source, .. })] = &mail[..] else { panic!("{mail:?}") };
    assert!(matches!(source, Source::Holder { node: NodeId(3), .. }));
}

#[test]
fn a_new_owner_has_dropped_what_was_deleted_before_it_heard_of_it() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.hears(2, delete(&id)), [], "a holder may still tell of it");
    let mail = owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete));
    let [(NodeId(3), Message::Drop { instance: dropped, error, .. })] = &mail[..] else {
        panic!("{mail:?}")
    };
    assert_eq!(*dropped, instance(3, 1));
    assert!(matches!(error, Some(Error::ObjectDeleted { .. })));
    let dropped = Message::Dropped { id: id.clone(), instance: instance(3, 1) };
    assert_eq!(owner.hears(3, dropped), [], "others may tell of it too");
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [deleted(&id, 2)]);
    assert!(owner.holders(&id).is_empty());
}

#[test]
fn a_new_owner_has_dropped_all_instances_of_what_was_deleted() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.hears(2, delete(&id)), []);
    for holder in [3, 4] {
        owner.hears(holder, told(&id, instance(holder, 1), true, Progress::Complete));
        assert!(owner.holders(&id).is_empty(), "of node {holder}");
    }
    owner.hears(3, Message::Dropped { id: id.clone(), instance: instance(3, 1) });
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [], "node 4 may still give it to others");
    let dropped = Message::Dropped { id: id.clone(), instance: instance(4, 1) };
    assert_eq!(owner.hears(4, dropped), [deleted(&id, 2)]);
}

#[test]
fn what_is_deleted_before_its_maker_tells_of_it_does_not_come_back_when_that_is_gone() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    assert_eq!(owner.hears(3, told(&id, instance(4, 1), false, Progress::Complete)), []);
    let mail = owner.hears(2, delete(&id));
    assert!(matches!(&mail[..], [(NodeId(3), Message::Drop { .. })]), "{mail:?}");
    owner.loses(4);
    owner.waits(SECOND);
    assert!(owner.holders(&id).is_empty());
    let dropped = Message::Dropped { id: id.clone(), instance: instance(4, 1) };
    assert_eq!(owner.hears(3, dropped), [deleted(&id, 2)]);
}

#[test]
fn what_waits_while_an_owner_catches_up_is_deleted_too() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.directory.catch_up(owner.now);
    assert_eq!(owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete)), []);
    owner.hears(4, delete(&id));
    owner.hears(2, Message::Dropped { id: id.clone(), instance: instance(2, 1) });
    owner.waits(SECOND);
    assert!(owner.holders(&id).is_empty());
    let dropped = Message::Dropped { id: id.clone(), instance: instance(3, 1) };
    assert_eq!(owner.hears(3, dropped), [deleted(&id, 4)]);
}

/// Goal: what an owner knows is older than what it has not heard of.
#[test]
fn a_name_that_was_put_again_elsewhere_is_deleted_by_an_owner_that_remembers_what_it_was_before() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.hears(2, delete(&id));
    owner.hears(2, Message::Dropped { id: id.clone(), instance: instance(2, 1) });
    owner.loses(5);
    assert_eq!(owner.hears(4, delete(&id)), [], "a holder may tell of it as it is now");
    let mail = owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete));
    assert!(matches!(&mail[..], [(NodeId(3), Message::Drop { .. })]), "{mail:?}");
    owner.hears(3, Message::Dropped { id: id.clone(), instance: instance(3, 1) });
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [deleted(&id, 4)]);
    assert!(owner.holders(&id).is_empty());
}

#[test]
fn a_new_owner_that_hears_of_no_copy_answers_after_the_grace() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.hears(2, delete(&id)), []);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS / 2), []);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [deleted(&id, 2)]);
    owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!(owner.holders(&id), [3], "it was put after the deletion");
}

#[test]
fn a_name_that_is_put_anew_ends_its_deletion() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.hears(2, delete(&id)), []);
    let mail = owner.hears(3, claim(&id, instance(3, 1)));
    assert!(mail.contains(&deleted(&id, 2)), "{mail:?}");
    assert!(mail.contains(&claimed(3, &id, instance(3, 1), None)), "{mail:?}");
}

#[test]
fn a_question_that_was_taken_back_is_not_answered() {
    let mut owner = Owner::new();
    let id = minted();
    assert_eq!(owner.source_of(2, &id), None);
    assert_eq!(owner.hears(2, Message::Unlocate { id: id.clone() }), []);
    assert_eq!(owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete)), []);
}

#[test]
fn a_small_object_comes_with_the_answer() {
    let mut owner = Owner::new();
    let id = minted();
    let bytes: Inline = vec![1, 2, 3].into();
    owner.hears(3, told(&id, instance(3, 1), true, Progress::Inline(bytes.clone())));
    let mail = owner.hears(2, locate(&id));
    let [(NodeId(2), Message::Located { source, .. })] = &mail[..] else { panic!("{mail:?}") };
    assert_eq!(*source, Source::Inline(bytes));
    assert_eq!(owner.holders(&id), [3], "whoever only reads it holds nothing");
}

#[test]
fn receivers_of_a_large_object_form_a_chain() {
    let mut owner = Owner::new();
    let id = minted();
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    let sources: Vec<_> = [3, 4, 5].map(|asker| owner.source_of(asker, &id)).into();
    assert_eq!(sources, [Some(2), Some(3), Some(4)]);
}

#[test]
fn readers_of_many_objects_spread_over_the_holders() {
    let mut owner = Owner::new();
    let ids: Vec<_> = (0..8).map(|serial| ObjectId::Minted { node: NodeId(1), serial }).collect();
    for (id, serial) in ids.iter().zip(0..) {
        owner.hears(2, told(id, instance(2, serial), true, Progress::Complete));
        for reader in [3, 4] {
            owner.hears(reader, told(id, instance(2, serial), false, Progress::Complete));
        }
    }
    let sources: Vec<_> = ids.iter().map(|id| owner.source_of(5, id).unwrap()).collect();
    assert_eq!(sources, [3, 4, 3, 4, 3, 4, 3, 4], "equal holders take turns");
}

/// Node 1 in a cluster of seven: 1 to 3 in one rack, 4 to 6 in another, 7 in a third.
fn in_racks() -> Owner {
    let mut owner = Owner::new();
    for (id, rack) in (1..).zip(["a", "a", "a", "b", "b", "b", "c"]) {
        let address = core::net::SocketAddr::from(([127, 0, 0, 1], id as u16));
        owner.members.insert(Member { id: NodeId(id), address, place: rack.parse().ok() });
    }
    owner
}

/// An object of node 1 that node 4, in another rack, has begun to receive.
fn with_a_far_receiver() -> (Owner, ObjectId) {
    let mut owner = in_racks();
    let id = minted();
    owner.hears(1, told(&id, instance(1, 1), true, Progress::Complete));
    let mail = owner.hears(4, locate(&id));
    owner.begins_all(&id, mail, &mut Mail::new());
    (owner, id)
}

/// Who feeds whom, and how many of these transfers go from rack to rack.
fn feeds(owner: &Owner) -> (Vec<(u64, u64)>, usize) {
    let feeds: Vec<_> = owner.directory.feeds().map(|(_, to, from)| (from, to)).collect();
    let apart = feeds.iter().filter(|(from, to)| owner.members.are_apart(*from, *to)).count();
    (feeds.into_iter().map(|(from, to)| (from.0, to.0)).collect(), apart)
}

proptest! {
    /// Goal: a broadcast goes once into each other rack and nobody feeds two, in whatever order receivers ask.
    #[test]
    fn a_chain_goes_from_rack_to_rack_once(
        askers in Just((2..=7).collect::<Vec<u64>>()).prop_shuffle(),
        late in 0..=6usize,
        slow in 0..=6usize,
    ) {
        let mut owner = in_racks();
        let id = minted();
        // Those who ask before the object is there are answered together.
        let (early, others) = askers.split_at(6 - late);
        for asker in early {
            prop_assert_eq!(owner.source_of(*asker, &id), None);
        }
        let mail = owner.hears(1, told(&id, instance(1, 1), true, Progress::Complete));
        prop_assert_eq!(owner.begins_all(&id, mail, &mut Mail::new()), 0, "those who are answered together are in order");
        // Some take a while to begin.
        let mut unread = Mail::new();
        for (number, asker) in others.iter().enumerate() {
            let mail = owner.hears(*asker, locate(&id));
            if number < slow {
                unread.extend(mail);
            } else {
                owner.begins_all(&id, mail, &mut unread);
            }
        }
        owner.begins_all(&id, unread, &mut Mail::new());
        let (feeds, apart) = feeds(&owner);
        prop_assert_eq!(apart, 2, "{:?}", feeds);
        prop_assert_eq!(feeds.len(), 6);
        let senders: BTreeSet<u64> = feeds.iter().map(|(from, _)| *from).collect();
        prop_assert_eq!(senders.len(), 6, "somebody feeds two: {:?}", feeds);
    }
}

/// Nodes 1 to 8, two in each rack, and two racks in each pod.
fn in_pods() -> Owner {
    let mut owner = Owner::new();
    for (id, labels) in (1..).zip(["aa", "aa", "ab", "ab", "bc", "bc", "bd", "bd"]) {
        let group = |label: char| Group { label: label.into(), carries: 0 };
        let place = Place::new(&labels.chars().map(group).collect::<Vec<_>>()).ok();
        let address = core::net::SocketAddr::from(([127, 0, 0, 1], id as u16));
        owner.members.insert(Member { id: NodeId(id), address, place });
    }
    owner
}

proptest! {
    /// Goal: a broadcast goes once into each other rack, and once of these into the other pod, in whatever order receivers
    /// ask.
    #[test]
    fn a_chain_goes_into_each_pod_and_rack_once(
        askers in Just((2..=8).collect::<Vec<u64>>()).prop_shuffle(),
        late in 0..=7usize,
        slow in 0..=7usize,
    ) {
        let mut owner = in_pods();
        let id = minted();
        let (early, others) = askers.split_at(7 - late);
        for asker in early {
            prop_assert_eq!(owner.source_of(*asker, &id), None);
        }
        let mail = owner.hears(1, told(&id, instance(1, 1), true, Progress::Complete));
        prop_assert_eq!(owner.begins_all(&id, mail, &mut Mail::new()), 0, "those who are answered together are in order");
        // Some take a while to begin.
        let mut unread = Mail::new();
        for (number, asker) in others.iter().enumerate() {
            let mail = owner.hears(*asker, locate(&id));
            if number < slow {
                unread.extend(mail);
            } else {
                owner.begins_all(&id, mail, &mut unread);
            }
        }
        owner.begins_all(&id, unread, &mut Mail::new());
        let (feeds, apart) = feeds(&owner);
        prop_assert_eq!(apart, 3, "{:?}", feeds);
        let pods = feeds.iter().filter(|(from, to)| (*from <= 4) != (*to <= 4)).count();
        prop_assert_eq!(pods, 1, "{:?}", feeds);
        prop_assert_eq!(feeds.len(), 7);
        let senders: BTreeSet<u64> = feeds.iter().map(|(from, _)| *from).collect();
        prop_assert_eq!(senders.len(), 7, "a node feeds two: {:?}", feeds);
    }
}

/// Goal: a third rack is fed by the second one, where the link of the first one carries no more; and else by a complete copy.
#[test]
fn a_group_is_left_as_often_at_once_as_its_link_carries() {
    for (carries, source) in [(0, 4), (1, 4), (2, 2)] {
        let mut owner = in_racks();
        for id in 1..=2 {
            let group = Group { label: "a".into(), carries };
            let (address, place) = (([127, 0, 0, 1], id as u16).into(), Place::new(&[group]).ok());
            owner.members.insert(Member { id: NodeId(id), address, place });
        }
        let id = minted();
        for holder in 1..=2 {
            owner.hears(holder, told(&id, instance(1, 1), holder == 1, Progress::Complete));
        }
        let mail = owner.hears(4, locate(&id));
        owner.begins_all(&id, mail, &mut Mail::new());
        owner.hears(4, told(&id, instance(1, 1), false, fed_by(1)));
        assert_eq!(owner.source_of(7, &id), Some(source), "{carries}");
    }
}

#[test]
fn who_has_much_of_an_object_is_not_moved() {
    let (mut owner, id) = with_a_far_receiver();
    // Half of what 32 MiB take at 1 Gbit/s.
    owner.now = owner.now + 134_000_000;
    let mail = owner.hears(2, locate(&id));
    assert_eq!(owner.begins_all(&id, mail, &mut Mail::new()), 0);
}

#[test]
fn nobody_is_moved_again_and_again_while_others_arrive() {
    let (mut owner, id) = with_a_far_receiver();
    let mut moves = Vec::new();
    for asker in [2, 3] {
        // A fifth of a transfer.
        owner.now = owner.now + 54_000_000;
        let mail = owner.hears(asker, locate(&id));
        moves.push(owner.begins_all(&id, mail, &mut Mail::new()));
    }
    assert_eq!(moves, [1, 0], "it began more than a quarter of a transfer ago");
}

#[test]
fn nobody_is_moved_to_one_who_begins_too_late() {
    let (mut owner, id) = with_a_far_receiver();
    let mail = owner.hears(2, locate(&id));
    owner.now = owner.now + 134_000_000;
    assert_eq!(owner.begins_all(&id, mail, &mut Mail::new()), 0);
    assert_eq!(feeds(&owner).0, [(1, 2), (1, 4)]);
}

#[test]
fn who_asks_again_takes_nobody_over_meanwhile() {
    let (mut owner, id) = with_a_far_receiver();
    owner.hears(2, locate(&id));
    let again = Message::Locate {
        id: id.clone(),
        avoid: vec![NodeId(1)],
        not_here: None,
        receives: Receives::default(),
        seen: false,
    };
    owner.hears(2, again);
    assert!(feeds(&owner).0.contains(&(1, 4)), "{:?}", feeds(&owner));
    let mail = owner.hears(2, told(&id, instance(1, 1), false, fed_by(4)));
    assert_eq!(mail, []);
}

#[test]
fn nobody_is_moved_to_one_who_does_not_receive() {
    let (mut owner, id) = with_a_far_receiver();
    let asks = owner.hears(2, locate(&id));
    assert!(matches!(asks[..], [(NodeId(2), Message::Located { .. })]), "{asks:?}");
    // No room, so far.
    let progress = Progress::Partial { source: None };
    assert_eq!(owner.hears(2, told(&id, instance(1, 1), false, progress)), []);
    assert_eq!(owner.hears(2, told(&id, instance(1, 1), false, fed_by(1))), []);
    assert_eq!(feeds(&owner).0, [(1, 2), (1, 4)]);
}

#[test]
fn nobody_is_sent_to_a_node_that_it_feeds() {
    let mut owner = Owner::new();
    let id = minted();
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    let sources = [3, 4, 5].map(|asker| owner.source_of(asker, &id));
    assert_eq!(sources, [Some(2), Some(3), Some(4)]);
    // The sender of 3 is gone; 4 and 5 are behind 3.
    owner.hears(2, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
    assert_eq!(owner.source_of(3, &id), None);
    let mail = owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    assert!(matches!(mail[..], [(NodeId(3), Message::Located { .. })]));
}

#[test]
fn who_failed_the_asker_is_named_last() {
    let mut owner = Owner::new();
    let id = minted();
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.hears(3, told(&id, instance(2, 1), false, Progress::Complete));
    let again = |avoid| Message::Locate {
        id: id.clone(),
        avoid,
        not_here: None,
        receives: Receives::default(),
        seen: false,
    };
    let mail = owner.hears(4, again(vec![NodeId(2)]));
    assert!(matches!(
        mail[..],
        [(_, Message::Located { source: Source::Holder { node: NodeId(3), .. }, .. })]
    ));
}

#[test]
fn a_refusal_corrects_a_stale_location() {
    let mut owner = Owner::new();
    let id = minted();
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(3, &id), Some(2));
    let not_here = Some((NodeId(2), instance(2, 1)));
    let mail = owner.hears(
        3,
        Message::Locate {
            id: id.clone(),
            avoid: vec![],
            not_here,
            receives: Receives::default(),
            seen: false,
        },
    );
    let doubted = Message::Doubted { id: id.clone(), instance: instance(2, 1) };
    let waiting = Message::Waiting { id: id.clone() };
    assert_eq!(mail, [(NodeId(2), doubted), (NodeId(3), waiting)]);
    assert!(!owner.holders(&id).contains(&2));
    let mail = owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    assert!(matches!(mail[..], [(NodeId(3), Message::Located { .. })]), "it has it all the same");
}

#[test]
fn an_older_refusal_does_not_hide_a_copy_that_came_since() {
    let mut owner = Owner::new();
    let id = minted();
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(3, &id), Some(2));
    assert_eq!(owner.source_of(4, &id), Some(3));
    owner.hears(3, told(&id, instance(2, 1), false, Progress::Complete));
    let not_here = Some((NodeId(3), instance(2, 1)));
    owner.hears(
        4,
        Message::Locate {
            id: id.clone(),
            avoid: vec![NodeId(3)],
            not_here,
            receives: Receives::default(),
            seen: false,
        },
    );
    assert!(owner.holders(&id).contains(&3));
}

#[test]
fn a_deletion_is_answered_when_every_holder_has_dropped_its_copy() {
    let mut owner = Owner::new();
    let id = minted();
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.hears(3, told(&id, instance(2, 1), false, Progress::Complete));
    let dropped: Vec<NodeId> = owner.hears(5, delete(&id)).iter().map(|(to, _)| *to).collect();
    assert_eq!(dropped, [NodeId(2), NodeId(3)]);
    let done = || Message::Dropped { id: id.clone(), instance: instance(2, 1) };
    assert_eq!(owner.hears(2, done()), []);
    assert_eq!(owner.hears(3, done()), [deleted(&id, 5)]);
    let mail = owner.hears(4, locate(&id));
    assert!(matches!(&mail[..], [(_, Message::Gone { error: Error::ObjectDeleted { .. }, .. })]));
}

#[test]
fn a_deletion_does_not_wait_for_a_holder_that_is_gone() {
    let mut owner = Owner::new();
    let id = minted();
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.hears(5, delete(&id));
    assert!(owner.loses(2).contains(&deleted(&id, 5)));
}

#[test]
fn a_late_announcement_does_not_bring_a_deleted_object_back() {
    let mut owner = Owner::new();
    let id = minted();
    assert_eq!(owner.hears(5, delete(&id)), [deleted(&id, 5)]);
    let mail = owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    let error = Some(Error::ObjectDeleted { id: id.clone() });
    let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error };
    assert_eq!(mail, [(NodeId(2), drop)]);
    owner.waits(TOMBSTONE_NS);
    assert!(owner.directory.entries.iter().next().is_none(), "deletions are forgotten in the end");
    assert_eq!(owner.directory.deadline(), None);
}

#[test]
fn a_name_is_taken_while_its_object_lives_and_free_after_its_deletion() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let claimed = |instance, taken_by| Message::Claimed { id: id.clone(), instance, taken_by };
    let mail = owner.hears(2, claim(&id, instance(2, 1)));
    assert_eq!(mail, [(NodeId(2), claimed(instance(2, 1), None))]);
    let mail = owner.hears(3, claim(&id, instance(3, 1)));
    assert_eq!(mail, [(NodeId(3), claimed(instance(3, 1), Some(NodeId(2))))]);
    owner.hears(4, delete(&id));
    let mail = owner.hears(3, claim(&id, instance(3, 2)));
    assert!(mail.contains(&(NodeId(3), claimed(instance(3, 2), None))));
    assert!(mail.contains(&deleted(&id, 4)), "the deleter waits for no old copy");
    // What is left of the old object stays out.
    let mail = owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    assert!(matches!(mail[..], [(NodeId(2), Message::Drop { .. })]));
}

#[test]
fn where_there_are_very_many_the_oldest_deletions_are_forgotten() {
    let mut owner = Owner::new();
    let ids: Vec<ObjectId> =
        (0..REMEMBERED_MAX + 2).map(|number| named(&owner, &number.to_string())).collect();
    let dropped = |id: &ObjectId| Message::Dropped { id: id.clone(), instance: instance(2, 1) };
    for id in &ids {
        owner.hears(2, told(id, instance(2, 1), true, Progress::Complete));
        owner.hears(4, delete(id));
        if *id != ids[0] {
            assert_eq!(owner.hears(2, dropped(id)), [deleted(id, 4)]);
        }
    }
    let remembered = |owner: &Owner| owner.directory.entries.iter().count();
    assert_eq!(remembered(&owner), REMEMBERED_MAX);
    let is_gone = |id: &ObjectId| owner.directory.why_gone(id).is_some();
    assert!(is_gone(&ids[0]), "it has a holder that is waited for");
    assert!(!is_gone(&ids[1]) && !is_gone(&ids[2]));
    assert!(ids[3..].iter().all(is_gone));
    assert_eq!(owner.hears(2, dropped(&ids[0])), [deleted(&ids[0], 4)]);
    owner.waits(TOMBSTONE_NS);
    assert_eq!(remembered(&owner), 0);
    assert_eq!(owner.directory.deadline(), None);
}

#[test]
fn whoever_asks_later_hears_of_the_input_whose_deletion_ended_a_sum() {
    let mut owner = Owner::new();
    let id = minted();
    let error = Error::ObjectDeleted { id: named(&owner, "input") };
    owner.hears(1, Message::Fail { id: id.clone(), error: error.clone(), reserved: None });
    let gone = Message::Gone { id: id.clone(), error };
    assert_eq!(owner.hears(3, locate(&id)), [(NodeId(3), gone)]);
}

#[test]
fn a_name_that_others_have_is_not_ended_by_news_of_nobody() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    let error = Some(Error::ObjectLost { id: id.clone(), detail: "it failed".to_string() });
    owner.hears(
        3,
        Message::Remember { id: id.clone(), instances: Vec::new(), error, pruned: false },
    );
    assert_eq!(owner.holders(&id), [2]);
}

#[test]
fn what_is_said_again_of_a_name_pushes_out_no_deletion() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let instances = vec![instance(2, 1)];
    for _ in 0..3 {
        let (id, instances) = (id.clone(), instances.clone());
        owner.hears(3, Message::Remember { id, instances, error: None, pruned: false });
    }
    assert_eq!(owner.directory.remembered.len(), 1);
    owner.hears(2, delete(&minted()));
    owner.hears(2, delete(&minted()));
    assert_eq!(owner.directory.remembered.len(), 2);
}

#[test]
fn what_grows_by_parts_is_taken_from_its_maker_and_from_who_takes_it_there() {
    let mut owner = Owner::new();
    let id = minted();
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Parts));
    assert_eq!(owner.source_of(3, &id), Some(2));
    // The third makes a part, and tells nobody of what it has.
    owner.hears(4, told(&id, instance(2, 1), false, fed_by(2)));
    assert_eq!(owner.source_of(5, &id), Some(4));
    let found = |owner: &mut Owner| {
        let live = owner.directory.entries.get_mut(&id).unwrap().live.as_mut().unwrap();
        live.found(NodeId(3), &owner.members).unwrap().holder
    };
    assert_eq!(found(&mut owner), NodeId(2), "what the third has may come to nothing");
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.hears(3, told(&id, instance(2, 1), false, Progress::Complete));
    assert_eq!(found(&mut owner), NodeId(3));
}

#[test]
fn what_comes_late_of_an_object_before_does_not_undo_the_deletion_of_its_name() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    for serial in 1..=2 {
        owner.hears(2, told(&id, instance(2, serial), true, Progress::Complete));
        owner.hears(4, delete(&id));
    }
    let error = Error::ObjectDeleted { id: id.clone() };
    let mail = owner.hears(3, told(&id, instance(2, 1), false, Progress::Complete));
    let drop =
        Message::Drop { id: id.clone(), instance: instance(2, 1), error: Some(error.clone()) };
    assert_eq!(mail, [(NodeId(3), drop)]);
    assert_eq!(owner.hears(5, seen(&id)), [(NodeId(5), Message::Gone { id, error })]);
}

/// A request of a node that was sent a location before.
fn seen(id: &ObjectId) -> Message {
    let Message::Locate { id, avoid, not_here, receives, .. } = locate(id) else { unreachable!() };
    Message::Locate { id, avoid, not_here, receives, seen: true }
}

#[test]
fn a_deletion_ends_the_requests_under_way_and_later_ones_wait_for_the_next_put() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let gone = |to| {
        let (id, error) = (id.clone(), Error::ObjectDeleted { id: id.clone() });
        (NodeId(to), Message::Gone { id, error })
    };
    owner.hears(3, Message::Watch { id: id.clone(), seen: false });
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(4, &id), Some(2));
    let mail = owner.hears(2, delete(&id));
    assert!(mail.contains(&gone(3)), "it watched: {mail:?}");
    assert_eq!(owner.hears(4, seen(&id)), [gone(4)], "it was to receive what is gone");
    assert_eq!(owner.source_of(4, &id), None, "it asks anew");
    assert_eq!(
        owner.hears(3, Message::Watch { id: id.clone(), seen: false }),
        [(NodeId(3), Message::Found { id: id.clone(), found: None })]
    );
    let locations = Message::Locations { id: id.clone(), known: None, request: RequestId(7) };
    let nowhere = Message::LocationsAre { request: RequestId(7), holdings: Ok(vec![]) };
    assert_eq!(owner.hears(5, locations), [(NodeId(5), nowhere)]);
    // Another owner repeats what it remembers.
    let error = Some(Error::ObjectDeleted { id: id.clone() });
    let (instances, name) = (vec![instance(2, 1)], id.clone());
    assert_eq!(owner.hears(5, Message::Remember { id: name, instances, error, pruned: false }), []);
    let mut mail = owner.hears(2, claim(&id, instance(2, 2)));
    mail.extend(owner.hears(2, told(&id, instance(2, 2), true, Progress::Complete)));
    let located = |(to, message): &(NodeId, Message)| {
        *to == NodeId(4) && matches!(message, Message::Located { .. })
    };
    let found = |(to, message): &(NodeId, Message)| {
        *to == NodeId(3) && matches!(message, Message::Found { found: Some(_), .. })
    };
    assert!(mail.iter().any(located) && mail.iter().any(found), "{mail:?}");
}

/// An owner of two versions under one prefix.
fn two_versions() -> (Owner, ObjectId, ObjectId) {
    let mut owner = Owner::new();
    let old = named(&owner, "1");
    let ObjectId::Named(name) = &old else { unreachable!() };
    let new: ObjectId = format!("{}/2", name.group()).parse().unwrap();
    for (id, serial) in [(&old, 1), (&new, 2)] {
        owner.hears(2, told(id, instance(2, serial), true, Progress::Complete));
    }
    (owner, old, new)
}

#[test]
fn a_version_that_was_pruned_stays_deleted_while_a_newer_one_lives() {
    let (mut owner, old, new) = two_versions();
    let (id, request) = (old.clone(), RequestId(1));
    owner.hears(2, Message::Delete { id, request, pruned: true });
    let error = Error::ObjectDeleted { id: old.clone() };
    let gone = Message::Gone { id: old.clone(), error };
    assert_eq!(owner.hears(4, locate(&old)), [(NodeId(4), gone.clone())]);
    let watch = Message::Watch { id: old.clone(), seen: false };
    assert_eq!(owner.hears(4, watch), [(NodeId(4), gone)]);
    owner.hears(2, delete(&new));
    assert_eq!(owner.source_of(4, &old), None, "as in the next run");
}

#[test]
fn another_owner_learns_that_a_version_was_pruned() {
    let (mut owner, old, _) = two_versions();
    let error = Error::ObjectDeleted { id: old.clone() };
    let (id, instances) = (old.clone(), vec![instance(2, 1)]);
    let remember = Message::Remember { id, instances, error: Some(error.clone()), pruned: true };
    owner.hears(5, remember);
    let gone = Message::Gone { id: old.clone(), error };
    assert_eq!(owner.hears(4, locate(&old)), [(NodeId(4), gone)]);
}

#[test]
fn a_deleted_name_that_ends_in_a_number_is_free_though_a_higher_number_lives() {
    let (mut owner, old, _) = two_versions();
    owner.hears(2, delete(&old));
    assert_eq!(owner.hears(4, locate(&old)), [(NodeId(4), Message::Waiting { id: old.clone() })]);
    let mail = owner.hears(3, claim(&old, instance(3, 1)));
    assert!(mail.contains(&claimed(3, &old, instance(3, 1), None)), "{mail:?}");
}

#[test]
fn a_reduce_that_fails_after_its_name_was_deleted_leaves_the_name_free() {
    let mut owner = Owner::new();
    let id = named(&owner, "sum");
    let error = Error::ObjectLost { id: id.clone(), detail: "its inputs are gone".to_string() };
    let fail = Message::Fail { id: id.clone(), error, reserved: Some(instance(2, 1)) };
    owner.hears(2, reserve(&id, instance(2, 1)));
    owner.hears(3, delete(&id));
    assert_eq!(owner.hears(2, fail.clone()), []);
    let waiting = Message::Waiting { id: id.clone() };
    assert_eq!(owner.hears(4, locate(&id)), [(NodeId(4), waiting)]);
    owner.hears(3, reserve(&id, instance(3, 1)));
    assert_eq!(owner.hears(2, fail), [], "the next reduce has the name");
    assert_eq!(owner.directory.reservations(), 1);
}

#[test]
fn a_failure_that_is_repeated_late_does_not_take_back_that_its_name_was_freed() {
    let mut owner = Owner::new();
    let id = named(&owner, "sum");
    let error = Error::ObjectLost { id: id.clone(), detail: "its inputs are gone".to_string() };
    let reserved = Some(instance(2, 1));
    owner.hears(2, reserve(&id, instance(2, 1)));
    owner.hears(2, Message::Fail { id: id.clone(), error: error.clone(), reserved });
    owner.hears(3, delete(&id));
    let waiting = Message::Waiting { id: id.clone() };
    assert_eq!(owner.hears(4, locate(&id)), [(NodeId(4), waiting)]);
    let (name, instances) = (id.clone(), vec![instance(2, 1)]);
    let repeated = Message::Remember { id: name, instances, error: Some(error), pruned: false };
    assert_eq!(owner.hears(5, repeated), []);
    let waiting = Message::Waiting { id: id.clone() };
    assert_eq!(owner.hears(6, locate(&id)), [(NodeId(6), waiting)]);
}

#[test]
fn a_name_made_for_a_promise_stays_deleted() {
    let mut owner = Owner::new();
    let id = named(&owner, "@1/1");
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.hears(2, delete(&id));
    let error = Error::ObjectDeleted { id: id.clone() };
    assert_eq!(owner.hears(4, locate(&id)), [(NodeId(4), Message::Gone { id, error })]);
}

#[test]
fn a_result_that_failed_stays_failed_until_its_name_is_deleted() {
    let mut owner = Owner::new();
    let id = named(&owner, "sum");
    let detail = "its inputs are gone".to_string();
    let error = Error::ObjectLost { id: id.clone(), detail };
    owner.hears(2, reserve(&id, instance(2, 1)));
    owner.hears(2, Message::Fail { id: id.clone(), error: error.clone(), reserved: None });
    let gone = Message::Gone { id: id.clone(), error };
    assert_eq!(owner.hears(4, locate(&id)), [(NodeId(4), gone)]);
    owner.hears(3, delete(&id));
    assert_eq!(owner.source_of(4, &id), None, "the name is free");
}

#[test]
fn of_two_objects_under_one_name_every_owner_keeps_the_lower() {
    let (low, high) = ((2, instance(2, 9)), (3, instance(3, 1)));
    for (first, second) in [(low, high), (high, low)] {
        let mut owner = Owner::new();
        let id = named(&owner, "x");
        owner.hears(first.0, told(&id, first.1, true, Progress::Complete));
        let mail = owner.hears(second.0, told(&id, second.1, true, Progress::Complete));
        let drop = Message::Drop { id: id.clone(), instance: high.1, error: None };
        assert_eq!(mail, [(NodeId(high.0), drop)]);
        assert_eq!(owner.holders(&id), [low.0]);
    }
}

#[test]
fn a_later_attempt_of_a_reduce_replaces_the_earlier() {
    let mut owner = Owner::new();
    let id = minted();
    let growing = || Progress::Partial { source: None };
    owner.hears(1, told(&id, instance(1, 8), true, growing()));
    assert_eq!(owner.source_of(2, &id), Some(1));
    let mail = owner.hears(1, told(&id, instance(1, 9), true, growing()));
    let drop = Message::Drop { id: id.clone(), instance: instance(1, 8), error: None };
    assert_eq!(mail, [(NodeId(2), drop)]);
    assert_eq!(owner.holders(&id), [1]);
}

#[test]
fn latest_is_the_highest_number_and_waits_for_a_higher_one() {
    let mut owner = Owner::new();
    let ids = ["9", "10", "11", "best"].map(|version| named(&owner, version));
    let prefix = format!("{}/", ids[0].to_string().rsplit_once('/').unwrap().0);
    let question = |after| Message::Latest { prefix: prefix.clone(), after, request: RequestId(5) };
    for (serial, id) in (1..).zip([&ids[1], &ids[0], &ids[3]]) {
        owner.hears(2, told(id, instance(2, serial), true, Progress::Complete));
    }
    let answer = |id: &ObjectId| {
        let ObjectId::Named(name) = id.clone() else { unreachable!() };
        (NodeId(4), Message::LatestIs { name, request: RequestId(5) })
    };
    assert_eq!(owner.hears(4, question(None)), [answer(&ids[1])]);
    let nothing_yet = Message::NothingYet { request: RequestId(5), id: None };
    assert_eq!(owner.hears(4, question(Some(10))), [(NodeId(4), nothing_yet)]);
    let mail = owner.hears(2, told(&ids[2], instance(2, 4), true, Progress::Complete));
    assert_eq!(mail, [answer(&ids[2])]);
    // The result of a reduce whose attempt was given up is none, though its name is kept for the next.
    let sum = named(&owner, "12");
    owner.hears(2, reserve(&sum, instance(2, 5)));
    owner.hears(2, told(&sum, instance(2, 6), true, growing()));
    owner.hears(2, Message::Withdraw { id: sum.clone(), instance: instance(2, 6) });
    assert_eq!(owner.hears(4, question(None)), [answer(&ids[2])]);
    assert_eq!(owner.hears(4, question(Some(11))).len(), 1, "it waits");
    assert_eq!(owner.hears(2, told(&sum, instance(2, 7), true, growing())), [answer(&sum)]);
}

#[test]
fn while_members_meet_again_a_loss_is_told_of_later() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    let member = owner.members.iter().find(|member| member.id == NodeId(2)).unwrap();
    let is_lost = |mail: &Mail| mail.iter().any(|(_, said)| matches!(said, Message::Gone { .. }));
    // Taken for a new one, it has not told everything again for longer than the grace.
    owner.directory.merge(owner.now);
    owner.loses(2);
    assert_eq!(owner.source_of(3, &id), None);
    assert!(!is_lost(&owner.waits(2 * ORPHAN_GRACE_NS)));
    owner.members.insert(member);
    let mail = owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    assert!(matches!(mail[..], [(NodeId(3), Message::Located { .. })]), "{mail:?}");
    assert!(!is_lost(&owner.waits(2 * MERGE_NS)));
    // A member that flaps for ever does not put off the loss for ever.
    owner.loses(2);
    assert_eq!(owner.source_of(4, &id), None);
    for _ in 0..4 {
        owner.directory.merge(owner.now);
        assert!(!is_lost(&owner.waits(MERGE_NS / 5)));
    }
    owner.directory.merge(owner.now);
    assert!(is_lost(&owner.waits(MERGE_NS / 5)));
}

#[test]
fn those_who_wait_are_told_of_a_loss_after_a_grace() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(3, &id), Some(2));
    owner.loses(2);
    assert_eq!(owner.source_of(3, &id), None);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS / 2), []);
    let mail = owner.waits(ORPHAN_GRACE_NS);
    let is_lost = |message: &Message| {
        matches!(
            message,
            Message::Gone { error: Error::ObjectLost { .. }, .. }
                | Message::Stranded { error: Error::ObjectLost { .. }, .. }
        )
    };
    assert_eq!(mail.len(), 2, "the question is answered and the part of a copy dropped");
    assert!(mail.iter().all(|(to, message)| *to == NodeId(3) && is_lost(message)));
}

#[test]
fn an_object_that_is_told_of_again_within_the_grace_is_not_lost() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.loses(2);
    assert_eq!(owner.source_of(3, &id), None);
    let mail = owner.hears(4, told(&id, instance(2, 1), false, Progress::Complete));
    assert!(matches!(mail[..], [(NodeId(3), Message::Located { .. })]));
    assert_eq!(owner.waits(2 * ORPHAN_GRACE_NS), []);
}

#[test]
fn the_result_of_a_reduce_that_begins_again_is_not_lost() {
    let mut owner = Owner::new();
    let id = ObjectId::Minted { node: NodeId(3), serial: 1 };
    let growing = Progress::Partial { source: None };
    owner.hears(3, told(&id, instance(3, 2), true, growing));
    assert_eq!(owner.source_of(2, &id), Some(3));
    owner.hears(3, Message::Withdraw { id: id.clone(), instance: instance(3, 2) });
    assert_eq!(owner.source_of(2, &id), None);
    assert_eq!(owner.waits(10 * ORPHAN_GRACE_NS), [], "its caller lives and may still make it");
}

#[test]
fn what_a_minter_that_is_gone_never_made_is_lost() {
    let mut owner = Owner::new();
    let ids = (0..).map(|serial| ObjectId::Minted { node: NodeId(3), serial });
    owner.loses(3);
    let id = ids.into_iter().find(|id| owner.members.owners(id).first == NodeId(1)).unwrap();
    assert_eq!(owner.source_of(2, &id), None);
    let mail = owner.waits(ORPHAN_GRACE_NS);
    assert!(matches!(mail[..], [(NodeId(2), Message::Gone { .. })]), "{mail:?}");
}

#[test]
fn copies_that_grow_from_each_other_begin_anew() {
    let mut owner = Owner::new();
    let id = minted();
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.hears(3, told(&id, instance(2, 1), false, fed_by(4)));
    let mail = owner.hears(4, told(&id, instance(2, 1), false, fed_by(3)));
    let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error: None };
    assert_eq!(mail, [(NodeId(4), drop)]);
    assert!(owner.directory.feeds().all(|(_, node, source)| (node.0, source.0) == (3, 4)));
}

/// Goal: an owner that was given up for a while does not defend a name that was deleted and put again meanwhile.
#[test]
fn who_begins_anew_feeds_those_who_did_not_notice() {
    let (mut owner, id) = (Owner::new(), minted());
    owner.hears(2, told(&id, instance(2, 1), true, growing()));
    owner.hears(3, told(&id, instance(2, 1), false, fed_by(2)));
    owner.hears(4, told(&id, instance(2, 1), false, fed_by(3)));
    owner.hears(3, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
    owner.hears(5, told(&id, instance(2, 1), false, fed_by(2)));
    owner.hears(3, told(&id, instance(2, 1), false, fed_by(5)));
    let mail = owner.hears(5, told(&id, instance(2, 1), false, fed_by(4)));
    let drop = Message::Drop { id, instance: instance(2, 1), error: None };
    assert_eq!(mail, [(NodeId(5), drop)]);
}

#[test]
fn an_owner_that_was_away_refuses_nothing_before_it_has_heard_what_happened() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let (old, new) = (instance(2, 1), instance(3, 1));
    let small = Progress::Inline(vec![1; 8].into());
    owner.hears(2, told(&id, old, true, small));
    owner.directory.catch_up(owner.now);
    assert_eq!(owner.hears(3, told(&id, new, true, Progress::Complete)), []);
    let (instances, error) = (vec![old], None);
    let mail =
        owner.hears(4, Message::Remember { id: id.clone(), instances, error, pruned: false });
    let drop = Message::Drop { id: id.clone(), instance: old, error: None };
    assert_eq!(mail, [(NodeId(2), drop.clone())]);
    owner.waits(ORPHAN_GRACE_NS);
    assert_eq!(owner.holders(&id), [3]);
    assert_eq!(owner.source_of(5, &id), Some(3));
    // Whoever still has the old one is told to drop it.
    assert_eq!(owner.hears(2, told(&id, old, true, Progress::Complete)), [(NodeId(2), drop)]);
}

#[test]
fn of_rivals_that_both_live_the_lower_stays_when_all_has_been_told() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.directory.catch_up(owner.now);
    assert_eq!(owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete)), []);
    let drop = Message::Drop { id: id.clone(), instance: instance(3, 1), error: None };
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [(NodeId(3), drop)]);
    // One that was given up meanwhile is not judged later.
    owner.directory.catch_up(owner.now);
    owner.hears(4, told(&id, instance(4, 1), true, Progress::Complete));
    owner.hears(4, Message::Withdraw { id: id.clone(), instance: instance(4, 1) });
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), []);
    assert_eq!(owner.holders(&id), [2]);
}

/// Goal: an owner that may have missed a deletion takes what is put next, and loses nothing that lives.
/// Method: an entry of a node that was no owner; then another instance; then the word of the holder of the first.
#[test]
fn an_owner_that_may_have_missed_a_deletion_asks_who_holds_the_object() {
    let mut owner = Owner::new();
    // Two that own the name instead of this node, for a while.
    let names = (0..).map(|group| -> ObjectId { format!("group{group}/x").parse().unwrap() });
    let is_others = |id: &ObjectId| {
        let owners = owner.members.owners(id);
        [2, 3].iter().all(|node| !owners.contains(NodeId(*node))) && !owners.contains(NodeId(1))
    };
    let mut is_mine_without = owner.members.clone();
    [4, 5].iter().for_each(|node| assert!(is_mine_without.remove(NodeId(*node))));
    let is_mine = |id: &ObjectId| is_mine_without.owners(id).contains(NodeId(1));
    let id = names.into_iter().find(|id| is_others(id) && is_mine(id)).unwrap();
    let (low, high) = (instance(2, 1), instance(3, 1));
    owner.hears(2, told(&id, low, true, Progress::Complete));
    owner.loses(4);
    owner.loses(5);
    let mail = owner.hears(3, told(&id, high, true, Progress::Complete));
    assert_eq!(mail, [(NodeId(2), Message::Doubted { id: id.clone(), instance: low })]);
    assert_eq!(owner.holders(&id), [3]);
    // It lives, and is the lower of the two: the other owner keeps it as well.
    let mail = owner.hears(2, told(&id, low, true, Progress::Complete));
    let drop = Message::Drop { id: id.clone(), instance: high, error: None };
    assert_eq!(mail, [(NodeId(3), drop)]);
    assert_eq!(owner.holders(&id), [2]);
}

#[test]
fn an_original_takes_the_name_of_copies_that_outlived_theirs() {
    for first_is_low in [true, false] {
        let mut owner = Owner::new();
        let id = named(&owner, "x");
        let (before, after) = if first_is_low {
            (instance(2, 1), instance(3, 1))
        } else {
            (instance(3, 1), instance(2, 1))
        };
        owner.hears(before.node.0, told(&id, before, true, Progress::Complete));
        owner.hears(5, told(&id, before, false, Progress::Complete));
        owner.loses(before.node.0);
        let mail = owner.hears(after.node.0, told(&id, after, true, Progress::Complete));
        let drop = Message::Drop { id: id.clone(), instance: before, error: None };
        assert_eq!(mail, [(NodeId(5), drop)]);
        assert_eq!(owner.holders(&id), [after.node.0]);
    }
}

#[test]
fn what_a_maker_says_last_is_what_it_has() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, claim(&id, instance(2, 2)));
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.hears(2, Message::Withdraw { id: id.clone(), instance: instance(2, 2) });
    assert_eq!(owner.holders(&id), [2]);
    assert_eq!(owner.source_of(3, &id), Some(2));
}

#[test]
fn a_name_that_was_deleted_while_its_only_holder_was_away_does_not_come_back() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let member = owner.members.iter().find(|member| member.id == NodeId(2)).unwrap();
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    owner.loses(2);
    owner.waits(2 * ORPHAN_GRACE_NS);
    assert_eq!(owner.hears(4, delete(&id)), [deleted(&id, 4)]);
    owner.members.insert(member);
    let mail = owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    assert!(matches!(mail[..], [(NodeId(2), Message::Drop { .. })]), "{mail:?}");
    assert_eq!(owner.hears(5, told(&id, instance(5, 1), true, Progress::Complete)), []);
    assert_eq!(owner.holders(&id), [5]);
}

#[test]
fn a_new_owner_is_told_of_deletions() {
    let mut owner = Owner::new();
    let id = ObjectId::Minted { node: NodeId(3), serial: 1 };
    let mail = owner.hears(4, delete(&id));
    let passed_on = mail.into_iter().filter(|(_, said)| matches!(said, Message::Remember { .. }));
    let passed_on: Vec<NodeId> = passed_on.map(|(to, _)| to).collect();
    let told = |owner: &mut Owner, renewed| {
        let ((), mail) = owner.told(|directory, world| directory.members_changed(world, renewed));
        assert!(mail.iter().all(|(_, message)| matches!(message, Message::Remember { .. })));
        mail.into_iter().map(|(to, _)| to).collect::<Vec<NodeId>>()
    };
    let owners: Vec<NodeId> = owner.members.owners(&id).iter().collect();
    let others: Vec<NodeId> = owners.iter().copied().filter(|node| *node != NodeId(1)).collect();
    assert!(!others.is_empty());
    assert_eq!(passed_on, others, "who deleted it takes this node for an owner, which it is not");
    // Thousands of deletions are remembered: they are not said to everybody whenever somebody comes or goes.
    assert_eq!(told(&mut owner, None), []);
    assert_eq!(told(&mut owner, Some(others[0])), [others[0]]);
    let (instances, error) = (Vec::new(), Some(Error::ObjectDeleted { id: id.clone() }));
    owner.hears(others[0].0, Message::Remember { id: id.clone(), instances, error, pruned: false });
    assert_eq!(told(&mut owner, None), [], "nor back to who says so too");
}

#[test]
fn what_is_told_to_a_node_that_is_no_owner_is_kept_for_a_while_only() {
    let mut owner = Owner::new();
    let strangers = (0..).map(|serial| ObjectId::Minted { node: NodeId(3), serial });
    let is_strange = |id: &ObjectId| !owner.members.owners(id).contains(NodeId(1));
    let id = strangers.into_iter().find(is_strange).unwrap();
    owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!(owner.holders(&id), [3], "this node may be its owner as others see it");
    owner.waits(STRAY_NS / 2);
    assert_eq!(owner.holders(&id), [3], "and may hear of that only when it misses a member");
    owner.waits(STRAY_NS);
    assert_eq!(owner.holders(&id), []);
}

/// A reader tells of an attempt that its maker has given up, for it has not heard of the next one yet.
#[test]
fn an_earlier_attempt_replaces_no_later_one_where_others_were_owners_before() {
    let mut owner = Owner::new();
    let id = named(&owner, "sum");
    // Members who know that the last owner is gone tell this one first.
    let all = owner.members.clone();
    owner.members.resign();
    owner.hears(2, told(&id, instance(2, 7), true, growing()));
    owner.members = all;
    owner.told(|directory, world| directory.members_changed(world, None));
    owner.hears(2, told(&id, instance(2, 9), true, growing()));
    let mail = owner.hears(3, told(&id, instance(2, 7), false, fed_by(2)));
    let dropped = Message::Drop { id: id.clone(), instance: instance(2, 7), error: None };
    assert_eq!(mail, [(NodeId(3), dropped)]);
    assert_eq!(owner.holders(&id), [2]);
}

#[test]
fn a_watcher_is_answered_at_once_and_again_when_the_object_comes() {
    let mut owner = Owner::new();
    let id = minted();
    let mail = owner.hears(2, Message::Watch { id: id.clone(), seen: false });
    assert_eq!(mail, [(NodeId(2), Message::Found { id: id.clone(), found: None })]);
    let mail = owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete));
    let [(NodeId(2), Message::Found { found: Some(found), .. })] = &mail[..] else {
        panic!("{mail:?}")
    };
    assert_eq!(found.holder, NodeId(3));
    let holder_asks = owner.hears(3, Message::Watch { id: id.clone(), seen: false });
    assert!(matches!(
        &holder_asks[..],
        [(NodeId(3), Message::Found { found: Some(Found { holder: NodeId(3), .. }), .. })]
    ));
}

fn reserve(id: &ObjectId, instance: Instance) -> Message {
    Message::Reserve { id: id.clone(), instance }
}

fn claimed(to: u64, id: &ObjectId, instance: Instance, taken_by: Option<u64>) -> (NodeId, Message) {
    let (id, taken_by) = (id.clone(), taken_by.map(NodeId));
    (NodeId(to), Message::Claimed { id, instance, taken_by })
}

fn growing() -> Progress {
    Progress::Partial { source: None }
}

#[test]
fn a_reservation_keeps_a_name_until_its_result_is_complete() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    assert_eq!(
        owner.hears(2, reserve(&id, instance(2, 1))),
        [claimed(2, &id, instance(2, 1), None)]
    );
    for node in [2, 3] {
        let mine = instance(node, 5);
        assert_eq!(owner.hears(node, claim(&id, mine)), [claimed(node, &id, mine, Some(2))]);
        assert_eq!(owner.hears(node, reserve(&id, mine)), [claimed(node, &id, mine, Some(2))]);
    }
    // The result grows; its owner is told of the name again.
    assert_eq!(owner.hears(2, told(&id, instance(2, 6), true, growing())), []);
    assert_eq!(
        owner.hears(2, reserve(&id, instance(2, 1))),
        [claimed(2, &id, instance(2, 1), None)]
    );
    owner.hears(2, told(&id, instance(2, 6), true, Progress::Complete));
    owner.hears(2, reserve(&id, instance(2, 1)));
    assert_eq!(owner.directory.reservations(), 0, "it is there");
    assert_eq!(
        owner.hears(3, claim(&id, instance(3, 6)))[0].1,
        claimed(3, &id, instance(3, 6), Some(2)).1
    );
}

#[test]
fn a_reader_with_all_of_an_attempt_that_was_given_up_does_not_end_the_reservation() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, reserve(&id, instance(2, 1)));
    owner.hears(2, told(&id, instance(2, 6), true, growing()));
    assert_eq!(owner.source_of(3, &id), Some(2));
    owner.hears(2, Message::Withdraw { id: id.clone(), instance: instance(2, 6) });
    owner.hears(3, told(&id, instance(2, 6), false, Progress::Complete));
    let dropped: Vec<NodeId> = owner.hears(5, delete(&id)).into_iter().map(|(to, _)| to).collect();
    assert_eq!(dropped, [NodeId(3), NodeId(2)], "the reduce that goes on ends with its name");
}

#[test]
fn a_reservation_that_is_given_back_leaves_nothing() {
    for message in [
        |id: ObjectId| Message::Withdraw { id, instance: Instance { node: NodeId(2), serial: 1 } },
        |id: ObjectId| Message::Fail {
            error: Error::ObjectDeleted { id: id.clone() },
            id,
            reserved: Some(instance(2, 1)),
        },
    ] {
        let mut owner = Owner::new();
        let id = named(&owner, "x");
        owner.hears(2, reserve(&id, instance(2, 1)));
        owner.hears(2, message(id.clone()));
        assert_eq!(owner.directory.reservations(), 0);
        assert!(owner.hears(3, claim(&id, instance(3, 1))).contains(&claimed(
            3,
            &id,
            instance(3, 1),
            None
        )));
    }
}

#[test]
fn of_a_reservation_and_an_object_the_object_has_the_name() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, reserve(&id, instance(2, 1)));
    // Put at an owner that did not know of the reduce, and told of here.
    let mail = owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!(mail, [claimed(2, &id, instance(2, 1), Some(3))]);
    assert_eq!(owner.directory.reservations(), 0);
    let error = Error::ObjectDeleted { id: id.clone() };
    assert_eq!(owner.hears(2, Message::Fail { id: id.clone(), error, reserved: None }), []);
    assert_eq!(owner.holders(&id), [3], "the end of the reduce does not touch it");
}

#[test]
fn a_deletion_takes_a_result_along_that_was_told_of_before_its_maker_heard() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, reserve(&id, instance(2, 1)));
    let error = Some(Error::ObjectDeleted { id: id.clone() });
    let drop = |serial| {
        let (id, instance, error) = (id.clone(), instance(2, serial), error.clone());
        (NodeId(2), Message::Drop { id, instance, error })
    };
    assert_eq!(owner.hears(5, delete(&id)), [drop(1)]);
    assert_eq!(owner.hears(2, told(&id, instance(2, 3), true, Progress::Complete)), [drop(3)]);
    let dropped = |serial| Message::Dropped { id: id.clone(), instance: instance(2, serial) };
    assert_eq!(owner.hears(2, dropped(1)), [], "the result may still be given to somebody");
    assert_eq!(owner.hears(2, dropped(3)), [deleted(&id, 5)]);
    // The reduce that was deleted asks for its name again.
    let mail = owner.hears(2, reserve(&id, instance(2, 1)));
    assert_eq!(mail, [claimed(2, &id, instance(2, 1), None), drop(1)]);
    // A put of the same node is another object.
    let mail = owner.hears(2, claim(&id, instance(2, 9)));
    assert_eq!(mail, [claimed(2, &id, instance(2, 9), None)]);
}

#[test]
fn those_who_wait_for_a_result_are_told_when_its_maker_died() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, reserve(&id, instance(2, 1)));
    owner.hears(3, locate(&id));
    assert_eq!(owner.waits(10 * ORPHAN_GRACE_NS), []);
    owner.loses(2);
    // Another asks within the grace, for the owner that it asked first died too.
    owner.hears(4, locate(&id));
    let told: Vec<NodeId> = owner.waits(ORPHAN_GRACE_NS).into_iter().map(|(to, _)| to).collect();
    assert_eq!(told, [NodeId(3), NodeId(4)]);
    assert!(owner.directory.entries.iter().next().is_none());
}

#[test]
fn a_reduce_may_take_a_name_that_was_lost() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(3, &id), Some(2));
    owner.loses(2);
    let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error: None };
    let mail = owner.hears(4, reserve(&id, instance(4, 1)));
    assert_eq!(mail, [(NodeId(3), drop), claimed(4, &id, instance(4, 1), None)]);
    assert_eq!(owner.source_of(3, &id), None);
    assert_eq!(owner.waits(10 * ORPHAN_GRACE_NS), [], "it may still come");
}

#[test]
fn a_small_put_that_is_given_up_takes_its_bytes_along() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let bytes: Inline = vec![1; 8].into();
    let inline = Progress::Inline(bytes);
    let Message::Announce(announce) = told(&id, instance(2, 1), true, inline) else {
        unreachable!()
    };
    owner.hears(2, Message::Announce(Announce { claim: true, meta: Meta::bytes(8), ..announce }));
    owner.hears(2, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
    let mail = owner.hears(3, claim(&id, instance(3, 1)));
    assert_eq!(mail, [claimed(3, &id, instance(3, 1), None)]);
}

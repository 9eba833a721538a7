//! Which source each receiver gets: trees across racks and pods, moves, refusals.

use alloc::{collections::BTreeSet, vec, vec::Vec};

use proptest::prelude::*;

use super::{
    live::{LOOKED_AT, SourceRequest},
    tests::{
        LINK, Owner, SIZE, announced, assigned, fed_by, growing, instance, locate, locate_with,
        minted, no_source,
    },
    *,
};
use crate::{
    id::{NodeId, ObjectId},
    members::Member,
    message::{Message, Progress, Source},
    place::{Group, Place},
};

#[test]
fn receivers_of_a_large_object_form_a_chain() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    let sources: Vec<_> = [3, 4, 5].map(|requester| owner.source_of(requester, &id)).into();
    assert_eq!(sources, [Some(2), Some(3), Some(4)]);
}

/// Goal: a lookup among very many holders considers few of them. A requester that feeds most of
/// them gets its bytes from none of these.
#[test]
fn a_lookup_among_a_thousand_holders_considers_few() {
    let (mut owner, id) = (Owner::new(), minted());
    for number in 6..=1003 {
        let address = ([127, 0, 0, 1], number as u16).into();
        owner.members.insert(Member { id: NodeId(number), address, place: None });
    }
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    for receiver in 3..1003 {
        let source = owner.source_of(receiver, &id).unwrap();
        owner.receives(receiver, announced(&id, instance(2, 1), false, fed_by(source)));
    }
    let Owner { directory, members, now, .. } = &mut owner;
    let context = Context { now: *now, members, link: LINK, outbox: &mut Vec::new() };
    let live = directory.entries.get_mut(&id).and_then(|entry| entry.live.as_mut()).unwrap();
    let (node, bytes, link) = (NodeId(1003), SIZE, LINK);
    let request = SourceRequest { node, bytes, avoid: &[], link, movable_since: None };
    let considered = live.candidates(&context, &request, &directory.speeds).len();
    assert!((1..=3 * LOOKED_AT).contains(&considered), "{considered}");

    let again = locate_with(&id, |locate| locate.avoid = vec![NodeId(2)]);
    let (_, source) = assigned(&owner.receives(3, again));
    let Source::Holder { node, .. } = source else { panic!("{source:?}") };
    let live = owner.directory.entries.get_mut(&id).and_then(|entry| entry.live.as_mut());
    let lineage = live.unwrap().tree.lineage(NodeId(3)).unwrap();
    assert_eq!((lineage.root, lineage.depth.is_some()), (NodeId(2), true), "from {node}");
}

#[test]
fn readers_of_many_objects_spread_over_the_holders() {
    let mut owner = Owner::new();
    let ids: Vec<_> = (0..8).map(|serial| ObjectId::Minted { node: NodeId(1), serial }).collect();
    for (id, serial) in ids.iter().zip(0..) {
        owner.receives(2, announced(id, instance(2, serial), true, Progress::Complete));
        for reader in [3, 4] {
            owner.receives(reader, announced(id, instance(2, serial), false, Progress::Complete));
        }
    }
    let sources: Vec<_> = ids.iter().map(|id| owner.source_of(5, id).unwrap()).collect();
    assert_eq!(sources, [3, 4, 3, 4, 3, 4, 3, 4], "requests alternate between equal holders");
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
    owner.receives(1, announced(&id, instance(1, 1), true, Progress::Complete));
    let outbox = owner.receives(4, locate(&id));
    owner.begins_all(&id, outbox, &mut Outbox::new());
    (owner, id)
}

/// Pairs of source and receiver, and how many of them are in different racks.
fn sources(owner: &Owner) -> (Vec<(u64, u64)>, usize) {
    let sources: Vec<_> = owner.directory.sources().map(|(_, to, from)| (from, to)).collect();
    let apart = sources.iter().filter(|(from, to)| owner.members.distance(*from, *to) > 0).count();
    (sources.into_iter().map(|(from, to)| (from.0, to.0)).collect(), apart)
}

/// Broadcasts an object of node 1. The last `late` requesters send their requests after the object
/// exists, and the first `slow` of these begin late. Returns the pairs of source and receiver, and
/// how many of them are in different racks.
fn broadcast(
    owner: &mut Owner,
    requesters: &[u64],
    late: usize,
    slow: usize,
) -> Result<(Vec<(u64, u64)>, usize), TestCaseError> {
    let id = minted();
    // Requests before the object exists get their replies together.
    let (early, others) = requesters.split_at(requesters.len() - late);
    for requester in early {
        prop_assert_eq!(owner.source_of(*requester, &id), None);
    }
    let outbox = owner.receives(1, announced(&id, instance(1, 1), true, Progress::Complete));
    prop_assert_eq!(
        owner.begins_all(&id, outbox, &mut Outbox::new()),
        0,
        "requesters that get their replies together are in order"
    );
    // Some receivers begin late.
    let mut unread = Outbox::new();
    for (number, requester) in others.iter().enumerate() {
        let outbox = owner.receives(*requester, locate(&id));
        if number < slow {
            unread.extend(outbox);
        } else {
            owner.begins_all(&id, outbox, &mut unread);
        }
    }
    owner.begins_all(&id, unread, &mut Outbox::new());
    let (sources, apart) = sources(owner);
    prop_assert_eq!(sources.len(), requesters.len());
    let senders: BTreeSet<u64> = sources.iter().map(|(from, _)| *from).collect();
    prop_assert_eq!(senders.len(), requesters.len(), "a node has two receivers: {:?}", sources);
    Ok((sources, apart))
}

proptest! {
    /// Goal: a broadcast enters each other rack once and no node has two receivers, whatever the
    /// order of requests.
    #[test]
    fn a_chain_goes_from_rack_to_rack_once(
        requesters in Just((2..=7).collect::<Vec<u64>>()).prop_shuffle(),
        late in 0..=6usize,
        slow in 0..=6usize,
    ) {
        let (sources, apart) = broadcast(&mut in_racks(), &requesters, late, slow)?;
        prop_assert_eq!(apart, 2, "{:?}", sources);
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
    /// Goal: a broadcast enters each other rack once, and one of these transfers enters the other
    /// pod, whatever the order of requests.
    #[test]
    fn a_chain_goes_into_each_pod_and_rack_once(
        requesters in Just((2..=8).collect::<Vec<u64>>()).prop_shuffle(),
        late in 0..=7usize,
        slow in 0..=7usize,
    ) {
        let (sources, apart) = broadcast(&mut in_pods(), &requesters, late, slow)?;
        prop_assert_eq!(apart, 3, "{:?}", sources);
        let pods = sources.iter().filter(|(from, to)| (*from <= 4) != (*to <= 4)).count();
        prop_assert_eq!(pods, 1, "{:?}", sources);
    }
}

/// Goal: a third rack receives from the second one if the link of the first one is fully used, and
/// else from a complete copy.
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
            owner.receives(holder, announced(&id, instance(1, 1), holder == 1, Progress::Complete));
        }
        let outbox = owner.receives(4, locate(&id));
        owner.begins_all(&id, outbox, &mut Outbox::new());
        owner.receives(4, announced(&id, instance(1, 1), false, fed_by(1)));
        assert_eq!(owner.source_of(7, &id), Some(source), "{carries}");
    }
}

#[test]
fn a_receiver_with_much_of_an_object_is_not_moved() {
    let (mut owner, id) = with_a_far_receiver();
    // Half of the time that 32 MiB take at 1 Gbit/s.
    owner.now = owner.now + 134_000_000;
    let outbox = owner.receives(2, locate(&id));
    assert_eq!(owner.begins_all(&id, outbox, &mut Outbox::new()), 0);
}

#[test]
fn a_receiver_is_moved_once_while_others_arrive() {
    let (mut owner, id) = with_a_far_receiver();
    let mut moves = Vec::new();
    for requester in [2, 3] {
        // A fifth of a transfer.
        owner.now = owner.now + 54_000_000;
        let outbox = owner.receives(requester, locate(&id));
        moves.push(owner.begins_all(&id, outbox, &mut Outbox::new()));
    }
    assert_eq!(moves, [1, 0], "it began more than a quarter of a transfer ago");
}

#[test]
fn no_receiver_is_moved_to_a_node_that_begins_late() {
    let (mut owner, id) = with_a_far_receiver();
    let outbox = owner.receives(2, locate(&id));
    owner.now = owner.now + 134_000_000;
    assert_eq!(owner.begins_all(&id, outbox, &mut Outbox::new()), 0);
    assert_eq!(sources(&owner).0, [(1, 2), (1, 4)]);
}

#[test]
fn a_repeated_lookup_cancels_pending_moves() {
    let (mut owner, id) = with_a_far_receiver();
    owner.receives(2, locate(&id));
    owner.receives(2, locate_with(&id, |locate| locate.avoid = vec![NodeId(1)]));
    assert!(sources(&owner).0.contains(&(1, 4)), "{:?}", sources(&owner));
    let outbox = owner.receives(2, announced(&id, instance(1, 1), false, fed_by(4)));
    assert_eq!(outbox, []);
}

#[test]
fn no_receiver_is_moved_to_a_node_that_does_not_receive() {
    let (mut owner, id) = with_a_far_receiver();
    let replies = owner.receives(2, locate(&id));
    assert_eq!(assigned(&replies).0, 2);
    // It waits for capacity.
    let progress = Progress::Partial { source: None };
    assert_eq!(owner.receives(2, announced(&id, instance(1, 1), false, progress)), []);
    assert_eq!(owner.receives(2, announced(&id, instance(1, 1), false, fed_by(1))), []);
    assert_eq!(sources(&owner).0, [(1, 2), (1, 4)]);
}

#[test]
fn no_node_receives_from_its_own_receiver() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    let sources = [3, 4, 5].map(|requester| owner.source_of(requester, &id));
    assert_eq!(sources, [Some(2), Some(3), Some(4)]);
    // The source of 3 is gone; 4 and 5 are behind 3.
    owner.receives(2, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
    assert_eq!(owner.source_of(3, &id), None);
    let outbox = owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(assigned(&outbox).0, 3);
}

#[test]
fn a_source_that_failed_is_chosen_last() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(3, announced(&id, instance(2, 1), false, Progress::Complete));
    let outbox = owner.receives(4, locate_with(&id, |locate| locate.avoid = vec![NodeId(2)]));
    assert!(matches!(assigned(&outbox), (4, Source::Holder { node: NodeId(3), .. })));
}

#[test]
fn a_refusal_corrects_a_stale_location() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(3, &id), Some(2));
    let not_here = Some((NodeId(2), instance(2, 1)));
    let outbox = owner.receives(3, locate_with(&id, |locate| locate.not_here = not_here));
    let reannounce_if_held = Message::Reannounce { id: id.clone(), instance: instance(2, 1) };
    assert_eq!(outbox, [(NodeId(2), reannounce_if_held), no_source(3, &id)]);
    assert!(!owner.holders(&id).contains(&2));
    let outbox = owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(assigned(&outbox).0, 3, "it has the object after all");
}

#[test]
fn an_older_refusal_does_not_hide_a_newer_copy() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(3, &id), Some(2));
    assert_eq!(owner.source_of(4, &id), Some(3));
    owner.receives(3, announced(&id, instance(2, 1), false, Progress::Complete));
    let not_here = Some((NodeId(3), instance(2, 1)));
    let again = locate_with(&id, |locate| {
        (locate.avoid, locate.not_here) = (vec![NodeId(3)], not_here);
    });
    owner.receives(4, again);
    assert!(owner.holders(&id).contains(&3));
}

#[test]
fn a_ring_result_is_served_by_its_maker_and_its_receivers_only() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Parts));
    assert_eq!(owner.source_of(3, &id), Some(2));
    // Node 3 makes a part, and has announced no copy.
    owner.receives(4, announced(&id, instance(2, 1), false, fed_by(2)));
    assert_eq!(owner.source_of(5, &id), Some(4));
    let found = |owner: &mut Owner| {
        let live = owner.directory.entries.get_mut(&id).unwrap().live.as_mut().unwrap();
        live.found(NodeId(3), &owner.members).unwrap().holder
    };
    assert_eq!(found(&mut owner), NodeId(2), "the copy of node 3 may become void");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(3, announced(&id, instance(2, 1), false, Progress::Complete));
    assert_eq!(found(&mut owner), NodeId(3));
}

#[test]
fn copies_that_receive_from_each_other_restart() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(3, announced(&id, instance(2, 1), false, fed_by(4)));
    let outbox = owner.receives(4, announced(&id, instance(2, 1), false, fed_by(3)));
    let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error: None };
    assert_eq!(outbox, [(NodeId(4), drop)]);
    assert!(owner.directory.sources().all(|(_, node, source)| (node.0, source.0) == (3, 4)));
}

#[test]
fn a_restarted_receiver_still_serves_the_nodes_behind_it() {
    let (mut owner, id) = (Owner::new(), minted());
    owner.receives(2, announced(&id, instance(2, 1), true, growing()));
    owner.receives(3, announced(&id, instance(2, 1), false, fed_by(2)));
    owner.receives(4, announced(&id, instance(2, 1), false, fed_by(3)));
    owner.receives(3, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
    owner.receives(5, announced(&id, instance(2, 1), false, fed_by(2)));
    owner.receives(3, announced(&id, instance(2, 1), false, fed_by(5)));
    let outbox = owner.receives(5, announced(&id, instance(2, 1), false, fed_by(4)));
    let drop = Message::Drop { id, instance: instance(2, 1), error: None };
    assert_eq!(outbox, [(NodeId(5), drop)]);
}

//! Clusters whose nodes were told nothing: they find the racks that share a link, agree on them, and find none on an even network.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_proto::{
    id::NodeId,
    node::{Config, Event},
    place::Place,
    reduce::cost::Link,
    time::Instant,
};

use crate::{
    plan::{Plan, SECOND},
    world::World,
};

/// A minute after the start of the nodes all is known.
const MINUTE: u64 = 60 * SECOND;

/// Nodes in so many racks, whose numbers take turns, and each rack in the pod of its number by so many.
fn world(nodes: u64, racks: u64, pods: u64) -> World {
    let config = Config {
        detection_ns: Some(3 * SECOND),
        ..Config::new(1 << 30, Link { latency_ns: 80_000, bytes_per_second: 125_000_000 })
    };
    let mut world = World::calm(Plan::empty(nodes, config, Instant(MINUTE)), true);
    for id in 1..=nodes + 4 {
        world.net.hide(NodeId(id), id % racks, id % racks % pods);
    }
    // Nodes that know each other from the beginning have set no alarm yet.
    (1..=nodes).for_each(|id| world.tell_soon(NodeId(id), Event::DeadlinePassed));
    world
}

/// The groups as each node that is up sees them, if all see the same.
fn groups(world: &World) -> BTreeSet<Vec<u64>> {
    let seen = world.hosts.values().filter(|host| host.is_up).map(|host| {
        let members = host.node.members();
        let mut groups: BTreeMap<Place, Vec<u64>> = BTreeMap::new();
        for member in members.iter() {
            if let Some(place) = members.place(member.id) {
                groups.entry(place).or_default().push(member.id.0);
            }
        }
        groups.into_values().collect::<BTreeSet<_>>()
    });
    let all: BTreeSet<BTreeSet<Vec<u64>>> = seen.collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().unwrap_or_default()
}

fn expected(groups: &[&[u64]]) -> BTreeSet<Vec<u64>> {
    groups.iter().map(|group| group.to_vec()).collect()
}

#[test]
fn nodes_find_their_racks_within_a_minute_and_stay_by_that() {
    let mut world = world(8, 2, 1);
    world.run_until(Instant(MINUTE));
    let found = expected(&[&[1, 3, 5, 7], &[2, 4, 6, 8]]);
    assert_eq!(groups(&world), found);
    let last = world.net.last_burst();
    assert!(last < Instant(MINUTE / 4), "{last}");
    world.run_until(Instant(60 * MINUTE));
    assert_eq!((groups(&world), world.net.last_burst()), (found, last));
}

/// Goal: of as many nodes as are surveyed a pair meets once, and seldom in a rack; they find their racks, though.
#[test]
fn many_nodes_find_small_racks_within_a_minute() {
    let mut world = world(64, 16, 1);
    world.run_until(Instant(MINUTE));
    let rack = |first: u64| (0..4).map(|number| first + 16 * number).collect::<Vec<u64>>();
    assert_eq!(groups(&world), (1..=16).map(rack).collect());
}

/// Goal: racks of two pods, whose links are shared by two racks each, are known with their pods.
#[test]
fn nodes_find_their_racks_and_pods_within_a_minute() {
    let mut world = world(16, 4, 2);
    world.run_until(Instant(MINUTE));
    let racks = expected(&[&[1, 5, 9, 13], &[2, 6, 10, 14], &[3, 7, 11, 15], &[4, 8, 12, 16]]);
    assert_eq!(groups(&world), racks);
    let members = world.hosts[&NodeId(1)].node.members();
    let (pod, beside) =
        (members.distance(NodeId(1), NodeId(3)), members.distance(NodeId(1), NodeId(5)));
    assert!(beside < pod && pod < members.distance(NodeId(1), NodeId(2)), "{pod} {beside}");
    assert!(world.net.last_burst() < Instant(MINUTE / 2), "{}", world.net.last_burst());
}

/// Goal: nodes that come again and again have others measure for a small part of the time only.
#[test]
fn a_survey_rests_after_the_one_before() {
    let mut world = world(8, 2, 1);
    world.run_until(Instant(MINUTE / 4));
    let first = world.net.last_burst();
    world.add_host(None);
    world.run_until(first + 10 * SECOND);
    assert_eq!(world.net.last_burst(), first);
    world.run_until(Instant(2 * MINUTE));
    assert_eq!(groups(&world), expected(&[&[1, 3, 5, 7, 9], &[2, 4, 6, 8]]));
}

/// Goal: the death of the node that surveys changes nothing; a node that comes is asked with all others, by the next one.
#[test]
fn what_was_found_outlives_the_node_that_found_it_and_takes_newcomers_in() {
    let mut world = world(8, 2, 1);
    world.run_until(Instant(MINUTE));
    world.stop_host(NodeId(1), true);
    world.run_until(Instant(2 * MINUTE));
    assert_eq!(groups(&world), expected(&[&[3, 5, 7], &[2, 4, 6, 8]]));
    world.add_host(None);
    world.run_until(Instant(3 * MINUTE));
    assert_eq!(groups(&world), expected(&[&[3, 5, 7, 9], &[2, 4, 6, 8]]));
}

#[test]
fn an_even_network_is_left_as_it_is() {
    let mut world = world(8, 1, 1);
    world.run_until(Instant(MINUTE));
    assert_eq!(groups(&world), expected(&[]));
    let last = world.net.last_burst();
    world.run_until(Instant(60 * MINUTE));
    assert_eq!((groups(&world), world.net.last_burst()), (expected(&[]), last));
}

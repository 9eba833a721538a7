//! Tests surveys: nodes without configured racks find the racks that share a link and agree on them. On an even network
//! they find none.

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

/// One minute after the start, surveys are complete.
const MINUTE: u64 = 60 * SECOND;

/// Creates a cluster with this many racks, assigned round-robin by node number, and pods, assigned by rack number.
fn world(nodes: u64, racks: u64, pods: u64) -> World {
    let config = Config {
        detection_ns: Some(3 * SECOND),
        ..Config::new(1 << 30, Link { latency_ns: 80_000, bytes_per_second: 125_000_000 })
    };
    let mut world = World::calm(Plan::empty(nodes, config, Instant(MINUTE)), true);
    for id in 1..=nodes + 4 {
        world.net.hide(NodeId(id), id % racks, id % racks % pods);
    }
    // Nodes that are acquainted from the beginning have not set an alarm yet.
    (1..=nodes).for_each(|id| world.deliver_soon(NodeId(id), Event::DeadlinePassed));
    world
}

/// Returns the groups in the view of every node that is up; all views must be equal.
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
fn nodes_find_their_racks_within_a_minute_and_keep_them() {
    let mut world = world(8, 2, 1);
    world.run_until(Instant(MINUTE));
    let found = expected(&[&[1, 3, 5, 7], &[2, 4, 6, 8]]);
    assert_eq!(groups(&world), found);
    let last = world.net.last_burst();
    assert!(last < Instant(MINUTE / 4), "{last}");
    world.run_until(Instant(60 * MINUTE));
    assert_eq!((groups(&world), world.net.last_burst()), (found, last));
}

/// Among the maximum number of surveyed nodes, each pair meets once, and seldom within a rack. They still find their
/// racks.
#[test]
fn many_nodes_find_small_racks_within_a_minute() {
    let mut world = world(64, 16, 1);
    world.run_until(Instant(MINUTE));
    let rack = |first: u64| (0..4).map(|number| first + 16 * number).collect::<Vec<u64>>();
    assert_eq!(groups(&world), (1..=16).map(rack).collect());
}

/// Racks of two pods are found with their pods; two racks share the link of a pod.
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

/// Nodes that join repeatedly must not keep the others measuring.
#[test]
fn a_survey_waits_after_the_previous_one() {
    let mut world = world(8, 2, 1);
    world.run_until(Instant(MINUTE / 4));
    let first = world.net.last_burst();
    world.add_host(None);
    world.run_until(first + 10 * SECOND);
    assert_eq!(world.net.last_burst(), first);
    world.run_until(Instant(2 * MINUTE));
    assert_eq!(groups(&world), expected(&[&[1, 3, 5, 7, 9], &[2, 4, 6, 8]]));
}

/// The failure of the surveying node changes nothing. The next surveying node includes new nodes with all others.
#[test]
fn found_racks_outlive_the_surveying_node_and_include_new_nodes() {
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
fn an_even_network_has_no_groups() {
    let mut world = world(8, 1, 1);
    world.run_until(Instant(MINUTE));
    assert_eq!(groups(&world), expected(&[]));
    let last = world.net.last_burst();
    world.run_until(Instant(60 * MINUTE));
    assert_eq!((groups(&world), world.net.last_burst()), (expected(&[]), last));
}

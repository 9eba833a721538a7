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

fn world(nodes: u64, racks: u64) -> World {
    let config = Config {
        detection_ns: Some(3 * SECOND),
        ..Config::new(1 << 30, Link { latency_ns: 80_000, bytes_per_second: 125_000_000 })
    };
    let plan = Plan {
        nodes,
        config,
        slot_failures: 0,
        disk: None,
        objects: Vec::new(),
        acts: Vec::new(),
        end: Instant(MINUTE),
        apart_until: None,
        has_jobs: false,
    };
    let mut world = World::calm(plan, true);
    for id in 1..=nodes + 4 {
        world.net.hide(NodeId(id), id % racks);
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
    let mut world = world(8, 2);
    world.run_until(Instant(MINUTE));
    let found = expected(&[&[1, 3, 5, 7], &[2, 4, 6, 8]]);
    assert_eq!(groups(&world), found);
    let last = world.net.last_burst();
    assert!(last < Instant(MINUTE / 4), "{last}");
    world.run_until(Instant(60 * MINUTE));
    assert_eq!((groups(&world), world.net.last_burst()), (found, last));
}

/// Goal: the death of the node that surveys changes nothing; a node that comes is asked with all others, by the next one.
#[test]
fn what_was_found_outlives_the_node_that_found_it_and_takes_newcomers_in() {
    let mut world = world(8, 2);
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
    let mut world = world(8, 1);
    world.run_until(Instant(MINUTE));
    assert_eq!(groups(&world), expected(&[]));
    let last = world.net.last_burst();
    world.run_until(Instant(60 * MINUTE));
    assert_eq!((groups(&world), world.net.last_burst()), (expected(&[]), last));
}

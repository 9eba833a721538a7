//! Measures how collectives scale with the number of nodes, on a network without faults or randomness.
//!
//! Times result from the real state machines on virtual links, without the cost of processors and kernels. A node
//! learns of changes in its own memory and transfers up to 50 us late, as in a busy process.

use hoplite_proto::{
    meta::{Dtype, Meta},
    node::Config,
    reduce::cost::Link,
    time::Instant,
};

use crate::{
    net::Racks,
    plan::{Act, Fate, MICROSECOND, Make, Plan, SECOND, Spec},
    trace::Trace,
    world::{SimEvent, World},
};

/// The operation of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// All nodes get the object that one has put.
    Broadcast,
    /// One node gets the sum of an object of each node.
    Reduce,
    /// All nodes get the sum.
    Allreduce,
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Broadcast, Self::Reduce, Self::Allreduce];
}

/// Networks by name, with the typical latency of their switches.
pub const LINKS: [(&str, Link); 3] = [
    ("10 Gbit/s", Link { latency_ns: 50_000, bytes_per_second: 1_250_000_000 }),
    ("100 Gbit/s", Link { latency_ns: 10_000, bytes_per_second: 12_500_000_000 }),
    ("400 Gbit/s", Link { latency_ns: 5_000, bytes_per_second: 50_000_000_000 }),
];

/// Sizes by name. Larger ones take very long to simulate, and the results change little.
pub const SIZES: [(&str, u64); 3] =
    [("128 KiB", 128 << 10), ("1 MiB", 1 << 20), ("32 MiB", 32 << 20)];

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// Seconds from the requests to the last reply.
    pub seconds: f64,
    /// Lower bound for any algorithm: the bytes that one link must carry, plus one latency.
    pub bound: f64,
    /// Mean number of messages that a node received.
    pub messages: f64,
    /// Messages of the busiest node, which is the owner of the requested object.
    pub busiest: u64,
}

/// Time of the requests; all puts are done before.
const HEAD_START: Instant = Instant(10 * SECOND);

/// Runs `what` on `nodes` nodes with `bytes` bytes each.
///
/// # Errors
/// The finding of a checker.
pub fn grow(what: Collective, nodes: u64, bytes: u64, link: Link) -> Result<Growth, String> {
    let mut world = World::calm(plan(what, nodes, bytes, link), false);
    world.run_until(HEAD_START);
    let heard_before = world.heard();
    let end = world.plan.end;
    world.run_until(end);
    if let Some(failure) = world.failure {
        return Err(failure);
    }
    let answers = if what == Collective::Reduce { 1 } else { nodes };
    let got = world.users.got;
    let last = world.users.got_by.values().max().copied().unwrap_or_default();
    if got != answers {
        return Err(format!("{got} of {answers} nodes got the object"));
    }
    let heard = world.heard().into_iter().zip(heard_before).map(|(all, before)| all - before);
    let heard: Vec<u64> = heard.collect();
    let once = bytes as f64 / link.bytes_per_second as f64;
    let times = match what {
        Collective::Broadcast | Collective::Reduce => 1.0,
        Collective::Allreduce => 2.0 * (nodes - 1) as f64 / nodes as f64,
    };
    Ok(Growth {
        seconds: last.since(HEAD_START) as f64 / 1e9,
        bound: once * times + link.latency_ns as f64 / 1e9,
        messages: heard.iter().sum::<u64>() as f64 / nodes as f64,
        busiest: heard.iter().copied().max().unwrap_or(0),
    })
}

fn plan(what: Collective, nodes: u64, bytes: u64, link: Link) -> Plan {
    let meta =
        Meta::array(Dtype::Int64, vec![bytes / 8]).expect("sizes are whole numbers of elements");
    let put = Make::Put { fate: Fate::Sealed, pace_ns: 0 };
    let inputs = if what == Collective::Broadcast { 1 } else { nodes };
    let mut objects: Vec<Spec> = (0..inputs)
        .map(|_| Spec { name: None, meta: meta.clone(), make: put.clone(), ttl_ns: None })
        .collect();
    let put =
        |object: u64| (Instant(MICROSECOND), Act::Make { object: object as usize, at: object });
    let mut acts: Vec<(Instant, Act)> = (0..inputs).map(put).collect();
    let mut wanted = 0;
    if what != Collective::Broadcast {
        wanted = objects.len();
        let inputs: Vec<usize> = (0..wanted).collect();
        let make = Make::Reduce { count: wanted, inputs, timeout_ns: None, cancel_ns: None };
        objects.push(Spec { name: None, meta, make, ttl_ns: None });
        acts.push((HEAD_START, Act::Make { object: wanted, at: 0 }));
    }
    let getters = if what == Collective::Reduce { 1 } else { nodes };
    acts.extend((0..getters).map(|at| {
        let (timeout_ns, cancel_ns, read_ns) = (None, None, 0);
        (
            HEAD_START,
            Act::Get { object: wanted, at, selection: None, timeout_ns, cancel_ns, read_ns },
        )
    }));
    let config = Config::new(1 << 40, link);
    let end = HEAD_START + 1000 * SECOND;
    Plan { objects, acts, ..Plan::empty(nodes, config, end) }
}

/// Worlds for measurements. They skip the checks after each event, which examine everything.
impl World {
    pub(crate) fn calm(plan: Plan, are_surveyed: bool) -> Self {
        let mut world = Self::begin(0, plan, Trace::Off, None);
        world.is_calm = true;
        world.net.be_steady();
        world.racks = Racks::none();
        world.racks.are_surveyed = are_surveyed;
        world.add_acquainted_hosts();
        for (at, act) in world.plan.acts.clone() {
            world.at(at, SimEvent::Act(act));
        }
        world
    }

    /// Number of messages that each host has received.
    fn heard(&self) -> Vec<u64> {
        self.hosts.values().map(|host| host.heard).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { latency_ns: 50_000, bytes_per_second: 1_250_000_000 };

    #[test]
    fn large_objects_take_little_more_than_one_link_needs() {
        for (what, most) in Collective::ALL.into_iter().zip([1.3, 1.3, 1.5]) {
            let growth = grow(what, 16, 32 << 20, LINK).unwrap();
            let ratio = growth.seconds / growth.bound;
            assert!((1.0..most).contains(&ratio), "{what:?}: {growth:?}");
        }
    }

    /// No node's work may grow faster than the number of nodes.
    #[test]
    fn the_owner_receives_few_messages_per_node() {
        for what in Collective::ALL {
            let [few, many] = [16, 64].map(|nodes| grow(what, nodes, 1 << 20, LINK).unwrap());
            assert!(many.busiest <= 5 * few.busiest, "{what:?}: {few:?}, {many:?}");
            assert!(many.messages <= 2.0 * few.messages, "{what:?}: {few:?}, {many:?}");
        }
    }
}

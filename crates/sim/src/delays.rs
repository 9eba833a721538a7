//! Measures how late the other nodes are if one host is slow, frozen or partitioned.
//!
//! Runs broadcasts and first-k sums one after another, on a network without randomness. The first round has no fault,
//! and the limits of the other rounds are relative to it. The limits are those of docs/reliability. Payload travels in
//! blocks that share links. The credit of a transfer is smaller than in a real node, and control messages never wait
//! behind payload.

use std::fmt::Display;

use hoplite_proto::{
    id::{Name, NodeId, ObjectId},
    members::{Member, Members},
    meta::{Dtype, Meta},
    mutants,
    node::{Config, Event},
    reduce::cost::Link,
    time::Instant,
};

use crate::{
    dice::Dice,
    plan::{Act, DETECTION_NS, Fate, Fault, MILLISECOND, Make, Plan, SECOND, Spec},
    trace::Trace,
    verdict::{Mutation, Record},
    world::World,
};

/// Maximum delay of the others' object if a relay becomes unresponsive. A sum with an unresponsive input restarts
/// within this time, and then takes its usual time.
const SILENCE_COSTS_NS_MAX: u64 = 600 * MILLISECOND;

/// Maximum delay of a broadcast and of a first-k sum if the owner of their names becomes unresponsive.
const SILENT_OWNER_COSTS_NS_MAX: u64 = 250 * MILLISECOND;

/// Maximum slowdown of a broadcast if a slow receiver sends its request just before the others, or after the first of
/// them. It may get an idle relay as its source, while the others receive from the original source in two branches.
const TOGETHER_RATIO_MAX: f64 = 2.6;

/// Maximum slowdown if the first receiver was slow and still reports that: it shares the sender's link.
const MENDED_RATIO_MAX: f64 = 2.1;

/// Duration of a round. A disturbance ends before the next round begins.
const ROUND_NS: u64 = 20 * SECOND;

/// Duration of unresponsiveness: longer than the detection time.
const SILENCE_NS: u64 = 6 * SECOND;

const LINK: Link = Link { latency_ns: 80_000, bytes_per_second: 62_500_000 };

/// Number of the node that puts the broadcast objects and requests the sums.
const SOURCE: u64 = 0;

/// Disturbs one host in clusters generated from `seed`.
///
/// # Errors
/// The other nodes were later than allowed.
pub fn disturb_hosts(seed: u64, record: Record, sabotage: Option<Mutation>) -> Result<(), String> {
    mutants::activate(sabotage.and_then(Mutation::node_mutant));
    let trials = [
        slow_receiver,
        slow_receivers_of_a_new_cluster,
        lone_receiver,
        silent_relay,
        silent_input,
        silent_owner,
    ];
    let result = trials.iter().try_for_each(|trial| trial(&mut Dice::new(seed), record));
    mutants::activate(None);
    result
}

/// Runs three broadcasts with a slow receiver that sends its request first, and two after its link has recovered.
fn slow_receiver(dice: &mut Dice, record: Record) -> Result<(), String> {
    let mut rounds = Rounds::new(dice);
    let (slow, others) = (rounds.receivers[0], rounds.receivers[1..].to_vec());
    let lead_ns = dice.pick(&[0, 20, 60, 100]).unwrap_or(0) * MILLISECOND;
    let times = dice.between(8, 18);
    for round in 0..6 {
        let object = rounds.put(round, "object", SOURCE, None);
        if round > 0 {
            rounds.get(round, 0, object, slow);
        }
        rounds.get_all(round, lead_ns, object, &others);
    }
    rounds.fault(1, 0, slow, Fault::Slow { times }, 3 * ROUND_NS - SECOND);
    let mut world = rounds.world(record);
    let undisturbed_ns = took(&mut world, 0, &others)? - lead_ns;
    let most = if lead_ns == 0 { [TOGETHER_RATIO_MAX; 3] } else { [1.6, 1.3, 1.3] };
    for (round, ratio_max) in (1..).zip(most.into_iter().chain([MENDED_RATIO_MAX, 1.3])) {
        let ratio = (took(&mut world, round, &others)? - lead_ns) as f64 / undisturbed_ns as f64;
        let how = format!(
            "one of {} is {times} times slower and sends its request {lead_ns} ns earlier",
            others.len() + 1
        );
        check(ratio <= ratio_max, format!("broadcast {round} took {ratio:.2} times as long"), how)?;
    }
    Ok(())
}

/// Runs three broadcasts in a cluster that has moved nothing, in which one or two slow receivers send their requests
/// first.
fn slow_receivers_of_a_new_cluster(dice: &mut Dice, record: Record) -> Result<(), String> {
    let lead_ns = dice.pick(&[40, 60, 100]).unwrap_or(0) * MILLISECOND;
    let times = dice.between(8, 18);
    let mut rounds = Rounds::new(dice);
    let slow_count = dice.between(1, 2) as usize;
    let (slow, others) = rounds.receivers.split_at(slow_count);
    let (slow, others) = (slow.to_vec(), others.to_vec());
    for round in 0..3 {
        let object = rounds.put(round, "object", SOURCE, None);
        for (number, receiver) in (0..).zip(&slow) {
            rounds.get(round, number * APART_NS, object, *receiver);
        }
        rounds.get_all(round, lead_ns, object, &others);
    }
    for receiver in &slow {
        rounds.fault(0, 0, *receiver, Fault::Slow { times }, 3 * ROUND_NS - SECOND);
    }
    // The slow ones use a part of the source's link.
    let wire_ns = rounds.transfer_ns() * times / (times - slow_count as u64);
    let all = rounds.receivers.len();
    // Two slow ones are first compared with each other.
    let first_max = if slow_count == 1 { 1.6 } else { 2.3 };
    let mut world = rounds.new_world(record);
    for (round, ratio_max) in (0..).zip([first_max, 1.3, 1.3]) {
        let ratio = (took(&mut world, round, &others)? - lead_ns) as f64 / wire_ns as f64;
        let how = format!(
            "{slow_count} of {all} are {times} times slower and send their requests {lead_ns} ns earlier"
        );
        let what = format!("broadcast {round} of a new cluster took {ratio:.2} of the wire");
        check(ratio <= ratio_max, what, how)?;
    }
    Ok(())
}

/// A receiver known to be slow requests another object alone. It lets others go first, but there are no others.
fn lone_receiver(dice: &mut Dice, record: Record) -> Result<(), String> {
    let mut rounds = Rounds::new(dice);
    let (slow, all) = (rounds.receivers[0], rounds.receivers.clone());
    let times = dice.between(8, 18);
    for round in 0..3 {
        let object = rounds.put(round, "object", SOURCE, None);
        rounds.get_all(round, 0, object, if round < 2 { &all } else { &all[..1] });
    }
    rounds.fault(1, 0, slow, Fault::Slow { times }, 2 * ROUND_NS - SECOND);
    let mut world = rounds.world(record);
    took(&mut world, 2, &[slow]).map(drop)
}

/// Runs a broadcast in which one receiver becomes unresponsive.
fn silent_relay(dice: &mut Dice, record: Record) -> Result<(), String> {
    let mut rounds = Rounds::new(dice);
    let all = rounds.receivers.clone();
    for round in 0..2 {
        let object = rounds.put(round, "object", SOURCE, None);
        rounds.get_all(round, 0, object, &all);
    }
    let silent = dice.pick(&all).unwrap_or(1);
    let others: Vec<u64> = all.iter().copied().filter(|receiver| *receiver != silent).collect();
    let at_ns = rounds.transfer_ns() * dice.between(15, 90) / 100;
    let fault = silence(dice);
    rounds.fault(1, at_ns, silent, fault, SILENCE_NS);
    let mut world = rounds.world(record);
    let undisturbed_ns = took(&mut world, 0, &all)?;
    let took_ns = took(&mut world, 1, &others)?;
    let how = format!("{fault:?} of one of {} receivers after {at_ns} ns", all.len());
    let is_soon = took_ns <= undisturbed_ns + SILENCE_COSTS_NS_MAX;
    check(is_soon, format!("a broadcast took {took_ns} ns instead of {undisturbed_ns}"), how)
}

/// Runs a first-k sum in which one input becomes unresponsive.
fn silent_input(dice: &mut Dice, record: Record) -> Result<(), String> {
    let mut rounds = Rounds::new(dice);
    let all = rounds.receivers.clone();
    let count = dice.between(2, all.len() as u64 - 1) as usize;
    for round in 0..2 {
        let put = |(number, node): (u64, &u64)| {
            rounds.put(round, &format!("input{number}"), *node, Some(number * APART_NS))
        };
        let inputs: Vec<usize> = (0..).zip(&all).map(put).collect();
        let make = Make::Reduce { count, inputs, timeout_ns: None, cancel_ns: None };
        let result = rounds.add(round, "sum", make);
        rounds.at(round, 0, Act::Make { object: result, at: SOURCE });
        rounds.get(round, 0, result, SOURCE);
    }
    let silent = dice.pick(&all).unwrap_or(1);
    let at_ns = rounds.transfer_ns() * dice.between(15, 120) / 100;
    let fault = silence(dice);
    rounds.fault(1, at_ns, silent, fault, SILENCE_NS);
    let mut world = rounds.world(record);
    let undisturbed_ns = took(&mut world, 0, &[SOURCE])?;
    let took_ns = took(&mut world, 1, &[SOURCE])?;
    let how = format!("{fault:?} of one of {} inputs after {at_ns} ns", all.len());
    let is_soon = took_ns <= at_ns + SILENCE_COSTS_NS_MAX + undisturbed_ns;
    let what = format!("the first {count} took {took_ns} ns instead of {undisturbed_ns}");
    check(is_soon, what, how)
}

/// Runs a broadcast and a first-k sum of objects whose owner becomes unresponsive, and which is neither an input nor a
/// reader.
fn silent_owner(dice: &mut Dice, record: Record) -> Result<(), String> {
    let mut rounds = Rounds::new(dice);
    // Acts choose from the nodes that are not frozen, by their order: the last one changes no other choice.
    let silent = rounds.plan.nodes - 1;
    rounds.receivers.retain(|node| *node != silent);
    let others = rounds.receivers.clone();
    let count = dice.between(2, others.len() as u64) as usize;
    // The objects exist before the owner becomes unresponsive; or they are put at that time, and their readers have
    // waited since then or before.
    let after_ns = dice.pick(&[None, Some(0), Some(SECOND)]).flatten();
    for round in [0, 1] {
        let object = rounds.put_owned(round, "object", SOURCE, silent, after_ns);
        rounds.get_all(round, 0, object, &others);
    }
    for round in [2, 3] {
        let put =
            |node: &u64| rounds.put_owned(round, &format!("input{node}"), *node, silent, after_ns);
        let inputs: Vec<usize> = others.iter().map(put).collect();
        let make = Make::Reduce { count, inputs, timeout_ns: None, cancel_ns: None };
        let result = rounds.add(round, "sum", make);
        rounds.plan.objects[result].name = None;
        rounds.at(round, 0, Act::Make { object: result, at: SOURCE });
        rounds.get(round, 0, result, SOURCE);
    }
    let fault = silence(dice);
    for round in [1, 3] {
        rounds.fault(round, after_ns.unwrap_or(0), silent, fault, SILENCE_NS);
    }
    // Of several acts at one time, the fault comes first.
    rounds.plan.acts.sort_by_key(|(at, act)| (*at, !matches!(act, Act::Fault { .. })));
    let mut world = rounds.world(record);
    for (round, nodes) in [(0, others.as_slice()), (2, &[SOURCE])] {
        let undisturbed_ns = took(&mut world, round, nodes)?;
        let took_ns = took(&mut world, round + 1, nodes)?;
        let how = format!("{fault:?} of the owner of the names, beside {} others", others.len());
        let is_soon = took_ns <= undisturbed_ns + SILENT_OWNER_COSTS_NS_MAX;
        let what = format!("round {} took {took_ns} ns instead of {undisturbed_ns}", round + 1);
        check(is_soon, what, how)?;
    }
    Ok(())
}

fn silence(dice: &mut Dice) -> Fault {
    if dice.chance(50) { Fault::Freeze } else { Fault::Off }
}

fn check(holds: bool, what: impl Display, how: impl Display) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{what}: {how}")) }
}

/// Time between two calls of a round.
const APART_NS: u64 = 4 * MILLISECOND;

/// A plan that grows round by round.
struct Rounds {
    plan: Plan,
    meta: Meta,
    /// Numbers of the nodes other than [`SOURCE`], in the order of their requests.
    receivers: Vec<u64>,
}

impl Rounds {
    fn new(dice: &mut Dice) -> Self {
        let nodes = dice.between(5, 9);
        let bytes = dice.pick(&[16, 24, 32]).unwrap_or(16) << 20;
        let mut receivers: Vec<u64> = (1..nodes).collect();
        dice.shuffle(&mut receivers);
        let detection_ns = Some(DETECTION_NS);
        let config = Config { detection_ns, ..Config::new(1 << 40, LINK) };
        let plan = Plan::empty(nodes, config, begin_of(9));
        let meta = Meta::array(Dtype::Int64, vec![bytes / 8]).expect("whole numbers of elements");
        Self { plan, meta, receivers }
    }

    /// Time that one link needs for an object.
    fn transfer_ns(&self) -> u64 {
        self.meta.size * SECOND / LINK.bytes_per_second
    }

    fn at(&mut self, round: u64, ns: u64, act: Act) {
        self.plan.acts.push((begin_of(round) + ns, act));
    }

    fn add(&mut self, round: u64, what: &str, make: Make) -> usize {
        // With a prefix of its own, and therefore an owner of its own.
        let name = Some(format!("{what}-{round}/1").parse().expect("a name"));
        self.plan.objects.push(Spec { name, meta: self.meta.clone(), make, ttl_ns: None });
        self.plan.objects.len() - 1
    }

    /// Adds an object that a node puts this long after the beginning of a round, or well before the round.
    fn put(&mut self, round: u64, what: &str, node: u64, after_ns: Option<u64>) -> usize {
        let object = self.add(round, what, Make::Put { fate: Fate::Sealed, pace_ns: 0 });
        let when = after_ns.map_or(begin_of(round).before(SECOND), |ns| begin_of(round) + ns);
        self.plan.acts.push((when, Act::Make { object, at: node }));
        object
    }

    /// Adds an object as [`Self::put`] does, whose primary owner is `owner`.
    fn put_owned(
        &mut self,
        round: u64,
        what: &str,
        node: u64,
        owner: u64,
        after_ns: Option<u64>,
    ) -> usize {
        let object = self.put(round, what, node, after_ns);
        self.plan.objects[object].name = Some(self.name_owned_by(owner, round, what));
        object
    }

    fn name_owned_by(&self, owner: u64, round: u64, what: &str) -> Name {
        let member = |number: u64| {
            let address = std::net::SocketAddr::from(([10, 0, 0, 1], 1));
            Member { id: NodeId(number + 1), address, place: None }
        };
        let mut members = Members::new(member(0));
        (1..self.plan.nodes).for_each(|number| assert!(members.insert(member(number))));
        let names = (0..).map(|prefix| format!("{what}-{round}-{prefix}/1"));
        let mut names = names.map(|name| name.parse::<Name>().expect("a name"));
        let owns = |name: &Name| {
            members.owners(&ObjectId::Named(name.clone())).primary == NodeId(owner + 1)
        };
        names.find(owns).expect("every node owns some names")
    }

    fn get(&mut self, round: u64, ns: u64, object: usize, at: u64) {
        let (timeout_ns, cancel_ns, read_ns) = (None, None, 0);
        self.at(
            round,
            ns,
            Act::Get { object, at, selection: None, timeout_ns, cancel_ns, read_ns },
        );
    }

    fn get_all(&mut self, round: u64, ns: u64, object: usize, nodes: &[u64]) {
        for (number, node) in (0..).zip(nodes) {
            self.get(round, ns + number * APART_NS, object, *node);
        }
    }

    fn fault(&mut self, round: u64, ns: u64, at: u64, fault: Fault, time_ns: u64) {
        self.at(round, ns, Act::Fault { at, fault, time_ns });
    }

    /// Creates a cluster whose nodes know no rate.
    fn new_world(self, record: Record) -> World {
        let mut world = World::calm(self.plan, false);
        world.trace = Trace::of(record);
        world
    }

    /// Creates a cluster whose nodes have measured the network, as after some transfers.
    fn world(self, record: Record) -> World {
        let mut world = self.new_world(record);
        for node in world.staying() {
            world.deliver(node, Event::LinkMeasured { link: LINK, has_bandwidth: true });
        }
        world
    }
}

fn begin_of(round: u64) -> Instant {
    Instant((round + 1) * ROUND_NS)
}

/// Time from the beginning of a round until the last of these nodes has its object.
fn took(world: &mut World, round: u64, nodes: &[u64]) -> Result<u64, String> {
    world.run_until(begin_of(round + 1).before(2 * SECOND));
    if let Some(failure) = &world.failure {
        return Err(failure.clone());
    }
    let got = |number: &u64| {
        let at = world.users.got_by.get(&NodeId(number + 1));
        at.filter(|at| **at > begin_of(round)).map(|at| at.since(begin_of(round)))
    };
    let all: Option<Vec<u64>> = nodes.iter().map(got).collect();
    let last = all.and_then(|all| all.into_iter().max());
    last.ok_or_else(|| format!("round {round} did not end within {ROUND_NS} ns"))
}

#[cfg(test)]
mod tests {
    use hoplite_proto::mutants::Mutant;

    use super::*;

    #[test]
    fn one_disturbed_host_delays_no_other() {
        for seed in 0..10 {
            assert_eq!(disturb_hosts(seed, Record::Nothing, None), Ok(()), "seed {seed}");
        }
    }

    #[test]
    fn mutants_make_some_node_late() {
        for bug in [
            Mutant::IgnoresRateReports,
            Mutant::IgnoresStalledChildren,
            Mutant::NeverServesYielding,
        ] {
            let sabotage = Some(Mutation::Node(bug));
            assert!(
                (0..10).any(|seed| disturb_hosts(seed, Record::Nothing, sabotage).is_err()),
                "{bug:?}"
            );
        }
    }
}

//! Nodes that leave during reduces: without faults, no reduce restarts, and each reduce completes.
//!
//! Nodes have capacity for everything, no client deletes, and no node fails or is partitioned. Only leaves affect the
//! reduces.

use hoplite_proto::{
    meta::{Dtype, Meta},
    node::Config,
    reduce::cost::Link,
    time::Instant,
};

use crate::{
    dice::Dice,
    payload::SMALL_BYTES,
    plan::{Act, Fate, MICROSECOND, MILLISECOND, Make, Plan, SECOND, Spec},
    trace::Trace,
    world::{SimEvent, World},
};

/// Time before the first put, so that all nodes have met.
const HEAD_START: u64 = SECOND;

/// Lets nodes leave while reduces are running.
///
/// # Errors
/// The finding of a checker, or that a reduce restarted.
pub fn leave_during_reduces(seed: u64) -> Result<(), String> {
    let plan = plan(&mut Dice::new(seed));
    let gets = plan.acts.iter().filter(|(_, act)| matches!(act, Act::Get { .. }));
    let (end, gets) = (plan.end, gets.count() as u64);
    let mut world = World::begin(seed, plan, Trace::Off, None);
    world.may_restart = false;
    world.add_acquainted_hosts();
    for (at, act) in world.plan.acts.clone() {
        world.at(at, SimEvent::Act(act));
    }
    world.run_until(end);
    match world.failure {
        Some(failure) => Err(failure),
        None if world.users.got < gets => {
            Err(format!("only {} of {gets} gets returned a sum", world.users.got))
        }
        None => Ok(()),
    }
}

/// Generates several reduces whose callers stay. The nodes with the highest numbers leave; inputs arrive early and
/// late.
fn plan(dice: &mut Dice) -> Plan {
    let nodes = dice.between(4, 9);
    let leaving = dice.between(1, nodes / 2);
    let staying = nodes - leaving;
    let (mut objects, mut acts) = (Vec::new(), Vec::new());
    let mut at = |time: u64, act: Act| acts.push((Instant(HEAD_START + time), act));
    for _ in 0..dice.between(1, 4) {
        let bytes = dice.pick(&[SMALL_BYTES, 128 << 10, 1 << 20, 4 << 20]).unwrap_or(8);
        let meta = Meta::array(Dtype::Int64, vec![bytes / 8]).expect("whole numbers of elements");
        let first = objects.len();
        let inputs: Vec<usize> = (first..first + dice.between(2, 2 * nodes) as usize).collect();
        for object in &inputs {
            let make = Make::Put { fate: Fate::Sealed, pace_ns: dice.below(300 * MICROSECOND) };
            // With a name, a client can request the object before it exists.
            let name = format!("input/{object}").parse().ok();
            objects.push(Spec { name, meta: meta.clone(), make, ttl_ns: None });
            // Late inputs come from nodes that stay: a leaving node rejects puts.
            let is_late = dice.chance(30);
            let (time, of) = if is_late { (400, staying) } else { (20, nodes) };
            at(dice.below(time * MILLISECOND), Act::Make { object: *object, at: dice.below(of) });
        }
        let result = objects.len();
        let make = Make::Reduce { count: inputs.len(), inputs, timeout_ns: None, cancel_ns: None };
        objects.push(Spec { name: None, meta, make, ttl_ns: None });
        at(dice.below(60 * MILLISECOND), Act::Make { object: result, at: dice.below(staying) });
        for _ in 0..dice.between(1, staying) {
            let (at_node, timeout_ns, cancel_ns, read_ns) = (dice.below(staying), None, None, 0);
            let get = Act::Get {
                object: result,
                at: at_node,
                selection: None,
                timeout_ns,
                cancel_ns,
                read_ns,
            };
            at(60 * MILLISECOND + dice.below(200 * MILLISECOND), get);
        }
    }
    for _ in 0..leaving {
        at(25 * MILLISECOND + dice.below(250 * MILLISECOND), Act::Leave { at: 0 });
    }
    acts.sort_by_key(|(at, _)| *at);
    // The leaving node is always the one with the highest number.
    let mut number = nodes;
    for (_, act) in &mut acts {
        if let Act::Leave { at } = act {
            number -= 1;
            *at = number;
        }
    }
    let link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };
    let config = Config::new(1 << 40, link);
    Plan { objects, acts, ..Plan::empty(nodes, config, Instant(100 * SECOND)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reduce_restarts() {
        for seed in 0..crate::TESTED {
            if let Err(failure) = leave_during_reduces(seed) {
                panic!("seed {seed}: {failure}");
            }
        }
    }
}

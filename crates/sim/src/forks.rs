//! Clients that fork. The child reads once each copy that its parent reads, and ends some time
//! later; no copy may be freed before, whatever becomes of the parent.

use hoplite_proto::{
    id::{ClientId, NodeId},
    node::Event,
};

use crate::{
    dice::Dice,
    plan::{Act, MILLISECOND, Plan, SECOND},
    users::Later,
    world::{SimEvent, World},
};

impl Plan {
    /// Lets some clients fork.
    pub(crate) fn add_forks(&mut self, dice: &mut Dice) {
        let horizon = self.end.0 / 2;
        for _ in 0..dice.between(1, 8) {
            let (at, time_ns) = (dice.below(64), dice.between(MILLISECOND, 3 * SECOND));
            self.add(dice.below(horizon * 3 / 2), Act::Fork { at, time_ns });
        }
        self.acts.sort_by_key(|(at, _)| *at);
    }
}

impl World {
    /// Lets a client fork that reads a copy, if there is one.
    pub(crate) fn fork(&mut self, at: u64, time_ns: u64) {
        let nodes = self.staying();
        let reading = self.users.reading();
        let reading: Vec<_> =
            reading.into_iter().filter(|(node, _)| nodes.contains(node)).collect();
        let Some((node, client)) = reading.get(at as usize % reading.len().max(1)).copied() else {
            return;
        };
        let child = self.users.fork(node, client);
        self.deliver(node, Event::ClientForked { client, child });
        self.after(time_ns, SimEvent::Users(Later::ChildEnds { node, child }));
    }

    pub(crate) fn child_ends(&mut self, node: NodeId, child: ClientId) {
        self.users.end_reads(child);
        self.deliver(node, Event::ClientDisconnected { client: child, process: None });
    }
}

#[cfg(test)]
mod tests {
    use hoplite_proto::mutants::Mutant;

    use crate::{
        case::Case,
        dice::Dice,
        verdict::{Mutation, Record},
    };

    fn forked(seed: u64) -> Case {
        let mut case = Case::new(seed);
        case.plan.add_forks(&mut Dice::new(seed));
        case
    }

    #[test]
    fn clusters_with_forks_pass_all_checks() {
        for seed in 0..crate::TESTED / 2 {
            assert_eq!(forked(seed).run(Record::Nothing, None).failure, None, "seed {seed}");
        }
    }

    #[test]
    fn a_copy_that_a_child_loses_is_detected() {
        let sabotage = Some(Mutation::Node(Mutant::IgnoresForks));
        let mut all = (0..300).map(forked);
        let failure = all.find_map(|case| case.run(Record::Nothing, sabotage).failure);
        assert!(failure.is_some_and(|failure| failure.contains("reads")));
    }
}

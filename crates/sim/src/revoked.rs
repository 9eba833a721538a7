//! Revokes members. Each node learns of it by itself within a second, and refuses the member from
//! then on; the member ends 5 s later. No node may count a member again that it has barred.

use std::collections::BTreeSet;

use hoplite_proto::{id::NodeId, node::Event};

use crate::{
    dice::Dice,
    plan::{Act, Plan, SECOND},
    world::{SimEvent, World},
};

/// How long a node continues after its own certificate is revoked.
const ENDS_AFTER_NS: u64 = 5 * SECOND;

/// Time within which each node reads the revocation list.
const READ_NS: u64 = SECOND;

impl Plan {
    /// Revokes one or two members.
    pub(crate) fn add_revocations(&mut self, dice: &mut Dice) {
        let horizon = self.end.0 / 2;
        for _ in 0..dice.between(1, 2) {
            self.add(dice.below(horizon * 3 / 2), Act::Revoke { at: dice.below(64) });
        }
        self.acts.sort_by_key(|(at, _)| *at);
    }
}

impl World {
    /// Revokes a member, if the others can continue without it.
    pub(crate) fn revoke(&mut self, at: u64) {
        let nodes = self.staying();
        let can_revoke = nodes.len() > 2 && self.all_have_met();
        let node = nodes.get(at as usize % nodes.len().max(1)).filter(|_| can_revoke);
        let Some(node) = node.copied() else { return };
        self.users.is_shrunk = true;
        self.trace.line(self.now, Some(node), "world", || "revoked".into());
        if let Some(host) = self.hosts.get_mut(&node) {
            // It gets no requests any more, and may fail all that are open.
            host.is_leaving = true;
        }
        self.revoked.insert(node, BTreeSet::new());
        let others = self.hosts.keys().copied().filter(|other| *other != node);
        for other in others.collect::<Vec<_>>() {
            let delay_ns = self.dice.below(READ_NS);
            self.after(delay_ns, SimEvent::Barred { node: other, member: node });
        }
        self.after(ENDS_AFTER_NS, SimEvent::Ended { node });
    }

    /// A node has read that a member is revoked.
    pub(crate) fn bar(&mut self, node: NodeId, member: NodeId) {
        if !self.is_up(node) {
            return;
        }
        self.revoked.entry(member).or_default().insert(node);
        let reason = "its certificate is revoked".into();
        self.deliver(node, Event::PeerRevoked { node: member, reason });
    }

    /// Whether one of two nodes refuses connections of the other.
    pub(crate) fn is_barred(&self, one: NodeId, other: NodeId) -> bool {
        let bars = |node, member| self.revoked.get(&member).is_some_and(|by| by.contains(&node));
        !self.revoked.is_empty() && (bars(one, other) || bars(other, one))
    }

    /// A node that has barred a member must not count it again.
    pub(crate) fn counts_barred(&self, node: NodeId) -> Option<String> {
        let members = self.hosts.get(&node)?.node.members();
        let is_back = |(member, by): &(&NodeId, &BTreeSet<NodeId>)| {
            by.contains(&node) && members.contains(**member)
        };
        let (member, _) = self.revoked.iter().find(is_back)?;
        Some(format!("{node:?} counts {member:?} as a member, which it has barred"))
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

    fn revoked(seed: u64) -> Case {
        let mut case = Case::new(seed);
        case.plan.nodes = case.plan.nodes.max(4);
        case.plan.add_revocations(&mut Dice::new(seed));
        case
    }

    #[test]
    fn clusters_with_revoked_members_pass_all_checks() {
        for seed in 0..crate::TESTED / 2 {
            assert_eq!(revoked(seed).run(Record::Nothing, None).failure, None, "seed {seed}");
        }
    }

    #[test]
    fn a_revoked_member_that_stays_is_detected() {
        let sabotage = Some(Mutation::Node(Mutant::KeepsRevokedMembers));
        let mut all = (0..20).map(revoked);
        let failure = all.find_map(|case| case.run(Record::Nothing, sabotage).failure);
        assert!(failure.is_some_and(|failure| failure.contains("which it has barred")));
    }
}

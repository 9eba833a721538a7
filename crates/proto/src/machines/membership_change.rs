//! Membership changes, for machines whose state other nodes hold: which nodes need requests and
//! announcements again.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{
    id::{NodeId, ObjectId},
    machines::world::World,
    members::{Member, Members},
};

/// Members joined, left or failed, or members need everything again. Several changes in a row are
/// one change.
#[derive(Clone, Debug)]
pub(crate) struct MembershipChange {
    /// The members before the change. Of several changes, the nodes that were a member before any
    /// of them: an owner among those was an owner all the time.
    pub(crate) before: Members,
    /// The nodes that may have lost what they received before.
    rejoined: BTreeSet<NodeId>,
    /// The nodes whose state here is void: whatever they have, or were requested to keep.
    pub(crate) forgotten: BTreeSet<NodeId>,
    /// Its number in this node's shard of the directory.
    pub(crate) number: u32,
}

impl MembershipChange {
    pub(crate) fn new(before: Members, rejoined: Option<NodeId>) -> Self {
        let (rejoined, forgotten) = (rejoined.into_iter().collect(), BTreeSet::new());
        Self { before, rejoined, forgotten, number: 0 }
    }

    /// Adds a later change.
    pub(crate) fn merge(&mut self, later: &Self) {
        let known: BTreeMap<NodeId, Member> =
            self.before.iter().map(|member| (member.id, member)).collect();
        for member in later.before.iter().filter(|member| !known.contains_key(&member.id)) {
            // It was no member at first.
            self.before.insert(member);
            self.rejoined.insert(member.id);
        }
        self.rejoined.extend(&later.rejoined);
        self.forgotten.extend(&later.forgotten);
        self.number = later.number;
    }

    /// Whether messages to `node` may be lost.
    pub(crate) fn is_rejoined(&self, node: NodeId) -> bool {
        self.rejoined.contains(&node) || self.forgotten.contains(&node)
    }

    /// The nodes to which messages may be lost.
    pub(crate) fn rejoined(&self) -> impl Iterator<Item = NodeId> {
        self.rejoined.union(&self.forgotten).copied()
    }

    /// Whether `node` needs everything, because it received nothing before or has lost it.
    fn concerns(&self, node: NodeId, was_told: bool) -> bool {
        !was_told || self.is_rejoined(node)
    }

    /// The owners of `id` that were not owners before, or need everything again.
    pub(crate) fn new_owners(&self, id: &ObjectId, world: &World) -> Vec<NodeId> {
        let (then, now) = (self.before.owners(id), world.members().owners(id));
        now.iter().filter(|owner| self.concerns(*owner, then.contains(*owner))).collect()
    }

    /// The primary owner of `id`, if it was not the primary owner before, or needs everything
    /// again.
    pub(crate) fn new_owner(&self, id: &ObjectId, world: &World) -> Option<NodeId> {
        let (then, now) = (self.before.owners(id).primary, world.members().owners(id).primary);
        self.concerns(now, then == now).then_some(now)
    }

    /// The other members that are new, or need everything again.
    pub(crate) fn new_members(&self, world: &World) -> BTreeSet<NodeId> {
        let others = world.others().into_iter();
        others.filter(|node| self.concerns(*node, self.before.contains(*node))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> impl Iterator<Item = ObjectId> {
        (0..200).map(|n| alloc::format!("group{n}/1").parse().expect("a name"))
    }

    /// Goal: a node that was not an owner all the time gets everything, and no other.
    /// Method: two changes as one, compared with each of them.
    #[test]
    fn merged_changes_concern_whoever_one_of_them_concerns() {
        let mut world = World::of(6);
        let mut members = world.members().clone();
        let mut first = MembershipChange::new(members.clone(), None);
        members.remove(NodeId(4));
        first.forgotten.insert(NodeId(4));
        let mut second = MembershipChange::new(members.clone(), None);
        members.insert(World::member(7));
        members.insert(World::member(4));
        second.number = 2;
        *world.members_mut() = members;
        let mut both = first.clone();
        both.merge(&second);
        assert_eq!(both.number, 2);
        for id in ids() {
            let expected: BTreeSet<NodeId> = [&first, &second]
                .into_iter()
                .flat_map(|change| change.new_owners(&id, &world))
                .collect();
            let merged: BTreeSet<NodeId> = both.new_owners(&id, &world).into_iter().collect();
            assert_eq!(merged, expected, "{id}");
            let is_first_new =
                [&first, &second].into_iter().any(|it| it.new_owner(&id, &world).is_some());
            assert_eq!(both.new_owner(&id, &world).is_some(), is_first_new, "{id}");
        }
    }

    /// Goal: an owner that another node displaced for a while has missed what happened then.
    #[test]
    fn a_node_that_joined_and_left_meanwhile_has_displaced_owners() {
        let world = World::of(6);
        let mut with_more = world.members().clone();
        with_more.insert(World::member(7));
        let joins = MembershipChange::new(world.members().clone(), None);
        let mut leaves = MembershipChange::new(with_more.clone(), None);
        leaves.forgotten.insert(NodeId(7));
        let mut both = joins;
        both.merge(&leaves);
        let mut displaced = 0;
        for id in ids() {
            let then = with_more.owners(&id);
            let missed = world.members().owners(&id).iter().filter(|owner| !then.contains(*owner));
            let missed: Vec<NodeId> = missed.collect();
            displaced += missed.len();
            assert_eq!(both.new_owners(&id, &world), missed, "{id}");
        }
        assert!(displaced > 0);
    }
}

//! A membership change, for machines whose state other nodes hold: which nodes need requests and announcements again.

use alloc::{collections::BTreeSet, vec::Vec};

use crate::{
    id::{NodeId, ObjectId},
    machines::world::World,
    members::Members,
};

/// Members joined, left or failed, or a member needs everything again.
#[derive(Clone, Debug)]
pub(crate) struct MembershipChange {
    /// The members before the change.
    pub(crate) before: Members,
    /// The node that may have lost what it received before.
    pub(crate) rejoined: Option<NodeId>,
}

impl MembershipChange {
    /// Whether `node` needs everything, because it received nothing before or has lost it.
    fn concerns(&self, node: NodeId, was_told: bool) -> bool {
        !was_told || self.rejoined == Some(node)
    }

    /// The owners of `id` that were not owners before, or need everything again.
    pub(crate) fn new_owners(&self, id: &ObjectId, world: &World) -> Vec<NodeId> {
        let (then, now) = (self.before.owners(id), world.members().owners(id));
        now.iter().filter(|owner| self.concerns(*owner, then.contains(*owner))).collect()
    }

    /// The primary owner of `id`, if it was not the primary owner before, or needs everything again.
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

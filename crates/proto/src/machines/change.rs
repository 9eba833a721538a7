//! A change of members, for those who keep state at other nodes: which of these have to be told, or asked, anew.

use alloc::{collections::BTreeSet, vec::Vec};

use crate::{
    id::{NodeId, ObjectId},
    machines::world::World,
    members::Members,
};

/// Members came, went, or have to be told anew.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The members before it.
    pub(crate) before: Members,
    /// For which nodes what was said before may be lost.
    pub(crate) renewed: Option<NodeId>,
}

impl Change {
    /// Whether everything has to be said to `node`, which heard none of it, or lost it.
    fn concerns(&self, node: NodeId, was_told: bool) -> bool {
        !was_told || self.renewed == Some(node)
    }

    /// The owners of `id` that were none before or have to be told anew.
    pub(crate) fn new_owners(&self, id: &ObjectId, world: &World) -> Vec<NodeId> {
        let (then, now) = (self.before.owners(id), world.members().owners(id));
        now.iter().filter(|owner| self.concerns(*owner, then.contains(*owner))).collect()
    }

    /// The first owner of `id`, if it was not that before or has to be told anew.
    pub(crate) fn new_owner(&self, id: &ObjectId, world: &World) -> Option<NodeId> {
        let (then, now) = (self.before.owners(id).first, world.members().owners(id).first);
        self.concerns(now, then == now).then_some(now)
    }

    /// The other members that are new or have to be told anew.
    pub(crate) fn new_members(&self, world: &World) -> BTreeSet<NodeId> {
        let others = world.others().into_iter();
        others.filter(|node| self.concerns(*node, self.before.contains(*node))).collect()
    }
}

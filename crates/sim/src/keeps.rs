//! Clients that want an object to be at several nodes: when they are answered, it is.

use hoplite_proto::{
    ask::Ask,
    id::{NodeId, ObjectId},
};

use crate::{plan::Act, users::Purpose, world::World};

impl World {
    /// Asks the node at which an object was put for more copies of it.
    pub(crate) fn keep(&mut self, object: usize, copies: u32, act: &Act) {
        let Some(id) = self.id_or_later(object, act) else { return };
        let node = self.users.objects[object].node;
        let nodes = self.staying();
        let Some(node) = node.filter(|node| nodes.contains(node)) else { return };
        let client = self.client_of(node);
        let purpose = Purpose::Keep { object, copies };
        self.ask(node, client, Ask::Keep { id, copies }, purpose, None);
    }

    /// So many nodes hold it, or all that there are as the one sees it that said so.
    pub(crate) fn check_kept(&mut self, node: NodeId, object: usize, copies: u32) {
        let known = &self.users.objects[object];
        let Some(id) = known.id.clone() else { return };
        // Of several that go by one name, one may be replaced by another just now.
        if known.is_delete_asked || self.users.objects_of(&id).count() > 1 {
            return;
        }
        let members = self.hosts[&node].node.members().iter().count();
        let wanted = members.min(copies as usize);
        let kept = self.keepers(&id);
        if kept < wanted {
            self.fail(format!("{id:?} is kept by {kept} nodes, not by {wanted} as {node:?} says"));
        }
    }

    /// Nodes that hold an original of an object, those among them that have died.
    fn keepers(&self, id: &ObjectId) -> usize {
        let holds = |table: &hoplite_proto::table::Table| {
            let copy = table.current(id).and_then(|instance| table.get(instance));
            copy.is_some_and(|copy| copy.origin && copy.is_complete())
        };
        self.hosts.values().filter(|host| holds(host.node.table())).count()
    }
}

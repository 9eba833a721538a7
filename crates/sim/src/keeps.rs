//! Clients that want an object to be at several nodes: when they are answered it is, and so it stays for as long as the
//! node lives that they asked. If fewer end than hold it, it is there in any case.

use hoplite_proto::{
    ask::Ask,
    id::{NodeId, ObjectId},
    table::Table,
};

use crate::{
    plan::Act,
    users::{KeptCopies, Purpose},
    world::World,
};

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
        if known.may_be_gone() || self.users.objects_of(&id).count() > 1 {
            return;
        }
        let members = self.hosts[&node].node.members().iter().count();
        let wanted = members.min(copies as usize);
        let holders = || self.hosts.values().filter(|host| holds(host.node.table(), &id));
        // Those among them that have died and are not missed yet.
        let kept = holders().count();
        let made = holders().filter(|host| host.is_up).count();
        if kept < wanted {
            self.fail(format!("{id:?} is kept by {kept} nodes, not by {wanted} as {node:?} says"));
        }
        let (asked, ended) = (copies as usize, self.ended());
        self.users.objects[object].kept = Some(KeptCopies { node, asked, made, ended });
    }

    /// After all faults: what was promised is so.
    pub(crate) fn check_promises(&mut self) {
        for object in 0..self.users.objects.len() {
            let known = &self.users.objects[object];
            let (Some(kept), Some(id)) = (known.kept, known.id.clone()) else { continue };
            if known.may_be_gone() || self.users.objects_of(&id).count() > 1 {
                continue;
            }
            let mut there = self.staying();
            let nodes = there.len();
            there.retain(|node| holds(self.hosts[node].node.table(), &id));
            let ended = self.ended() - kept.ended;
            if ended < kept.made && there.is_empty() && !self.may_lose_files() {
                let made = kept.made;
                self.fail(format!(
                    "{id:?} was kept by {made} nodes, {ended} ended, and it is lost"
                ));
            }
            let has_room = !self.is_tight() && self.plan.slot_failures == 0;
            let wanted = kept.asked.min(nodes);
            if has_room && there.contains(&kept.node) && there.len() < wanted {
                self.fail(format!("{id:?} is to be kept by {wanted} nodes and is by {there:?}"));
            }
        }
    }

    /// Nodes that have left or died.
    fn ended(&self) -> usize {
        self.hosts.values().filter(|host| !host.is_up).count()
    }
}

/// Whether a node has an original of an object.
fn holds(table: &Table, id: &ObjectId) -> bool {
    let copy = table.current(id).and_then(|instance| table.get(instance));
    copy.is_some_and(|copy| copy.origin && copy.is_complete())
}

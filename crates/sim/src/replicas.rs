//! Clients that request replicas. Once a client has its reply, the replicas exist, and they are maintained while the
//! node of the request lives. If fewer nodes end than hold the object, it still exists.

use hoplite_proto::{
    id::{NodeId, ObjectId},
    request::Request,
    table::Table,
};

use crate::{
    plan::Act,
    users::{Purpose, ReplicaPromise},
    world::World,
};

impl World {
    /// Requests replicas from the node at which an object was put.
    pub(crate) fn keep(&mut self, object: usize, copies: u32, act: &Act) {
        let Some(id) = self.id_or_later(object, act) else { return };
        let node = self.users.objects[object].node;
        let nodes = self.staying();
        let Some(node) = node.filter(|node| nodes.contains(node)) else { return };
        let client = self.client_of(node);
        let purpose = Purpose::Replicate { object, replicas: copies };
        self.ask(node, client, Request::Replicate { id, replicas: copies }, purpose, None);
    }

    /// Checks a reply: at least `copies` nodes hold the object, or all members that the node of the request has.
    pub(crate) fn check_replicas(&mut self, node: NodeId, object: usize, copies: u32) {
        let known = &self.users.objects[object];
        let Some(id) = known.id.clone() else { return };
        // Of several objects with one name, one may just be replaced by another.
        if known.may_be_gone() || self.users.objects_of(&id).count() > 1 {
            return;
        }
        let members = self.hosts[&node].node.members().iter().count();
        let wanted = members.min(copies as usize);
        let holders = || self.hosts.values().filter(|host| holds(host.node.table(), &id));
        // Includes holders that have failed but are not yet declared dead.
        let kept = holders().count();
        let made = holders().filter(|host| host.is_up).count();
        // The message that a file is lost may not have arrived.
        if kept < wanted && !self.may_lose_files() {
            self.fail(format!("{id:?} has {kept} replicas, but {node:?} reported {wanted}"));
        }
        let (asked, ended) = (copies as usize, self.ended());
        self.users.objects[object].kept = Some(ReplicaPromise { node, asked, made, ended });
    }

    /// Checks, after all faults, that the replicas exist that were reported.
    pub(crate) fn check_replica_promises(&mut self) {
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
                    "{id:?} is lost: it had {made} replicas, and {ended} nodes ended"
                ));
            }
            let has_room = !self.is_tight() && self.plan.slot_failures == 0;
            let wanted = kept.asked.min(nodes);
            if has_room && there.contains(&kept.node) && there.len() < wanted {
                self.fail(format!(
                    "{id:?} should have {wanted} replicas, but is only at {there:?}"
                ));
            }
        }
    }

    /// Number of nodes that have left or failed.
    fn ended(&self) -> usize {
        self.hosts.values().filter(|host| !host.is_up).count()
    }
}

/// Whether a node has a complete, pinned copy of an object.
fn holds(table: &Table, id: &ObjectId) -> bool {
    let copy = table.current(id).and_then(|instance| table.get(instance));
    copy.is_some_and(|copy| copy.pinned && copy.is_complete())
}

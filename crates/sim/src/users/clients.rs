//! Manages clients and their requests.

use hoplite_proto::{
    id::{ClientId, NodeId, ObjectId, RequestId},
    node::Event,
    request::Request,
};

use super::{Client, PendingRequest, Purpose};
use crate::{
    plan::{Act, MICROSECOND},
    world::{SimEvent, World},
};

impl World {
    /// Returns a node for a request, and one of its clients.
    pub(crate) fn client_at(&mut self, at: u64) -> Option<(NodeId, ClientId)> {
        let nodes = self.staying();
        let node = *nodes.get(at as usize % nodes.len().max(1))?;
        Some((node, self.client_of(node)))
    }

    pub(crate) fn client_of(&mut self, node: NodeId) -> ClientId {
        let here = self.users.clients.iter();
        let here = here.filter(|(_, client)| client.node == node && !client.is_gone);
        let here: Vec<ClientId> = here.map(|(id, _)| *id).collect();
        if here.len() < 2 || self.dice.chance(5) {
            let id = ClientId(self.users.count());
            let of_job_since = self.join_perhaps(node, id);
            self.users.clients.insert(id, Client { node, is_gone: false, of_job_since });
            return id;
        }
        self.dice.pick(&here).unwrap_or(ClientId(0))
    }

    /// Whether all nodes have met. If the only node that two groups have in common ends before it has introduced them,
    /// they are two clusters.
    pub(crate) fn all_have_met(&self) -> bool {
        let up = || self.hosts.values().filter(|host| host.is_up);
        up().all(|host| up().all(|other| host.node.members().contains(other.member.id)))
    }

    /// Returns the id of an object; if it is unknown, the act waits for it.
    pub(crate) fn id_or_later(&mut self, object: usize, act: &Act) -> Option<ObjectId> {
        let id = self.users.objects[object].id.clone();
        if id.is_none() {
            self.users.blocked.entry(object).or_default().push(act.clone());
        }
        id
    }

    pub(super) fn object_known(&mut self, object: usize, id: ObjectId) {
        let known = self.users.by_id.entry(id.clone()).or_default();
        if !known.contains(&object) {
            known.push(object);
        }
        self.users.objects[object].id = Some(id);
        for act in self.users.blocked.remove(&object).unwrap_or_default() {
            let delay_ns = self.dice.below(100 * MICROSECOND);
            self.after(delay_ns, SimEvent::Act(act));
        }
    }

    pub(crate) fn ask(
        &mut self,
        node: NodeId,
        client: ClientId,
        body: Request,
        purpose: Purpose,
        timeout_ns: Option<u64>,
    ) -> RequestId {
        let request = RequestId(self.users.count());
        let deadline = timeout_ns.map(|timeout| self.now + timeout);
        let (is_void, is_answered) = (false, false);
        let at = self.now;
        let pending = PendingRequest { node, client, purpose, at, deadline, is_void, is_answered };
        self.users.requests.insert(request, pending);
        self.deliver(node, Event::Request { client, request, body, deadline });
        request
    }
}

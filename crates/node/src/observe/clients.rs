//! What is known of clients: their processes, and the request that one of them made last.

use std::collections::HashMap;

use hoplite_proto::id::{ClientId, NodeId, ObjectId, ServeId};

use super::{events::Process, running::OpenRequest};

/// What is looked up in the rest of the node, only for what is recorded.
pub(crate) trait Lookup {
    /// The process of a client.
    fn process(&self, client: ClientId) -> Option<u32>;
    /// The node that requested a copy.
    fn reader(&self, serve: ServeId) -> Option<NodeId>;
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    /// The request that the state machine handles now, or has left without a reply.
    pub(super) current: Option<OpenRequest>,
    /// The last named object that a client got.
    pub(super) last_read: Option<(ClientId, ObjectId)>,
    processes: HashMap<ClientId, Process>,
}

impl Clients {
    pub(super) fn forget(&mut self, client: ClientId) {
        self.processes.remove(&client);
    }

    pub(super) fn process(&mut self, client: ClientId, lookup: &impl Lookup) -> Process {
        *self.processes.entry(client).or_insert_with(|| lookup.process(client))
    }

    /// The number of clients with a known process.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.processes.len()
    }
}

//! What is known of clients: their processes, and the request that one of them made last.

use std::collections::HashMap;

use hoplite_proto::{
    id::{ClientId, NodeId, ObjectId, RequestId, ServeId},
    meta::Op,
    time::Instant,
};

use super::events::{Process, Subject};

/// A request of a client.
#[derive(Debug)]
pub(super) struct OpenRequest {
    pub(super) request: RequestId,
    pub(super) client: ClientId,
    pub(super) verb: &'static str,
    pub(super) subject: Subject,
    pub(super) since: Instant,
    /// Of a put: its size. Of a reduce: the number of inputs.
    pub(super) size: u64,
    /// Of a reduce: how many of them to fold, and the operation.
    pub(super) reduce: Option<(u32, Op)>,
}

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

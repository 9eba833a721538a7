//! The client API, in the process of a node or attached to one: each method sends one request.
//! Puts are in [`super::put`], gets in [`super::get`].

use std::{os::fd::OwnedFd, path::Path, sync::Arc, time::Duration};

use hoplite_proto::{
    id::{Name, NodeId, ObjectId},
    inspection::Inspection,
    message::{Holding, Listed},
    meta::Op,
    request::{Location, ObjectRow, Reply, Request},
    table::CopyKey,
};

use super::{
    connection::{Connection, SlotGuard},
    programs::Programs,
    wait::{PendingReply, nanoseconds, send},
};
use crate::error::Error;

/// A client of a node. Clones share one identity. Its pins and unsealed objects live while a clone
/// or a view exists.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
    /// Whether the calling thread may block.
    may_wait: bool,
}

/// Timeout of requests to which a node replies at once, from memory: they detect a stopped node
/// within seconds.
const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

/// Extracts the result from the only reply that a request may have.
macro_rules! answered {
    ($reply:pat => $wanted:expr) => {
        |reply, _| match reply {
            $reply => Ok($wanted),
            _ => Err($crate::error::Error::unexpected_reply()),
        }
    };
}
pub(super) use answered;

impl Client {
    pub(crate) fn embedded(programs: Arc<Programs>) -> Self {
        Self { connection: Connection::embedded(programs), may_wait: true }
    }

    /// Attaches to the node of this host that serves the Unix socket `path`.
    ///
    /// # Errors
    /// [`Error::Attach`] if no node replies there; [`CallError::NotAllowed`] if it requires a
    /// capability.
    pub fn attach(path: &Path, timeout: Option<Duration>) -> Result<Self, Error> {
        Ok(Self { connection: Connection::attach(path, None, timeout)?, may_wait: true })
    }

    /// Attaches with a capability, given as its text, which restricts the client.
    ///
    /// # Errors
    /// As [`Client::attach`]; [`CallError::NotAllowed`] also if the node rejects the capability.
    pub fn attach_with_capability(
        path: &Path,
        capability: String,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let connection = Connection::attach(path, Some(capability), timeout)?;
        Ok(Self { connection, may_wait: true })
    }

    /// Pins everything that the clients of this process read, including closed clients, whose views
    /// live on. The pins last while any process has the returned descriptors. Waits at most 2 s for
    /// each attached client's node.
    pub fn pin_for_fork() -> Vec<OwnedFd> {
        Connection::pin_for_fork()
    }

    /// The same client for threads that must not block, such as that of an event loop: another
    /// thread allocates memory.
    pub fn in_passing(&self) -> Self {
        Self { connection: self.connection.clone(), may_wait: false }
    }

    /// Whether its node is closed or gone.
    pub fn is_closed(&self) -> bool {
        self.connection.is_down()
    }

    /// Whether the members of the node's cluster are authenticated over encrypted connections: the
    /// cluster has a token or certificates and uses encryption, or the node does not listen.
    pub fn is_authenticated(&self) -> bool {
        self.connection.is_authenticated()
    }

    /// Whether this process is a forked child of the process that opened the client.
    pub fn is_forked(&self) -> bool {
        self.connection.is_forked()
    }

    /// Reserves a name, or a new id, for an object that this client will put, create or reduce, so
    /// that others can wait for it meanwhile. If the client ends without creating it, they get
    /// [`CallError::ObjectLost`].
    pub fn start_reserve(
        &self,
        name: Option<Name>,
        timeout: Option<Duration>,
    ) -> PendingReply<ObjectId> {
        self.start(
            Request::Reserve { name },
            timeout.or(AT_ONCE),
            answered!(Reply::Reserved { id } => id),
        )
    }

    /// Makes slots: ids that any client may put, each once. The unfilled ones end with this client.
    pub fn start_slots(&self, count: u32) -> PendingReply<Vec<ObjectId>> {
        self.start(Request::Slots { count }, AT_ONCE, answered!(Reply::Slots { ids } => ids))
    }

    /// Ends every wait of this client with [`Error::Closed`], and cancels its reservations, so that
    /// waits for them end. Its views stay valid, and keep its attachment alive.
    pub fn close(&self) {
        self.connection.close();
    }

    /// Starts to wait until `count` of `ids` are complete on some node, or can no longer appear.
    /// Returns their indices, perhaps fewer at the timeout.
    pub fn start_wait(
        &self,
        ids: Vec<ObjectId>,
        count: u32,
        timeout: Option<Duration>,
    ) -> PendingReply<Vec<u32>> {
        self.start(
            Request::Wait { ids, count },
            timeout,
            answered!(Reply::Waited { ready } => ready),
        )
    }

    /// Starts to delete the names older than `name`, except for the newest `keep - 1`.
    pub fn start_prune(
        &self,
        name: Name,
        keep: u64,
        timeout: Option<Duration>,
    ) -> PendingReply<()> {
        self.start_done(Request::Prune { name, retain: keep }, timeout)
    }

    /// Starts to look up the holders of an object: at once, or once they differ from `known`.
    pub fn start_locations(
        &self,
        id: &ObjectId,
        known: Option<Vec<Holding>>,
        timeout: Option<Duration>,
    ) -> PendingReply<Vec<Location>> {
        let body = Request::Locations { id: id.clone(), known };
        self.start(body, timeout, answered!(Reply::Locations(all) => all))
    }

    /// Requests the reason why an object is not on this node.
    pub fn start_explain(&self, id: &ObjectId) -> PendingReply<String> {
        let body = Request::Explain { id: id.clone() };
        self.start(body, None, answered!(Reply::Explained { state, .. } => state))
    }

    /// Requests whether an object is missing on this node for lack of capacity: the bytes that it
    /// needs, and those of the store.
    pub fn start_shortfall(&self, id: &ObjectId) -> PendingReply<Option<(u64, u64)>> {
        let body = Request::Explain { id: id.clone() };
        self.start(body, None, answered!(Reply::Explained { lacks, .. } => lacks))
    }

    /// Starts to replicate an object that was put at this node to `replicas` nodes. Returns how
    /// many hold it then, fewer if there are not enough nodes.
    pub fn start_replicate(
        &self,
        id: &ObjectId,
        copies: u32,
        timeout: Option<Duration>,
    ) -> PendingReply<u32> {
        let body = Request::Replicate { id: id.clone(), replicas: copies };
        self.start(body, timeout, answered!(Reply::Replicated { replicas: copies } => copies))
    }

    /// Assigns objects that this client creates from now on to a job.
    pub fn start_join(&self, job: Name) -> PendingReply<()> {
        self.start_done(Request::JoinJob { job }, AT_ONCE)
    }

    /// Takes a lease of an object. The object lives while a client has a lease of it, and is
    /// deleted after the last lease is returned or its client is gone.
    pub fn start_acquire_lease(&self, id: &ObjectId) -> PendingReply<()> {
        self.start_done(Request::AcquireLease { id: id.clone() }, AT_ONCE)
    }

    /// Returns a lease.
    pub fn start_release_lease(&self, id: &ObjectId) -> PendingReply<()> {
        self.start_done(Request::ReleaseLease { id: id.clone() }, None)
    }

    /// Requests the owners of an object.
    pub fn start_owners(&self, id: &ObjectId) -> PendingReply<Vec<NodeId>> {
        self.start(
            Request::Owners { id: id.clone() },
            None,
            answered!(Reply::Owners(nodes) => nodes),
        )
    }

    /// Starts to fold the first `count` of `inputs` to arrive; returns the id of the result at
    /// once. After `timeout`, waits for the result fail with the missing inputs. The result is
    /// deleted `ttl` after it is complete, if given.
    pub fn start_reduce(
        &self,
        inputs: Vec<ObjectId>,
        op: Op,
        count: Option<u32>,
        id: Option<ObjectId>,
        ttl: Option<Duration>,
        timeout: Option<Duration>,
    ) -> PendingReply<ObjectId> {
        let ttl_ns = ttl.map(nanoseconds);
        let count = count.unwrap_or_else(|| u32::try_from(inputs.len()).unwrap_or(u32::MAX));
        let body = Request::Reduce { inputs, op, count, id, ttl_ns };
        self.start(body, timeout, answered!(Reply::Reducing { id } => id))
    }

    /// Starts to wait for the list of inputs that were folded into the result of a reduce.
    pub fn start_inputs(
        &self,
        id: &ObjectId,
        timeout: Option<Duration>,
    ) -> PendingReply<Vec<ObjectId>> {
        let body = Request::Inputs { id: id.clone() };
        self.start(body, timeout, answered!(Reply::Inputs { ids } => ids))
    }

    /// Requests which inputs of a reduce are known to be lost.
    pub fn start_lost_inputs(
        &self,
        id: &ObjectId,
        timeout: Option<Duration>,
    ) -> PendingReply<Vec<ObjectId>> {
        self.start(
            Request::LostInputs { id: id.clone() },
            timeout,
            answered!(Reply::Inputs { ids } => ids),
        )
    }

    /// Starts to delete objects, all copies on all nodes. Views of them stay valid.
    pub fn start_delete(&self, ids: Vec<ObjectId>, timeout: Option<Duration>) -> PendingReply<()> {
        self.start_done(Request::Delete { ids }, timeout)
    }

    /// Starts to wait for the newest name under `prefix` with a number above `after`.
    pub fn start_latest(
        &self,
        prefix: &str,
        after: Option<u64>,
        timeout: Option<Duration>,
    ) -> PendingReply<Name> {
        let body = Request::Latest { prefix: prefix.into(), after };
        self.start(body, timeout, answered!(Reply::Latest { name } => name))
    }

    /// Lists a page of the copies of the node: those after `after` whose refs begin with `prefix`.
    /// Also returns where the next page starts.
    pub fn start_objects(
        &self,
        prefix: &str,
        after: Option<CopyKey>,
        timeout: Option<Duration>,
    ) -> PendingReply<(Vec<ObjectRow>, Option<CopyKey>)> {
        let body = Request::Objects { prefix: prefix.into(), after };
        self.start(body, timeout, answered!(Reply::Objects { rows, next } => (rows, next)))
    }

    /// Lists a page of the existing objects whose primary owner is `owner`: those after `after`
    /// whose refs begin with `prefix`. Also returns where the next page starts.
    pub fn start_list(
        &self,
        owner: NodeId,
        prefix: &str,
        after: Option<&ObjectId>,
        timeout: Option<Duration>,
    ) -> PendingReply<(Vec<Listed>, Option<ObjectId>)> {
        let body = Request::List { owner, prefix: prefix.into(), after: after.cloned() };
        self.start(body, timeout, answered!(Reply::List { rows, next } => (rows, next)))
    }

    /// Requests a report of a member, or of this node, as JSON.
    pub fn start_inspect(
        &self,
        node: Option<NodeId>,
        inspection: Inspection,
        timeout: Option<Duration>,
    ) -> PendingReply<String> {
        let body = Request::Inspect { node, inspection };
        self.start(body, timeout, answered!(Reply::Inspected { report } => report))
    }

    /// Requests the status of the node as JSON: identity, members, store, counters, measured link.
    pub fn start_describe(&self, timeout: Option<Duration>) -> PendingReply<String> {
        // A node replies at once, from memory, so there is always a timeout.
        let timeout = Some(timeout.unwrap_or_default());
        self.start(Request::Status, timeout, answered!(Reply::Inspected { report } => report))
    }

    /// Starts a request whose answer is [`Reply::Done`].
    fn start_done(&self, body: Request, timeout: Option<Duration>) -> PendingReply<()> {
        self.start(body, timeout, answered!(Reply::Done => ()))
    }

    pub(super) fn start<T>(
        &self,
        body: Request,
        timeout: Option<Duration>,
        finish: impl FnOnce(Reply, Option<SlotGuard>) -> Result<T, Error> + Send + 'static,
    ) -> PendingReply<T> {
        send(&self.connection, self.may_wait, body, timeout, finish)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({:?})", self.connection)
    }
}

#[cfg(test)]
mod tests;

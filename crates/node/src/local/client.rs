//! What programs use: put, get, reduce, delete, latest; the same inside the process of a node and beside it.

use std::{os::fd::OwnedFd, path::Path, sync::Arc, time::Duration};

use hoplite_proto::{
    ask::{Answer, Ask, Location, ObjectRow},
    error::Error as CallError,
    id::{Name, NodeId, ObjectId},
    lifetime::Job,
    limits::INLINE_BYTES_MAX,
    message::{Holding, Listed},
    meta::{Meta, Op},
};

use super::{
    connection::Connection,
    programs::Programs,
    question::{self, unexpected},
    view::{Body, Growing, Guard, View},
    wait::Wait,
    writer::Writer,
};
use crate::error::Error;

/// A user of a node. Clones are the same user; its pins and unsealed objects live as long as one of them or a view.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
    /// Whether the thread that asks may do what takes a while.
    may_wait: bool,
}

/// Takes what is wanted out of the one answer that a question may have.
macro_rules! answered {
    ($answer:pat => $wanted:expr) => {
        |answer, _| match answer {
            $answer => Ok($wanted),
            other => Err(unexpected(&other)),
        }
    };
}

/// Bytes to put, and what they are.
#[derive(Clone, Debug)]
pub struct Value<'a> {
    bytes: &'a [u8],
    meta: Meta,
}

impl<'a> Value<'a> {
    /// Plain bytes.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Self { bytes, meta: Meta::bytes(bytes.len() as u64) }
    }

    /// Bytes with metadata.
    ///
    /// # Errors
    /// [`CallError::InvalidArgument`] if they are not as long as `meta` says.
    pub fn with_meta(bytes: &'a [u8], meta: Meta) -> Result<Self, Error> {
        if meta.size == bytes.len() as u64 && meta.is_consistent() {
            return Ok(Self { bytes, meta });
        }
        let said = format!("{} bytes are not {meta}, which has {}", bytes.len(), meta.size);
        Err(CallError::InvalidArgument(said).into())
    }
}

impl Client {
    pub(crate) fn embedded(programs: Arc<Programs>) -> Self {
        Self { connection: Connection::embedded(programs), may_wait: true }
    }

    /// Attaches to the node of this host that serves the Unix socket `path`.
    ///
    /// # Errors
    /// [`Error::Attach`] if no node answers there; [`CallError::NotAllowed`] if it takes no process without a capability.
    pub fn attach(path: &Path, timeout: Option<Duration>) -> Result<Self, Error> {
        Ok(Self { connection: Connection::attach(path, None, timeout)?, may_wait: true })
    }

    /// The same to ask no more than a capability allows, which is given as its text.
    ///
    /// # Errors
    /// As [`Client::attach`]; [`CallError::NotAllowed`] also if the node does not take the capability.
    pub fn attach_confined(
        path: &Path,
        capability: String,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let connection = Connection::attach(path, Some(capability), timeout)?;
        Ok(Self { connection, may_wait: true })
    }

    /// Pins what all clients of this process read once more, until no process has the descriptors that this returns. Closed
    /// ones too: their views live on. Waits for the nodes that attached clients use, for 2 s at most each.
    pub fn hold_all() -> Vec<OwnedFd> {
        Connection::hold_all()
    }

    /// The same client for threads that must not wait, such as that of an event loop: memory is made elsewhere.
    pub fn in_passing(&self) -> Self {
        Self { connection: self.connection.clone(), may_wait: false }
    }

    /// Whether its node is closed or gone.
    pub fn is_closed(&self) -> bool {
        self.connection.is_down()
    }

    /// Whether all members of the node's cluster have proved who they are, over connections that no other process can
    /// change: they have a token and are not plain, or the node listens nowhere.
    pub fn is_authenticated(&self) -> bool {
        self.connection.is_authenticated()
    }

    /// Whether this process is a fork of the one that opened the client.
    pub fn is_forked(&self) -> bool {
        self.connection.is_forked()
    }

    /// Begins to ask for the id of an object that this client will put, create or reduce, for others to wait for
    /// meanwhile. When the client goes without having made it, those that wait get [`CallError::ObjectLost`].
    pub fn start_promise(&self) -> Wait<ObjectId> {
        self.start(Ask::Promise { name: None }, None, answered!(Answer::Promised { id } => id))
    }

    /// Ends every wait of this client with [`Error::Closed`], and tells those who wait for what it promised and has not
    /// made that it will not come. Its views stay valid, and keep its attachment alive.
    pub fn close(&self) {
        self.connection.close();
    }

    /// Puts an object and waits until its bytes are in the store; others can stream them earlier. `id` is a name, an id
    /// that was promised, or none for a new id.
    ///
    /// # Errors
    /// [`CallError::NameTaken`], [`CallError::StoreFull`] after `timeout`, [`CallError::NodeDown`].
    pub fn put(
        &self,
        id: Option<ObjectId>,
        value: Value<'_>,
        timeout: Option<Duration>,
    ) -> Result<ObjectId, Error> {
        if value.meta.size <= INLINE_BYTES_MAX {
            return self.start_put_small(id, &value, None, timeout).join();
        }
        let writer = self.start_create(id, value.meta.clone(), None, timeout).join()?;
        writer.write_all(value.bytes)?;
        writer.seal()?.join()
    }

    /// Puts an object of at most [`INLINE_BYTES_MAX`] bytes. It is deleted so long after, if `ttl` says so.
    pub fn start_put_small(
        &self,
        id: Option<ObjectId>,
        value: &Value<'_>,
        ttl: Option<Duration>,
        timeout: Option<Duration>,
    ) -> Wait<ObjectId> {
        let (meta, bytes, ttl_ns) = (value.meta.clone(), value.bytes.into(), nanoseconds(ttl));
        let ask = Ask::Put { id, meta, bytes, ttl_ns };
        self.start(ask, timeout, answered!(Answer::Put { id } => id))
    }

    /// Asks for space for an object of more than [`INLINE_BYTES_MAX`] bytes. It is deleted so long after it is sealed, if
    /// `ttl` says so.
    pub fn start_create(
        &self,
        id: Option<ObjectId>,
        meta: Meta,
        ttl: Option<Duration>,
        timeout: Option<Duration>,
    ) -> Wait<Writer> {
        let ask = Ask::Create { id, meta, ttl_ns: nanoseconds(ttl) };
        self.start(ask, timeout, |answer, guard| match (answer, guard) {
            (Answer::Created { id, .. }, Some(guard)) => Ok(Writer { id, guard }),
            (other, _) => Err(unexpected(&other)),
        })
    }

    /// Gets an object when it is complete here.
    ///
    /// # Errors
    /// [`CallError::Timeout`], [`CallError::ObjectLost`], [`CallError::ObjectDeleted`], [`CallError::NodeDown`].
    pub fn get(&self, id: &ObjectId, timeout: Option<Duration>) -> Result<View, Error> {
        self.start_get(id, timeout).join()
    }

    /// Begins to get an object.
    pub fn start_get(&self, id: &ObjectId, timeout: Option<Duration>) -> Wait<View> {
        self.start(Ask::Get { id: id.clone() }, timeout, |answer, guard| match (answer, guard) {
            (Answer::Got { id, meta, instance, inline: Some(bytes) }, _) => {
                Ok(View { id, meta, instance, body: Body::Inline(bytes) })
            }
            (Answer::Got { id, meta, instance, inline: None }, Some(guard)) => {
                Ok(View { id, meta, instance, body: Body::Slot(guard) })
            }
            (other, _) => Err(unexpected(&other)),
        })
    }

    /// Begins to wait for the memory of an object that a get, begun beside this, brings here; none if there is nothing
    /// to be copied before the get is answered.
    pub fn start_follow(&self, id: &ObjectId, timeout: Option<Duration>) -> Wait<Option<Growing>> {
        self.start(Ask::Follow { id: id.clone() }, timeout, |answer, guard| match (answer, guard) {
            (Answer::Growing { meta, .. }, Some(guard)) => Ok(Some(Growing { meta, guard })),
            (Answer::Growing { .. } | Answer::Done, None) => Ok(None),
            (other, _) => Err(unexpected(&other)),
        })
    }

    /// Begins to wait until `count` of `ids` are complete somewhere, or can't come; the places of those, perhaps fewer
    /// when `timeout` is over.
    pub fn start_wait(
        &self,
        ids: Vec<ObjectId>,
        count: u32,
        timeout: Option<Duration>,
    ) -> Wait<Vec<u32>> {
        self.start(Ask::Wait { ids, count }, timeout, answered!(Answer::Waited { ready } => ready))
    }

    /// Begins to delete the names that are older than `name`, but for the newest `keep - 1` of them.
    pub fn start_prune(&self, name: Name, keep: u64, timeout: Option<Duration>) -> Wait<()> {
        self.start_done(Ask::Prune { name, keep }, timeout)
    }

    /// Begins to ask who holds an object: at once, or as soon as that is not what is `known`.
    pub fn start_locations(
        &self,
        id: &ObjectId,
        known: Option<Vec<Holding>>,
        timeout: Option<Duration>,
    ) -> Wait<Vec<Location>> {
        let ask = Ask::Locations { id: id.clone(), known };
        self.start(ask, timeout, answered!(Answer::Locations(all) => all))
    }

    /// Begins to ask why an object is not here.
    pub fn start_explain(&self, id: &ObjectId) -> Wait<String> {
        let ask = Ask::Explain { id: id.clone() };
        self.start(ask, None, answered!(Answer::Explained { state, .. } => state))
    }

    /// Begins to ask whether an object is not here because there is no room for it: the bytes that it needs, and those of
    /// the whole store.
    pub fn start_lacks(&self, id: &ObjectId) -> Wait<Option<(u64, u64)>> {
        let ask = Ask::Explain { id: id.clone() };
        self.start(ask, None, answered!(Answer::Explained { lacks, .. } => lacks))
    }

    /// Begins to see to it that `copies` nodes hold an object that was put at this one; how many do then, which is fewer
    /// if there are no more.
    pub fn start_keep(&self, id: &ObjectId, copies: u32, timeout: Option<Duration>) -> Wait<u32> {
        let ask = Ask::Keep { id: id.clone(), copies };
        self.start(ask, timeout, answered!(Answer::Kept { copies } => copies))
    }

    /// Begins to say that what this client makes from now on is of a job.
    pub fn start_join(&self, job: Job) -> Wait<()> {
        self.start_done(Ask::Join { job }, None)
    }

    /// Begins to take a lease of an object: it lives as long as some client has one, and is deleted when the last one is
    /// returned or its client is gone.
    pub fn start_take_lease(&self, id: &ObjectId) -> Wait<()> {
        self.start_done(Ask::TakeLease { id: id.clone() }, None)
    }

    /// Begins to return a lease.
    pub fn start_return_lease(&self, id: &ObjectId) -> Wait<()> {
        self.start_done(Ask::ReturnLease { id: id.clone() }, None)
    }

    /// Begins to ask which nodes keep where an object is.
    pub fn start_owners(&self, id: &ObjectId) -> Wait<Vec<NodeId>> {
        self.start(Ask::Owners { id: id.clone() }, None, answered!(Answer::Owners(nodes) => nodes))
    }

    /// Folds the first `count` of `inputs` to arrive; returns at once with the id of the result. `timeout` is that of
    /// the result: when it is over, those that wait for the result are told which inputs are missing.
    ///
    /// # Errors
    /// [`CallError::InvalidArgument`] for a count that can't be.
    pub fn reduce(
        &self,
        inputs: Vec<ObjectId>,
        op: Op,
        count: Option<u32>,
        timeout: Option<Duration>,
    ) -> Result<ObjectId, Error> {
        self.start_reduce(inputs, op, count, None, None, timeout).join()
    }

    /// Begins to ask for a reduce. Its result is deleted so long after it is complete, if `ttl` says so.
    pub fn start_reduce(
        &self,
        inputs: Vec<ObjectId>,
        op: Op,
        count: Option<u32>,
        id: Option<ObjectId>,
        ttl: Option<Duration>,
        timeout: Option<Duration>,
    ) -> Wait<ObjectId> {
        let ttl_ns = nanoseconds(ttl);
        let count = count.unwrap_or_else(|| u32::try_from(inputs.len()).unwrap_or(u32::MAX));
        let ask = Ask::Reduce { inputs, op, count, id, ttl_ns };
        self.start(ask, timeout, answered!(Answer::Reducing { id } => id))
    }

    /// Begins to wait for the list of inputs that were folded into the result of a reduce.
    pub fn start_inputs(&self, id: &ObjectId, timeout: Option<Duration>) -> Wait<Vec<ObjectId>> {
        let ask = Ask::Inputs { id: id.clone() };
        self.start(ask, timeout, answered!(Answer::Inputs { ids } => ids))
    }

    /// Begins to ask which inputs of a reduce can't come any more, as far as is known now.
    pub fn start_lost(&self, id: &ObjectId, timeout: Option<Duration>) -> Wait<Vec<ObjectId>> {
        self.start(Ask::Lost { id: id.clone() }, timeout, answered!(Answer::Inputs { ids } => ids))
    }

    /// Begins to delete objects, all copies everywhere. Views of them stay valid.
    pub fn start_delete(&self, ids: Vec<ObjectId>, timeout: Option<Duration>) -> Wait<()> {
        self.start_done(Ask::Delete { ids }, timeout)
    }

    /// Begins to wait for the newest name under `prefix` with a number above `after`.
    pub fn start_latest(
        &self,
        prefix: &str,
        after: Option<u64>,
        timeout: Option<Duration>,
    ) -> Wait<Name> {
        let ask = Ask::Latest { prefix: prefix.into(), after };
        self.start(ask, timeout, answered!(Answer::Latest { name } => name))
    }

    /// Begins to ask for the copies that the node has.
    pub fn start_objects(&self, timeout: Option<Duration>) -> Wait<Vec<ObjectRow>> {
        self.start(Ask::Objects, timeout, answered!(Answer::Objects(rows) => rows))
    }

    /// Begins to ask for a page of the living objects that a member is the first owner of: those behind `after` whose refs
    /// begin with `prefix`, and behind which the next page begins.
    pub fn start_list(
        &self,
        owner: NodeId,
        prefix: &str,
        after: Option<&ObjectId>,
        timeout: Option<Duration>,
    ) -> Wait<(Vec<Listed>, Option<ObjectId>)> {
        let ask = Ask::List { owner, prefix: prefix.into(), after: after.cloned() };
        self.start(ask, timeout, answered!(Answer::List { rows, next } => (rows, next)))
    }

    /// How the node is, as JSON: identity, members, store, counters, measured link.
    ///
    /// # Errors
    /// [`CallError::NodeDown`].
    pub fn describe(&self) -> Result<String, Error> {
        self.start_describe(None).join()
    }

    /// Begins to ask how the node is; see [`Client::describe`].
    pub fn start_describe(&self, timeout: Option<Duration>) -> Wait<String> {
        question::describe(&self.connection, timeout)
    }

    /// Asks for what is answered with [`Answer::Done`].
    fn start_done(&self, ask: Ask, timeout: Option<Duration>) -> Wait<()> {
        self.start(ask, timeout, answered!(Answer::Done => ()))
    }

    fn start<T>(
        &self,
        ask: Ask,
        timeout: Option<Duration>,
        finish: impl FnOnce(Answer, Option<Guard>) -> Result<T, Error> + Send + 'static,
    ) -> Wait<T> {
        question::start(&self.connection, self.may_wait, ask, timeout, finish)
    }
}

fn nanoseconds(ttl: Option<Duration>) -> Option<u64> {
    ttl.map(|ttl| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX))
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({:?})", self.connection)
    }
}

#[cfg(test)]
mod tests;

//! What programs use: put, get, reduce, delete, latest; the same inside the process of a node and beside it.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hoplite_proto::{
    ask::{Answer, Ask, Location, ObjectRow},
    error::Error as CallError,
    id::{ClientId, Instance, Name, NodeId, ObjectId, RequestId},
    limits::INLINE_BYTES_MAX,
    message::{Holding, Listed},
    meta::{Kind, Meta, Op},
    node::Event,
};
use hoplite_shm::Slot;
use tokio::runtime::Handle;

use crate::{
    engine::{Core, Sink, lock},
    error::Error,
    local::attach::Attached,
    local::view::{AtEnd, Body, Growing, Guard, View, Writer},
    local::wait::{self, Promise, Said, Shared, Wait},
    shared_epoll::Turns,
};

/// A user of a node. Clones are the same user; its pins and unsealed objects live as long as one of them or a view.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    /// Whether the thread that asks may do what takes a while.
    may_wait: bool,
}

/// The clients of this process.
static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// The list of clients, kept from all other threads.
pub(crate) type AllClients = MutexGuard<'static, Vec<Weak<Inner>>>;

/// Takes the list of clients for the time of a fork: in the child nobody would give it back.
pub(crate) fn all_clients() -> AllClients {
    lock(&ALL)
}

pub(crate) struct Inner {
    link: Link,
    process: u32,
    /// Views that pin memory.
    reads: AtomicUsize,
    is_closed: AtomicBool,
    /// Questions without an answer, by where their shared ends are, with their numbers.
    waits: Mutex<HashMap<usize, (u64, Arc<Shared>)>>,
}

enum Link {
    Embedded { core: Arc<Core>, client: ClientId },
    Attached(Attached),
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
    pub(crate) fn embedded(core: Arc<Core>) -> Self {
        let client = ClientId(core.next_id());
        Self::new(Link::Embedded { core, client })
    }

    /// Attaches to the node of this host that serves the Unix socket `path`.
    ///
    /// # Errors
    /// [`Error::Attach`] if no node answers there.
    pub fn attach(path: &Path, timeout: Option<Duration>) -> Result<Self, Error> {
        Ok(Self::new(Link::Attached(Attached::connect(path, timeout)?)))
    }

    fn new(link: Link) -> Self {
        let (process, reads, is_closed) =
            (std::process::id(), AtomicUsize::new(0), AtomicBool::new(false));
        let inner = Arc::new(Inner { link, process, reads, is_closed, waits: Mutex::default() });
        let mut all = lock(&ALL);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&inner));
        Self { inner, may_wait: true }
    }

    /// Pins what all clients of this process read once more; see [`Client::hold`]. Closed ones too: their views live
    /// on. Whether anything is read.
    ///
    /// # Errors
    /// If `end` can't be had once for each client that reads.
    pub fn hold_all(end: &OwnedFd) -> std::io::Result<bool> {
        let all: Vec<Arc<Inner>> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
        let mut is_read = false;
        for inner in all {
            let client = Self { inner, may_wait: true };
            if !client.is_forked() && client.reads() > 0 {
                client.hold(end.try_clone()?);
                is_read = true;
            }
        }
        Ok(is_read)
    }

    /// The same client for threads that must not wait, such as that of an event loop: memory is made elsewhere.
    pub fn in_passing(&self) -> Self {
        Self { inner: self.inner.clone(), may_wait: false }
    }

    /// Whether its node is closed or gone.
    pub fn is_closed(&self) -> bool {
        match &self.inner.link {
            Link::Embedded { core, .. } => core.is_closed(),
            Link::Attached(attached) => attached.is_closed(),
        }
    }

    /// Whether this process is a fork of the one that opened the client.
    pub fn is_forked(&self) -> bool {
        self.inner.process != std::process::id()
    }

    /// How many views of this client pin memory at its node.
    pub fn reads(&self) -> usize {
        self.inner.reads.load(Ordering::Relaxed)
    }

    pub(crate) fn read_ended(&self) {
        self.inner.reads.fetch_sub(1, Ordering::Relaxed);
    }

    /// Pins what is read now once more, until nobody has the other end of the pipe whose reading end is `end`: before
    /// a fork, whose child has the views too.
    pub fn hold(&self, end: OwnedFd) {
        match &self.inner.link {
            _ if self.is_forked() => {}
            Link::Embedded { core, client } => core.hold(*client, end),
            Link::Attached(attached) => attached.hold(end),
        }
    }

    /// Begins to ask for the id of an object that this client will put, create or reduce, for others to wait for
    /// meanwhile. When the client goes without having made it, whoever waits gets [`CallError::ObjectLost`].
    pub fn start_promise(&self) -> Wait<ObjectId> {
        self.start(Ask::Promise, None, |answer, _| match answer {
            Answer::Promised { id } => Ok(id),
            other => Err(unexpected(&other)),
        })
    }

    /// Ends every wait of this client with [`Error::Closed`], and tells those who wait for what it promised and has not
    /// made that it will not come. Its views stay valid, and keep its attachment alive.
    pub fn close(&self) {
        if self.is_forked() {
            return;
        }
        self.inner.is_closed.store(true, Ordering::SeqCst);
        let waits = std::mem::take(&mut *lock(&self.inner.waits));
        waits.values().for_each(|(_, shared)| shared.close());
        // Only now: the answers of questions that are taken back find nobody.
        waits.values().for_each(|(request, _)| self.cancel(*request));
        self.tell(Ask::BreakPromises);
    }

    /// Whether [`Client::close`] was called.
    pub(crate) fn was_closed(&self) -> bool {
        self.inner.is_closed.load(Ordering::SeqCst)
    }

    /// Notes a question that waits, for [`Client::close`] to end it.
    pub(crate) fn list(&self, request: u64, shared: &Arc<Shared>) {
        if self.is_forked() {
            return;
        }
        lock(&self.inner.waits).insert(Arc::as_ptr(shared).addr(), (request, shared.clone()));
        if self.was_closed() {
            shared.close();
            self.cancel(request);
        }
    }

    pub(crate) fn unlist(&self, shared: &Arc<Shared>) {
        if !self.is_forked() {
            lock(&self.inner.waits).remove(&Arc::as_ptr(shared).addr());
        }
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
            return self.start_put_small(id, &value, timeout).join();
        }
        let writer = self.start_create(id, value.meta.clone(), timeout).join()?;
        writer.write_all(value.bytes)?;
        writer.seal()?.join()
    }

    /// Puts an object of at most [`INLINE_BYTES_MAX`] bytes.
    pub fn start_put_small(
        &self,
        id: Option<ObjectId>,
        value: &Value<'_>,
        timeout: Option<Duration>,
    ) -> Wait<ObjectId> {
        let ask = Ask::Put { id, meta: value.meta.clone(), bytes: value.bytes.into() };
        self.start(ask, timeout, |answer, _| match answer {
            Answer::Put { id } => Ok(id),
            other => Err(unexpected(&other)),
        })
    }

    /// Asks for space for an object of more than [`INLINE_BYTES_MAX`] bytes.
    pub fn start_create(
        &self,
        id: Option<ObjectId>,
        meta: Meta,
        timeout: Option<Duration>,
    ) -> Wait<Writer> {
        self.start(Ask::Create { id, meta }, timeout, |answer, guard| match (answer, guard) {
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
        self.start(Ask::Wait { ids, count }, timeout, |answer, _| match answer {
            Answer::Waited { ready } => Ok(ready),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to delete the names that are older than `name`, but for the newest `keep - 1` of them.
    pub fn start_prune(&self, name: Name, keep: u64, timeout: Option<Duration>) -> Wait<()> {
        self.start(Ask::Prune { name, keep }, timeout, |answer, _| match answer {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to ask who holds an object: at once, or as soon as that is not what is `known`.
    pub fn start_locations(
        &self,
        id: &ObjectId,
        known: Option<Vec<Holding>>,
        timeout: Option<Duration>,
    ) -> Wait<Vec<Location>> {
        let ask = Ask::Locations { id: id.clone(), known };
        self.start(ask, timeout, |answer, _| match answer {
            Answer::Locations(all) => Ok(all),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to ask why an object is not here.
    pub fn start_explain(&self, id: &ObjectId) -> Wait<String> {
        self.start(Ask::Explain { id: id.clone() }, None, |answer, _| match answer {
            Answer::Explained { state, .. } => Ok(state),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to ask whether an object is not here because there is no room for it: the bytes that it needs, and those of
    /// the whole store.
    pub fn start_lacks(&self, id: &ObjectId) -> Wait<Option<(u64, u64)>> {
        self.start(Ask::Explain { id: id.clone() }, None, |answer, _| match answer {
            Answer::Explained { lacks, .. } => Ok(lacks),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to see to it that `copies` nodes hold an object that was put at this one.
    pub fn start_keep(&self, id: &ObjectId, copies: u32, timeout: Option<Duration>) -> Wait<()> {
        self.start(Ask::Keep { id: id.clone(), copies }, timeout, |answer, _| match answer {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to ask which nodes keep where an object is.
    pub fn start_owners(&self, id: &ObjectId) -> Wait<Vec<NodeId>> {
        self.start(Ask::Owners { id: id.clone() }, None, |answer, _| match answer {
            Answer::Owners(nodes) => Ok(nodes),
            other => Err(unexpected(&other)),
        })
    }

    /// Folds the first `count` of `inputs` to arrive; returns at once with the id of the result. `timeout` is that of
    /// the result: when it is over, whoever waits for the result is told which inputs are missing.
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
        self.start_reduce(inputs, op, count, None, timeout).join()
    }

    /// Begins to ask for a reduce.
    pub fn start_reduce(
        &self,
        inputs: Vec<ObjectId>,
        op: Op,
        count: Option<u32>,
        id: Option<ObjectId>,
        timeout: Option<Duration>,
    ) -> Wait<ObjectId> {
        let count = count.unwrap_or_else(|| u32::try_from(inputs.len()).unwrap_or(u32::MAX));
        self.start(Ask::Reduce { inputs, op, count, id }, timeout, |answer, _| match answer {
            Answer::Reducing { id } => Ok(id),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to wait for the list of inputs that were folded into the result of a reduce.
    pub fn start_inputs(&self, id: &ObjectId, timeout: Option<Duration>) -> Wait<Vec<ObjectId>> {
        self.start(Ask::Inputs { id: id.clone() }, timeout, |answer, _| match answer {
            Answer::Inputs { ids } => Ok(ids),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to ask which inputs of a reduce can't come any more, as far as is known now.
    pub fn start_lost(&self, id: &ObjectId, timeout: Option<Duration>) -> Wait<Vec<ObjectId>> {
        self.start(Ask::Lost { id: id.clone() }, timeout, |answer, _| match answer {
            Answer::Inputs { ids } => Ok(ids),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to delete objects, all copies everywhere. Views of them stay valid.
    pub fn start_delete(&self, ids: Vec<ObjectId>, timeout: Option<Duration>) -> Wait<()> {
        self.start(Ask::Delete { ids }, timeout, |answer, _| match answer {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to wait for the newest name under `prefix` with a number above `after`.
    pub fn start_latest(
        &self,
        prefix: &str,
        after: Option<u64>,
        timeout: Option<Duration>,
    ) -> Wait<Name> {
        let ask = Ask::Latest { prefix: prefix.into(), after };
        self.start(ask, timeout, |answer, _| match answer {
            Answer::Latest { name } => Ok(name),
            other => Err(unexpected(&other)),
        })
    }

    /// Begins to ask for the copies that the node has.
    pub fn start_objects(&self) -> Wait<Vec<ObjectRow>> {
        self.start(Ask::Objects, None, |answer, _| match answer {
            Answer::Objects(rows) => Ok(rows),
            other => Err(unexpected(&other)),
        })
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
        self.start(ask, timeout, |answer, _| match answer {
            Answer::List { rows, next } => Ok((rows, next)),
            other => Err(unexpected(&other)),
        })
    }

    /// How the node is, as JSON: identity, members, store, counters, measured link.
    ///
    /// # Errors
    /// [`CallError::NodeDown`].
    pub fn describe(&self) -> Result<String, Error> {
        self.start_describe().join()
    }

    /// Begins to ask how the node is; see [`Client::describe`].
    pub fn start_describe(&self) -> Wait<String> {
        let finish = |said| match said {
            Said::Description(json) => Ok(json),
            Said::Answer(other, _) => Err(unexpected(&other)),
        };
        let (promise, wait) = wait::pair(self.clone(), None, Box::new(finish));
        if self.is_forked() {
            return wait.asked_as(0);
        }
        let me = self.clone();
        let sink = move |json: Result<String, CallError>| {
            promise.keep(&me, json.map(Said::Description));
        };
        let request = match &self.inner.link {
            Link::Embedded { core, client } => core.describe(*client, sink).0,
            Link::Attached(attached) => attached.describe(Box::new(sink)),
        };
        wait.asked_as(request)
    }

    /// Deletes an object whose asker never learns of it, also for a client that is closed.
    pub(crate) fn delete_in_passing(&self, id: ObjectId) {
        if !self.is_forked() {
            let finish = |_| Ok(());
            let (promise, _) = wait::pair::<()>(self.clone(), None, Box::new(finish));
            self.in_passing().ask(Ask::Delete { ids: vec![id] }, None, promise);
        }
    }

    pub(crate) fn start<T>(
        &self,
        ask: Ask,
        timeout: Option<Duration>,
        finish: impl FnOnce(Answer, Option<Guard>) -> Result<T, Error> + Send + 'static,
    ) -> Wait<T> {
        let finish = |said| match said {
            Said::Answer(answer, guard) => finish(answer, guard),
            Said::Description(_) => Err(Error::node_down("it described itself unasked")),
        };
        let (promise, wait) = wait::pair(self.clone(), timeout, Box::new(finish));
        // A fork gets no answer: its promise is dropped.
        let request = if self.is_forked() { 0 } else { self.ask(ask, timeout, promise) };
        wait.asked_as(request)
    }

    fn ask(&self, ask: Ask, timeout: Option<Duration>, promise: Promise) -> u64 {
        let me = self.clone();
        match &self.inner.link {
            Link::Embedded { core, client } => {
                let (of_sink, me_too) = (core.clone(), me.clone());
                let sink: Sink = Box::new(move |answer| {
                    let raw = answer.and_then(|answer| {
                        let held = slot_of(&answer).map(|instance| of_sink.store.get(instance));
                        let slot = match held {
                            None => None,
                            Some(Some(held)) => Some(held.slot.clone()),
                            // What was growing is gone: there is nothing to follow.
                            Some(None) if matches!(answer, Answer::Growing { .. }) => None,
                            Some(None) => {
                                return Err(CallError::NodeDown("the node is closed".into()));
                            }
                        };
                        let guard = me.guard(&answer, slot, AtEnd::Nothing);
                        Ok(Said::Answer(answer, guard))
                    });
                    promise.keep(&me_too, raw);
                });
                core.ask(*client, ask, timeout, self.may_wait, sink).0
            }
            Link::Attached(attached) => {
                let (request, me_too) = (attached.next_request(), me.clone());
                let callback =
                    Box::new(move |answer: Result<(Answer, Option<Slot>), CallError>| {
                        promise.keep(
                            &me_too,
                            answer.map(|(answer, slot)| {
                                let guard = me.guard(&answer, slot, AtEnd::LetGo(request));
                                Said::Answer(answer, guard)
                            }),
                        );
                    });
                attached.ask(request, ask, timeout, callback);
                request
            }
        }
    }

    /// The memory of an answer; `after_growing` is what the node is told when a part was read.
    fn guard(self, answer: &Answer, slot: Option<Slot>, after_growing: AtEnd) -> Option<Guard> {
        let instance = slot_of(answer)?;
        let at_end = match answer {
            Answer::Growing { .. } if slot.is_none() => return None,
            Answer::Growing { .. } => after_growing,
            Answer::Got { .. } => {
                self.inner.reads.fetch_add(1, Ordering::Relaxed);
                AtEnd::Release
            }
            _ => AtEnd::Abort,
        };
        Some(Guard { client: self, instance, slot, at_end })
    }

    /// Where this thread, if it waits for an answer, can take it itself.
    pub(crate) fn turns(&self) -> Option<Arc<Turns>> {
        match &self.inner.link {
            _ if self.is_forked() => None,
            // A thread of a runtime has other tasks, which must not wait behind this node's.
            Link::Embedded { .. } if Handle::try_current().is_ok() => None,
            Link::Embedded { core, .. } => Some(core.control.turns.clone()),
            Link::Attached(attached) => Some(attached.turns()),
        }
    }

    /// Takes with this thread what is said in its [`Client::turns`], until `is_over` or for at most `time`; false if
    /// another thread does so.
    pub(crate) fn wait_in_turns(&self, time: Duration, is_over: impl Fn() -> bool) -> bool {
        match &self.inner.link {
            Link::Embedded { core, .. } => core.control.wait(core, time, is_over),
            Link::Attached(attached) => attached.wait(time, is_over),
        }
    }

    pub(crate) fn cancel(&self, request: u64) {
        match &self.inner.link {
            _ if self.is_forked() => {}
            Link::Embedded { core, .. } => {
                core.drive(Event::Cancelled { request: RequestId(request) });
            }
            Link::Attached(attached) => attached.cancel(request),
        }
    }

    pub(crate) fn tell(&self, ask: Ask) {
        match &self.inner.link {
            Link::Embedded { core, client } => core.tell(*client, ask),
            Link::Attached(attached) => attached.tell(ask),
        }
    }

    pub(crate) fn let_go(&self, request: u64) {
        if let Link::Attached(attached) = &self.inner.link {
            attached.let_go(request);
        }
    }

    pub(crate) fn advanced(&self, instance: Instance) {
        match &self.inner.link {
            Link::Embedded { core, .. } => {
                if let Some(held) = core.store.get(instance) {
                    held.grew();
                }
            }
            Link::Attached(attached) => attached.advanced(instance),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Link::Embedded { core, client } = &self.link
            && self.process == std::process::id()
        {
            core.client_gone(*client);
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.inner.link {
            Link::Embedded { core, client } => write!(f, "Client({client:?} of {core:?})"),
            Link::Attached(attached) => write!(f, "Client(attached to {})", attached.member.id),
        }
    }
}

/// The instance whose memory an answer speaks of.
const fn slot_of(answer: &Answer) -> Option<Instance> {
    match answer {
        Answer::Created { instance, .. }
        | Answer::Growing { instance, .. }
        | Answer::Got { instance, inline: None, .. } => Some(*instance),
        _ => None,
    }
}

/// Copies of a node as a JSON list, for programs.
pub fn describe_objects(rows: &[ObjectRow]) -> String {
    let row = |row: &ObjectRow| {
        let (dtype, shape) = dtype_and_shape(&row.meta);
        serde_json::json!({
            "ref": row.id.to_string(),
            "instance": row.instance.to_string(),
            "what": row.meta.to_string(),
            "dtype": dtype,
            "shape": shape,
            "form": row.meta.form.name(),
            "bytes": row.meta.size,
            "state": row.state,
            "pinned": row.origin,
            "readers": row.pins,
        })
    };
    serde_json::Value::from_iter(rows.iter().map(row)).to_string()
}

/// Objects of the cluster as a JSON list, for programs.
pub fn describe_listed(rows: &[Listed]) -> String {
    let row = |row: &Listed| {
        let (dtype, shape) = dtype_and_shape(&row.meta);
        serde_json::json!({
            "ref": row.id.to_string(),
            "what": row.meta.to_string(),
            "dtype": dtype,
            "shape": shape,
            "form": row.meta.form.name(),
            "bytes": row.meta.size,
            "copies": row.complete,
            "partial": row.partial,
        })
    };
    serde_json::Value::from_iter(rows.iter().map(row)).to_string()
}

/// None of bytes.
fn dtype_and_shape(meta: &Meta) -> (Option<String>, Option<&[u64]>) {
    match &meta.kind {
        Kind::Bytes => (None, None),
        Kind::Array { dtype, shape } => (Some(dtype.to_string()), Some(shape)),
    }
}

pub(crate) fn unexpected(_: &Answer) -> Error {
    Error::node_down("it gave an answer to another question; is it a node of another release?")
}

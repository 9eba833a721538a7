//! The clients of a node on its host: their open requests, with the recipients of the replies, and
//! state shared by clients in the process and sessions of attached processes.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    fmt, io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, Weak},
};

use hoplite_proto::{
    error::Error as CallError,
    id::{ClientId, Instance, RequestId},
    node::Event,
    request::{Reply, Request},
    time::Instant,
};
use hoplite_shm::{ExtentId, WriterId, process_id};
use tokio::{io::AsyncReadExt, net::unix::pipe, runtime::Handle};

use super::{limits, quota::Quota, retired_extents::RetiredExtents};
use crate::{
    digest,
    engine::{event_sender::EventSender, tasks::Task},
    network::shared::Network,
    store::Store,
    sync::lock,
};

/// Receives the reply to a request, on any thread, without blocking.
pub(crate) type Sink = Box<dyn FnOnce(Result<Reply, CallError>) + Send>;

/// What a request holds until the work that it began ends. Called when a part of the work has
/// ended; returns whether more remains.
pub(crate) type Held = Box<dyn FnMut() -> bool + Send>;

/// Interface of an attached process to the rest of the node.
pub(crate) trait Attachment: Send + Sync {
    /// The node freed extents: the process must unmap those that it has.
    fn forget(&self, gone: &[ExtentId]);
    /// Sends the reason and closes the connection after the queue is sent.
    fn end(&self, reason: &str);
    /// Its process id, if the kernel reports it.
    fn process(&self) -> Option<u32>;
}

/// The clients of one node.
pub(crate) struct Programs {
    pub(crate) events: EventSender,
    replies: Mutex<BTreeMap<RequestId, Sink>>,
    /// What requests hold until the work that they began ends, after their replies.
    held: Mutex<BTreeMap<RequestId, Held>>,
    pub(crate) store: Arc<Store>,
    pub(crate) network: Arc<Network>,
    /// Whether attached processes need a capability.
    pub(super) require_capability: bool,
    /// Attached processes, which write their objects themselves, through shared memory.
    attached: Mutex<HashMap<ClientId, Weak<dyn Attachment>>>,
    pub(super) retired_extents: RetiredExtents,
    /// Bytes of the open requests and unfinished reduces of attached processes.
    pub(super) request_bytes: Quota,
    /// Bytes of their unread replies.
    pub(super) unread_bytes: Quota,
    /// Their calls of `latest` that wait, their open pages of listings, and their open inspections.
    pub(super) latest: Quota,
    pub(super) listings: Quota,
    pub(super) inspections: Quota,
    /// Forked children that read objects of attached processes.
    pub(super) holds: Quota,
    /// Bytes and number of the copies that confined processes read.
    pub(super) copy_bytes: Quota,
    pub(super) copies: Quota,
}

impl Programs {
    pub(crate) fn new(store: Arc<Store>, network: Arc<Network>, require_capability: bool) -> Self {
        let (events, attached) = (network.events.clone(), Mutex::default());
        let retired_extents = RetiredExtents::new(store.arena.clone());
        let copy_bytes = Quota::new(store.capacity());
        Self {
            events,
            replies: Mutex::default(),
            held: Mutex::default(),
            store,
            network,
            require_capability,
            attached,
            retired_extents,
            request_bytes: Quota::new(limits::REQUEST_BYTES_TOTAL_MAX),
            unread_bytes: Quota::new(limits::UNREAD_BYTES_TOTAL_MAX),
            latest: Quota::new(limits::LATEST_MAX),
            listings: Quota::new(limits::LISTINGS_MAX),
            inspections: Quota::new(limits::INSPECTIONS_MAX),
            holds: Quota::new(limits::holds_max()),
            copy_bytes,
            copies: Quota::new(limits::copies_max()),
        }
    }

    /// Sends a request for a client; `sink` gets the reply, perhaps before this returns. `held` is
    /// kept until the work that the request begins has ended. `may_wait` if this thread would block
    /// for the reply anyway.
    pub(crate) fn submit(
        &self,
        client: ClientId,
        body: Request,
        deadline: Option<Instant>,
        may_wait: bool,
        held: Option<Held>,
        sink: Sink,
    ) -> RequestId {
        let request = RequestId(self.events.next_id());
        if !digest::is_put_right(&body) {
            let said = "the value changed during the put, so its digest does not match: do not \
                        modify a value until put returns";
            sink(Err(CallError::InvalidArgument(said.into())));
            return request;
        }
        if let Some(held) = held {
            lock(&self.held).insert(request, held);
        }
        lock(&self.replies).insert(request, sink);
        let event = Event::Request { client, request, body, deadline };
        if self.network.tasks.is_closed() {
            self.close();
        } else if may_wait && Handle::try_current().is_err() {
            self.events.send_and_run(event);
        } else {
            self.events.send(event);
        }
        request
    }

    /// Sends a request without a reply, such as a release.
    pub(crate) fn notify(&self, client: ClientId, body: Request) {
        let request = RequestId(self.events.next_id());
        self.events.send(Event::Request { client, request, body, deadline: None });
    }

    /// Cancels a request of a client. It still gets a reply.
    pub(crate) fn cancel(&self, client: ClientId, request: RequestId) {
        self.events.send(Event::Cancelled { client, request });
    }

    /// Passes a reply to the request that waits for it.
    pub(crate) fn answer(&self, request: RequestId, reply: Result<Reply, CallError>) {
        if reply.is_err() {
            let held = lock(&self.held).remove(&request);
            drop(held);
        }
        let sink = lock(&self.replies).remove(&request);
        if let Some(sink) = sink {
            sink(reply);
        }
    }

    /// The work that a request began has ended, or a part of it.
    pub(crate) fn work_ended(&self, request: RequestId) {
        let mut all = lock(&self.held);
        if let Entry::Occupied(mut held) = all.entry(request)
            && !held.get_mut()()
        {
            drop(held.remove());
        }
    }

    /// Fails every request because the node has ended.
    pub(crate) fn close(&self) {
        let sinks: Vec<Sink> = std::mem::take(&mut *lock(&self.replies)).into_values().collect();
        let reason = self.network.tasks.failure().unwrap_or("the node is closed");
        for sink in sinks {
            sink(Err(CallError::NodeDown(reason.into())));
        }
        drop(std::mem::take(&mut *lock(&self.held)));
    }

    /// Completes when requests that took much memory have ended.
    pub(crate) async fn requests_ended(&self) {
        self.request_bytes.shrunk().await;
    }

    /// Allocates the id of a new client.
    pub(crate) fn next_client(&self) -> ClientId {
        ClientId(self.events.next_id())
    }

    /// Registers an attached process.
    pub(crate) fn attach(&self, client: ClientId, attachment: Weak<dyn Attachment>) {
        lock(&self.attached).insert(client, attachment);
    }

    /// The writer id of a client that writes to shared memory itself.
    pub(crate) fn writer(&self, client: ClientId) -> Option<WriterId> {
        lock(&self.attached).contains_key(&client).then_some(WriterId(client.0))
    }

    /// The process of a client; the node's own process if it is not attached.
    pub(crate) fn process(&self, client: ClientId) -> Option<u32> {
        let attached = lock(&self.attached).get(&client).cloned();
        match attached {
            Some(attached) => attached.upgrade()?.process(),
            None => Some(process_id()),
        }
    }

    /// Removes a client; `process` is its process, if known.
    pub(crate) fn gone(&self, client: ClientId, process: Option<u32>) {
        self.events.send(Event::ClientDisconnected { client, process });
        lock(&self.attached).remove(&client);
    }

    /// Notifies all attached processes of freed extents.
    pub(crate) fn forget_gone(&self) {
        let gone = self.retired_extents.take();
        if !gone.is_empty() {
            self.attachments().iter().for_each(|attachment| attachment.forget(&gone));
            gone.iter().for_each(|extent| self.retired_extents.unmapped(*extent));
        }
    }

    /// Sends all attached processes the reason and closes their connections.
    pub(crate) fn detach_all(&self, reason: &str) {
        self.attachments().iter().for_each(|attachment| attachment.end(reason));
    }

    fn attachments(&self) -> Vec<Arc<dyn Attachment>> {
        lock(&self.attached).values().filter_map(Weak::upgrade).collect()
    }

    /// More bytes of an object were written.
    pub(crate) fn advanced(&self, instance: Instance) {
        if let Some(held) = self.store.get(instance) {
            held.grew();
        }
    }

    /// Pins everything that a client reads, while any process has the returned pipe end. `kept` is
    /// dropped after that.
    ///
    /// # Errors
    /// This process is at its limit of open files.
    pub(crate) fn hold(
        self: &Arc<Self>,
        client: ClientId,
        kept: impl Send + 'static,
    ) -> io::Result<OwnedFd> {
        let (end, lifeline) = io::pipe()?;
        let child = self.next_client();
        self.events.send(Event::ClientForked { client, child });
        let programs = self.clone();
        self.network.tasks.spawn(Task::Fork, async move {
            if let Ok(mut end) = pipe::Receiver::from_owned_fd(end.into()) {
                // Nothing is ever written to the pipe: it becomes readable when the other ends are
                // closed.
                let _ = end.read(&mut [0]).await;
            }
            programs.gone(child, None);
            drop(kept);
        });
        Ok(lifeline.into())
    }
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Programs of node {}", self.network.identity.member.id)
    }
}

//! Open requests of clients to the state machine, and the recipients of their replies.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Mutex,
};

use hoplite_proto::{
    error::Error as CallError,
    id::{ClientId, RequestId},
    node::Event,
    request::{Reply, Request},
    time::Instant,
};
use tokio::runtime::Handle;

use super::{event_sender::EventSender, tasks::Supervisor};
use crate::{digest, sync::lock};

/// Receives the reply to a request, on any thread, without blocking.
pub(crate) type Sink = Box<dyn FnOnce(Result<Reply, CallError>) + Send>;

/// What a request holds until the work that it began ends. Called when a part of the work has
/// ended; returns whether more remains.
pub(crate) type Held = Box<dyn FnMut() -> bool + Send>;

/// The open requests of a node's clients.
pub(crate) struct Requests {
    events: EventSender,
    tasks: Supervisor,
    replies: Mutex<BTreeMap<RequestId, Sink>>,
    /// What requests hold until the work that they began ends, after their replies.
    held: Mutex<BTreeMap<RequestId, Held>>,
}

impl Requests {
    pub(crate) fn new(events: EventSender, tasks: Supervisor) -> Self {
        Self { events, tasks, replies: Mutex::default(), held: Mutex::default() }
    }

    /// Sends a request for a client; `sink` gets the reply, perhaps before this returns. `may_wait`
    /// if this thread would block for it anyway.
    pub(crate) fn submit(
        &self,
        client: ClientId,
        body: Request,
        deadline: Option<Instant>,
        may_wait: bool,
        sink: Sink,
    ) -> RequestId {
        let request = RequestId(self.events.next_id());
        self.submit_as(request, client, body, deadline, may_wait, sink);
        request
    }

    /// Sends a request that holds something until the work that it began ends.
    pub(crate) fn submit_holding(
        &self,
        client: ClientId,
        body: Request,
        deadline: Option<Instant>,
        sink: Sink,
        held: Held,
    ) -> RequestId {
        let request = RequestId(self.events.next_id());
        lock(&self.held).insert(request, held);
        self.submit_as(request, client, body, deadline, false, sink);
        request
    }

    fn submit_as(
        &self,
        request: RequestId,
        client: ClientId,
        body: Request,
        deadline: Option<Instant>,
        may_wait: bool,
        sink: Sink,
    ) {
        if !digest::is_put_right(&body) {
            let said = "the value changed during the put, so its digest does not match: do not \
                        modify a value until put returns";
            return sink(Err(CallError::InvalidArgument(said.into())));
        }
        lock(&self.replies).insert(request, sink);
        let event = Event::Request { client, request, body, deadline };
        if self.tasks.is_closed() {
            self.fail_all();
        } else if may_wait && Handle::try_current().is_err() {
            self.events.send_and_run(event);
        } else {
            self.events.send(event);
        }
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
    pub(crate) fn fail_all(&self) {
        let sinks: Vec<Sink> = std::mem::take(&mut *lock(&self.replies)).into_values().collect();
        let reason = self.tasks.failure().unwrap_or("the node is closed");
        for sink in sinks {
            sink(Err(CallError::NodeDown(reason.into())));
        }
        drop(std::mem::take(&mut *lock(&self.held)));
    }
}

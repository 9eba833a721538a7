//! Open requests of clients to the state machine, and the recipients of their replies.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    id::{ClientId, RequestId},
    node::Event,
};
use tokio::runtime::Handle;

use super::{facts::Facts, tasks::Tasks};
use crate::{digest, sync::lock};

/// Receives the reply to a request, on any thread, without blocking.
pub(crate) type Sink = Box<dyn FnOnce(Result<Answer, CallError>) + Send>;

/// The open requests of a node's clients.
pub(crate) struct Requests {
    facts: Facts,
    tasks: Tasks,
    replies: Mutex<HashMap<RequestId, Sink>>,
}

impl Requests {
    pub(crate) fn new(facts: Facts, tasks: Tasks) -> Self {
        Self { facts, tasks, replies: Mutex::default() }
    }

    /// Sends a request for a client; `sink` gets the reply, perhaps before this returns. `may_wait` if this thread
    /// would block for it anyway.
    pub(crate) fn ask(
        &self,
        client: ClientId,
        ask: Ask,
        timeout: Option<Duration>,
        may_wait: bool,
        sink: Sink,
    ) -> RequestId {
        let request = RequestId(self.facts.next_id());
        if !digest::is_put_right(&ask) {
            let said = "the value was changed while it was put: its digest no longer matches";
            sink(Err(CallError::InvalidArgument(said.into())));
            return request;
        }
        let deadline = timeout.map(|timeout| {
            self.facts.now() + u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)
        });
        lock(&self.replies).insert(request, sink);
        let event = Event::Asked { client, request, ask, deadline };
        if self.tasks.is_closed() {
            self.fail_all();
        } else if may_wait && Handle::try_current().is_err() {
            self.facts.tell_and_work(event);
        } else {
            self.facts.tell(event);
        }
        request
    }

    /// Sends a request without a reply, such as a release.
    pub(crate) fn tell(&self, client: ClientId, ask: Ask) {
        let request = RequestId(self.facts.next_id());
        self.facts.tell(Event::Asked { client, request, ask, deadline: None });
    }

    /// Cancels a request. It still gets a reply.
    pub(crate) fn cancel(&self, request: RequestId) {
        self.facts.tell(Event::Cancelled { request });
    }

    /// Passes a reply to the request that waits for it.
    pub(crate) fn answer(&self, request: RequestId, answer: Result<Answer, CallError>) {
        let sink = lock(&self.replies).remove(&request);
        if let Some(sink) = sink {
            sink(answer);
        }
    }

    /// Fails every request because the node has ended.
    pub(crate) fn fail_all(&self) {
        let sinks: Vec<Sink> = lock(&self.replies).drain().map(|(_, sink)| sink).collect();
        let reason = self.tasks.failure().unwrap_or("the node is closed");
        for sink in sinks {
            sink(Err(CallError::NodeDown(reason.into())));
        }
    }
}

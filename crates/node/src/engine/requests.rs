//! The questions of clients that the machine has not answered yet, and who takes their answers.

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

/// Takes the answer to a question, on whatever thread has it, without waiting.
pub(crate) type Sink = Box<dyn FnOnce(Result<Answer, CallError>) + Send>;

/// The open questions of a node's clients.
pub(crate) struct Requests {
    facts: Facts,
    tasks: Tasks,
    replies: Mutex<HashMap<RequestId, Sink>>,
}

impl Requests {
    pub(crate) fn new(facts: Facts, tasks: Tasks) -> Self {
        Self { facts, tasks, replies: Mutex::default() }
    }

    /// Asks on behalf of a client; `sink` gets the answer, perhaps before this returns. `may_wait` if this thread would
    /// wait for it anyway.
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
            let said = "the value was changed while it was put: it has another digest now";
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

    /// Tells the machine something that has no answer: a release.
    pub(crate) fn tell(&self, client: ClientId, ask: Ask) {
        let request = RequestId(self.facts.next_id());
        self.facts.tell(Event::Asked { client, request, ask, deadline: None });
    }

    /// Takes a question back. It is answered all the same.
    pub(crate) fn cancel(&self, request: RequestId) {
        self.facts.tell(Event::Cancelled { request });
    }

    /// Hands an answer to the question that waits for it.
    pub(crate) fn answer(&self, request: RequestId, answer: Result<Answer, CallError>) {
        let sink = lock(&self.replies).remove(&request);
        if let Some(sink) = sink {
            sink(answer);
        }
    }

    /// Answers every question with the end of the node.
    pub(crate) fn fail_all(&self) {
        let sinks: Vec<Sink> = lock(&self.replies).drain().map(|(_, sink)| sink).collect();
        let reason = self.tasks.failure().unwrap_or("the node is closed");
        for sink in sinks {
            sink(Err(CallError::NodeDown(reason.into())));
        }
    }
}

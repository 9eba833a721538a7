//! Sends a client's request and returns the wait for its reply.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    id::{ObjectId, RequestId},
    request::{Reply, Request},
};

use super::{
    attach::AttachedReply,
    connection::Connection,
    view::SlotGuard,
    wait::{self, Finish, PendingReply, ReplyBody, WaitQuery},
};
use crate::error::Error;

/// Sends a request; `finish` converts the answer and its memory to the caller's result. `may_wait`
/// if this thread may block.
pub(crate) fn start<T>(
    connection: &Arc<Connection>,
    may_wait: bool,
    body: Request,
    timeout: Option<Duration>,
    finish: impl FnOnce(Reply, Option<SlotGuard>) -> Result<T, Error> + Send + 'static,
) -> PendingReply<T> {
    let finish = |said| match said {
        ReplyBody::Reply(answer, guard) => finish(answer, guard),
        ReplyBody::Status(_) => Err(Error::node_down("it sent its status without a request")),
    };
    send(connection, may_wait, body, timeout, Box::new(finish))
}

/// Requests the status of the node as JSON. A node replies at once, from memory, so there is always
/// a timeout.
pub(crate) fn describe(
    connection: &Arc<Connection>,
    timeout: Option<Duration>,
) -> PendingReply<String> {
    let finish = |said| match said {
        ReplyBody::Status(json) => Ok(json),
        ReplyBody::Reply(..) => Err(Error::unexpected_reply()),
    };
    let timeout = Some(timeout.unwrap_or_default());
    send(connection, false, Request::Status, timeout, Box::new(finish))
}

impl WaitQuery {
    /// Requests what the request waits for, and why that is not here.
    pub fn start(&self) -> PendingReply<(String, String)> {
        let body = Request::ExplainRequest { request: RequestId(self.request) };
        let timeout = Some(Duration::from_secs(1));
        start(&self.connection, false, body, timeout, |reply, _| match reply {
            Reply::Explained { what, state, .. } => Ok((what, state)),
            _ => Err(Error::unexpected_reply()),
        })
    }
}

fn send<T>(
    connection: &Arc<Connection>,
    may_wait: bool,
    body: Request,
    timeout: Option<Duration>,
    finish: Finish<T>,
) -> PendingReply<T> {
    let about = timeout.and_then(|_| subject(&body));
    let (promise, wait) = wait::pair(connection.clone(), timeout, about, finish);
    // A forked child gets no reply: its end is dropped.
    if connection.is_forked() {
        return wait.with_request(0);
    }
    let request = connection.ask(body, wait.timed(), may_wait, move |request, reply| {
        let said = reply.map(|reply| match reply {
            AttachedReply::Reply(answer, slot) => {
                let guard = SlotGuard::of(promise.connection(), request, &answer, slot);
                ReplyBody::Reply(answer, guard)
            }
            AttachedReply::Status(json) => ReplyBody::Status(json),
        });
        promise.complete(said);
    });
    wait.with_request(request)
}

/// The object that a request with a timeout refers to.
fn subject(body: &Request) -> Option<ObjectId> {
    match body {
        Request::Put { id, .. } | Request::Create { id, .. } | Request::Reduce { id, .. } => {
            id.clone()
        }
        Request::Get { id }
        | Request::GetRange { id, .. }
        | Request::Follow { id }
        | Request::Replicate { id, .. }
        | Request::Inputs { id }
        | Request::Locations { id, .. } => Some(id.clone()),
        _ => None,
    }
}

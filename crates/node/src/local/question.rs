//! Sends a client's request and returns the wait for its reply.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    ask::{Answer, Ask},
    id::ObjectId,
};

use super::{
    attach::Reply,
    connection::Connection,
    view::Guard,
    wait::{self, Finish, Said, Wait},
};
use crate::error::Error;

/// Sends a request; `finish` converts the answer and its memory to the caller's result. `may_wait` if this thread may
/// block.
pub(crate) fn start<T>(
    connection: &Arc<Connection>,
    may_wait: bool,
    ask: Ask,
    timeout: Option<Duration>,
    finish: impl FnOnce(Answer, Option<Guard>) -> Result<T, Error> + Send + 'static,
) -> Wait<T> {
    let finish = |said| match said {
        Said::Answer(answer, guard) => finish(answer, guard),
        Said::Status(_) => Err(Error::node_down("it sent its status without a request")),
    };
    send(connection, may_wait, ask, timeout, Box::new(finish))
}

/// Requests the status of the node as JSON. A node replies at once, from memory, so there is always a timeout.
pub(crate) fn describe(connection: &Arc<Connection>, timeout: Option<Duration>) -> Wait<String> {
    let finish = |said| match said {
        Said::Status(json) => Ok(json),
        Said::Answer(other, _) => Err(unexpected(&other)),
    };
    let timeout = Some(timeout.unwrap_or_default());
    send(connection, false, Ask::Status, timeout, Box::new(finish))
}

fn send<T>(
    connection: &Arc<Connection>,
    may_wait: bool,
    ask: Ask,
    timeout: Option<Duration>,
    finish: Finish<T>,
) -> Wait<T> {
    let about = timeout.and_then(|_| subject(&ask));
    let (promise, wait) = wait::pair(connection.clone(), timeout, about, finish);
    // A forked child gets no reply: its end is dropped.
    if connection.is_forked() {
        return wait.asked_as(0);
    }
    let asker = connection.clone();
    let request = connection.ask(ask, timeout, may_wait, move |request, reply| {
        let said = reply.map(|reply| match reply {
            Reply::Answer(answer, slot) => {
                let guard = Guard::of(&asker, request, &answer, slot);
                Said::Answer(answer, guard)
            }
            Reply::Status(json) => Said::Status(json),
        });
        promise.keep(&asker, said);
    });
    wait.asked_as(request)
}

/// The object that a request with a timeout refers to.
fn subject(ask: &Ask) -> Option<ObjectId> {
    match ask {
        Ask::Put { id, .. } | Ask::Create { id, .. } | Ask::Reduce { id, .. } => id.clone(),
        Ask::Get { id }
        | Ask::Follow { id }
        | Ask::Keep { id, .. }
        | Ask::Inputs { id }
        | Ask::Locations { id, .. } => Some(id.clone()),
        _ => None,
    }
}

pub(crate) fn unexpected(_: &Answer) -> Error {
    Error::node_down("it replied to another request: use a node of the same release")
}

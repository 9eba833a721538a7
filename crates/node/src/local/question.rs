//! A question of a client on its way to its answer.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    ask::{Answer, Ask},
    id::ObjectId,
};

use super::{
    connection::Connection,
    view::Guard,
    wait::{self, Said, Wait},
};
use crate::error::Error;

/// Asks; `finish` makes of the answer, and of the memory that it speaks of, what the caller wants. `may_wait` if this
/// thread may do what takes a while.
pub(crate) fn start<T>(
    connection: &Arc<Connection>,
    may_wait: bool,
    ask: Ask,
    timeout: Option<Duration>,
    finish: impl FnOnce(Answer, Option<Guard>) -> Result<T, Error> + Send + 'static,
) -> Wait<T> {
    let finish = |said| match said {
        Said::Answer(answer, guard) => finish(answer, guard),
        Said::Description(_) => Err(Error::node_down("it described itself unasked")),
    };
    let about = timeout.and_then(|_| subject(&ask));
    let (promise, wait) = wait::pair(connection.clone(), timeout, about, Box::new(finish));
    // A fork gets no answer: its promise is dropped.
    if connection.is_forked() {
        return wait.asked_as(0);
    }
    let asker = connection.clone();
    let request = connection.ask(ask, timeout, may_wait, move |request, answer| {
        let said = answer.map(|(answer, slot)| {
            let guard = Guard::of(&asker, request, &answer, slot);
            Said::Answer(answer, guard)
        });
        promise.keep(&asker, said);
    });
    wait.asked_as(request)
}

/// The object that a request with a timeout is about.
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

/// Asks how the node is, as JSON. A node answers that at once, from memory, so there is always a limit.
pub(crate) fn describe(connection: &Arc<Connection>, timeout: Option<Duration>) -> Wait<String> {
    let timeout = Some(timeout.unwrap_or_default());
    let finish = |said| match said {
        Said::Description(json) => Ok(json),
        Said::Answer(other, _) => Err(unexpected(&other)),
    };
    let (promise, wait) = wait::pair(connection.clone(), timeout, None, Box::new(finish));
    if connection.is_forked() {
        return wait.asked_as(0);
    }
    let asker = connection.clone();
    let request = connection.describe(move |json| {
        promise.keep(&asker, json.map(Said::Description));
    });
    wait.asked_as(request)
}

pub(crate) fn unexpected(_: &Answer) -> Error {
    Error::node_down("it gave an answer to another question; is it a node of another release?")
}

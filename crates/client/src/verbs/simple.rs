//! Verbs with a single request.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use hoplite_node::{Client as Native, PendingReply};

use crate::{attachment::Attachment, call::Verb, error::Result, mode::Mode, outcome::Outcome};

/// A verb without options of its own.
pub struct Simple<T>(Run<T>);

type Run<T> = Box<dyn FnOnce(Arc<Attachment>, Mode, Option<Duration>) -> Running<T> + Send>;
type Running<T> = Pin<Box<dyn Future<Output = Result<Outcome<T>>> + Send>>;

impl<T: Send + 'static> Simple<T> {
    /// A verb that `start` requests, with the timeout; `finish` converts the reply.
    pub(crate) fn new<R: Send + 'static>(
        start: impl FnOnce(&Native, Option<Duration>) -> PendingReply<R> + Send + 'static,
        finish: impl FnOnce(&Native, R) -> Outcome<T> + Send + 'static,
    ) -> Self {
        Self::checked(Ok(start), finish)
    }

    /// The same, if its arguments are valid.
    pub(crate) fn checked<R: Send + 'static>(
        start: Result<impl FnOnce(&Native, Option<Duration>) -> PendingReply<R> + Send + 'static>,
        finish: impl FnOnce(&Native, R) -> Outcome<T> + Send + 'static,
    ) -> Self {
        Self(Box::new(move |attachment, mode, limit| {
            Box::pin(async move {
                let start = start?;
                let (native, limit) = attachment.open(mode, limit).await?;
                let reply = mode.reply(start(&native, limit)).await?;
                Ok(finish(&native, reply))
            })
        }))
    }
}

impl<T: Send + 'static> Verb for Simple<T> {
    type Output = T;

    async fn run(
        self,
        attachment: &Arc<Attachment>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<Outcome<T>> {
        (self.0)(attachment.clone(), mode, limit).await
    }
}

impl<T> fmt::Debug for Simple<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Simple")
    }
}

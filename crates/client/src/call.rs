//! Calls: a verb with its arguments, run in one of three ways.

use std::{
    borrow::Cow,
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use crate::{
    attachment::Attachment,
    error::Result,
    mode::{Mode, finish},
    outcome::Outcome,
    pending::Pending,
};

/// A call of a verb, not started yet: set its options, then [`wait`](Call::wait) for the result, `.await` it on any
/// executor, or [`start`](Call::start) it in the background.
#[must_use = "a call does nothing until it is waited for, awaited or started"]
pub struct Call<'c, V> {
    attachment: Cow<'c, Arc<Attachment>>,
    pub(crate) verb: V,
    limit: Option<Duration>,
}

/// What a verb does.
pub trait Verb: Sized + Send {
    /// The result.
    type Output: Send + 'static;
    /// Whether the verb reads or writes memory of the caller.
    const HOLDS_MEMORY: bool = false;

    /// Runs the verb in a mode, within a timeout.
    fn run(
        self,
        attachment: &Arc<Attachment>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> impl Future<Output = Result<Outcome<Self::Output>>> + Send;

    /// Runs the verb in the calling thread, within a timeout.
    ///
    /// # Errors
    /// The errors of the verb.
    fn wait(self, attachment: &Arc<Attachment>, limit: Option<Duration>) -> Result<Self::Output> {
        finish(self.run(attachment, Mode::Blocking, limit)).map(Outcome::keep)
    }
}

impl<'c, V: Verb> Call<'c, V> {
    pub(crate) fn new(attachment: &'c Arc<Attachment>, verb: V) -> Self {
        Self { attachment: Cow::Borrowed(attachment), verb, limit: attachment.timeout() }
    }

    pub(crate) fn owned(attachment: Arc<Attachment>, verb: V) -> Self {
        let limit = attachment.timeout();
        Self { attachment: Cow::Owned(attachment), verb, limit }
    }

    /// Sets the timeout. Zero does not wait; with None, the call waits without limit.
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.limit = timeout.into();
        self
    }

    /// Runs the call and blocks the calling thread until its result is there.
    ///
    /// # Errors
    /// The errors of the verb.
    pub fn wait(self) -> Result<V::Output> {
        self.verb.wait(&self.attachment, self.limit)
    }

    /// Starts the call in the background, on a thread of the library.
    pub fn start(self) -> Pending<V::Output>
    where
        V: 'static,
    {
        let (attachment, verb, limit) = (self.attachment.into_owned(), self.verb, self.limit);
        let call = async move { verb.run(&attachment, Mode::Background, limit).await };
        Pending::spawn(call, V::HOLDS_MEMORY)
    }
}

/// The future of a call, for any executor. Large copies run on the thread that polls it; those of [`Call::start`] do
/// not. Dropping it cancels the call.
pub type CallFuture<'c, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'c>>;

impl<'c, V: Verb + 'c> IntoFuture for Call<'c, V> {
    type Output = Result<V::Output>;
    type IntoFuture = CallFuture<'c, V::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.verb.run(&self.attachment, Mode::Await, self.limit).await.map(Outcome::keep)
        })
    }
}

impl<V> fmt::Debug for Call<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("timeout", &self.limit).finish_non_exhaustive()
    }
}

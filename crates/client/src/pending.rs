//! Calls that run in the background, on the runtime of the library.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use hoplite_node::WaitQuery;
use tokio::task::AbortHandle;

use crate::{
    error::{Error, ErrorKind, Result},
    mode,
    outcome::Outcome,
    process,
};

/// A call that runs in the background; a future of any executor. Dropping it cancels the call: a put, a seal, a
/// reserve or a reduce then leaves no object, and no thread reads or writes the memory of the call any more.
#[must_use = "dropping a pending call cancels it"]
pub struct Pending<T> {
    shared: Arc<Shared<T>>,
    task: Option<AbortHandle>,
    /// Whether the call uses memory of the caller, which a cancellation must await.
    holds_memory: bool,
    process: u32,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    result: Option<Result<Outcome<T>>>,
    is_done: bool,
    /// Whether the future of the call was dropped, with all its memory.
    is_dropped: bool,
    waker: Option<Waker>,
    /// The request that the call waits for, if that has no timeout.
    query: Option<WaitQuery>,
    callbacks: Vec<Callback>,
}

type Callback = Box<dyn FnOnce() + Send>;

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the call unless it has ended.
    fn end(&self, result: Result<Outcome<T>>) {
        let mut state = self.lock();
        if state.is_done {
            return;
        }
        state.result = Some(result);
        state.is_done = true;
        state.query = None;
        let (waker, callbacks) = (state.waker.take(), std::mem::take(&mut state.callbacks));
        drop(state);
        self.changed.notify_all();
        waker.into_iter().for_each(Waker::wake);
        callbacks.into_iter().for_each(|callback| callback());
    }

    /// Waits until a condition holds, until a time.
    fn wait(&self, until: Option<Instant>, holds: impl Fn(&State<T>) -> bool) -> bool {
        let mut state = self.lock();
        while !holds(&state) {
            let changed = &self.changed;
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return false,
                Some(left) => {
                    changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }
}

impl<T: Send + 'static> Pending<T> {
    /// Runs a call in the background. `holds_memory` if it uses memory of the caller.
    pub(crate) fn spawn(
        call: impl Future<Output = Result<Outcome<T>>> + Send + 'static,
        holds_memory: bool,
    ) -> Self {
        let state = State {
            result: None,
            is_done: false,
            is_dropped: false,
            waker: None,
            query: None,
            callbacks: Vec::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let task = Task { call: Box::pin(call), ending: Ending(shared.clone()) };
        let task = match process::runtime() {
            Ok(runtime) => Some(runtime.spawn(task).abort_handle()),
            Err(error) => {
                shared.end(Err(error));
                None
            }
        };
        Self { shared, task, holds_memory, process: std::process::id() }
    }

    /// Whether the call has ended.
    pub fn is_done(&self) -> bool {
        self.shared.lock().is_done
    }

    /// The request that the call waits for, if that has no timeout.
    #[doc(hidden)]
    pub fn query(&self) -> Option<WaitQuery> {
        self.shared.lock().query.clone()
    }

    /// Waits until the call has ended, and returns its result.
    ///
    /// # Errors
    /// The error of the call; [`ErrorKind::InvalidArgument`] if its result was taken before.
    pub fn wait(self) -> Result<T> {
        self.shared.wait(None, |state| state.is_done);
        self.take()
    }

    /// Waits for at most `time`; None if the call has not ended by then.
    pub fn wait_timeout(&mut self, time: Duration) -> Option<Result<T>> {
        self.is_done_within(time).then(|| self.take())
    }

    /// Waits for at most `time`; returns whether the call has ended. Its result stays.
    pub fn is_done_within(&self, time: Duration) -> bool {
        self.shared.wait(Instant::now().checked_add(time), |state| state.is_done)
    }

    /// Calls a function once the call has ended, on a thread of the library, where it may block; at once if the call
    /// has ended already.
    pub fn on_done(&self, callback: impl FnOnce() + Send + 'static) {
        let callback = Arc::new(Mutex::new(Some(callback)));
        self.when_done(move || {
            let lent = callback.clone();
            // tokio panics if the system can't start a thread. Then this one makes the call.
            let spawned = catch_unwind(AssertUnwindSafe(|| {
                process::runtime().map(|runtime| runtime.spawn_blocking(move || call(&lent)))
            }));
            if !matches!(spawned, Ok(Ok(_))) {
                call(&callback);
            }
        });
    }

    /// Calls a function that does not block once the call has ended, on the thread that ends it; at once on this
    /// thread if the call has ended already. It must not drop a pending call.
    pub fn when_done(&self, callback: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        if state.is_done {
            drop(state);
            callback();
        } else {
            state.callbacks.push(Box::new(callback));
        }
    }

    fn take(&self) -> Result<T> {
        let taken = || Error::argument("the result of this call was taken before: take it once");
        self.shared.lock().result.take().unwrap_or_else(|| Err(taken())).map(Outcome::keep)
    }
}

impl<T: Send + 'static> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let mut state = self.shared.lock();
        if state.is_done {
            drop(state);
            return Poll::Ready(self.take());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The parent owns the call. Its thread may have held a lock of the runtime at the fork.
            std::mem::forget(self.task.take());
            return;
        }
        if let Some(task) = self.task.take() {
            task.abort();
            if self.holds_memory {
                self.shared.wait(None, |state| state.is_dropped);
            }
        }
        // Nobody takes the result any more: an object that it created is deleted.
        let untaken = self.shared.lock().result.take();
        drop(untaken);
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_done", &self.shared.lock().is_done).finish()
    }
}

/// Calls a function that was not called yet.
fn call(callback: &Mutex<Option<impl FnOnce()>>) {
    let callback = callback.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(callback) = callback {
        callback();
    }
}

/// The task of a call. Its fields are dropped in this order: first the memory that the call uses.
struct Task<T> {
    call: Pin<Box<dyn Future<Output = Result<Outcome<T>>> + Send>>,
    ending: Ending<T>,
}

impl<T: 'static> Future for Task<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (polled, query) = mode::poll(self.call.as_mut(), context);
        let Poll::Ready(result) = polled else {
            self.ending.0.lock().query = query;
            return Poll::Pending;
        };
        // Drop the memory that the call used before anybody learns that it is done.
        self.call = Box::pin(std::future::pending());
        self.ending.0.end(result);
        Poll::Ready(())
    }
}

/// Ends a call whose task is dropped: cancelled, or panicked.
struct Ending<T>(Arc<Shared<T>>);

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        let failed = "the call ended without a result: report this with the log of the process";
        self.0.end(Err(Error::new(ErrorKind::Internal, failed)));
        self.0.lock().is_dropped = true;
        self.0.changed.notify_all();
    }
}

//! How a verb waits: in the calling thread, or suspended until the node replies.
//!
//! Each verb is one `async fn`. With [`Mode::Blocking`] its leaves block and it completes at its first poll.

use std::{
    cell::RefCell,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use hoplite_node::{Client as Native, Latch, PendingReply, WaitQuery};
use tokio::time::Sleep;

use crate::{error::Result, interrupt, process};

/// How a verb waits, and where it may work for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the calling thread.
    Blocking,
    /// As a future of the caller's executor.
    Await,
    /// As a task of the background runtime, which holds no other task up while it copies.
    Background,
}

/// Copies of more bytes let another thread run the other tasks of the background runtime meanwhile.
const COPY_BYTES: u64 = 1 << 20;

impl Mode {
    /// The client for requests in this mode.
    pub(crate) fn native(self, native: &Native) -> Native {
        match self {
            Self::Blocking => native.clone(),
            _ => native.in_passing(),
        }
    }

    /// Waits for a reply.
    pub(crate) async fn reply<T>(self, pending: PendingReply<T>) -> Result<T> {
        match self {
            Self::Blocking => interrupt::join(pending),
            _ => Reply::new(pending).await,
        }
    }

    /// Runs a call that reads or writes `bytes` bytes.
    pub(crate) fn copy<T>(self, bytes: u64, call: impl FnOnce() -> T) -> T {
        match self {
            Self::Background if bytes > COPY_BYTES => tokio::task::block_in_place(call),
            _ => call(),
        }
    }

    /// Makes a call that may block for long.
    pub(crate) async fn aside<T: Send + 'static>(
        self,
        call: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self == Self::Blocking {
            return call();
        }
        match process::runtime()?.spawn_blocking(call).await {
            Ok(result) => result,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }
}

/// Returns the rest of a timeout that began at `begun`.
pub(crate) fn left(limit: Option<Duration>, begun: Instant) -> Option<Duration> {
    limit.map(|limit| limit.saturating_sub(begun.elapsed()))
}

/// A reply as a future of any executor.
pub(crate) struct Reply<T> {
    pending: PendingReply<T>,
    check: Option<Pin<Box<Sleep>>>,
}

impl<T> Reply<T> {
    pub(crate) const fn new(pending: PendingReply<T>) -> Self {
        Self { pending, check: None }
    }

    /// Whether the reply is there.
    pub(crate) fn is_over(&self) -> bool {
        self.pending.is_over()
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let Self { pending, check } = self.get_mut();
        loop {
            if let Some(result) = pending.wait_for(Duration::ZERO) {
                return Poll::Ready(result.map_err(Into::into));
            }
            let waker = context.waker().clone();
            if !pending.when_over(Box::new(move || waker.wake())) {
                continue;
            }
            // Once the node does not reply in time, `wait_for` returns that error.
            let Some(next) = pending.next_check() else {
                POLLED.with_borrow_mut(|polled| {
                    if let Some(polled) = polled {
                        *polled = pending.query();
                    }
                });
                return Poll::Pending;
            };
            let mut sleep = match check.take() {
                Some(sleep) => sleep,
                None => sleep(next)?,
            };
            if sleep.as_mut().poll(context).is_pending() {
                *check = Some(sleep);
                return Poll::Pending;
            }
        }
    }
}

thread_local! {
    /// The reply that the poll of this thread waits for, if somebody collects it.
    static POLLED: RefCell<Option<Option<WaitQuery>>> = const { RefCell::new(None) };
}

/// Polls a call; also returns the request that it waits for, if that has no timeout.
pub(crate) fn poll<F: Future + ?Sized>(
    call: Pin<&mut F>,
    context: &mut Context<'_>,
) -> (Poll<F::Output>, Option<WaitQuery>) {
    let outer = POLLED.replace(Some(None));
    let output = call.poll(context);
    (output, POLLED.replace(outer).flatten())
}

/// A timer that any executor can poll.
pub(crate) fn sleep(time: Duration) -> Result<Pin<Box<Sleep>>> {
    let runtime = process::runtime()?;
    let _entered = runtime.enter();
    Ok(Box::pin(tokio::time::sleep(time)))
}

/// Runs a call to its end in the calling thread. With [`Mode::Blocking`], most calls take one poll.
pub(crate) fn finish<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let mut call = pin!(call);
    if let Poll::Ready(output) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    loop {
        let woken = Arc::new(Woken(Latch::default()));
        let waker = Waker::from(woken.clone());
        let (polled, query) = poll(call.as_mut(), &mut Context::from_waker(&waker));
        if let Poll::Ready(output) = polled {
            return output;
        }
        interrupt::wait(query.as_ref(), |nap| {
            woken.0.wait(nap);
            woken.0.is_open().then_some(())
        })?;
    }
}

/// Ends the wait for the next poll.
struct Woken(Latch);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.open();
    }
}

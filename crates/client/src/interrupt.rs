//! Interruption of blocking calls, for hosts whose threads have other work to do while they wait: an interpreter runs
//! signal handlers. Does not know that work.

use std::{cell::RefCell, rc::Rc, time::Duration};

use hoplite_node::{PendingReply, WaitQuery};

use crate::error::{Error, ErrorKind, Result};

/// The host of a thread.
pub trait Interrupt {
    /// Longest time to wait until the next [`check`](Self::check).
    fn nap(&self) -> Duration;

    /// Does the host's work: `nap` is over, or a signal handler ran on this thread. `query` is the request that the
    /// thread waits for, if that has no timeout. Returns whether to wait on.
    fn check(&self, query: Option<&WaitQuery>) -> bool;
}

thread_local! {
    static HOST: RefCell<Option<Rc<dyn Interrupt>>> = const { RefCell::new(None) };
}

/// Makes calls whose waits in this thread `host` may interrupt. Calls that it makes meanwhile may have another host.
pub fn with<T>(host: Rc<dyn Interrupt>, calls: impl FnOnce() -> T) -> T {
    let _before = Restore(HOST.replace(Some(host)));
    calls()
}

struct Restore(Option<Rc<dyn Interrupt>>);

impl Drop for Restore {
    fn drop(&mut self) {
        HOST.set(self.0.take());
    }
}

/// Waits in steps, each for at most the given time, until one returns a result.
///
/// # Errors
/// [`ErrorKind::Internal`] if the host of this thread ended the wait.
pub fn wait<T>(query: Option<&WaitQuery>, step: impl FnMut(Duration) -> Option<T>) -> Result<T> {
    match HOST.with_borrow(Clone::clone) {
        Some(host) => wait_as(&*host, query, step),
        None => wait_as(&NoHost, query, step),
    }
}

/// Waits as [`wait`], for a given host.
///
/// # Errors
/// As [`wait`].
pub fn wait_as<T>(
    host: &(impl Interrupt + ?Sized),
    query: Option<&WaitQuery>,
    mut step: impl FnMut(Duration) -> Option<T>,
) -> Result<T> {
    loop {
        if let Some(result) = step(host.nap()) {
            return Ok(result);
        }
        if !host.check(query) {
            return Err(Error::new(ErrorKind::Internal, "the call was interrupted"));
        }
    }
}

/// Waits for a reply. An interruption cancels the request.
pub(crate) fn join<T>(mut pending: PendingReply<T>) -> Result<T> {
    let query = pending.query();
    Ok(wait(query.as_ref(), |nap| pending.wait_for(nap))??)
}

struct NoHost;

impl Interrupt for NoHost {
    fn nap(&self) -> Duration {
        Duration::MAX
    }

    fn check(&self, _: Option<&WaitQuery>) -> bool {
        true
    }
}

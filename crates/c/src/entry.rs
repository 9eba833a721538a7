//! Asynchronous calls that run, or whose result waits to be taken.

use std::{
    any::Any,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    code::Code,
    errors::{Failure, Result},
    handles::{Table, Type},
    origin,
    values::Pending,
};

pub(crate) static PENDING: Table<Arc<Entry>> = Table::new(Type::Pending);

/// The result of an asynchronous call.
pub(crate) trait Taken: Send + 'static {
    /// The function that returns it.
    const TAKE: &'static str;
}

/// A call of any result.
trait Running: Send {
    fn when_done(&self, then: Box<dyn FnOnce() + Send>);
    fn on_done(&self, then: Box<dyn FnOnce() + Send>);
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<T: Taken> Running for hoplite::Pending<T> {
    fn when_done(&self, then: Box<dyn FnOnce() + Send>) {
        self.when_done(then);
    }

    fn on_done(&self, then: Box<dyn FnOnce() + Send>) {
        self.on_done(then);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// One asynchronous call.
pub(crate) struct Entry {
    /// Number of forks before its start.
    fork: u32,
    take: &'static str,
    running: Mutex<Option<Box<dyn Running>>>,
    progress: Arc<Progress>,
    has_callback: AtomicBool,
    has_queue: AtomicBool,
}

/// What the waiting threads wait for.
struct Progress {
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Over,
    /// Cancelled, or taken.
    Released,
}

impl Progress {
    fn set(&self, stage: Stage) {
        let mut now = lock(&self.stage);
        if *now != Stage::Released {
            *now = stage;
        }
        drop(now);
        self.changed.notify_all();
    }

    /// Waits until the call no longer runs, for at most `limit`.
    fn wait(&self, limit: Option<Duration>) -> Stage {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut stage = lock(&self.stage);
        while *stage == Stage::Running {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            stage = match left {
                None => self.changed.wait(stage).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break,
                Some(left) => {
                    let waited = self.changed.wait_timeout(stage, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *stage
    }
}

impl Entry {
    /// Opens the handle of a call that has started.
    pub(crate) fn open<T: Taken>(call: hoplite::Pending<T>) -> Result<Pending> {
        let progress =
            Arc::new(Progress { stage: Mutex::new(Stage::Running), changed: Condvar::new() });
        let ending = progress.clone();
        call.when_done(move || ending.set(Stage::Over));
        let id = PENDING.insert(Arc::new(Self {
            fork: origin::number(),
            take: T::TAKE,
            running: Mutex::new(Some(Box::new(call))),
            progress,
            has_callback: AtomicBool::new(false),
            has_queue: AtomicBool::new(false),
        }))?;
        Ok(Pending { id })
    }

    /// The call of a handle.
    pub(crate) fn of(pending: Pending) -> Result<Arc<Self>> {
        let entry = PENDING.get(pending.id, Arc::clone)?;
        origin::check(entry.fork, "call")?;
        Ok(entry)
    }

    /// Waits until the call is over.
    ///
    /// # Errors
    /// [`Code::Timeout`]; [`Code::Cancelled`].
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Result<()> {
        match (self.progress.wait(limit), limit) {
            (Stage::Over, _) => Ok(()),
            (Stage::Released, _) => {
                let message = "another thread has cancelled or taken this call: share it no longer";
                Err(Failure::new(Code::Cancelled, message))
            }
            (Stage::Running, limit) => {
                let seconds = limit.unwrap_or_default().as_secs_f64();
                let message = format!(
                    "the call is not over after {seconds} s: wait for longer, or cancel it"
                );
                Err(Failure::new(Code::Timeout, message))
            }
        }
    }

    /// Calls a function once the call is over or cancelled, on a thread of the library, where it may block.
    pub(crate) fn on_done(&self, then: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.register(&self.has_callback, "callback", |running| running.on_done(then))
    }

    /// Calls a function that does not block once the call is over or cancelled.
    pub(crate) fn when_done(&self, then: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.register(&self.has_queue, "queue", |running| running.when_done(then))
    }

    fn register(
        &self,
        has: &AtomicBool,
        what: &str,
        register: impl FnOnce(&dyn Running),
    ) -> Result<()> {
        let running = lock(&self.running);
        let Some(running) = running.as_deref() else {
            let message = "another thread has cancelled or taken this call: share it no longer";
            return Err(Failure::new(Code::Cancelled, message));
        };
        if has.swap(true, Ordering::Relaxed) {
            let message = format!("the call has a {what} already: register only one");
            return Err(Failure::argument(message));
        }
        register(running);
        Ok(())
    }

    /// Waits for a call, releases its handle, and returns its result.
    pub(crate) fn take<T: Taken>(pending: Pending) -> Result<T> {
        let entry = Self::of(pending)?;
        if entry.take != T::TAKE {
            let message = format!("the call has another result: take it with {}", entry.take);
            return Err(Failure::argument(message));
        }
        entry.wait(None)?;
        PENDING.remove(pending.id)?;
        let running = entry.release().map(Running::into_any);
        let call = running.and_then(|call| call.downcast::<hoplite::Pending<T>>().ok());
        let missing = || Failure::new(Code::Internal, "the call has no result");
        Ok(call.ok_or_else(missing)?.wait()?)
    }

    /// Releases the handle of a call, and cancels the call. Afterwards it uses no memory of the caller.
    pub(crate) fn cancel(pending: Pending) -> Result<()> {
        let entry = PENDING.remove(pending.id)?;
        if origin::check(entry.fork, "call").is_err() {
            // Its thread runs in the parent.
            std::mem::forget(entry);
            return Ok(());
        }
        drop(entry.release());
        Ok(())
    }

    fn release(&self) -> Option<Box<dyn Running>> {
        self.progress.set(Stage::Released);
        lock(&self.running).take()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

macro_rules! taken {
    ($($result:ty => $take:literal,)*) => {
        $(impl Taken for $result {
            const TAKE: &'static str = concat!("hoplite_pending_take_", $take);
        })*
    };
}

taken! {
    hoplite::Ref => "ref",
    hoplite::View => "view",
    hoplite::Buffer => "buffer",
    u64 => "size",
    Vec<usize> => "ready",
    Vec<hoplite::Ref> => "refs",
    hoplite::Lease => "lease",
    Vec<hoplite::Location> => "locations",
    String => "text",
    () => "done",
}

//! The threads and tasks of a node: starts them, and ends the node when one panics.
//!
//! A panic leaves data half changed, so the node stops. The first panic is logged, and is the
//! reason that every client gets. A task may also end the node for another reason. Does not know
//! what the tasks do.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use strum::{Display, VariantArray};
use tokio::{runtime::Handle, sync::SetOnce, task::JoinHandle};
use tracing::error;

/// A thread or task, for the log and for tests that inject a panic into it.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, VariantArray)]
#[repr(u8)]
pub enum Task {
    /// The state machine and its quick actions, on any thread.
    Machine = 1,
    /// Slow actions: memory for large copies, folds of many small inputs.
    SlowActions,
    /// Reports the state machine's deadline.
    Timer,
    /// The thread that receives control messages.
    Control,
    /// Accepts connections of other nodes.
    Listen,
    /// Accepts the handshake of one connection.
    Handshake,
    /// Writes to one member, and reconnects to it.
    Connection,
    /// Writes messages that can wait.
    DeferredWrites,
    /// Reconnects to a lost member.
    Reconnect,
    /// Connects to the configured members.
    SeedRetry,
    /// Re-reads the revocation list.
    Revocation,
    /// Surveys the links of members.
    Survey,
    /// Relays a connection to another member.
    Relay,
    /// Sends over one payload connection.
    Send,
    /// Receives one copy.
    Receive,
    /// Receives the stream of one child of a fold.
    Stream,
    /// Folds one position of a reduce.
    Fold,
    /// Expires permits of stalled transfers.
    Limiter,
    /// Frees memory that no fold has used lately.
    Trim,
    /// Accepts processes of this host.
    Attach,
    /// Serves one attached process.
    Session,
    /// Writes to one attached process that reads slowly.
    ReplyWriter,
    /// Holds the pins of a forked process.
    Fork,
    /// Writes and reads files of objects.
    Disk,
}

impl Task {
    /// All threads and tasks.
    pub const ALL: &'static [Self] = Self::VARIANTS;
}

/// Starts the threads and tasks of one node.
#[derive(Clone, Debug)]
pub(crate) struct Supervisor {
    runtime: Handle,
    life: Arc<Life>,
}

/// Whether the node is running.
#[derive(Debug, Default)]
struct Life {
    is_closed: AtomicBool,
    failure: SetOnce<String>,
    /// The task in which a test injects a panic; zero for none.
    #[cfg(feature = "mutants")]
    injected: std::sync::atomic::AtomicU8,
}

impl Supervisor {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, life: Arc::default() }
    }

    /// Starts a task.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: Task,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        // Boxed, so that the code of tokio's tasks exists once for each result, not for each kind
        // of work.
        let work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
        self.runtime.spawn(self.watch(task, work))
    }

    /// Wraps work so that a panic in it ends the node; None after a panic.
    pub(crate) fn watch<T, F: Future<Output = T>>(
        &self,
        task: Task,
        work: F,
    ) -> impl Future<Output = Option<T>> + use<T, F> {
        let tasks = self.clone();
        async move {
            let mut work = pin!(work);
            std::future::poll_fn(|context| {
                let polled = tasks.catch(task, || work.as_mut().poll(context));
                polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
            })
            .await
        }
    }

    /// Runs work that may block, on a blocking thread.
    pub(crate) fn spawn_blocking<T: Send + 'static>(
        &self,
        task: Task,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        let tasks = self.clone();
        self.runtime.spawn_blocking(move || tasks.catch(task, work))
    }

    /// Starts a thread.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn thread(
        &self,
        task: Task,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let tasks = self.clone();
        let run = move || tasks.catch(task, work).unwrap_or_default();
        std::thread::Builder::new().name(name.into()).spawn(run).map(drop)
    }

    /// Runs work on this thread; None if it panicked, which ends the node.
    pub(crate) fn catch<T>(&self, task: Task, work: impl FnOnce() -> T) -> Option<T> {
        let injected = || {
            self.panic_if_injected(task);
            work()
        };
        // State that the work left half changed is not used again: the node has ended.
        catch_unwind(AssertUnwindSafe(injected)).map_err(|panic| self.fail(task, &*panic)).ok()
    }

    #[cfg(not(feature = "mutants"))]
    const fn panic_if_injected(&self, _: Task) {}

    #[cfg(feature = "mutants")]
    fn panic_if_injected(&self, task: Task) {
        let injected = self.life.injected.load(Ordering::Relaxed);
        assert!(injected != task as u8, "a test injected this");
    }

    /// Makes a task panic when it next runs: test only.
    #[cfg(feature = "mutants")]
    pub(crate) fn inject_panic(&self, task: Task) {
        self.life.injected.store(task as u8, Ordering::SeqCst);
    }

    fn fail(&self, task: Task, panic: &(dyn Any + Send)) {
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let said = said.unwrap_or("without a message");
        let reason = format!("the node stopped because its task {task} panicked: {said}");
        if self.life.failure.set(reason.clone()).is_ok() {
            error!("{reason}");
        }
    }

    /// Ends the node with a reason, which its clients get.
    pub(crate) fn end(&self, reason: String) {
        // The first reason is kept.
        let _ = self.life.failure.set(reason);
    }

    /// Why the node stopped by itself, if it did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.life.failure.get().map(String::as_str)
    }

    /// Completes when the node has stopped by itself.
    pub(crate) async fn failed(&self) {
        self.life.failure.wait().await;
    }

    /// Marks the node as closed.
    pub(crate) fn close(&self) {
        self.life.is_closed.store(true, Ordering::Release);
    }

    /// Whether the node has stopped by itself or was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.life.is_closed.load(Ordering::Acquire) || self.failure().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn first_panic_is_the_reason_and_other_work_continues() {
        let tasks = Supervisor::new(Handle::current());
        assert_eq!(tasks.spawn(Task::Fold, async { 7 }).await.unwrap(), Some(7));
        assert!(!tasks.is_closed());
        let panics = async {
            tokio::task::yield_now().await;
            panic!("out of {}", "luck");
        };
        assert_eq!(tasks.spawn::<()>(Task::Fold, panics).await.unwrap(), None);
        tasks.failed().await;
        assert!(tasks.catch(Task::Timer, || panic!("later")).is_none_or(|()| false));
        assert!(tasks.is_closed());
        let reason = tasks.failure().unwrap();
        assert!(reason.contains("Fold") && reason.ends_with("out of luck"), "{reason}");
        assert_eq!(tasks.spawn_blocking(Task::SlowActions, || 8).await.unwrap(), Some(8));
    }
}

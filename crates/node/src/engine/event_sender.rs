//! The handle through which tasks report events to the state machine, with the ids and times that
//! they need for that. Does not know the state machine or its actions.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant as Clock},
};

use hoplite_proto::{node::Event, time::Instant};
use tokio::sync::watch;

/// A reported event.
pub(crate) struct QueuedEvent {
    pub(crate) event: Event,
    /// Checks, when its turn comes, whether the event still applies.
    pub(crate) is_current: Option<IsCurrent>,
}

/// Who causes an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Other nodes, the timer, and the node's own tasks.
    Members,
    /// Programs of this host.
    Programs,
}

type IsCurrent = Box<dyn FnOnce() -> bool + Send>;

/// The event loop, as seen by tasks that report events.
pub(crate) trait HandleEvent: Send + Sync {
    /// Passes an event to the state machine and executes its actions. Never blocks, so any thread
    /// may call it at any time, even while it executes an action. The calling thread executes slow
    /// actions if it `may_wait`, otherwise another thread does.
    fn handle(self: Arc<Self>, event: QueuedEvent, may_wait: bool);
}

/// Reports events to the state machine of a node. Events reported after the end of the node are
/// dropped.
#[derive(Clone)]
pub(crate) struct EventSender {
    machine: Weak<dyn HandleEvent>,
    /// For each source, whether so many of its events are queued that its socket readers must wait.
    congested: watch::Receiver<[bool; 2]>,
    begun: Clock,
    ids: Arc<AtomicU64>,
}

impl EventSender {
    pub(crate) fn new(
        machine: Weak<dyn HandleEvent>,
        congested: watch::Receiver<[bool; 2]>,
    ) -> Self {
        Self { machine, congested, begun: Clock::now(), ids: Arc::new(AtomicU64::new(1)) }
    }

    /// Reports an event.
    pub(crate) fn send(&self, event: Event) {
        self.dispatch(QueuedEvent { event, is_current: None }, false);
    }

    /// Reports an event from a thread that may block.
    pub(crate) fn send_and_run(&self, event: Event) {
        self.dispatch(QueuedEvent { event, is_current: None }, true);
    }

    /// Reports an event that is dropped unless `is_current` returns true when its turn comes.
    pub(crate) fn send_if(&self, event: Event, is_current: impl FnOnce() -> bool + Send + 'static) {
        self.dispatch(QueuedEvent { event, is_current: Some(Box::new(is_current)) }, false);
    }

    fn dispatch(&self, event: QueuedEvent, may_wait: bool) {
        if let Some(machine) = self.machine.upgrade() {
            machine.handle(event, may_wait);
        }
    }

    /// Whether so many events of a source are queued that its socket readers must wait.
    pub(crate) fn is_congested(&self, source: Source) -> bool {
        self.congested.borrow()[source as usize]
    }

    /// Waits until socket readers may report more events of a source. Must not be called by a task
    /// or thread that executes an action.
    pub(crate) async fn until_uncongested(&self, source: Source) {
        if self.is_congested(source) {
            // An error means that the state machine is gone.
            let _ = self.congested.clone().wait_for(|congested| !congested[source as usize]).await;
        }
    }

    /// The current time of the state machine.
    pub(crate) fn now(&self) -> Instant {
        self.after(Clock::now(), Duration::ZERO)
    }

    /// The time of the state machine `timeout` after `begun`.
    pub(crate) fn after(&self, begun: Clock, timeout: Duration) -> Instant {
        let since = begun.duration_since(self.begun).saturating_add(timeout);
        Instant(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Generates a unique number, for clients, requests and transfers.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }
}

impl std::fmt::Debug for EventSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventSender")
    }
}

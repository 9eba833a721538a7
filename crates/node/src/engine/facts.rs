//! The handle through which tasks report events to the state machine, with the ids and times that they need for that.
//! Does not know the state machine or its actions.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant as Clock,
};

use hoplite_proto::{node::Event, time::Instant};
use tokio::sync::watch;

/// A reported event.
pub(crate) struct Fact {
    pub(crate) event: Event,
    /// Checks, when its turn comes, whether the event still applies.
    pub(crate) is_current: Option<IsCurrent>,
}

type IsCurrent = Box<dyn FnOnce() -> bool + Send>;

/// The event loop, as seen by tasks that report events.
pub(crate) trait Hear: Send + Sync {
    /// Passes an event to the state machine and executes its actions. Never blocks, so any thread may call it at any
    /// time, even while it executes an action. The calling thread executes slow actions if it `may_wait`, otherwise
    /// another thread does.
    fn hear(self: Arc<Self>, fact: Fact, may_wait: bool);
}

/// Reports events to the state machine of a node. Events reported after the end of the node are dropped.
#[derive(Clone)]
pub(crate) struct Facts {
    machine: Weak<dyn Hear>,
    /// Whether so many events are queued that socket readers must wait.
    crowded: watch::Receiver<bool>,
    begun: Clock,
    ids: Arc<AtomicU64>,
}

impl Facts {
    pub(crate) fn new(machine: Weak<dyn Hear>, crowded: watch::Receiver<bool>) -> Self {
        Self { machine, crowded, begun: Clock::now(), ids: Arc::new(AtomicU64::new(1)) }
    }

    /// Reports an event.
    pub(crate) fn tell(&self, event: Event) {
        self.hand_over(Fact { event, is_current: None }, false);
    }

    /// Reports an event from a thread that may block.
    pub(crate) fn tell_and_work(&self, event: Event) {
        self.hand_over(Fact { event, is_current: None }, true);
    }

    /// Reports an event that is dropped unless `is_current` returns true when its turn comes.
    pub(crate) fn tell_if(&self, event: Event, is_current: impl FnOnce() -> bool + Send + 'static) {
        self.hand_over(Fact { event, is_current: Some(Box::new(is_current)) }, false);
    }

    fn hand_over(&self, fact: Fact, may_wait: bool) {
        if let Some(machine) = self.machine.upgrade() {
            machine.hear(fact, may_wait);
        }
    }

    /// Whether so many events are queued that socket readers must wait.
    pub(crate) fn is_crowded(&self) -> bool {
        *self.crowded.borrow()
    }

    /// Waits until socket readers may report more events. Must not be called by a task or thread that executes an
    /// action.
    pub(crate) async fn while_crowded(&self) {
        if self.is_crowded() {
            // An error means that the state machine is gone.
            let _ = self.crowded.clone().wait_for(|is_crowded| !is_crowded).await;
        }
    }

    /// The current time of the state machine.
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Generates a unique number, for clients, requests and transfers.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Facts")
    }
}

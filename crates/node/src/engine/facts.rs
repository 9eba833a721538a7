//! The handle by which every task tells the state machine what has happened, and the numbers and times that it needs for
//! that. Does not know the machine, nor what it orders.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant as Clock,
};

use hoplite_proto::{node::Event, time::Instant};
use tokio::sync::watch;

/// Something that the machine is told.
pub(crate) struct Fact {
    pub(crate) event: Event,
    /// Whether the fact still counts when its turn comes.
    pub(crate) is_current: Option<IsCurrent>,
}

type IsCurrent = Box<dyn FnOnce() -> bool + Send>;

/// The event loop, as those who tell it something see it.
pub(crate) trait Hear: Send + Sync {
    /// Hands a fact to the machine and carries out what it orders. Never waits, so any thread may call it at any time,
    /// also while it carries out an order. Orders that take a while are carried out by the calling thread if it
    /// `may_wait`, else by another one.
    fn hear(self: Arc<Self>, fact: Fact, may_wait: bool);
}

/// Tells the machine of a node facts. Facts that are told after the end of the node are dropped.
#[derive(Clone)]
pub(crate) struct Facts {
    machine: Weak<dyn Hear>,
    /// Whether so many facts wait for their turn that those who read more off sockets are to wait.
    crowded: watch::Receiver<bool>,
    begun: Clock,
    ids: Arc<AtomicU64>,
}

impl Facts {
    pub(crate) fn new(machine: Weak<dyn Hear>, crowded: watch::Receiver<bool>) -> Self {
        Self { machine, crowded, begun: Clock::now(), ids: Arc::new(AtomicU64::new(1)) }
    }

    /// Tells a fact.
    pub(crate) fn tell(&self, event: Event) {
        self.hand_over(Fact { event, is_current: None }, false);
    }

    /// Tells a fact by a thread that would wait for what follows anyway.
    pub(crate) fn tell_and_work(&self, event: Event) {
        self.hand_over(Fact { event, is_current: None }, true);
    }

    /// Tells a fact that is dropped if `is_current` says so when its turn comes.
    pub(crate) fn tell_if(&self, event: Event, is_current: impl FnOnce() -> bool + Send + 'static) {
        self.hand_over(Fact { event, is_current: Some(Box::new(is_current)) }, false);
    }

    fn hand_over(&self, fact: Fact, may_wait: bool) {
        if let Some(machine) = self.machine.upgrade() {
            machine.hear(fact, may_wait);
        }
    }

    /// Whether so many facts wait for their turn that those who read more off sockets are to wait.
    pub(crate) fn is_crowded(&self) -> bool {
        *self.crowded.borrow()
    }

    /// Waits until facts that are read off a socket may be told. Not for a task or thread that carries out an order.
    pub(crate) async fn while_crowded(&self) {
        if self.is_crowded() {
            // An error says that the machine is gone.
            let _ = self.crowded.clone().wait_for(|is_crowded| !is_crowded).await;
        }
    }

    /// Now, in the machine's time.
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A number that was not given out before, for clients, requests and transfers.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Facts")
    }
}

//! The event loop: the one door to the state machine. Facts go in, and what the machine orders is carried out.
//!
//! Orders that are quick, and whose sequence counts, are carried out before the next fact is handed over. Those that take
//! a while follow when the door is free again, and come back as facts. Does not know how an order is carried out.

use std::{
    sync::{Arc, Mutex, TryLockError},
    time::Duration,
};

use hoplite_proto::{
    node::{Action, Event, Node as Machine},
    time::Instant,
};
use tokio::sync::Notify;

use super::{
    facts::{Fact, Facts, Hear},
    inbox::Inbox,
    task::Task,
    tasks::Tasks,
};
use crate::sync::lock;

/// Carries out what the machine orders.
pub(crate) trait Perform: Send + Sync + 'static {
    /// What waits until the door is left.
    type Rest: Default + Send;

    /// Carries an order out, or gives it back if that takes a while.
    fn perform(&self, order: Action, rest: &mut Self::Rest) -> Option<Action>;

    /// The door is about to be left.
    fn finish(&self, rest: &mut Self::Rest);

    /// Carries out an order that takes a while.
    fn perform_slowly(&self, order: Action);
}

/// The event loop of one node.
pub(crate) struct Engine<P: Perform> {
    pub(crate) shell: P,
    facts: Facts,
    tasks: Tasks,
    door: Mutex<Door<P>>,
    inbox: Mutex<Inbox>,
    /// The deadline that the timer sleeps for, which is not after the machine's.
    armed: Mutex<Option<Instant>>,
    timer: Notify,
}

struct Door<P: Perform> {
    machine: Machine,
    actions: Vec<Action>,
    rest: P::Rest,
}

/// Room for orders that is kept when they are done: after a change of members there may be very many.
const ORDERS_KEPT: usize = 1024;

impl<P: Perform> Engine<P> {
    /// Makes the loop of a machine; `make` makes those who carry out its orders of the handle by which they tell it facts.
    pub(crate) fn new(machine: Machine, tasks: Tasks, make: impl FnOnce(&Facts) -> P) -> Arc<Self> {
        let inbox = Inbox::default();
        let engine = Arc::new_cyclic(|engine: &std::sync::Weak<Self>| {
            let facts = Facts::new(engine.clone(), inbox.crowded());
            Self {
                shell: make(&facts),
                facts,
                tasks: tasks.clone(),
                door: Mutex::new(Door { machine, actions: Vec::new(), rest: P::Rest::default() }),
                inbox: Mutex::new(inbox),
                armed: Mutex::default(),
                timer: Notify::new(),
            }
        });
        tasks.spawn(Task::Timer, engine.clone().keep_time());
        engine
    }

    /// Takes all facts that there are through the door, and returns the orders that take a while.
    fn pass(&self, fact: Fact) -> Vec<Action> {
        lock(&self.inbox).push(fact);
        let mut slow = Vec::new();
        while self.tasks.failure().is_none() {
            match self.door.try_lock() {
                // A machine that panicked is not entered again: its state may be half changed.
                Ok(mut door) => {
                    let _ = self.tasks.catch(Task::Machine, || self.drain(&mut door, &mut slow));
                }
                // The thread at the door looks into the inbox again after leaving. There is no other reason for a lock.
                Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return slow,
            }
            if lock(&self.inbox).is_empty() {
                return slow;
            }
        }
        // The node is over: nobody takes these any more, nor waits until they are taken.
        let dropped = lock(&self.inbox).take_all();
        drop(dropped);
        slow
    }

    fn next_fact(&self) -> Option<Fact> {
        lock(&self.inbox).pop()
    }

    fn drain(&self, door: &mut Door<P>, slow: &mut Vec<Action>) {
        let mut actions = std::mem::take(&mut door.actions);
        while let Some(Fact { event, is_current }) = self.next_fact() {
            if is_current.is_some_and(|is_current| !is_current()) {
                continue;
            }
            door.machine.handle(self.facts.now(), event, &mut actions);
            for action in actions.drain(..) {
                slow.extend(self.shell.perform(action, &mut door.rest));
            }
        }
        actions.shrink_to(ORDERS_KEPT);
        door.actions = actions;
        self.shell.finish(&mut door.rest);
        let deadline = door.machine.deadline();
        let mut armed = lock(&self.armed);
        // A timer that goes off too early looks again. Most questions are answered long before their deadlines, and to
        // wake its task for each of them twice would cost more than the question itself.
        let is_late = |deadline: Instant| armed.is_none_or(|armed| deadline < armed);
        if deadline.is_some_and(is_late) {
            *armed = deadline;
            self.timer.notify_one();
        }
    }

    /// Hands over `DeadlinePassed` when the machine's deadline is there.
    async fn keep_time(self: Arc<Self>) {
        while !self.tasks.is_closed() {
            let deadline = *lock(&self.armed);
            let Some(deadline) = deadline else {
                self.timer.notified().await;
                continue;
            };
            let wait = Duration::from_nanos(deadline.since(self.facts.now()));
            if wait.is_zero() {
                *lock(&self.armed) = None;
                self.facts.tell(Event::DeadlinePassed);
                // The thread at the door may still have to take it.
                tokio::task::yield_now().await;
                continue;
            }
            let _ = tokio::time::timeout(wait, self.timer.notified()).await;
        }
    }
}

impl<P: Perform> Hear for Engine<P> {
    fn hear(self: Arc<Self>, fact: Fact, may_wait: bool) {
        for order in self.pass(fact) {
            let engine = self.clone();
            let work = move || engine.shell.perform_slowly(order);
            if may_wait {
                let _ = self.tasks.catch(Task::Orders, work);
            } else {
                // New memory would hold up the transfers beside this task, or a thread that only lets go of something.
                drop(self.tasks.spawn_blocking(Task::Orders, work));
            }
        }
    }
}

#[cfg(test)]
mod tests;

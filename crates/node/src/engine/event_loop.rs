//! The event loop: the only access to the state machine. It passes events in and executes the
//! resulting actions.
//!
//! Quick actions, whose order matters, run before the next event is handled. Slow actions run after
//! the state machine is released, and report back as events. A thread stays inside for one turn,
//! which is short: then messages are sent and the timer is set, and a task of the runtime
//! continues. Does not know how an action is executed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hoplite_proto::{
    node::{Action, Event, Node as Machine},
    time::Instant,
};
use tokio::sync::Notify;

use super::{
    door::{Door, Passed},
    event_queue::EventQueue,
    event_sender::{EventSender, HandleEvent, QueuedEvent},
    tasks::{Supervisor, Task},
};
use crate::sync::lock;

/// Executes the actions of the state machine.
pub(crate) trait Execute: Send + Sync + 'static {
    /// Work deferred until the state machine is released, and what was observed.
    type Rest: Default + Send;

    /// Takes note of an event before the state machine handles it.
    fn observe(&self, now: Instant, event: &Event, machine: &Machine, rest: &mut Self::Rest);

    /// Executes an action, or returns it if it is slow.
    fn execute(&self, order: Action, machine: &Machine, rest: &mut Self::Rest) -> Option<Action>;

    /// Does the deferred work, before the state machine is released.
    fn finish(&self, rest: &mut Self::Rest);

    /// Executes a slow action.
    fn execute_slowly(&self, order: Action);
}

/// The event loop of one node.
pub(crate) struct EventLoop<P: Execute> {
    pub(crate) shell: P,
    events: EventSender,
    tasks: Supervisor,
    door: Door<LoopState<P>, EventQueue>,
    /// The deadline of the timer in nanoseconds, which is not later than the state machine's;
    /// [`NEVER`] without one.
    armed: AtomicU64,
    timer: Notify,
}

struct LoopState<P: Execute> {
    machine: Machine,
    actions: Vec<Action>,
    rest: P::Rest,
}

const NEVER: u64 = u64::MAX;

/// Capacity for actions that is kept afterwards: a membership change may produce very many.
const ORDERS_KEPT: usize = 1024;

/// Events of a turn, and its duration in nanoseconds: messages to other nodes and the calling
/// thread wait this long.
const TURN_EVENTS: usize = 256;
const TURN_NS: u64 = if cfg!(test) { 1_000_000_000_000 } else { 1_000_000 };

/// What a thread has done in the state machine since it came.
struct Turn {
    begun: Instant,
    handled: usize,
}

impl Turn {
    /// Whether the thread must leave. It always handles one event.
    fn is_over(&self, now: Instant) -> bool {
        self.handled >= TURN_EVENTS || (self.handled > 0 && now.since(self.begun) >= TURN_NS)
    }
}

impl<P: Execute> EventLoop<P> {
    /// Creates the event loop of a state machine. `make` creates the executor of its actions, from
    /// the handle that reports events.
    pub(crate) fn new(
        machine: Machine,
        tasks: Supervisor,
        make: impl FnOnce(&EventSender) -> P,
    ) -> Arc<Self> {
        let queue = EventQueue::new();
        let engine = Arc::new_cyclic(|engine: &std::sync::Weak<Self>| {
            let events = EventSender::new(engine.clone(), queue.congested());
            let state = LoopState { machine, actions: Vec::new(), rest: P::Rest::default() };
            Self {
                shell: make(&events),
                events,
                tasks: tasks.clone(),
                door: Door::new(state, queue),
                armed: AtomicU64::new(NEVER),
                timer: Notify::new(),
            }
        });
        tasks.spawn(Task::Timer, engine.clone().keep_time());
        engine
    }

    /// Handles events for one turn. The calling thread executes slow actions if it `may_wait`.
    fn take_turn(self: &Arc<Self>, event: Option<QueuedEvent>, may_wait: bool) {
        for order in self.pass(event) {
            let engine = self.clone();
            let work = move || engine.shell.execute_slowly(order);
            if may_wait {
                let _ = self.tasks.catch(Task::SlowActions, work);
            } else {
                // Allocating memory here would delay transfers on this runtime, or a thread that
                // only releases something.
                drop(self.tasks.spawn_blocking(Task::SlowActions, work));
            }
        }
    }

    /// Handles queued events and `next` for one turn, unless another thread does, and returns the
    /// slow actions.
    fn pass(self: &Arc<Self>, next: Option<QueuedEvent>) -> Vec<Action> {
        let mut slow = Vec::new();
        let mut turn = Turn { begun: self.events.now(), handled: 0 };
        let is_open = || self.tasks.failure().is_none();
        let passed = self.door.pass(next, is_open, |state, next| {
            let drain = || self.drain(state, next, &mut turn, &mut slow);
            let _ = self.tasks.catch(Task::Machine, drain);
            turn.is_over(self.events.now())
        });
        match passed {
            Passed::Done => {}
            Passed::TurnOver => {
                // If another thread is inside when the task comes, that thread does this in turn.
                let engine = self.clone();
                drop(self.tasks.spawn(Task::Machine, async move { engine.take_turn(None, false) }));
            }
            Passed::Closed => {
                // The node has ended: nobody handles these events, or waits for that.
                let dropped = lock(self.door.queue()).take_all();
                drop(dropped);
            }
        }
        slow
    }

    /// Handles events until the turn is over: those that are queued, and `next` after those of its
    /// source.
    fn drain(
        &self,
        state: &mut LoopState<P>,
        next: &mut Option<QueuedEvent>,
        turn: &mut Turn,
        slow: &mut Vec<Action>,
    ) {
        let mut actions = std::mem::take(&mut state.actions);
        loop {
            let now = self.events.now();
            if turn.is_over(now) {
                break;
            }
            lock(self.door.queue()).exchange(next);
            let Some(QueuedEvent { event, is_current }) = next.take() else { break };
            turn.handled += 1;
            if is_current.is_none_or(|is_current| is_current()) {
                let LoopState { machine, rest, .. } = &mut *state;
                self.shell.observe(now, &event, machine, rest);
                machine.handle(now, event, &mut actions);
                for action in actions.drain(..) {
                    slow.extend(self.shell.execute(action, machine, rest));
                }
            }
        }
        actions.shrink_to(ORDERS_KEPT);
        state.actions = actions;
        self.shell.finish(&mut state.rest);
        let deadline = state.machine.deadline().map_or(NEVER, |deadline| deadline.0);
        // A timer that fires too early checks again. Most requests are answered long before their
        // deadlines; waking the timer twice for each would cost more than the request itself.
        if deadline < self.armed.load(Ordering::Relaxed) {
            self.armed.store(deadline, Ordering::Relaxed);
            self.timer.notify_one();
        }
    }

    /// Reports `DeadlinePassed` at the state machine's deadline.
    async fn keep_time(self: Arc<Self>) {
        while !self.tasks.is_closed() {
            let deadline = self.armed.load(Ordering::Relaxed);
            if deadline == NEVER {
                self.timer.notified().await;
                continue;
            }
            let wait = Duration::from_nanos(Instant(deadline).since(self.events.now()));
            if wait.is_zero() {
                self.armed.store(NEVER, Ordering::Relaxed);
                self.events.send(Event::DeadlinePassed);
                // The thread inside the state machine may still have to handle it.
                tokio::task::yield_now().await;
                continue;
            }
            let _ = tokio::time::timeout(wait, self.timer.notified()).await;
        }
    }
}

impl<P: Execute> HandleEvent for EventLoop<P> {
    fn handle(self: Arc<Self>, event: QueuedEvent, may_wait: bool) {
        self.take_turn(Some(event), may_wait);
    }
}

#[cfg(test)]
mod tests;

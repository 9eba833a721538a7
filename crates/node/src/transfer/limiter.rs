//! Makes transfers to this node wait for permits, which [`hoplite_proto::limiter`] grants.

use std::{
    collections::HashMap,
    mem::replace,
    sync::{Arc, Mutex},
    time::Duration,
};

use hoplite_proto::{
    id::NodeId,
    limiter::{Limiter as Permits, Ticket},
    time::Instant,
};
use tokio::{sync::oneshot, time};

use crate::{
    engine::tasks::{Supervisor, Task},
    sync::lock,
};

/// The permits of a node.
#[derive(Debug)]
pub(crate) struct Limiter {
    state: Mutex<State>,
    begun: time::Instant,
    tasks: Supervisor,
}

#[derive(Debug, Default)]
struct State {
    permits: Permits,
    waiting: HashMap<Ticket, oneshot::Sender<()>>,
    /// Whether a task waits for the next deadline.
    is_timed: bool,
}

impl State {
    fn wake(&mut self, granted: Vec<Ticket>) {
        for ticket in granted {
            // If it gave up meanwhile, its drop passes the permit on.
            if let Some(turn) = self.waiting.remove(&ticket) {
                let _ = turn.send(());
            }
        }
    }
}

/// A permit, or a place in the queue for one, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    ticket: Ticket,
}

impl Permit {
    /// Records that bytes were received.
    pub(crate) fn moved(&self) {
        lock(&self.limiter.state).permits.moved(self.ticket);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = lock(&self.limiter.state);
        let mut granted = Vec::new();
        state.waiting.remove(&self.ticket);
        state.permits.leave(self.ticket, &mut granted);
        state.wake(granted);
    }
}

impl Limiter {
    pub(crate) fn new(tasks: Supervisor) -> Self {
        Self { state: Mutex::default(), begun: time::Instant::now(), tasks }
    }

    fn now(&self) -> Instant {
        Instant(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Waits for a permit to receive `size` bytes from `sender`.
    pub(crate) async fn enter(self: &Arc<Self>, sender: NodeId, size: u64) -> Permit {
        let (ticket, turn) = {
            let mut state = lock(&self.state);
            let (ticket, is_granted) = state.permits.enter(self.now(), sender, size);
            let turn = (!is_granted).then(|| {
                if !replace(&mut state.is_timed, true) {
                    self.tasks.spawn(Task::Limiter, self.clone().keep_time());
                }
                let (turn, mine) = oneshot::channel();
                state.waiting.insert(ticket, turn);
                mine
            });
            (ticket, turn)
        };
        let permit = Permit { limiter: self.clone(), ticket };
        if let Some(turn) = turn {
            let _ = turn.await;
        }
        permit
    }

    /// Expires permits at each deadline, while there is one.
    async fn keep_time(self: Arc<Self>) {
        loop {
            let wait = {
                let mut state = lock(&self.state);
                let deadline = state.permits.deadline();
                state.is_timed = deadline.is_some();
                deadline.map(|deadline| Duration::from_nanos(deadline.since(self.now())))
            };
            let Some(wait) = wait else { return };
            time::sleep(wait).await;
            let mut state = lock(&self.state);
            let mut granted = Vec::new();
            state.permits.expire(self.now(), &mut granted);
            state.wake(granted);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    use tokio::{runtime::Handle, task::JoinSet};

    use super::*;

    const FROM: NodeId = NodeId(1);
    const SIZE: u64 = 100_000;

    /// Takes a permit if one is free.
    fn now(wait: Pin<&mut impl Future<Output = Permit>>) -> Option<Permit> {
        match wait.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    /// Takes all free permits.
    fn all_busy(limiter: &Arc<Limiter>) -> Vec<Permit> {
        std::iter::from_fn(|| now(Box::pin(limiter.enter(FROM, SIZE)).as_mut())).collect()
    }

    #[tokio::test]
    async fn transfer_that_gives_up_takes_no_permit() {
        let limiter = Arc::new(Limiter::new(Supervisor::new(Handle::current())));
        let mut busy = all_busy(&limiter);
        let mut waits: Vec<_> = (0..3).map(|_| Box::pin(limiter.enter(FROM, SIZE))).collect();
        assert!(waits.iter_mut().all(|wait| now(wait.as_mut()).is_none()));
        drop(waits.remove(0));
        drop(busy.pop());
        // This permit was granted and is not used.
        drop(waits.remove(0));
        assert!(now(waits[0].as_mut()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_transfers_block_no_other() {
        let limiter = Arc::new(Limiter::new(Supervisor::new(Handle::current())));
        let busy = all_busy(&limiter);
        let mut others = JoinSet::new();
        for _ in 0..5 * busy.len() {
            let limiter = limiter.clone();
            others.spawn(async move { limiter.enter(FROM, SIZE).await });
        }
        let others = time::timeout(Duration::from_millis(500), others.join_all()).await;
        assert_eq!(others.expect("no transfer receives anything").len(), 5 * busy.len());
        time::sleep(Duration::from_millis(50)).await;
        assert!(!lock(&limiter.state).is_timed);
    }
}

//! Queues of calls that are over, and the descriptor by which an event loop learns of them.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::io;

use crate::{
    arguments::User,
    entry::PENDING,
    errors::Result,
    handles::{Table, Type},
    origin,
    values::{Pending, Queue},
};

pub(crate) static QUEUES: Table<Arc<OpenQueue>> = Table::new(Type::Queue);

/// A queue. Its descriptor is readable while it has calls.
pub(crate) struct OpenQueue {
    /// Number of forks before it was opened: the child shares the descriptor.
    pub(crate) fork: u32,
    pub(crate) descriptor: OwnedFd,
    pub(crate) ready: Mutex<VecDeque<(Pending, User)>>,
}

impl OpenQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Pending, User)>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call that is over.
    pub(crate) fn push(&self, pending: Pending, user: User) {
        let mut ready = self.lock();
        ready.push_back((pending, user));
        if ready.len() == 1 {
            // It can't fail: the counter is below its limit.
            let _ = io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// Removes the oldest call that nobody has taken or cancelled.
    pub(crate) fn next(&self) -> Option<(Pending, User)> {
        let mut ready = self.lock();
        if ready.is_empty() {
            return None;
        }
        let next = std::iter::from_fn(|| ready.pop_front())
            .find(|(pending, _)| PENDING.contains(pending.id));
        if ready.is_empty() {
            let _ = io::read(&self.descriptor, &mut [0; 8]);
        }
        next
    }
}

/// The queue of a handle.
pub(crate) fn of(queue: Queue) -> Result<Arc<OpenQueue>> {
    let open = QUEUES.get(queue.id, Arc::clone)?;
    origin::check(open.fork, "queue")?;
    Ok(open)
}

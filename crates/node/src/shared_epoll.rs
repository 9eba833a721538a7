//! An epoll set shared by a background thread and one thread that waits for the result of an event.
//!
//! Otherwise the background thread would receive a reply and then wake the waiting thread; on an
//! idle machine each wake-up takes 0.1 ms. Here both threads wait for the same events, and the
//! kernel wakes the last one to wait: the thread waiting for a reply, if there is one. No thread
//! spins. Knows descriptors, not their data.

use std::{
    io,
    os::fd::AsFd,
    sync::TryLockError,
    time::{Duration, Instant},
};

// Relative, because the model checker compiles this file with primitives of its own: see
// `crate::tests::models`.
use super::{
    event_set::EventSet,
    sync::{AtomicBool, Mutex, Ordering, set_here, this_here, yield_now},
};

/// A set of descriptors. Each event goes to one of the waiting threads.
#[derive(Debug)]
pub(crate) struct SharedEpoll {
    events: EventSet,
    /// Held by the polling caller; at most one.
    place: Mutex<()>,
    /// Whether that thread waits for the next event, or is about to.
    is_waited: AtomicBool,
    is_closed: AtomicBool,
}

/// How a wait for events ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The result is there, or the time has passed.
    Over,
    /// A signal handler ran on this thread.
    Interrupted,
    /// Another thread handles the events, or none does any more.
    Elsewhere,
}

impl SharedEpoll {
    pub(crate) fn new() -> io::Result<Self> {
        let (events, place) = (EventSet::new()?, Mutex::new(()));
        let (is_waited, is_closed) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { events, place, is_waited, is_closed })
    }

    /// Adds a non-blocking `descriptor`. The thread that handles its event gets `token` and whether
    /// it is the last event, and must read everything available, or call [`SharedEpoll::raise`]
    /// later. Closing the descriptor removes it.
    pub(crate) fn add(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        self.events.add(descriptor, token)
    }

    /// Raises the event of a descriptor again if there is something to read, which a thread has
    /// left unread.
    pub(crate) fn raise(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        self.events.raise(descriptor, token)
    }

    /// Handles events until this is closed.
    pub(crate) fn run(&self, mut take: impl FnMut(u64, bool)) {
        while !self.is_closed() {
            let is_poked = self.events.wait(None, || {}, &mut take);
            if is_poked == Ok(true) && self.is_waited.load(Ordering::SeqCst) {
                // The poke was meant for a thread that is about to wait, and would miss it.
                self.poke();
                yield_now();
            }
        }
    }

    /// Handles events on the calling thread until `is_over`, for at most `time`. Any other thread
    /// that makes it over must call [`SharedEpoll::poke`].
    pub(crate) fn wait(
        &self,
        time: Duration,
        is_over: impl Fn() -> bool,
        mut take: impl FnMut(u64, bool),
    ) -> Waited {
        let _place = match self.place.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(place)) => place.into_inner(),
            Err(TryLockError::WouldBlock) => return Waited::Elsewhere,
        };
        let begun = Instant::now();
        set_here(self.address());
        let mut waited = Waited::Over;
        while waited == Waited::Over {
            self.is_waited.store(true, Ordering::SeqCst);
            let left = time.saturating_sub(begun.elapsed());
            if is_over() || left.is_zero() || self.is_closed() {
                break;
            }
            let woken = || self.is_waited.store(false, Ordering::SeqCst);
            if self.events.wait(Some(left), woken, &mut take).is_err() {
                waited = Waited::Interrupted;
            }
        }
        self.is_waited.store(false, Ordering::SeqCst);
        set_here(0);
        if self.is_closed() {
            // Wake the other thread as well.
            self.poke();
            return Waited::Elsewhere;
        }
        waited
    }

    /// Whether the calling thread is inside [`SharedEpoll::wait`], handling an event.
    pub(crate) fn is_here(&self) -> bool {
        this_here() == self.address()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Makes the thread in [`SharedEpoll::wait`], if there is one, check whether its wait is over.
    pub(crate) fn poke(&self) {
        self.events.poke();
    }

    /// Ends [`SharedEpoll::run`] and [`SharedEpoll::wait`].
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.poke();
    }

    /// Whether a thread waits for the next event, or is about to.
    #[cfg(test)]
    pub(crate) fn is_waited(&self) -> bool {
        self.is_waited.load(Ordering::SeqCst)
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

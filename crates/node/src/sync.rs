//! Locks, waits for changes by other tasks, and the primitives that `crate::tests::models` replaces
//! for the model checker.

use std::{
    cell::Cell,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use rustix::{event::Timespec, io::Errno, thread::futex};
use tokio::sync::Notify;

pub(crate) use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::yield_now,
};

thread_local! {
    /// The address of the set of events in which this thread waits, 0 if none.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Sets the address of the set of events in which this thread waits.
pub(crate) fn set_here(address: usize) {
    HERE.set(address);
}

/// The address of the set of events in which this thread waits, 0 if none.
pub(crate) fn this_here() -> usize {
    HERE.get()
}

/// Sleeps while a word has this value, until it is woken, for at most `time`. Returns false if a
/// signal handler ran on this thread meanwhile.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32, time: Duration) -> bool {
    // A time that does not fit is unlimited.
    let time = Timespec::try_from(time).ok();
    futex::wait(word, futex::Flags::PRIVATE, value, time.as_ref()) != Err(Errno::INTR)
}

/// Wakes all threads that sleep while a word has some value.
pub(crate) fn wake_sleeping(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, u32::MAX >> 1);
}

/// Locks data. Each change under the lock is complete or absent, so the data is consistent even
/// after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `look` now and after each notification, until it returns something.
pub(crate) async fn until<T>(changed: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        let notified = changed.notified();
        tokio::pin!(notified);
        // Register before the call, so that no notification after it is missed.
        notified.as_mut().enable();
        if let Some(found) = look() {
            return found;
        }
        notified.await;
    }
}

//! Locks, and waits for what another task changes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Locks data whose every change under the lock is complete or none, so that it is sound after a panic too.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks for something now and each time that all who wait are notified, until it is found.
pub(crate) async fn until<T>(changed: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        let notified = changed.notified();
        tokio::pin!(notified);
        // Registered before the look, so that what happens between look and wait is not missed.
        notified.as_mut().enable();
        if let Some(found) = look() {
            return found;
        }
        notified.await;
    }
}

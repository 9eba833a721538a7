//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks data whose every change under the lock is complete or none, so that it is sound after a panic too.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

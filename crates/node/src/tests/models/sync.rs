//! The primitives of [`crate::sync`], as the model checker has them. Waits have no timeout here, so
//! that a lost wake-up is a deadlock, which it reports.

use std::{cell::Cell, sync::PoisonError, time::Duration};

use loom::sync::{Condvar, MutexGuard};

pub(crate) use loom::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::yield_now,
};

loom::thread_local! {
    static HERE: Cell<usize> = Cell::new(0);
}

pub(crate) fn set_here(address: usize) {
    HERE.with(|here| here.set(address));
}

pub(crate) fn this_here() -> usize {
    HERE.with(Cell::get)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A word with the threads that sleep on it.
#[derive(Debug)]
pub(crate) struct AtomicU32 {
    word: loom::sync::atomic::AtomicU32,
    sleeping: Mutex<()>,
    woken: Condvar,
}

impl Default for AtomicU32 {
    fn default() -> Self {
        let word = loom::sync::atomic::AtomicU32::new(0);
        Self { word, sleeping: Mutex::new(()), woken: Condvar::new() }
    }
}

impl AtomicU32 {
    pub(crate) fn load(&self, ordering: Ordering) -> u32 {
        self.word.load(ordering)
    }

    pub(crate) fn swap(&self, value: u32, ordering: Ordering) -> u32 {
        self.word.swap(value, ordering)
    }

    pub(crate) fn compare_exchange(
        &self,
        current: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32> {
        self.word.compare_exchange(current, new, success, failure)
    }
}

pub(crate) fn sleep_while(word: &AtomicU32, value: u32, _: Duration) -> bool {
    let sleeping = lock(&word.sleeping);
    if word.load(Ordering::Acquire) == value {
        drop(word.woken.wait(sleeping));
    }
    true
}

pub(crate) fn wake_sleeping(word: &AtomicU32) {
    let _sleeping = lock(&word.sleeping);
    word.woken.notify_all();
}

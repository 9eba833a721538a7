//! A latch: threads wait until another one opens it. A signal ends the wait of its thread too, so no thread has to look for
//! signals.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::{event::Timespec, io::Errno, thread::futex};

/// Opens once.
#[derive(Debug, Default)]
pub struct Latch(AtomicU32);

const SHUT: u32 = 0;
/// Shut, and a thread waits or is about to.
const AWAITED: u32 = 1;
const OPEN: u32 = 2;

impl Latch {
    /// Opens it and wakes the threads that wait.
    pub fn open(&self) {
        // A wake-up of no thread is a system call too.
        if self.0.swap(OPEN, Ordering::AcqRel) == AWAITED {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, u32::MAX >> 1);
        }
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == OPEN
    }

    /// Waits until it is open, for at most `time`; false if a handler of a signal ran on this thread meanwhile. May return early.
    pub fn wait(&self, time: Duration) -> bool {
        // Fails if it is open or awaited already.
        let _ = self.0.compare_exchange(SHUT, AWAITED, Ordering::AcqRel, Ordering::Acquire);
        // A time that is too long to be written has no end.
        let time = Timespec::try_from(time).ok();
        futex::wait(&self.0, futex::Flags::PRIVATE, AWAITED, time.as_ref()) != Err(Errno::INTR)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn each_thread_that_waits_is_woken_and_none_waits_for_an_open_latch() {
        let latch = Arc::new(Latch::default());
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let latch = latch.clone();
                thread::spawn(move || {
                    while !latch.is_open() {
                        latch.wait(Duration::MAX);
                    }
                })
            })
            .collect();
        while latch.0.load(Ordering::Acquire) != AWAITED {
            thread::yield_now();
        }
        assert!(!latch.is_open());
        latch.open();
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        latch.wait(Duration::MAX);
    }

    #[test]
    fn a_wait_ends_when_its_time_is_over() {
        let latch = Latch::default();
        assert!(latch.wait(Duration::from_millis(1)));
        assert!(!latch.is_open());
    }
}

//! A latch: threads wait until another thread opens it. A signal also ends the wait of its thread,
//! so no thread has to poll for signals.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::{event::Timespec, io::Errno, thread::futex};

/// A latch that opens once.
#[derive(Debug, Default)]
pub struct Latch(AtomicU32);

const SHUT: u32 = 0;
/// Shut, and a thread waits or is about to.
const AWAITED: u32 = 1;
const OPEN: u32 = 2;

impl Latch {
    /// Opens the latch and wakes the waiting threads.
    pub fn open(&self) {
        // Waking no thread would be a system call too.
        if self.0.swap(OPEN, Ordering::AcqRel) == AWAITED {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, u32::MAX >> 1);
        }
    }

    /// Whether the latch is open.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == OPEN
    }

    /// Waits until the latch is open, for at most `time`. Returns false if a signal handler ran on
    /// this thread meanwhile. May return early.
    pub fn wait(&self, time: Duration) -> bool {
        // This fails if it is open or already awaited.
        let _ = self.0.compare_exchange(SHUT, AWAITED, Ordering::AcqRel, Ordering::Acquire);
        // A time that does not fit is unlimited.
        let time = Timespec::try_from(time).ok();
        futex::wait(&self.0, futex::Flags::PRIVATE, AWAITED, time.as_ref()) != Err(Errno::INTR)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn open_latch_wakes_every_waiting_thread() {
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
    fn wait_ends_at_its_timeout() {
        let latch = Latch::default();
        assert!(latch.wait(Duration::from_millis(1)));
        assert!(!latch.is_open());
    }
}

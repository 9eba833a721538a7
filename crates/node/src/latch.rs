//! A latch: threads wait until another thread opens it. A signal also ends the wait of its thread,
//! so no thread has to poll for signals.

use std::time::Duration;

// Relative, because the model checker compiles this file with primitives of its own: see
// `crate::tests::models`.
use super::sync::{AtomicU32, Ordering, sleep_while, wake_sleeping};

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
            wake_sleeping(&self.0);
        }
    }

    /// Whether the latch is open.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == OPEN
    }

    /// Whether a thread waits, or is about to.
    #[cfg(test)]
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.load(Ordering::Acquire) == AWAITED
    }

    /// Waits until the latch is open, for at most `time`. Returns false if a signal handler ran on
    /// this thread meanwhile. May return early.
    pub fn wait(&self, time: Duration) -> bool {
        // This fails if it is open or already awaited.
        let _ = self.0.compare_exchange(SHUT, AWAITED, Ordering::AcqRel, Ordering::Acquire);
        sleep_while(&self.0, AWAITED, time)
    }
}

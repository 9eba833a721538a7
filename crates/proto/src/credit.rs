//! Flow control: the credit that a receiver grants its source.
//!
//! Bytes in flight wait in the queue of the slowest link, and delay that host's control messages: 4
//! MiB to a host with 50 Mbit/s delay each of them by 0.7 s. A transfer therefore begins with a
//! small window. The window grows while a whole window arrives within 25 ms. A fast link reaches 4
//! MiB after a few round trips, and a slow link stays at the first window.
//!
//! Counts bytes and times of one transfer. It does not depend on the object or on the source.

use crate::{
    limits::{CREDIT_BYTES, FIRST_CREDIT_BYTES},
    time::Instant,
};

/// Time in which a window must arrive, in addition to the round trip. It is longer than a process
/// waits for its time slice on a busy host.
const HORIZON_NS: u64 = 25_000_000;

/// The credit of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditWindow {
    horizon_ns: u64,
    /// Bytes that may be in flight.
    window: u64,
    /// Bytes that arrived and were not granted again.
    owed: u64,
    /// When the present measurement began, and the bytes since then. It covers a whole window,
    /// since part of it may have waited in the kernel and arrive at memory speed.
    run: (Instant, u64),
}

impl CreditWindow {
    /// A transfer that begins now, over a link with this one-way latency.
    pub const fn new(now: Instant, latency_ns: u64) -> Self {
        let horizon_ns = HORIZON_NS.saturating_add(latency_ns.saturating_mul(2));
        Self { horizon_ns, window: FIRST_CREDIT_BYTES, owed: 0, run: (now, 0) }
    }

    /// Bytes that may be in flight at a time.
    pub const fn window(&self) -> u64 {
        self.window
    }

    /// Records that `bytes` more arrived. Returns the credit to grant, once it is worth a message.
    pub fn received(&mut self, now: Instant, bytes: u64) -> Option<u64> {
        self.owed += bytes;
        self.run.1 += bytes;
        if self.run.1 >= self.window {
            self.adapt(now);
        }
        if self.owed < self.window / 4 {
            return None;
        }
        Some(core::mem::take(&mut self.owed))
    }

    /// The next transfer on the same connection begins, whose request granted `granted` bytes.
    pub const fn follow(&mut self, granted: u64) {
        self.owed = self.window.saturating_sub(granted);
    }

    /// Adapts the window to the time that the last one took.
    fn adapt(&mut self, now: Instant) {
        let took = u128::from(now.since(self.run.0).max(1));
        let within_horizon = u128::from(self.run.1) * u128::from(self.horizon_ns) / took;
        if within_horizon >= u128::from(self.window) {
            let more = self.window.min(CREDIT_BYTES - self.window);
            self.window += more;
            self.owed += more;
        } else if within_horizon < u128::from(self.window / 2) {
            // Credit that was already granted can't be withdrawn.
            let less = (self.window - FIRST_CREDIT_BYTES).min(self.window / 2).min(self.owed);
            self.window -= less;
            self.owed -= less;
        }
        self.run = (now, 0);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::limits::FRAME_BYTES_MAX;

    const KIB: u64 = 1024;
    const MS: u64 = 1_000_000;

    /// Maximum bytes in flight after each frame of 64 KiB, while `total` bytes arrive at a constant
    /// rate.
    fn under_way(credit: &mut CreditWindow, from_ns: u64, rate: u64, total: u64) -> Vec<u64> {
        let (mut open, mut came, mut seen) = (credit.window() - credit.owed, 0, Vec::new());
        while came < total {
            came += 64 * KIB;
            open = open.checked_sub(64 * KIB).expect("the sender has credit");
            let now = Instant(from_ns + came * 1000 * MS / rate);
            open += credit.received(now, 64 * KIB).unwrap_or(0);
            seen.push(open);
        }
        seen
    }

    #[test]
    fn a_fast_link_is_granted_all_within_a_few_megabytes() {
        let mut credit = CreditWindow::new(Instant(0), 50_000);
        assert_eq!(credit.window(), FIRST_CREDIT_BYTES);
        under_way(&mut credit, 0, 1_250_000_000, 4 * CREDIT_BYTES);
        assert_eq!(credit.window(), CREDIT_BYTES);
    }

    #[test]
    fn a_slow_link_keeps_little_under_way() {
        let mut credit = CreditWindow::new(Instant(0), 50_000);
        let seen = under_way(&mut credit, 0, 6_000_000, 16 * CREDIT_BYTES);
        assert!(seen.into_iter().all(|open| open <= FIRST_CREDIT_BYTES));
    }

    #[test]
    fn a_link_that_becomes_slow_is_granted_less() {
        let mut credit = CreditWindow::new(Instant(0), 50_000);
        under_way(&mut credit, 0, 1_250_000_000, 4 * CREDIT_BYTES);
        let later = 1_000_000 * MS;
        let seen = under_way(&mut credit, later, 6_000_000, 4 * CREDIT_BYTES);
        assert_eq!(credit.window(), FIRST_CREDIT_BYTES);
        assert!(*seen.last().unwrap() <= FIRST_CREDIT_BYTES);
    }

    #[test]
    fn bytes_buffered_in_the_kernel_do_not_count_as_link_rate() {
        let mut credit = CreditWindow::new(Instant(0), 50_000);
        let mut now = 0;
        for _ in 0..100 {
            // The process sleeps until the window is full, and reads it at once.
            now += 90 * MS;
            for _ in 0..8 {
                credit.received(Instant(now), 64 * KIB);
            }
        }
        assert_eq!(credit.window(), FIRST_CREDIT_BYTES);
    }

    #[test]
    fn a_link_that_is_long_and_fast_is_granted_all() {
        // At first 512 KiB arrive every 100 ms: the window limits the rate, not the link.
        let latency_ns = 50 * MS;
        let mut credit = CreditWindow::new(Instant(0), latency_ns);
        let mut now = 0;
        while credit.window() < CREDIT_BYTES {
            now += 100 * MS;
            assert!(now < 3000 * MS, "{credit:?}");
            let window = credit.window();
            for quarter in 0..4 {
                credit.received(Instant(now + quarter), window / 4);
            }
        }
    }

    #[test]
    fn a_sender_always_has_credit_for_a_frame() {
        let mut credit = CreditWindow::new(Instant(0), 0);
        let (mut now, mut open) = (0, credit.window());
        for step in 0..100_000_u64 {
            // Frames of any length at any time.
            let bytes = (step * 7919 % 256 + 1) * KIB;
            now += step * 104_729 % (40 * MS);
            assert!(open >= FRAME_BYTES_MAX, "{open} bytes after {step}");
            open -= bytes.min(open);
            open += credit.received(Instant(now), bytes).unwrap_or(0);
            assert!(open <= CREDIT_BYTES);
        }
    }
}

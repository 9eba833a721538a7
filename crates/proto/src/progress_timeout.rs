//! Timeouts of transfers, and the messages of a source that itself waits for bytes.
//!
//! A transfer moves a minimum number of bytes within each turn, otherwise it ends. Without this, a
//! receiver that reads nothing would keep the source's copy pinned forever, and a source that sends
//! a byte per minute would keep a receiver from switching. If the source's own copy does not grow,
//! the source sends `Waits` and gets another turn. The number of `Waits` is limited too.
//!
//! Counts bytes and times of one transfer. It does not depend on the object or on the other node.

use crate::{
    limits::{FIRST_WAIT_NS, PROGRESS_BYTES_MIN},
    time::Instant,
};

/// Number of `Waits` per turn. More than one, so that a busy host may be late with some of them.
const SAID_IN_A_TURN: u64 = 6;

/// Progress of a transfer, as seen from one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressTimeout {
    window_ns: u64,
    begun: Instant,
    /// When the present turn began, and the bytes moved in it.
    since: Instant,
    moved: u64,
    /// Number of `Waits` received.
    reported: u64,
}

impl ProgressTimeout {
    /// A transfer that begins now. `window_ns` is [`crate::limits::PROGRESS_WINDOW_NS`], except in
    /// tests.
    pub const fn new(now: Instant, window_ns: u64) -> Self {
        Self { window_ns, begun: now, since: now, moved: 0, reported: 0 }
    }

    /// Records that more bytes moved.
    pub const fn moved(&mut self, now: Instant, bytes: u64) {
        self.moved = self.moved.saturating_add(bytes);
        if self.moved >= PROGRESS_BYTES_MIN {
            self.restart(now);
        }
    }

    /// Begins a new turn, since the other end was not the cause of the lack of progress.
    pub const fn restart(&mut self, now: Instant) {
        (self.since, self.moved) = (now, 0);
    }

    /// Records a `Waits` of the source. Returns false if the source has sent too many.
    pub fn source_waits(&mut self, now: Instant) -> bool {
        self.restart(now);
        self.reported += 1;
        // The source may have begun to wait one turn before this transfer.
        let least_ns = self.reported.saturating_mul(self.window_ns / SAID_IN_A_TURN);
        least_ns <= now.since(self.begun).saturating_add(self.window_ns)
    }

    /// When the transfer ends, unless enough bytes move before.
    pub fn deadline(&self) -> Instant {
        self.since + self.window_ns
    }
}

/// Total time that a source has waited for its own copy since its last `Waits`. Many short waits
/// slow the transfer as much as a long one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceWait {
    window_ns: u64,
    ns: u64,
}

impl SourceWait {
    /// A transfer that begins now. Its first `Waits` comes early, because the receiver does not
    /// know yet whether the request has arrived.
    pub const fn new(window_ns: u64) -> Self {
        Self { window_ns, ns: (window_ns / SAID_IN_A_TURN).saturating_sub(FIRST_WAIT_NS) }
    }

    /// Time left to wait before the next `Waits`.
    pub const fn remaining_ns(&self) -> u64 {
        (self.window_ns / SAID_IN_A_TURN).saturating_sub(self.ns)
    }

    /// Records that the source waited. Returns whether to send `Waits` now.
    pub const fn waited(&mut self, ns: u64) -> bool {
        self.ns = self.ns.saturating_add(ns);
        let is_due = self.remaining_ns() == 0;
        if is_due {
            self.ns = 0;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{BLOCK_BYTES, IDLE_REPLY_TIMEOUT_NS, PROGRESS_WINDOW_NS};

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Instant {
        Instant(seconds * SECOND)
    }

    /// When a transfer ends in which `bytes` arrive every `pause_ns`.
    fn ends_at(bytes: u64, pause_ns: u64) -> Option<Instant> {
        let mut timeout = ProgressTimeout::new(at(0), PROGRESS_WINDOW_NS);
        (1..100_000).map(|step| Instant(step * pause_ns)).find(|now| {
            let is_over = timeout.deadline() <= *now;
            timeout.moved(*now, bytes);
            is_over
        })
    }

    #[test]
    fn a_transfer_in_which_a_byte_comes_each_minute_ends_with_its_first_turn() {
        assert_eq!(ends_at(1, 60 * SECOND), Some(at(60)));
        assert_eq!(
            ProgressTimeout::new(at(0), PROGRESS_WINDOW_NS).deadline(),
            Instant(PROGRESS_WINDOW_NS)
        );
        assert_eq!(
            ends_at(1, SECOND / 100),
            Some(Instant(PROGRESS_WINDOW_NS)),
            "however often one comes"
        );
    }

    #[test]
    fn a_host_at_a_hundredth_of_a_gigabit_goes_on_beside_a_hundred_transfers() {
        let rate = 125_000_000 / 100 / 100;
        assert_eq!(ends_at(BLOCK_BYTES, BLOCK_BYTES * SECOND / rate), None);
        assert!(
            ends_at(BLOCK_BYTES, BLOCK_BYTES * SECOND / rate * 2).is_some(),
            "the bound is near"
        );
    }

    #[test]
    fn a_source_that_sends_waits_in_time_continues() {
        let (mut timeout, mut waited) =
            (ProgressTimeout::new(at(0), PROGRESS_WINDOW_NS), SourceWait::new(PROGRESS_WINDOW_NS));
        let mut now = at(0);
        for _ in 0..1000 {
            now = now + waited.remaining_ns();
            assert!(now < timeout.deadline());
            assert!(waited.waited(waited.remaining_ns()) && timeout.source_waits(now));
        }
    }

    #[test]
    fn first_wait_is_reported_within_the_timeout_of_an_idle_connection() {
        let mut waited = SourceWait::new(PROGRESS_WINDOW_NS);
        assert!(waited.remaining_ns() <= IDLE_REPLY_TIMEOUT_NS / 5);
        assert!(waited.waited(waited.remaining_ns()));
        assert_eq!(waited.remaining_ns(), PROGRESS_WINDOW_NS / SAID_IN_A_TURN);
    }

    #[test]
    fn many_short_waits_are_reported_like_a_long_one() {
        let mut waited = SourceWait::new(PROGRESS_WINDOW_NS);
        let reported = (0..60).filter(|_| waited.waited(PROGRESS_WINDOW_NS / 60)).count();
        assert_eq!(reported as u64, SAID_IN_A_TURN);
    }

    #[test]
    fn a_source_that_sends_too_many_waits_is_detected() {
        let mut timeout = ProgressTimeout::new(at(0), PROGRESS_WINDOW_NS);
        let reported = (1..).find(|_| !timeout.source_waits(at(1)));
        assert_eq!(reported, Some(SAID_IN_A_TURN + 1));
    }
}

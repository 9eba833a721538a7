//! How long the two ends of a transfer bear with each other, and what a sender that itself waits has to say meanwhile.
//!
//! A transfer moves a few blocks within each turn, or it ends: a receiver that takes nothing would hold the sender's copy
//! for ever, and a sender that gives a byte a minute would keep a receiver from asking another. A sender whose own copy does
//! not grow says that it waits, and has as much time again; how often it may say so is bounded too.
//!
//! Knows bytes and times of one transfer; does not know what is sent, and which node is at the other end.

use crate::{limits::TURN_BYTES, time::Instant};

/// A sender that waits says so this often within a turn: a busy host that is late with some of it is borne with.
const SAID_IN_A_TURN: u64 = 6;

/// What one end of a transfer has seen of the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patience {
    turn_ns: u64,
    begun: Instant,
    /// When the present turn began, and the bytes that it has moved.
    since: Instant,
    moved: u64,
    /// How often the other end has said that it waits.
    said: u64,
}

impl Patience {
    /// Of a transfer that begins; `turn_ns` is [`crate::limits::TURN_NS`] but in tests.
    pub const fn new(now: Instant, turn_ns: u64) -> Self {
        Self { turn_ns, begun: now, since: now, moved: 0, said: 0 }
    }

    /// So many more bytes were moved.
    pub const fn moved(&mut self, now: Instant, bytes: u64) {
        self.moved = self.moved.saturating_add(bytes);
        if self.moved >= TURN_BYTES {
            self.restart(now);
        }
    }

    /// Nothing could be moved until now, and not because of the other end.
    pub const fn restart(&mut self, now: Instant) {
        (self.since, self.moved) = (now, 0);
    }

    /// The sender says that its own copy does not grow; whether it may say so, which it can't do all the time.
    pub fn waits(&mut self, now: Instant) -> bool {
        self.restart(now);
        self.said += 1;
        // Its waiting began after this transfer.
        let least_ns = self.said.saturating_mul(self.turn_ns / SAID_IN_A_TURN);
        least_ns <= now.since(self.begun).saturating_add(self.turn_ns)
    }

    /// When the transfer ends unless more is moved before.
    pub fn deadline(&self) -> Instant {
        self.since + self.turn_ns
    }
}

/// How long a sender has waited for its own copy since it last said so, in all: many short waits make it as slow as a long
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waited {
    turn_ns: u64,
    ns: u64,
}

impl Waited {
    /// Of a transfer that begins.
    pub const fn new(turn_ns: u64) -> Self {
        Self { turn_ns, ns: 0 }
    }

    /// How much longer it may wait without a word.
    pub const fn left_ns(&self) -> u64 {
        (self.turn_ns / SAID_IN_A_TURN).saturating_sub(self.ns)
    }

    /// It has waited; whether it is to say so now.
    pub const fn waited(&mut self, ns: u64) -> bool {
        self.ns = self.ns.saturating_add(ns);
        let is_due = self.left_ns() == 0;
        if is_due {
            self.ns = 0;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{BLOCK_BYTES, TURN_NS};

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Instant {
        Instant(seconds * SECOND)
    }

    /// When a transfer ends in which `bytes` come at a time, `pause_ns` after each other.
    fn ends_at(bytes: u64, pause_ns: u64) -> Option<Instant> {
        let mut patience = Patience::new(at(0), TURN_NS);
        (1..100_000).map(|step| Instant(step * pause_ns)).find(|now| {
            let is_over = patience.deadline() <= *now;
            patience.moved(*now, bytes);
            is_over
        })
    }

    #[test]
    fn a_transfer_in_which_a_byte_comes_each_minute_ends_with_its_first_turn() {
        assert_eq!(ends_at(1, 60 * SECOND), Some(at(60)));
        assert_eq!(Patience::new(at(0), TURN_NS).deadline(), Instant(TURN_NS));
        assert_eq!(ends_at(1, SECOND / 100), Some(Instant(TURN_NS)), "however often one comes");
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
    fn a_sender_that_says_in_time_that_it_waits_goes_on() {
        let (mut patience, mut waited) = (Patience::new(at(0), TURN_NS), Waited::new(TURN_NS));
        let mut now = at(0);
        for _ in 0..1000 {
            now = now + waited.left_ns();
            assert!(now < patience.deadline());
            assert!(waited.waited(waited.left_ns()) && patience.waits(now));
        }
    }

    #[test]
    fn many_short_waits_are_said_as_a_long_one_is() {
        let mut waited = Waited::new(TURN_NS);
        let said = (0..60).filter(|_| waited.waited(TURN_NS / 60)).count();
        assert_eq!(said as u64, SAID_IN_A_TURN);
    }

    #[test]
    fn a_sender_that_says_all_the_time_that_it_waits_is_found_out() {
        let mut patience = Patience::new(at(0), TURN_NS);
        let said = (1..).find(|_| !patience.waits(at(1)));
        assert_eq!(said, Some(SAID_IN_A_TURN + 1));
    }
}

//! Backoff for control connections: when a node reconnects to a member, and when it gives up.
//!
//! Decides on the result of each attempt. The shell connects.

use crate::time::Instant;

/// Pauses before the attempts to make one connection. A live node accepts within the first; a node
/// that restarts its network accepts within all of them.
const PAUSES_NS: [u64; 4] = [0, 20_000_000, 100_000_000, 400_000_000];

/// Minimum lifetime of a connection. After a shorter one the next attempt waits this long, so that
/// a node that accepts and closes at once does not keep both sides busy.
const STABLE_NS: u64 = 200_000_000;

/// Time between two attempts to replace a relayed connection by a direct one.
const LOOK_AGAIN_MIN_NS: u64 = 5_000_000_000;
const LOOK_AGAIN_MAX_NS: u64 = 160_000_000_000;

/// State of the control connection to one member.
#[derive(Clone, Debug)]
pub struct Reconnect {
    tries: usize,
    pause_ns: u64,
    look_again_ns: u64,
    is_again: bool,
    connected: Option<Connected>,
}

#[derive(Clone, Copy, Debug)]
struct Connected {
    at: Instant,
    is_direct: bool,
}

/// Why a connection attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No process listens at the address, or another node does.
    ProcessGone,
    /// There was no response, and no other member could relay.
    Unreachable,
    /// Any other failure.
    Other,
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Try again.
    Retry,
    /// The member may have failed. Drop its queued messages and try again.
    Suspect,
    /// The member is gone.
    GiveUp,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self {
            tries: 0,
            pause_ns: PAUSES_NS[0],
            look_again_ns: LOOK_AGAIN_MIN_NS,
            is_again: false,
            connected: None,
        }
    }
}

impl Reconnect {
    /// Nanoseconds before the next attempt.
    pub const fn pause_ns(&self) -> u64 {
        self.pause_ns
    }

    /// Whether the member was connected, or in doubt, before. It is then notified, and both sides
    /// re-announce their state.
    pub const fn is_again(&self) -> bool {
        self.is_again
    }

    /// Nanoseconds between two attempts to reach the member without the present relay.
    pub const fn look_again_ns(&self) -> u64 {
        self.look_again_ns
    }

    /// Records a failed attempt.
    pub fn failed(&mut self, failure: Failure) -> Next {
        match failure {
            Failure::ProcessGone => Next::GiveUp,
            Failure::Other if self.tries + 1 < PAUSES_NS.len() => {
                self.tries += 1;
                self.pause_ns = PAUSES_NS[self.tries];
                Next::Retry
            }
            // Other members could not relay either, and all attempts have timed out.
            Failure::Unreachable | Failure::Other => {
                self.begin_after(STABLE_NS);
                Next::Suspect
            }
        }
    }

    /// Records a connection, direct or relayed.
    pub fn connected(&mut self, now: Instant, is_direct: bool) {
        self.is_again = true;
        self.connected = Some(Connected { at: now, is_direct });
    }

    /// Records that the connection ended. `is_needless` means that it was relayed, and the member
    /// can be reached directly.
    pub fn broke(&mut self, now: Instant, is_needless: bool) {
        let Some(Connected { at, is_direct }) = self.connected.take() else { return };
        let lived_ns = now.since(at);
        if is_needless {
            // If the direct connection does not last, attempts become rarer, since both sides
            // re-announce everything each time.
            self.look_again_ns = (2 * self.look_again_ns).min(LOOK_AGAIN_MAX_NS);
        }
        if is_direct && lived_ns > LOOK_AGAIN_MAX_NS {
            self.look_again_ns = LOOK_AGAIN_MIN_NS;
        }
        self.begin_after(if lived_ns < STABLE_NS { STABLE_NS } else { 0 });
    }

    fn begin_after(&mut self, pause_ns: u64) {
        (self.tries, self.is_again, self.pause_ns) = (0, true, pause_ns + PAUSES_NS[0]);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_member_is_tried_some_times_before_it_is_doubted_and_then_from_the_beginning() {
        let mut reconnect = Reconnect::default();
        assert!(!reconnect.is_again());
        for first in [0, STABLE_NS] {
            let mut pauses = Vec::from([reconnect.pause_ns()]);
            while reconnect.failed(Failure::Other) == Next::Retry {
                pauses.push(reconnect.pause_ns());
            }
            assert_eq!(pauses, [first, 20_000_000, 100_000_000, 400_000_000]);
            assert!(reconnect.is_again());
        }
    }

    #[test]
    fn an_unreachable_member_is_doubted_and_a_missing_one_given_up() {
        let mut reconnect = Reconnect::default();
        assert_eq!(reconnect.failed(Failure::Unreachable), Next::Suspect);
        assert_eq!(reconnect.failed(Failure::ProcessGone), Next::GiveUp);
    }

    #[test]
    fn a_connection_that_broke_is_made_again_at_once_unless_it_was_short() {
        for (lived_ns, pause_ns) in [(STABLE_NS, 0), (STABLE_NS - 1, STABLE_NS)] {
            let mut reconnect = Reconnect::default();
            assert_eq!(reconnect.failed(Failure::Other), Next::Retry);
            reconnect.connected(Instant(SECOND), true);
            reconnect.broke(Instant(SECOND + lived_ns), false);
            assert_eq!((reconnect.pause_ns(), reconnect.is_again()), (pause_ns, true));
            assert_eq!(reconnect.failed(Failure::Other), Next::Retry);
        }
    }

    #[test]
    fn a_way_that_does_not_last_is_tried_ever_less_often() {
        let mut reconnect = Reconnect::default();
        let mut looks = Vec::new();
        for round in 0..7 {
            looks.push(reconnect.look_again_ns() / SECOND);
            reconnect.connected(Instant(round * SECOND), false);
            reconnect.broke(Instant((round + 1) * SECOND), true);
        }
        assert_eq!(looks, [5, 10, 20, 40, 80, 160, 160]);
        reconnect.connected(Instant(0), true);
        reconnect.broke(Instant(LOOK_AGAIN_MAX_NS + 1), false);
        assert_eq!(reconnect.look_again_ns() / SECOND, 5);
    }
}

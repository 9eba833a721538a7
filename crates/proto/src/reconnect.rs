//! When a node connects again to a member whose control connection broke, and when it gives that up.
//!
//! Knows how a try ended, not how a node connects.

use crate::time::Instant;

/// Pauses before the tries to make one connection: a node that lives accepts within the first, one that restarts its
/// network within all of them.
const PAUSES_NS: [u64; 4] = [0, 20_000_000, 100_000_000, 400_000_000];

/// A connection that lives shorter than this is made again only after such a pause: a node that lets others in and closes
/// at once must not keep both sides busy.
const STABLE_NS: u64 = 200_000_000;

/// Between two tries to do without a helper.
const LOOK_AGAIN_MIN_NS: u64 = 5_000_000_000;
const LOOK_AGAIN_MAX_NS: u64 = 160_000_000_000;

/// The tries of a node to keep a control connection to one member.
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

/// Why a try to connect failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No process listens at the address, or that of another node.
    Elsewhere,
    /// Nothing was heard from there, nor could another member help.
    Unreachable,
    /// Anything else.
    Other,
}

/// What to do after a try that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Try again.
    Try,
    /// The member may be lost. What was to be sent to it is void, and it is tried again.
    Doubt,
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
    /// Nanoseconds before the next try.
    pub const fn pause_ns(&self) -> u64 {
        self.pause_ns
    }

    /// Whether the member was connected or given up as lost before: then it is told so, and both say again what matters.
    pub const fn is_again(&self) -> bool {
        self.is_again
    }

    /// Nanoseconds between two tries to reach the member without the helper that it is reached by.
    pub const fn look_again_ns(&self) -> u64 {
        self.look_again_ns
    }

    /// A try failed.
    pub fn failed(&mut self, failure: Failure) -> Next {
        match failure {
            Failure::Elsewhere => Next::GiveUp,
            Failure::Other if self.tries + 1 < PAUSES_NS.len() => {
                self.tries += 1;
                self.pause_ns = PAUSES_NS[self.tries];
                Next::Try
            }
            // Others have been asked, and all have been patient already.
            Failure::Unreachable | Failure::Other => {
                self.begin_after(STABLE_NS);
                Next::Doubt
            }
        }
    }

    /// The member is connected, directly or by way of another one.
    pub fn connected(&mut self, now: Instant, is_direct: bool) {
        self.is_again = true;
        self.connected = Some(Connected { at: now, is_direct });
    }

    /// The connection is over; `is_needless` if it went by way of a helper without which the member can be reached.
    pub fn broke(&mut self, now: Instant, is_needless: bool) {
        let Some(Connected { at, is_direct }) = self.connected.take() else { return };
        let lived_ns = now.since(at);
        if is_needless {
            // Should that not last, it is not tried as often: both sides say everything again each time.
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
            while reconnect.failed(Failure::Other) == Next::Try {
                pauses.push(reconnect.pause_ns());
            }
            assert_eq!(pauses, [first, 20_000_000, 100_000_000, 400_000_000]);
            assert!(reconnect.is_again());
        }
    }

    #[test]
    fn a_member_that_is_not_heard_is_doubted_at_once_and_one_that_is_not_there_given_up() {
        let mut reconnect = Reconnect::default();
        assert_eq!(reconnect.failed(Failure::Unreachable), Next::Doubt);
        assert_eq!(reconnect.failed(Failure::Elsewhere), Next::GiveUp);
    }

    #[test]
    fn a_connection_that_broke_is_made_again_at_once_unless_it_was_short() {
        for (lived_ns, pause_ns) in [(STABLE_NS, 0), (STABLE_NS - 1, STABLE_NS)] {
            let mut reconnect = Reconnect::default();
            assert_eq!(reconnect.failed(Failure::Other), Next::Try);
            reconnect.connected(Instant(SECOND), true);
            reconnect.broke(Instant(SECOND + lived_ns), false);
            assert_eq!((reconnect.pause_ns(), reconnect.is_again()), (pause_ns, true));
            assert_eq!(reconnect.failed(Failure::Other), Next::Try);
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

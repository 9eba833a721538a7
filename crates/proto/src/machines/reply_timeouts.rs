//! Members that have not replied to a request for too long: unresponsive members.
//!
//! One late reply is enough. While a member is unresponsive, requests to it go to the backup owner
//! at once. Any reply of the member ends that. Does not know what was requested.

use alloc::vec::Vec;

use crate::{
    id::NodeId,
    link::Link,
    time::Instant,
    timed::{Deadline, Timed},
};

/// The members that owe a reply.
#[derive(Debug, Default)]
pub(crate) struct ReplyTimeouts {
    all: Timed<NodeId, Debt>,
}

/// A member that owes a reply.
#[derive(Debug)]
struct Debt {
    /// When its reply is late, or late again.
    due: Instant,
    /// Whether it was late before.
    is_late: bool,
    /// Whether the other members were requested to probe it.
    is_reported: bool,
}

impl Deadline for Debt {
    fn deadline(&self) -> Option<Instant> {
        Some(self.due)
    }
}

/// The time in which a member replies: 100 ms, or four round trips if they take longer; at least
/// two round trips, and otherwise at most 200 ms. A claim waits for it twice, once at its node and
/// once at the backup owner.
pub(crate) fn reply_timeout_ns(link: Link) -> u64 {
    let round_trip_ns = 2 * link.latency_ns;
    (4 * round_trip_ns).clamp(100_000_000, 200_000_000).max(2 * round_trip_ns)
}

impl ReplyTimeouts {
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.all.deadline()
    }

    /// Records that a member got a request to which it replies at once.
    pub(crate) fn requested(&mut self, node: NodeId, now: Instant, timeout_ns: u64) {
        if !self.all.contains_key(&node) {
            self.all
                .insert(node, Debt { due: now + timeout_ns, is_late: false, is_reported: false });
        }
    }

    /// Records a reply of a member, or that it is no member any more.
    pub(crate) fn responded(&mut self, node: NodeId) {
        self.all.remove(&node);
    }

    /// Whether a member owes a reply.
    pub(crate) fn owes(&self, node: NodeId) -> bool {
        self.all.contains_key(&node)
    }

    /// Returns whether the others were not yet requested to probe a member that owes a reply, and
    /// records that they are.
    pub(crate) fn report(&mut self, node: NodeId) -> bool {
        let is_first =
            self.all.update(&node, |debt| !core::mem::replace(&mut debt.is_reported, true));
        is_first.unwrap_or_default()
    }

    pub(crate) fn is_unresponsive(&self, node: NodeId) -> bool {
        self.all.get(&node).is_some_and(|debt| debt.is_late)
    }

    /// The members whose replies are late now, and whether each is late for the first time.
    pub(crate) fn expire(&mut self, now: Instant, timeout_ns: u64) -> Vec<(NodeId, bool)> {
        let mut late = Vec::new();
        for node in self.all.due(now) {
            self.all.update(&node, |debt| {
                // If this process did not run, the reply may be waiting unread.
                let has_slept = now.since(debt.due) > timeout_ns / 2;
                if has_slept {
                    debt.due = now + timeout_ns / 4;
                    return;
                }
                late.push((node, !debt.is_late));
                debt.is_late = true;
                // The timeouts of other nodes for this member began a moment later.
                debt.due = now + timeout_ns * 5 / 4;
            });
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);
    const START: Instant = Instant(1_000_000_000);
    const TIMEOUT: u64 = 100_000_000;

    fn requested() -> ReplyTimeouts {
        let mut timeouts = ReplyTimeouts::default();
        timeouts.requested(NODE, START, TIMEOUT);
        timeouts
    }

    #[test]
    fn one_late_reply_makes_a_member_unresponsive_until_its_next_reply() {
        let mut timeouts = requested();
        let due = START + TIMEOUT;
        timeouts.requested(NODE, START + TIMEOUT / 2, TIMEOUT);
        assert_eq!(timeouts.deadline(), Some(due), "the oldest request counts");
        assert_eq!(timeouts.expire(due.before(1), TIMEOUT), []);
        assert!(!timeouts.is_unresponsive(NODE));
        assert_eq!(timeouts.expire(due, TIMEOUT), [(NODE, true)]);
        assert!(timeouts.is_unresponsive(NODE));
        let again = timeouts.deadline().expect("claims are repeated");
        assert!(again > due + TIMEOUT, "by then the backup owner had no reply either");
        assert_eq!(timeouts.expire(again, TIMEOUT), [(NODE, false)]);
        timeouts.responded(NODE);
        assert!(!timeouts.is_unresponsive(NODE) && timeouts.deadline().is_none());
    }

    #[test]
    fn a_node_that_did_not_run_finds_no_other_unresponsive() {
        let mut timeouts = requested();
        let late = START + 20 * TIMEOUT;
        assert_eq!(timeouts.expire(late, TIMEOUT), []);
        let due = timeouts.deadline().expect("it has time to read the reply");
        assert!(due >= late + TIMEOUT / 4);
        assert_eq!(timeouts.expire(due, TIMEOUT), [(NODE, true)]);
    }

    #[test]
    fn the_timeout_follows_the_round_trip() {
        let timeout = |latency_ns| reply_timeout_ns(Link { latency_ns, bytes_per_second: 1 });
        let millisecond = 1_000_000;
        let all = [0, 1, 20, 50, 200].map(|latency| timeout(latency * millisecond) / millisecond);
        assert_eq!(all, [100, 100, 160, 200, 800]);
    }
}

//! Reconnects to failed members, so that a partitioned cluster merges again by itself.
//!
//! Decides which node to call and when. The shell connects, and other modules merge the state.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::{
    id::NodeId,
    members::Member,
    time::Instant,
    timed::{Deadline, Timed},
};

/// A failed member that this node redials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedMember {
    /// The member.
    pub member: Member,
    /// When it was declared dead.
    pub since: Instant,
    /// Why it was declared dead, as text.
    pub reason: String,
    pause_ns: u64,
    retry_at: Instant,
    /// Number of calls in a row that were refused.
    refusals: u32,
}

/// How a call to a failed member failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReconnectFailure {
    /// There was no response from its address.
    Unreachable,
    /// No process listens at its address, or the process there refused the connection.
    Refused,
    /// Another node listens at its address, so its process has ended. If it runs elsewhere, it
    /// connects to this node.
    Replaced,
}

impl Deadline for FailedMember {
    fn deadline(&self) -> Option<Instant> {
        Some(self.retry_at)
    }
}

/// All failed members that this node redials.
#[derive(Debug, Default)]
pub(crate) struct FailedMembers {
    all: Timed<NodeId, FailedMember>,
    /// This node makes no call before this time, even if several are due.
    next_attempt: Instant,
}

/// Pause before the first call, and maximum pause. A healed partition is detected with this delay.
const PAUSE_MIN_NS: u64 = 500_000_000;
const PAUSE_MAX_NS: u64 = 10 * 1_000_000_000;

/// Minimum time between any two calls of one node.
const ATTEMPTS_APART_NS: u64 = 100_000_000;

/// Number of refused calls after which a member is forgotten. A process that ended does not return.
const REFUSALS_MAX: u32 = 8;

/// Maximum number of failed members to remember. Beyond it the earliest is forgotten.
const FAILED_MEMBERS_MAX: usize = 4096;

impl FailedMembers {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &FailedMember> {
        self.all.values()
    }

    /// A member was declared dead.
    pub(crate) fn insert(&mut self, now: Instant, member: Member, reason: String) {
        let (pause_ns, refusals) = (PAUSE_MIN_NS, 0);
        let retry_at = now + pause_ns;
        let entry = FailedMember { member, since: now, reason, pause_ns, retry_at, refusals };
        self.all.insert(member.id, entry);
        if self.all.len() > FAILED_MEMBERS_MAX
            && let Some(oldest) = self.iter().min_by_key(|entry| entry.since)
        {
            let oldest = oldest.member.id;
            self.all.remove(&oldest);
        }
    }

    /// A node is connected again.
    pub(crate) fn remove(&mut self, node: NodeId) {
        self.all.remove(&node);
    }

    #[cfg(test)]
    fn contains(&self, node: NodeId) -> bool {
        self.all.contains_key(&node)
    }

    /// A call failed.
    pub(crate) fn reconnect_failed(&mut self, node: NodeId, failure: ReconnectFailure) {
        let is_over = self.all.update(&node, |entry| match failure {
            ReconnectFailure::Unreachable => {
                entry.refusals = 0;
                false
            }
            ReconnectFailure::Refused => {
                entry.refusals += 1;
                entry.refusals >= REFUSALS_MAX
            }
            ReconnectFailure::Replaced => true,
        });
        if is_over == Some(true) {
            self.all.remove(&node);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.all.deadline().map(|at| at.max(self.next_attempt))
    }

    /// The member to call now.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Member> {
        if self.next_attempt > now {
            return None;
        }
        let due = self.all.due(now).into_iter();
        // The member that failed last is the most likely to return. Many members that never return
        // must not delay it.
        let rank = |node: &NodeId| self.all.get(node).map(|entry| (entry.pause_ns, entry.retry_at));
        let first = due.min_by_key(rank)?;
        self.next_attempt = now + ATTEMPTS_APART_NS;
        self.all.update(&first, |first| {
            first.pause_ns = (2 * first.pause_ns).min(PAUSE_MAX_NS);
            first.retry_at = now + first.pause_ns;
            first.member
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn member(number: u64) -> Member {
        Member { id: NodeId(number), address: ([10, 0, 0, 1], 7420).into(), place: None }
    }

    /// Calls until `end`.
    fn calls(redial: &mut FailedMembers, end: u64) -> Vec<(u64, u64)> {
        let mut calls = Vec::new();
        while let Some(due) = redial.deadline().filter(|due| due.0 <= end) {
            if let Some(member) = redial.expire(due) {
                calls.push((due.0, member.id.0));
            }
        }
        calls
    }

    #[test]
    fn the_lost_are_called_for_ever_and_ever_less_often() {
        let mut redial = FailedMembers::default();
        redial.insert(Instant(0), member(7), "cut".into());
        let calls = calls(&mut redial, 100 * SECOND);
        assert_eq!(calls[0], (PAUSE_MIN_NS, 7));
        assert!(calls.windows(2).all(|pair| pair[1].0 - pair[0].0 <= PAUSE_MAX_NS));
        assert!((12..20).contains(&calls.len()), "{calls:?}");
        redial.reconnect_failed(NodeId(7), ReconnectFailure::Unreachable);
        redial.remove(NodeId(7));
        assert!(!redial.contains(NodeId(7)));
        assert_eq!(redial.deadline(), None);
    }

    #[test]
    fn many_are_called_one_after_the_other() {
        let mut redial = FailedMembers::default();
        (1..=100).for_each(|number| redial.insert(Instant(0), member(number), "cut".into()));
        let calls = calls(&mut redial, 30 * SECOND);
        assert!(calls.windows(2).all(|pair| pair[1].0 - pair[0].0 >= ATTEMPTS_APART_NS));
        let mut called: Vec<u64> = calls.iter().map(|(_, node)| *node).collect();
        called.sort_unstable();
        called.dedup();
        assert_eq!(called.len(), 100);
    }

    #[test]
    fn a_process_that_ended_is_forgotten() {
        let mut redial = FailedMembers::default();
        redial.insert(Instant(0), member(1), "ended".into());
        let refuse = |redial: &mut FailedMembers, count| {
            (0..count).for_each(|_| redial.reconnect_failed(NodeId(1), ReconnectFailure::Refused));
        };
        refuse(&mut redial, REFUSALS_MAX - 1);
        // A host that was unreachable for a moment refuses nothing.
        redial.reconnect_failed(NodeId(1), ReconnectFailure::Unreachable);
        refuse(&mut redial, REFUSALS_MAX - 1);
        assert!(redial.deadline().is_some());
        refuse(&mut redial, 1);
        assert_eq!(redial.deadline(), None);
    }

    #[test]
    fn a_process_whose_address_another_node_has_is_forgotten_at_once() {
        let mut redial = FailedMembers::default();
        redial.insert(Instant(0), member(1), "ended".into());
        redial.insert(Instant(0), member(2), "ended".into());
        redial.reconnect_failed(NodeId(1), ReconnectFailure::Replaced);
        assert!(!redial.contains(NodeId(1)) && redial.contains(NodeId(2)));
    }

    #[test]
    fn the_first_to_go_is_forgotten_where_there_are_too_many() {
        let mut redial = FailedMembers::default();
        let many = FAILED_MEMBERS_MAX as u64 + 1;
        (1..=many).for_each(|number| redial.insert(Instant(number), member(number), "".into()));
        assert_eq!(redial.iter().count(), FAILED_MEMBERS_MAX);
        assert!(!redial.contains(NodeId(1)));
        assert!(redial.contains(NodeId(many)));
    }
}

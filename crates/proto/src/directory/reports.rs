//! What receivers have reported of one object: how fast it comes to each, and how fast to the best of its branches.
//!
//! Knows rates and times; does not know which holders there are.

use alloc::vec::Vec;

use crate::{
    id::NodeId,
    pace::{Rate, SLOW_TIMES},
    time::Instant,
};

/// How long a report says something of the present: receivers report every 2 s at least.
const FRESH_NS: u64 = 2_500_000_000;

/// What a receiver has reported of one object.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// The last of its present sender.
    pub(super) last: Option<Report>,
    /// Senders that it was moved away from.
    pub(super) left: Vec<Left>,
}

/// A sender that a receiver was moved away from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) node: NodeId,
    /// The last report of it.
    pub(super) report: Report,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub(super) at: Instant,
    pub(super) rate: Rate,
    /// Bytes that it lacks.
    pub(super) missing: u64,
    /// What the receiver has received from others, if that was measured.
    pub(super) usual: Option<u64>,
}

impl Report {
    pub(super) const fn is_stalled(&self) -> bool {
        self.rate.bytes_per_second == 0
    }

    /// Whether it says something of the present.
    pub(super) const fn is_fresh(&self, now: Instant) -> bool {
        now.since(self.at) < FRESH_NS
    }

    /// Whether the transfer has far less than others have, though it may have shared a link.
    pub(super) fn is_slow(&self, typical: u64) -> bool {
        self.rate.fair().saturating_mul(SLOW_TIMES) < typical
    }

    /// Whether the transfer has about as much as others have. A fair rate is an upper limit, and proves nothing good.
    pub(super) const fn has_its_share(&self, typical: u64) -> bool {
        self.rate.bytes_per_second.saturating_mul(SLOW_TIMES) >= typical
    }

    /// How many times less it has than others.
    pub(super) fn slowness(&self, typical: u64) -> u64 {
        typical / self.rate.fair().max(1)
    }
}

/// The best fresh reports of two branches of a broadcast; a branch is named by its first receiver.
#[derive(Debug, Default)]
pub(super) struct Branches(Vec<Best>);

/// The best report of a branch.
#[derive(Clone, Copy, Debug)]
struct Best {
    branch: NodeId,
    receiver: NodeId,
    report: Report,
}

impl Best {
    const fn rate(&self) -> u64 {
        self.report.rate.bytes_per_second
    }
}

impl Branches {
    /// A receiver of a branch has reported.
    pub(super) fn note(&mut self, branch: NodeId, receiver: NodeId, report: Report) {
        let new = Best { branch, receiver, report };
        self.0.retain(|best| best.report.is_fresh(report.at) && best.receiver != receiver);
        match self.0.iter_mut().find(|best| best.branch == branch) {
            Some(best) if best.rate() <= new.rate() => *best = new,
            Some(_) => {}
            None => {
                self.0.push(new);
                self.0.sort_unstable_by_key(|best| core::cmp::Reverse(best.rate()));
                self.0.truncate(2);
            }
        }
    }

    /// A node is not the receiver any more that it was, and those behind it are another branch.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.0.retain(|best| best.branch != node && best.receiver != node);
    }

    /// What the best of at least two branches has reported.
    pub(super) fn best(&self, now: Instant) -> Option<u64> {
        let fresh = self.0.iter().filter(|best| best.report.is_fresh(now)).map(Best::rate);
        fresh.clone().nth(1).and(fresh.max())
    }
}

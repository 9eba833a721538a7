//! Receivers' reports for one object: the receive rate of each, and the best rate of its branches.
//!
//! Knows rates and times, but not the list of holders.

use alloc::vec::Vec;

use crate::{
    id::NodeId,
    rate::{Rate, SLOW_TIMES},
    time::Instant,
};

/// How long a report describes the present. Receivers report at least every 2 s.
const FRESH_NS: u64 = 2_500_000_000;

/// The reports of one receiver about one object.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// The last report about its current source.
    pub(super) last: Option<Report>,
    /// Sources that it was moved away from.
    pub(super) left: Vec<FormerSource>,
}

/// A source that a receiver was moved away from.
#[derive(Clone, Copy, Debug)]
pub(super) struct FormerSource {
    pub(super) node: NodeId,
    /// The last report about it.
    pub(super) report: Report,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub(super) at: Instant,
    pub(super) rate: Rate,
    /// Whether another branch gets much more from the same root: then other transfers of the root
    /// don't make this one slow.
    pub(super) is_alone: bool,
    /// Bytes that it lacks.
    pub(super) missing: u64,
    /// The rate at which the receiver usually receives from other sources, if it was measured.
    pub(super) usual: Option<u64>,
}

impl Report {
    pub(super) const fn is_stalled(&self) -> bool {
        self.rate.bytes_per_second == 0
    }

    /// Whether it is recent enough to describe the present.
    pub(super) const fn is_fresh(&self, now: Instant) -> bool {
        now.since(self.at) < FRESH_NS
    }

    /// Whether the transfer is much slower than the others, even if it shared a link.
    pub(super) fn is_slow(&self, typical: u64) -> bool {
        self.own_rate().saturating_mul(SLOW_TIMES) < typical
    }

    /// Its rate, without the effect of transfers that share a link with it.
    fn own_rate(&self) -> u64 {
        if self.is_alone { self.rate.bytes_per_second } else { self.rate.fair() }
    }

    /// Whether the transfer is about as fast as the others. Uses the measured rate: a fair rate is
    /// only an upper limit.
    pub(super) const fn has_its_share(&self, typical: u64) -> bool {
        self.rate.bytes_per_second.saturating_mul(SLOW_TIMES) >= typical
    }

    /// How many times slower the transfer is than the others.
    pub(super) fn slowness(&self, typical: u64) -> u64 {
        typical / self.own_rate().max(1)
    }
}

/// The best recent reports of two branches of a broadcast. The first receiver of a branch
/// identifies it.
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
    /// Records the report of a receiver in a branch.
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

    /// Removes a node that no longer receives from the same source; the nodes behind it now form
    /// another branch.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.0.retain(|best| best.branch != node && best.receiver != node);
    }

    /// The best reported rate, if at least two branches have reported, and not only those of
    /// receivers that `is_slow`: slow nodes prove nothing about each other.
    pub(super) fn best(&self, now: Instant, is_slow: impl Fn(NodeId) -> bool) -> Option<u64> {
        let fresh = || self.0.iter().filter(|best| best.report.is_fresh(now));
        let is_telling = fresh().count() > 1 && !fresh().all(|best| is_slow(best.branch));
        fresh().map(Best::rate).max().filter(|_| is_telling)
    }
}

//! Which node holds a sum up, as the positions of its tree report it.
//!
//! Where a node stands still all positions above it wait, each for its own child. The node to blame is one that is waited
//! for and has not reported that it waits itself.
//!
//! Knows nodes and times; does not know the tree, or what becomes of a slow node's seat.

use alloc::collections::BTreeMap;

use crate::{id::NodeId, time::Instant};

/// How long after the first report the others may come: 60 ms.
const JUDGE_NS: u64 = 60_000_000;

/// How long a report holds. Positions that wait on repeat it after 200 to 300 ms.
const FRESH_NS: u64 = 400_000_000;

/// Reports of one attempt.
#[derive(Debug, Default)]
pub(super) struct Starved {
    /// By the node that is waited for: how fast it sends, and when that was reported.
    slow: BTreeMap<NodeId, (u64, Instant)>,
    /// When a node last reported that it waits.
    waiting: BTreeMap<NodeId, Instant>,
    judged_at: Option<Instant>,
}

impl Starved {
    pub(super) fn report(&mut self, now: Instant, reporter: NodeId, node: NodeId, rate: u64) {
        self.waiting.insert(reporter, now);
        if reporter != node {
            self.slow.insert(node, (rate, now));
            self.judged_at.get_or_insert(now + JUDGE_NS);
        }
    }

    /// When [`Starved::judge`] has an answer.
    pub(super) const fn judged_at(&self) -> Option<Instant> {
        self.judged_at
    }

    /// The nodes that hold the sum up, and how fast they send; none before all had time to report.
    pub(super) fn judge(&mut self, now: Instant) -> Option<BTreeMap<NodeId, u64>> {
        self.judged_at.take_if(|at| *at <= now)?;
        let is_fresh = |at: Instant| now.since(at) < FRESH_NS;
        let waits = |node: &NodeId| self.waiting.get(node).is_some_and(|at| is_fresh(*at));
        let slow = self.slow.iter().filter(|(node, (_, at))| is_fresh(*at) && !waits(node));
        Some(slow.map(|(node, (rate, _))| (*node, *rate)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_node_that_is_waited_for_and_waits_for_nobody_is_slow() {
        let mut starved = Starved::default();
        let at = |ms: u64| Instant::default() + ms * MS;
        // 1 <- 2 <- 3 <- 4, and 4 stands still.
        starved.report(at(300), NodeId(1), NodeId(2), 0);
        assert_eq!(starved.judge(at(310)), None, "the others may still report");
        starved.report(at(320), NodeId(2), NodeId(3), 0);
        starved.report(at(330), NodeId(3), NodeId(4), 7);
        assert_eq!(starved.judged_at(), Some(at(360)));
        assert_eq!(starved.judge(at(360)), Some(BTreeMap::from([(NodeId(4), 7)])));
        assert_eq!(starved.judge(at(370)), None, "until somebody reports again");
        starved.report(at(800), NodeId(1), NodeId(2), 0);
        assert_eq!(
            starved.judge(at(860)),
            Some(BTreeMap::from([(NodeId(2), 0)])),
            "old reports say nothing"
        );
    }
}

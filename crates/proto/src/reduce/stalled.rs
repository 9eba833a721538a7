//! Detection of an unresponsive node in a reduce tree, from reports of its positions.
//!
//! If a node is frozen, all positions above it wait, each for its own child. The culprit is a node
//! that others wait for and that has not reported that it waits itself. The coordinator probes it:
//! a frozen or partitioned node does not reply. A node that replies waits for its own input, which
//! a client fills, or shares its link with other transfers.
//!
//! Depends on nodes and times only. The tree, and the replacement of inputs, are elsewhere.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::{id::NodeId, time::Instant};

/// Time after the first report for other reports and probe replies: 150 ms.
const JUDGE_NS: u64 = 150_000_000;

/// How long a report is valid. Waiting positions repeat it after 200 ms.
const FRESH_NS: u64 = 400_000_000;

/// Reports of one attempt.
#[derive(Debug, Default)]
pub(super) struct StalledFolds {
    /// When a position last reported that it waits for a child on this node.
    awaited: BTreeMap<NodeId, Instant>,
    /// When a node last reported that it waits.
    waiting: BTreeMap<NodeId, Instant>,
    /// Nodes that have replied since the last judgment.
    alive: BTreeSet<NodeId>,
    judged_at: Option<Instant>,
}

impl StalledFolds {
    /// Records that a position on `reporter` waits for a child on `node`. Returns whether to probe
    /// `node`.
    pub(super) fn report(&mut self, now: Instant, reporter: NodeId, node: NodeId) -> bool {
        self.waiting.insert(reporter, now);
        self.awaited.insert(node, now);
        self.judged_at.get_or_insert(now + JUDGE_NS);
        !self.alive.contains(&node)
    }

    /// A probed node has replied.
    pub(super) fn answered(&mut self, node: NodeId) {
        self.alive.insert(node);
    }

    /// When to call [`StalledFolds::judge`].
    pub(super) const fn judged_at(&self) -> Option<Instant> {
        self.judged_at
    }

    /// Returns the unresponsive nodes, or `None` before all nodes had time to report.
    pub(super) fn judge(&mut self, now: Instant) -> Option<BTreeSet<NodeId>> {
        self.judged_at.take_if(|at| *at <= now)?;
        let alive = core::mem::take(&mut self.alive);
        let is_fresh = |at: &Instant| now.since(*at) < FRESH_NS;
        let is_silent =
            |node: &NodeId| !self.waiting.get(node).is_some_and(is_fresh) && !alive.contains(node);
        let awaited = self.awaited.iter().filter(|(_, at)| is_fresh(at)).map(|(node, _)| *node);
        Some(awaited.filter(is_silent).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::default() + ms * MS
    }

    #[test]
    fn the_node_that_is_waited_for_and_does_not_wait_itself_is_silent() {
        let mut stalled = StalledFolds::default();
        // 1 <- 2 <- 3 <- 4, and 4 is frozen.
        assert!(stalled.report(at(300), NodeId(1), NodeId(2)));
        assert_eq!(stalled.judge(at(310)), None, "the others may still report");
        stalled.report(at(320), NodeId(2), NodeId(3));
        stalled.report(at(330), NodeId(3), NodeId(4));
        assert_eq!(stalled.judged_at(), Some(at(450)));
        assert_eq!(stalled.judge(at(450)), Some(BTreeSet::from([NodeId(4)])));
        assert_eq!(stalled.judge(at(460)), None, "until a node reports again");
        stalled.report(at(800), NodeId(1), NodeId(2));
        assert_eq!(
            stalled.judge(at(950)),
            Some(BTreeSet::from([NodeId(2)])),
            "old reports say nothing"
        );
    }

    #[test]
    fn a_node_that_answers_is_not_blamed() {
        let mut stalled = StalledFolds::default();
        for ms in [200, 400, 600] {
            assert!(stalled.report(at(ms), NodeId(1), NodeId(2)), "it is probed each time");
            stalled.answered(NodeId(2));
            assert_eq!(stalled.judge(at(ms + 150)), Some(BTreeSet::new()));
        }
    }
}

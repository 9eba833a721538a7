//! Which node holds a sum up, as the positions of its tree report it.
//!
//! Where a node stands still all positions above it wait, each for its own child. The node to blame is one that is waited
//! for and has not reported that it waits itself. It is asked whether it lives: a node that is frozen or cut off does not
//! answer, and is blamed. One that answers waits for its own input, which a client fills, or shares its link with others.
//!
//! Knows nodes and times; does not know the tree, or what becomes of a silent node's seat.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::{id::NodeId, time::Instant};

/// How long after the first report the others may come, and answers of those that are asked: 150 ms.
const JUDGE_NS: u64 = 150_000_000;

/// How long a report holds. Positions that wait on repeat it after 200 ms.
const FRESH_NS: u64 = 400_000_000;

/// Reports of one attempt.
#[derive(Debug, Default)]
pub(super) struct Starved {
    /// When a position last reported that it waits for a child at this node.
    awaited: BTreeMap<NodeId, Instant>,
    /// When a node last reported that it waits.
    waiting: BTreeMap<NodeId, Instant>,
    /// Nodes that have answered since the last judgement.
    alive: BTreeSet<NodeId>,
    judged_at: Option<Instant>,
}

impl Starved {
    /// A position at `reporter` waits for a child at `node`; whether that is to be asked whether it lives.
    pub(super) fn report(&mut self, now: Instant, reporter: NodeId, node: NodeId) -> bool {
        self.waiting.insert(reporter, now);
        self.awaited.insert(node, now);
        self.judged_at.get_or_insert(now + JUDGE_NS);
        !self.alive.contains(&node)
    }

    /// A node that was asked has answered.
    pub(super) fn answered(&mut self, node: NodeId) {
        self.alive.insert(node);
    }

    /// When [`Starved::judge`] has an answer.
    pub(super) const fn judged_at(&self) -> Option<Instant> {
        self.judged_at
    }

    /// The nodes that hold the sum up; none before all had time to report.
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
        let mut starved = Starved::default();
        // 1 <- 2 <- 3 <- 4, and 4 stands still.
        assert!(starved.report(at(300), NodeId(1), NodeId(2)));
        assert_eq!(starved.judge(at(310)), None, "the others may still report");
        starved.report(at(320), NodeId(2), NodeId(3));
        starved.report(at(330), NodeId(3), NodeId(4));
        assert_eq!(starved.judged_at(), Some(at(450)));
        assert_eq!(starved.judge(at(450)), Some(BTreeSet::from([NodeId(4)])));
        assert_eq!(starved.judge(at(460)), None, "until a node reports again");
        starved.report(at(800), NodeId(1), NodeId(2));
        assert_eq!(
            starved.judge(at(950)),
            Some(BTreeSet::from([NodeId(2)])),
            "old reports say nothing"
        );
    }

    #[test]
    fn a_node_that_answers_is_not_blamed() {
        let mut starved = Starved::default();
        for ms in [200, 400, 600] {
            assert!(starved.report(at(ms), NodeId(1), NodeId(2)), "it is asked each time");
            starved.answered(NodeId(2));
            assert_eq!(starved.judge(at(ms + 150)), Some(BTreeSet::new()));
        }
    }
}

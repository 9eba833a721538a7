//! Folds that wait for a child: told to the coordinator, which may have another input for its seat.

use alloc::vec::Vec;

use super::Node;
use crate::{
    id::{NodeId, ReduceId},
    message::{FoldKey, Message},
};

/// What a child has brought while its parent waited for it.
#[derive(Debug, Default)]
pub(super) struct Wait {
    ns: u64,
    bytes: u64,
}

/// How long a child is waited for before that is reported, and reported again: 200 ms. The coordinator then begins the sum
/// anew with another input, which takes as long as the sum itself; to wait as long as for a copy would be too long.
const REPORT_NS: u64 = 200_000_000;

impl Node {
    /// A fold here has waited for the stream of a child.
    pub(super) fn fold_waited(&mut self, key: FoldKey, node: NodeId, ns: u64, bytes: u64) {
        let Some(fold) = self.folds.get_mut(&key) else { return };
        let wait = fold.waits.entry(node).or_default();
        (wait.ns, wait.bytes) = (wait.ns + ns, wait.bytes + bytes);
        if wait.ns < REPORT_NS {
            return;
        }
        let rate = u128::from(wait.bytes) * 1_000_000_000 / u128::from(wait.ns);
        let bytes_per_second = u64::try_from(rate).unwrap_or(u64::MAX);
        *wait = Wait::default();
        // One that brings little may share its link with others.
        if bytes_per_second == 0 {
            let FoldKey { reduce, epoch, .. } = key;
            let starves = Message::FoldStarves { reduce, epoch, node, bytes_per_second };
            self.world.send(reduce.node, starves);
        }
    }

    /// A position of a reduce of this node waits for a child.
    pub(super) fn fold_starves(
        &mut self,
        from: NodeId,
        key: ReduceId,
        epoch: u32,
        (node, rate): (NodeId, u64),
    ) {
        let mut steps = Vec::new();
        let now = self.world.now();
        self.reduces.update(&key, |reduce| {
            if reduce.epoch() == epoch {
                reduce.starves(now, from, node, rate, &mut steps);
            }
        });
        self.take_steps(key, steps);
    }

    /// A node that a position of a reduce of this node waits for lives.
    pub(super) fn fold_alive(&mut self, from: NodeId, key: ReduceId, epoch: u32) {
        self.reduces.update(&key, |reduce| {
            if reduce.epoch() == epoch {
                reduce.answered(from);
            }
        });
    }
}

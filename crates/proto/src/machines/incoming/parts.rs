//! The result of a ring reduce while it grows on this node in parts: its order, and the progress of
//! this node's seat.
//!
//! ```text
//!   ordered --> capacity, at once or not at all --> memory --> growing --> all here --> complete
//!                                                                |            |
//!                                                                +------------+--> void: dropped
//!                                                                   and requested again
//! ```
//!
//! A result that is all here is complete only when the coordinator's is. Until then the coordinator
//! may start another epoch with another sum, so readers do not get this result and owners do not
//! learn of it. Knows only the number of folds.

use crate::message::{FoldKey, FoldOrder, RingOrder};

/// A result that grows here in parts.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) order: RingOrder,
    /// This node's index among the contributors, if it is one; its inputs are pinned.
    pub(crate) rank: Option<usize>,
    /// The number of folds that this node has begun.
    begun: usize,
    /// Whether the coordinator has all of it, and therefore starts no other epoch.
    pub(crate) is_decided: bool,
}

impl Parts {
    pub(crate) const fn new(order: RingOrder, rank: Option<usize>) -> Self {
        Self { order, rank, begun: 0, is_decided: false }
    }

    /// Returns the next fold of this node and whether it makes this node's own part, which needs
    /// memory for the result. Counts it as begun.
    pub(super) fn next_fold(&mut self, has_memory: bool) -> Option<(FoldOrder, bool)> {
        let fold = self.order.fold(self.rank?, self.begun)?;
        let is_own = fold.key.position == FoldKey::RESULT;
        if is_own && !has_memory {
            return None;
        }
        self.begun += 1;
        Some((fold, is_own))
    }
}

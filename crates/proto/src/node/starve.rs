//! Folds that wait for a child: told to the coordinator, which may have another input for its seat.

use alloc::vec::Vec;

use super::{Action, Node};
use crate::{
    id::{NodeId, ReduceId},
    message::{FoldKey, Message},
};

impl Node {
    /// A fold here waits for the stream of a child, and nothing comes.
    pub(super) fn fold_waited(&mut self, key: FoldKey, node: NodeId, out: &mut Vec<Action>) {
        if self.folds.contains_key(&key) {
            let FoldKey { reduce, epoch, .. } = key;
            self.send(reduce.node, Message::FoldStarves { reduce, epoch, node }, out);
        }
    }

    /// A position of a reduce of this node waits for a child at `node`.
    pub(super) fn fold_starves(
        &mut self,
        from: NodeId,
        key: ReduceId,
        epoch: u32,
        node: NodeId,
        out: &mut Vec<Action>,
    ) {
        let mut steps = Vec::new();
        if let Some(reduce) = self.reduces.get_mut(&key).filter(|reduce| reduce.epoch() == epoch) {
            reduce.starves(self.now, from, node, &mut steps);
        }
        self.take_steps(key, steps, out);
    }

    /// A node that a position of a reduce of this node waits for lives.
    pub(super) fn fold_alive(&mut self, from: NodeId, key: ReduceId, epoch: u32) {
        if let Some(reduce) = self.reduces.get_mut(&key).filter(|reduce| reduce.epoch() == epoch) {
            reduce.answered(from);
        }
    }
}

//! Senders whose bytes differ from their checksums: after a few they are taken only if nobody else has an object.
//!
//! Each such block is fetched again whoever sent it. A relay passes on the checksums of the first sender, so it is the
//! node beside this one, or the way from it, that changes bytes.

use alloc::vec::Vec;

use super::{Node, Note};
use crate::{
    id::{NodeId, ObjectId},
    limits::CORRUPT_BLOCKS_MAX,
};

impl Node {
    pub(super) fn block_corrupt(&mut self, source: NodeId) {
        if !self.world.members().contains(source) {
            return;
        }
        let count = self.corrupt.entry(source).or_default();
        *count = count.saturating_add(1);
        if *count == CORRUPT_BLOCKS_MAX {
            self.world.note(Note::SenderAvoided { node: source, blocks: *count });
        }
    }

    /// Who is to send an object only if nobody else has it: those that failed to, and those that send other bytes.
    pub(super) fn avoided(&self, id: &ObjectId) -> Vec<NodeId> {
        let mut avoided: Vec<NodeId> =
            self.pulls.get(id).map_or_else(Vec::new, |pull| pull.avoid.clone());
        let corrupt = self.corrupt.iter().filter(|(_, count)| **count >= CORRUPT_BLOCKS_MAX);
        for (node, _) in corrupt {
            if !avoided.contains(node) {
                avoided.push(*node);
            }
        }
        avoided
    }
}

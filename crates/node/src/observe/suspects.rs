//! Which members are suspected. The state machine does not report when that changes, so this compares.

use hoplite_proto::{id::NodeId, swim::Suspicion};

/// The members that were suspected at the last comparison, in order.
#[derive(Debug, Default)]
pub(super) struct Suspects(Vec<NodeId>);

impl Suspects {
    /// Passes each change to `changed`: the member, and by whom it is suspected now.
    pub(super) fn compare(
        &mut self,
        current: impl Iterator<Item = (NodeId, Suspicion)>,
        mut changed: impl FnMut(NodeId, Option<NodeId>),
    ) {
        let mut current = current.peekable();
        if self.0.is_empty() && current.peek().is_none() {
            return;
        }
        let mut now = Vec::new();
        for (node, suspicion) in current {
            if !self.0.contains(&node) {
                changed(node, Some(suspicion.by));
            }
            now.push(node);
        }
        for node in self.0.iter().filter(|node| !now.contains(node)) {
            changed(*node, None);
        }
        self.0 = now;
    }
}

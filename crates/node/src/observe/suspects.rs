//! Which members are suspected. The state machine does not report when that changes, so this
//! compares.

use hoplite_proto::{id::NodeId, swim::Suspicion};

/// The members that were suspected at the last comparison, in order.
#[derive(Debug, Default)]
pub(super) struct Suspects(Vec<NodeId>);

impl Suspects {
    /// Whether nothing has changed, which most messages find.
    pub(super) fn are(&self, current: impl Iterator<Item = (NodeId, Suspicion)>) -> bool {
        current.map(|(node, _)| node).eq(self.0.iter().copied())
    }

    /// Passes each change to `changed`: the member, and by whom it is suspected now.
    pub(super) fn compare(
        &mut self,
        current: impl Iterator<Item = (NodeId, Suspicion)>,
        mut changed: impl FnMut(NodeId, Option<NodeId>),
    ) {
        let mut now = Vec::new();
        for (node, suspicion) in current {
            if self.0.binary_search(&node).is_err() {
                changed(node, Some(suspicion.by));
            }
            now.push(node);
        }
        for node in self.0.iter().filter(|node| now.binary_search(node).is_err()) {
            changed(*node, None);
        }
        self.0 = now;
    }
}

//! Payload moved between this node and each member: copies and partial sums.

use std::{collections::HashMap, sync::Mutex};

use hoplite_proto::{id::NodeId, members::Members};

use crate::sync::lock;

/// Bytes received from each member, and sent to it.
#[derive(Debug, Default)]
pub(crate) struct Traffic(Mutex<HashMap<NodeId, (u64, u64)>>);

impl Traffic {
    pub(crate) fn received(&self, from: NodeId, bytes: u64) {
        lock(&self.0).entry(from).or_default().0 += bytes;
    }

    pub(crate) fn sent(&self, to: NodeId, bytes: u64) {
        lock(&self.0).entry(to).or_default().1 += bytes;
    }

    /// The bytes of each member. Forgets former members.
    pub(crate) fn values(&self, members: &Members) -> HashMap<NodeId, (u64, u64)> {
        let mut all = lock(&self.0);
        all.retain(|node, _| members.contains(*node));
        all.clone()
    }
}

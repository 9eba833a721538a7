//! Limits the payload and relayed connections of each member: one member must not take the
//! descriptors that all others need. Does not know what they carry.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use hoplite_proto::{id::NodeId, limits::PAYLOAD_CONNECTIONS_MAX};
use rustix::process::{Resource, getrlimit};

use crate::{error::LinkError, sync::lock};

/// One member may take 1/2 of this process's descriptors, if it may not open many.
const DESCRIPTORS_SHARE: u64 = 2;

/// The open connections of each member.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLimit {
    taken: Mutex<HashMap<NodeId, usize>>,
}

/// The place of one connection within the limit; dropping it frees it.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    connection_limit: Arc<ConnectionLimit>,
    node: NodeId,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = lock(&self.connection_limit.taken);
        if let Some(count) = taken.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.node);
            }
        }
    }
}

/// Limit of connections per member, from this process's limit of descriptors.
pub(crate) fn places_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let share = usize::try_from(descriptors / DESCRIPTORS_SHARE).unwrap_or(usize::MAX);
    share.min(PAYLOAD_CONNECTIONS_MAX)
}

impl ConnectionLimit {
    /// Takes a place for another connection of a member.
    ///
    /// # Errors
    /// [`LinkError::Full`] if it already has `most`.
    pub(crate) fn take(
        self: &Arc<Self>,
        node: NodeId,
        most: usize,
    ) -> Result<ConnectionPermit, LinkError> {
        let mut taken = lock(&self.taken);
        let count = taken.entry(node).or_default();
        if *count >= most {
            return Err(LinkError::Full(node, most));
        }
        *count += 1;
        Ok(ConnectionPermit { connection_limit: self.clone(), node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_per_member_are_limited_and_freed() {
        let connection_limit = Arc::<ConnectionLimit>::default();
        let [one, other] = [1, 2].map(NodeId);
        let mut held: Vec<ConnectionPermit> =
            (0..3).map(|_| connection_limit.take(one, 3).unwrap()).collect();
        let said = connection_limit.take(one, 3).unwrap_err().to_string();
        assert!(said.contains("already has 3 connections to this node"), "{said}");
        assert!(connection_limit.take(other, 3).is_ok(), "each member has its own limit");
        held.pop();
        held.push(connection_limit.take(one, 3).unwrap());
        drop(held);
        assert!(lock(&connection_limit.taken).is_empty());
    }
}

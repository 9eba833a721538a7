//! The id of this node's cluster, which changes until the cluster has lost a member. Does not know
//! the members.

use std::{io, sync::Mutex};

use hoplite_proto::cluster_id::{ClusterId, Introduction};
use tracing::debug;

use super::proofs::nonce;
use crate::sync::lock;

/// The id of this node's cluster.
#[derive(Debug)]
pub(crate) struct OwnCluster(Mutex<ClusterId>);

/// Which side of a handshake the other node is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Met {
    /// This node connects to the other one.
    Acceptor,
    /// The other node connects to this one.
    Initiator,
}

impl OwnCluster {
    /// The cluster of a node that has met no other yet.
    pub(crate) fn new() -> io::Result<Self> {
        let number = u128::from_le_bytes(nonce()?) as u64;
        Ok(Self(Mutex::new(ClusterId { number, is_final: false })))
    }

    /// The cluster of a process that meets nodes but joins none: the last in the order of ids, so
    /// that no node takes it.
    pub(crate) const fn visitor() -> Self {
        Self(Mutex::new(ClusterId { number: u64::MAX, is_final: false }))
    }

    pub(crate) fn id(&self) -> ClusterId {
        *lock(&self.0)
    }

    /// Handles a handshake with a node of the cluster `other`. Returns the id of both.
    ///
    /// # Errors
    /// This node's id: the other node belongs to another cluster.
    pub(super) fn meet(
        &self,
        met: Met,
        other: ClusterId,
        introduction: Introduction,
    ) -> Result<ClusterId, ClusterId> {
        let mut id = lock(&self.0);
        let agreed = match met {
            Met::Acceptor => ClusterId::meet(*id, other, introduction),
            Met::Initiator => ClusterId::meet(other, *id, introduction),
        };
        let agreed = agreed.ok_or(*id)?;
        if agreed.number != id.number {
            debug!(cluster_id = %agreed, before = %*id, "joined a cluster");
        }
        *id = agreed;
        Ok(agreed)
    }

    /// Handles the loss of a member: its address can be that of another cluster's node now.
    pub(crate) fn member_lost(&self) {
        lock(&self.0).is_final = true;
    }
}

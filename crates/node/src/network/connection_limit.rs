//! Limits of connections: a member must not take the descriptors that all others need, and
//! strangers that connect and send nothing must not take those of members, clients or memory. Does
//! not know what connections carry.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use hoplite_proto::{id::NodeId, limits::PAYLOAD_CONNECTIONS_MAX};
use tokio::task::AbortHandle;

use crate::{config::descriptors, error::LinkError, sync::lock};

/// One member may take 1/2 of this process's descriptors, if it may not open many.
const MEMBER_SHARE: u64 = 2;

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
    let share = usize::try_from(descriptors() / MEMBER_SHARE).unwrap_or(usize::MAX);
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

/// Limit of unfinished handshakes if this process may open many descriptors. A handshake takes a
/// few milliseconds at most, so this suffices for a hundred members that open all their payload
/// connections at once.
const HANDSHAKES_MAX: usize = 1024;

/// Unfinished handshakes may take 1/4 of this process's descriptors, if it may not open many.
const HANDSHAKES_SHARE: u64 = 4;

/// Lower bound of that limit: two members may open this many payload connections at once.
const HANDSHAKES_MIN: usize = 32;

/// Initiators whose handshake has not finished, oldest first.
#[derive(Debug, Default)]
pub(super) struct PendingHandshakes(Vec<PendingHandshake>);

/// An initiator, and the task that performs its handshake.
#[derive(Debug)]
struct PendingHandshake {
    from: IpAddr,
    task: AbortHandle,
}

impl PendingHandshakes {
    /// Adds an initiator. If `most` are already waiting, aborts the oldest of the address that has
    /// the most. Returns whether it aborted one.
    pub(super) fn admit(&mut self, from: IpAddr, most: usize, task: AbortHandle) -> bool {
        self.0.retain(|caller| !caller.task.is_finished());
        let is_full = self.0.len() >= most;
        if is_full {
            self.take_oldest().task.abort();
        }
        self.0.push(PendingHandshake { from, task });
        is_full
    }

    /// Removes the oldest initiator of the address that has the most.
    fn take_oldest(&mut self) -> PendingHandshake {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for caller in &self.0 {
            *counts.entry(caller.from).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or_default();
        let longest = self.0.iter().position(|caller| counts[&caller.from] == most);
        self.0.remove(longest.unwrap_or_default())
    }
}

/// Limit of unfinished handshakes, from this process's limit of descriptors.
pub(super) fn handshakes_max() -> usize {
    let share = usize::try_from(descriptors() / HANDSHAKES_SHARE).unwrap_or(usize::MAX);
    share.clamp(HANDSHAKES_MIN, HANDSHAKES_MAX)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

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

    #[tokio::test]
    async fn oldest_of_the_busiest_address_is_dropped() {
        let (mut handshakes, mut tasks) = (PendingHandshakes::default(), Vec::new());
        let ended = [B, A, A, A, A, B].map(|from| {
            let task = tokio::spawn(pending::<()>());
            let is_one_ended = handshakes.admit(from, 4, task.abort_handle());
            tasks.push(task);
            is_one_ended
        });
        assert_eq!(ended, [false, false, false, false, true, true]);
        for task in tasks.drain(1..3) {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        assert!(tasks.iter().all(|task| !task.is_finished()) && handshakes.0.len() == 4);
    }

    #[tokio::test]
    async fn finished_handshake_frees_its_place() {
        let mut handshakes = PendingHandshakes::default();
        for _ in 0..3 {
            let task = tokio::spawn(async {});
            assert!(!handshakes.admit(A, 1, task.abort_handle()));
            task.await.unwrap();
        }
    }
}

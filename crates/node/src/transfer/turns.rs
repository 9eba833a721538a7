//! Which transfer of a ring sends first to a node: the oldest partial sums, then younger ones, then
//! the result.
//!
//! All transfers of a ring to one node share its link. If each had an equal share, the oldest part
//! would be late at every seat, and the seats after it would have nothing to send meanwhile. The
//! kernel must hold little that is not sent yet: see [`super::congestion`].
//!
//! Does not know what is sent.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hoplite_proto::id::{NodeId, ObjectId};
use tokio::sync::Notify;

use crate::sync::{lock, until};

/// Bytes per second of the fastest link on which transfers take turns: 2.5 Gbit/s. Each stream is
/// encrypted on one core, and clouds limit each connection, from 5 Gbit/s on. Several streams fill
/// such links better than one.
pub(super) const TURNS_RATE_MAX: u64 = 2_500_000_000 / 8;

/// How long a transfer lets others go first, so that each one always makes some progress.
const PATIENCE: Duration = Duration::from_millis(100);

/// The transfers of rings from this node.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Whether each has bytes to send.
    have_bytes: Mutex<BTreeMap<Key, bool>>,
    changed: Notify,
    begun: AtomicU64,
}

/// The receiver, the result of the ring, and the place among the ring's transfers to the receiver.
type Key = (NodeId, ObjectId, (Kind, u64));

/// What is sent, first to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Partial,
    Result,
}

/// The place of a transfer, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    key: Key,
}

/// A transfer that has bytes to send, until this is dropped.
#[derive(Debug)]
pub(super) struct Taken<'a>(&'a Turn<'a>);

impl Turns {
    /// Adds a transfer after all others of its kind.
    pub(super) fn add(&self, to: NodeId, result: ObjectId, kind: Kind) -> Turn<'_> {
        let key = (to, result, (kind, self.begun.fetch_add(1, Ordering::Relaxed)));
        lock(&self.have_bytes).insert(key.clone(), false);
        Turn { turns: self, key }
    }

    fn is_first(&self, key: &Key) -> bool {
        let first = (key.0, key.1.clone(), (Kind::Partial, 0));
        lock(&self.have_bytes).range(&first..key).all(|(_, has_bytes)| !has_bytes)
    }

    fn set(&self, key: &Key, has_bytes: bool) {
        if let Some(of_this) = lock(&self.have_bytes).get_mut(key) {
            *of_this = has_bytes;
        }
        if !has_bytes {
            self.changed.notify_waiters();
        }
    }
}

impl Turn<'_> {
    /// Waits while transfers before this one have bytes to send, but not for long.
    pub(super) async fn take(&self) -> Taken<'_> {
        self.turns.set(&self.key, true);
        let taken = Taken(self);
        let first = until(&self.turns.changed, || self.turns.is_first(&self.key).then_some(()));
        let _ = tokio::time::timeout(PATIENCE, first).await;
        taken
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.turns.have_bytes).remove(&self.key);
        self.turns.changed.notify_waiters();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.turns.set(&self.0.key, false);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const PEER: NodeId = NodeId(1);

    fn sum(serial: u64) -> ObjectId {
        ObjectId::Minted { node: PEER, serial }
    }

    /// Whether a transfer may send at once.
    async fn is_first(turn: &Turn<'_>) -> bool {
        let begun = Instant::now();
        drop(turn.take().await);
        begun.elapsed() < PATIENCE
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_partial_sums_go_first_and_the_result_last() {
        let turns = Turns::default();
        let result = turns.add(PEER, sum(1), Kind::Result);
        let old = turns.add(PEER, sum(1), Kind::Partial);
        let young = turns.add(PEER, sum(1), Kind::Partial);
        assert!(is_first(&result).await, "the others have nothing to send");
        let sending = young.take().await;
        assert!(is_first(&old).await && !is_first(&result).await);
        drop(sending);
        let sending = old.take().await;
        assert!(!is_first(&young).await && !is_first(&result).await);
        drop(sending);
        assert!(is_first(&young).await && is_first(&result).await);
        let sending = result.take().await;
        assert!(is_first(&young).await);
        drop(sending);
        drop((young, old, result));
        assert!(lock(&turns.have_bytes).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn other_rings_and_receivers_do_not_wait() {
        let turns = Turns::default();
        let old = turns.add(PEER, sum(1), Kind::Partial);
        let _sending = old.take().await;
        for (to, result) in [(NodeId(2), sum(1)), (PEER, sum(2)), (PEER, sum(0))] {
            assert!(is_first(&turns.add(to, result, Kind::Partial)).await);
        }
        assert!(!is_first(&turns.add(PEER, sum(1), Kind::Partial)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_comes_when_the_transfer_before_ends() {
        let turns = Turns::default();
        let old = turns.add(PEER, sum(1), Kind::Partial);
        let sending = old.take().await;
        let young = turns.add(PEER, sum(1), Kind::Partial);
        let begun = Instant::now();
        tokio::join!(young.take(), async {
            tokio::time::sleep(PATIENCE / 2).await;
            drop(sending);
        });
        assert_eq!(begun.elapsed(), PATIENCE / 2);
    }
}

//! What an owner remembers of nodes from object to object: which are slow, and which are stalled.
//!
//! Does not know how that is found out.

use alloc::collections::BTreeMap;

use crate::{
    id::NodeId, members::Members, message::Receives, pace::REMEMBERED_NS, reduce::cost::Link,
    time::Instant,
};

/// How long a node counts as stalled that has said nothing since.
const STALLED_NS: u64 = 5_000_000_000;

/// What is seen within so long is one moment of a host, whichever receivers report it.
const APART_NS: u64 = 200_000_000;

/// What is remembered of nodes.
#[derive(Debug, Default)]
pub(super) struct Speeds {
    nodes: BTreeMap<NodeId, Speed>,
    /// Bytes per second that this owner itself is used to receive, once that was measured.
    pub(super) usual: Option<u64>,
}

#[derive(Debug, Default)]
struct Speed {
    /// How many times slower than others it received, and when that was found.
    down: Option<(u64, Instant)>,
    /// How many times less it sent to a receiver than that got elsewhere, and when that was found.
    up: Option<(u64, Instant)>,
    /// When it sent so little in the first moments of a transfer.
    doubted: Option<Instant>,
    /// When a receiver of it was stalled and it said nothing.
    stalled: Option<Instant>,
    /// Bytes per second that it says it is used to receive.
    usual: Option<u64>,
}

impl Speeds {
    /// A node has said something: it is not stalled.
    pub(super) fn heard(&mut self, from: NodeId) {
        if let Some(speed) = self.nodes.get_mut(&from) {
            speed.stalled = None;
        }
    }

    /// A node says how fast it receives.
    pub(super) fn says(&mut self, now: Instant, from: NodeId, receives: Receives) {
        let Receives { slowness, usual } = receives;
        if slowness > 1 {
            self.receives_slowly(now, from, slowness);
        } else {
            self.is_quick(from);
        }
        if usual.is_some() {
            self.nodes.entry(from).or_default().usual = usual;
        }
    }

    /// Bytes per second that a node, or this owner, is used to receive, if either was measured.
    pub(super) fn usual_of(&self, node: NodeId) -> Option<u64> {
        self.nodes.get(&node).and_then(|speed| speed.usual).max(self.usual)
    }

    /// The link as this owner knows it; where it has received nothing yet, as the asker does.
    pub(super) fn link_of(&self, asker: NodeId, link: Link) -> Link {
        match self.usual_of(asker).filter(|_| self.usual.is_none()) {
            Some(bytes_per_second) => Link { bytes_per_second, ..link },
            None => link,
        }
    }

    /// A node receives as fast as others.
    pub(super) fn is_quick(&mut self, node: NodeId) {
        if let Some(speed) = self.nodes.get_mut(&node) {
            speed.down = None;
        }
    }

    /// A node receives so many times slower than others.
    pub(super) fn receives_slowly(&mut self, now: Instant, node: NodeId, times: u64) {
        self.nodes.entry(node).or_default().down = Some((times, now));
    }

    /// A node sends so many times less to a receiver than that gets elsewhere. What was seen of the first moments of a transfer
    /// alone, at `begun`, counts when it is seen again in another one: a host may have been busy.
    pub(super) fn sends_slowly(
        &mut self,
        now: Instant,
        node: NodeId,
        times: u64,
        begun: Option<Instant>,
    ) {
        let speed = self.nodes.entry(node).or_default();
        if let Some(begun) = begun
            && remembered(now, speed.up).is_none()
        {
            let before = speed.doubted.filter(|before| now.since(*before) < REMEMBERED_NS);
            if before.is_none_or(|before| begun.since(before) < APART_NS) {
                speed.doubted = before.or(Some(begun));
                return;
            }
        }
        speed.up = Some((times, now));
    }

    /// A receiver of a node is stalled, and the node says nothing.
    pub(super) fn stalls(&mut self, now: Instant, node: NodeId) {
        self.nodes.entry(node).or_default().stalled = Some(now);
    }

    /// A member is gone.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    /// Of how many nodes that are no members something is remembered; for checkers.
    pub(super) fn strangers(&self, members: &Members) -> usize {
        self.nodes.keys().filter(|node| !members.contains(**node)).count()
    }

    /// Whether a receiver of a node was stalled a moment ago, and the node has said nothing since.
    pub(super) fn is_stalled(&self, now: Instant, node: NodeId) -> bool {
        let stalled = self.nodes.get(&node).and_then(|speed| speed.stalled);
        stalled.is_some_and(|at| now.since(at) < STALLED_NS)
    }

    /// How many times slower than others a node was found to receive, or says that it does; 1 if neither.
    pub(super) fn received_slowness(&self, now: Instant, node: NodeId) -> u64 {
        let speed = self.nodes.get(&node);
        speed.and_then(|speed| remembered(now, speed.down)).unwrap_or(1)
    }

    /// How many times slower than others a node was found to be; 1 if it was not.
    pub(super) fn slowness(&self, now: Instant, node: NodeId) -> u64 {
        let speed = self.nodes.get(&node);
        let found =
            speed.and_then(|speed| remembered(now, speed.up).max(remembered(now, speed.down)));
        found.unwrap_or(1)
    }
}

fn remembered(now: Instant, found: Option<(u64, Instant)>) -> Option<u64> {
    found.filter(|(_, at)| now.since(*at) < REMEMBERED_NS).map(|(times, _)| times)
}

//! What an owner remembers of nodes from object to object: which are slow, which are stalled, and until when each is busy with
//! the transfers that this owner has assigned to it.
//!
//! Each mark has a proof, a decay and a way back:
//!
//! | mark | proof | ends |
//! |---|---|---|
//! | receives slowly | a fair rate below a third of that of another branch, from a sender that is well | with its first report of a rate that is its share; after a minute |
//! | sends slowly | two such incidents, of receivers that had their share elsewhere | when a receiver has its share of it, or when it receives well again after having been slow; after 2 s, doubled up to a minute each time it proves to be slow again at once |
//! | stalled | a receiver has nothing for 300 ms, and the sender is silent | with its next message; after 5 s |
//!
//! Does not know how rates are measured.

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
    up: Option<SendsSlowly>,
    /// When it first sent slowly; once proves nothing, since every host is busy now and then.
    suspected: Option<Instant>,
    /// Incidents up to then were judged, or are void since it was well later.
    judged_until: Instant,
    /// When a receiver of it was stalled and it said nothing.
    stalled: Option<Instant>,
    /// Bytes per second that it says it is used to receive.
    usual: Option<u64>,
    /// Predicted end of the transfers that this owner has assigned to it as their source.
    busy_until: Instant,
}

/// That a node sends slowly.
#[derive(Clone, Copy, Debug)]
struct SendsSlowly {
    /// How many times less a receiver had of it than elsewhere.
    times: u64,
    until: Instant,
    /// For how long the mark counts, from when it was set.
    lasts_ns: u64,
}

impl Speed {
    /// The node sends well: what happened before proves nothing any more.
    const fn acquit(&mut self, now: Instant) {
        (self.up, self.suspected, self.judged_until) = (None, None, now);
    }
}

/// How long a node that sends slowly is left alone before it is tried again: at first, and at most.
const MARK_NS_MIN: u64 = 2_000_000_000;
const MARK_NS_MAX: u64 = REMEMBERED_NS;

/// How far ahead the transfers that a node was assigned count.
const BUSY_NS_MAX: u64 = 1_000_000_000;

/// Two incidents further apart than this prove nothing.
const SUSPECTED_NS: u64 = 10_000_000_000;

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
        } else if let Some(speed) = self.nodes.get_mut(&from) {
            // It may not know yet what was found, so this is no proof of how it sends.
            speed.down = None;
        }
        if usual.is_some() {
            self.nodes.entry(from).or_default().usual = usual;
        }
    }

    /// A node is the source of one more transfer, which takes its link for `transfer_ns`.
    pub(super) fn assigned(&mut self, now: Instant, source: NodeId, transfer_ns: u64) {
        let speed = self.nodes.entry(source).or_default();
        // Bounded: a wrong estimate of the link must not count for long.
        speed.busy_until = (speed.busy_until.max(now) + transfer_ns).min(now + BUSY_NS_MAX);
    }

    /// Predicted end of the transfers that this owner has assigned to a node; it sees those of its own objects only.
    pub(super) fn busy_until(&self, node: NodeId) -> Instant {
        self.nodes.get(&node).map_or_else(Instant::default, |speed| speed.busy_until)
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

    /// A node receives as fast as others. If it did not before, its link is well again in the other direction too.
    pub(super) fn is_quick(&mut self, now: Instant, node: NodeId) {
        if let Some(speed) = self.nodes.get_mut(&node)
            && speed.down.take().is_some()
        {
            speed.acquit(now);
        }
    }

    /// A receiver has its share of what a node sends.
    pub(super) fn sends_well(&mut self, now: Instant, node: NodeId) {
        if let Some(speed) = self.nodes.get_mut(&node) {
            speed.acquit(now);
        }
    }

    /// A node receives so many times slower than others.
    pub(super) fn receives_slowly(&mut self, now: Instant, node: NodeId, times: u64) {
        self.nodes.entry(node).or_default().down = Some((times, now));
    }

    /// A node sent so many times less to a receiver than that gets elsewhere, in an incident `at` some time.
    pub(super) fn sends_slowly(&mut self, now: Instant, node: NodeId, times: u64, at: Instant) {
        let speed = self.nodes.entry(node).or_default();
        if at <= speed.judged_until {
            return;
        }
        match &mut speed.up {
            // It was tried again, and proved to be slow again.
            Some(mark) if now < mark.until + mark.lasts_ns => {
                mark.lasts_ns = mark.lasts_ns.saturating_mul(2).min(MARK_NS_MAX);
                (mark.times, mark.until) = (times, now + mark.lasts_ns);
                speed.judged_until = mark.until;
            }
            _ => match speed.suspected.filter(|first| now.since(*first) < SUSPECTED_NS) {
                None => speed.suspected = Some(at),
                Some(first) if at.since(first) < APART_NS => {}
                Some(_) => {
                    let (until, lasts_ns) = (now + MARK_NS_MIN, MARK_NS_MIN);
                    speed.up = Some(SendsSlowly { times, until, lasts_ns });
                    (speed.suspected, speed.judged_until) = (None, until);
                }
            },
        }
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

    /// How many times slower than others a node was found to send; 1 if it was not.
    pub(super) fn sent_slowness(&self, now: Instant, node: NodeId) -> u64 {
        let mark = self.nodes.get(&node).and_then(|speed| speed.up);
        mark.filter(|mark| now < mark.until).map_or(1, |mark| mark.times)
    }
}

fn remembered(now: Instant, found: Option<(u64, Instant)>) -> Option<u64> {
    found.filter(|(_, at)| now.since(*at) < REMEMBERED_NS).map(|(times, _)| times)
}

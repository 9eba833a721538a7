//! What an owner remembers of nodes across objects: which are slow, which are stalled, and until
//! when each is busy with the transfers that this owner has assigned to it.
//!
//! Each mark needs evidence, and ends by recovery or by time:
//!
//! - **Receives slowly.** Evidence: a fair rate below a third of that of another branch, from a
//!   healthy source. Ends with the first report in which the node has its share, or after a minute.
//! - **Sends slowly.** Evidence: two incidents in which a receiver was at least three times slower
//!   than other branches, and got its share from another source afterwards. Ends when a receiver
//!   gets its share from the node, or when the node receives well again after having been slow.
//!   Otherwise it ends after 2 s, doubled up to a minute each time the node is slow again at once.
//! - **Stalled.** Evidence: a receiver gets nothing for 300 ms, and the source sends no message.
//!   Ends with the next message of the node, or after 5 s.
//!
//! Does not know how rates are measured.

use alloc::collections::BTreeMap;

use crate::{
    id::NodeId, members::Members, message::ReceiveRate, rate::REMEMBERED_NS, reduce::cost::Link,
    time::Instant,
};

/// How long a node counts as stalled that has sent no message since.
const STALLED_NS: u64 = 5_000_000_000;

/// Incidents within this time count as one, whichever receivers report them.
const APART_NS: u64 = 200_000_000;

/// Records about nodes.
#[derive(Debug, Default)]
pub(super) struct Speeds {
    nodes: BTreeMap<NodeId, Speed>,
    /// The rate at which this owner itself usually receives, in bytes per second, once it was
    /// measured.
    pub(super) usual: Option<u64>,
}

#[derive(Debug, Default)]
struct Speed {
    /// How many times slower than others it received, and when that was detected.
    down: Option<(u64, Instant)>,
    up: Option<SendsSlowly>,
    /// When it first sent slowly. One incident proves nothing, since every host is busy now and
    /// then.
    suspected: Option<Instant>,
    /// Incidents until then were judged, or are void because the node was healthy later.
    judged_until: Instant,
    /// When a receiver of it was stalled while it sent no message.
    stalled: Option<Instant>,
    /// The usual receive rate that it reports, in bytes per second.
    usual: Option<u64>,
    /// Predicted end of the transfers that this owner has assigned to it as their source.
    busy_until: Instant,
}

/// The mark of a node that sends slowly.
#[derive(Clone, Copy, Debug)]
struct SendsSlowly {
    /// How many times slower a receiver received from it than from another source.
    times: u64,
    until: Instant,
    /// How long the mark counts, from when it was set.
    lasts_ns: u64,
}

impl Speed {
    /// Clears the marks of a node that sends well; earlier incidents prove nothing any more.
    const fn acquit(&mut self, now: Instant) {
        (self.up, self.suspected, self.judged_until) = (None, None, now);
    }
}

/// How long a node that sends slowly is not used before it is tried again: at first, and at most.
const MARK_NS_MIN: u64 = 2_000_000_000;
const MARK_NS_MAX: u64 = REMEMBERED_NS;

/// The maximum time for which assigned transfers count.
const BUSY_NS_MAX: u64 = 1_000_000_000;

/// Two incidents further apart than this prove nothing.
const SUSPECTED_NS: u64 = 10_000_000_000;

impl Speeds {
    /// Records a message from a node: it is not stalled.
    pub(super) fn responded(&mut self, from: NodeId) {
        if let Some(speed) = self.nodes.get_mut(&from) {
            speed.stalled = None;
        }
    }

    /// Records how fast a node reports to receive.
    pub(super) fn rate_reported(&mut self, now: Instant, from: NodeId, receives: ReceiveRate) {
        let ReceiveRate { slowness, usual } = receives;
        if slowness > 1 {
            self.receives_slowly(now, from, slowness);
        } else if let Some(speed) = self.nodes.get_mut(&from) {
            // The node may not have received `Slow` yet, so this does not prove that it sends well.
            speed.down = None;
        }
        if usual.is_some() {
            self.nodes.entry(from).or_default().usual = usual;
        }
    }

    /// Records that a node is the source of one more transfer, which uses its link for
    /// `transfer_ns`.
    pub(super) fn assigned(&mut self, now: Instant, source: NodeId, transfer_ns: u64) {
        let speed = self.nodes.entry(source).or_default();
        // Bounded, so that a wrong estimate of the link does not count for long.
        speed.busy_until = (speed.busy_until.max(now) + transfer_ns).min(now + BUSY_NS_MAX);
    }

    /// Predicted end of the transfers that this owner has assigned to a node. Other owners'
    /// transfers are not known here.
    pub(super) fn busy_until(&self, node: NodeId) -> Instant {
        self.nodes.get(&node).map_or_else(Instant::default, |speed| speed.busy_until)
    }

    /// The rate at which a node, or this owner, usually receives, in bytes per second, if either
    /// was measured.
    pub(super) fn usual_of(&self, node: NodeId) -> Option<u64> {
        self.nodes.get(&node).and_then(|speed| speed.usual).max(self.usual)
    }

    /// The link as this owner measured it; if it has received nothing yet, as the requester reports
    /// it.
    pub(super) fn link_of(&self, requester: NodeId, link: Link) -> Link {
        match self.usual_of(requester).filter(|_| self.usual.is_none()) {
            Some(bytes_per_second) => Link { bytes_per_second, ..link },
            None => link,
        }
    }

    /// Records that a node receives as fast as others. If it was slow before, its link has
    /// recovered in both directions.
    pub(super) fn is_quick(&mut self, now: Instant, node: NodeId) {
        if let Some(speed) = self.nodes.get_mut(&node)
            && speed.down.take().is_some()
        {
            speed.acquit(now);
        }
    }

    /// Records that a receiver gets its share from a node.
    pub(super) fn sends_well(&mut self, now: Instant, node: NodeId) {
        if let Some(speed) = self.nodes.get_mut(&node) {
            speed.acquit(now);
        }
    }

    /// Records that a node receives `times` times slower than others.
    pub(super) fn receives_slowly(&mut self, now: Instant, node: NodeId, times: u64) {
        self.nodes.entry(node).or_default().down = Some((times, now));
    }

    /// Records that a node sent `times` times slower to a receiver than another source did, in an
    /// incident at the time `at`.
    pub(super) fn sends_slowly(&mut self, now: Instant, node: NodeId, times: u64, at: Instant) {
        let speed = self.nodes.entry(node).or_default();
        if at <= speed.judged_until {
            return;
        }
        match &mut speed.up {
            // It was tried again, and was slow again.
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

    /// Records that a receiver of a node is stalled while the node sends no message.
    pub(super) fn stalls(&mut self, now: Instant, node: NodeId) {
        self.nodes.entry(node).or_default().stalled = Some(now);
    }

    /// Removes a member that is gone.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    /// The number of nodes that have a record here but are not members; for checkers.
    pub(super) fn strangers(&self, members: &Members) -> usize {
        self.nodes.keys().filter(|node| !members.contains(**node)).count()
    }

    /// Whether a receiver of a node was stalled recently, and the node has sent no message since.
    pub(super) fn is_stalled(&self, now: Instant, node: NodeId) -> bool {
        let stalled = self.nodes.get(&node).and_then(|speed| speed.stalled);
        stalled.is_some_and(|at| now.since(at) < STALLED_NS)
    }

    /// How many times slower than others a node receives, as detected or reported; 1 if it is not
    /// slow.
    pub(super) fn received_slowness(&self, now: Instant, node: NodeId) -> u64 {
        let speed = self.nodes.get(&node);
        speed.and_then(|speed| remembered(now, speed.down)).unwrap_or(1)
    }

    /// How many times slower than others a node was found to send; 1 if it is not slow.
    pub(super) fn sent_slowness(&self, now: Instant, node: NodeId) -> u64 {
        let mark = self.nodes.get(&node).and_then(|speed| speed.up);
        mark.filter(|mark| now < mark.until).map_or(1, |mark| mark.times)
    }
}

fn remembered(now: Instant, found: Option<(u64, Instant)>) -> Option<u64> {
    found.filter(|(_, at)| now.since(*at) < REMEMBERED_NS).map(|(times, _)| times)
}

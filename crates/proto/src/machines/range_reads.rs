//! Range reads: rows or bytes of objects that arrive on this node for one client each, without the
//! rest.
//!
//! ```text
//!   Watching --> Admitting --> Locating --> Receiving --> (complete)
//!      ^                          |             |
//!      +--------- Backoff <-------+-------------+  no source, or it failed; the received blocks stay
//! ```
//! The bytes go to a private copy under a new instance. It is never announced, and removed when its
//! reader releases it. Does not know copies, members or owners' replies.

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use crate::{
    id::{Instance, NodeId, ObjectId, RequestId},
    limits::OWNER_TIMEOUT_NS,
    machines::pull_state::pause_ns,
    selection::Selection,
    time::Instant,
    timed::{Deadline, Timed},
};

/// All range reads of this node's clients.
#[derive(Debug, Default)]
pub(crate) struct RangeReads {
    all: Timed<RequestId, RangeRead>,
    by_copy: BTreeMap<Instance, RequestId>,
}

/// One request for a range.
#[derive(Debug)]
pub(crate) struct RangeRead {
    pub(crate) id: ObjectId,
    selection: Selection,
    pub(crate) phase: RangePhase,
    /// The private copy, once the object is known to exist.
    pub(crate) copy: Option<RangeCopy>,
    /// The owner that reported the object last.
    owner: Option<NodeId>,
    /// Sources that failed, to be used only if no other node has the object.
    avoid: Vec<NodeId>,
    /// When the owner got the last request for a source.
    requested_at: Instant,
    /// The last source, if it replied that it has no such copy, and when it was requested.
    not_here: Option<(NodeId, Instant)>,
    failures: u32,
}

/// The private copy of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeCopy {
    /// Its own instance.
    pub(crate) instance: Instance,
    /// The instance of the object, and the offset of the range in it.
    pub(crate) of: Instance,
    pub(crate) start: u64,
    pub(crate) size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangePhase {
    /// An owner reports when a complete copy exists.
    Watching,
    /// The copy waits for capacity or memory.
    Admitting,
    /// An owner chooses a source.
    Locating {
        until: Instant,
    },
    Receiving {
        source: NodeId,
    },
    Backoff {
        until: Instant,
    },
}

impl Deadline for RangeRead {
    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            RangePhase::Locating { until } | RangePhase::Backoff { until } => Some(until),
            RangePhase::Watching | RangePhase::Admitting | RangePhase::Receiving { .. } => None,
        }
    }
}

/// A request to an owner for a source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SourceQuery {
    pub(crate) owner: NodeId,
    pub(crate) id: ObjectId,
    pub(crate) copy: RangeCopy,
    pub(crate) avoid: Vec<NodeId>,
    pub(crate) not_here: Option<(NodeId, u64)>,
}

impl RangeReads {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.all.deadline()
    }

    pub(crate) fn get(&self, request: RequestId) -> Option<&RangeRead> {
        self.all.get(&request)
    }

    /// A request for a range of an object.
    pub(crate) fn request_for(&self, id: &ObjectId) -> Option<RequestId> {
        self.all.iter().find(|(_, read)| read.id == *id).map(|(request, _)| *request)
    }

    /// Whether an instance is the private copy of a range that still arrives.
    pub(crate) fn has_copy(&self, instance: Instance) -> bool {
        self.by_copy.contains_key(&instance)
    }

    /// The request for which a private copy arrives.
    pub(crate) fn request_of(&self, instance: Instance) -> Option<RequestId> {
        self.by_copy.get(&instance).copied()
    }

    /// Begins to wait for an object.
    pub(crate) fn begin(&mut self, request: RequestId, id: ObjectId, selection: Selection) {
        let read = RangeRead {
            id,
            selection,
            phase: RangePhase::Watching,
            copy: None,
            owner: None,
            avoid: Vec::new(),
            requested_at: Instant::default(),
            not_here: None,
            failures: 0,
        };
        self.all.insert(request, read);
    }

    /// Ends a range read.
    pub(crate) fn end(&mut self, request: RequestId) -> Option<RangeRead> {
        let read = self.all.remove(&request)?;
        if let Some(copy) = read.copy {
            self.by_copy.remove(&copy.instance);
        }
        Some(read)
    }

    /// Records which owner reported the object. Returns what the client wants, and the private copy
    /// if there is one; `None` if the request does not wait for the report.
    pub(crate) fn reported(
        &mut self,
        request: RequestId,
        owner: NodeId,
    ) -> Option<(Selection, Option<RangeCopy>)> {
        let wanted = self.all.update(&request, |read| {
            if read.phase != RangePhase::Watching {
                return None;
            }
            read.owner = Some(owner);
            Some((read.selection, read.copy))
        });
        wanted.flatten()
    }

    /// Drops the private copy of an earlier instance of the object.
    pub(crate) fn drop_copy(&mut self, request: RequestId) -> Option<Instance> {
        let copy = self.all.update(&request, |read| read.copy.take()).flatten()?;
        self.by_copy.remove(&copy.instance);
        Some(copy.instance)
    }

    /// Records that a private copy waits for capacity or memory.
    pub(crate) fn admit(&mut self, request: RequestId, copy: RangeCopy) {
        let is_known = self.all.update(&request, |read| {
            read.copy = Some(copy);
            read.phase = RangePhase::Admitting;
            // Other nodes have this instance.
            read.avoid.clear();
            read.not_here = None;
        });
        if is_known.is_some() {
            self.by_copy.insert(copy.instance, request);
        }
    }

    /// Begins to wait for an owner's choice of a source.
    pub(crate) fn begin_locate(&mut self, request: RequestId, now: Instant) -> Option<SourceQuery> {
        let query = self.all.update(&request, |read| {
            let (copy, owner) = read.copy.zip(read.owner)?;
            read.phase = RangePhase::Locating { until: now + OWNER_TIMEOUT_NS };
            let (id, avoid) = (read.id.clone(), read.avoid.clone());
            let not_here = read.not_here.take().map(|(node, at)| (node, now.since(at)));
            read.requested_at = now;
            Some(SourceQuery { owner, id, copy, avoid, not_here })
        });
        query.flatten()
    }

    /// The requests to an owner for a source.
    pub(crate) fn locating_at(&self, owner: NodeId) -> Vec<RequestId> {
        let is_there = |read: &RangeRead| {
            matches!(read.phase, RangePhase::Locating { .. }) && read.owner == Some(owner)
        };
        self.all.iter().filter(|(_, read)| is_there(read)).map(|(request, _)| *request).collect()
    }

    /// Begins to receive from a source. `None` if no request to an owner is open.
    pub(crate) fn receive(&mut self, request: RequestId, source: NodeId) -> Option<RangeCopy> {
        let copy = self.all.update(&request, |read| {
            let RangePhase::Locating { .. } = read.phase else { return None };
            read.phase = RangePhase::Receiving { source };
            read.copy
        });
        copy.flatten()
    }

    /// Pauses a range read without a source.
    pub(crate) fn pause(&mut self, request: RequestId, now: Instant) {
        self.all.update(&request, |read| {
            if let RangePhase::Locating { .. } = read.phase {
                read.pause(now);
            }
        });
    }

    /// Records that a source failed. Returns whether it is the first failure; `None` if nothing
    /// arrives from it.
    pub(crate) fn failed(
        &mut self,
        request: RequestId,
        source: NodeId,
        not_here: bool,
        now: Instant,
    ) -> Option<bool> {
        let is_first = self.all.update(&request, |read| {
            if read.phase != (RangePhase::Receiving { source }) {
                return None;
            }
            if !read.avoid.contains(&source) {
                read.avoid.push(source);
            }
            read.not_here = not_here.then_some((source, read.requested_at));
            read.pause(now);
            Some(read.failures == 1)
        });
        is_first.flatten()
    }

    /// The private copies that arrive from a node.
    pub(crate) fn received_from(&self, node: NodeId) -> Vec<Instance> {
        let from = |read: &&RangeRead| read.phase == RangePhase::Receiving { source: node };
        let copies = self.all.values().filter(from).filter_map(|read| read.copy);
        copies.map(|copy| copy.instance).collect()
    }

    /// The next request that is due. It watches the object again.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<(RequestId, ObjectId)> {
        let request = self.all.due(now).into_iter().next()?;
        let id = self.all.update(&request, |read| {
            read.phase = RangePhase::Watching;
            read.id.clone()
        })?;
        Some((request, id))
    }

    /// Describes the progress in words; `None` while only the existence of the object is not known.
    pub(crate) fn state(&self, request: RequestId) -> Option<String> {
        let read = self.all.get(&request)?;
        match read.phase {
            RangePhase::Watching if read.failures == 0 => None,
            RangePhase::Admitting => Some("it waits for capacity on this node".into()),
            RangePhase::Locating { .. } => Some("its owner has not chosen a source yet".into()),
            RangePhase::Receiving { source } => Some(format!("it is arriving from node {source}")),
            RangePhase::Watching | RangePhase::Backoff { .. } => {
                Some(format!("{} attempts to receive it have failed", read.failures))
            }
        }
    }
}

impl RangeRead {
    fn pause(&mut self, now: Instant) {
        self.failures += 1;
        self.phase = RangePhase::Backoff { until: now + pause_ns(self.failures) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(1_000_000_000);
    const REQUEST: RequestId = RequestId(7);

    fn copy() -> RangeCopy {
        let (instance, of) =
            (Instance { node: NodeId(1), serial: 5 }, Instance { node: NodeId(2), serial: 1 });
        RangeCopy { instance, of, start: 100, size: 50 }
    }

    /// A range read with a private copy in memory.
    fn reads() -> RangeReads {
        let mut reads = RangeReads::default();
        let id = ObjectId::Minted { node: NodeId(2), serial: 1 };
        reads.begin(REQUEST, id, Selection::default());
        assert_eq!(reads.reported(REQUEST, NodeId(2)), Some((Selection::default(), None)));
        reads.admit(REQUEST, copy());
        reads
    }

    #[test]
    fn a_failed_source_is_avoided_and_retries_back_off() {
        let mut reads = reads();
        let mut now = NOW;
        for failures in 1..4 {
            let query = reads.begin_locate(REQUEST, now).expect("it has a copy");
            assert_eq!(query.avoid.len(), usize::from(failures > 1));
            let waited_ns = if failures > 1 { pause_ns(failures - 1) } else { 0 };
            assert_eq!(query.not_here, (failures > 1).then_some((NodeId(3), waited_ns)));
            assert_eq!(reads.receive(REQUEST, NodeId(3)), Some(copy()));
            assert_eq!(reads.received_from(NodeId(3)), [copy().instance]);
            assert_eq!(reads.failed(REQUEST, NodeId(4), true, now), None, "another source");
            assert_eq!(reads.failed(REQUEST, NodeId(3), true, now), Some(failures == 1));
            let until = reads.deadline().expect("it pauses");
            assert_eq!(until, now + pause_ns(failures));
            now = until;
        }
        assert_eq!(reads.next_due(now).map(|(request, _)| request), Some(REQUEST));
        assert_eq!((reads.next_due(now), reads.deadline()), (None, None));
    }

    #[test]
    fn a_late_reply_of_an_owner_has_no_effect() {
        let mut reads = reads();
        assert_eq!(reads.receive(REQUEST, NodeId(3)), None, "no request is open");
        reads.begin_locate(REQUEST, NOW).expect("it has a copy");
        reads.next_due(NOW + OWNER_TIMEOUT_NS).expect("the owner did not reply");
        assert_eq!(reads.receive(REQUEST, NodeId(3)), None);
        reads.pause(REQUEST, NOW);
        assert_eq!(reads.deadline(), None, "it watches the object");
    }

    #[test]
    fn the_owner_that_reported_last_chooses_the_source() {
        let mut reads = reads();
        let mut owners = Vec::new();
        for owner in [NodeId(3), NodeId(4)] {
            owners.extend(reads.begin_locate(REQUEST, NOW).map(|query| query.owner));
            assert_eq!(reads.reported(REQUEST, owner), None, "it does not wait for a report");
            reads.next_due(NOW + OWNER_TIMEOUT_NS).expect("the owner did not reply");
            assert_eq!(reads.reported(REQUEST, owner), Some((Selection::default(), Some(copy()))));
        }
        assert_eq!(owners, [NodeId(2), NodeId(3)]);
    }

    #[test]
    fn nothing_is_left_of_an_ended_request() {
        let mut reads = reads();
        assert_eq!(reads.request_of(copy().instance), Some(REQUEST));
        reads.begin_locate(REQUEST, NOW).expect("it has a copy");
        assert_eq!(reads.end(REQUEST).and_then(|read| read.copy), Some(copy()));
        assert!(!reads.has_copy(copy().instance));
        assert_eq!((reads.len(), reads.deadline()), (0, None));
    }
}

//! One arrival: why it comes, how far it is, who sends it, and who has failed.
//!
//! ```text
//!   a whole object:              Locating --> Admitting --> Receiving --> (complete)
//!   a range:    Watching --> Admitting --> Locating --> Receiving --> (complete)
//!   parts of a ring result:                   Admitting --> Receiving --> (complete)
//!
//!   no source, or it failed (blocks stay):
//!     Receiving, Locating --> Backoff --> Locating, or Watching for a range
//!   the object arrived with the wrong digest (it needs other memory):
//!     Receiving --> Admitting --> Backoff
//! ```
//! Does not know copies or other arrivals.

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use super::parts::Parts;
use crate::{
    id::{FetchId, Instance, NodeId, ObjectId, RequestId},
    mutants::{self, Mutant},
    rate::RateMeter,
    selection::Selection,
    time::Instant,
    timed::Deadline,
};

/// Something that arrives on this node, in one copy.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) id: ObjectId,
    pub(crate) purpose: Purpose,
    pub(crate) phase: Phase,
    /// The copy that it fills, once its instance is known.
    pub(crate) copy: Option<Instance>,
    /// The source that an owner chose last. With one, a deletion ends the arrival, and the owners
    /// list this node as a receiver. Otherwise the arrival waits for the next put of the name.
    pub(crate) located_at: Option<NodeId>,
    /// The sources of the running transfers.
    pub(super) fetches: BTreeMap<FetchId, NodeId>,
    /// Sources that failed, or sent nothing of a range, to be used only if no other node has it.
    pub(super) avoid: Vec<NodeId>,
    /// When an owner got the last request for a source.
    requested_at: Instant,
    /// The last source, if it replied that it has no such copy, and when it was requested.
    not_here: Option<(NodeId, Instant)>,
    failures: u32,
    /// Sources from which it arrived with the wrong digest.
    corrupt: Vec<NodeId>,
    /// Transfers that have written to its memory so far.
    transfers: u32,
    /// How often it arrived with the wrong digest from several sources.
    mixed: u32,
}

/// Why something arrives.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// The object is for all readers of this node, and for the receivers behind it.
    Whole,
    /// Rows or bytes of the object are for one client, in a private copy under its own instance.
    Range(RangeRead),
    /// The object is the result of a ring reduce: this node folds some parts of it and fetches the
    /// others.
    Parts(Parts),
}

/// A request of a client for a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeRead {
    pub(crate) request: RequestId,
    pub(crate) selection: Selection,
    /// The owner that reported the object last.
    pub(crate) owner: Option<NodeId>,
    /// Where the range is, once the object is known to exist.
    pub(crate) at: Option<RangePlace>,
}

/// The place of a range in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangePlace {
    pub(crate) of: Instance,
    pub(crate) start: u64,
    pub(crate) size: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// An owner reports when a complete copy exists.
    Watching,
    /// An owner chooses a source.
    Locating,
    /// The copy waits for capacity or memory. Then it is fetched from `source`, or a source is
    /// located.
    Admitting {
        source: Option<NodeId>,
    },
    Receiving {
        /// Measures the transfer of a whole object, whose owner gets reports, or of a range, which
        /// gets another source if nothing arrives. `None` while the transfer waits for its turn.
        meter: Option<RateMeter>,
        /// Bytes that are still missing, according to the shell.
        missing: u64,
        /// The usual receive rate of this node before the transfer, in bytes per second: a slow
        /// transfer lowers the usual rate.
        usual: Option<u64>,
    },
    Backoff {
        until: Instant,
    },
}

impl Deadline for Arrival {
    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Backoff { until } => Some(until),
            Phase::Receiving { ref meter, .. } => meter.as_ref().map(RateMeter::deadline),
            Phase::Watching | Phase::Locating | Phase::Admitting { .. } => None,
        }
    }
}

/// Who sent an object that arrived with the wrong digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigestMismatch {
    /// A single source, which is avoided now.
    One,
    /// Several sources: it is not known which one is corrupt, so none is avoided.
    Several,
    /// Each of the holders, one after the other.
    All,
}

/// How often an object from several sources is fetched again before the last one counts as corrupt.
const MIXED_MAX: u32 = 3;

/// How long to wait after a failure: 40 ms, doubled each time up to 1.28 s. By then the directory
/// has removed a source that is lost.
pub(super) fn pause_ns(failures: u32) -> u64 {
    20_000_000 << failures.min(6)
}

impl Arrival {
    pub(super) const fn new(id: ObjectId, purpose: Purpose, phase: Phase) -> Self {
        let located_at = match phase {
            Phase::Admitting { source } => source,
            _ => None,
        };
        Self {
            id,
            located_at,
            purpose,
            phase,
            copy: None,
            fetches: BTreeMap::new(),
            avoid: Vec::new(),
            requested_at: Instant(0),
            not_here: None,
            failures: 0,
            corrupt: Vec::new(),
            transfers: 0,
            mixed: 0,
        }
    }

    pub(crate) const fn is_whole(&self) -> bool {
        matches!(self.purpose, Purpose::Whole)
    }

    pub(crate) const fn is_parts(&self) -> bool {
        matches!(self.purpose, Purpose::Parts(_))
    }

    pub(crate) const fn range(&self) -> Option<&RangeRead> {
        match &self.purpose {
            Purpose::Range(range) => Some(range),
            Purpose::Whole | Purpose::Parts(_) => None,
        }
    }

    pub(crate) const fn is_locating(&self) -> bool {
        matches!(self.phase, Phase::Locating)
    }

    pub(crate) const fn is_receiving(&self) -> bool {
        matches!(self.phase, Phase::Receiving { .. })
    }

    /// The instance that waits for capacity or memory.
    pub(crate) fn awaited(&self) -> Option<Instance> {
        self.copy.filter(|_| matches!(self.phase, Phase::Admitting { .. }))
    }

    /// The source of the running transfer, or of a transfer that waits for memory.
    pub(crate) fn source(&self) -> Option<NodeId> {
        match self.phase {
            Phase::Admitting { source } => source,
            _ => self.fetches.values().next().copied(),
        }
    }

    /// Whether everything has arrived that was to be fetched.
    pub(crate) fn is_fetched(&self) -> bool {
        self.is_receiving() && self.fetches.is_empty()
    }

    /// Records that an owner gets a request for a source. Returns the last source that had no such
    /// copy, and when it was requested.
    pub(crate) fn locate(&mut self, now: Instant) -> Option<(NodeId, Instant)> {
        self.phase = Phase::Locating;
        self.requested_at = now;
        self.not_here.take()
    }

    /// Records which owner reported the object of a range. Returns the range, if it waits for the
    /// report.
    pub(crate) fn reported(&mut self, owner: NodeId) -> Option<RangeRead> {
        let Purpose::Range(range) = &mut self.purpose else { return None };
        if self.phase != Phase::Watching {
            return None;
        }
        range.owner = Some(owner);
        Some(*range)
    }

    /// Records where a range is in its object.
    pub(crate) fn set_place(&mut self, place: RangePlace) {
        if let Purpose::Range(range) = &mut self.purpose {
            range.at = Some(place);
        }
    }

    /// Begins a transfer of an object of `size` bytes, of which another source may have sent a
    /// part. `usual` is the usual receive rate of this node, in bytes per second.
    pub(super) fn receive(&mut self, size: u64, usual: Option<u64>, now: Instant) {
        let (missing, usual) = match self.phase {
            Phase::Receiving { missing, usual, .. } => (missing, usual),
            _ => (size, usual),
        };
        let meter = (!self.is_parts()).then(|| RateMeter::new(now));
        self.phase = Phase::Receiving { meter, missing, usual };
        self.transfers += 1;
    }

    /// Records that an owner has no better source.
    pub(crate) fn sender_confirmed(&mut self) {
        if let Phase::Receiving { meter: Some(meter), .. } = &mut self.phase {
            meter.answered();
        }
    }

    /// Pauses after a failed source, or an offered source that cannot be used now: the owner gets
    /// another request later.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.failures += 1;
        self.phase = Phase::Backoff { until: now + pause_ns(self.failures) };
    }

    /// Records that another source is to be preferred.
    pub(crate) fn avoid(&mut self, source: NodeId) {
        if !self.avoid.contains(&source) {
            self.avoid.push(source);
        }
    }

    /// Records that a source failed. Returns whether it is the first failure.
    pub(crate) fn failed(&mut self, source: NodeId, not_here: bool, now: Instant) -> bool {
        self.avoid(source);
        self.not_here = not_here.then_some((source, self.requested_at));
        self.pause(now);
        self.failures == 1
    }

    /// Begins to fill another instance, which other nodes have.
    pub(super) fn forget_sources(&mut self) {
        self.avoid.clear();
        self.not_here = None;
    }

    /// Handles an object that arrived complete with the wrong digest, and whose last source is
    /// `source`. If the same happened with that source before, all other holders were tried,
    /// because the owner chooses an avoided source last.
    pub(crate) fn mismatched(&mut self, source: NodeId) -> DigestMismatch {
        if self.is_receiving() {
            self.phase = Phase::Admitting { source: None };
        }
        if core::mem::take(&mut self.transfers) > 1 && self.mixed < MIXED_MAX {
            self.mixed += 1;
            return DigestMismatch::Several;
        }
        if self.corrupt.contains(&source) {
            return DigestMismatch::All;
        }
        self.corrupt.push(source);
        if mutants::is_active(Mutant::GivesUpAfterOneCorruptCopy) {
            return DigestMismatch::All;
        }
        // A source that only failed is tried again before one that sent a corrupt copy.
        self.avoid.clone_from(&self.corrupt);
        DigestMismatch::One
    }

    /// Sources from which it arrived with the wrong digest.
    pub(crate) fn corrupt_senders(&self) -> Vec<NodeId> {
        self.corrupt.clone()
    }

    /// Describes the progress in words; `None` while only the existence of the object is not known.
    /// `silent` is the owner that has not answered the request for a source.
    pub(crate) fn state(&self, silent: Option<NodeId>) -> Option<String> {
        let state = match (&self.phase, self.source()) {
            (Phase::Watching, _) if self.failures == 0 => return None,
            (Phase::Locating, _) if self.range().is_some() => {
                "its owner has not chosen a source yet".into()
            }
            (Phase::Locating, _) => format!("its owner, node {}, has not replied yet", silent?),
            // The store reports how much capacity is missing; this text applies to any position in
            // the queue.
            (Phase::Admitting { .. }, _) => "it waits for capacity on this node".into(),
            (Phase::Receiving { .. }, Some(source)) => format!("it is arriving from node {source}"),
            (Phase::Receiving { .. }, None) => "it is arriving".into(),
            (Phase::Watching | Phase::Backoff { .. }, _) => {
                format!("{} attempts to receive it have failed", self.failures)
            }
        };
        Some(state)
    }
}

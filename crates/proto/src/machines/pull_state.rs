//! One object in transfer to this node, and its phase.
//!
//! ```text
//!   Locating --> Located --> Receiving --> (complete)
//!      ^            ^            |
//!      |            +------------+  it arrived complete with the wrong digest: it is fetched again
//!      +-------- Backoff <-------+  the source failed; the received blocks stay
//! ```
//! Does not know which object it is, nor other pulls.

use alloc::{format, string::String, vec::Vec};

use crate::{
    id::{Instance, NodeId},
    mutants::{self, Mutant},
    rate::RateMeter,
    time::Instant,
    timed::Deadline,
};

/// An object in transfer to this node.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) phase: PullPhase,
    /// Sources that failed, to be used only if no other node has it.
    pub(crate) avoid: Vec<NodeId>,
    pub(crate) not_here: Option<(NodeId, Instance)>,
    /// Whether it was located. If so, a deletion ends the pull; otherwise the pull waits for the
    /// next put of the name.
    pub(crate) seen: bool,
    pub(crate) failures: u32,
    /// Sources from which it arrived with the wrong digest.
    pub(crate) corrupt: Vec<NodeId>,
    /// Transfers that have written to its memory so far.
    transfers: u32,
    /// How often it arrived with the wrong digest from several sources.
    mixed: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PullPhase {
    /// `backup_at`: when the backup owner gets the request too; `None` once the primary owner has
    /// acknowledged it.
    Locating {
        backup_at: Option<Instant>,
    },
    /// This instance waits for capacity or memory, or its owner has sent its bytes.
    Located(Instance),
    Receiving {
        instance: Instance,
        meter: RateMeter,
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

/// Why a pull is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PullTimeout {
    /// The primary owner has not replied: the backup owner gets the request.
    Reply,
    /// Another request for a source is due.
    Backoff,
    /// Nothing has arrived for a while.
    Stalled,
}

impl Deadline for Pull {
    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            PullPhase::Locating { backup_at } => backup_at,
            PullPhase::Backoff { until } => Some(until),
            PullPhase::Receiving { ref meter, .. } => Some(meter.deadline()),
            PullPhase::Located(_) => None,
        }
    }
}

impl Pull {
    pub(crate) const fn new(phase: PullPhase) -> Self {
        Self {
            avoid: Vec::new(),
            not_here: None,
            seen: !matches!(phase, PullPhase::Locating { .. }),
            phase,
            failures: 0,
            corrupt: Vec::new(),
            transfers: 0,
            mixed: 0,
        }
    }

    /// Begins a transfer of an object of `size` bytes, of which another source may have sent a
    /// part. `usual` is the usual receive rate of this node, in bytes per second.
    pub(crate) fn receive(
        &mut self,
        instance: Instance,
        size: u64,
        usual: Option<u64>,
        now: Instant,
    ) {
        let (missing, usual) = match self.phase {
            PullPhase::Receiving { missing, usual, .. } => (missing, usual),
            _ => (size, usual),
        };
        self.phase = PullPhase::Receiving { instance, meter: RateMeter::new(now), missing, usual };
        self.transfers += 1;
    }

    /// Handles an object that arrived complete with the wrong digest, and whose last source is
    /// `source`. If the same happened with that source before, all other holders were tried,
    /// because the owner chooses an avoided source last.
    pub(crate) fn mismatched(&mut self, source: NodeId) -> DigestMismatch {
        if let PullPhase::Receiving { instance, .. } = self.phase {
            self.phase = PullPhase::Located(instance);
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

    /// Pauses after a failed source, or an offered source that cannot be used now: the owner gets
    /// another request later.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.failures += 1;
        self.phase = PullPhase::Backoff { until: now + pause_ns(self.failures) };
    }

    /// Describes the progress in words.
    pub(crate) fn state(&self, owner: NodeId) -> String {
        match &self.phase {
            PullPhase::Locating { backup_at: Some(_) } => {
                format!("its owner, node {owner}, has not replied yet")
            }
            PullPhase::Locating { backup_at: None } => "no client has put it".into(),
            // The store reports how much capacity is missing; this text applies to any position in
            // the queue.
            PullPhase::Located(_) => "it waits for capacity on this node".into(),
            PullPhase::Receiving { .. } => "it is arriving".into(),
            PullPhase::Backoff { .. } => {
                format!("{} attempts to receive it have failed", self.failures)
            }
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
pub(crate) fn pause_ns(failures: u32) -> u64 {
    20_000_000 << failures.min(6)
}

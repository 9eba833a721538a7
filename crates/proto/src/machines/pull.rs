//! One object on its way to this node: how far it is.
//!
//! ```text
//!   Asking --> Located --> Receiving --> (complete)
//!     ^           ^            |
//!     |           +------------+  all of it arrived with another digest: it is fetched anew
//!     +-------- Pause <--------+  the sender failed; what has arrived stays
//! ```
//! Does not know which object it is, nor other pulls.

use alloc::{format, string::String, vec::Vec};

use crate::{
    id::{Instance, NodeId},
    pace::Pace,
    time::Instant,
    timed::Deadline,
};

/// One object on its way to this node.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) phase: Phase,
    /// Senders that failed, to be taken only if no other node has it.
    pub(crate) avoid: Vec<NodeId>,
    pub(crate) not_here: Option<(NodeId, Instance)>,
    /// Whether it was located: a deletion then ends the pull, which otherwise waits for the next put of the name.
    pub(crate) seen: bool,
    pub(crate) failures: u32,
    /// Senders from which it arrived with another digest.
    pub(crate) corrupt: Vec<NodeId>,
    /// Transfers that have filled its memory so far.
    transfers: u32,
    /// How often it arrived with another digest from several senders.
    mixed: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// `second_at`: when the second owner is asked too; none once the first has acknowledged.
    Asking {
        second_at: Option<Instant>,
    },
    /// This instance waits for room or memory, or its owner has sent its bytes.
    Located(Instance),
    Receiving {
        instance: Instance,
        pace: Pace,
        /// Bytes that are still to come, as far as the shell has said.
        missing: u64,
        /// Bytes per second that this node was used to receive before it: a slow transfer changes what it is used to.
        usual: Option<u64>,
    },
    Pause {
        until: Instant,
    },
}

/// What is due of a pull.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// The first owner has not answered: the second is to be asked.
    Answer,
    /// A sender is to be sought anew.
    Pause,
    /// No byte has come for a while.
    Bytes,
}

impl Deadline for Pull {
    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Asking { second_at } => second_at,
            Phase::Pause { until } => Some(until),
            Phase::Receiving { ref pace, .. } => Some(pace.deadline()),
            Phase::Located(_) => None,
        }
    }
}

impl Pull {
    pub(crate) const fn new(phase: Phase) -> Self {
        Self {
            avoid: Vec::new(),
            not_here: None,
            seen: !matches!(phase, Phase::Asking { .. }),
            phase,
            failures: 0,
            corrupt: Vec::new(),
            transfers: 0,
            mixed: 0,
        }
    }

    /// A transfer of an object of `size` bytes begins, perhaps of what another sender has sent a part of. This node is used to
    /// receive `usual` bytes per second.
    pub(crate) fn receive(
        &mut self,
        instance: Instance,
        size: u64,
        usual: Option<u64>,
        now: Instant,
    ) {
        let (missing, usual) = match self.phase {
            Phase::Receiving { missing, usual, .. } => (missing, usual),
            _ => (size, usual),
        };
        self.phase = Phase::Receiving { instance, pace: Pace::new(now), missing, usual };
        self.transfers += 1;
    }

    /// All of it arrived with another digest, from `source` at last: what follows. If the same happened with that source
    /// before, every other holder was tried, since the owner names an avoided sender last.
    pub(crate) fn mismatched(&mut self, source: NodeId) -> Mismatch {
        if let Phase::Receiving { instance, .. } = self.phase {
            self.phase = Phase::Located(instance);
        }
        if core::mem::take(&mut self.transfers) > 1 && self.mixed < MIXED_MAX {
            self.mixed += 1;
            return Mismatch::Several;
        }
        if self.corrupt.contains(&source) {
            return Mismatch::All;
        }
        self.corrupt.push(source);
        // A sender that only failed is asked again before one that sent a corrupt copy.
        self.avoid.clone_from(&self.corrupt);
        Mismatch::One
    }

    /// A sender failed, or what an owner offers can't be received now: the owner is asked again later.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.failures += 1;
        self.phase = Phase::Pause { until: now + pause_ns(self.failures) };
    }

    /// How far it is, in words.
    pub(crate) fn state(&self, owner: NodeId) -> String {
        match &self.phase {
            Phase::Asking { second_at: Some(_) } => {
                format!("its owner, node {owner}, has not answered yet")
            }
            Phase::Asking { second_at: None } => "no client has put it".into(),
            // The store says how much it lacks; this is what is true of a place in the queue.
            Phase::Located(_) => "it waits for room here".into(),
            Phase::Receiving { .. } => "it is arriving".into(),
            Phase::Pause { .. } => format!("{} senders of it have failed", self.failures),
        }
    }
}

/// An object arrived with another digest than its maker announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// From one sender, which is avoided now.
    One,
    /// Parts came from several senders, and it is not known whose is corrupt: none is avoided.
    Several,
    /// From each holder that there is.
    All,
}

/// How often an object is fetched anew that came from several senders, until the last of them counts as corrupt.
const MIXED_MAX: u32 = 3;

/// How long to wait after a sender has failed: 40 ms, doubled each time up to 1.28 s. A sender that is lost is out of
/// the directory by then.
fn pause_ns(failures: u32) -> u64 {
    20_000_000 << failures.min(6)
}

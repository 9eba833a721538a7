//! One object on its way to this node: how far it is.
//!
//! ```text
//!   Asking --> Room --> Memory --> Receiving --> (complete)
//!     ^                                |
//!     +----------- Pause <-------------+  the sender failed; what has arrived stays
//!                              Memory <-+  all of it came, and is not what its maker announced: it is sought anew
//! ```
//! Does not know which object it is, nor other pulls.

use alloc::{boxed::Box, format, string::String, vec::Vec};

use crate::{
    id::{Instance, NodeId, ServeId},
    lifetime::Terms,
    meta::Meta,
    pace::Pace,
    time::Instant,
    timed::Deadline,
};

/// One object on its way to this node.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) phase: Phase,
    /// Senders that failed, to be taken only if no other node has it.
    pub(super) avoid: Vec<NodeId>,
    pub(super) not_here: Option<(NodeId, Instance)>,
    /// Whether it was located: a deletion then ends the pull, which otherwise waits for the next put of the name.
    pub(super) seen: bool,
    pub(super) failures: u32,
    pub(super) parked: Vec<Parked>,
    /// Who has sent what is here of it, or was asked to.
    senders: Vec<NodeId>,
    /// How often it came from several senders and was not what its maker announced.
    mixed: u32,
    /// Who has sent other bytes than its maker announced.
    pub(super) liars: Vec<NodeId>,
}

/// A receiver that was sent here before the first byte was, and what it is to have.
pub(super) type Parked = (ServeId, Instance);

/// Where an object was located.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) instance: Instance,
    pub(super) meta: Meta,
    pub(super) source: NodeId,
    /// Whether there was no room for it at once.
    pub(super) has_waited: bool,
    /// How long it lives, if not until it is deleted.
    pub(super) terms: Option<Box<Terms>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// `second_at`: when the second owner is asked too; none once the first has acknowledged.
    Asking {
        second_at: Option<Instant>,
    },
    /// Until there is room, no receiver is sent here.
    Room(Place),
    Memory,
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
pub(super) enum Overdue {
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
            Phase::Room(_) | Phase::Memory => None,
        }
    }
}

impl Pull {
    pub(super) const fn new(phase: Phase) -> Self {
        Self {
            avoid: Vec::new(),
            not_here: None,
            seen: !matches!(phase, Phase::Asking { .. }),
            phase,
            failures: 0,
            parked: Vec::new(),
            senders: Vec::new(),
            mixed: 0,
            liars: Vec::new(),
        }
    }

    /// A transfer of an object of `size` bytes begins, perhaps of what another sender has sent a part of. This node is used to
    /// receive `usual` bytes per second.
    pub(super) fn receive(
        &mut self,
        instance: Instance,
        source: NodeId,
        size: u64,
        usual: Option<u64>,
        now: Instant,
    ) {
        let (missing, usual) = match self.phase {
            Phase::Receiving { missing, usual, .. } => (missing, usual),
            _ => (size, usual),
        };
        self.phase = Phase::Receiving { instance, pace: Pace::new(now), missing, usual };
        if !self.senders.contains(&source) {
            self.senders.push(source);
        }
    }

    /// All of it has come, and is void, so that it needs memory again: who is known to have sent other bytes. Of several
    /// senders it is not known which one has: from then on it comes from one at a time, as far as there is one that sends
    /// all of it.
    pub(super) fn differed(&mut self) -> Vec<NodeId> {
        let senders = core::mem::take(&mut self.senders);
        self.phase = Phase::Memory;
        if senders.len() > 1 && self.mixed < MIXED_MAX {
            self.mixed += 1;
            return Vec::new();
        }
        // Those that failed before go before those that have lied.
        self.avoid.clone_from(&self.liars);
        senders.iter().for_each(|sender| self.lied(*sender));
        senders
    }

    /// A node has sent other bytes than the maker announced.
    pub(super) fn lied(&mut self, node: NodeId) {
        for told in [&mut self.liars, &mut self.avoid] {
            if !told.contains(&node) {
                told.push(node);
            }
        }
    }

    /// Whether it is to come from one sender, so that it is known who lies.
    pub(super) const fn keeps_to_one(&self) -> bool {
        self.mixed > 0
    }

    /// A sender failed, or what an owner offers can't be received now: the owner is asked again later.
    pub(super) fn pause(&mut self, now: Instant) {
        self.failures += 1;
        self.phase = Phase::Pause { until: now + pause_ns(self.failures) };
    }

    /// How far it is, in words.
    pub(super) fn state(&self, owner: NodeId) -> String {
        match &self.phase {
            Phase::Asking { second_at: Some(_) } => {
                format!("its owner, node {owner}, has not answered yet")
            }
            Phase::Asking { second_at: None } => "no client has put it".into(),
            // The store says how much it lacks; this is what is true of a place in the queue.
            Phase::Room(_) => "it waits for room here".into(),
            Phase::Memory => "memory is being made ready for it".into(),
            Phase::Receiving { .. } => "it is arriving".into(),
            Phase::Pause { .. } => format!("{} senders of it have failed", self.failures),
        }
    }
}

/// How often an object may be void that came from several senders, until each of them counts as one that lies.
const MIXED_MAX: u32 = 2;

/// How long to wait after a sender has failed: 40 ms, doubled each time up to 1.28 s. A sender that is lost is out of
/// the directory by then.
fn pause_ns(failures: u32) -> u64 {
    20_000_000 << failures.min(6)
}

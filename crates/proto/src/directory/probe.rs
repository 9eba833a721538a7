//! The record of a comparison of two receivers ([`super::compare`]).

use crate::{id::NodeId, time::Instant};

/// How long to wait for the reports of a comparison.
const WAIT_NS: u64 = 1_000_000_000;

/// The last comparison of an object.
#[derive(Debug)]
pub(super) struct Probe {
    /// The receiver that was attached to the root, and when.
    pub(super) node: NodeId,
    pub(super) since: Instant,
    /// The first receiver of the other branch, and its rate before, in bytes per second.
    pub(super) other_branch: NodeId,
    pub(super) rate: u64,
    /// The number of comparisons so far.
    pub(super) count: u32,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Reports are missing.
    Open,
    /// It has shown nothing.
    Undecided,
    /// It has shown who is slow, or that the root's link is full.
    Decided,
}

impl Probe {
    /// Whether no other comparison may begin.
    pub(super) fn is_running(&self, now: Instant) -> bool {
        match self.state {
            State::Open => now.since(self.since) < WAIT_NS,
            State::Undecided => false,
            State::Decided => true,
        }
    }
}

//! A holder of an object, and its spot in the broadcast tree.
//!
//! Does not know the other holders.

use alloc::boxed::Box;

use super::reports::{FormerSource, Report, Reports};
use crate::{id::NodeId, time::Instant};

/// The share of its source's link that a receiver takes unless it is slow, in thousandths.
pub(super) const WHOLE: u32 = 1000;

/// No node of the tree.
pub(super) const NONE: u32 = u32::MAX;

/// A node that holds or receives a copy.
#[derive(Debug, Default)]
pub(super) struct Holder {
    /// Whether all bytes are there.
    pub(super) complete: bool,
    /// Whether the copy is pinned: put, reduced or adopted there.
    pub(super) pinned: bool,
    /// When it last announced its copy, and when this owner last sent it to a source.
    pub(super) announced_at: Option<Instant>,
    pub(super) located: Option<Instant>,
    /// When it first announced that it receives.
    pub(super) began: Option<Instant>,
    /// Its reports of the rate at which it receives.
    pub(super) reports: Option<Box<Reports>>,
}

impl Holder {
    /// Its last report about its current source.
    pub(super) fn last(&self) -> Option<Report> {
        self.reports.as_ref()?.last
    }

    /// The last report about its current source, if it is recent enough to describe the present.
    pub(super) fn fresh(&self, now: Instant) -> Option<Report> {
        self.last().filter(|report| report.is_fresh(now))
    }

    /// Sources that it was moved away from.
    pub(super) fn left(&self) -> &[FormerSource] {
        self.reports.as_ref().map_or(&[][..], |reports| &reports.left)
    }
}

/// A node of the broadcast tree: a holder, or a source that holds no copy.
#[derive(Debug)]
pub(super) struct TreeNode {
    pub(super) node: NodeId,
    pub(super) holder: Option<Holder>,
    pub(super) source: u32,
    pub(super) receivers: u32,
    /// The share that it takes of its source's link, and that its receivers take of its own link,
    /// in thousandths.
    pub(super) weight: u32,
    pub(super) load: u32,
    /// When it was last moved to another source.
    pub(super) moved: Instant,
}

impl TreeNode {
    pub(super) const fn new(node: NodeId) -> Self {
        let (holder, source, receivers, weight, load) = (None, NONE, 0, WHOLE, 0);
        Self { node, holder, source, receivers, weight, load, moved: Instant(0) }
    }

    /// Whether it has no copy, no source and no receivers.
    pub(super) const fn is_idle(&self) -> bool {
        self.holder.is_none() && self.source == NONE && self.receivers == 0
    }

    pub(super) fn is_root(&self) -> bool {
        let is_root = |it: &Holder| it.complete || it.pinned && self.source == NONE;
        self.holder.as_ref().is_some_and(is_root)
    }

    /// Its sort key among the roots: complete pinned copies come first.
    pub(super) fn as_root(&self) -> Option<(bool, bool, NodeId)> {
        let holder = self.holder.as_ref().filter(|_| self.is_root())?;
        Some((!holder.complete, !holder.pinned, self.node))
    }

    /// How many receivers it sends to; slow ones count for less.
    pub(super) const fn receivers_fed(&self) -> u32 {
        (self.load + WHOLE / 2) / WHOLE
    }
}

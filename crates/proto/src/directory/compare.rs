//! Comparison of receivers while no rate is known.
//!
//! Slow is relative ([`super::rebalance`]). In a cluster that has moved nothing, the first receiver
//! of an object may be slow, or the network may be. So while its transfer would take long and there
//! is no other branch, one more receiver gets the object from the root:
//!
//! - One of the two is much slower: it is slow, and the usual rules apply.
//! - The other's rate has dropped: the root's link is full. The new receiver moves behind the other
//!   one.
//! - Neither: both may be slow. One more receiver is compared.
//!
//! Does not know what follows for a slow node.

use alloc::{boxed::Box, vec::Vec};

use super::{
    context::Context,
    live::{LOOKED_AT, Live},
    probe::{Probe, State},
    speeds::Speeds,
};
use crate::{id::NodeId, time::Instant};

/// The remaining time of a transfer from which a comparison is worth it: for a short time it halves
/// the rate.
const WORTH_NS: u64 = 500_000_000;

/// Time after which a report shows the effect of a second receiver on the first: an earlier one
/// covers a time before.
const SHARED_NS: u64 = 60_000_000;

/// The maximum number of comparisons for one object.
const PROBES_MAX: u32 = 3;

impl Live {
    /// The rate of a receiver that may be slow, if nothing shows whether it is, and its transfer
    /// would take long.
    pub(super) fn unproven_rate(
        &mut self,
        now: Instant,
        node: NodeId,
        speeds: &Speeds,
    ) -> Option<u64> {
        let is_open = match &self.probe {
            Some(probe) => probe.state != State::Decided,
            None => self.tree.best_rate(now, speeds).is_none(),
        };
        let report = self.tree.get(node).filter(|holder| !holder.complete)?.fresh(now)?;
        let rate = report.rate.bytes_per_second;
        let is_worth =
            u128::from(report.missing) * 1_000_000_000 > u128::from(rate) * u128::from(WORTH_NS);
        let is_unproven = is_open && is_worth && !report.is_stalled() && report.usual.is_none();
        (is_unproven && self.tree.lineage(node)?.is_complete).then_some(rate)
    }

    /// Begins to compare a receiver that gets its bytes from `root` with one about which nothing is
    /// known. Returns whether there is such a receiver, and no other comparison.
    pub(super) fn begin_probe(
        &mut self,
        now: Instant,
        node: NodeId,
        root: NodeId,
        speeds: &Speeds,
    ) -> bool {
        if self.probe.as_ref().is_some_and(|probe| probe.is_running(now)) {
            return false;
        }
        let receivers: Vec<NodeId> =
            self.tree.receivers(root).map(|(receiver, _)| receiver).take(LOOKED_AT).collect();
        let others = receivers.into_iter().filter(|receiver| *receiver != node);
        let unproven =
            others.filter_map(|other| Some((other, self.unproven_rate(now, other, speeds)?)));
        let Some((other_branch, rate)) = unproven.max_by_key(|(_, rate)| *rate) else {
            return false;
        };
        let count = self.probe.as_ref().map_or(0, |probe| probe.count) + 1;
        let state = State::Open;
        self.probe = Some(Box::new(Probe { node, since: now, other_branch, rate, count, state }));
        true
    }

    /// Handles the report of a receiver: concludes a comparison, or begins one. Returns the
    /// receiver to be moved, and its new source.
    pub(super) fn compare(
        &mut self,
        context: &Context<'_>,
        from: NodeId,
        speeds: &Speeds,
    ) -> Option<(NodeId, NodeId)> {
        let now = context.now;
        if let Some(joined) = self.conclude() {
            return Some(joined);
        }
        self.unproven_rate(now, from, speeds)?;
        let (source, lineage) = (self.tree.source(from)?, self.tree.lineage(from)?);
        let (root, members) = (lineage.root, context.members);
        let is_usable = members.contains(root)
            && members.distance(from, root) <= members.distance(from, source)
            && !speeds.is_stalled(now, root)
            && speeds.sent_slowness(now, root) == 1
            && speeds.usual_of(from).is_none();
        if source == root || !is_usable {
            return None;
        }
        self.begin_probe(now, from, root, speeds).then_some((from, root))
    }

    /// Concludes a comparison once both have reported.
    fn conclude(&mut self) -> Option<(NodeId, NodeId)> {
        let probe = self.probe.as_mut().filter(|probe| probe.state == State::Open)?;
        let report = |node| self.tree.get(node)?.last().filter(|report| report.at > probe.since);
        let (node, other_branch) = (probe.node, probe.other_branch);
        let (own, other) = (report(node)?, report(other_branch)?);
        let best = own.rate.bytes_per_second.max(other.rate.bytes_per_second);
        let is_slow = own.is_slow(best) || other.is_slow(best);
        let is_full = !is_slow && other.rate.bytes_per_second < probe.rate / 4 * 3;
        if !is_slow && !is_full && other.at.since(probe.since) < SHARED_NS {
            return None;
        }
        probe.state = match is_slow || is_full || probe.count == PROBES_MAX {
            true => State::Decided,
            false => State::Undecided,
        };
        (is_full && self.tree.source(node) == self.tree.source(other_branch))
            .then_some((node, other_branch))
    }
}

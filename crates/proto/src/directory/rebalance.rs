//! Receive rates that receivers report, and moves of receivers to faster sources.
//!
//! Receivers report the rate at which an object arrives ([`crate::rate`]). The primary owner stores
//! the last report of each holder, and remembers across objects which nodes are slow
//! ([`super::speeds`]). It notifies a node that receives slowly (`MarkSlow`), and that node
//! includes this in its requests to other owners. A slow node becomes a source only if no other
//! holder can serve ([`crate::broadcast`]). A receiver behind a slow node is moved to a better
//! source and keeps its blocks.
//!
//! Slow is relative: less than a third of the rate of another branch of the same broadcast. While
//! only one branch has reported, it is less than a third of the rate at which the receiver usually
//! receives. If that is unknown, another receiver is compared with it ([`super::compare`]). A
//! transfer that shares a link is judged by its fair rate ([`crate::rate::Rate::fair`]), because a
//! shared link proves nothing about a host. A copy that a client fills or a reduce makes grows at
//! the pace of its maker, so reports of its receivers prove nothing about nodes.
//!
//! Knows rates; does not know how they were measured.

use alloc::vec::Vec;

use super::{
    context::Context,
    holder::Holder,
    live::{LOOKED_AT, Live, SourceRequest},
    reports::Report,
    speeds::Speeds,
    state::Directory,
    tree::Lineage,
};
use crate::{
    broadcast::{Choice, SourceSpeed},
    id::{NodeId, ObjectId},
    members::Members,
    message::{Message, RateReport},
    rate::{Rate, SLOW_TIMES, STALL_NS},
    reduce::cost::Link,
    time::Instant,
};

/// How long a receiver stays where it is after it, or a source between it and the root, was moved.
const SETTLE_NS: u64 = 200_000_000;

/// In the first part of a transfer, its receiver is moved only for a rate of less than half the
/// limit: the first report may cover only the start.
const PROBATION_NS: u64 = 90_000_000;

/// How long an owner waits for the report of a stalled source itself, which proves that the cause
/// is further upstream.
const JUDGE_NS: u64 = 60_000_000;

/// The cost of a move in addition to the bytes: a round trip to the owner, and a new connection.
const MOVE_NS: u64 = 20_000_000;

impl Directory {
    /// Handles a receiver's report of the rate at which an object arrives.
    pub(super) fn rate_reported(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        rate_reported: &RateReport,
    ) {
        let now = context.now;
        let RateReport { ref id, instance, source, rate, missing, usual } = *rate_reported;
        let entry = self.entries.get_mut(id);
        let live =
            entry.and_then(|entry| entry.live.as_mut()).filter(|live| live.instance == instance);
        let Some(live) = live.filter(|live| live.tree.source(from) == Some(source)) else { return };
        let is_alone = live.is_alone(now, from, rate);
        let report = Report { at: now, rate, is_alone, missing, usual };
        live.tree.report(from, report);
        if report.is_stalled() {
            self.alarms.insert((now + JUDGE_NS, id.clone()));
            return;
        }
        if live.grows(from) {
            return;
        }
        if let Some((node, source)) = live.compare(context, from, &self.speeds) {
            live.tree.move_now(now, node, source);
            let id = id.clone();
            context.outbox.push((node, Message::Redirect { id, instance, source }));
            return;
        }
        let slowness = live.reported_slowness(now, from, from, &self.speeds);
        live.tree.weigh(from, live.weight(now, from, slowness, &self.speeds));
        let others = live.tree.best_rate(now, &self.speeds);
        let Some(typical) = others.or(usual) else { return };
        if others.is_some()
            && let Some(times) = live.remember(now, from, typical, &mut self.speeds)
        {
            context.outbox.push((from, Message::MarkSlow { times, bytes_per_second: rate.fair() }));
        }
        if !report.is_slow(typical) {
            if report.has_its_share(typical) {
                self.speeds.sends_well(now, source);
            }
            return live.blame_left(now, from, typical, context.members, &mut self.speeds);
        }
        if let Some(better) = live.better(context, from, (others, typical), &self.speeds) {
            live.tree.move_now(now, from, better);
            context
                .outbox
                .push((from, Message::Redirect { id: id.clone(), instance, source: better }));
        }
    }

    /// Finds other sources for receivers that reported a stall a moment ago and nothing since.
    pub(super) fn handle_stalls(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let now = context.now;
        let Some(live) = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut()) else {
            return;
        };
        for node in live.tree.take_stalled(now.before(JUDGE_NS)) {
            let Some(source) = live.tree.source(node) else { continue };
            let new = live.source_for_stalled(context, node, source, &mut self.speeds);
            if let Some(new) = new {
                live.tree.move_now(now, node, new);
            }
            let (id, instance) = (id.clone(), live.instance);
            // The reply is sent in any case: it confirms that an owner received the report.
            let source = new.unwrap_or(source);
            context.outbox.push((node, Message::Redirect { id, instance, source }));
        }
    }
}

impl Live {
    /// The pace of a holder as a source for `requester`: how many times slower than others it is,
    /// and whether it is stalled.
    pub(super) fn speed_of(
        &mut self,
        now: Instant,
        node: NodeId,
        requester: NodeId,
        speeds: &Speeds,
    ) -> SourceSpeed {
        let received = self.reported_slowness(now, node, requester, speeds);
        let received = received.unwrap_or_else(|| speeds.received_slowness(now, node));
        // Others get another source until it is known whether this receiver is slow.
        let is_unproven =
            speeds.usual_of(requester).is_none() && self.unproven_rate(now, node, speeds).is_some();
        let received = if is_unproven { received.max(SLOW_TIMES) } else { received };
        let slowness = received.max(speeds.sent_slowness(now, node));
        SourceSpeed { slowness, is_stalled: speeds.is_stalled(now, node) }
    }

    /// How many times slower than others a receiver receives, according to its reports. With one
    /// branch, compared with the usual rate of the receiver, the owner or `requester`. `None`
    /// without a report, or if the copy at the root still grows. A receiver that was moved away
    /// from a healthy source counts as slow until it reports about the next one.
    fn reported_slowness(
        &mut self,
        now: Instant,
        node: NodeId,
        requester: NodeId,
        speeds: &Speeds,
    ) -> Option<u64> {
        let holder = self.tree.get(node).filter(|holder| !holder.complete)?;
        let of_this = holder.fresh(now).map(|report| (None, report));
        let of_last = || holder.left().last().map(|left| (Some(left.node), left.report));
        let (left, report) = of_this.or_else(of_last).filter(|(_, report)| !report.is_stalled())?;
        // While there is one branch: the usual rate of the receiver, the owner or the requester.
        let others = self.tree.best_rate(now, speeds);
        let typical = others.or(report.usual.max(speeds.usual_of(requester)))?;
        if self.grows(node) || left.is_some_and(|left| !self.is_well(now, left, typical)) {
            return None;
        }
        let times = if report.is_slow(typical) { report.slowness(typical) } else { 1 };
        // The usual rate of a slow node is slow too: only other branches show that it is no longer
        // slow.
        let known = others.is_none().then(|| speeds.received_slowness(now, node));
        Some(times.max(known.unwrap_or(1)))
    }

    /// Whether another branch gets much more from the same root, so that other transfers of the
    /// root don't make this one slow.
    fn is_alone(&mut self, now: Instant, node: NodeId, rate: Rate) -> bool {
        let Some(Lineage { root, branch, .. }) = self.tree.lineage(node) else { return false };
        let branches = || self.tree.receivers(root).take(LOOKED_AT);
        let is_far_below = |report: Report| {
            rate.bytes_per_second.saturating_mul(SLOW_TIMES) < report.rate.bytes_per_second
        };
        let mut others = branches().filter(|(other, _)| Some(*other) != branch);
        usize::from(rate.shares) <= branches().count()
            && others.any(|(_, other)| other.fresh(now).is_some_and(is_far_below))
    }

    /// Whether a node's bytes come from a copy that still grows at its root, or from nowhere.
    fn grows(&mut self, node: NodeId) -> bool {
        self.tree.lineage(node).is_none_or(|lineage| !lineage.is_complete)
    }

    /// Remembers for other objects whether a receiver is much slower than other branches although
    /// its source is healthy; returns how many times slower. A transfer that has just begun proves
    /// nothing.
    fn remember(
        &self,
        now: Instant,
        node: NodeId,
        typical: u64,
        speeds: &mut Speeds,
    ) -> Option<u64> {
        let holder = self.tree.get(node)?;
        let report = holder.last()?;
        // Clear cases need less time: it was slow with another source too, or another receiver
        // shows that the source is healthy.
        let source = self.tree.source(node)?;
        let is_clear_case = !holder.left().is_empty()
            || self.serves_others(source, node, |report| {
                report.is_fresh(now) && report.has_its_share(typical)
            });
        let least_ns = if is_clear_case { PROBATION_NS } else { 2 * PROBATION_NS };
        let is_long = holder.located.is_some_and(|located| now.since(located) > least_ns);
        if report.has_its_share(typical) {
            speeds.is_quick(now, node);
            None
        } else if report.is_slow(typical) && is_long && self.is_well(now, source, typical) {
            let times = report.slowness(typical);
            speeds.receives_slowly(now, node, times);
            Some(times)
        } else {
            None
        }
    }

    /// Marks sources that a receiver was moved away from as slow, if they had the bytes. Called
    /// when it receives its share.
    fn blame_left(
        &self,
        now: Instant,
        node: NodeId,
        typical: u64,
        members: &Members,
        speeds: &mut Speeds,
    ) {
        for left in self.tree.get(node).map_or(&[][..], Holder::left) {
            let times = left.report.slowness(typical);
            let was_slow = times >= SLOW_TIMES && self.is_well(now, left.node, typical);
            if was_slow && members.contains(left.node) {
                speeds.sends_slowly(now, left.node, times, left.report.at);
            }
        }
    }

    /// Whether a source has all bytes, or receives its share of them.
    fn is_well(&self, now: Instant, sender: NodeId, typical: u64) -> bool {
        let gets_its_share = |report: Report| report.has_its_share(typical);
        let has_bytes =
            |holder: &Holder| holder.complete || holder.fresh(now).is_some_and(gets_its_share);
        self.tree.get(sender).is_none_or(has_bytes)
    }

    /// A source from which a slow receiver is predicted to get the missing bytes in less than half
    /// the time.
    fn better(
        &mut self,
        context: &Context<'_>,
        node: NodeId,
        (others, typical): (Option<u64>, u64),
        speeds: &Speeds,
    ) -> Option<NodeId> {
        let now = context.now;
        let holder = self.tree.get(node)?;
        let report = holder.last()?;
        let is_new = holder.located.is_some_and(|located| now.since(located) < PROBATION_NS);
        // If only one branch has reported, its low rate may be the current rate of the network. The
        // first report may cover only the start of a transfer.
        let is_doubtful = is_new || others.is_none();
        // So early, other branches may have their higher rate for a moment only.
        let shared = Report { is_alone: false, ..report };
        let is_little = !is_doubtful || shared.is_slow(typical / 2);
        if !is_little || self.is_settling(now, node) {
            return None;
        }
        let choice = self.choose_another(context, node, report, Some(typical), speeds)?;
        let rate = u128::from(report.rate.fair().max(1));
        let stay_ns = u128::from(report.missing) * 1_000_000_000 / rate;
        // A receiver that is slow itself is no faster with another source.
        let own = u128::from(speeds.received_slowness(now, node));
        let move_ns = (2 * own).saturating_mul(u128::from(choice.predicted_ns));
        (move_ns.saturating_add(u128::from(MOVE_NS)) < stay_ns).then_some(choice.node)
    }

    /// Chooses another usable source for a receiver: neither its current source nor an earlier one.
    fn choose_another(
        &mut self,
        context: &Context<'_>,
        node: NodeId,
        report: Report,
        bytes_per_second: Option<u64>,
        speeds: &Speeds,
    ) -> Option<Choice> {
        let left: Vec<NodeId> = self.tree.get(node)?.left().iter().map(|left| left.node).collect();
        let source = self.tree.source(node)?;
        let avoid: Vec<NodeId> = left.into_iter().chain([source]).collect();
        let link = Link {
            bytes_per_second: bytes_per_second.unwrap_or(context.link.bytes_per_second),
            ..context.link
        };
        let bytes = report.missing;
        let request = SourceRequest { node, bytes, avoid: &avoid, link, movable_since: None };
        self.tree.set_aside(node);
        let choice = self.choose(context, &request, speeds);
        self.tree.attach(node, source);
        choice.filter(|choice| !choice.is_last_resort)
    }

    /// Another source for a stalled receiver; `None` if its own source only waits too.
    fn source_for_stalled(
        &mut self,
        context: &Context<'_>,
        node: NodeId,
        source: NodeId,
        speeds: &mut Speeds,
    ) -> Option<NodeId> {
        let now = context.now;
        let report = self.tree.get(node)?.last()?;
        if self.is_settling(now, node) {
            return None;
        }
        // The source may be gone, or no node may have that id: reports are not verified.
        let is_member = context.members.contains(source);
        let sender = self.tree.get(source).filter(|sender| !sender.complete);
        let is_silent = if let Some(sender) = sender {
            let of_late = sender.last().filter(|theirs| theirs.at + STALL_NS > report.at);
            // It has reported a stall too; or a client fills it or a reduce makes it, at its own
            // pace.
            if self.tree.source(source).is_none() || of_late.is_some_and(|it| it.is_stalled()) {
                return None;
            }
            of_late.is_none()
        } else {
            !self.serves_others(source, node, |report| now.since(report.at) < STALL_NS)
        };
        if is_member && is_silent {
            speeds.stalls(now, source);
            self.tree.weigh(source, 0);
        }
        Some(self.choose_another(context, node, report, None, speeds)?.node)
    }

    /// Whether other receivers of a source have reported progress, in a report for which `counts`
    /// is true.
    fn serves_others(&self, sender: NodeId, but: NodeId, counts: impl Fn(Report) -> bool) -> bool {
        let others = self.tree.receivers(sender).filter(|(node, _)| *node != but);
        let mut reports = others.filter_map(|(_, holder)| holder.last());
        reports.any(|report| !report.is_stalled() && counts(report))
    }

    /// Whether the node, or a source between it and the root, was moved only recently.
    fn is_settling(&mut self, now: Instant, node: NodeId) -> bool {
        let moved = self.tree.lineage(node).map(|lineage| lineage.moved);
        let moved = moved.filter(|moved| *moved > Instant::default());
        moved.is_some_and(|moved| now.since(moved) < SETTLE_NS)
    }
}

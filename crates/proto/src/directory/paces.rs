//! How fast nodes receive and send, as receivers report it, and who is moved to another sender for it.
//!
//! Receivers report how fast an object comes ([`crate::pace`]). The first owner keeps the last report of each holder and
//! remembers, from object to object, which nodes are slow ([`super::speeds`]). It tells a node that receives slowly, and that node says so to
//! the owner of each object that it asks for. A slow node is given to an asker only if no other holder can
//! send ([`crate::broadcast`]); a receiver behind one is moved to a better sender and keeps what it has.
//!
//! What counts as slow is relative: less than a third of what another branch of the same broadcast gets; while one branch is
//! all that was reported, less than a third of what the receiver is used to. A transfer that shares a link is judged by its
//! fair rate ([`crate::pace::Rate::fair`]): a link that is divided proves nothing about a host. A copy that a client fills or a
//! reduce makes grows at that one's pace: what its receivers report says nothing of nodes.
//!
//! Knows rates; does not know how they were measured.

use alloc::{collections::BTreeSet, vec::Vec};

use super::{
    Directory,
    feeds::Branch,
    live::{Holder, Live},
    speeds::Speeds,
    world::World,
};
use crate::{
    broadcast::Pace,
    id::{NodeId, ObjectId},
    members::Members,
    message::{Message, Paced},
    pace::{Rate, SLOW_TIMES, STALL_NS},
    reduce::cost::Link,
    time::Instant,
};

/// How long a receiver is left alone after it, or a sender between it and the origin, was sent to another.
const SETTLE_NS: u64 = 200_000_000;

/// How long a transfer runs before its receiver is moved for a rate that is less than twice too slow: the first report
/// may show no more than a start.
const PROBATION_NS: u64 = 90_000_000;

/// How long an owner waits for a stalled sender's own report, which says that the trouble is further up.
const JUDGE_NS: u64 = 60_000_000;

/// How long a report says something of the present: receivers report every 2 s at least.
const FRESH_NS: u64 = 2_500_000_000;

/// What moving to another sender costs beside the bytes: a round trip to the owner, a new connection.
const MOVE_NS: u64 = 20_000_000;

/// What a receiver has reported of one object.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// The last of its present sender.
    last: Option<Report>,
    /// Senders that it was moved away from.
    left: Vec<Left>,
}

/// A sender that a receiver was moved away from.
#[derive(Clone, Copy, Debug)]
struct Left {
    node: NodeId,
    /// The last report of it.
    report: Report,
}

#[derive(Clone, Copy, Debug)]
struct Report {
    at: Instant,
    rate: Rate,
    /// Bytes that it lacks.
    missing: u64,
    /// What the receiver has received from others, if that was measured.
    usual: Option<u64>,
}

impl Directory {
    /// A receiver reports how fast an object comes.
    pub(super) fn paced(&mut self, world: &mut World<'_>, from: NodeId, paced: &Paced) {
        let (now, members, link) = (world.now, world.members, world.link);
        let Paced { ref id, instance, source, rate, missing, usual } = *paced;
        let entry = self.entries.get_mut(id);
        let live =
            entry.and_then(|entry| entry.live.as_mut()).filter(|live| live.instance == instance);
        let Some(live) = live else { return };
        let is_its = |holder: &&mut Holder| !holder.complete && holder.source == Some(source);
        let Some(holder) = live.holders.get_mut(&from).filter(is_its) else { return };
        let report = Report { at: now, rate, missing, usual };
        holder.reports.get_or_insert_default().last = Some(report);
        if report.is_stalled() {
            self.alarms.insert((now + JUDGE_NS, id.clone()));
            return;
        }
        if live.grows(from) {
            return;
        }
        let others = live.other_branches(now);
        let Some(typical) = others.or(usual) else { return };
        if others.is_some()
            && let Some(times) = live.remember(now, from, typical, &mut self.speeds)
        {
            world.mail.push((from, Message::Slow { times, bytes_per_second: rate.fair() }));
        }
        if !report.is_slow(typical) {
            if report.has_its_share(typical) {
                self.speeds.sends_well(now, source);
            }
            return live.blame_left(now, from, typical, members, &mut self.speeds);
        }
        if let Some(better) = live.better(now, from, (others, typical), members, link, &self.speeds)
        {
            live.move_to(now, from, source, better);
            world.mail.push((from, Message::Redirect { id: id.clone(), instance, source: better }));
        }
    }

    /// Finds other senders for receivers that were stalled a moment ago and have reported nothing since.
    pub(super) fn judge_stalls(&mut self, world: &mut World<'_>, id: &ObjectId) {
        let (now, members, link) = (world.now, world.members, world.link);
        let Some(live) = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut()) else {
            return;
        };
        for (node, source) in live.stalled(now) {
            let new = live.sender_for_stalled(now, node, source, members, link, &mut self.speeds);
            if let Some(new) = new {
                live.move_to(now, node, source, new);
            }
            let (id, instance) = (id.clone(), live.instance);
            // The receiver learns in any case that an owner knows.
            let source = new.unwrap_or(source);
            world.mail.push((node, Message::Redirect { id, instance, source }));
        }
    }
}

impl Report {
    const fn is_stalled(&self) -> bool {
        self.rate.bytes_per_second == 0
    }

    /// Whether the transfer has far less than others have, though it may have shared a link.
    fn is_slow(&self, typical: u64) -> bool {
        self.rate.fair().saturating_mul(SLOW_TIMES) < typical
    }

    /// Whether the transfer has about as much as others have. A fair rate is an upper limit, and proves nothing good.
    const fn has_its_share(&self, typical: u64) -> bool {
        self.rate.bytes_per_second.saturating_mul(SLOW_TIMES) >= typical
    }

    /// How many times less it has than others.
    fn slowness(&self, typical: u64) -> u64 {
        typical / self.rate.fair().max(1)
    }
}

impl Live {
    /// What a holder is as a sender to an asker: how many times slower than others, and whether it is stalled.
    pub(super) fn pace_of(
        &self,
        now: Instant,
        holder: (NodeId, &Holder),
        asker: NodeId,
        others: Option<u64>,
        speeds: &Speeds,
    ) -> Pace {
        let received = self.received_slowness(now, holder, asker, others, speeds);
        let slowness = received.max(speeds.sent_slowness(now, holder.0));
        Pace { slowness, is_stalled: speeds.is_stalled(now, holder.0) }
    }

    /// How many times slower than others a holder receives.
    pub(super) fn received_slowness(
        &self,
        now: Instant,
        (node, holder): (NodeId, &Holder),
        asker: NodeId,
        others: Option<u64>,
        speeds: &Speeds,
    ) -> u64 {
        let usual = speeds.usual_of(asker);
        let reported = self.reported_slowness(now, node, holder, others, usual);
        let known = speeds.received_slowness(now, node);
        match reported {
            // What a slow node is used to is slow too: only other branches show that it is slow no more.
            Some(reported) if others.is_none() => reported.max(known),
            _ => reported.unwrap_or(known),
        }
    }

    /// How many times less than others a receiver has reported to get, or less than it, the owner or the asker is used to
    /// receive; none if it has not reported, or gets what there is of a copy that grows. A receiver that was moved away from a sender that is well
    /// counts as slow until it reports of the next one.
    fn reported_slowness(
        &self,
        now: Instant,
        node: NodeId,
        holder: &Holder,
        others: Option<u64>,
        usual: Option<u64>,
    ) -> Option<u64> {
        let of_this = holder.fresh(now).map(|report| (None, report));
        let of_last = || holder.left().last().map(|left| (Some(left.node), left.report));
        let (left, report) = of_this.or_else(of_last)?;
        if report.is_stalled() || holder.complete {
            return None;
        }
        // While there is one branch, what the receiver, the owner or the asker is used to.
        let typical = others.or(report.usual.max(usual)).filter(|_| !self.grows(node))?;
        if left.is_some_and(|left| !self.is_well(now, left, typical)) {
            return None;
        }
        Some(if report.is_slow(typical) { report.slowness(typical) } else { 1 })
    }

    /// What the best of at least two branches of a broadcast has reported.
    pub(super) fn other_branches(&self, now: Instant) -> Option<u64> {
        let reports = self.holders.iter().filter(|(_, holder)| !holder.complete);
        let reports = reports.filter_map(|(node, holder)| Some((*node, holder.fresh(now)?.rate)));
        let rates: Vec<(NodeId, Rate)> = reports.collect();
        if rates.len() < 2 {
            return None;
        }
        let all = self.branches();
        let branches = rates.iter().filter_map(|(node, _)| match all.get(node)? {
            Branch::Of(first) => Some(*first),
            Branch::None | Branch::Lost => None,
        });
        let is_several = branches.collect::<BTreeSet<_>>().len() > 1;
        let best = rates.iter().map(|(_, rate)| rate.bytes_per_second).max();
        best.filter(|_| is_several)
    }

    /// Whether a node's bytes come from a copy that is not complete where it is made, or from nowhere.
    fn grows(&self, node: NodeId) -> bool {
        let mut at = node;
        for _ in 0..=self.holders.len() {
            match self.holders.get(&at) {
                Some(holder) if holder.complete => return false,
                Some(Holder { source: Some(source), .. }) => at = *source,
                _ => return true,
            }
        }
        true
    }

    /// Keeps for other objects whether a receiver gets far less than other branches do from a sender that is well, and how
    /// many times less. A transfer that has begun only now says nothing.
    fn remember(
        &self,
        now: Instant,
        node: NodeId,
        typical: u64,
        speeds: &mut Speeds,
    ) -> Option<u64> {
        let holder = self.holders.get(&node)?;
        let report = holder.last()?;
        // It was as slow with the sender before; or another receiver shows that the sender is well at present.
        let is_plain =
            !holder.left().is_empty() || self.feeds_well(now, holder.source?, node, typical);
        let least_ns = if is_plain { PROBATION_NS } else { 2 * PROBATION_NS };
        let is_long = holder.located.is_some_and(|located| now.since(located) > least_ns);
        if report.has_its_share(typical) {
            speeds.is_quick(now, node);
            None
        } else if report.is_slow(typical) && is_long && self.is_well(now, holder.source?, typical) {
            let times = report.slowness(typical);
            speeds.receives_slowly(now, node, times);
            Some(times)
        } else {
            None
        }
    }

    /// A receiver gets its share: where it was moved away from another sender, that one was slow, if it had the bytes.
    fn blame_left(
        &self,
        now: Instant,
        node: NodeId,
        typical: u64,
        members: &Members,
        speeds: &mut Speeds,
    ) {
        for left in self.holders.get(&node).map_or(&[][..], Holder::left) {
            let times = left.report.slowness(typical);
            let was_slow = times >= SLOW_TIMES && self.is_well(now, left.node, typical);
            if was_slow && members.contains(left.node) {
                speeds.sends_slowly(now, left.node, times, left.report.at);
            }
        }
    }

    /// Whether a sender has the bytes, or gets its share of them.
    fn is_well(&self, now: Instant, sender: NodeId, typical: u64) -> bool {
        let gets_its_share = |report: Report| report.has_its_share(typical);
        let has_bytes =
            |holder: &Holder| holder.complete || holder.fresh(now).is_some_and(gets_its_share);
        self.holders.get(&sender).is_none_or(has_bytes)
    }

    /// A sender from which a receiver that gets too little is predicted to have the rest in less than half the time.
    fn better(
        &self,
        now: Instant,
        node: NodeId,
        (others, typical): (Option<u64>, u64),
        members: &Members,
        link: Link,
        speeds: &Speeds,
    ) -> Option<NodeId> {
        let holder = self.holders.get(&node)?;
        let (report, source) = (holder.last()?, holder.source?);
        let is_new = holder.located.is_some_and(|located| now.since(located) < PROBATION_NS);
        // What one branch alone gets, less than it is used to, may be as fast as the network is at present; and the first
        // report may show no more than a start.
        let is_doubtful = is_new || others.is_none();
        let is_little = !is_doubtful || report.is_slow(typical / 2);
        if !is_little || self.is_settling(now, node) {
            return None;
        }
        let avoid = self.senders_to_avoid(node, source);
        let link = Link { bytes_per_second: typical, ..link };
        let choice = self.choose(now, node, report.missing, &avoid, None, members, link, speeds)?;
        let rate = u128::from(report.rate.fair().max(1));
        let stay_ns = u128::from(report.missing) * 1_000_000_000 / rate;
        // A receiver that is slow itself gets no more from another sender.
        let own = u128::from(speeds.received_slowness(now, node));
        let move_ns = (2 * own).saturating_mul(u128::from(choice.predicted_ns));
        let is_sooner = move_ns.saturating_add(u128::from(MOVE_NS)) < stay_ns;
        (is_sooner && !choice.is_last_resort).then_some(choice.node)
    }

    /// Receivers that were stalled when they last reported, a moment ago, and their senders.
    fn stalled(&self, now: Instant) -> Vec<(NodeId, NodeId)> {
        let is_due = |holder: &Holder| {
            !holder.complete
                && holder.last().is_some_and(|report| {
                    let waited_ns = now.since(report.at);
                    report.is_stalled() && (JUDGE_NS..STALL_NS).contains(&waited_ns)
                })
        };
        let due = self.holders.iter().filter(|(_, holder)| is_due(holder));
        due.filter_map(|(node, holder)| Some((*node, holder.source?))).collect()
    }

    /// Another sender for a receiver that gets nothing; none if its own sender only waits itself.
    fn sender_for_stalled(
        &self,
        now: Instant,
        node: NodeId,
        source: NodeId,
        members: &Members,
        link: Link,
        speeds: &mut Speeds,
    ) -> Option<NodeId> {
        let holder = self.holders.get(&node)?;
        let report = holder.last()?;
        if self.is_settling(now, node) {
            return None;
        }
        let sender = self.holders.get(&source);
        // It is gone, or no node has that id: a receiver may say anything.
        let is_member = members.contains(source);
        if let Some(sender) = sender.filter(|sender| !sender.complete) {
            let of_late = sender.last().filter(|theirs| theirs.at + STALL_NS > report.at);
            // It is stalled too and has said so; or a client fills it, or a reduce makes it, at that one's pace.
            if sender.source.is_none() || of_late.is_some_and(|theirs| theirs.is_stalled()) {
                return None;
            }
            if of_late.is_none() && is_member {
                speeds.stalls(now, source);
            }
        } else if is_member && !self.feeds_others(now, source, node) {
            speeds.stalls(now, source);
        }
        let avoid = self.senders_to_avoid(node, source);
        let choice = self.choose(now, node, report.missing, &avoid, None, members, link, speeds)?;
        (!choice.is_last_resort).then_some(choice.node)
    }

    /// Whether another receiver of a sender reports at present that it gets its share.
    fn feeds_well(&self, now: Instant, sender: NodeId, but: NodeId, typical: u64) -> bool {
        self.holders.iter().any(|(node, holder)| {
            *node != but
                && holder.source == Some(sender)
                && holder
                    .fresh(now)
                    .is_some_and(|report| !report.is_stalled() && report.has_its_share(typical))
        })
    }

    /// Whether other receivers of a sender have reported of late that its bytes come.
    fn feeds_others(&self, now: Instant, sender: NodeId, but: NodeId) -> bool {
        self.holders.iter().any(|(node, holder)| {
            *node != but
                && holder.source == Some(sender)
                && holder
                    .last()
                    .is_some_and(|report| !report.is_stalled() && now.since(report.at) < STALL_NS)
        })
    }

    fn senders_to_avoid(&self, node: NodeId, source: NodeId) -> Vec<NodeId> {
        let left = self.holders.get(&node).map_or(&[][..], Holder::left);
        left.iter().map(|left| left.node).chain([source]).collect()
    }

    /// Whether the node, or a sender between it and the origin, was sent to its sender only now.
    fn is_settling(&self, now: Instant, node: NodeId) -> bool {
        let mut at = node;
        for _ in 0..=self.holders.len() {
            let Some(holder) = self.holders.get(&at).filter(|holder| !holder.complete) else {
                break;
            };
            let is_new = holder.located.is_some_and(|located| now.since(located) < SETTLE_NS);
            if is_new && !holder.left().is_empty() {
                return true;
            }
            let Some(source) = holder.source else { break };
            at = source;
        }
        false
    }

    /// A receiver takes the rest from another sender from now on.
    fn move_to(&mut self, now: Instant, node: NodeId, from: NodeId, to: NodeId) {
        let Some(holder) = self.holders.get_mut(&node) else { return };
        (holder.source, holder.moving_from, holder.located) = (Some(to), None, Some(now));
        if let Some(reports) = &mut holder.reports
            && let Some(last) = reports.last.take()
        {
            reports.left.push(Left { node: from, report: last });
        }
    }
}

impl Holder {
    /// Its last report of its present sender.
    fn last(&self) -> Option<Report> {
        self.reports.as_ref()?.last
    }

    /// The same, if it says something of the present.
    fn fresh(&self, now: Instant) -> Option<Report> {
        self.last().filter(|report| now.since(report.at) < FRESH_NS)
    }

    fn left(&self) -> &[Left] {
        self.reports.as_ref().map_or(&[][..], |reports| &reports.left)
    }
}

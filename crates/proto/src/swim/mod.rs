//! Failure detector: probes, suspicion and refutation, for members that send nothing although their
//! connections are open.
//!
//! Follows SWIM (Das, Gupta, Motivala: "SWIM: Scalable Weakly-consistent Infection-style Process
//! Group Membership Protocol", 2002): indirect probes (section 3.1), suspicion (4.2) and
//! incarnations. It differs where this cluster differs. Every two members have a connection, so
//! rumors go to all members at once, without gossip. A member is probed by its predecessor in the
//! order of ids, not by a random one, so the time until the next probe is bounded. As in Lifeguard
//! (Dadgar, Phillips, Currey, 2018), a node that was paused itself declares no other dead because
//! of that.
//!
//! The end of a process is detected sooner, by its connections. Knows members by id; does not know
//! connections, nor what members hold.
//!
//! ```text
//!            Ping, no ack       PingReq to others, no ack         no refutation
//!   alive ------------------> probing -----------------> suspect ----------------> dead
//!     ^  any message from it      |      Alive with a higher incarnation |
//!     +---------------------------+<-------------------------------------+
//! ```

#[cfg(test)]
mod tests;

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{id::NodeId, limits::INDIRECT_PROBES_MAX, members::Members, time::Instant};

/// The incarnation that represents the end of a node's process.
pub const ENDED: u32 = u32::MAX;

/// Rumors to send, each with its receiver.
pub(crate) type Outbox = Vec<(NodeId, SwimMessage)>;

/// Messages of the failure detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SwimMessage {
    /// Probe of the receiver, which replies with `Ack`.
    Ping {
        /// To be included in the reply.
        sequence: u64,
    },
    /// Reply to a probe: the sender, or the member that it probed on request, is alive.
    Ack {
        /// The sequence number of the probe.
        sequence: u64,
    },
    /// Request to probe another member; answered by `Ack` if that member replies.
    PingReq {
        /// The member to probe.
        node: NodeId,
        /// To be included in the reply.
        sequence: u64,
    },
    /// A member does not reply to probes. Sent to all members, and by each of them to the suspect.
    Suspect {
        /// The suspect.
        node: NodeId,
        /// Its last incarnation known to the sender.
        incarnation: u32,
    },
    /// A member is alive: suspicions of lower incarnations are void.
    Alive {
        /// The member.
        node: NodeId,
        /// Incremented by that member alone.
        incarnation: u32,
    },
}

/// A member that does not reply to probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion {
    /// The member that first suspected it.
    pub by: NodeId,
    /// Since when.
    pub since: Instant,
    /// When it is declared dead.
    pub until: Instant,
    incarnation: u32,
}

/// A member that was declared dead just now, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectedFailure {
    /// The member.
    pub node: NodeId,
    /// Its last known incarnation.
    pub incarnation: u32,
    /// The reason, in words.
    pub reason: String,
    /// Whether this node was the first to suspect it. Then it notifies the others.
    pub found_here: bool,
}

/// The failure detector of this node.
#[derive(Debug)]
pub(crate) struct Swim {
    me: NodeId,
    /// An unresponsive node is declared dead after this time; `None` disables probes.
    detection_ns: Option<u64>,
    incarnation: u32,
    /// Incarnations above 0 that others have announced. Includes departed members, because they may
    /// rejoin.
    incarnations: BTreeMap<NodeId, u32>,
    next_round: Option<Instant>,
    rounds: u64,
    /// The last member that this node probed in turn, in addition to its successor.
    last_in_turn: NodeId,
    counted: u64,
    probes: BTreeMap<NodeId, Probe>,
    suspicions: BTreeMap<NodeId, Suspicion>,
    /// Members whose probe requests were rejected by the limit since the last
    /// [`Self::take_limited`].
    limited: Vec<NodeId>,
    /// Probes on behalf of others, by this node's sequence number.
    indirect_probes: BTreeMap<u64, IndirectProbe>,
}

#[derive(Debug)]
struct Probe {
    sequence: u64,
    /// When indirect probes begin; or, if they have begun, when the member is suspected.
    until: Instant,
    is_indirect: bool,
}

#[derive(Debug)]
struct IndirectProbe {
    target: NodeId,
    requester: NodeId,
    their_sequence: u64,
    until: Instant,
}

/// The number of other members that probe indirectly.
const HELPERS: usize = 3;

/// In every so many rounds, a second member is probed, each of them in turn.
const ROUNDS_PER_TURN: u64 = 4;

/// The parts of the detection time: one until the next probe, one for its ack, one for the acks of
/// indirect probes, and three for the suspect to refute the suspicion.
const PARTS: u64 = 6;
const SUSPICION_PARTS: u64 = 3;

impl Swim {
    pub(crate) const fn new(me: NodeId, detection_ns: Option<u64>) -> Self {
        Self {
            me,
            detection_ns,
            incarnation: 0,
            incarnations: BTreeMap::new(),
            next_round: None,
            rounds: 0,
            last_in_turn: me,
            counted: 0,
            probes: BTreeMap::new(),
            suspicions: BTreeMap::new(),
            limited: Vec::new(),
            indirect_probes: BTreeMap::new(),
        }
    }

    /// Members whose probe requests were rejected by the limit since the last call.
    pub(crate) fn take_limited(&mut self) -> Vec<NodeId> {
        core::mem::take(&mut self.limited)
    }

    /// The suspected members, by id.
    pub(crate) fn suspicions(&self) -> impl Iterator<Item = (NodeId, Suspicion)> {
        self.suspicions.iter().map(|(node, suspicion)| (*node, *suspicion))
    }

    /// The last known incarnation of a member.
    pub(crate) fn incarnation_of(&self, node: NodeId) -> u32 {
        self.incarnations.get(&node).copied().unwrap_or_default()
    }

    /// When to call [`Self::expire`] next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let probes = self.probes.values().map(|probe| probe.until).min();
        let suspicions = self.suspicions.values().map(|suspicion| suspicion.until).min();
        [self.next_round, probes, suspicions].into_iter().flatten().min()
    }

    /// Handles a membership change.
    pub(crate) fn members_changed(&mut self, now: Instant, members: &Members) {
        self.probes.retain(|node, _| members.contains(*node));
        self.suspicions.retain(|node, _| members.contains(*node));
        self.incarnations.retain(|node, _| members.contains(*node) || members.is_departed(*node));
        let is_alone = members.others().next().is_none();
        self.next_round = match (self.detection_ns, self.next_round) {
            (Some(detection_ns), None) if !is_alone => Some(now + detection_ns / PARTS),
            (_, next) if !is_alone => next,
            _ => None,
        };
    }

    /// Records that a message came from a member.
    pub(crate) fn responded(&mut self, from: NodeId) {
        self.probes.remove(&from);
    }

    /// Probes a member whose connection broke and cannot be restored now.
    pub(crate) fn probe_now(
        &mut self,
        now: Instant,
        node: NodeId,
        members: &Members,
        outbox: &mut Outbox,
    ) {
        if members.contains(node) && !self.suspicions.contains_key(&node) {
            self.probe(now, node, outbox);
        }
    }

    /// Probes the members that are due and handles missing acks. Returns the members that are dead
    /// now.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        members: &Members,
        outbox: &mut Outbox,
    ) -> Vec<DetectedFailure> {
        let Some(detection_ns) = self.detection_ns else { return Vec::new() };
        let part_ns = detection_ns / PARTS;
        self.extend_deadlines(now, part_ns);
        self.indirect_probes.retain(|_, indirect_probe| indirect_probe.until > now);
        let over = self.probes.iter().filter(|(_, probe)| probe.until <= now);
        for node in over.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.probe_over(now, node, part_ns, members, outbox);
        }
        if self.next_round.is_some_and(|at| at <= now) {
            self.next_round = Some(now + part_ns);
            self.rounds += 1;
            let next = self.after(self.me, members).find(|node| self.may_probe(*node));
            if let Some(node) = next {
                self.probe(now, node, outbox);
            }
            // Members do not always agree on the order, so each probes every other from time to
            // time.
            let in_turn = self.after(self.last_in_turn, members).next();
            if let Some(node) = in_turn.filter(|_| self.rounds.is_multiple_of(ROUNDS_PER_TURN)) {
                self.last_in_turn = node;
                if self.may_probe(node) {
                    self.probe(now, node, outbox);
                }
            }
        }
        let dead = self.suspicions.iter().filter(|(_, suspicion)| suspicion.until <= now);
        let death = |(node, suspicion): (&NodeId, &Suspicion)| DetectedFailure {
            node: *node,
            incarnation: suspicion.incarnation,
            reason: format!(
                "it replied to no node for {:.1} s, as node {} detected",
                detection_ns as f64 / 1e9,
                suspicion.by
            ),
            found_here: suspicion.by == self.me,
        };
        dead.map(death).collect()
    }

    /// Handles a rumor from a member.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        from: NodeId,
        message: SwimMessage,
        members: &Members,
        outbox: &mut Outbox,
    ) {
        match message {
            SwimMessage::Ping { sequence } => outbox.push((from, SwimMessage::Ack { sequence })),
            SwimMessage::Ack { sequence } => self.answered(from, sequence, outbox),
            SwimMessage::PingReq { node, sequence } => {
                self.probe_for(now, from, node, sequence, members, outbox);
            }
            SwimMessage::Suspect { node, incarnation } if node == self.me => {
                self.refute(from, incarnation, members, outbox);
            }
            SwimMessage::Suspect { node, incarnation } => {
                self.suspect(now, node, from, incarnation, members, outbox);
            }
            SwimMessage::Alive { node, incarnation } => {
                self.handle_alive(from, node, incarnation, members, outbox);
            }
        }
    }

    fn may_probe(&self, node: NodeId) -> bool {
        !self.probes.contains_key(&node) && !self.suspicions.contains_key(&node)
    }

    /// The other members in the order of ids, beginning after `node` and wrapping around.
    fn after(&self, node: NodeId, members: &Members) -> impl Iterator<Item = NodeId> {
        let before = members.others().filter(move |member| member.id < node);
        let after = members.others().filter(move |member| member.id > node);
        after.chain(before).map(|member| member.id)
    }

    fn count(&mut self) -> u64 {
        self.counted += 1;
        self.counted
    }

    fn probe(&mut self, now: Instant, node: NodeId, outbox: &mut Outbox) {
        let Some(detection_ns) = self.detection_ns else { return };
        if self.probes.contains_key(&node) {
            return;
        }
        let sequence = self.count();
        let probe = Probe { sequence, until: now + detection_ns / PARTS, is_indirect: false };
        self.probes.insert(node, probe);
        outbox.push((node, SwimMessage::Ping { sequence }));
    }

    /// Handles a missing ack: starts indirect probes, or suspects the member after these.
    fn probe_over(
        &mut self,
        now: Instant,
        node: NodeId,
        part_ns: u64,
        members: &Members,
        outbox: &mut Outbox,
    ) {
        let Some(probe) = self.probes.get(&node) else { return };
        let sequence = probe.sequence;
        if probe.is_indirect {
            self.probes.remove(&node);
            let (incarnation, by) = (self.incarnation_of(node), self.me);
            let message = SwimMessage::Suspect { node, incarnation };
            outbox.extend(members.others().map(|other| (other.id, message)));
            let until = now + SUSPICION_PARTS * part_ns;
            self.suspicions.insert(node, Suspicion { by, since: now, until, incarnation });
            // It would have probed the members after it, so probe the next one now.
            self.next_round = Some(now);
            return;
        }
        let helpers = self.after(node, members).filter(|helper| self.may_probe(*helper));
        outbox.extend(
            helpers.take(HELPERS).map(|helper| (helper, SwimMessage::PingReq { node, sequence })),
        );
        // The first probe may be lost with a connection.
        outbox.push((node, SwimMessage::Ping { sequence }));
        if let Some(probe) = self.probes.get_mut(&node) {
            probe.is_indirect = true;
            probe.until = now + part_ns;
        }
    }

    fn answered(&mut self, from: NodeId, sequence: u64, outbox: &mut Outbox) {
        // The ack comes from the probed member; or, after indirect probes have begun, from any
        // member.
        self.probes.retain(|node, probe| {
            probe.sequence != sequence || *node != from && !probe.is_indirect
        });
        if self
            .indirect_probes
            .get(&sequence)
            .is_some_and(|indirect_probe| indirect_probe.target == from)
            && let Some(indirect_probe) = self.indirect_probes.remove(&sequence)
        {
            outbox.push((
                indirect_probe.requester,
                SwimMessage::Ack { sequence: indirect_probe.their_sequence },
            ));
        }
    }

    fn probe_for(
        &mut self,
        now: Instant,
        requester: NodeId,
        target: NodeId,
        their_sequence: u64,
        members: &Members,
        outbox: &mut Outbox,
    ) {
        if !members.contains(target) || target == self.me {
            return;
        }
        if self.indirect_probes.len() >= INDIRECT_PROBES_MAX {
            return self.limited.push(requester);
        }
        let sequence = self.count();
        let until = now + self.detection_ns.unwrap_or_default() / PARTS;
        self.indirect_probes
            .insert(sequence, IndirectProbe { target, requester, their_sequence, until });
        outbox.push((target, SwimMessage::Ping { sequence }));
    }

    /// Handles a suspicion of this node.
    fn refute(&mut self, from: NodeId, incarnation: u32, members: &Members, outbox: &mut Outbox) {
        if incarnation >= self.incarnation {
            self.announce_incarnation(incarnation, members, outbox);
        } else {
            let incarnation = self.incarnation;
            outbox.push((from, SwimMessage::Alive { node: self.me, incarnation }));
        }
    }

    fn suspect(
        &mut self,
        now: Instant,
        node: NodeId,
        by: NodeId,
        incarnation: u32,
        members: &Members,
        outbox: &mut Outbox,
    ) {
        let known = self.incarnation_of(node);
        // Only the node itself announces incarnations: one that this node has not received may be
        // wrong.
        let incarnation = incarnation.min(known);
        let is_known = self.suspicions.get(&node).is_some_and(|it| it.incarnation >= incarnation);
        if !members.contains(node) || is_known {
            return;
        }
        if incarnation < known {
            return outbox.push((by, SwimMessage::Alive { node, incarnation: known }));
        }
        self.probes.remove(&node);
        // The member that suspects it may not be able to reach it.
        outbox.push((node, SwimMessage::Suspect { node, incarnation }));
        let Some(detection_ns) = self.detection_ns else { return };
        let until = now + SUSPICION_PARTS * (detection_ns / PARTS);
        self.suspicions.insert(node, Suspicion { by, since: now, until, incarnation });
    }

    fn handle_alive(
        &mut self,
        from: NodeId,
        node: NodeId,
        incarnation: u32,
        members: &Members,
        outbox: &mut Outbox,
    ) {
        let known = self.incarnation_of(node);
        // Its own announcement counts, whatever others have reported about it.
        let is_news = if from == node { incarnation != known } else { incarnation > known };
        if !members.contains(node) || !is_news {
            return;
        }
        self.incarnations.insert(node, incarnation);
        self.probes.remove(&node);
        let Some(suspicion) = self.suspicions.remove(&node) else { return };
        // It may not be able to reach the members that suspect it.
        let found_here = suspicion.by == self.me;
        let told = members.others().map(|other| other.id);
        let told = told.filter(|other| *other != from && *other != node);
        let told = told.filter(|other| found_here || *other == suspicion.by);
        outbox.extend(told.map(|other| (other, SwimMessage::Alive { node, incarnation })));
    }

    /// Refutes all earlier suspicions, after members had declared this node dead.
    pub(crate) fn refute_failure(&mut self, members: &Members, outbox: &mut Outbox) {
        self.announce_incarnation(self.incarnation, members, outbox);
    }

    /// Announces to all members that suspicions of this node up to now are void. It increments its
    /// own incarnation, because no member can have received a higher one. It skips the incarnation
    /// `said` that a suspicion names, so that the announcement is new to the sender.
    fn announce_incarnation(&mut self, said: u32, members: &Members, outbox: &mut Outbox) {
        let after = |incarnation: u32| (incarnation + 1) % ENDED;
        self.incarnation = after(self.incarnation);
        if self.incarnation == said {
            self.incarnation = after(said);
        }
        let alive = SwimMessage::Alive { node: self.me, incarnation: self.incarnation };
        outbox.extend(members.others().map(|other| (other.id, alive)));
    }

    /// Extends deadlines by the time in which this process did not run: acks of others may be
    /// waiting unread.
    fn extend_deadlines(&mut self, now: Instant, part_ns: u64) {
        let late = self.deadline().map_or(0, |due| now.since(due));
        if late <= part_ns {
            return;
        }
        self.probes.values_mut().for_each(|probe| probe.until = probe.until + late);
        self.suspicions.values_mut().for_each(|suspicion| suspicion.until = suspicion.until + late);
    }

    /// Whether this node has received a refutation of a report that a member is dead.
    pub(crate) fn is_refuted(&self, node: NodeId, incarnation: u32) -> bool {
        self.incarnation_of(node) > incarnation
    }

    /// Whether this node has suspected a member for long enough that it could have replied. Then it
    /// accepts the report of another node that the member is dead.
    pub(crate) fn confirms_failure(&self, now: Instant, node: NodeId) -> bool {
        let since = self.suspicions.get(&node).map(|suspicion| suspicion.since);
        let time_ns = self.detection_ns.map(|detection_ns| detection_ns / PARTS);
        since.zip(time_ns).is_some_and(|(since, time_ns)| now.since(since) >= time_ns)
    }
}

//! Who lives: probes, suspicion and refutation, for members whose connections are open and say nothing.
//!
//! After SWIM (Das, Gupta, Motivala: "SWIM: Scalable Weakly-consistent Infection-style Process Group Membership
//! Protocol", 2002): its probes by way of others (section 3.1), suspicion (4.2) and incarnations. It differs where this
//! cluster is not its own: every two members have a connection, so that rumours go to all at once and nothing is
//! gossiped; and a member is probed by the one before it in the order of ids, not by one that chance picks, so that the
//! time until one asks has a bound. As in Lifeguard (Dadgar, Phillips, Currey, 2018), a node that was asleep itself takes
//! no other for dead because of it.
//!
//! A process that ended is known sooner, by its connections. Knows members by id; not connections, nor what they hold.
//!
//! ```text
//!            Ping, nothing      PingReq to others, nothing        no member refutes it
//!   alive ------------------> asked for -----------------> suspect ----------------> dead
//!     ^  anything from it         |       Alive with a higher incarnation  |
//!     +---------------------------+<--------------------------------------+
//! ```

#[cfg(test)]
mod tests;

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{id::NodeId, limits::ERRANDS_MAX, members::Members, time::Instant};

/// The incarnation that stands for the end of a node's process.
pub const ENDED: u32 = u32::MAX;

/// Rumours to be sent, and to which members.
pub(crate) type Mail = Vec<(NodeId, Rumour)>;

/// What members say of who lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rumour {
    /// Are you there? Answered by `Ack`.
    Ping {
        /// To be named in the answer.
        sequence: u64,
    },
    /// I am alive, or the member that you had me ask is.
    Ack {
        /// Of the question.
        sequence: u64,
    },
    /// Please ask this node for me; answered by `Ack` if it answers.
    PingReq {
        /// Which member to ask.
        node: NodeId,
        /// To be named in the answer.
        sequence: u64,
    },
    /// It does not answer. Said to all, and by all to itself.
    Suspect {
        /// Who.
        node: NodeId,
        /// The last that was heard of it.
        incarnation: u32,
    },
    /// It lives: what was said of it in lower incarnations is void.
    Alive {
        /// Who.
        node: NodeId,
        /// Counted by itself alone.
        incarnation: u32,
    },
}

/// A member that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion {
    /// Who says so.
    pub by: NodeId,
    /// Since when.
    pub since: Instant,
    /// When it counts as dead.
    pub until: Instant,
    incarnation: u32,
}

/// Counted as dead just now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// Who.
    pub node: NodeId,
    /// The last that was heard of it.
    pub incarnation: u32,
    /// Why, in words.
    pub reason: String,
    /// Whether this node was the first to suspect it: it tells the others.
    pub is_mine: bool,
}

/// What this node does to know who lives.
#[derive(Debug)]
pub(crate) struct Swim {
    me: NodeId,
    /// A node that falls silent counts as dead after this; none never asks.
    detection_ns: Option<u64>,
    incarnation: u32,
    /// What others have said of themselves, where that is more than nothing; also those who are gone, for they may be back.
    incarnations: BTreeMap<NodeId, u32>,
    next_round: Option<Instant>,
    rounds: u64,
    /// The member that this node asked last of those that it asks in turn.
    last_in_turn: NodeId,
    counted: u64,
    probes: BTreeMap<NodeId, Probe>,
    suspicions: BTreeMap<NodeId, Suspicion>,
    /// Members for which one errand more was not run, since this was last asked.
    limited: Vec<NodeId>,
    /// Asked on behalf of others: by own sequence, which member, for which, by what sequence, until when.
    errands: BTreeMap<u64, Errand>,
}

#[derive(Debug)]
struct Probe {
    sequence: u64,
    /// When others are asked, or when they were: when it is suspected.
    until: Instant,
    is_indirect: bool,
}

#[derive(Debug)]
struct Errand {
    target: NodeId,
    asker: NodeId,
    theirs: u64,
    until: Instant,
}

/// Others that are asked to ask.
const HELPERS: usize = 3;

/// In every so many rounds a second member is asked, one after the other in turn.
const ROUNDS_PER_TURN: u64 = 4;

/// How many parts the time of detection has: one until the next probe, one for its answer, one for the answers to
/// others, and three for the suspect to learn of it.
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
            errands: BTreeMap::new(),
        }
    }

    /// Members for which one errand more was not run, since this was last asked.
    pub(crate) fn take_limited(&mut self) -> Vec<NodeId> {
        core::mem::take(&mut self.limited)
    }

    /// Who is suspected, by id.
    pub(crate) fn suspicions(&self) -> impl Iterator<Item = (NodeId, Suspicion)> {
        self.suspicions.iter().map(|(node, suspicion)| (*node, *suspicion))
    }

    /// The last that was heard of a member.
    pub(crate) fn incarnation_of(&self, node: NodeId) -> u32 {
        self.incarnations.get(&node).copied().unwrap_or_default()
    }

    /// When time alone changes something.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let probes = self.probes.values().map(|probe| probe.until).min();
        let suspicions = self.suspicions.values().map(|suspicion| suspicion.until).min();
        [self.next_round, probes, suspicions].into_iter().flatten().min()
    }

    /// There are other members, or none any more.
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

    /// Something came from a member.
    pub(crate) fn heard(&mut self, from: NodeId) {
        self.probes.remove(&from);
    }

    /// A connection to a member broke and can't be made again just now.
    pub(crate) fn doubt(&mut self, now: Instant, node: NodeId, members: &Members, mail: &mut Mail) {
        if members.contains(node) && !self.suspicions.contains_key(&node) {
            self.probe(now, node, mail);
        }
    }

    /// Asks who is to be asked, and finds out who does not answer; those who count as dead now.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        members: &Members,
        mail: &mut Mail,
    ) -> Vec<Death> {
        let Some(detection_ns) = self.detection_ns else { return Vec::new() };
        let part_ns = detection_ns / PARTS;
        self.forgive_own_absence(now, part_ns);
        self.errands.retain(|_, errand| errand.until > now);
        let over = self.probes.iter().filter(|(_, probe)| probe.until <= now);
        for node in over.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.probe_over(now, node, part_ns, members, mail);
        }
        if self.next_round.is_some_and(|at| at <= now) {
            self.next_round = Some(now + part_ns);
            self.rounds += 1;
            let next = self.after(self.me, members).find(|node| self.may_probe(*node));
            if let Some(node) = next {
                self.probe(now, node, mail);
            }
            // Members do not always agree on which comes after which: each asks every other now and then.
            let in_turn = self.after(self.last_in_turn, members).next();
            if let Some(node) = in_turn.filter(|_| self.rounds.is_multiple_of(ROUNDS_PER_TURN)) {
                self.last_in_turn = node;
                if self.may_probe(node) {
                    self.probe(now, node, mail);
                }
            }
        }
        let dead = self.suspicions.iter().filter(|(_, suspicion)| suspicion.until <= now);
        let death = |(node, suspicion): (&NodeId, &Suspicion)| Death {
            node: *node,
            incarnation: suspicion.incarnation,
            reason: format!(
                "it answered no node for {:.1} s, as node {} found",
                detection_ns as f64 / 1e9,
                suspicion.by
            ),
            is_mine: suspicion.by == self.me,
        };
        dead.map(death).collect()
    }

    /// Takes what a member says.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        from: NodeId,
        rumour: Rumour,
        members: &Members,
        mail: &mut Mail,
    ) {
        match rumour {
            Rumour::Ping { sequence } => mail.push((from, Rumour::Ack { sequence })),
            Rumour::Ack { sequence } => self.answered(from, sequence, mail),
            Rumour::PingReq { node, sequence } => {
                self.run_errand(now, from, node, sequence, members, mail);
            }
            Rumour::Suspect { node, incarnation } if node == self.me => {
                self.refute(from, incarnation, members, mail);
            }
            Rumour::Suspect { node, incarnation } => {
                self.suspect(now, node, from, incarnation, members, mail);
            }
            Rumour::Alive { node, incarnation } => {
                self.hear_alive(from, node, incarnation, members, mail);
            }
        }
    }

    fn may_probe(&self, node: NodeId) -> bool {
        !self.probes.contains_key(&node) && !self.suspicions.contains_key(&node)
    }

    /// The others that come after one in the order of ids, round to it.
    fn after(&self, node: NodeId, members: &Members) -> impl Iterator<Item = NodeId> {
        let before = members.others().filter(move |member| member.id < node);
        let after = members.others().filter(move |member| member.id > node);
        after.chain(before).map(|member| member.id)
    }

    fn count(&mut self) -> u64 {
        self.counted += 1;
        self.counted
    }

    fn probe(&mut self, now: Instant, node: NodeId, mail: &mut Mail) {
        let Some(detection_ns) = self.detection_ns else { return };
        if self.probes.contains_key(&node) {
            return;
        }
        let sequence = self.count();
        let probe = Probe { sequence, until: now + detection_ns / PARTS, is_indirect: false };
        self.probes.insert(node, probe);
        mail.push((node, Rumour::Ping { sequence }));
    }

    /// A probe had no answer: first others try, then the member is suspected.
    fn probe_over(
        &mut self,
        now: Instant,
        node: NodeId,
        part_ns: u64,
        members: &Members,
        mail: &mut Mail,
    ) {
        let Some(probe) = self.probes.get(&node) else { return };
        let sequence = probe.sequence;
        if probe.is_indirect {
            self.probes.remove(&node);
            let (incarnation, by) = (self.incarnation_of(node), self.me);
            let rumour = Rumour::Suspect { node, incarnation };
            mail.extend(members.others().map(|other| (other.id, rumour)));
            let until = now + SUSPICION_PARTS * part_ns;
            self.suspicions.insert(node, Suspicion { by, since: now, until, incarnation });
            // The members that come after it were left to it.
            self.next_round = Some(now);
            return;
        }
        let helpers = self.after(node, members).filter(|helper| self.may_probe(*helper));
        mail.extend(
            helpers.take(HELPERS).map(|helper| (helper, Rumour::PingReq { node, sequence })),
        );
        // What was lost with a connection is said again.
        mail.push((node, Rumour::Ping { sequence }));
        if let Some(probe) = self.probes.get_mut(&node) {
            probe.is_indirect = true;
            probe.until = now + part_ns;
        }
    }

    fn answered(&mut self, from: NodeId, sequence: u64, mail: &mut Mail) {
        // One that was asked itself, or others when it did not answer: any member may be one of those.
        self.probes.retain(|node, probe| {
            probe.sequence != sequence || *node != from && !probe.is_indirect
        });
        if self.errands.get(&sequence).is_some_and(|errand| errand.target == from)
            && let Some(errand) = self.errands.remove(&sequence)
        {
            mail.push((errand.asker, Rumour::Ack { sequence: errand.theirs }));
        }
    }

    fn run_errand(
        &mut self,
        now: Instant,
        asker: NodeId,
        target: NodeId,
        theirs: u64,
        members: &Members,
        mail: &mut Mail,
    ) {
        if !members.contains(target) || target == self.me {
            return;
        }
        if self.errands.len() >= ERRANDS_MAX {
            return self.limited.push(asker);
        }
        let sequence = self.count();
        let until = now + self.detection_ns.unwrap_or_default() / PARTS;
        self.errands.insert(sequence, Errand { target, asker, theirs, until });
        mail.push((target, Rumour::Ping { sequence }));
    }

    /// A member suspects this node.
    fn refute(&mut self, from: NodeId, incarnation: u32, members: &Members, mail: &mut Mail) {
        if incarnation >= self.incarnation {
            self.outlive(incarnation, members, mail);
        } else {
            let incarnation = self.incarnation;
            mail.push((from, Rumour::Alive { node: self.me, incarnation }));
        }
    }

    fn suspect(
        &mut self,
        now: Instant,
        node: NodeId,
        by: NodeId,
        incarnation: u32,
        members: &Members,
        mail: &mut Mail,
    ) {
        let known = self.incarnation_of(node);
        // Only the node itself counts: one of which this node has not heard may be made up.
        let incarnation = incarnation.min(known);
        let is_known = self.suspicions.get(&node).is_some_and(|it| it.incarnation >= incarnation);
        if !members.contains(node) || is_known {
            return;
        }
        if incarnation < known {
            return mail.push((by, Rumour::Alive { node, incarnation: known }));
        }
        self.probes.remove(&node);
        // The member that suspects it may not reach it.
        mail.push((node, Rumour::Suspect { node, incarnation }));
        let Some(detection_ns) = self.detection_ns else { return };
        let until = now + SUSPICION_PARTS * (detection_ns / PARTS);
        self.suspicions.insert(node, Suspicion { by, since: now, until, incarnation });
    }

    fn hear_alive(
        &mut self,
        from: NodeId,
        node: NodeId,
        incarnation: u32,
        members: &Members,
        mail: &mut Mail,
    ) {
        let known = self.incarnation_of(node);
        // What it says of itself holds, whatever others have said that it says.
        let is_news = if from == node { incarnation != known } else { incarnation > known };
        if !members.contains(node) || !is_news {
            return;
        }
        self.incarnations.insert(node, incarnation);
        self.probes.remove(&node);
        let Some(suspicion) = self.suspicions.remove(&node) else { return };
        // Those who suspect it may not be reached by it.
        let is_mine = suspicion.by == self.me;
        let told = members.others().map(|other| other.id);
        let told = told.filter(|other| *other != from && *other != node);
        let told = told.filter(|other| is_mine || *other == suspicion.by);
        mail.extend(told.map(|other| (other, Rumour::Alive { node, incarnation })));
    }

    /// Some had given this node up: whatever is said of its silence was said before.
    pub(crate) fn forgotten(&mut self, members: &Members, mail: &mut Mail) {
        self.outlive(self.incarnation, members, mail);
    }

    /// Tells all members that what was said of this node in an incarnation is void. It counts on from its own, for no member
    /// can have heard of a later one; what one says that it has heard is left out, so that the answer is news to it.
    fn outlive(&mut self, said: u32, members: &Members, mail: &mut Mail) {
        let after = |incarnation: u32| (incarnation + 1) % ENDED;
        self.incarnation = after(self.incarnation);
        if self.incarnation == said {
            self.incarnation = after(said);
        }
        let alive = Rumour::Alive { node: self.me, incarnation: self.incarnation };
        mail.extend(members.others().map(|other| (other.id, alive)));
    }

    /// Time in which this process did not run is no other's silence: their answers may lie unread.
    fn forgive_own_absence(&mut self, now: Instant, part_ns: u64) {
        let late = self.deadline().map_or(0, |due| now.since(due));
        if late <= part_ns {
            return;
        }
        self.probes.values_mut().for_each(|probe| probe.until = probe.until + late);
        self.suspicions.values_mut().for_each(|suspicion| suspicion.until = suspicion.until + late);
    }

    /// Another node counts a member as dead; whether this one knows better.
    pub(crate) fn is_refuted(&self, node: NodeId, incarnation: u32) -> bool {
        self.incarnation_of(node) > incarnation
    }

    /// Whether this node has suspected a member for so long that it could have answered: then the word of another that it
    /// is dead is enough.
    pub(crate) fn believes_death(&self, now: Instant, node: NodeId) -> bool {
        let since = self.suspicions.get(&node).map(|suspicion| suspicion.since);
        let time_ns = self.detection_ns.map(|detection_ns| detection_ns / PARTS);
        since.zip(time_ns).is_some_and(|(since, time_ns)| now.since(since) >= time_ns)
    }
}

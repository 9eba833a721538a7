//! Surveys: nodes without a configured place measure which of them share a link ([`crate::survey`]).
//!
//! The member with the lowest id surveys, and sends the result to all members. A survey begins when membership has not
//! changed for 2 s, if a member was not part of a survey before. Each round needs nodes that transfer no objects: a
//! busy node reports that, and the round does not count. A result is valid until another survey finds other groups, or
//! two surveys find none. If the surveying member is gone, the next one continues; it has the list of
//! surveyed members.
//!
//! A wrong result makes objects take longer paths. Therefore only messages of the member with the lowest id count, and
//! they cause little traffic: a node sends at most one burst every 50 ms. Knows members and bursts; does not know
//! objects.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec,
    vec::Vec,
};

use crate::{
    event::LogEvent,
    id::NodeId,
    inline::Inline,
    machines::world::World,
    members::Members,
    message::Message,
    place::{Group, Place},
    survey::{
        BURST_BYTES_MAX, Burst, FILLING_BYTES, FoundGroup, NODES_MAX, NODES_MIN, Round, Survey,
    },
    time::Instant,
};

/// How long membership must not change before a survey begins: nodes that start together have met by then.
const SETTLE_NS: u64 = 2_000_000_000;

/// Pause between two rounds: with bursts of 16 ms, a survey uses a link for a seventh of the time.
const GAP_NS: u64 = 100_000_000;

/// Timeout of a round: ten times what the longest burst takes on a link of 1 Gbit/s that eight nodes share.
const ROUND_NS: u64 = 1_500_000_000;

/// Pause after a round that does not count: 1 s, doubled after each further one up to the maximum.
const PAUSE_NS: u64 = 1_000_000_000;
const PAUSE_NS_MAX: u64 = 16 * PAUSE_NS;

/// Pause between two surveys, as a multiple of the duration of the previous one.
const RESTS: u64 = 9;

/// Minimum time between two bursts of a node, whatever it is ordered to do.
const BURSTS_NS: u64 = 50_000_000;

#[derive(Debug, Default)]
pub(crate) struct Surveys {
    is_on: bool,
    /// Whether a member takes no part, so that no survey is held.
    is_refused: bool,
    /// Members that were part of a survey.
    asked: BTreeSet<NodeId>,
    /// When this node begins a survey, or continues the current one.
    due: Option<Instant>,
    held: Option<ActiveSurvey>,
    /// When the next survey may begin.
    rests_until: Instant,
    /// The number of the last round.
    number: u32,
    /// Consecutive rounds that did not count.
    void: u32,
    /// The burst that this node is sending.
    sent: Option<SentBurst>,
    sent_at: Option<Instant>,
}

/// The survey that this node is holding.
#[derive(Debug)]
struct ActiveSurvey {
    survey: Survey,
    begun: Instant,
    round: Round,
    /// Nodes whose reports are missing; empty between rounds.
    missing: BTreeSet<NodeId>,
    times: BTreeMap<(NodeId, NodeId), u64>,
    is_void: bool,
    /// Whether it repeats a survey that found no groups although there were some before.
    is_second: bool,
}

#[derive(Debug)]
struct SentBurst {
    surveyor: NodeId,
    round: u32,
    to: NodeId,
    at: Instant,
}

impl Surveys {
    /// Enables surveys on this node.
    pub(crate) const fn begin(&mut self) {
        self.is_on = true;
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// The state of surveys as one word.
    pub(crate) fn state(&self, members: &Members) -> &'static str {
        if !self.is_on || self.is_refused || !can_be_surveyed(members) {
            "none"
        } else if members.iter().any(|member| !self.asked.contains(&member.id)) {
            "waiting"
        } else if members.found().is_empty() {
            "even"
        } else {
            "found"
        }
    }

    /// Handles a membership change: new members must be surveyed, together with all others.
    pub(crate) fn members_changed(&mut self, world: &World) {
        if let Some(held) = self.held.take() {
            self.rest(held.begun, world.now());
        }
        self.is_refused = false;
        self.asked.retain(|node| world.members().contains(*node));
        let begins = (world.now() + SETTLE_NS).max(self.rests_until);
        self.due = self.wants(world.members()).then_some(begins);
    }

    /// Sets the pause after a survey has ended or was aborted. Nodes that rejoin often cause measurements for only a
    /// small part of the time.
    fn rest(&mut self, begun: Instant, now: Instant) {
        self.rests_until = now + RESTS * now.since(begun);
    }

    /// Whether this node should hold a survey.
    fn wants(&self, members: &Members) -> bool {
        self.is_on
            && is_surveyor(members.me(), members)
            && can_be_surveyed(members)
            && members.iter().any(|member| !self.asked.contains(&member.id))
    }

    /// Handles what is due.
    pub(crate) fn expire(&mut self, world: &mut World) {
        if self.due.take_if(|due| *due <= world.now()).is_none() {
            return;
        }
        match &self.held {
            Some(held) if !held.missing.is_empty() => self.give_up_round(world.now()),
            Some(_) => self.begin_round(world),
            None if self.wants(world.members()) => {
                // New members get the current result at once, before the next survey.
                if !world.members().found().is_empty() {
                    let found = world.members().found();
                    let asked = self.asked.iter();
                    let places = asked.map(|node| (*node, found.get(node).copied())).collect();
                    tell(places, world);
                }
                self.hold(false, world);
            }
            None => {}
        }
    }

    fn hold(&mut self, is_second: bool, world: &mut World) {
        let survey = Survey::new(world.members().iter().map(|member| member.id).collect());
        let round = Round { pairs: Vec::new(), bytes: 0 };
        let (missing, times, is_void) = (BTreeSet::new(), BTreeMap::new(), false);
        let begun = world.now();
        self.held = Some(ActiveSurvey { survey, begun, round, missing, times, is_void, is_second });
        self.begin_round(world);
    }

    fn begin_round(&mut self, world: &mut World) {
        let Some(held) = &mut self.held else { return };
        let Some(round) = held.survey.next() else { return self.end(world) };
        self.number = self.number.wrapping_add(1);
        (held.times, held.is_void) = (BTreeMap::new(), false);
        for (one, other) in &round.pairs {
            for (from, to) in [(*one, *other), (*other, *one)] {
                held.missing.insert(from);
                let (round, bytes) = (self.number, round.bytes as u32);
                world.send(from, Message::Measure { round, to, bytes });
            }
        }
        held.round = round;
        self.due = Some(world.now() + ROUND_NS);
    }

    fn give_up_round(&mut self, now: Instant) {
        let Some(held) = &mut self.held else { return };
        held.missing.clear();
        let pause_ns = (PAUSE_NS << self.void.min(4)).min(PAUSE_NS_MAX);
        self.void += 1;
        self.due = Some(now + pause_ns);
    }

    /// Handles the report of a burst of the current round.
    fn measured(&mut self, from: NodeId, round: u32, burst: Burst, world: &World) {
        let Some(held) = self.held.as_mut().filter(|_| round == self.number) else { return };
        if !held.missing.remove(&from) {
            return;
        }
        if burst == Burst::Refused {
            // Without one node there is no result at all, until membership changes.
            (self.is_refused, self.held, self.due) = (true, None, None);
            return;
        }
        let pair = held.round.pairs.iter().find(|(a, b)| *a == from || *b == from);
        match (burst, pair) {
            (Burst::Took(ns), Some((a, b))) => {
                held.times.insert((from, if *a == from { *b } else { *a }), ns);
            }
            _ => held.is_void = true,
        }
        if !held.missing.is_empty() {
            return;
        }
        if held.is_void {
            return self.give_up_round(world.now());
        }
        held.survey.took(&held.round, &held.times);
        self.void = 0;
        self.due = Some(world.now() + GAP_NS);
    }

    /// Ends a survey, and sends its result to all members.
    fn end(&mut self, world: &mut World) {
        let Some(ActiveSurvey { survey, begun, is_second, .. }) = self.held.take() else { return };
        self.rest(begun, world.now());
        let found = survey.found();
        if found.is_empty() && !world.members().found().is_empty() && !is_second {
            return self.hold(true, world);
        }
        world.note(LogEvent::Surveyed {
            nodes: survey.nodes().len(),
            groups: found.last().map_or(0, Vec::len),
        });
        tell(placed(survey.nodes(), &found), world);
    }

    /// Handles a message of a survey. If this node transfers objects (`is_busy`), its bursts do not count.
    pub(crate) fn receive(
        &mut self,
        from: NodeId,
        message: Message,
        is_busy: bool,
        world: &mut World,
    ) {
        match message {
            Message::Measure { round, to, bytes } => {
                self.measure(from, round, to, bytes, is_busy, world);
            }
            Message::Burst { round, left: 0, .. } => {
                world.send(from, Message::BurstReceived { round, is_busy });
            }
            Message::BurstReceived { round, is_busy: was_busy } => {
                self.burst_came(from, round, is_busy || was_busy, world);
            }
            Message::Measured { round, burst } => self.measured(from, round, burst, world),
            Message::Places { places } => self.told(from, places, world),
            _ => {}
        }
    }

    /// Sends a burst to another member, on behalf of the surveying member.
    fn measure(
        &mut self,
        surveyor: NodeId,
        round: u32,
        to: NodeId,
        bytes: u32,
        is_busy: bool,
        world: &mut World,
    ) {
        let now = world.now();
        let is_early = self.sent_at.is_some_and(|at| now.since(at) < BURSTS_NS);
        let is_known = to != world.me() && world.members().contains(to);
        if !self.is_on {
            let burst = Burst::Refused;
            return world.send(surveyor, Message::Measured { round, burst });
        }
        if !is_surveyor(surveyor, world.members()) || is_early || !is_known || is_busy {
            return world.send(surveyor, Message::Measured { round, burst: Burst::Void });
        }
        self.sent = Some(SentBurst { surveyor, round, to, at: now });
        self.sent_at = Some(now);
        let filling = Inline::from(vec![0; FILLING_BYTES as usize]);
        let count = u64::from(bytes).min(BURST_BYTES_MAX).div_ceil(FILLING_BYTES).max(1);
        for left in (0..count as u16).rev() {
            world.send(to, Message::Burst { round, left, filling: filling.clone() });
        }
    }

    /// Handles the confirmation that the burst of this node has arrived completely.
    fn burst_came(&mut self, from: NodeId, round: u32, is_busy: bool, world: &mut World) {
        let is_it = |sent: &mut SentBurst| sent.to == from && sent.round == round;
        let Some(SentBurst { surveyor, at, .. }) = self.sent.take_if(is_it) else { return };
        let burst = if is_busy { Burst::Void } else { Burst::Took(world.now().since(at)) };
        world.send(surveyor, Message::Measured { round, burst });
    }

    /// Handles the places that the surveying member has found.
    fn told(&mut self, from: NodeId, places: Vec<(NodeId, Option<Place>)>, world: &mut World) {
        if !self.is_on || !is_surveyor(from, world.members()) {
            return;
        }
        self.asked = places.iter().map(|(node, _)| *node).collect();
        let found = places.into_iter().filter_map(|(node, place)| Some((node, place?)));
        let found = found.collect();
        world.members_mut().find(found);
    }
}

/// Sends places to all members, including this node.
fn tell(places: Vec<(NodeId, Option<Place>)>, world: &mut World) {
    for node in world.others().into_iter().chain([world.me()]) {
        world.send(node, Message::Places { places: places.clone() });
    }
}

/// The place of each node, from the groups found at each level, the outermost level first.
fn placed(nodes: &[NodeId], found: &[Vec<FoundGroup>]) -> Vec<(NodeId, Option<Place>)> {
    let place = |node: &NodeId| {
        let (mut groups, mut label) = (Vec::new(), String::from("measured"));
        for level in found {
            let Some(number) = level.iter().position(|found| found.nodes.contains(node)) else {
                continue;
            };
            label = format!("{label}-{number}");
            groups.push(Group { label: label.clone(), carries: level[number].carries });
        }
        Place::new(&groups).ok()
    };
    nodes.iter().map(|node| (*node, place(node))).collect()
}

fn is_surveyor(node: NodeId, members: &Members) -> bool {
    members.iter().next().is_some_and(|first| first.id == node)
}

/// Whether a survey is useful: for a few hosts without configured places, but not for nodes on one host.
fn can_be_surveyed(members: &Members) -> bool {
    let is_strange = |address: core::net::IpAddr| !address.is_loopback();
    let hosts: BTreeSet<_> = members.iter().map(|member| member.address.ip()).collect();
    (NODES_MIN..=NODES_MAX).contains(&members.len())
        && hosts.len() >= NODES_MIN
        && hosts.into_iter().all(is_strange)
        && members.iter().all(|member| member.place.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Action;

    /// Node 1 of three, with surveys enabled.
    fn begun() -> (Surveys, World) {
        let (mut surveys, world) = (Surveys::default(), World::of(3));
        surveys.begin();
        (surveys, world)
    }

    /// Goal: a member that may not survey causes no bursts, and a member that may survey causes few.
    #[test]
    fn only_the_member_with_the_lowest_id_causes_bursts_and_few() {
        let (mut surveys, mut world) = begun();
        let (one, two, three) = (NodeId(1), NodeId(2), NodeId(3));
        surveys.measure(two, 1, three, 1 << 20, false, &mut world);
        let refused = Message::Measured { round: 1, burst: Burst::Void };
        assert_eq!(world.taken(), [Action::Send { to: two, message: refused }]);

        surveys.measure(one, 2, three, u32::MAX, false, &mut world);
        let bursts = world.taken();
        assert_eq!(bursts.len() as u64 * FILLING_BYTES, BURST_BYTES_MAX);
        surveys.measure(one, 3, three, 1, false, &mut world);
        assert_eq!(world.taken(), [], "it has just sent a burst");
        assert_eq!(world.next_loopback(), Some(Message::Measured { round: 3, burst: Burst::Void }));
        surveys.burst_came(three, 2, false, &mut world);
        assert_eq!(
            world.next_loopback(),
            Some(Message::Measured { round: 2, burst: Burst::Took(0) })
        );
    }

    /// Goal: a node that takes no part sends no burst, and the survey ends.
    #[test]
    fn a_survey_ends_when_a_node_takes_no_part() {
        let (mut surveys, mut world) = (Surveys::default(), World::of(3));
        surveys.measure(NodeId(1), 1, NodeId(3), 1 << 20, false, &mut world);
        assert_eq!(world.taken(), []);
        let refused = Message::Measured { round: 1, burst: Burst::Refused };
        assert_eq!(world.next_loopback(), Some(refused));

        let mut world = World::of(4);
        surveys.begin();
        surveys.hold(false, &mut world);
        assert!(surveys.deadline().is_some());
        let asked = surveys.held.as_ref().and_then(|held| held.missing.first().copied());
        surveys.measured(asked.unwrap(), surveys.number, Burst::Refused, &world);
        assert_eq!(surveys.deadline(), None);
        assert!(surveys.held.is_none());
    }

    #[test]
    fn a_node_that_transfers_objects_sends_no_burst() {
        let (mut surveys, mut world) = begun();
        surveys.measure(NodeId(1), 1, NodeId(3), 1 << 20, true, &mut world);
        assert_eq!(world.taken(), []);
        assert_eq!(world.next_loopback(), Some(Message::Measured { round: 1, burst: Burst::Void }));
    }

    #[test]
    fn places_are_accepted_only_from_the_member_with_the_lowest_id() {
        let (mut surveys, mut world) = begun();
        let places = Vec::from([(NodeId(2), "r".parse().ok()), (NodeId(3), None)]);
        surveys.told(NodeId(2), places.clone(), &mut world);
        assert!(world.members().found().is_empty());
        surveys.told(NodeId(1), places, &mut world);
        assert!(world.members().place(NodeId(2)).is_some());
        assert!(world.members().place(NodeId(3)).is_none());
    }
}

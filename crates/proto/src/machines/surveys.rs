//! Surveys: nodes that were told nothing find out which of them share a link ([`crate::survey`]).
//!
//! The member with the lowest id surveys, and tells all members what it has found. It begins when members have not changed for
//! 2 s, if one of them was not asked before, and each round waits until no node moves objects: a node that does says so, and
//! the round counts for nothing. What was found counts until another survey finds other groups, or two find none. If the member
//! that surveys is gone the next one goes on, which knows who was asked.
//!
//! A member can be lied to: then objects take longer ways. So the word of the member with the lowest id alone counts, and it has a node
//! send little: a burst at most every 50 ms. Knows members and bursts; does not know objects.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec,
    vec::Vec,
};

use crate::{
    event::Note,
    id::NodeId,
    inline::Inline,
    machines::world::World,
    members::Members,
    message::Message,
    place::{Group, Place},
    survey::{BURST_BYTES_MAX, Burst, FILLING_BYTES, Found, NODES_MAX, NODES_MIN, Round, Survey},
    time::Instant,
};

/// How long members have not changed when a survey begins: nodes that are started together have met by then.
const SETTLE_NS: u64 = 2_000_000_000;

/// Between two rounds: with bursts of 16 ms, a link is busy for a seventh of the time of a survey.
const GAP_NS: u64 = 100_000_000;

/// When a round is given up: ten times what the longest burst takes on a link of 1 Gbit/s that eight share.
const ROUND_NS: u64 = 1_500_000_000;

/// After a round that counts for nothing: 1 s, twice as long after each further one, and so long at most.
const PAUSE_NS: u64 = 1_000_000_000;
const PAUSE_NS_MAX: u64 = 16 * PAUSE_NS;

/// Between two surveys, as many times as long as the one before took.
const RESTS: u64 = 9;

/// Between two bursts of a node, whatever it is told.
const BURSTS_NS: u64 = 50_000_000;

#[derive(Debug, Default)]
pub(crate) struct Surveys {
    is_on: bool,
    /// A member takes no part, and so nothing is asked of the others.
    is_refused: bool,
    /// Members that a survey has asked.
    asked: BTreeSet<NodeId>,
    /// When this node begins a survey, or has to do with the one it holds.
    due: Option<Instant>,
    held: Option<Held>,
    /// When the next survey may begin.
    rests_until: Instant,
    /// The number of the last round.
    number: u32,
    /// Rounds in a row that counted for nothing.
    void: u32,
    /// The burst that this node sends.
    sent: Option<Sent>,
    sent_at: Option<Instant>,
}

/// The survey that this node holds.
#[derive(Debug)]
struct Held {
    survey: Survey,
    begun: Instant,
    round: Round,
    /// Whose answers are missing; empty between rounds.
    missing: BTreeSet<NodeId>,
    times: BTreeMap<(NodeId, NodeId), u64>,
    is_void: bool,
    /// Another one has found no groups, where there were some before.
    is_second: bool,
}

#[derive(Debug)]
struct Sent {
    surveyor: NodeId,
    round: u32,
    to: NodeId,
    at: Instant,
}

impl Surveys {
    /// This node takes part.
    pub(crate) const fn begin(&mut self) {
        self.is_on = true;
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// How far it is, in a word.
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

    /// Members have come or gone: who has come has to be asked, together with all others.
    pub(crate) fn members_changed(&mut self, world: &World) {
        if let Some(held) = self.held.take() {
            self.rest(held.begun, world.now());
        }
        self.is_refused = false;
        self.asked.retain(|node| world.members().contains(*node));
        let begins = (world.now() + SETTLE_NS).max(self.rests_until);
        self.due = self.wants(world.members()).then_some(begins);
    }

    /// A survey is over, or given up: nodes that come again and again have others measure for a small part of the time only.
    fn rest(&mut self, begun: Instant, now: Instant) {
        self.rests_until = now + RESTS * now.since(begun);
    }

    /// Whether this node is to hold a survey.
    fn wants(&self, members: &Members) -> bool {
        self.is_on
            && is_surveyor(members.me(), members)
            && can_be_surveyed(members)
            && members.iter().any(|member| !self.asked.contains(&member.id))
    }

    /// Something may be due.
    pub(crate) fn expire(&mut self, world: &mut World) {
        if self.due.take_if(|due| *due <= world.now()).is_none() {
            return;
        }
        match &self.held {
            Some(held) if !held.missing.is_empty() => self.give_up_round(world.now()),
            Some(_) => self.begin_round(world),
            None if self.wants(world.members()) => {
                // Those who have come know where they stand as soon as there is something to know.
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
        self.held = Some(Held { survey, begun, round, missing, times, is_void, is_second });
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

    /// What became of a burst of the round at hand.
    fn measured(&mut self, from: NodeId, round: u32, burst: Burst, world: &World) {
        let Some(held) = self.held.as_mut().filter(|_| round == self.number) else { return };
        if !held.missing.remove(&from) {
            return;
        }
        if burst == Burst::Refused {
            // Without one node nothing is found of all: until members change.
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

    /// A survey is over: all members hear what it found.
    fn end(&mut self, world: &mut World) {
        let Some(Held { survey, begun, is_second, .. }) = self.held.take() else { return };
        self.rest(begun, world.now());
        let found = survey.found();
        if found.is_empty() && !world.members().found().is_empty() && !is_second {
            return self.hold(true, world);
        }
        world.note(Note::Surveyed {
            nodes: survey.nodes().len(),
            groups: found.last().map_or(0, Vec::len),
        });
        tell(placed(survey.nodes(), &found), world);
    }

    /// Handles a message of a survey. This node is busy if it moves objects: its bursts would say nothing.
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
                world.send(from, Message::BurstCame { round, is_busy });
            }
            Message::BurstCame { round, is_busy: was_busy } => {
                self.burst_came(from, round, is_busy || was_busy, world);
            }
            Message::Measured { round, burst } => self.measured(from, round, burst, world),
            Message::Places { places } => self.told(from, places, world),
            _ => {}
        }
    }

    /// The member that surveys has this node send a burst to another.
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
        self.sent = Some(Sent { surveyor, round, to, at: now });
        self.sent_at = Some(now);
        let filling = Inline::from(vec![0; FILLING_BYTES as usize]);
        let count = u64::from(bytes).min(BURST_BYTES_MAX).div_ceil(FILLING_BYTES).max(1);
        for left in (0..count as u16).rev() {
            world.send(to, Message::Burst { round, left, filling: filling.clone() });
        }
    }

    /// All of the burst that this node sends has come.
    fn burst_came(&mut self, from: NodeId, round: u32, is_busy: bool, world: &mut World) {
        let is_it = |sent: &mut Sent| sent.to == from && sent.round == round;
        let Some(Sent { surveyor, at, .. }) = self.sent.take_if(is_it) else { return };
        let burst = if is_busy { Burst::Void } else { Burst::Took(world.now().since(at)) };
        world.send(surveyor, Message::Measured { round, burst });
    }

    /// The member that surveys tells where members stand.
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

/// Tells all members, and this node itself.
fn tell(places: Vec<(NodeId, Option<Place>)>, world: &mut World) {
    for node in world.others().into_iter().chain([world.me()]) {
        world.send(node, Message::Places { places: places.clone() });
    }
}

/// Where each node stands, by what was found at each level, the outermost first.
fn placed(nodes: &[NodeId], found: &[Vec<Found>]) -> Vec<(NodeId, Option<Place>)> {
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

/// Whether a survey would say anything: of a few hosts that were told nothing, not of nodes of one host.
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

    /// Node 1 of three, which takes part.
    fn begun() -> (Surveys, World) {
        let (mut surveys, world) = (Surveys::default(), World::of(3));
        surveys.begin();
        (surveys, world)
    }

    /// Goal: a member that is not to survey has a node send nothing, and the one that is has it send little.
    #[test]
    fn only_the_member_with_the_lowest_id_has_a_node_send_and_not_much() {
        let (mut surveys, mut world) = begun();
        let (one, two, three) = (NodeId(1), NodeId(2), NodeId(3));
        surveys.measure(two, 1, three, 1 << 20, false, &mut world);
        let refused = Message::Measured { round: 1, burst: Burst::Void };
        assert_eq!(world.taken(), [Action::Send { to: two, message: refused }]);

        surveys.measure(one, 2, three, u32::MAX, false, &mut world);
        let bursts = world.taken();
        assert_eq!(bursts.len() as u64 * FILLING_BYTES, BURST_BYTES_MAX);
        surveys.measure(one, 3, three, 1, false, &mut world);
        assert_eq!(world.taken(), [], "it has sent a burst a moment ago");
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
    fn a_node_that_moves_objects_sends_no_burst() {
        let (mut surveys, mut world) = begun();
        surveys.measure(NodeId(1), 1, NodeId(3), 1 << 20, true, &mut world);
        assert_eq!(world.taken(), []);
        assert_eq!(world.next_loopback(), Some(Message::Measured { round: 1, burst: Burst::Void }));
    }

    #[test]
    fn places_are_those_that_the_member_with_the_lowest_id_tells() {
        let (mut surveys, mut world) = begun();
        let places = Vec::from([(NodeId(2), "r".parse().ok()), (NodeId(3), None)]);
        surveys.told(NodeId(2), places.clone(), &mut world);
        assert!(world.members().found().is_empty());
        surveys.told(NodeId(1), places, &mut world);
        assert!(world.members().place(NodeId(2)).is_some());
        assert!(world.members().place(NodeId(3)).is_none());
    }
}

//! The part of one node in surveys: it holds them if it has the lowest id, and sends bursts for those that others hold.
//!
//! The member with the lowest id surveys, and sends the result to all members. A survey begins when membership has not
//! changed for 2 s, if a member was not part of a survey before. Each round needs nodes that transfer no objects: a
//! busy node reports that, and the round does not count. A result is valid until another survey finds other groups, or
//! two surveys find none. If the surveying member is gone, the next one continues; it has the list of
//! surveyed members.
//!
//! A wrong result makes objects take longer paths. Therefore only messages of the member with the lowest id count, and
//! they cause little traffic: a node sends at most one burst every 50 ms. Knows members and bursts; does not know
//! objects, only whether the node transfers any.

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    format,
    string::String,
    vec,
    vec::Vec,
};

use hoplite_proto::{
    id::NodeId,
    inline::Inline,
    members::Members,
    place::{Group, Place},
    time::Instant,
};

use crate::{
    message::{Burst, Message},
    survey::{BURST_BYTES_MAX, FILLING_BYTES, FoundGroup, NODES_MAX, NODES_MIN, Round, Survey},
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

/// What a survey causes outside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a message to another member.
    Send {
        /// The member.
        to: NodeId,
        /// The message, at most [`hoplite_proto::limits::SURVEY_BYTES_MAX`].
        message: Inline,
    },
    /// The measured places of members, in place of all earlier ones.
    PlacesFound(BTreeMap<NodeId, Place>),
    /// A survey that this node held has ended.
    Surveyed {
        /// Number of surveyed members.
        nodes: usize,
        /// Number of the innermost groups.
        groups: usize,
    },
}

/// What surveys need of the members. Takes the same time for each number of members above [`NODES_MAX`].
#[derive(Debug)]
pub struct Scope {
    /// Empty if there are more than [`NODES_MAX`].
    members: BTreeSet<NodeId>,
    /// Whether a survey of them is useful.
    can_be_surveyed: bool,
}

impl Scope {
    /// The scope of all members.
    pub fn new(members: &Members) -> Self {
        if members.len() > NODES_MAX {
            return Self { members: BTreeSet::new(), can_be_surveyed: false };
        }
        Self {
            members: members.iter().map(|member| member.id).collect(),
            can_be_surveyed: can_be_surveyed(members),
        }
    }
}

/// This node's part in surveys.
#[derive(Debug)]
pub struct Surveys {
    me: NodeId,
    is_on: bool,
    scope: Scope,
    /// The measured places.
    found: BTreeMap<NodeId, Place>,
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
    /// Messages of this node to itself.
    own: VecDeque<Message>,
    effects: Vec<Effect>,
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
    /// The part of the node `me`, which is alone in its cluster. Without `is_on` it takes no part, so that no survey
    /// is held.
    pub fn new(me: NodeId, is_on: bool) -> Self {
        Self {
            me,
            is_on,
            scope: Scope { members: BTreeSet::from([me]), can_be_surveyed: false },
            found: BTreeMap::new(),
            is_refused: false,
            asked: BTreeSet::new(),
            due: None,
            held: None,
            rests_until: Instant::default(),
            number: 0,
            void: 0,
            sent: None,
            sent_at: None,
            own: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    /// When [`Surveys::expire`] must be called.
    pub const fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// The state of surveys as one word.
    pub fn state(&self) -> &'static str {
        if !self.is_on || self.is_refused || !self.scope.can_be_surveyed {
            "none"
        } else if self.has_strangers() {
            "waiting"
        } else if self.found.is_empty() {
            "even"
        } else {
            "found"
        }
    }

    /// Handles a membership change: new members must be surveyed, together with all others.
    pub fn members_changed(&mut self, now: Instant, scope: Scope) {
        if let Some(held) = self.held.take() {
            self.rest(held.begun, now);
        }
        self.is_refused = false;
        // Of too many members, nothing is known.
        self.asked.retain(|node| scope.members.is_empty() || scope.members.contains(node));
        self.scope = scope;
        self.due = self.wants().then_some((now + SETTLE_NS).max(self.rests_until));
    }

    /// Handles what is due. `is_busy`: whether this node transfers objects.
    pub fn expire(&mut self, now: Instant, is_busy: bool) -> Vec<Effect> {
        if self.due.take_if(|due| *due <= now).is_some() {
            match &self.held {
                Some(held) if !held.missing.is_empty() => self.give_up_round(now),
                Some(_) => self.begin_round(now),
                None if self.wants() => {
                    // New members get the current result at once, before the next survey.
                    if !self.found.is_empty() {
                        let place = |node: &NodeId| (*node, self.found.get(node).copied());
                        self.tell(self.asked.iter().map(place).collect());
                    }
                    self.hold(now, false);
                }
                None => {}
            }
        }
        self.settle(now, is_busy)
    }

    /// Handles a message of another member. A malformed one comes from a broken peer and is dropped. If this node
    /// transfers objects (`is_busy`), its bursts do not count.
    pub fn receive(
        &mut self,
        now: Instant,
        from: NodeId,
        message: &Inline,
        is_busy: bool,
    ) -> Vec<Effect> {
        if let Some(message) = Message::decode(message) {
            self.handle(now, from, message, is_busy);
        }
        self.settle(now, is_busy)
    }

    /// Handles the messages of this node to itself, and returns all effects.
    fn settle(&mut self, now: Instant, is_busy: bool) -> Vec<Effect> {
        while let Some(message) = self.own.pop_front() {
            self.handle(now, self.me, message, is_busy);
        }
        core::mem::take(&mut self.effects)
    }

    fn send(&mut self, to: NodeId, message: Message) {
        if to == self.me {
            self.own.push_back(message);
        } else {
            self.effects.push(Effect::Send { to, message: message.encode() });
        }
    }

    /// Sets the pause after a survey has ended or was aborted. Nodes that rejoin often cause measurements for only a
    /// small part of the time.
    fn rest(&mut self, begun: Instant, now: Instant) {
        self.rests_until = now + RESTS * now.since(begun);
    }

    /// Whether this node should hold a survey.
    fn wants(&self) -> bool {
        self.is_on
            && self.is_surveyor(self.me)
            && self.scope.can_be_surveyed
            && self.has_strangers()
    }

    fn is_surveyor(&self, node: NodeId) -> bool {
        self.scope.members.first() == Some(&node)
    }

    /// Whether some members were not part of a survey.
    fn has_strangers(&self) -> bool {
        !self.scope.members.is_subset(&self.asked)
    }

    fn hold(&mut self, begun: Instant, is_second: bool) {
        let survey = Survey::new(self.scope.members.iter().copied().collect());
        let round = Round { pairs: Vec::new(), bytes: 0 };
        let (missing, times, is_void) = (BTreeSet::new(), BTreeMap::new(), false);
        self.held = Some(ActiveSurvey { survey, begun, round, missing, times, is_void, is_second });
        self.begin_round(begun);
    }

    fn begin_round(&mut self, now: Instant) {
        let Some(held) = &mut self.held else { return };
        let Some(round) = held.survey.next() else { return self.end(now) };
        self.number = self.number.wrapping_add(1);
        (held.times, held.is_void) = (BTreeMap::new(), false);
        held.missing = round.pairs.iter().flat_map(|(one, other)| [*one, *other]).collect();
        held.round = round.clone();
        self.due = Some(now + ROUND_NS);
        let (number, bytes) = (self.number, round.bytes as u32);
        for (one, other) in round.pairs {
            self.send(one, Message::Measure { round: number, to: other, bytes });
            self.send(other, Message::Measure { round: number, to: one, bytes });
        }
    }

    fn give_up_round(&mut self, now: Instant) {
        let Some(held) = &mut self.held else { return };
        held.missing.clear();
        let pause_ns = (PAUSE_NS << self.void.min(4)).min(PAUSE_NS_MAX);
        self.void += 1;
        self.due = Some(now + pause_ns);
    }

    /// Handles the report of a burst of the current round.
    fn measured(&mut self, now: Instant, from: NodeId, round: u32, burst: Burst) {
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
            return self.give_up_round(now);
        }
        held.survey.took(&held.round, &held.times);
        self.void = 0;
        self.due = Some(now + GAP_NS);
    }

    /// Ends a survey, and sends its result to all members.
    fn end(&mut self, now: Instant) {
        let Some(ActiveSurvey { survey, begun, is_second, .. }) = self.held.take() else { return };
        self.rest(begun, now);
        let found = survey.found();
        if found.is_empty() && !self.found.is_empty() && !is_second {
            return self.hold(now, true);
        }
        let (nodes, groups) = (survey.nodes().len(), found.last().map_or(0, Vec::len));
        self.effects.push(Effect::Surveyed { nodes, groups });
        self.tell(placed(survey.nodes(), &found));
    }

    /// Sends places to all members, including this node.
    fn tell(&mut self, places: Vec<(NodeId, Option<Place>)>) {
        for node in self.scope.members.clone() {
            self.send(node, Message::Places(places.clone()));
        }
    }

    fn handle(&mut self, now: Instant, from: NodeId, message: Message, is_busy: bool) {
        match message {
            Message::Measure { round, to, bytes } => {
                self.measure(now, from, round, to, bytes, is_busy);
            }
            Message::Burst { is_last: false, .. } => {}
            Message::Burst { round, .. } => {
                self.send(from, Message::BurstReceived { round, is_busy });
            }
            Message::BurstReceived { round, is_busy: was_busy } => {
                self.burst_came(now, from, round, is_busy || was_busy);
            }
            Message::Measured { round, burst } => self.measured(now, from, round, burst),
            Message::Places(places) => self.told(from, places),
        }
    }

    /// Sends a burst to another member, on behalf of the surveying member.
    fn measure(
        &mut self,
        now: Instant,
        surveyor: NodeId,
        round: u32,
        to: NodeId,
        bytes: u32,
        is_busy: bool,
    ) {
        let is_early = self.sent_at.is_some_and(|at| now.since(at) < BURSTS_NS);
        let is_known = to != self.me && self.scope.members.contains(&to);
        if !self.is_on {
            let burst = Burst::Refused;
            return self.send(surveyor, Message::Measured { round, burst });
        }
        if !self.is_surveyor(surveyor) || is_early || !is_known || is_busy {
            return self.send(surveyor, Message::Measured { round, burst: Burst::Void });
        }
        self.sent = Some(SentBurst { surveyor, round, to, at: now });
        self.sent_at = Some(now);
        let filling = Inline::from(vec![0; FILLING_BYTES as usize]);
        let part = |is_last| Message::Burst { round, is_last, filling: filling.clone() }.encode();
        let count = u64::from(bytes).min(BURST_BYTES_MAX).div_ceil(FILLING_BYTES).max(1);
        let (others, last) = (vec![part(false); count as usize - 1], part(true));
        let parts = others.into_iter().chain([last]);
        self.effects.extend(parts.map(|message| Effect::Send { to, message }));
    }

    /// Handles the confirmation that the burst of this node has arrived completely.
    fn burst_came(&mut self, now: Instant, from: NodeId, round: u32, is_busy: bool) {
        let is_it = |sent: &mut SentBurst| sent.to == from && sent.round == round;
        let Some(SentBurst { surveyor, at, .. }) = self.sent.take_if(is_it) else { return };
        let burst = if is_busy { Burst::Void } else { Burst::Took(now.since(at)) };
        self.send(surveyor, Message::Measured { round, burst });
    }

    /// Handles the places that the surveying member has found.
    fn told(&mut self, from: NodeId, places: Vec<(NodeId, Option<Place>)>) {
        if !self.is_on || !self.is_surveyor(from) {
            return;
        }
        self.asked = places.iter().map(|(node, _)| *node).collect();
        let found = places.into_iter().filter_map(|(node, place)| Some((node, place?))).collect();
        if self.found != found {
            self.effects.push(Effect::PlacesFound(found.clone()));
            self.found = found;
        }
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

/// Whether a survey is useful: for a few hosts without configured places, but not for nodes on one host.
fn can_be_surveyed(members: &Members) -> bool {
    if !(NODES_MIN..=NODES_MAX).contains(&members.len()) {
        return false;
    }
    let is_strange = |address: core::net::IpAddr| !address.is_loopback();
    let hosts: BTreeSet<_> = members.iter().map(|member| member.address.ip()).collect();
    hosts.len() >= NODES_MIN
        && hosts.into_iter().all(is_strange)
        && members.iter().all(|member| member.place.is_none())
}

#[cfg(test)]
mod tests {
    use hoplite_proto::members::Member;
    use proptest::prelude::*;

    use super::*;

    const NOW: Instant = Instant(1 << 40);
    const ME: NodeId = NodeId(1);

    /// Node 1 of a cluster of nodes 1 to `count`, on a host each.
    fn of(count: u8) -> Surveys {
        let member = |number: u8| Member {
            id: NodeId(number.into()),
            address: ([10, 0, 0, number], 7420).into(),
            place: None,
        };
        let mut members = Members::new(member(1));
        (2..=count).for_each(|number| assert!(members.insert(member(number))));
        let mut surveys = Surveys::new(ME, true);
        surveys.members_changed(NOW, Scope::new(&members));
        surveys
    }

    /// The messages to other members, without effects of other kinds.
    fn sent(effects: Vec<Effect>) -> Vec<(NodeId, Message)> {
        let of_effect = |effect| match effect {
            Effect::Send { to, message } => Some((to, Message::decode(&message).unwrap())),
            _ => None,
        };
        effects.into_iter().filter_map(of_effect).collect()
    }

    impl Surveys {
        fn receives(&mut self, from: NodeId, message: Message, is_busy: bool) -> Vec<Effect> {
            self.receive(NOW, from, &message.encode(), is_busy)
        }

        /// The next message to this node itself.
        fn own(&mut self) -> Option<Message> {
            self.own.pop_front()
        }
    }

    /// Goal: a member that may not survey causes no bursts, and a member that may survey causes few.
    #[test]
    fn only_the_member_with_the_lowest_id_causes_bursts_and_few() {
        let mut surveys = of(3);
        let (two, three) = (NodeId(2), NodeId(3));
        let measure = Message::Measure { round: 1, to: three, bytes: 1 << 20 };
        let refused = Message::Measured { round: 1, burst: Burst::Void };
        assert_eq!(sent(surveys.receives(two, measure, false)), [(two, refused)]);

        surveys.measure(NOW, ME, 2, three, u32::MAX, false);
        let bursts = sent(core::mem::take(&mut surveys.effects));
        assert_eq!(bursts.len() as u64 * FILLING_BYTES, BURST_BYTES_MAX);
        let is_last = |(_, message): &_| matches!(message, Message::Burst { is_last: true, .. });
        assert_eq!(bursts.iter().position(is_last), Some(bursts.len() - 1));
        surveys.measure(NOW, ME, 3, three, 1, false);
        assert_eq!(surveys.effects, [], "it has just sent a burst");
        assert_eq!(surveys.own(), Some(Message::Measured { round: 3, burst: Burst::Void }));
        surveys.burst_came(NOW, three, 2, false);
        assert_eq!(surveys.own(), Some(Message::Measured { round: 2, burst: Burst::Took(0) }));
    }

    /// Goal: a node that takes no part sends no burst, and the survey ends.
    #[test]
    fn a_survey_ends_when_a_node_takes_no_part() {
        let mut surveys = Surveys::new(NodeId(2), false);
        let measure = Message::Measure { round: 1, to: NodeId(3), bytes: 1 << 20 };
        let refused = Message::Measured { round: 1, burst: Burst::Refused };
        assert_eq!(sent(surveys.receives(ME, measure, false)), [(ME, refused.clone())]);

        let mut surveys = of(4);
        let due = surveys.deadline().unwrap();
        let asked = sent(surveys.expire(due, false));
        assert!(surveys.deadline().is_some() && surveys.state() == "waiting");
        surveys.receives(asked[0].0, refused, false);
        assert_eq!((surveys.deadline(), surveys.state()), (None, "none"));
        assert!(surveys.held.is_none());
    }

    #[test]
    fn a_node_that_transfers_objects_sends_no_burst() {
        let mut surveys = of(3);
        surveys.measure(NOW, ME, 1, NodeId(3), 1 << 20, true);
        assert_eq!(surveys.effects, []);
        assert_eq!(surveys.own(), Some(Message::Measured { round: 1, burst: Burst::Void }));
    }

    #[test]
    fn places_are_accepted_only_from_the_member_with_the_lowest_id() {
        let mut surveys = of(3);
        let place: Place = "r".parse().unwrap();
        let places = || Message::Places(Vec::from([(NodeId(2), Some(place)), (NodeId(3), None)]));
        assert_eq!(surveys.receives(NodeId(2), places(), false), []);
        let found = Effect::PlacesFound(BTreeMap::from([(NodeId(2), place)]));
        surveys.own.push_back(places());
        assert_eq!(surveys.settle(NOW, false), [found]);
    }

    /// Goal: a cluster that was too large for a while is not surveyed again.
    #[test]
    fn surveyed_members_are_remembered_while_there_are_too_many() {
        let mut surveys = of(4);
        surveys.own.push_back(Message::Places((1..=4).map(|node| (NodeId(node), None)).collect()));
        surveys.settle(NOW, false);
        surveys.members_changed(NOW, of(NODES_MAX as u8 + 1).scope);
        assert_eq!((surveys.deadline(), surveys.state()), (None, "none"));
        surveys.members_changed(NOW, of(4).scope);
        assert_eq!((surveys.deadline(), surveys.state()), (None, "even"));
        surveys.members_changed(NOW, of(5).scope);
        assert!(surveys.deadline().is_some());
    }

    #[test]
    fn a_large_cluster_is_not_surveyed() {
        let mut surveys = of(NODES_MAX as u8);
        assert!(surveys.deadline().is_some());
        surveys = of(NODES_MAX as u8 + 1);
        assert_eq!((surveys.deadline(), surveys.state()), (None, "none"));
    }

    proptest! {
        /// Goal: whatever members send while a survey runs, well-formed or not, the node does not panic, and it sends
        /// little in reply.
        #[test]
        fn any_messages_are_harmless(
            words in prop::collection::vec(
                (1..6u64, prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..24),
                    (0..5u8, prop::collection::vec(0..4u8, 0..24))
                        .prop_map(|(kind, rest)| [kind].into_iter().chain(rest).collect()),
                ], any::<bool>()),
                0..60,
            ),
        ) {
            let mut surveys = of(5);
            let mut now = surveys.deadline().unwrap();
            for (from, bytes, is_busy) in words {
                surveys.expire(now, false);
                let effects = surveys.receive(now, NodeId(from), &bytes.into(), is_busy);
                prop_assert!(effects.len() as u64 <= BURST_BYTES_MAX / FILLING_BYTES + 10);
                now = now + GAP_NS;
            }
        }
    }
}

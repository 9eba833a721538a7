//! Membership in this node's view: members, suspected members, and reconnects to lost ones.
//!
//! Owns the failure detector and the redial. Does not know what a change means for objects, reduces
//! and requests: it returns each change, and [`super::membership_change`] passes it to the machines
//! whose state other nodes hold.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use crate::{
    event::{Action, LimitSubject, LogEvent},
    failed_members::{FailedMember, FailedMembers, ReconnectFailure},
    id::NodeId,
    limits::{MEMBERS_MAX, UNMET_MAX, limit_name},
    machines::{membership_change::MembershipChange, world::World},
    members::Member,
    message::{ENDED, Message},
    mutants::{self, Mutant},
    swim::{self, DetectedFailure, Suspicion, Swim, SwimMessage},
    time::Instant,
};

#[derive(Debug)]
pub(crate) struct Membership {
    swim: Swim,
    failed: FailedMembers,
    /// Members known from others that have sent nothing yet: this node connects to each of them.
    unmet: BTreeSet<NodeId>,
}

/// The reason of a member whose process has ended.
const ENDED_PROCESS: &str = "its process has ended";

/// How a member was lost.
#[derive(Debug)]
pub(crate) enum DepartureReason {
    /// It announced that it leaves.
    Left,
    /// This node detected that its process has ended: it will repeat none of its messages.
    ProcessEnded,
    /// This node does not accept it as a member any more, because the information of the shell
    /// about it has changed.
    Revoked { reason: String },
    /// This node detected that it is unresponsive in this incarnation, and announces that to the
    /// others.
    Unresponsive { incarnation: u32, reason: String },
    /// Another node detected that it is unresponsive.
    Reported { reason: String },
}

impl DepartureReason {
    /// Whether the member's process does nothing more for this node.
    const fn process_ended(&self) -> bool {
        matches!(self, Self::Left | Self::ProcessEnded | Self::Revoked { .. })
    }

    /// How it was lost and why, for the log.
    fn described(&self) -> (&'static str, String) {
        match self {
            Self::Left => ("left", String::new()),
            Self::Revoked { reason } => ("barred", reason.clone()),
            Self::ProcessEnded => ("failed", ENDED_PROCESS.into()),
            Self::Unresponsive { reason, .. } | Self::Reported { reason } => {
                ("failed", reason.clone())
            }
        }
    }

    /// The incarnation in which this node declared it dead, and the reason.
    fn finding(&self) -> Option<(u32, String)> {
        match self {
            Self::ProcessEnded => Some((ENDED, ENDED_PROCESS.into())),
            Self::Revoked { reason } => Some((ENDED, reason.clone())),
            Self::Unresponsive { incarnation, reason } => Some((*incarnation, reason.clone())),
            Self::Left | Self::Reported { .. } => None,
        }
    }
}

/// A node that is no longer a member.
pub(crate) struct Departure {
    pub(crate) node: NodeId,
    pub(crate) has_left: bool,
    /// Whether its process does nothing more.
    pub(crate) process_ended: bool,
    pub(crate) change: MembershipChange,
}

/// A node that introduced itself.
pub(crate) struct Joined {
    /// Whether it was a member before and was lost.
    pub(crate) has_rejoined: bool,
    pub(crate) change: MembershipChange,
}

impl Membership {
    pub(crate) fn new(me: NodeId, detection_ns: Option<u64>) -> Self {
        let (failed, unmet) = (FailedMembers::default(), BTreeSet::new());
        Self { swim: Swim::new(me, detection_ns), failed, unmet }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.swim.deadline().into_iter().chain(self.failed.deadline()).min()
    }

    /// Members that sent too many probe requests about others since the last call.
    pub(crate) fn take_limited(&mut self) -> Vec<NodeId> {
        self.swim.take_limited()
    }

    pub(crate) fn suspicions(&self) -> impl Iterator<Item = (NodeId, Suspicion)> {
        self.swim.suspicions()
    }

    pub(crate) fn failed(&self) -> Vec<FailedMember> {
        self.failed.iter().cloned().collect()
    }

    /// Records a message of a member.
    pub(crate) fn responded(&mut self, from: NodeId) {
        self.swim.responded(from);
        self.unmet.remove(&from);
    }

    /// Handles a node that introduced itself, or replied to a connection of this node. Returns
    /// `None` if it is this node.
    pub(crate) fn peer_up(&mut self, member: Member, world: &mut World) -> Option<Joined> {
        if member.id == world.me() {
            return None;
        }
        self.unmet.remove(&member.id);
        world.responded(member.id);
        let before = world.members().clone();
        if world.members_mut().insert(member) {
            world.act(Action::AddPeer(member));
            for other in before.others().filter(|other| other.id != member.id) {
                world.send(other.id, Message::Members(Vec::from([member])));
            }
            self.swim.members_changed(world.now(), world.members());
        }
        self.failed.remove(member.id);
        let has_rejoined = before.is_departed(member.id);
        if has_rejoined {
            world.send(member.id, Message::StateDropped);
        }
        let all = world.members().iter().collect();
        world.send(member.id, Message::Members(all));
        // Even if it was a member: messages over a connection that broke may be lost.
        Some(Joined { has_rejoined, change: MembershipChange::new(before, Some(member.id)) })
    }

    /// Adds members that `from` reported. Returns `None` if this node knew all of them.
    pub(crate) fn learn(
        &mut self,
        from: NodeId,
        announced: &[Member],
        world: &mut World,
    ) -> Option<MembershipChange> {
        let before = world.members().clone();
        // A departed node is a member again only by its own message. Reports of others may predate
        // its departure, and two nodes that trusted each other's outdated reports would exchange
        // them forever.
        let is_news = |member: &Member| {
            !before.contains(member.id) && (member.id == from || !before.is_departed(member.id))
        };
        let new: BTreeMap<NodeId, Member> = announced
            .iter()
            .filter(|member| is_news(member))
            .map(|member| (member.id, *member))
            .collect();
        // Accept as many as the limits of members and of unmet members allow. The others introduce
        // themselves, or are reported again by members that this node meets.
        let calls = UNMET_MAX.saturating_sub(self.unmet.len());
        let places = MEMBERS_MAX.saturating_sub(before.len());
        if new.len() > calls.min(places) {
            let is_large = places < calls;
            let limit = if is_large { limit_name!(MEMBERS_MAX) } else { limit_name!(UNMET_MAX) };
            world.limit_reached(LimitSubject::Member(from), limit);
        }
        let new: Vec<Member> = new.into_values().take(calls.min(places)).collect();
        if new.is_empty() {
            return None;
        }
        for member in &new {
            world.members_mut().insert(*member);
            world.act(Action::AddPeer(*member));
        }
        self.unmet.extend(new.iter().map(|member| member.id));
        self.swim.members_changed(world.now(), world.members());
        for other in before.others().filter(|other| other.id != from) {
            world.send(other.id, Message::Members(new.clone()));
        }
        for member in new {
            world.send(member.id, Message::Members(Vec::from([world.my_member()])));
        }
        Some(MembershipChange::new(before, None))
    }

    /// Handles a connection that broke and cannot be restored now. Returns the loss, if the node is
    /// lost with it.
    pub(crate) fn peer_unreachable(
        &mut self,
        node: NodeId,
        is_dead: bool,
        world: &mut World,
    ) -> Option<Departure> {
        if is_dead || world.config().detection_ns.is_none() {
            return self.remove_member(node, DepartureReason::ProcessEnded, world);
        }
        self.probe_now(node, world);
        None
    }

    /// Removes a member that is not allowed any more. Returns the loss, if it was a member.
    pub(crate) fn peer_revoked(
        &mut self,
        node: NodeId,
        reason: String,
        world: &mut World,
    ) -> Option<Departure> {
        if mutants::is_active(Mutant::KeepsRevokedMembers) {
            return None;
        }
        self.remove_member(node, DepartureReason::Revoked { reason }, world)
    }

    fn probe_now(&mut self, node: NodeId, world: &mut World) {
        let mut outbox = Vec::new();
        self.swim.probe_now(world.now(), node, world.members(), &mut outbox);
        spread(outbox, world);
    }

    /// Removes a member. Returns `None` if it was not a member.
    pub(crate) fn remove_member(
        &mut self,
        node: NodeId,
        cause: DepartureReason,
        world: &mut World,
    ) -> Option<Departure> {
        let member = world.members().iter().find(|member| member.id == node)?;
        let before = world.members().clone();
        if !world.members_mut().remove(node) {
            return None;
        }
        self.unmet.remove(&node);
        world.responded(node);
        let (has_left, process_ended) =
            (matches!(cause, DepartureReason::Left), cause.process_ended());
        world.act(Action::DropPeer { node, has_left });
        let (how, reason) = cause.described();
        world.note(LogEvent::MemberRemoved { node, how, reason });
        let finding = cause.finding();
        if let Some((incarnation, reason)) = &finding {
            for other in world.others() {
                let (incarnation, reason) = (*incarnation, reason.clone());
                world.send(other, Message::Down { node, incarnation, reason });
            }
        }
        let reason = match cause {
            DepartureReason::Reported { reason } => Some(reason),
            _ => finding.map(|(_, reason)| reason),
        };
        if let Some(reason) = reason.filter(|_| !mutants::is_active(Mutant::NeverReconnects)) {
            self.failed.insert(world.now(), member, reason);
        }
        self.swim.members_changed(world.now(), world.members());
        Some(Departure {
            node,
            has_left,
            process_ended,
            change: MembershipChange::new(before, None),
        })
    }

    /// Refutes all suspicions against this node, after a member had declared it dead.
    pub(crate) fn refute_failure(&mut self, world: &mut World) {
        let mut outbox = Vec::new();
        self.swim.refute_failure(world.members(), &mut outbox);
        spread(outbox, world);
    }

    /// Handles the report that `from` declared a node dead. Returns the loss, if this node accepts
    /// it.
    pub(crate) fn reported_down(
        &mut self,
        from: NodeId,
        node: NodeId,
        incarnation: u32,
        reason: String,
        world: &mut World,
    ) -> Option<Departure> {
        if node == world.me() {
            // A member that believed the report learns that this node is alive.
            world.send(from, Message::Members(Vec::from([world.my_member()])));
        } else if incarnation == ENDED {
            // The node refused a connection of the sender. If its process has ended, this node
            // detects that by a probe of its own. If not, for example if only the sender's path to
            // it is blocked, the node replies.
            self.probe_now(node, world);
        } else if self.swim.is_refuted(node, incarnation) {
            let incarnation = self.swim.incarnation_of(node);
            world.send(from, Message::Swim(SwimMessage::Alive { node, incarnation }));
        } else if self.swim.confirms_failure(world.now(), node) {
            return self.remove_member(node, DepartureReason::Reported { reason }, world);
        } else {
            // The node may refute it.
            self.handle_swim(from, SwimMessage::Suspect { node, incarnation }, world);
        }
        None
    }

    pub(crate) fn handle_swim(&mut self, from: NodeId, message: SwimMessage, world: &mut World) {
        let mut outbox = Vec::new();
        self.swim.handle(world.now(), from, message, world.members(), &mut outbox);
        spread(outbox, world);
    }

    pub(crate) fn reconnect_failed(&mut self, node: NodeId, failure: ReconnectFailure) {
        self.failed.reconnect_failed(node, failure);
    }

    /// Probes members that are due and reconnects to lost ones. Returns the members that were
    /// unresponsive for too long; the caller loses them one by one.
    pub(crate) fn expire(&mut self, world: &mut World) -> Vec<(NodeId, DepartureReason)> {
        let mut outbox = Vec::new();
        let dead = self.swim.expire(world.now(), world.members(), &mut outbox);
        spread(outbox, world);
        while let Some(member) = self.failed.expire(world.now()) {
            world.act(Action::Reconnect(member));
        }
        let cause = |DetectedFailure { node, incarnation, reason, found_here }| match found_here {
            true => (node, DepartureReason::Unresponsive { incarnation, reason }),
            false => (node, DepartureReason::Reported { reason }),
        };
        dead.into_iter().map(cause).collect()
    }
}

fn spread(outbox: swim::Outbox, world: &mut World) {
    for (to, message) in outbox {
        world.send(to, Message::Swim(message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Node 1 after it has met nodes 2 and 3.
    fn met() -> (Membership, World) {
        let mut world = World::of(1);
        let mut membership = Membership::new(NodeId(1), world.config().detection_ns);
        for number in 2..=3 {
            assert!(membership.peer_up(World::member(number), &mut world).is_some());
        }
        world.taken();
        (membership, world)
    }

    /// The actions when node 2 is lost.
    fn lost_and_announced(how: &'static str, reason: String, announced: Message) -> [Action; 3] {
        let node = NodeId(2);
        [
            Action::DropPeer { node, has_left: false },
            Action::Log(LogEvent::MemberRemoved { node, how, reason }),
            Action::Send { to: NodeId(3), message: announced },
        ]
    }

    #[test]
    fn the_end_of_a_process_is_announced_and_a_reconnect_is_scheduled() {
        let (mut membership, mut world) = met();
        let failed =
            membership.peer_unreachable(NodeId(2), true, &mut world).expect("it was a member");
        assert!(
            failed.process_ended && !failed.has_left && failed.change.before.contains(NodeId(2))
        );
        let announced = Message::Down {
            node: NodeId(2),
            incarnation: ENDED,
            reason: "its process has ended".into(),
        };
        let reason = String::from("its process has ended");
        assert_eq!(world.taken(), lost_and_announced("failed", reason, announced));
        assert_eq!(membership.failed().len(), 1);
    }

    #[test]
    fn a_barred_member_is_lost_and_the_others_get_the_reason() {
        let (mut membership, mut world) = met();
        let reason = String::from("its certificate is revoked");
        let failed = membership.peer_revoked(NodeId(2), reason.clone(), &mut world);
        assert!(failed.is_some_and(|failed| failed.process_ended && !failed.has_left));
        let announced =
            Message::Down { node: NodeId(2), incarnation: ENDED, reason: reason.clone() };
        assert_eq!(world.taken(), lost_and_announced("barred", reason.clone(), announced));
        assert_eq!(
            membership.failed().first().map(|failed| failed.reason.clone()),
            Some(reason.clone())
        );
        assert!(membership.peer_revoked(NodeId(2), reason, &mut world).is_none(), "it is lost");
    }

    #[test]
    fn a_process_reported_as_ended_is_probed_before_it_is_lost() {
        let (mut membership, mut world) = met();
        let (two, three) = (NodeId(2), NodeId(3));
        let failed = membership.reported_down(three, two, ENDED, "refused".into(), &mut world);
        assert!(failed.is_none() && world.members().contains(two));
        let ping = Message::Swim(SwimMessage::Ping { sequence: 1 });
        assert_eq!(world.taken(), [Action::Send { to: two, message: ping }]);
    }

    /// Goal: the report of one member ends no other member that can refute it.
    #[test]
    fn a_member_is_lost_by_another_report_after_it_had_time_to_refute_it() {
        let (mut membership, mut world) = met();
        let (two, three) = (NodeId(2), NodeId(3));
        let down = |membership: &mut Membership, world: &mut World| {
            membership.reported_down(three, two, 0, "silent".into(), world)
        };
        assert!(down(&mut membership, &mut world).is_none());
        let suspect = SwimMessage::Suspect { node: two, incarnation: 0 };
        let asked = Action::Send { to: two, message: Message::Swim(suspect) };
        assert_eq!(world.taken(), [asked], "it can refute that");
        let alive = SwimMessage::Alive { node: two, incarnation: 1 };
        membership.handle_swim(two, alive, &mut world);
        assert!(down(&mut membership, &mut world).is_none());

        let (mut membership, mut world) = met();
        assert!(down(&mut membership, &mut world).is_none());
        world.wait_until(world.now() + 500_000_000);
        assert!(down(&mut membership, &mut world).is_some_and(|failed| !failed.process_ended));
    }

    #[test]
    fn many_reported_members_cause_few_connections_at_once() {
        let (mut membership, mut world) = met();
        let announced: Vec<Member> = (4..500_000).map(World::member).collect();
        let other = Member { address: ([10, 0, 0, 2], 1).into(), ..World::member(4) };
        assert!(membership.learn(NodeId(2), &[other, World::member(4)], &mut world).is_some());
        for some in announced.chunks(100_000) {
            membership.learn(NodeId(2), some, &mut world);
        }
        let actions = world.taken();
        let called = actions.iter().filter(|action| matches!(action, Action::AddPeer(_)));
        assert_eq!(called.count(), UNMET_MAX);
        membership.remove_member(NodeId(4), DepartureReason::ProcessEnded, &mut world);
        membership.responded(NodeId(5));
        world.taken();
        membership.learn(NodeId(2), &announced[100_000..], &mut world);
        let actions = world.taken();
        let called = actions.iter().filter(|action| matches!(action, Action::AddPeer(_)));
        assert_eq!(called.count(), 2, "one has sent a message, and one is lost");
    }

    #[test]
    fn only_a_lost_node_itself_can_rejoin() {
        let (mut membership, mut world) = met();
        assert!(membership.remove_member(NodeId(2), DepartureReason::Left, &mut world).is_some());
        assert!(membership.learn(NodeId(3), &[World::member(2)], &mut world).is_none());
        let met = membership.peer_up(World::member(2), &mut world).expect("it is another node");
        assert!(met.has_rejoined);
    }
}

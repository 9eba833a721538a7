//! A cluster in one thread: a clock, a queue of events, and the nodes that they happen to.

mod connections;
mod surveying;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use hoplite_proto::{
    id::{FetchId, Instance, NodeId, RequestId},
    members::Member,
    message::{FoldKey, Message},
    node::{Action, Event, Node},
    time::Instant,
};
use hoplite_survey::Surveys;

use crate::{
    damage::Damage,
    dice::Dice,
    net::{Net, Racks},
    payload::Piece,
    plan::{Act, MILLISECOND, Plan},
    programs::Programs,
    shell::{File, Shell, SlotId},
    trace::Trace,
    users::{Users, Writer},
    verdict::Mutation,
};

/// The complete state of a simulation.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) dice: Dice,
    pub(crate) plan: Plan,
    pub(crate) hosts: BTreeMap<NodeId, Host>,
    pub(crate) net: Net,
    pub(crate) racks: Racks,
    pub(crate) shell: Shell,
    pub(crate) users: Users,
    pub(crate) programs: Programs,
    pub(crate) damage: Damage,
    /// Members that are revoked, each with the nodes that have barred it.
    pub(crate) revoked: BTreeMap<NodeId, BTreeSet<NodeId>>,
    pub(crate) trace: Trace,
    pub(crate) sabotage: Option<Mutation>,
    /// The first finding of a checker.
    pub(crate) failure: Option<String>,
    pub(crate) events: u64,
    /// Whether the run has no random faults and skips the checks after each event.
    pub(crate) is_calm: bool,
    /// Whether faults may cause a reduce to restart.
    pub(crate) may_restart: bool,
    /// Whether there are two clusters that have not met.
    pub(crate) are_apart: bool,
    /// When a node last added or dropped a member.
    pub(crate) agreed_since: Instant,
    future: BTreeMap<(Instant, u64), SimEvent>,
    scheduled: u64,
}

/// A machine with its node.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) node: Node,
    pub(crate) member: Member,
    pub(crate) is_up: bool,
    /// Whether it was ordered to leave.
    pub(crate) is_leaving: bool,
    /// Until when it is frozen.
    pub(crate) frozen_until: Option<Instant>,
    pub(crate) slots: BTreeMap<Instance, SlotId>,
    /// Copies on its disk.
    pub(crate) files: BTreeMap<Instance, File>,
    /// Its transfers, each with the copy that it fills.
    pub(crate) fetches: BTreeMap<FetchId, Instance>,
    pub(crate) surveys: Surveys,
    /// Number of messages received from other nodes.
    pub(crate) heard: u64,
    alarm: Option<Instant>,
    survey_alarm: Option<Instant>,
}

/// A scheduled event.
#[derive(Debug)]
pub(crate) enum SimEvent {
    /// Something arrives over a control connection.
    Arrive {
        from: NodeId,
        to: NodeId,
        connection: u64,
        parcel: Packet,
    },
    /// A shell notifies its node.
    Deliver {
        node: NodeId,
        event: Event,
    },
    SlotTaken {
        node: NodeId,
        slot: SlotId,
    },
    /// A file is written, or the write fails.
    FileWritten {
        node: NodeId,
        instance: Instance,
        number: u64,
    },
    /// A block of a copy has been read from disk.
    BlockRead {
        node: NodeId,
        slot: SlotId,
        index: u32,
    },
    CheckSources {
        start: NodeId,
        instance: Instance,
    },
    Alarm {
        node: NodeId,
        at: Instant,
    },
    /// The deadline of a node's part in surveys.
    SurveyAlarm {
        node: NodeId,
        at: Instant,
    },
    /// The request for a copy or a stream arrives at its sender.
    FlowRequested {
        flow: u64,
    },
    BlockSent {
        flow: u64,
    },
    BlockArrived {
        flow: u64,
        piece: Piece,
    },
    /// A copy is complete, or its sender is lost; ignored if the attempt was stopped.
    FetchOver {
        node: NodeId,
        fetch: FetchId,
        failed: Option<NotHere>,
    },
    FoldStalls {
        fold: u64,
    },
    FoldOver {
        node: NodeId,
        key: FoldKey,
        failure: Option<String>,
        target: Option<SlotId>,
    },
    /// A node has read that a member is revoked.
    Barred {
        node: NodeId,
        member: NodeId,
    },
    /// The process of a revoked member ends.
    Ended {
        node: NodeId,
    },
    /// Two nodes that cannot reach each other try to connect through a relay.
    Reroute {
        one: NodeId,
        other: NodeId,
    },
    /// Two clusters merge.
    Heal,
    Act(Act),
    Write(Writer),
    Users(crate::users::Later),
    /// Programs check whether their replies have arrived.
    RunPrograms,
    WakeProgram {
        request: RequestId,
    },
}

/// Whether the sender reported that it has no such copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotHere(pub(crate) bool);

#[derive(Debug)]
pub(crate) enum Packet {
    /// First parcel of a connection: the initiator.
    Hello(Member),
    /// First parcel of a connection that replaces a broken one.
    HelloReconnect(Member),
    /// The acceptor's reply.
    HelloBack(Member),
    Message(Message),
    /// End of the connection.
    Broken,
}

/// With more events than this, a simulation is in an endless loop; the busiest seeds need a tenth of it.
const EVENTS_MAX: u64 = 5_000_000;

impl World {
    pub(crate) fn new(seed: u64, plan: Plan, trace: Trace, sabotage: Option<Mutation>) -> Self {
        let mut world = Self::begin(seed, plan, trace, sabotage);
        let apart_until = world.plan.apart_until;
        world.are_apart = apart_until.is_some();
        // An object of one side is not available on the other.
        world.users.is_shrunk = world.are_apart;
        for _ in 0..world.plan.nodes {
            world.add_host(None);
        }
        // In half of the clusters, all nodes meet before the first request.
        let head_start = if world.dice.chance(50) { 200 * MILLISECOND } else { 0 };
        for (at, act) in world.plan.acts.clone() {
            world.at(at + head_start, SimEvent::Act(act));
        }
        if let Some(at) = apart_until {
            world.at(at + head_start, SimEvent::Heal);
        }
        world
    }

    /// Creates an empty world.
    pub(crate) fn begin(seed: u64, plan: Plan, trace: Trace, sabotage: Option<Mutation>) -> Self {
        Self {
            now: Instant::default(),
            is_calm: false,
            may_restart: true,
            are_apart: false,
            hosts: BTreeMap::new(),
            net: Net::new(plan.config.link),
            racks: Racks::new(seed),
            shell: Shell::default(),
            users: Users::new(&plan.objects),
            programs: Programs::default(),
            damage: Damage::new(seed),
            revoked: BTreeMap::new(),
            trace,
            sabotage,
            failure: None,
            events: 0,
            agreed_since: Instant::default(),
            future: BTreeMap::new(),
            scheduled: 0,
            // A different seed than for the plan, so that a plan can run without its seed.
            dice: Dice::new(seed.rotate_left(32)),
            plan,
        }
    }

    /// Adds a node, perhaps at the address of an earlier one. It joins through an existing node.
    pub(crate) fn add_host(&mut self, before: Option<Member>) {
        // Frozen nodes are included: they reply later.
        let seeds = self.hosts.iter().filter(|(_, host)| host.is_up && !host.is_leaving);
        let mut seeds: Vec<NodeId> = seeds.map(|(id, _)| *id).collect();
        let id = self.add_stranger(before).id;
        if let Some(before) = before {
            self.begin_with_files(id, before.id);
        }
        seeds.retain(|seed| !self.are_apart || seed.0 % 2 == id.0 % 2);
        if let Some(seed) = self.dice.pick(&seeds) {
            self.dial(id, seed);
        }
    }

    /// Adds all nodes of the plan, already acquainted and connected.
    pub(crate) fn add_acquainted_hosts(&mut self) {
        let all: Vec<Member> = (0..self.plan.nodes).map(|_| self.add_stranger(None)).collect();
        for host in self.hosts.values_mut() {
            let (from, message) = (host.member.id, Message::Members(all.clone()));
            host.node.handle(self.now, Event::Message { from, message }, &mut Vec::new());
        }
        all.iter().for_each(|member| self.members_surveyed(member.id));
        for (number, one) in all.iter().enumerate() {
            for other in &all[..number] {
                self.net.connect(one.id, other.id);
            }
        }
    }

    /// Adds a node that has met no other one, perhaps at the address of an earlier one.
    fn add_stranger(&mut self, before: Option<Member>) -> Member {
        let id = NodeId(self.hosts.len() as u64 + 1);
        let member = match before {
            Some(before) => Member { id, ..before },
            None => {
                let address = SocketAddr::from(([10, 0, (id.0 >> 8) as u8, id.0 as u8], 7420));
                Member { id, address, place: self.racks.next() }
            }
        };
        let mut node = Node::new(member, self.plan.config);
        if let Some(disk) = self.plan.disk {
            node.spill(disk.limit, disk.persistent);
        }
        if self.racks.are_surveyed {
            self.net.hide(id, id.0 % 2, 0);
        }
        let host = Host {
            node,
            member,
            is_up: true,
            is_leaving: false,
            frozen_until: None,
            slots: BTreeMap::new(),
            files: BTreeMap::new(),
            fetches: BTreeMap::new(),
            surveys: Surveys::new(id, self.racks.are_surveyed),
            heard: 0,
            alarm: None,
            survey_alarm: None,
        };
        self.hosts.insert(id, host);
        member
    }

    /// Nodes that are up, not leaving and not frozen.
    pub(crate) fn staying(&self) -> Vec<NodeId> {
        let is_staying = |host: &Host| {
            host.is_up
                && !host.is_leaving
                && host.frozen_until.is_none_or(|until| until <= self.now)
        };
        self.hosts.iter().filter(|(_, host)| is_staying(host)).map(|(id, _)| *id).collect()
    }

    pub(crate) fn is_up(&self, node: NodeId) -> bool {
        self.hosts.get(&node).is_some_and(|host| host.is_up)
    }

    pub(crate) fn at(&mut self, at: Instant, event: SimEvent) {
        self.scheduled += 1;
        self.future.insert((at.max(self.now), self.scheduled), event);
    }

    pub(crate) fn after(&mut self, delay_ns: u64, event: SimEvent) {
        self.at(self.now + delay_ns, event);
    }

    /// Records the first failure of the simulation.
    pub(crate) fn fail(&mut self, what: String) {
        if self.failure.is_none() {
            self.trace.line(self.now, None, "FAIL", || what.clone());
            self.failure = Some(format!("at {}: {what}", self.now));
        }
    }

    /// Runs all events until `end`.
    pub(crate) fn run_until(&mut self, end: Instant) {
        while let Some(next) = self.future.first_entry() {
            let at = next.key().0;
            if at > end || self.failure.is_some() {
                break;
            }
            let event = next.remove();
            self.now = at;
            self.events += 1;
            if self.events > EVENTS_MAX && !self.is_calm {
                self.fail(format!("{EVENTS_MAX} events without reaching the end"));
            }
            self.handle(event);
        }
        self.now = self.now.max(end);
    }

    fn handle(&mut self, event: SimEvent) {
        if let Some(until) = self.late_until(&event) {
            return self.at(until, event);
        }
        match event {
            SimEvent::Arrive { from, to, connection, parcel } => {
                self.arrive(from, to, connection, parcel);
            }
            SimEvent::Deliver { node, event } => self.deliver(node, event),
            SimEvent::Alarm { node, at } => self.alarm(node, at),
            SimEvent::SurveyAlarm { node, at } => self.survey_alarm(node, at),
            SimEvent::FlowRequested { flow } => self.flow_requested(flow),
            SimEvent::BlockSent { flow } => self.block_sent(flow),
            SimEvent::BlockArrived { flow, piece } => self.block_arrived(flow, piece),
            SimEvent::FetchOver { node, fetch, failed } => self.fetch_over(node, fetch, failed),
            SimEvent::FoldStalls { fold } => self.fold_stalls(fold),
            SimEvent::FoldOver { node, key, failure, target } => {
                self.fold_ended(node, key, failure, target);
            }
            SimEvent::SlotTaken { node, slot } => self.slot_taken(node, slot),
            SimEvent::FileWritten { node, instance, number } => {
                self.file_written(node, instance, number);
            }
            SimEvent::BlockRead { node, slot, index } => self.block_read(node, slot, index),
            SimEvent::Barred { node, member } => self.bar(node, member),
            SimEvent::Ended { node } => self.stop_host(node, true),
            SimEvent::Reroute { one, other } => self.reroute(one, other),
            SimEvent::CheckSources { start, instance } => {
                self.check_sources(start, instance, false)
            }
            SimEvent::Heal => self.heal(),
            SimEvent::Act(act) => self.act(act),
            SimEvent::Write(writer) => self.write(writer),
            SimEvent::Users(later) => self.users_later(later),
            SimEvent::RunPrograms => self.run_programs(),
            SimEvent::WakeProgram { request } => self.wake_program(request),
        }
    }

    /// Passes an event to a node and performs the actions that it returns.
    pub(crate) fn deliver(&mut self, node: NodeId, event: Event) {
        let now = self.now;
        if let Event::Request { body, .. } = &event {
            self.pass_local(body);
        }
        let Some(host) = self.hosts.get_mut(&node).filter(|host| host.is_up) else { return };
        self.trace.line(now, Some(node), "event", || format!("{event:?}"));
        let mut actions = Vec::new();
        host.node.handle(now, event, &mut actions);
        if !self.is_calm {
            self.check_small_copies(node, &actions);
            self.note_complete(node);
        }
        for action in actions {
            self.trace.line(now, Some(node), "order", || format!("{action:?}"));
            if matches!(action, Action::AddPeer(_) | Action::DropPeer { .. }) {
                self.agreed_since = now;
            }
            self.carry_out(node, action);
        }
        if !self.is_calm {
            self.check_node(node);
        }
        self.set_alarm(node);
    }

    fn set_alarm(&mut self, node: NodeId) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let Some(at) = host.node.deadline() else { return };
        if host.alarm.is_none_or(|alarm| at < alarm) {
            host.alarm = Some(at);
            self.at(at, SimEvent::Alarm { node, at });
        }
    }

    fn alarm(&mut self, node: NodeId, at: Instant) {
        let now = self.now;
        let Some(host) = self.hosts.get_mut(&node).filter(|host| host.is_up) else { return };
        if host.alarm != Some(at) {
            return;
        }
        host.alarm = None;
        if host.node.deadline().is_none_or(|due| due > now) {
            return self.set_alarm(node);
        }
        self.deliver(node, Event::DeadlinePassed);
        let due = self.hosts.get(&node).and_then(|host| host.node.deadline());
        if let Some(due) = due.filter(|due| *due <= now) {
            self.fail(format!("{node:?} sets its deadline to {due}, which has passed"));
        }
    }

    /// Stops a host: it has left, or its process has failed.
    pub(crate) fn stop_host(&mut self, node: NodeId, is_crash: bool) {
        let Some(host) = self.hosts.get_mut(&node).filter(|host| host.is_up) else { return };
        host.is_up = false;
        let what = if is_crash { "crashed" } else { "left" };
        self.trace.line(self.now, Some(node), "world", || what.to_string());
        let others: Vec<NodeId> = self.hosts.keys().copied().filter(|id| *id != node).collect();
        for other in others {
            let Some(connection) = self.net.disconnect(node, other) else { continue };
            if is_crash && self.dice.chance(50) {
                self.net.lose(node, other, connection);
                // Connection 0 for the notification, because messages of the old connection are lost.
                self.after(
                    MILLISECOND,
                    SimEvent::Arrive {
                        from: node,
                        to: other,
                        connection: 0,
                        parcel: Packet::Broken,
                    },
                );
            } else {
                self.transmit(node, other, connection, Packet::Broken);
            }
        }
        self.stop_flows_of(node);
        self.stop_disk(node);
        self.users_of_host_gone(node);
    }
}

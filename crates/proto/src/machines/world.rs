//! State and output that all machines of a node share: members and whether they reply, time,
//! settings, and the actions of the current event.
//!
//! Knows no object, copy or request.

use alloc::{collections::VecDeque, vec::Vec};

use crate::{
    error::Error,
    event::{Action, Config, LimitSubject, LogEvent},
    id::{ClientId, Instance, NodeId, ObjectId, RequestId},
    machines::reply_timeouts::{ReplyTimeouts, reply_timeout_ns},
    members::{Member, Members},
    message::Message,
    reduce::cost::Link,
    request::Reply,
    swim::SwimMessage,
    time::Instant,
};

/// Capacity for messages to this node itself that is kept afterwards: the end of many reduces
/// queues very many.
const LOOPBACK_KEPT: usize = 1024;

#[derive(Debug)]
pub(crate) struct World {
    me: Member,
    members: Members,
    reply_timeouts: ReplyTimeouts,
    /// When the current event arrived.
    now: Instant,
    config: Config,
    next_serial: u64,
    /// The actions that the current event has caused so far, in order.
    actions: Vec<Action>,
    /// Messages to this node itself, handled before [`crate::node::Node::handle`] returns.
    loopback: VecDeque<Message>,
}

impl World {
    pub(crate) fn new(me: Member, config: Config) -> Self {
        Self {
            me,
            members: Members::new(me),
            reply_timeouts: ReplyTimeouts::default(),
            now: Instant::default(),
            config,
            next_serial: 0,
            actions: Vec::new(),
            loopback: VecDeque::new(),
        }
    }

    /// Begins an event; its actions go to `actions`.
    pub(crate) fn begin(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.now = now;
        core::mem::swap(&mut self.actions, actions);
    }

    /// Ends the event.
    pub(crate) fn end(&mut self, actions: &mut Vec<Action>) {
        core::mem::swap(&mut self.actions, actions);
    }

    pub(crate) const fn me(&self) -> NodeId {
        self.me.id
    }

    pub(crate) const fn my_member(&self) -> Member {
        self.me
    }

    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    pub(crate) const fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) const fn link_measured(&mut self, link: Link) {
        self.config.link = link;
    }

    pub(crate) const fn members(&self) -> &Members {
        &self.members
    }

    pub(crate) const fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    /// All other members.
    pub(crate) fn others(&self) -> Vec<NodeId> {
        self.members.others().map(|other| other.id).collect()
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(crate) fn note(&mut self, note: LogEvent) {
        self.act(Action::Log(note));
    }

    /// Reports that a limit rejected input of a member or a request of a client.
    pub(crate) fn limit_reached(&mut self, whose: LimitSubject, limit: &'static str) {
        self.note(LogEvent::Limited { whose, limit });
    }

    pub(crate) fn reply(
        &mut self,
        client: ClientId,
        request: RequestId,
        reply: Result<Reply, Error>,
    ) {
        self.act(Action::Reply { client, request, reply });
    }

    /// Sends a message to a member, or to this node itself. Messages to any other node are dropped.
    pub(crate) fn send(&mut self, to: NodeId, message: Message) {
        if to == self.me() {
            self.loopback.push_back(message);
        } else if self.members.contains(to) {
            if message.expects_reply() {
                self.reply_timeouts.requested(to, self.now, reply_timeout_ns(self.config.link));
            }
            self.act(Action::Send { to, message });
        }
    }

    pub(crate) fn send_owners(&mut self, id: &ObjectId, message: &Message) {
        for owner in self.members.owners(id).iter() {
            self.send(owner, message.clone());
        }
    }

    pub(crate) fn post(&mut self, mail: Vec<(NodeId, Message)>) {
        for (to, message) in mail {
            self.send(to, message);
        }
    }

    /// When the reply of a member is late.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.reply_timeouts.deadline()
    }

    /// Records a reply of a member, or that it is no member any more.
    pub(crate) fn responded(&mut self, from: NodeId) {
        self.reply_timeouts.responded(from);
    }

    /// The members whose replies are late now, and whether each is late for the first time.
    pub(crate) fn expire(&mut self) -> Vec<(NodeId, bool)> {
        self.reply_timeouts.expire(self.now, reply_timeout_ns(self.config.link))
    }

    pub(crate) fn is_unresponsive(&self, node: NodeId) -> bool {
        self.reply_timeouts.is_unresponsive(node)
    }

    /// Requests a reply of a member.
    pub(crate) fn probe(&mut self, node: NodeId) {
        self.send(node, Message::Swim(SwimMessage::Ping { sequence: 0 }));
    }

    /// Requests a reply of a member, unless it owes one, and requests the same of all others: some
    /// may wait for news of it only.
    pub(crate) fn probe_by_all(&mut self, node: NodeId) {
        if !self.reply_timeouts.owes(node) {
            self.probe(node);
        }
        if self.reply_timeouts.report(node) {
            for other in self.others().into_iter().filter(|other| *other != node) {
                let probe = SwimMessage::PingReq { node, sequence: 0 };
                self.send(other, Message::Swim(probe));
            }
        }
    }

    /// Whether this node probes a member regularly, as the one before it in the order of ids.
    pub(crate) fn is_prober_of(&self, node: NodeId) -> bool {
        let before = self.members.iter().filter(|member| member.id < node).last();
        before.or_else(|| self.members.iter().last()).is_some_and(|member| member.id == self.me())
    }

    /// The owner that gets requests for an object too, because the primary owner is unresponsive.
    pub(crate) fn standby(&self, id: &ObjectId) -> Option<NodeId> {
        let owners = self.members.owners(id);
        owners.backup.filter(|_| self.is_unresponsive(owners.primary))
    }

    /// The owner of an object that is not `owner`.
    pub(crate) fn other_owner(&self, id: &ObjectId, owner: NodeId) -> Option<NodeId> {
        self.members.owners(id).except(owner).next()
    }

    /// How many visits of a walk one event makes.
    pub(crate) fn slice(&self) -> usize {
        self.config.slice.of(&self.members)
    }

    /// The number of actions of this event, and of messages of this node to itself that wait.
    pub(crate) fn output(&self) -> usize {
        self.actions.len() + self.loopback.len()
    }

    /// Removes and returns the next message of this node to itself.
    pub(crate) fn next_loopback(&mut self) -> Option<Message> {
        let next = self.loopback.pop_front();
        if self.loopback.is_empty() {
            self.loopback.shrink_to(LOOPBACK_KEPT);
        }
        next
    }

    /// Returns a number that this node has used for nothing else.
    pub(crate) const fn next_serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }

    pub(crate) const fn next_instance(&mut self) -> Instance {
        Instance { node: self.me.id, serial: self.next_serial() }
    }

    pub(crate) const fn mint(&mut self) -> ObjectId {
        ObjectId::Minted { node: self.me.id, serial: self.next_serial() }
    }

    pub(crate) const fn mint_slot(&mut self) -> ObjectId {
        ObjectId::slot(self.me.id, self.next_serial())
    }

    /// Whether an instance names this node as its maker, but this node has not used its number yet.
    pub(crate) fn is_unmade(&self, instance: Instance) -> bool {
        instance.node == self.me() && instance.serial > self.next_serial
    }
}

#[cfg(test)]
impl World {
    /// The world of node 1 in a cluster of nodes 1 to `count`.
    pub(crate) fn of(count: u64) -> Self {
        let link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };
        let config = Config { detection_ns: Some(3_000_000_000), ..Config::new(1 << 20, link) };
        let mut world = Self::new(Self::member(1), config);
        (2..=count).for_each(|number| assert!(world.members.insert(Self::member(number))));
        world
    }

    pub(crate) fn member(number: u64) -> Member {
        Member { id: NodeId(number), address: ([10, 0, 0, 1], 7420).into(), place: None }
    }

    /// Advances the time.
    pub(crate) fn wait_until(&mut self, now: Instant) {
        self.now = now;
    }

    /// The actions since the last call.
    pub(crate) fn taken(&mut self) -> Vec<Action> {
        core::mem::take(&mut self.actions)
    }
}

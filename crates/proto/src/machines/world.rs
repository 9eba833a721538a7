//! What every machine of a node may know, and the one way in which it says something: members, time, settings, and the
//! actions of the event at hand.
//!
//! Knows no object, copy or question.

use alloc::{collections::VecDeque, vec::Vec};

use crate::{
    ask::Answer,
    error::Error,
    event::{Action, Config, Note, Whose},
    id::{ClientId, Instance, NodeId, ObjectId, RequestId},
    members::{Member, Members},
    message::Message,
    reduce::cost::Link,
    time::Instant,
};

#[derive(Debug)]
pub(crate) struct World {
    me: Member,
    members: Members,
    /// When the event at hand was handed over.
    now: Instant,
    config: Config,
    next_serial: u64,
    /// What the event at hand has led to so far, in order.
    actions: Vec<Action>,
    /// Messages to this node itself, handled before [`crate::node::Node::handle`] returns.
    loopback: VecDeque<Message>,
}

impl World {
    pub(crate) fn new(me: Member, config: Config) -> Self {
        Self {
            me,
            members: Members::new(me),
            now: Instant::default(),
            config,
            next_serial: 0,
            actions: Vec::new(),
            loopback: VecDeque::new(),
        }
    }

    /// An event begins; `actions` receives what follows from it.
    pub(crate) fn begin(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.now = now;
        core::mem::swap(&mut self.actions, actions);
    }

    /// The event is over.
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

    /// Every other member, for what is sent to all.
    pub(crate) fn others(&self) -> Vec<NodeId> {
        self.members.others().map(|other| other.id).collect()
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.act(Action::Note(note));
    }

    /// A limit turned away what a member said, or what a client asked for.
    pub(crate) fn turned_away(&mut self, whose: Whose, limit: &'static str) {
        self.note(Note::Limited { whose, limit });
    }

    pub(crate) fn reply(
        &mut self,
        client: ClientId,
        request: RequestId,
        answer: Result<Answer, Error>,
    ) {
        self.act(Action::Reply { client, request, answer });
    }

    /// Sends a message to a member, or to this node itself; one to any other node is dropped.
    pub(crate) fn send(&mut self, to: NodeId, message: Message) {
        if to == self.me() {
            self.loopback.push_back(message);
        } else if self.members.contains(to) {
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

    /// The next message of this node to itself.
    pub(crate) fn next_loopback(&mut self) -> Option<Message> {
        self.loopback.pop_front()
    }

    /// A number that this node has given to nothing else.
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

    /// Whether an instance names this node as its maker, which has made none of that number.
    pub(crate) fn is_unmade(&self, instance: Instance) -> bool {
        instance.node == self.me() && instance.serial > self.next_serial
    }
}

#[cfg(test)]
impl World {
    /// What node 1 of nodes 1 to `count` sees.
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

    /// Time passes.
    pub(crate) fn wait_until(&mut self, now: Instant) {
        self.now = now;
    }

    /// The actions since this was asked last.
    pub(crate) fn taken(&mut self) -> Vec<Action> {
        core::mem::take(&mut self.actions)
    }
}

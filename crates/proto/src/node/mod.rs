//! The state machine of a node: it decides, and the shell acts.
//!
//! [`Node::handle`] takes an event and appends actions; [`Node::deadline`] is the time of the next
//! [`Event::DeadlinePassed`]. Machines (`crate::machines`) own the state. They do not depend on
//! each other: a caller passes what they need.
//!
//! [`route`], [`verbs`] and [`messages`] dispatch events, client requests and messages to machines;
//! [`permit`] drops messages that are not valid. Work that involves several machines is a method of
//! [`Node`], in one file for each step of an object: [`reserve`], [`put`], [`get`], [`receive`],
//! [`range`], [`serve`], [`copy`], [`spill`], [`replicate`], [`reduce`], [`fold`], [`result`],
//! [`ring`] and [`delete`]. [`questions`] sends questions for all of them. [`timeout`] ends
//! requests, [`status`] and [`running`] describe what goes on, [`membership`] and [`walk`] handle
//! membership changes, and [`leave`] ends this node.

mod copy;
mod delete;
mod fold;
mod get;
mod leave;
mod membership;
mod messages;
mod permit;
mod put;
mod questions;
mod range;
mod receive;
mod reduce;
mod replicate;
mod reserve;
mod result;
mod ring;
mod route;
mod running;
mod serve;
mod spill;
mod status;
#[cfg(test)]
mod tests;
mod timeout;
mod verbs;
mod walk;

use alloc::vec::Vec;

pub use crate::event::{
    Action, Config, Event, FETCH_PROGRESS_NS, FOLD_STALL_NS, FetchOrder, LEAVE_TIMEOUT_NS,
    LimitSubject, LogEvent, LostObjects, RangeSource, SpilledCopy,
};
pub use crate::machines::worker::Fold;
use crate::{
    directory::Directory,
    limits::{INLINE_SHARE, limit_name},
    machines::{
        claims::Claims, client_leases::ClientLeases, coordinator::Coordinator, copies::Copies,
        incoming::Incoming, membership::Membership, questions::Questions, readers::Readers,
        replicas::Replicas, requests::Requests, walk::Walk, worker::Worker, world::World,
    },
    members::{Member, Members},
    table::Table,
    time::Instant,
};

/// One node of the cluster, which consists of its machines.
#[derive(Debug)]
pub struct Node {
    world: World,
    membership: Membership,
    directory: Directory,
    walk: Walk,
    requests: Requests,
    questions: Questions,
    copies: Copies,
    claims: Claims,
    client_leases: ClientLeases,
    incoming: Incoming,
    readers: Readers,
    coordinator: Coordinator,
    worker: Worker,
    replicas: Replicas,
}

impl Node {
    /// A node that is alone in its cluster.
    pub fn new(me: Member, config: Config) -> Self {
        let small = config.inline_capacity.unwrap_or(config.capacity / INLINE_SHARE);
        Self {
            world: World::new(me, config),
            membership: Membership::new(me.id, config.detection_ns),
            directory: Directory::new(config.detection_ns, config.slice, small),
            walk: Walk::default(),
            requests: Requests::default(),
            questions: Questions::default(),
            copies: Copies::new(config.capacity),
            claims: Claims::default(),
            client_leases: ClientLeases::default(),
            incoming: Incoming::default(),
            readers: Readers::default(),
            coordinator: Coordinator::default(),
            worker: Worker::default(),
            replicas: Replicas::default(),
        }
    }

    /// Handles an event, and appends the resulting actions to `actions`, in order.
    pub fn handle(&mut self, now: Instant, event: Event, actions: &mut Vec<Action>) {
        self.world.begin(now, actions);
        self.dispatch(event);
        self.walk_after_changes();
        self.questions.advance(&mut self.world);
        self.settle();
        self.questions.advance(&mut self.world);
        self.report_long_waits();
        self.expire_requests();
        self.settle();
        self.coordinator.confirm_drained(&mut self.world);
        self.leave_when_empty();
        self.note_limits();
        self.questions.pause(&self.world);
        self.world.end(actions);
    }

    /// Reports the limits that rejected messages of members.
    fn note_limits(&mut self) {
        for (member, limit) in self.directory.take_limited() {
            self.world.limit_reached(LimitSubject::Member(member), limit);
        }
        for member in self.membership.take_limited() {
            self.world
                .limit_reached(LimitSubject::Member(member), limit_name!(INDIRECT_PROBES_MAX));
        }
    }

    /// Continues until nothing is left to do: copies that wait for capacity, and messages of this
    /// node to itself as an owner.
    fn settle(&mut self) {
        loop {
            self.follow_copies();
            while self.copies.settle(&mut self.world) {
                self.follow_copies();
                if self.copies.is_short() {
                    // Return other nodes' replicas once this node can free no more by itself.
                    self.return_replicas();
                }
            }
            let Some(message) = self.world.next_loopback() else { return };
            self.receive(self.world.me(), message);
        }
    }

    /// When the node must be called even if no event occurs.
    pub fn deadline(&self) -> Option<Instant> {
        let all = [
            self.world.deadline(),
            self.requests.deadline(),
            self.incoming.deadline(),
            self.copies.deadline(),
            self.walk.deadline(),
            self.questions.deadline(),
            self.coordinator.deadline(),
            self.client_leases.deadline(),
            self.replicas.deadline(),
            self.directory.deadline(),
            self.membership.deadline(),
        ];
        all.into_iter().flatten().min()
    }

    /// This node's membership view.
    pub const fn members(&self) -> &Members {
        self.world.members()
    }

    /// The copies of this node.
    pub const fn table(&self) -> &Table {
        self.copies.table()
    }

    /// This node's shard of the directory.
    pub const fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Number of client requests without a reply.
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }
}

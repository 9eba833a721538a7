//! State shared by the network tasks. Does not know what they do.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use hoplite_proto::{id::NodeId, members::Members};

use super::{
    connection_limit::ConnectionLimit, control::Control, handshake::Identity,
    own_revocation::OwnRevocation, peers::Peers, survey::Survey,
};
use crate::{
    counters::Counters,
    engine::{event_sender::EventSender, tasks::Supervisor},
    limited::Limited,
    link::LinkMeter,
    sync::lock,
};

/// The shared state of this node's network tasks.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) identity: Identity,
    pub(crate) peers: Peers,
    pub(crate) control: Arc<Control>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) limited: Arc<Limited>,
    pub(crate) connection_limit: Arc<ConnectionLimit>,
    /// Why other nodes reject this one, if known.
    pub(crate) own_revocation: OwnRevocation,
    pub(crate) traffic: Traffic,
    pub(crate) survey: Survey,
    pub(crate) events: EventSender,
    pub(crate) link: Arc<LinkMeter>,
    pub(crate) tasks: Supervisor,
}

/// Payload received from each member, and sent to it: bytes of copies and partial sums.
#[derive(Debug, Default)]
pub(crate) struct Traffic(Mutex<HashMap<NodeId, (u64, u64)>>);

impl Traffic {
    pub(crate) fn received(&self, from: NodeId, bytes: u64) {
        lock(&self.0).entry(from).or_default().0 += bytes;
    }

    pub(crate) fn sent(&self, to: NodeId, bytes: u64) {
        lock(&self.0).entry(to).or_default().1 += bytes;
    }

    /// The bytes of each member. Forgets former members.
    pub(crate) fn values(&self, members: &Members) -> HashMap<NodeId, (u64, u64)> {
        let mut all = lock(&self.0);
        all.retain(|node, _| members.contains(*node));
        all.clone()
    }
}

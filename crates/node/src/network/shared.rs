//! State shared by the network tasks. Does not know what they do.

use std::sync::Arc;

use super::{
    connection_limit::ConnectionLimit, control::Control, handshake::Identity,
    own_revocation::OwnRevocation, peers::Peers, survey::Survey, traffic::Traffic,
};
use crate::{
    counters::Counters,
    engine::{event_sender::EventSender, supervisor::Supervisor},
    limited::Limited,
    link::LinkMeter,
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

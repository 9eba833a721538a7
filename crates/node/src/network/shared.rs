//! State shared by the network tasks. Does not know what they do.

use std::sync::Arc;

use super::{barred::Barred, control::Control, handshake::Identity, peers::Peers, places::Places};
use crate::{
    counters::Counters,
    engine::{facts::Facts, tasks::Tasks},
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
    pub(crate) places: Arc<Places>,
    /// Why other nodes reject this one, if known.
    pub(crate) barred: Barred,
    pub(crate) facts: Facts,
    pub(crate) link: Arc<LinkMeter>,
    pub(crate) tasks: Tasks,
}

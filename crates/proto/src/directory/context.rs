//! The context in which the directory handles one input, and the queue of its messages.

use alloc::vec::Vec;

use crate::{id::NodeId, members::Members, message::Message, reduce::cost::Link, time::Instant};

/// Messages to nodes, in order, including those to this node itself.
pub type Outbox = Vec<(NodeId, Message)>;

/// The context of the directory during one input.
#[derive(Debug)]
pub struct Context<'a> {
    /// When the input arrived.
    pub now: Instant,
    /// The members, in this node's view.
    pub members: &'a Members,
    /// The measured link of this node to the others.
    pub link: Link,
    /// Messages to send.
    pub outbox: &'a mut Outbox,
}

//! What a part of the directory sees beside itself while it takes a fact, and where it puts what it says.

use alloc::vec::Vec;

use crate::{id::NodeId, members::Members, message::Message, reduce::cost::Link, time::Instant};

/// Messages to nodes, in order; those to this node itself are among them.
pub type Mail = Vec<(NodeId, Message)>;

/// The world of the directory during one fact.
#[derive(Debug)]
pub struct World<'a> {
    /// When the fact came.
    pub now: Instant,
    /// The members, as this node sees them.
    pub members: &'a Members,
    /// The link of this node to the others, as it was measured.
    pub link: Link,
    /// What is said.
    pub mail: &'a mut Mail,
}

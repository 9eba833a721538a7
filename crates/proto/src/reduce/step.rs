//! What a reduce tells its node to do, and what it is told of the world to plan. Knows no plan.

use alloc::{string::String, vec::Vec};
use core::fmt;

use super::{
    assign::Seat,
    cost::{DegreeReason, Link},
    shape::Degree,
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    inline::Inline,
    members::Members,
    message::FoldOrder,
};

/// What a reduce wants its node to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the owner of this input, and go on listening.
    Watch(ObjectId),
    /// Send a position its order.
    Order(NodeId, FoldOrder),
    /// Ask a node that others wait for whether it lives.
    Probe(NodeId),
    /// All inputs are small: fold these here.
    FoldInline(Vec<Inline>),
    /// All inputs are chosen: make room for the result and fold these into it.
    Result {
        /// Inputs at the caller's node.
        local: Vec<Instance>,
        /// Positions whose streams end here.
        children: Vec<(NodeId, u32)>,
    },
    /// An attempt is over: these nodes are to stop, and its result is void.
    Void {
        /// The attempt.
        epoch: u32,
        /// Who was ordered to fold.
        nodes: Vec<NodeId>,
        /// Why, in words.
        detail: String,
    },
    /// All inputs are chosen, and most of those who hold them want the result: have each fold a part of it.
    Scatter(Vec<Seat<NodeId, Instance>>),
    /// The shape of the tree was chosen.
    Chose(Degree, DegreeReason),
    /// It can't succeed.
    Fail(Error),
}

/// What a reduce has to know of the world to plan.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    /// Who there is.
    pub members: &'a Members,
    /// Whether this node has a copy of an instance that is not about to go.
    pub holds: &'a dyn Fn(Instance) -> bool,
    /// Between any two of them.
    pub link: Link,
    /// Whether a node is known to wait for the result.
    pub wants: &'a dyn Fn(NodeId) -> bool,
}

impl fmt::Debug for Around<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Around").field("link", &self.link).finish_non_exhaustive()
    }
}

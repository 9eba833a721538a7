//! Steps that a reduce requests from its node, and the view of the cluster that it plans with.

use alloc::{string::String, vec::Vec};
use core::fmt;

use super::{
    assign::Contributor,
    cost::{DegreeReason, Link},
    shape::Degree,
};
use crate::{
    directory::Slice,
    error::Error,
    id::{Instance, NodeId, ObjectId},
    inline::Inline,
    members::Members,
    message::FoldOrder,
};

/// A step that the node executes for a reduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Watch this input at its owner.
    Watch(ObjectId),
    /// Send an order to a position.
    Order(NodeId, FoldOrder),
    /// Probe a node that others wait for.
    Probe(NodeId),
    /// All inputs are inline: fold these on this node.
    FoldInline(Vec<Inline>),
    /// All inputs are chosen: allocate the result, and fold into it the inputs on the calling node
    /// and the streams that go there.
    Result(FoldOrder),
    /// An attempt ended: stop these nodes and drop its result.
    Void {
        /// The epoch.
        epoch: u32,
        /// Nodes that received orders.
        nodes: Vec<NodeId>,
        /// Why, as text.
        detail: String,
    },
    /// All inputs are chosen, and most contributors also want the result: run the reduce as a ring.
    StartRing(Vec<Contributor<NodeId, Instance>>),
    /// The shape of the tree was chosen.
    DegreeChosen(Degree, DegreeReason),
    /// The reduce can't succeed.
    Fail(Error),
}

/// What a reduce uses to plan.
#[derive(Clone, Copy)]
pub struct PlanContext<'a> {
    /// The members.
    pub members: &'a Members,
    /// Whether this node has a usable copy of an instance.
    pub holds: &'a dyn Fn(Instance) -> bool,
    /// The link between any two members.
    pub link: Link,
    /// Whether a node is known to wait for the result.
    pub wants: &'a dyn Fn(NodeId) -> bool,
    /// How many inputs one event compares with nodes that are gone, and the pause after it.
    pub slice: Slice,
}

impl fmt::Debug for PlanContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanContext").field("link", &self.link).finish_non_exhaustive()
    }
}

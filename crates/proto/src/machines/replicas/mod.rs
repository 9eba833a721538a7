//! Replicas: other nodes hold pinned copies of this node's objects too, so that an object survives
//! the failure of the node of its put. This node holds such copies for others.
//!
//! While this node runs, it maintains as many replicas as its client requested, whichever nodes
//! join and leave ([`requested`]; [`set`] has the nodes of one object). A replica on another node
//! is equivalent to the pinned copy here, and is not evicted. When this node leaves, it replicates
//! each pinned copy elsewhere ([`hand_over`]). Does not know the memory of this node, nor whether a
//! copy here is pinned.
//!
//! Replicas spread evenly over all nodes, by bytes. A node whose own clients need the capacity
//! offers replicas back, and holds them until another node has them ([`hosted`]).

mod hand_over;
mod hosted;
mod requested;
mod set;
mod state;

pub(crate) use self::state::{Farewell, FarewellStage, IncomingReplica, Replicas};

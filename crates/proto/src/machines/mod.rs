//! The machines of a node. Each owns one part of the node's state in private fields, and is tested alone.
//!
//! Machines do not depend on [`crate::node`], which calls them and passes the other state that they need.
//!
//! | machine | owns |
//! |---|---|
//! | [`world`] | members, time, settings; the actions and messages that the current event causes |
//! | [`membership`] | who is a member; the failure detector, reconnects to lost members |
//! | [`requests`], [`watches`] | requests of clients; objects that this node watches at their owners |
//! | [`copies`] | local copies: admission, memory, eviction, spilling to disk and back |
//! | [`puts`], [`promises`] | objects that clients make; reserved ids |
//! | [`leases`] | leases that clients of this node have taken: of jobs, and of objects |
//! | [`pulls`], [`readers`] | objects in transfer to this node; local readers and remote receivers |
//! | [`coordinator`], [`reservations`] | reduces of clients of this node; the reserved names of their results |
//! | [`worker`], [`scatters`] | folds on this node; results of ring reduces that grow here |
//! | [`replicas`], [`replicated`] | this node's pinned copies that other nodes replicate |
//! | [`adoptions`] | other nodes' pinned copies that are kept here |
//! | [`leaving`] | work left before leaving |
//! | [`surveys`] | surveys of the network, and this node's part in them |
//! | [`retelling`] | re-announcements that are due after membership changes |
//! | [`crate::directory`] | this node's shard of the directory |

pub(crate) mod adoptions;
pub(crate) mod change;
pub(crate) mod coordinator;
pub(crate) mod copies;
pub(crate) mod leases;
pub(crate) mod leaving;
pub(crate) mod membership;
pub(crate) mod promises;
pub(crate) mod pull;
pub(crate) mod pulls;
pub(crate) mod puts;
pub(crate) mod readers;
pub(crate) mod replicas;
pub(crate) mod replicated;
pub(crate) mod requests;
pub(crate) mod reservations;
pub(crate) mod retelling;
pub(crate) mod scatters;
pub(crate) mod surveys;
pub(crate) mod watches;
pub(crate) mod worker;
pub(crate) mod world;

//! The machines of a node. Each owns one part of the node's state in private fields, and is tested
//! alone.
//!
//! Machines do not depend on [`crate::node`], which calls them and passes the other state that they
//! need.
//!
//! | machine | owns |
//! |---|---|
//! | [`world`] | members, time, settings; the actions and messages that the current event causes |
//! | [`membership`] | who is a member; the failure detector, reconnects to lost members |
//! | [`reply_timeouts`] | members that have not replied to a request for too long |
//! | [`requests`] | requests of clients |
//! | [`questions`] | questions of this node to owners and members |
//! | [`copies`] | local copies: admission, memory, eviction, spilling to disk and back |
//! | [`claims`] | ids and names that clients and reduces of this node hold while objects are made |
//! | [`client_leases`] | leases that clients of this node have taken: of jobs, and of objects |
//! | [`incoming`] | everything that arrives on this node |
//! | [`readers`] | local readers and remote receivers |
//! | [`coordinator`] | reduces of clients of this node |
//! | [`worker`] | folds on this node |
//! | [`replicas`] | replicas of copies of this node, also after it has left; those of others here |
//! | [`walk`] | how far everything is sent again after membership changes |
//! | [`crate::directory`] | this node's shard of the directory |

pub(crate) mod claims;
pub(crate) mod client_leases;
pub(crate) mod coordinator;
pub(crate) mod copies;
pub(crate) mod incoming;
pub(crate) mod membership;
pub(crate) mod membership_change;
pub(crate) mod questions;
pub(crate) mod readers;
pub(crate) mod replicas;
pub(crate) mod reply_timeouts;
pub(crate) mod requests;
pub(crate) mod walk;
pub(crate) mod worker;
pub(crate) mod world;

//! The machines of a node: each owns one part of its state in private fields, and is tested alone.
//!
//! None knows [`crate::node`], which calls them. What each may know of the others it is handed.
//!
//! | machine | owns |
//! |---|---|
//! | [`world`] | members, time, settings; the actions and messages that follow from the event at hand |
//! | [`membership`] | who takes part; the failure detector, the redial |
//! | [`requests`], [`watches`] | questions of clients; objects of which owners are to tell |
//! | [`copies`] | local copies: what waits for room and memory, what is evicted, the way to disk and back |
//! | [`puts`], [`promises`] | objects that clients make, or said they would |
//! | [`leases`] | leases that clients of this node have taken: of jobs, and of objects |
//! | [`pulls`], [`readers`] | objects on their way to here; who waits for them, reads and receives copies |
//! | [`coordinator`], [`reservations`] | reduces of clients of this node; the names of their results |
//! | [`worker`], [`scatters`] | folds that run here; results that grow here by parts |
//! | [`replicas`], [`replicated`], [`adoptions`], [`leaving`] | originals that others keep, those kept for others; what has to be done before leaving |
//! | [`surveys`] | surveys of the network, and the part of this node in them |
//! | [`retelling`], [`crate::directory`] | what owners are to hear after a change of members; what this node owns |

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

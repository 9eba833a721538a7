//! Surveys: nodes without a configured place measure which of them share a link.
//!
//! A shell (`hoplite-node`, or the simulator) owns a [`Surveys`]. It passes the members, the messages of other members
//! and the time, and executes the effects that the machine returns. The state machine of the node
//! (`hoplite_proto::node`) passes the messages without reading them, and gets the result as places of members.
//!
//! | module | owns |
//! |---|---|
//! | [`surveys`] | this node's part in surveys: who surveys, when, and who learns the result |
//! | [`survey`] | one survey: the bursts of each round, and the groups that explain their durations |
//! | [`message`] | messages between the nodes of a survey, and their encoding |
//!
//! The crate has no clock, socket or thread, like `hoplite-proto`.

#![no_std]

extern crate alloc;

mod groups;
mod message;
mod pool;
mod rounds;
mod survey;
mod surveys;

pub use crate::{
    survey::{FILLING_BYTES, NODES_MAX, NODES_MIN},
    surveys::{Effect, Scope, Surveys},
};

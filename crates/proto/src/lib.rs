//! The decisions of Hoplite: state machines without clock, socket, thread, entropy or payload.
//!
//! A shell (`hoplite-node`, or the simulator) owns a [`node::Node`]. It passes events
//! ([`node::Event`]) and the time to the node, and executes the actions ([`node::Action`]) that the
//! node appends:
//!
//! ```text
//!   node.handle(now, event, &mut actions);      // events in, actions out
//!   node.deadline()                             // when to pass Event::DeadlinePassed
//! ```
//!
//! The same events at the same times produce the same actions, so a whole cluster can be tested in
//! one thread from one seed. The crate is `no_std`, which makes the system clock unavailable.
//!
//! | module | owns |
//! |---|---|
//! | [`node`] | the state machine of a node: put, get, serve, reduce, delete, join, leave |
//! | [`directory`] | this node's shard of the directory: holders, watchers, deletions |
//! | [`broadcast`] | the choice of a source for a reader |
//! | [`reduce`] | the tree of a reduce: its shape, its inputs and its positions |
//! | [`table`] | copies on this node, capacity and eviction |
//! | [`lifetime`] | times to live, jobs and leases of objects |
//! | [`swim`], [`failed_members`] | failure detection; reconnects to failed members |
//! | [`reconnect`] | backoff for broken control connections |
//! | [`members`], [`place`] | owners of an object's directory entry; racks and zones of hosts |
//! | [`cluster_id`] | which clusters may become one |
//! | [`message`], [`wire`] | messages between nodes and their encoding |
//! | [`request`], [`capability`] | requests of clients; which requests a capability allows |
//! | [`inspection`] | what a member reports about itself |
//! | [`selection`] | rows or bytes of an object that a client wants without the rest |
//! | [`limiter`] | concurrent transfers from one source |
//! | [`credit`], [`connections`] | bytes in flight of a transfer; connections of a large one |
//! | [`rate`], [`progress_timeout`] | rate reports of transfers; timeouts of stalled transfers |
//! | [`link`] | estimates of latency and bandwidth |
//! | [`limits`] | every limit and default |
//! | [`mutants`] | mutations for tests of the simulator |

#![no_std]

extern crate alloc;

pub mod broadcast;
pub mod capability;
pub mod cluster_id;
pub mod connections;
pub mod credit;
pub mod directory;
pub mod error;
pub mod event;
pub mod failed_members;
pub mod id;
pub mod inline;
pub mod inspection;
pub mod lifetime;
pub mod limiter;
pub mod limits;
pub mod link;
mod machines;
pub mod members;
pub mod message;
pub mod meta;
pub mod mutants;
pub mod narrow;
pub mod node;
pub mod pipeline;
pub mod place;
mod prefix;
pub mod progress_timeout;
pub mod question;
mod quoted;
pub mod ranges;
pub mod rate;
pub mod reconnect;
pub mod reduce;
pub mod request;
pub mod selection;
pub mod swim;
pub mod table;
pub mod time;
mod timed;
pub mod unit;
mod validate;
pub mod wire;

//! Every decision of Hoplite, and nothing else: no clock, no socket, no thread, no entropy, no payload.
//!
//! A shell (`hoplite-node`, or the simulation) owns a [`node::Node`], hands it facts ([`node::Event`]) together with
//! the time, and carries out the orders ([`node::Action`]) that it appends:
//!
//! ```text
//!   node.handle(now, event, &mut actions);      // past-tense facts in, imperatives out
//!   node.deadline()                             // when to hand it Event::DeadlinePassed
//! ```
//!
//! The same facts at the same times give the same orders, which is what makes a whole cluster testable in one
//! thread from one seed. The crate is `no_std`, so that there is no clock to reach for.
//!
//! | module | decides |
//! |---|---|
//! | [`node`] | what a node does next: put, get, serve, reduce, delete, join, leave |
//! | [`directory`] | who holds an object, who is told of it |
//! | [`broadcast`] | which node a receiver takes an object from |
//! | [`reduce`] | which node folds what with which, in which shape of tree |
//! | [`table`] | what a node holds, and what it evicts |
//! | [`lifetime`] | when an object ends that is not deleted |
//! | [`swim`], [`redial`] | which members live, and which of the lost this node calls again |
//! | [`reconnect`] | when a broken control connection is made again, and when not |
//! | [`members`], [`place`] | which node owns an object's directory entry, which nodes are near each other |
//! | [`survey`] | which hosts share a link, as bursts between them show |
//! | [`message`], [`wire`] | what nodes say to each other, and its bytes |
//! | [`ask`], [`capability`] | what clients ask of a node, and which of them may ask what |
//! | [`limiter`] | how many copies are received from one sender at a time |
//! | [`pace`], [`patience`] | when a transfer is worth a report, and when it has moved too little and ends |
//! | [`link`] | what samples of transfers say of the link |
//! | [`limits`] | every bound and default |
//! | [`planted`] | mistakes on purpose, for tests of the simulation |

#![no_std]

extern crate alloc;

pub mod ask;
pub mod broadcast;
pub mod capability;
pub mod credit;
pub mod directory;
pub mod error;
pub mod event;
pub mod id;
pub mod inline;
pub mod lifetime;
pub mod limiter;
pub mod limits;
pub mod link;
mod machines;
pub mod members;
pub mod message;
pub mod meta;
pub mod node;
pub mod pace;
pub mod patience;
pub mod pipeline;
pub mod place;
pub mod planted;
mod quoted;
pub mod ranges;
pub mod reconnect;
pub mod redial;
pub mod reduce;
mod sound;
pub mod survey;
pub mod swim;
pub mod table;
pub mod time;
mod timed;
pub mod unit;
pub mod wire;

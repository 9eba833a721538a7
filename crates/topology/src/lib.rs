//! Which machine gets which rank of a collective.
//!
//! A [`schedule`] says which rank sends what to which rank in which round. A [`cost`] model says how long that takes on
//! a [`network`], for an order of its machines. [`plan`] searches for an order of low cost, and proves by a lower bound
//! how far from the lowest it can be. [`fabric`] is the judge: it simulates the flows of a schedule over links.
//!
//! Everything here is a function of its arguments: no clock, file, socket or thread. The caller gives the seed, and a
//! function that says when the time is up. Times are microseconds, sizes bytes, rates bytes per microsecond.

pub mod branch;
pub mod clusters;
pub mod cost;
pub mod cuts;
pub mod duals;
pub mod exchange;
pub mod fabric;
mod job;
pub mod matrix;
pub mod network;
pub mod onetree;
pub mod packing;
pub mod plan;
pub mod random;
mod request;
pub mod rings;
pub mod rounds_bound;
pub mod schedule;
pub mod search;
pub mod synthetic;
pub mod tour;
pub mod trees;
pub mod trees_bound;
pub mod why;

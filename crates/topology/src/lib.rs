//! Assigns machines to ranks of a collective.
//!
//! A [`schedule`] defines which rank sends what to which rank in which round. A [`cost`] model predicts its duration on
//! a [`network`] for an order of the machines. [`plan`] searches for an order of low cost and computes a lower bound,
//! which limits how far the order can be from the optimum. [`fabric`] simulates the flows of a schedule over links, to
//! judge the models.
//!
//! All functions are pure: no clock, file, socket or thread. The caller passes the seed, and a function that returns
//! true when the time is up. Times are in microseconds, sizes in bytes, rates in bytes per microsecond.

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

//! This node's shard of the directory: the holders and the open questions of each object that it
//! owns.
//!
//! Input: messages of holders and requesters, departures of members, and time. Output: messages.
//! All of it is soft state, which the holders can announce again, so losing it loses no object,
//! except small ones without a holder ([`stored`]). The directory does not know bytes, connections
//! or clients.
//!
//! The state is in [`state`]: entries of objects ([`entries`], [`entry`], [`live`]), each with its
//! broadcast tree ([`tree`]), the open questions of nodes ([`questions`]), names by prefix
//! ([`versions`]), records about nodes ([`speeds`], [`accounts`]) and [`leases`]. Each file that
//! changes the state handles one kind of input: reports of holders ([`copies`], [`rebalance`]),
//! requests ([`lookups`], [`names`], [`list`]), deletions ([`deletion`]), expiry ([`terms`],
//! [`expiry`]) and membership changes ([`sweep`], [`stored`]).
//!
//! ```text
//!              Announce         no node can complete it, for a grace
//!   unknown ------------> live ------------------------------> unknown (requesters get ObjectLost)
//!      ^                   | Delete, Fail
//!      |  TOMBSTONE_NS     v
//!      +---------------- gone (requesters get the reason at once)
//! ```

mod accounts;
#[cfg(test)]
mod bounds_tests;
mod compare;
mod context;
mod copies;
mod deletion;
#[cfg(test)]
mod deletion_tests;
mod entries;
mod entry;
mod entry_questions;
mod expiry;
mod handle;
mod holder;
#[cfg(test)]
mod inline_tests;
mod leases;
mod list;
mod live;
mod lookups;
#[cfg(test)]
mod loss_tests;
#[cfg(test)]
mod name_tests;
mod names;
mod probe;
#[cfg(test)]
mod question_tests;
mod questions;
mod ranges;
mod ranking;
mod rebalance;
#[cfg(test)]
mod rebalance_tests;
mod reports;
#[cfg(test)]
mod source_tests;
mod speeds;
mod state;
mod status;
mod stored;
mod sweep;
#[cfg(test)]
mod sweep_tests;
mod terms;
#[cfg(test)]
mod tests;
mod tree;
mod versions;

pub(crate) use self::leases::notify_job_objects;
pub use self::{
    context::{Context, Outbox},
    entries::Slice,
    handle::DirectoryOutcome,
    names::prefix_owners,
    state::Directory,
};

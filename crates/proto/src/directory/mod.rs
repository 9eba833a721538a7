//! The directory: for each object that this node owns, who holds it, who wants it, who watches it.
//!
//! Events are messages of holders and askers, the departure of members, and time; the answers are messages.
//! Everything here can be told again by the nodes that hold the objects, so losing it loses no object.
//! Knows nothing of bytes, connections or clients.
//!
//! What it knows is in [`state`]: entries of objects ([`entries`], [`entry`], [`live`]), each with its broadcast tree
//! ([`tree`]), what nodes are known for ([`speeds`], [`accounts`]) and [`leases`]. Each file that changes it takes one kind of
//! fact: what holders report ([`copies`], [`paces`]), requests ([`asking`], [`names`], [`list`]), deletions ([`deletion`]),
//! ends ([`terms`], [`expiry`]) and changes of members ([`sweep`]).
//!
//! ```text
//!              Announce               no node can complete it, for a grace
//!   unknown ------------> live -----------------------------------------> unknown, askers told ObjectLost
//!      ^                   | Delete, Fail
//!      |  TOMBSTONE_NS     v
//!      +---------------- gone (askers are told why at once)
//! ```

mod accounts;
mod asking;
#[cfg(test)]
mod bounds_tests;
mod copies;
mod deletion;
mod entries;
mod entry;
mod expiry;
mod handle;
mod holder;
mod leases;
mod list;
mod live;
mod names;
mod paces;
#[cfg(test)]
mod paces_tests;
mod paths;
mod ranking;
mod reports;
#[cfg(test)]
mod small_tests;
mod speeds;
mod state;
mod status;
mod sweep;
#[cfg(test)]
mod sweep_tests;
mod terms;
#[cfg(test)]
mod tests;
mod tree;
mod world;

pub use self::{
    entries::Slice,
    handle::Taken,
    names::prefix_owner,
    state::Directory,
    world::{Mail, World},
};

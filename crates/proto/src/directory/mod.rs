//! The directory: for each object that this node owns, who holds it, who wants it, who watches it.
//!
//! Events are messages of holders and askers, the departure of members, and time; the answers are messages.
//! Everything here can be told again by the nodes that hold the objects, so losing it loses no object.
//! Knows nothing of bytes, connections or clients.
//!
//! The files hold what holders tell ([`copies`]), what is asked ([`asking`], [`names`], [`list`]), deletions ([`deletion`]),
//! what ends by itself ([`leases`]),
//! and what a change of members touches ([`sweep`]).
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
mod leases;
mod lifetimes;
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

//! Limits of what attached processes may use of their node. A process beyond a limit gets an error
//! or loses its attachment. Of a shared limit, each process may use as much as it leaves free
//! ([`super::quota`]).
//!
//! In tests of this crate the limits are low enough to be reached.

use std::time::Duration;

use super::quota::QuotaExceeded;
use crate::config::descriptors;

/// Timeout of a process's greeting: 5 s. A process greets at once, unless it is frozen.
pub(crate) const GREETING_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Open requests of a process: 262 144. That is six times as many gets as the benchmarks have open
/// at once.
pub(crate) const REQUESTS_MAX: usize = if cfg!(test) { 1000 } else { 1 << 18 };

/// What a request takes of the node in addition to its bytes: 1 KiB. Measured: 0.8 KiB of a get.
pub(crate) const REQUEST_COST_BYTES: u64 = 1 << 10;

/// What each object takes that a request waits for: 1 KiB. Measured: 1030 bytes of a name in a wait
/// or reduce.
pub(crate) const ID_COST_BYTES: u64 = 1 << 10;

/// Bytes of the open requests and unfinished reduces of all processes, 512 MiB. One process or
/// grant may have half of them: four waits or reduces for the most objects, 131 072 gets, or 7900
/// puts of the largest objects that travel inside messages. A process below [`REQUEST_SHARE_BYTES`]
/// may always send requests.
pub(crate) const REQUEST_BYTES_TOTAL_MAX: u64 = if cfg!(test) { 6 << 20 } else { 512 << 20 };

/// Bytes of open requests that each process may use regardless of others, 64 KiB: 64 short
/// requests, or one with the largest object that travels inside messages.
pub(crate) const REQUEST_SHARE_BYTES: u64 = 64 << 10;

/// Calls of `latest` of all processes that wait: 8192, half of what an owner keeps of one member.
/// The other half is for the node's own program, and for calls beyond this limit, which return a
/// name that exists already.
pub(crate) const LATEST_MAX: u64 =
    if cfg!(test) { 16 } else { hoplite_proto::limits::LATEST_MAX as u64 / 2 };

/// Open pages of listings and reports of status of all processes: 256. Each takes the event loop of
/// a node up to a few milliseconds.
pub(crate) const LISTINGS_MAX: u64 = if cfg!(test) { 16 } else { 256 };

/// How long a thread serves one process before it turns to others: 1 ms, as a turn of the event
/// loop.
pub(crate) const TURN_MAX: Duration = Duration::from_millis(1);

/// Open inspections of all processes: 8192. A program that observes the largest cluster inspects
/// 4096 members at once.
pub(crate) const INSPECTIONS_MAX: u64 =
    if cfg!(test) { 16 } else { 2 * hoplite_proto::limits::MEMBERS_MAX as u64 };

/// Bytes of replies that a process has not read, 1 GiB: 32 768 of the largest objects that travel
/// inside messages, whose replies may all arrive at once. A process that reads receives that much
/// in a second.
pub(crate) const UNREAD_BYTES_MAX: usize = if cfg!(test) { 4 << 20 } else { 1 << 30 };

/// Bytes of unread replies of all processes that the node stores for them alone, 1 GiB: without
/// objects, which are in the store anyway. One process or grant may have half of them. A process
/// that reads has less: 512 MiB are the replies to all [`REQUESTS_MAX`] requests, of up to 2 KiB.
pub(crate) const UNREAD_BYTES_TOTAL_MAX: u64 = if cfg!(test) { 4 << 20 } else { 1 << 30 };

/// Bytes of those that each process may have regardless of others, 64 KiB.
pub(crate) const UNREAD_SHARE_BYTES: u64 = 64 << 10;

/// Objects that a process follows while they arrive: 1024. Each blocks the reuse of its memory,
/// even after the object is deleted. For more objects, the process is only notified of the complete
/// object.
pub(crate) const FOLLOWED_MAX: usize = if cfg!(test) { 4 } else { 1024 };

/// Forked children of all processes that still read their parents' objects, unless descriptors
/// limit them further, 8192: twice as many processes as Linux gives a user on a small machine.
pub(crate) const FORK_PINS_MAX: u64 = if cfg!(test) { 16 } else { 8192 };

/// Copies of objects that confined processes read, unless descriptors limit them further, 8192:
/// twice as many as the objects that a node stores in memory of their own. The capacity of the
/// store bounds their bytes.
pub(crate) const COPIES_MAX: u64 = if cfg!(test) { 16 } else { 8192 };

/// Attached processes, unless descriptors limit them further: 4096, as many as a large host has
/// threads.
pub(crate) const ATTACHED_MAX: u64 = if cfg!(test) { 64 } else { 4096 };

/// Processes that wait for a place at the limit: 8. Each takes a descriptor, and rejected processes
/// retry.
pub(crate) const WAITING_MAX: u64 = 8;

/// How long such a process waits: 5 s. The node needs milliseconds to detect that a process has
/// left, longer on a busy host.
pub(crate) const ATTACH_WAIT_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Limit of attached processes: [`ATTACHED_MAX`], or as many as take half of the descriptors of
/// this process. Each takes two; the other half is for nodes and memory.
pub(crate) fn attached_max() -> u64 {
    (descriptors() / 4).clamp(1, ATTACHED_MAX)
}

/// Limit of forked children that read: [`FORK_PINS_MAX`], or as many as take a quarter of the
/// descriptors of this process.
pub(crate) fn holds_max() -> u64 {
    (descriptors() / 4).clamp(1, FORK_PINS_MAX)
}

/// Limit of copies for confined processes: [`COPIES_MAX`], or as many as take an eighth of the
/// descriptors of this process.
pub(crate) fn copies_max() -> u64 {
    (descriptors() / 8).clamp(1, COPIES_MAX)
}

/// The error when no place is free for another process.
pub(crate) fn no_place(excess: QuotaExceeded) -> String {
    let remedy = format!(
        "close clients, or raise ulimit -n of the node (which allows up to {ATTACHED_MAX})"
    );
    excess.explain("ATTACHED_MAX", "attachments", &remedy)
}

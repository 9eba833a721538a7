//! Limits of what attached processes may use of their node. A process beyond a limit gets an error or loses its
//! attachment. Of a shared limit, each process may use as much as it leaves free ([`super::quota`]).
//!
//! In tests of this crate the limits are low enough to be reached.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::quota::QuotaExceeded;

/// Timeout of a process's greeting: 5 s. A process greets at once, unless it is frozen.
pub(crate) const GREETING_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Open requests of a process: 262 144. That is six times as many gets as the benchmarks have open at once; each takes
/// half a kilobyte of the node.
pub(crate) const REQUESTS_MAX: usize = if cfg!(test) { 1000 } else { 1 << 18 };

/// Bytes of the open requests of a process, 256 MiB: 32 of the longest, or 8192 puts of the largest objects that travel
/// inside messages.
pub(crate) const REQUEST_BYTES_MAX: usize = if cfg!(test) { 4 << 20 } else { 256 << 20 };

/// Overhead of a request in addition to its bytes: half a kilobyte.
pub(crate) const REQUEST_COST_BYTES: usize = 512;

/// Bytes of the open requests of all processes, 512 MiB: twice the limit of one process. A process below
/// [`REQUEST_SHARE_BYTES`] may always send requests.
pub(crate) const REQUEST_BYTES_TOTAL_MAX: usize = if cfg!(test) { 6 << 20 } else { 512 << 20 };

/// Bytes of open requests that each process may use regardless of others, 64 KiB: 128 short requests, or two with the
/// largest objects that travel inside messages.
pub(crate) const REQUEST_SHARE_BYTES: usize = 64 << 10;

/// Bytes of replies that a process has not read, 1 GiB: 32 768 of the largest objects that travel inside messages,
/// whose replies may all arrive at once. A process that reads receives that much in a second.
pub(crate) const UNREAD_BYTES_MAX: usize = if cfg!(test) { 4 << 20 } else { 1 << 30 };

/// Objects that a process follows while they arrive: 1024. Each blocks the reuse of its memory, even after the object
/// is deleted. For more objects, the process is only notified of the complete object.
pub(crate) const FOLLOWED_MAX: usize = if cfg!(test) { 4 } else { 1024 };

/// Forked children of all processes that still read their parents' objects, unless descriptors limit them further,
/// 8192: twice as many processes as Linux gives a user on a small machine.
pub(crate) const FORK_PINS_MAX: u64 = if cfg!(test) { 16 } else { 8192 };

/// Copies of objects that confined processes read, unless descriptors limit them further, 8192: twice as many as the
/// objects that a node stores in memory of their own. The capacity of the store bounds their bytes.
pub(crate) const COPIES_MAX: u64 = if cfg!(test) { 16 } else { 8192 };

/// Attached processes, unless descriptors limit them further: 4096, as many as a large host has threads.
pub(crate) const ATTACHED_MAX: u64 = if cfg!(test) { 64 } else { 4096 };

/// Processes that wait for a place at the limit: 8. Each takes a descriptor, and rejected processes retry.
pub(crate) const WAITING_MAX: u64 = 8;

/// How long such a process waits: 5 s. The node needs milliseconds to detect that a process has left, longer on a busy
/// host.
pub(crate) const ATTACH_WAIT_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Limit of attached processes: [`ATTACHED_MAX`], or as many as take half of the descriptors of this process. Each
/// takes two; the other half is for nodes and memory.
pub(crate) fn attached_max() -> u64 {
    (descriptors() / 4).clamp(1, ATTACHED_MAX)
}

/// Limit of forked children that read: [`FORK_PINS_MAX`], or as many as take a quarter of the descriptors of this process.
pub(crate) fn holds_max() -> u64 {
    (descriptors() / 4).clamp(1, FORK_PINS_MAX)
}

/// Limit of copies for confined processes: [`COPIES_MAX`], or as many as take an eighth of the descriptors of this
/// process.
pub(crate) fn copies_max() -> u64 {
    (descriptors() / 8).clamp(1, COPIES_MAX)
}

fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The error when no place is free.
pub(crate) fn no_place(whose: &str, QuotaExceeded { own, taken, most }: QuotaExceeded) -> String {
    format!(
        "this node has {taken} of at most {most} attachments, {own} of them from {whose}; no process or grant may use \
         more than it leaves free for others: close clients, or raise ulimit -n of the node (which allows up to \
         {ATTACHED_MAX})"
    )
}

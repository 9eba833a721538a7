//! What attached processes may cost their node. Beyond any of these the one that wants more gets an error, or loses its
//! attachment. Of what all share, each may have as much as it leaves free ([`super::shares`]).
//!
//! Tests of this crate have so few of each that they can reach them.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::shares::Excess;

/// How long a process that connects may take to greet: 5 s. It does so at once, unless it is frozen.
pub(crate) const GREETING_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Questions without an answer: 262 144. Six times as many gets as the benchmarks have open at once; each takes half a
/// kilobyte of the node.
pub(crate) const QUESTIONS_MAX: usize = if cfg!(test) { 1000 } else { 1 << 18 };

/// Bytes of the questions without an answer, 256 MiB: 32 of the longest, or 8192 puts of the largest objects that travel
/// inside messages.
pub(crate) const QUESTION_BYTES_MAX: usize = if cfg!(test) { 4 << 20 } else { 256 << 20 };

/// What a question takes beside its bytes, half a kilobyte.
pub(crate) const QUESTION_COST_BYTES: usize = 512;

/// What the questions of all processes take, 512 MiB: twice what one may have. A process with less than
/// [`QUESTION_SHARE_BYTES`] may ask whatever others do.
pub(crate) const QUESTION_BYTES_OF_ALL_MAX: usize = if cfg!(test) { 6 << 20 } else { 512 << 20 };

/// What the questions of each process may take whatever those of others do, 64 KiB: 128 short ones, or two with the largest objects
/// that travel inside messages.
pub(crate) const QUESTION_SHARE_BYTES: usize = 64 << 10;

/// Bytes of answers that the process has not read, 1 GiB: 32 768 of the largest objects that travel inside messages, which
/// may all be answered at once. A process that reads takes that much in a second.
pub(crate) const UNREAD_BYTES_MAX: usize = if cfg!(test) { 4 << 20 } else { 1 << 30 };

/// Objects that the process follows while they arrive: 1024. Each keeps memory from being used again, also of an object that is
/// deleted; of more, only the complete object is told.
pub(crate) const FOLLOWED_MAX: usize = if cfg!(test) { 4 } else { 1024 };

/// Forks of all processes that still read what those read, whatever descriptors there are, 8192: twice as many processes as
/// Linux gives a user on a small machine.
pub(crate) const HOLDS_MAX: u64 = if cfg!(test) { 16 } else { 8192 };

/// Copies of objects that confined processes read, whatever descriptors there are, 8192: twice as many as a node keeps objects in
/// memory of their own. Their bytes are bounded by the capacity of the store.
pub(crate) const COPIES_MAX: u64 = if cfg!(test) { 16 } else { 8192 };

/// Processes that are attached at once, whatever descriptors there are: 4096, as many as a large host has threads.
pub(crate) const ATTACHED_MAX: u64 = if cfg!(test) { 64 } else { 4096 };

/// Processes that wait for a place while as many are attached as may be: 8. Each takes a descriptor, and more would come again.
pub(crate) const WAITING_MAX: u64 = 8;

/// How long such a process waits: 5 s. The node needs milliseconds to see that a process has left, and more on a busy host.
pub(crate) const PLACE_WAIT_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Processes that are attached at once: [`ATTACHED_MAX`], or as many as take half of the descriptors that this process may open. Each
/// takes two, and the other half is for nodes and memory.
pub(crate) fn attached_max() -> u64 {
    (descriptors() / 4).clamp(1, ATTACHED_MAX)
}

/// Forks that read: [`HOLDS_MAX`], or as many as take a quarter of the descriptors that this process may open.
pub(crate) fn holds_max() -> u64 {
    (descriptors() / 4).clamp(1, HOLDS_MAX)
}

/// Copies of objects that confined processes read: [`COPIES_MAX`], or as many as take an eighth of the descriptors that this
/// process may open.
pub(crate) fn copies_max() -> u64 {
    (descriptors() / 8).clamp(1, COPIES_MAX)
}

fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Why there is no place for one more of these.
pub(crate) fn no_place(whose: &str, Excess { own, taken, most }: Excess) -> String {
    format!(
        "this node serves {taken} processes already, {own} of them {whose}; it may serve {most}, and one may have as many of \
         these places as it leaves free: close clients, or raise ulimit -n of the node, which may allow up to \
         {ATTACHED_MAX}"
    )
}

//! Shared memory of one host. Apart from the Python buffer export, this crate has the only unsafe Rust of the
//! workspace.
//!
//! It owns the memory ([`Arena`], [`Mapping`]), one object's place in it ([`Slot`]), how much of that object is filled
//! ([`ProgressRef`]), who fills it ([`WriteGuard`]), and how descriptors reach other processes ([`send_with_fds`]). It
//! does not handle objects, ids, pins, eviction, capacity or the network.
//!
//! ```text
//! memfd "extent"  |<-- slot ------------------------------------>|<-- slot --> ...
//!                 | header: prefix, bit per block | payload      |
//!                   a block is:  free -> claimed -> ready        (claimed -> free when a claim is dropped)
//! ```
//!
//! # Invariants across processes
//! A ready block is never written again while its slot lives, and only one process writes a slot. Within one process
//! and one mapping, this crate enforces that. The kernel enforces it for readers, which have no writable mapping of a
//! sealed extent. The writer of an extent and the processes that it forks can violate it, but only for that writer's
//! own objects: its extents never contain other bytes. A process that does not trust the writer reads such bytes with
//! atomic loads ([`Ready`]), and records that an object is complete in its own memory ([`Slot::record_complete`]).
//!
//! Lengths, offsets and progress words from other processes are validated. Wrong ones cause wrong data or an error,
//! never an access outside the mapping.

#[cfg(target_pointer_width = "32")]
compile_error!("objects above 4 GiB are mapped whole: a 64-bit target is needed");

mod alloc;
mod progress;
mod sync;
mod units;

pub use alloc::Allocator;
pub use progress::{ProgressRef, ProgressWriter, header_bytes};
pub use units::BLOCK_BYTES;

#[cfg(not(loom))]
pub use self::os::*;

/// Modules that need an operating system. The model checker's build omits them.
#[cfg(not(loom))]
mod os {
    pub use crate::arena::Arena;
    pub use crate::available::{Limit, file_size_limit, memory_limit};
    pub use crate::claim::{ClaimGuard, OwnedWriteGuard, WriteGuard};
    pub use crate::error::ShmError;
    pub use crate::extent::{ArenaStats, ExtentId, WriterId};
    pub use crate::float16::{narrow_float16, widen_float16};
    pub use crate::heap::trim_heap;
    pub use crate::lent::Lent;
    pub use crate::mapping::Mapping;
    pub use crate::pass_fd::{
        FDS_PER_MESSAGE_MAX, recv_all_fds, recv_with_fds, send_with_fds, try_recv_with_fds,
        try_send_with_fds,
    };
    pub use crate::process_id::process_id;
    pub use crate::ready::{Foreign, Ready};
    pub use crate::slot::Slot;
    pub use crate::socket_option::{
        PathInfo, Peer, limit_retransmission, path_info, peer, peer_process, refuse_descriptors,
    };
    pub use crate::standard::fill_standard_descriptors;
}
#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
mod available;
#[cfg(not(loom))]
mod claim;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod extent;
#[cfg(not(loom))]
mod float16;
#[cfg(not(loom))]
mod heap;
#[cfg(not(loom))]
mod lent;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod opened;
#[cfg(not(loom))]
mod pass_fd;
#[cfg(not(loom))]
mod process_id;
#[cfg(not(loom))]
mod ready;
#[cfg(not(loom))]
mod slot;
#[cfg(not(loom))]
mod socket_option;
#[cfg(not(loom))]
mod standard;

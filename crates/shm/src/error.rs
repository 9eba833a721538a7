//! Errors of shared memory.

use std::io;
use std::ops::Range;

use crate::available::Limit;
use crate::extent::ExtentId;

/// An error of allocating, opening or writing shared memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// Too little memory is left. Evict or free something, then try again.
    #[error(
        "cannot allocate {wanted} bytes of memory, because {limit} has only {available} left: {}",
        advice(limit)
    )]
    NoMemory {
        /// Bytes requested.
        wanted: u64,
        /// Bytes that are still available.
        available: u64,
        /// The limit that is reached.
        limit: Limit,
    },
    /// An address space cannot hold such an object. The length is wrong; do not try again.
    #[error("an object of {len} bytes cannot be mapped: use at most {max} bytes")]
    TooLarge {
        /// Bytes of the object.
        len: u64,
        /// Maximum bytes of an address space.
        max: u64,
    },
    /// A mapping needs at least one byte.
    #[error("an extent of 0 bytes cannot be mapped")]
    Empty,
    /// The file can still be shortened, which would kill its readers. Reject the peer that sent it.
    #[error(
        "memory of {len} bytes is not sealed against shrinking: its sender must add F_SEAL_SHRINK"
    )]
    NotSealed {
        /// Bytes to map.
        len: u64,
    },
    /// The file is shorter than its sender reported. Reject the peer that sent it.
    #[error("cannot map {wanted} bytes of memory that has only {actual} bytes")]
    Short {
        /// Bytes of the file.
        actual: u64,
        /// Bytes to map.
        wanted: u64,
    },
    /// The slot is not inside the extent, or is not aligned. Reject the peer that sent it.
    #[error("a slot of {len} bytes at offset {offset} does not fit an extent of {extent} bytes")]
    OutOfBounds {
        /// Reported offset of its header.
        offset: u64,
        /// Bytes of its payload.
        len: u64,
        /// Bytes of the extent.
        extent: u64,
    },
    /// The slot overlaps another one that this process still has open. Drop that one first.
    #[error(
        "the slot of {len} bytes at offset {offset} overlaps one that is still open at offset {other}"
    )]
    Overlap {
        /// Reported offset of its header.
        offset: u64,
        /// Bytes of its payload.
        len: u64,
        /// Offset of the open slot's header.
        other: u64,
    },
    /// The bytes are ready, another writer has claimed them, or this process may not write the slot.
    #[error(
        "bytes {}..{} of {len} cannot be claimed: they are ready, claimed, or not writable by this process",
        range.start,
        range.end
    )]
    Claimed {
        /// The range to write.
        range: Range<u64>,
        /// Bytes of the slot's payload.
        len: u64,
    },
    /// The source and the slot have different lengths. Allocate a slot of the source's length.
    #[error("{source_len} bytes cannot fill a slot of {len} bytes")]
    LengthDiffers {
        /// Bytes of the source.
        source_len: u64,
        /// Bytes of the slot's payload.
        len: u64,
    },
    /// The arena has no such extent, or has trimmed it.
    #[error("{extent} does not exist or was trimmed")]
    UnknownExtent {
        /// The requested extent.
        extent: ExtentId,
    },
    /// The extent belongs to another writer or to the pool. Reject the process that named it.
    #[error("{extent} is not an extent that this process may write")]
    NotItsExtent {
        /// The requested extent.
        extent: ExtentId,
    },
    /// A call that should always succeed failed. The kernel may be older than 5.1, which lacks F_SEAL_FUTURE_WRITE.
    #[error("{call} failed for {len} bytes: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// Bytes of the call.
        len: u64,
        /// The error of the system.
        source: io::Error,
    },
}

/// Returns advice for a limit.
const fn advice(limit: &Limit) -> &'static str {
    match limit {
        Limit::Bound => "delete objects, or increase the capacity of the node",
        Limit::Host => "free memory of the host, or reduce the capacity of its nodes",
        Limit::Group(_) => "raise the limit of the group, or reduce the capacity of the node",
        Limit::FileSize => {
            "it also limits shared memory, so start the node after `ulimit -f unlimited`"
        }
        Limit::AddressSpace => "raise the limit of this process, or drop views of large objects",
    }
}

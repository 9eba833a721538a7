//! What can go wrong with shared memory.

use std::io;
use std::ops::Range;

use crate::available::Limit;
use crate::extent::ExtentId;

/// Why memory could not be had, opened or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// There is too little memory left. Evict or free something, then try again.
    #[error(
        "{wanted} bytes of memory were asked for, and {limit} has {available} left: {}",
        advice(limit)
    )]
    NoMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that it could still give.
        available: u64,
        /// What has no more.
        limit: Limit,
    },
    /// No address space holds such an object. The length is wrong; do not try again.
    #[error("an object of {len} bytes cannot be mapped; the largest possible is {max} bytes")]
    TooLarge {
        /// Bytes of the object.
        len: u64,
        /// Bytes that an address space can hold.
        max: u64,
    },
    /// A mapping needs at least one byte.
    #[error("an extent of 0 bytes cannot be mapped")]
    Empty,
    /// The file can still be made shorter, which would kill its readers. Refuse the peer that sent it.
    #[error(
        "memory of {len} bytes is not sealed against shrinking; its sender must add F_SEAL_SHRINK"
    )]
    NotSealed {
        /// Bytes to be mapped.
        len: u64,
    },
    /// The file is shorter than its sender said. Refuse the peer that sent it.
    #[error("memory of {actual} bytes is to be mapped with {wanted} bytes")]
    Short {
        /// Bytes of the file.
        actual: u64,
        /// Bytes to be mapped.
        wanted: u64,
    },
    /// The slot does not lie inside the extent, or is not aligned. Refuse the peer that named it.
    #[error("no slot of {len} bytes can lie at offset {offset} of an extent of {extent} bytes")]
    OutOfBounds {
        /// Where its header is said to be.
        offset: u64,
        /// Bytes of its payload.
        len: u64,
        /// Bytes of the extent.
        extent: u64,
    },
    /// The slot overlaps another that this process still holds open. Drop that one first.
    #[error(
        "the slot of {len} bytes at offset {offset} overlaps one that is still open at offset {other}"
    )]
    Overlap {
        /// Where its header is said to be.
        offset: u64,
        /// Bytes of its payload.
        len: u64,
        /// Where the open slot's header is.
        other: u64,
    },
    /// The bytes are ready, or someone else is writing them, or this process may not write the slot.
    #[error("bytes {}..{} of {len} cannot be claimed: they are ready, claimed, or not ours to write", range.start, range.end)]
    Claimed {
        /// What was to be written.
        range: Range<u64>,
        /// Bytes of the slot's payload.
        len: u64,
    },
    /// The source is not as long as the slot. Allocate a slot of the source's length.
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
        /// The extent asked for.
        extent: ExtentId,
    },
    /// The extent is of another writer or of the pool. Refuse the process that named it.
    #[error("{extent} is not one that this process was given to write")]
    NotItsExtent {
        /// The extent named.
        extent: ExtentId,
    },
    /// A call that should always succeed did not. The kernel may be older than 5.1, which knows no F_SEAL_FUTURE_WRITE.
    #[error("{call} failed for {len} bytes: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// Bytes that it was about.
        len: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// What to do when there is no more memory.
const fn advice(limit: &Limit) -> &'static str {
    match limit {
        Limit::Bound => "delete objects, or give the node a larger capacity",
        Limit::Host => "free memory of the host, or lower the capacity of its nodes",
        Limit::Group(_) => "raise the limit of the group, or lower the capacity of the node",
        Limit::FileSize => {
            "objects are in shared memory, which it limits too: start the node after `ulimit -f unlimited`"
        }
        Limit::AddressSpace => "raise the limit of this process, or drop views of large objects",
    }
}

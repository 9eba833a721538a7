//! The sizes that all of shared memory is divided by.

/// Size of a block, the unit in which progress is marked and payload is claimed.
///
/// 16 KiB: the smallest piece worth passing on by itself, and a GiB needs only 8 KiB of progress words.
pub const BLOCK_BYTES: u64 = 16 * 1024;

/// Alignment of slots, headers and payloads in an extent.
pub(crate) const PAGE_BYTES: u64 = 4096;

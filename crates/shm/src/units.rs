//! Units of shared memory.

/// Size of a block, the unit in which progress is marked and payload is claimed.
///
/// 16 KiB: the smallest unit worth relaying by itself. A GiB needs only 8 KiB of progress words.
pub const BLOCK_BYTES: u64 = 16 * 1024;

/// Alignment of slots, headers and payloads in an extent.
pub(crate) const PAGE_BYTES: u64 = 4096;

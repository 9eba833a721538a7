//! Frame size for transfers through relays.

use crate::{
    limits::{BLOCK_BYTES, FRAME_BYTES_MAX},
    link::Link,
};

/// Processor time that a relay spends on a frame of any length: one wakeup, two system calls, the
/// start of a checksum.
const FRAME_NS: u128 = 20_000;

/// Number of relays to assume. Twice as many would shorten frames by less than a third.
const RELAYS: u128 = 8;

/// Best frame size in bytes, a power of two, for `size` bytes over links like `link`.
///
/// After h relays, the last byte of S bytes in frames of b bytes arrives at `(S/b + h) * (b/B +
/// o)`, where o is the fixed cost of a frame. Shorter frames reach the last relay sooner, longer
/// frames cost each relay less. The sum is minimal at `b = sqrt(S * o * B / h)`.
///
/// Source: the optimal segment size of a pipeline in Hockney's model, as in Pjesivac-Grbovic et
/// al., Performance Analysis of MPI Collective Operations, 2007. L does not appear, since a link
/// holds many frames at once.
pub fn frame_bytes(size: u64, link: Link) -> u64 {
    // Bytes that a link carries while a relay handles a frame.
    let idle = u128::from(link.bytes_per_second) * FRAME_NS / 1_000_000_000;
    let best = (u128::from(size) * idle / RELAYS).isqrt();
    let best = u64::try_from(best).unwrap_or(u64::MAX).clamp(BLOCK_BYTES, FRAME_BYTES_MAX);
    1 << best.ilog2()
}

/// Whether a frame may have this size: whole blocks, at least one, and at most the maximum.
pub fn is_frame_length(bytes: u32) -> bool {
    let bytes = u64::from(bytes);
    (BLOCK_BYTES..=FRAME_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;

    #[test]
    fn frames_grow_with_the_object_and_with_the_link() {
        let gigabit = Link { latency_ns: 50_000, bytes_per_second: 125_000_000 };
        let sizes = [64 * KIB, MIB, 4 * MIB, 32 * MIB, 256 * MIB, 1024 * MIB];
        let frames = sizes.map(|size| frame_bytes(size, gigabit) / KIB);
        assert_eq!(frames, [16, 16, 32, 64, 256, 256]);
        let fast = Link { bytes_per_second: 12_500_000_000, ..gigabit };
        assert_eq!(sizes.map(|size| frame_bytes(size, fast) / KIB), [32, 128, 256, 256, 256, 256]);
    }

    #[test]
    fn a_frame_is_always_a_whole_number_of_blocks() {
        for (size, rate) in [(0, 0), (1, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
            let frame = frame_bytes(size, Link { latency_ns: 0, bytes_per_second: rate });
            assert!(frame.is_multiple_of(BLOCK_BYTES) && frame <= FRAME_BYTES_MAX);
            assert!(is_frame_length(frame as u32));
        }
    }
}

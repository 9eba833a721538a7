//! Predicted time of a reduce for each degree, and the choice of the cheapest.
//!
//! Hoplite, SIGCOMM 2021, section 4: d from {1, 2, n} minimizes the estimated latency, given the
//! latency L and the bandwidth B of the links and the size S of an object. With n inputs:
//!
//! ```text
//! chain    n L' + S/B                every link carries S once, all links at the same time
//! binary   ceil(log2 n) L' + 2 S/B   two children share their parent's incoming link
//! star     L + n S/B                 all share the caller's incoming link, without relays
//! ```
//!
//! L' = L + min(S, frame)/B: a relay folds and sends whole frames, so it sends nothing before the
//! first one is complete.
//!
//! Does not depend on the nodes, or on how L and B were measured.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::shape::Degree;
pub use crate::link::Link;
use crate::pipeline::frame_bytes;

/// Predicted nanoseconds until the caller has the fold of `positions` inputs of `bytes` each, at
/// most `u64::MAX`.
///
/// One input is one stream in every shape. The prediction does not decrease when an argument other
/// than the bandwidth grows, and does not increase when the bandwidth grows.
pub fn predicted_ns(degree: Degree, positions: u32, bytes: u64, link: Link) -> u64 {
    let latency = u128::from(link.latency_ns);
    let stream = link.transfer_ns(bytes);
    let hop = latency + link.transfer_ns(bytes.min(frame_bytes(bytes, link)));
    let total = match (degree, positions) {
        (_, 0) => 0,
        (_, 1) => latency + stream,
        (Degree::Chain, _) => u128::from(positions) * hop + stream,
        (Degree::Binary, _) => u128::from(log2_ceil(positions)) * hop + 2 * stream,
        (Degree::Star, _) => latency + u128::from(positions) * stream,
    };
    u64::try_from(total).unwrap_or(u64::MAX)
}

/// The degree with the smallest [`predicted_ns`], and the numbers behind the choice.
///
/// On a tie the chain comes first, then the binary tree, since they load the caller's link less.
pub fn choose_degree(positions: u32, bytes: u64, link: Link) -> (Degree, DegreeReason) {
    let [chain_ns, binary_ns, star_ns] =
        Degree::ALL.map(|degree| predicted_ns(degree, positions, bytes, link));
    let degree = if chain_ns <= binary_ns.min(star_ns) {
        Degree::Chain
    } else if binary_ns <= star_ns {
        Degree::Binary
    } else {
        Degree::Star
    };
    (degree, DegreeReason { chain_ns, binary_ns, star_ns, positions, bytes })
}

/// Why a degree was chosen: the prediction for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DegreeReason {
    /// Prediction for d = 1, in nanoseconds.
    pub chain_ns: u64,
    /// Prediction for d = 2, in nanoseconds.
    pub binary_ns: u64,
    /// Prediction for d = n, in nanoseconds.
    pub star_ns: u64,
    /// Number of inputs.
    pub positions: u32,
    /// Size of each input in bytes.
    pub bytes: u64,
}

impl fmt::Display for DegreeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [chain, binary, star] =
            [self.chain_ns, self.binary_ns, self.star_ns].map(|ns| ns as f64 / 1e6);
        write!(
            f,
            "{} x {} bytes: chain {chain:.3} ms, binary {binary:.3} ms, star {star:.3} ms",
            self.positions, self.bytes
        )
    }
}

/// The smallest k with 2^k >= `number`; `number` must be at least 1.
const fn log2_ceil(number: u32) -> u32 {
    u32::BITS - (number - 1).leading_zeros()
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    /// 10 Gbit/s and 100 us: a data center with TCP.
    const FAST: Link = Link { latency_ns: 100_000, bytes_per_second: 1_250_000_000 };
    /// 1 Gbit/s and 50 us.
    const SLOW: Link = Link { latency_ns: 50_000, bytes_per_second: 125_000_000 };

    #[test]
    fn the_cheapest_degree_wins() {
        let cases = [
            // Small: latency dominates, and the caller's link is idle anyway.
            (64, 1, FAST, Degree::Star),
            (64, KIB, FAST, Degree::Star),
            (4, 64 * KIB, FAST, Degree::Star),
            // In between: many hops cost more than a second stream.
            (64, 64 * KIB, FAST, Degree::Binary),
            (64, MIB, FAST, Degree::Binary),
            (1024, 64 * MIB, FAST, Degree::Binary),
            (64, 256 * KIB, SLOW, Degree::Binary),
            // Large: bandwidth dominates.
            (4, MIB, FAST, Degree::Chain),
            (64, 64 * MIB, FAST, Degree::Chain),
            (16, 64 * MIB, SLOW, Degree::Chain),
            (1024, 1024 * MIB, FAST, Degree::Chain),
            // No choice.
            (0, MIB, FAST, Degree::Chain),
            (1, MIB, FAST, Degree::Chain),
        ];
        for (positions, bytes, link, expected) in cases {
            let (degree, reason) = choose_degree(positions, bytes, link);
            assert_eq!(degree, expected, "{reason}; {link}");
        }
    }

    #[test]
    fn predictions_are_the_formulas() {
        // 125 kB take 1 ms, a frame of 16,384 bytes 131,072 ns.
        let (chain, binary, star) = (
            predicted_ns(Degree::Chain, 5, 125_000, SLOW),
            predicted_ns(Degree::Binary, 5, 125_000, SLOW),
            predicted_ns(Degree::Star, 5, 125_000, SLOW),
        );
        assert_eq!(chain, 5 * (50_000 + 131_072) + 1_000_000);
        assert_eq!(binary, 3 * (50_000 + 131_072) + 2_000_000);
        assert_eq!(star, 50_000 + 5 * 1_000_000);
        // An object smaller than a frame waits only for its own size.
        assert_eq!(predicted_ns(Degree::Chain, 2, 125, SLOW), 2 * 51_000 + 1_000);
    }

    #[test]
    fn ties_prefer_the_chain_then_the_tree() {
        let free = Link { latency_ns: 0, bytes_per_second: u64::MAX };
        assert_eq!(choose_degree(64, KIB, free).0, Degree::Chain);
        // Two empty inputs: star and tree take one latency, the chain two.
        assert_eq!(choose_degree(2, 0, FAST).0, Degree::Binary);
    }

    #[test]
    fn a_link_that_carries_nothing_takes_for_ever() {
        let dead = Link { latency_ns: 7, bytes_per_second: 0 };
        for degree in Degree::ALL {
            assert_eq!(predicted_ns(degree, u32::MAX, u64::MAX, dead), u64::MAX);
            assert_eq!(predicted_ns(degree, 2, 1, dead), u64::MAX);
            assert_eq!(predicted_ns(degree, 1, 0, dead), 7);
            assert_eq!(predicted_ns(degree, 0, 1, dead), 0);
        }
        assert_eq!(choose_degree(9, 1, dead).0, Degree::Chain);
    }

    #[test]
    fn a_reason_reads_in_one_line() {
        let (_, reason) = choose_degree(64, MIB, FAST);
        assert_eq!(
            reason.to_string(),
            "64 x 1048576 bytes: chain 8.917 ms, binary 2.435 ms, star 53.787 ms"
        );
        assert_eq!(FAST.to_string(), "100.0 us, 1250.0 MB/s");
    }

    fn any_link() -> impl Strategy<Value = Link> {
        (any_number(), any_number())
            .prop_map(|(latency_ns, bytes_per_second)| Link { latency_ns, bytes_per_second })
    }

    /// All orders of magnitude equally likely, and the extremes.
    fn any_number() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(u64::MAX), (any::<u64>(), 0..64u32).prop_map(|(n, by)| n >> by)]
    }

    proptest! {
        /// Goal: the prediction grows with every argument except the bandwidth, and does not grow
        /// with the bandwidth.
        #[test]
        fn predictions_are_monotonic(
            positions in 0..100_000u32,
            bytes in any_number(),
            link in any_link(),
            more in any_number(),
        ) {
            for degree in Degree::ALL {
                let before = predicted_ns(degree, positions, bytes, link);
                let Link { latency_ns, bytes_per_second } = link;
                let further = Link { latency_ns: latency_ns.saturating_add(more), ..link };
                let faster =
                    Link { bytes_per_second: bytes_per_second.saturating_add(more), ..link };
                let joined = positions.saturating_add(more.min(100_000) as u32);
                let larger = bytes.saturating_add(more);
                prop_assert!(predicted_ns(degree, joined, bytes, link) >= before);
                prop_assert!(predicted_ns(degree, positions, larger, link) >= before);
                prop_assert!(predicted_ns(degree, positions, bytes, further) >= before);
                prop_assert!(predicted_ns(degree, positions, bytes, faster) <= before);
            }
        }

        /// Goal: the reason justifies the choice.
        #[test]
        fn no_degree_is_cheaper_than_the_chosen(
            positions in any::<u32>(),
            bytes in any_number(),
            link in any_link(),
        ) {
            let (degree, reason) = choose_degree(positions, bytes, link);
            let chosen = predicted_ns(degree, positions, bytes, link);
            prop_assert_eq!(chosen, reason.chain_ns.min(reason.binary_ns).min(reason.star_ns));
            prop_assert!(positions > 1 || degree == Degree::Chain);
        }
    }
}

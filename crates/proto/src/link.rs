//! A link between nodes, and its estimate from samples of transfers.
//!
//! Latency is one-way, in nanoseconds; bandwidth is in bytes per second. The shell takes the
//! samples.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Minimum size in bytes of a transfer that shows the rate of a link. A traffic shaper may pass
/// less in one burst.
const LONG_BYTES: u64 = 1024 * 1024;

/// Latency and bandwidth of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Nanoseconds between the order to send and the arrival of the first byte.
    pub latency_ns: u64,
    /// Bytes per second in one direction. A link with 0 carries nothing.
    pub bytes_per_second: u64,
}

impl Link {
    /// Nanoseconds that `bytes` take on the link, without the latency.
    pub(crate) fn transfer_ns(self, bytes: u64) -> u128 {
        match (bytes, self.bytes_per_second) {
            (0, _) => 0,
            (_, 0) => u128::from(u64::MAX),
            (bytes, rate) => u128::from(bytes) * 1_000_000_000 / u128::from(rate),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = self.bytes_per_second as f64 / 1e6;
        write!(f, "{:.1} us, {megabytes:.1} MB/s", self.latency_ns as f64 / 1e3)
    }
}

/// Estimate of a node's link to other nodes.
#[derive(Clone, Copy, Debug)]
pub struct LinkEstimate {
    link: Link,
    has_latency: bool,
    has_bandwidth: bool,
    /// Whether a long transfer was measured.
    has_long: bool,
}

impl LinkEstimate {
    /// Starts with `assumed`, until the first sample.
    pub const fn new(assumed: Link) -> Self {
        Self { link: assumed, has_latency: false, has_bandwidth: false, has_long: false }
    }

    /// The present estimate.
    pub const fn link(&self) -> Link {
        self.link
    }

    /// Whether the bandwidth was measured.
    pub const fn has_bandwidth(&self) -> bool {
        self.has_bandwidth
    }

    /// Records a round trip.
    pub const fn round_trip(&mut self, nanoseconds: u64) {
        let (old, sample) = (self.link.latency_ns, nanoseconds / 2);
        // A busy process replies late, but never early: a longer sample has little weight.
        self.link.latency_ns = match self.has_latency {
            true if sample > old => old + (sample - old) / 16,
            _ => sample,
        };
        self.has_latency = true;
    }

    /// Records that `bytes` arrived from one source within `nanoseconds`. The source may have
    /// waited for the bytes itself or shared its link, so the sample is a lower bound. Only with
    /// `is_steady` is it also close to the actual rate.
    pub fn transfer(&mut self, bytes: u64, nanoseconds: u64, is_steady: bool) {
        let sample = u128::from(bytes) * 1_000_000_000 / u128::from(nanoseconds.max(1));
        let sample = u64::try_from(sample).unwrap_or(u64::MAX);
        let (old, is_long) = (self.link.bytes_per_second, bytes >= LONG_BYTES);
        let is_first = !self.has_bandwidth || is_long && !self.has_long;
        self.link.bytes_per_second = match sample < old {
            _ if is_first => sample,
            // Three quarters old, one quarter new: a single odd sample does not change a plan.
            true if is_steady => old / 4 * 3 + sample / 4,
            false if is_long => old + (sample - old) / 4,
            // Weak samples change the estimate slowly.
            true => old - (old - sample) / 64,
            false => old + (sample - old) / 64,
        };
        (self.has_bandwidth, self.has_long) = (true, self.has_long || is_long);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASSUMED: Link = Link { latency_ns: 50_000, bytes_per_second: 1_250_000_000 };
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_first_sample_replaces_the_assumed_value() {
        let mut estimate = LinkEstimate::new(ASSUMED);
        assert!(!estimate.has_bandwidth());
        estimate.round_trip(400_000);
        estimate.transfer(1000, SECOND, false);
        let link = estimate.link();
        assert_eq!((link.latency_ns, link.bytes_per_second), (200_000, 1000));
        assert!(estimate.has_bandwidth());
    }

    #[test]
    fn a_shorter_round_trip_counts_at_once_and_a_longer_one_little() {
        let mut estimate = LinkEstimate::new(ASSUMED);
        [3200, 1600, 4800].into_iter().for_each(|sample| estimate.round_trip(sample));
        assert_eq!(estimate.link().latency_ns, 800 + (2400 - 800) / 16);
    }

    #[test]
    fn a_slow_sample_counts_by_its_weight() {
        for (is_steady, expected) in [(true, 6400 / 4 * 3), (false, 6400 - 6400 / 64)] {
            let mut estimate = LinkEstimate::new(ASSUMED);
            estimate.transfer(6400, SECOND, true);
            estimate.transfer(0, SECOND, is_steady);
            assert_eq!(estimate.link().bytes_per_second, expected);
        }
        let mut estimate = LinkEstimate::new(ASSUMED);
        estimate.transfer(u64::MAX, 0, true);
        assert_eq!(estimate.link().bytes_per_second, u64::MAX);
    }

    /// Goal: an initial burst through a traffic shaper does not make all other transfers look slow.
    #[test]
    fn a_short_transfer_raises_the_estimate_little() {
        let mut estimate = LinkEstimate::new(ASSUMED);
        estimate.transfer(64 * 1024, SECOND, true);
        estimate.transfer(16 << 20, SECOND, true);
        assert_eq!(estimate.link().bytes_per_second, 16 << 20, "the first long one counts");
        estimate.transfer(64 * 1024, SECOND / 2560, false);
        assert_eq!(estimate.link().bytes_per_second, (16 << 20) + (144 << 20) / 64);
        estimate.transfer(1 << 20, SECOND / 160, true);
        let before = (16 << 20) + (144 << 20) / 64;
        assert_eq!(estimate.link().bytes_per_second, before + ((160 << 20) - before) / 4);
    }
}

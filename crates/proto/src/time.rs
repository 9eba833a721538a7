//! Time in the state machines: nanoseconds since a start that the caller chooses.

use core::{fmt, ops::Add};

use serde::{Deserialize, Serialize};

/// A point in time, in nanoseconds since the start of the shell or simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Instant(pub u64);

impl Instant {
    /// Nanoseconds since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time `ns` nanoseconds earlier, or the start.
    pub const fn before(self, ns: u64) -> Self {
        Self(self.0.saturating_sub(ns))
    }
}

impl Add<u64> for Instant {
    type Output = Self;

    /// The time `nanoseconds` later.
    fn add(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}

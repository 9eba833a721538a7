//! Time as the deciders know it: nanoseconds since some start, given by the caller.

use core::{fmt, ops::Add};

use serde::{Deserialize, Serialize};

/// A moment: nanoseconds since the shell's (or the simulation's) start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Instant(pub u64);

impl Instant {
    /// Nanoseconds from `earlier` to `self`; zero if it is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment so many nanoseconds before this one, or the beginning.
    pub const fn before(self, ns: u64) -> Self {
        Self(self.0.saturating_sub(ns))
    }
}

impl Add<u64> for Instant {
    type Output = Self;

    /// The moment `nanoseconds` later.
    fn add(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}

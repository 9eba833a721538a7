//! Identifies extents and writers, and defines the memory statistics of an arena.

use std::fmt;

/// Identifies an extent of one arena. Not reused after the extent is trimmed; zero means no extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExtentId(pub u64);

impl fmt::Display for ExtentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extent {}", self.0)
    }
}

/// Identifies a client process that fills slots itself. Do not reuse a number for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterId(pub u64);

/// Memory statistics of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Number of extents.
    pub extents: u64,
    /// Bytes of all extents, all committed, including unmapped ones that have not [left](crate::Arena::left) yet.
    pub mapped_bytes: u64,
    /// Bytes in slots, with their headers and rounding.
    pub used_bytes: u64,
    /// Bytes of wholly free extents, kept for the next objects.
    pub warm_bytes: u64,
}

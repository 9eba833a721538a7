//! What extents are called, whom they serve, and how much memory they are together.

use std::fmt;

/// An extent of one arena. Never used again after the extent is trimmed; zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExtentId(pub u64);

impl fmt::Display for ExtentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extent {}", self.0)
    }
}

/// A client process that fills slots itself. Never use a number again for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterId(pub u64);

/// How much memory an arena has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Number of extents.
    pub extents: u64,
    /// Bytes of memory in them, all committed, and in those that are gone but not [left](crate::Arena::left).
    pub mapped_bytes: u64,
    /// Bytes in slots, with their headers and rounding.
    pub used_bytes: u64,
    /// Bytes of extents that are wholly free, and kept for the next objects.
    pub warm_bytes: u64,
}

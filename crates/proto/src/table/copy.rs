//! One copy: its progress, the place of its bytes, its users and its cost. Does not depend on other
//! copies.
//!
//! Places of a copy's bytes ([`Residency`], [`FileState`]). The disk, if the node has one for
//! copies, takes complete pinned copies:
//!
//! ```text
//!   awaited --> in memory --> in memory, being written --> in memory and on disk --> on disk alone
//!                                                                   ^                     |
//!                                                                   |                     v
//!                                                               returning <----------- awaited
//! ```

use alloc::boxed::Box;

use crate::{
    id::{ClientId, ObjectId},
    inline::Inline,
    lifetime::{Lifetime, Terms},
    meta::Meta,
    time::Instant,
};

/// A copy of one instance on this node.
#[derive(Debug)]
pub struct Copy {
    /// The object.
    pub id: ObjectId,
    /// Its metadata.
    pub meta: Meta,
    /// The bytes of an inline object; otherwise the shell has a slot.
    pub inline: Option<Inline>,
    /// Its progress.
    pub state: State,
    /// Whether the copy is pinned until the object is deleted: put, reduced or adopted on this
    /// node.
    pub pinned: bool,
    /// Readers, transfers and folds that use it.
    pub readers: u32,
    /// Folds that will use it and still wait for capacity. Until then it may go to disk.
    pub expected_readers: u32,
    /// Deleted or replaced: no new reader, transfer or fold may use it.
    pub doomed: bool,
    /// Where its bytes are.
    pub residency: Residency,
    /// Whether its bytes are in a file.
    pub file_state: FileState,
    /// An earlier node left it in a file. An object put under its name since then takes precedence.
    pub recovered: bool,
    /// Time to live and job; `None` if the object exists until it is deleted.
    pub terms: Option<Box<Terms>>,
    /// Increases with each use; the smallest is evicted first.
    pub(super) last_use: u64,
}

/// Progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A client writes it.
    Filling(ClientId),
    /// It arrives from other nodes.
    Arriving,
    /// A reduce produces it.
    Folding,
    /// Complete; it never changes.
    Complete,
}

/// Where the bytes of a copy are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// Capacity is reserved, but memory is not allocated yet.
    Pending,
    /// In memory, or arriving there for the first time.
    Memory,
    /// In a file only.
    Disk,
    /// In a file, and being read back into allocated memory since then.
    Restoring(Instant),
}

/// Whether the bytes of a copy are in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Not in a file.
    No,
    /// Not in a file, and can't be written to one.
    Unwritable,
    /// Being written since then.
    Writing(Instant),
    /// Completely in a file. The bytes never change, so the file stays valid when they are back in
    /// memory.
    Written,
}

/// Cost of a copy in addition to its bytes: entries here and in the directory.
pub const COPY_OVERHEAD_BYTES: u64 = 256;

/// Size in bytes of the file of a copy with `size` bytes: one or two pages of metadata, and a
/// checksum per MiB.
pub const fn file_bytes(size: u64) -> u64 {
    size.saturating_add(8192).saturating_add(size >> 18)
}

impl FileState {
    /// Whether there is a file, perhaps an incomplete one.
    pub const fn has_file(self) -> bool {
        matches!(self, Self::Writing(_) | Self::Written)
    }
}

impl Copy {
    /// Whether the copy is complete.
    pub fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// Whether its bytes arrive from other nodes, and only its digest shows whether they are right.
    /// No fold may read them before.
    pub(crate) fn is_unverified(&self) -> bool {
        self.meta.digest.is_some() && self.state == State::Arriving
    }

    /// Whether it was taken out of use while it was being read back from disk; it stays there.
    pub fn is_given_up(&self) -> bool {
        self.doomed && self.is_complete()
    }

    /// Whether it has memory, so that it can be read while it grows.
    pub fn has_memory(&self) -> bool {
        matches!(self.residency, Residency::Memory | Residency::Restoring(_))
    }

    /// The remaining lifetime, for another node.
    pub fn lifetime(&self, now: Instant) -> Option<Box<Lifetime>> {
        self.terms.as_ref().map(|terms| terms.to_lifetime(now))
    }

    /// Whether it is complete and in memory.
    pub fn is_readable(&self) -> bool {
        self.is_complete() && self.residency == Residency::Memory
    }

    /// Whether a reader, a transfer or a fold uses it or will use it.
    pub fn is_used(&self) -> bool {
        self.readers > 0 || self.expected_readers > 0
    }

    /// Whether it waits for memory or is being filled.
    pub fn is_growing(&self) -> bool {
        !self.is_complete()
            || matches!(self.residency, Residency::Pending | Residency::Restoring(_))
    }

    /// Its cost against the capacity. A copy that is on disk only counts against the spill limit
    /// instead.
    pub fn cost(&self) -> u64 {
        match self.residency {
            Residency::Disk => 0,
            Residency::Pending | Residency::Memory | Residency::Restoring(_) => self.bytes(),
        }
    }

    /// Its cost against the capacity while it is in memory.
    pub fn bytes(&self) -> u64 {
        self.meta.size.saturating_add(COPY_OVERHEAD_BYTES)
    }

    /// Size of its file in bytes, if it has one or one is being written.
    pub(super) fn file_bytes(&self) -> u64 {
        match self.file_state {
            FileState::No | FileState::Unwritable => 0,
            FileState::Writing(_) | FileState::Written => file_bytes(self.meta.size),
        }
    }
}

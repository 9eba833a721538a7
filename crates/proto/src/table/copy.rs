//! One copy: how far it is, where its bytes are, who uses it and what it takes. Does not know others, or what goes first.
//!
//! Where the bytes of a copy are ([`Place`], [`Filed`]); the disk, if the node has one for them, takes complete originals:
//!
//! ```text
//!   awaited --> in memory --> in memory, being written --> in memory and on disk --> on disk alone --> awaited --> returning --+
//!                                                                   ^                                                          |
//!                                                                   +----------------------------------------------------------+
//! ```

use alloc::boxed::Box;

use crate::{
    id::{ClientId, NodeId, ObjectId},
    inline::Inline,
    lifetime::{Lifetime, Terms},
    meta::Meta,
    time::Instant,
};

/// One copy of one instance.
#[derive(Debug)]
pub struct Copy {
    /// Of which object.
    pub id: ObjectId,
    /// What is known of it.
    pub meta: Meta,
    /// Its bytes if they are few; otherwise the shell has a slot.
    pub inline: Option<Inline>,
    /// How far it is.
    pub state: State,
    /// Pinned until deletion: put here, reduced here or adopted.
    pub origin: bool,
    /// Readers, transfers and folds that use it.
    pub pins: u32,
    /// Folds that will use it and have no room so far: it may go to disk until then, and is there until then.
    pub holds: u32,
    /// Deleted or replaced: no new reader, transfer or fold may use it.
    pub doomed: bool,
    /// Where its bytes are.
    pub place: Place,
    /// Whether they are in a file.
    pub filed: Filed,
    /// It was left in a file by a node of before: what was put under its name meanwhile goes before it.
    pub returned: bool,
    /// How long the object lives, if not until it is deleted.
    pub terms: Option<Box<Terms>>,
    /// Grows with each use; the smallest goes first.
    pub(super) last_use: u64,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A client writes it.
    Filling(ClientId),
    /// It comes from another node, or from none for the moment.
    Flowing(Option<NodeId>),
    /// A reduce makes it.
    Folding,
    /// All of it is there and will never change.
    Complete,
}

/// Where the bytes of a copy are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// There is room for them in the accounts, and no memory yet.
    Awaited,
    /// In memory, or on their way there for the first time.
    Memory,
    /// In a file alone.
    Disk,
    /// In a file, and on their way back into memory that is there.
    Returning,
}

/// Whether the bytes of a copy are in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filed {
    /// They are not.
    No,
    /// They are being written.
    Writing,
    /// All of them are. They never change, so the file stays right when they come back.
    Written,
}

/// What a copy costs beside its bytes: entries here and in the directory.
pub const COPY_OVERHEAD_BYTES: u64 = 256;

/// Bytes of the file of a copy of `size` bytes: what it says of the copy is a page or two; of each MiB it has a checksum.
pub const fn file_bytes(size: u64) -> u64 {
    size.saturating_add(8192).saturating_add(size >> 18)
}

impl Copy {
    /// Whether all of it is there.
    pub fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// Whether it was coming back from disk when it was taken out of use: it stays there.
    pub fn is_given_up(&self) -> bool {
        self.doomed && self.is_complete()
    }

    /// Whether there is memory for it, so that it can be read as it grows.
    pub fn has_memory(&self) -> bool {
        matches!(self.place, Place::Memory | Place::Returning)
    }

    /// What to tell another node of how long the object lives.
    pub fn lifetime(&self, now: Instant) -> Option<Box<Lifetime>> {
        self.terms.as_ref().map(|terms| terms.tell(now))
    }

    /// Whether all of it is there, and in memory.
    pub fn is_readable(&self) -> bool {
        self.is_complete() && self.place == Place::Memory
    }

    /// Whether a reader, a transfer or a fold uses it, or will.
    pub fn is_used(&self) -> bool {
        self.pins > 0 || self.holds > 0
    }

    /// Whether it waits for memory or fills it.
    pub fn is_growing(&self) -> bool {
        !self.is_complete() || matches!(self.place, Place::Awaited | Place::Returning)
    }

    /// What it takes of the capacity: nothing if it is on disk alone, where it takes of the limit of the files.
    pub fn cost(&self) -> u64 {
        match self.place {
            Place::Disk => 0,
            Place::Awaited | Place::Memory | Place::Returning => self.bytes(),
        }
    }

    /// What it takes of the capacity of a node that has it in memory.
    pub fn bytes(&self) -> u64 {
        self.meta.size.saturating_add(COPY_OVERHEAD_BYTES)
    }

    /// Bytes of its file, if it has one or one is being written.
    pub(super) fn file_bytes(&self) -> u64 {
        match self.filed {
            Filed::No => 0,
            Filed::Writing | Filed::Written => file_bytes(self.meta.size),
        }
    }
}

//! Mistakes that are made on purpose, to see that tests with real bytes find them: test only.
//!
//! Without the feature `planted-bugs` [`has`] is false and costs nothing. With it one mistake at a time can be planted, for
//! all nodes of the process.

#[cfg(not(feature = "planted-bugs"))]
use std::borrow::Cow;

#[cfg(not(feature = "planted-bugs"))]
use hoplite_proto::message::Message;

/// Something that a shell does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// Blocks are sent in each other's places.
    SwapsBlocks = 1,
    /// An input is folded twice.
    FoldsTwice,
    /// What another process reads may be written anew.
    ReleasesAtOnce,
    /// Three times the first frame of an object has other bytes than its checksum says.
    ChangesBytes,
    /// What came over the network is sent on with other bytes, and checksums of those.
    ChangesRelayed,
    /// So is every copy.
    ChangesCopies,
    /// The first answer to a get that brings the bytes themselves brings others.
    ChangesSmall,
}

/// Whether this mistake is to be made.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn has(_: Bug) -> bool {
    false
}

/// The checksum of the frame at an offset, or of other bytes.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn checksum(_: u64, sum: u32) -> u32 {
    sum
}

/// The bytes that are sent of a copy, and whether they are others.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn sent(_: bool, bytes: &[u8]) -> (Cow<'_, [u8]>, bool) {
    (Cow::Borrowed(bytes), false)
}

/// A message as it is sent.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn said(message: Message) -> Message {
    message
}

#[cfg(feature = "planted-bugs")]
pub use self::planting::plant;
#[cfg(feature = "planted-bugs")]
pub(crate) use self::planting::{checksum, has, said, sent};

#[cfg(feature = "planted-bugs")]
mod planting {
    use std::{
        borrow::Cow,
        sync::atomic::{AtomicU8, AtomicU32, Ordering},
    };

    use hoplite_proto::message::{Message, Source};

    use crate::mutants::Bug;

    static PLANTED: AtomicU8 = AtomicU8::new(0);
    static CHANGED: AtomicU32 = AtomicU32::new(0);
    const CHANGED_MAX: u32 = 3;

    /// Has all nodes of this process make this mistake from now on, or none.
    pub fn plant(bug: Option<Bug>) {
        CHANGED.store(0, Ordering::SeqCst);
        PLANTED.store(bug.map_or(0, |bug| bug as u8), Ordering::SeqCst);
    }

    pub(crate) fn has(bug: Bug) -> bool {
        PLANTED.load(Ordering::SeqCst) == bug as u8
    }

    pub(crate) fn sent(relayed: bool, bytes: &[u8]) -> (Cow<'_, [u8]>, bool) {
        if has(Bug::ChangesCopies) || relayed && has(Bug::ChangesRelayed) {
            return (bytes.iter().map(|byte| !byte).collect(), true);
        }
        (Cow::Borrowed(bytes), false)
    }

    pub(crate) fn said(mut message: Message) -> Message {
        if let Message::Located { source: Source::Inline(bytes), .. } = &mut message
            && has(Bug::ChangesSmall)
            && CHANGED.fetch_add(1, Ordering::SeqCst) == 0
        {
            let others: Vec<u8> = bytes.as_bytes().iter().map(|byte| !byte).collect();
            *bytes = others.into();
        }
        message
    }

    pub(crate) fn checksum(offset: u64, sum: u32) -> u32 {
        let is_wanted = offset == 0 && has(Bug::ChangesBytes);
        let is_changed = is_wanted && CHANGED.fetch_add(1, Ordering::SeqCst) < CHANGED_MAX;
        if is_changed { !sum } else { sum }
    }
}

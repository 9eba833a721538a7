//! Mistakes that are made on purpose, to see that tests with real bytes find them: test only.
//!
//! Without the feature `planted-bugs` [`has`] is false, which the compiler knows. With it one mistake at a time can be planted,
//! for all nodes of the process.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicU8, AtomicU32, Ordering},
};

use hoplite_proto::message::{Message, Source};

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

static PLANTED: AtomicU8 = AtomicU8::new(0);
static CHANGED: AtomicU32 = AtomicU32::new(0);
const CHANGED_MAX: u32 = 3;

/// Has all nodes of this process make this mistake from now on, or none.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    CHANGED.store(0, Ordering::SeqCst);
    PLANTED.store(bug.map_or(0, |bug| bug as u8), Ordering::SeqCst);
}

/// Whether this mistake is to be made.
pub(crate) fn has(bug: Bug) -> bool {
    cfg!(feature = "planted-bugs") && PLANTED.load(Ordering::SeqCst) == bug as u8
}

/// The bytes that are sent of a copy, and whether they are others.
pub(crate) fn sent(relayed: bool, bytes: &[u8]) -> (Cow<'_, [u8]>, bool) {
    if has(Bug::ChangesCopies) || relayed && has(Bug::ChangesRelayed) {
        return (bytes.iter().map(|byte| !byte).collect(), true);
    }
    (Cow::Borrowed(bytes), false)
}

/// A message as it is sent.
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

/// The checksum of the frame at an offset, or of other bytes.
pub(crate) fn checksum(offset: u64, sum: u32) -> u32 {
    let is_wanted = offset == 0 && has(Bug::ChangesBytes);
    let is_changed = is_wanted && CHANGED.fetch_add(1, Ordering::SeqCst) < CHANGED_MAX;
    if is_changed { !sum } else { sum }
}

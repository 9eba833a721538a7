//! Mutants: deliberate bugs, to verify that tests with real bytes detect them. Test only.
//!
//! Without the feature `mutants`, [`is_active`] is constant false, so the compiler removes
//! the mutants. With it, one mutant at a time can be activated, for all nodes of the process.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use hoplite_proto::{
    message::{Message, Source},
    question::Answer,
};
use hoplite_shm::Ready;

/// A bug in the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutant {
    /// Neighboring blocks are swapped when sent.
    SwapsBlocks = 1,
    /// An input is folded twice.
    FoldsTwice,
    /// Memory that another process reads may be reused.
    ReleasesTooEarly,
    /// The first frame of an object has a wrong checksum, three times.
    CorruptsBlocks,
    /// Relayed copies are sent with changed bytes and matching checksums.
    CorruptsRelayedCopies,
    /// All copies are sent with changed bytes and matching checksums.
    CorruptsCopies,
    /// The first reply to a get with inline bytes has changed bytes.
    CorruptsInline,
}

static PLANTED: AtomicU8 = AtomicU8::new(0);
static CHANGED: AtomicU32 = AtomicU32::new(0);
const CHANGED_MAX: u32 = 3;

/// Activates a mutant in all nodes of this process, or none.
#[cfg(feature = "mutants")]
pub fn activate(bug: Option<Mutant>) {
    CHANGED.store(0, Ordering::SeqCst);
    PLANTED.store(bug.map_or(0, |bug| bug as u8), Ordering::SeqCst);
}

/// Whether a mutant is active.
pub(crate) fn is_active(bug: Mutant) -> bool {
    cfg!(feature = "mutants") && PLANTED.load(Ordering::SeqCst) == bug as u8
}

/// The changed bytes to send of a copy, if a mutant changes them.
pub(crate) fn sent(relayed: bool, bytes: Ready<'_>) -> Option<Vec<u8>> {
    let is_changed =
        is_active(Mutant::CorruptsCopies) || relayed && is_active(Mutant::CorruptsRelayedCopies);
    is_changed.then(|| bytes.to_vec().iter().map(|byte| !byte).collect())
}

/// The message to send.
pub(crate) fn said(mut message: Message) -> Message {
    if let Message::Answer { answer: Answer::Located(located), .. } = &mut message
        && let Source::Inline(bytes) = &mut located.source
        && is_active(Mutant::CorruptsInline)
        && CHANGED.fetch_add(1, Ordering::SeqCst) == 0
    {
        let others: Vec<u8> = bytes.as_bytes().iter().map(|byte| !byte).collect();
        *bytes = others.into();
    }
    message
}

/// The checksum to send for the frame at an offset.
pub(crate) fn checksum(offset: u64, sum: u32) -> u32 {
    let is_wanted = offset == 0 && is_active(Mutant::CorruptsBlocks);
    let is_changed = is_wanted && CHANGED.fetch_add(1, Ordering::SeqCst) < CHANGED_MAX;
    if is_changed { !sum } else { sum }
}

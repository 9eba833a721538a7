//! The process that opened a handle: the child of a fork can't use all handles of its parent.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{
    code::Code,
    errors::{Failure, Result},
};

/// Number of forks that led to this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Number of forks that led to this process, to be compared by [`check`].
pub(crate) fn number() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts a fork, in the child.
pub(crate) fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Checks that this process opened a handle, not its parent.
///
/// # Errors
/// [`Code::ForkedClient`].
pub(crate) fn check(opened_at: u32, what: &str) -> Result<()> {
    if opened_at == number() {
        return Ok(());
    }
    let message = format!(
        "the {what} belongs to the parent of this forked process: open another in this process"
    );
    Err(Failure::new(Code::ForkedClient, message))
}

//! Handlers of `fork`, which a host program registers with `pthread_atfork`: the child's inherited views stay valid,
//! and the child does not keep its parent's sockets open.
//!
//! The child has the memory of its parent but none of its threads, so it can't use the parent's nodes and attachments.
//! Its clients attach again on first use.

use std::{
    cell::RefCell,
    mem,
    os::fd::{OwnedFd, RawFd},
};

use hoplite_node::{Client as Native, after_fork, before_fork};

use crate::{
    attachment,
    process::{self, Locked},
    session::{self, LockedNode},
};

/// What this thread holds between [`prepare`] and [`parent`] or [`child`].
struct Held {
    /// Serializes forks of several threads, too.
    _shared: Locked,
    _node: LockedNode,
    /// An open pipe marks the child's inherited views as in use.
    lifelines: Vec<OwnedFd>,
    sockets: Vec<(RawFd, u64)>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Call before a fork. Pins everything that this process reads until all processes that have the pins end, and locks
/// what the child must find consistent.
pub fn prepare() {
    let (shared, node) = (process::lock(), session::lock());
    let lifelines = Native::pin_for_fork();
    let sockets = before_fork();
    HELD.set(Some(Held { _shared: shared, _node: node, lifelines, sockets }));
}

/// Call in the parent after a fork, or after one that failed.
pub fn parent() {
    after_fork();
    drop(HELD.take());
}

/// Call in the child. Returns the descriptors and inodes of its parent's sockets: replace each that still has that
/// inode by `/dev/null` (`dup2`). Objects own these numbers and may still close them.
pub fn child() -> Vec<(RawFd, u64)> {
    after_fork();
    attachment::forked();
    let Some(held) = HELD.take() else { return Vec::new() };
    // These stay open until this process ends.
    mem::forget(held.lifelines);
    held.sockets
}

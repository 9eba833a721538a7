//! Handlers of `os.fork`; see [`hoplite::fork`].

use hoplite::fork;
use pyo3::prelude::*;

/// Call before a fork, which may wait for a fork of another thread.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) {
    py.detach(fork::prepare);
}

/// Call in the parent after a fork.
#[pyfunction]
pub(crate) fn after_fork_in_parent() {
    fork::parent();
}

/// Call in the child. Returns descriptors and inodes of its parent's sockets, for the child to replace.
#[pyfunction]
pub(crate) fn after_fork_in_child() -> Vec<(i32, u64)> {
    fork::child()
}

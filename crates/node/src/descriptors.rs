//! Which descriptors of this process are sockets of a node or of an attachment to one.
//!
//! The child of a fork has them too. As long as it lives nobody would notice the death of its parent, so it closes
//! them; it must know them without asking anything that a thread may have held in the moment of the fork.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::Mutex,
};

use crate::driver::lock;

/// Descriptor to inode. Entries of closed descriptors stay until the number is used again: their inodes tell.
static NOTED: Mutex<BTreeMap<RawFd, u64>> = Mutex::new(BTreeMap::new());

/// Remembers a socket.
pub(crate) fn note(socket: &impl AsFd) {
    let descriptor = socket.as_fd();
    if let Ok(facts) = rustix::fs::fstat(descriptor) {
        lock(&NOTED).insert(descriptor.as_raw_fd(), facts.st_ino);
    }
}

/// Descriptors and inodes of the sockets; where a descriptor has another inode now it is somebody else's.
pub fn noted() -> Vec<(RawFd, u64)> {
    lock(&NOTED).iter().map(|(descriptor, inode)| (*descriptor, *inode)).collect()
}

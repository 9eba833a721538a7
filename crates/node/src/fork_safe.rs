//! Registry of descriptors that are sockets of a node or of an attachment, and their numbers.
//!
//! A forked child inherits them. While it lives, other nodes would not detect the death of its
//! parent, so the child closes them. It must find them without taking any lock that another thread
//! may have held during the fork.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard},
};

use crate::sync::lock;

/// Descriptor to inode. Entries of closed descriptors stay until the number is reused; the inode
/// distinguishes them.
static NOTED: Mutex<BTreeMap<RawFd, u64>> = Mutex::new(BTreeMap::new());

/// Registers a socket.
pub(crate) fn note(socket: &impl AsFd) {
    let descriptor = socket.as_fd();
    if let Ok(metadata) = rustix::fs::fstat(descriptor) {
        lock(&NOTED).insert(descriptor.as_raw_fd(), metadata.st_ino);
    }
}

/// The lowest number for sockets by which peers detect the end of this process.
const LAST: RawFd = 512;

/// Moves a socket to a high descriptor number, if the process's limit allows it.
///
/// When a process is killed, Linux closes its descriptors from the highest number down, and frees
/// the memory of a gigabyte of objects for 150 ms. Sockets with higher numbers are closed, and so
/// noticed by peers, before that.
pub(crate) fn raise<T: AsFd + From<OwnedFd>>(socket: T) -> T {
    raise_to(LAST, socket)
}

fn raise_to<T: AsFd + From<OwnedFd>>(lowest: RawFd, socket: T) -> T {
    let raised = rustix::io::fcntl_dupfd_cloexec(&socket, lowest).map_or(socket, T::from);
    note(&raised);
    raised
}

/// The locked list of sockets.
pub(crate) type Noted = MutexGuard<'static, BTreeMap<RawFd, u64>>;

/// Locks the list.
pub(crate) fn all() -> Noted {
    lock(&NOTED)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn raised_socket_is_the_same_with_a_high_number() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let raised = raise(socket);
        assert!(raised.as_raw_fd() >= LAST);
        assert_eq!(raised.local_addr().unwrap(), address);
        assert!(rustix::io::fcntl_getfd(&raised).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert!(all().contains_key(&raised.as_raw_fd()));
    }

    #[test]
    fn socket_that_cannot_be_raised_is_registered_unchanged() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Use a number that no other test gets.
        let socket = UdpSocket::from(rustix::io::fcntl_dupfd_cloexec(&socket, LAST + 256).unwrap());
        let before = socket.as_raw_fd();
        let same = raise_to(RawFd::MAX, socket);
        assert_eq!(same.as_raw_fd(), before);
        let inode = rustix::fs::fstat(&same).unwrap().st_ino;
        assert!(all().get(&before) == Some(&inode));
    }
}

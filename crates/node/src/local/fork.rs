//! Locks held during a fork, so that the child finds consistent state.

use std::{cell::RefCell, os::fd::RawFd};

use super::connection::{AllConnections, all_connections};
use crate::fork_safe::{self, Noted};

thread_local! {
    /// The locked lists of sockets and connections, between [`before_fork`] and [`after_fork`] of
    /// this thread.
    static HELD: RefCell<Option<(Noted, AllConnections)>> = const { RefCell::new(None) };
}

/// Locks the lists and returns descriptors and inodes of the sockets of nodes and attachments. A
/// descriptor with another inode now is a different socket.
///
/// No other thread can lock the lists until [`after_fork`]: in the child it could not unlock them.
pub fn before_fork() -> Vec<(RawFd, u64)> {
    after_fork();
    let noted = fork_safe::all();
    let all = noted.iter().map(|(descriptor, inode)| (*descriptor, *inode)).collect();
    HELD.set(Some((noted, all_connections())));
    all
}

/// Releases the locks of [`before_fork`], in the parent and in the child. Does nothing without it.
pub fn after_fork() {
    drop(HELD.take());
}

#[cfg(test)]
mod tests {
    use std::{
        fs::metadata,
        net::UdpSocket,
        os::{fd::AsRawFd, unix::fs::MetadataExt},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::fork_safe::note;

    #[test]
    fn no_other_thread_has_the_list_during_a_fork() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let descriptor = socket.as_raw_fd();
        // Another test may have registered a socket with this descriptor before.
        let inode = metadata(format!("/proc/self/fd/{descriptor}")).unwrap().ino();
        let is_it = |noted: &(RawFd, u64)| *noted == (descriptor, inode);
        assert!(!before_fork().iter().any(is_it));
        let noting = thread::spawn(move || {
            note(&socket);
            socket
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!noting.is_finished());
        after_fork();
        let _socket = noting.join().unwrap();
        assert!(before_fork().iter().any(is_it));
        after_fork();
    }
}

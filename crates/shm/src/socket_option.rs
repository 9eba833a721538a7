//! Socket options that no safe crate provides. They are in this crate because they need unsafe code.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::Duration,
};

/// `TCP_RTO_MAX_MS` of linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Limits the interval between TCP retransmissions. Without it, the intervals double up to two minutes. If a link fails
/// repeatedly, data may then wait many times longer than the link was down.
///
/// # Errors
/// The kernel is older than Linux 6.15, or the time is not between 1 s and 120 s.
pub fn limit_retransmission(socket: BorrowedFd<'_>, longest: Duration) -> io::Result<()> {
    let ms = libc::c_int::try_from(longest.as_millis()).map_err(|_| io::ErrorKind::InvalidInput)?;
    set(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, ms)
}

fn set(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>())
        .map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads `length` bytes of `value`.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            length,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// TCP's measurements of the path to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// Shortest round trip of the last minutes in microseconds; `None` before the first measurement.
    pub round_trip_us: Option<u32>,
    /// Recent delivery rate in bytes per second. If there was little data to send, it is a lower bound.
    pub bytes_per_second: u64,
}

/// Size of `tcp_info` of linux/tcp.h up to `tcpi_delivery_rate`, since Linux 4.9, and the offsets of these fields.
const TCP_INFO_BYTES: usize = 168;
const MIN_RTT_AT: usize = 148;
const DELIVERY_RATE_AT: usize = 160;

/// Returns `TCP_INFO` of a connection.
///
/// # Errors
/// The socket is not a TCP connection, or the kernel is older than Linux 4.9.
pub fn path_info(socket: BorrowedFd<'_>) -> io::Result<PathInfo> {
    let mut info = [0_u8; TCP_INFO_BYTES];
    let mut length =
        libc::socklen_t::try_from(info.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `length` bytes.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if (length as usize) < info.len() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let shortest = u32::from_ne_bytes(std::array::from_fn(|at| info[MIN_RTT_AT + at]));
    let rate = u64::from_ne_bytes(std::array::from_fn(|at| info[DELIVERY_RATE_AT + at]));
    // Before the first measurement, the kernel returns all ones or zero.
    let round_trip_us = (shortest != 0 && shortest != u32::MAX).then_some(shortest);
    Ok(PathInfo { round_trip_us, bytes_per_second: rate })
}

/// `SO_PEERPIDFD` of asm-generic/socket.h, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// Returns a pidfd of the process that connected a Unix socket. Unlike a process id, it cannot refer to another process
/// later.
///
/// # Errors
/// `ENOPROTOOPT` if the kernel is older than Linux 6.5. Fails also if the process has ended or this one cannot open
/// more files.
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>())
        .map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `length` bytes.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            std::ptr::from_mut(&mut descriptor).cast(),
            &mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if descriptor < 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: the kernel has just opened it for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// `SO_PASSRIGHTS` of asm-generic/socket.h, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Rejects descriptors sent to a Unix socket, and to the sockets that it accepts: the sender's `sendmsg` fails with
/// `EPERM`.
///
/// # Errors
/// `ENOPROTOOPT` if the kernel is older than Linux 6.16.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, 0)
}

/// The process at the other end of a Unix socket.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its user id.
    pub user: u32,
    /// Its process id; `None` if it is in a PID namespace that this process cannot see.
    pub process: Option<u32>,
}

/// Returns the process at the other end of a Unix socket.
///
/// # Errors
/// The socket is not a Unix socket.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>())
        .map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `length` bytes.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut peer).cast(),
            &mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let process = u32::try_from(peer.pid).ok().filter(|pid| *pid > 0);
    Ok(Peer { user: peer.uid, process })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        os::{fd::AsFd, unix::net::UnixStream},
    };

    use super::*;

    #[test]
    fn a_kernel_accepts_or_does_not_support_the_limit() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        match limit_retransmission(socket.as_fd(), Duration::from_secs(1)) {
            Ok(()) => {
                let wrong = limit_retransmission(socket.as_fd(), Duration::from_millis(1));
                assert_eq!(wrong.unwrap_err().kind(), io::ErrorKind::InvalidInput);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
        }
    }

    #[test]
    fn only_a_connection_has_a_round_trip_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        for _ in 0..2 {
            near.write_all(&[1]).unwrap();
            far.read_exact(&mut [0]).unwrap();
            far.write_all(&[1]).unwrap();
            near.read_exact(&mut [0]).unwrap();
        }
        let info = path_info(near.as_fd()).unwrap();
        assert!(info.round_trip_us.is_some_and(|us| us < 10_000_000), "{info:?}");
        let (other, _) = UnixStream::pair().unwrap();
        assert!(path_info(other.as_fd()).is_err());
    }

    #[test]
    fn a_socket_refuses_descriptors_if_the_kernel_supports_it() {
        let (ours, peer) = UnixStream::pair().unwrap();
        match refuse_descriptors(ours.as_fd()) {
            Ok(()) => {
                let sent = crate::send_with_fds(&peer, b"x", &[peer.as_fd()]);
                assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::EPERM));
                // The other direction is open.
                crate::send_with_fds(&ours, b"x", &[peer.as_fd()]).unwrap();
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
        }
    }

    #[test]
    fn the_peer_has_a_user_id() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let peer = super::peer(socket.as_fd()).unwrap();
        // SAFETY: it only reads the credentials of this process.
        assert_eq!(peer.user, unsafe { libc::geteuid() });
        assert_eq!(peer.process, Some(std::process::id()));
    }

    #[test]
    fn a_kernel_opens_or_does_not_support_the_peer_process() {
        let (socket, _other) = UnixStream::pair().unwrap();
        match peer_process(socket.as_fd()) {
            Ok(process) => {
                let told = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
                let told = std::fs::read_to_string(told).unwrap();
                let own = format!("Pid:\t{}\n", std::process::id());
                assert!(told.contains(&own), "{told}");
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
        }
    }
}

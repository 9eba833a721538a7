//! Options of sockets that no safe crate knows. Here because it takes unsafe code.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::Duration,
};

/// `TCP_RTO_MAX_MS` of linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Has TCP send what is not acknowledged again at least this often. Without it the pauses double up to two minutes, and what
/// is sent over a link that is out and back again and again may wait for many times as long as the link was out.
///
/// # Errors
/// The kernel is older than Linux 6.15, or the time is not from 1 s to 120 s.
pub fn limit_retransmission(socket: BorrowedFd<'_>, longest: Duration) -> io::Result<()> {
    let ms = libc::c_int::try_from(longest.as_millis()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>())
        .map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open for as long as it is borrowed, and the kernel reads `length` bytes of `ms`.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            std::ptr::from_ref(&ms).cast(),
            length,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `SO_PEERPIDFD` of asm-generic/socket.h, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// A descriptor of the process that connected a Unix socket, which no other process can be meant by, as it can by a number.
///
/// # Errors
/// `ENOPROTOOPT` from a kernel older than Linux 6.5. The process is gone, or this one may open no more files.
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>())
        .map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open for as long as it is borrowed, and the kernel writes at most `length` bytes.
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

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, os::fd::AsFd, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn a_kernel_takes_the_limit_or_says_that_it_does_not_know_it() {
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
    fn a_kernel_opens_the_process_at_the_other_end_or_says_that_it_can_not() {
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

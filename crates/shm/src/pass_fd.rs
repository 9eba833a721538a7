//! Sends descriptors together with bytes over a Unix stream socket. The descriptors are opaque here.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors per message. A client needs one for each new extent, usually one or two at a time.
pub const FDS_PER_MESSAGE_MAX: usize = 8;

/// Maximum number of descriptors that the kernel puts into one message: `SCM_MAX_FD` of net/scm.h.
const KERNEL_FDS_MAX: usize = 253;

/// Sends `bytes` together with `fds`. Returns the number of bytes sent; all descriptors travel with the first byte.
///
/// Send the remaining bytes without descriptors. If a non-blocking socket is full, it returns `WouldBlock` and nothing
/// was sent. A closed socket returns `BrokenPipe` and never raises a signal.
///
/// # Errors
/// `InvalidInput` if there are more than [`FDS_PER_MESSAGE_MAX`] descriptors, or descriptors without a byte, which a
/// stream cannot carry.
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send(socket, bytes, fds, SendFlags::NOSIGNAL)
}

/// Like [`send_with_fds`], but never blocks, even on a blocking socket: returns `WouldBlock` if the socket is full.
///
/// # Errors
/// As [`send_with_fds`].
pub fn try_send_with_fds(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    send(socket, bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    if fds.len() > FDS_PER_MESSAGE_MAX || (bytes.is_empty() && !fds.is_empty()) {
        let message =
            format!("{} descriptors with {} bytes in one message", fds.len(), bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
    let sent = retry_on_intr(|| {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(
                control.push(SendAncillaryMessage::ScmRights(fds)),
                "{} descriptors",
                fds.len()
            );
        }
        sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags)
    })?;
    Ok(sent)
}

/// Receives into `buffer`, appends the descriptors that came with the bytes to `fds`, and returns the number of bytes.
///
/// Zero means the end of the stream. The descriptors are closed on exec. A non-blocking socket returns `WouldBlock`. If
/// this process cannot open more files, the bytes arrive without their descriptors: request a missing one again.
///
/// # Errors
/// `InvalidData` if the peer sent more than [`FDS_PER_MESSAGE_MAX`] descriptors; those received are closed. Close the
/// connection.
pub fn recv_with_fds(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    receive(socket, buffer, fds, RecvFlags::CMSG_CLOEXEC)
}

/// Like [`recv_with_fds`], but never blocks, even on a blocking socket: returns `WouldBlock` if nothing has arrived.
///
/// # Errors
/// As [`recv_with_fds`].
pub fn try_recv_with_fds(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    receive(socket, buffer, fds, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
}

/// Like [`recv_with_fds`], with as many descriptors as a message can have; none is closed here. Closing one may take as
/// long as its sender chooses.
///
/// # Errors
/// The errors of the system.
pub fn recv_all_fds(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_FDS_MAX))];
    Ok(receive_into(socket, buffer, &mut space, fds, RecvFlags::CMSG_CLOEXEC)?.bytes)
}

fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    flags: RecvFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
    let mut arrived = Vec::new();
    let received = receive_into(socket, buffer, &mut space, &mut arrived, flags)?;
    // The buffer is padded and may hold one more descriptor than requested. If the message was truncated although there
    // is space, the kernel dropped descriptors because this process cannot open more files.
    let is_truncated = received.flags.contains(ReturnFlags::CTRUNC);
    if is_truncated && arrived.len() == FDS_PER_MESSAGE_MAX || arrived.len() > FDS_PER_MESSAGE_MAX {
        let message = format!("more than {FDS_PER_MESSAGE_MAX} descriptors in one message");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    fds.append(&mut arrived);
    Ok(received.bytes)
}

fn receive_into(
    socket: impl AsFd,
    buffer: &mut [u8],
    space: &mut [MaybeUninit<u8>],
    fds: &mut Vec<OwnedFd>,
    flags: RecvFlags,
) -> io::Result<RecvMsg> {
    let mut control = RecvAncillaryBuffer::new(space);
    let received = loop {
        let slices = &mut [IoSliceMut::new(buffer)];
        match recvmsg(&socket, slices, &mut control, flags) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_arrives_with_its_bytes() {
        let (ours, peer) = UnixStream::pair().unwrap();
        let (_, fd) = crate::Mapping::create(4096).unwrap();
        let fds = [fd.as_fd(); FDS_PER_MESSAGE_MAX];
        assert_eq!(send_with_fds(&ours, b"take", &fds).unwrap(), 4);
        assert_eq!(send_with_fds(&ours, b"more", &[]).unwrap(), 4);
        let (mut buffer, mut got) = ([0; 16], Vec::new());
        assert_eq!(recv_with_fds(&peer, &mut buffer, &mut got).unwrap(), 4);
        assert_eq!(&buffer[..4], b"take");
        assert_eq!(got.len(), FDS_PER_MESSAGE_MAX);
        for fd in &got {
            assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
            crate::Mapping::map_readonly(fd, 4096).unwrap();
        }
        assert_eq!(recv_with_fds(&peer, &mut buffer, &mut got).unwrap(), 4);
        assert_eq!(got.len(), FDS_PER_MESSAGE_MAX);
        drop(ours);
        assert_eq!(recv_with_fds(&peer, &mut buffer, &mut got).unwrap(), 0);
    }

    #[test]
    fn a_socket_that_would_block_returns_would_block() {
        let (ours, peer) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (mut buffer, mut got) = ([0; 16], Vec::new());
        let error = recv_with_fds(&ours, &mut buffer, &mut got).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let error = std::iter::repeat_with(|| send_with_fds(&ours, &[0; 65536], &[]))
            .find_map(Result::err)
            .unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(peer);
        let error = send_with_fds(&ours, b"x", &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn too_many_descriptors_are_refused_on_both_sides() {
        let (ours, peer) = UnixStream::pair().unwrap();
        let many = [ours.as_fd(); 30];
        let error = send_with_fds(&ours, b"x", &many).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(send_with_fds(&ours, b"", &many[..1]).is_err());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(30))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&ours, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        let (mut buffer, mut got) = ([0; 16], Vec::new());
        let error = recv_with_fds(&peer, &mut buffer, &mut got).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(got.is_empty());
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&ours, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        assert_eq!(recv_all_fds(&peer, &mut buffer, &mut got).unwrap(), 1);
        assert_eq!(got.len(), many.len());
    }
}

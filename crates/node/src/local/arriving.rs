//! What comes from one attached process: bytes to messages, and the descriptors beside them. Knows no meaning of either.

use std::{io, os::fd::OwnedFd};

use hoplite_proto::wire;
use hoplite_shm::recv_with_fds;
use tokio::{io::Interest, net::UnixStream};

use super::protocol::{ToNode, take_frame};

/// Descriptors that came and were not asked for by a frame; a process that sends more is broken.
const UNCLAIMED_MAX: usize = 8;

/// The number of the process at the other end, if it has one here: a process of a PID namespace that this one can't see
/// into has none, and the kernel reports 0.
pub(super) fn process_number(stream: &UnixStream) -> Option<u32> {
    u32::try_from(stream.peer_cred().ok()?.pid()?).ok().filter(|pid| *pid != 0)
}

/// What has come from the process and was not taken yet.
#[derive(Default)]
pub(super) struct Arriving {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    buffer: Vec<u8>,
}

impl Arriving {
    /// The next message and the bytes of its frame; none when the process has closed the connection.
    pub(super) async fn next(
        &mut self,
        stream: &UnixStream,
    ) -> io::Result<Option<(ToNode, usize)>> {
        self.buffer.resize(16 * 1024, 0);
        loop {
            if let Some(body) = take_frame(&mut self.bytes)? {
                let message = wire::decode(&body)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                return Ok(Some((message, body.len())));
            }
            let received = stream.async_io(Interest::READABLE, || {
                recv_with_fds(stream, &mut self.buffer, &mut self.descriptors)
            });
            match received.await? {
                0 => return Ok(None),
                count => self.bytes.extend_from_slice(&self.buffer[..count]),
            }
            if self.descriptors.len() > UNCLAIMED_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors"));
            }
        }
    }

    /// The first descriptor that no message has claimed.
    pub(super) fn descriptor(&mut self) -> Option<OwnedFd> {
        if self.descriptors.is_empty() { None } else { Some(self.descriptors.remove(0)) }
    }
}

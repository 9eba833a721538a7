//! What comes from the node through its Unix socket: bytes into messages, and the descriptors beside them.
//!
//! Does not know what a message means, or which thread takes it.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use super::protocol::{FromNode, take_message};

/// What has come from the node and was not taken yet.
#[derive(Default)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Incoming {
    /// The next message, which `receive` waits for or does not; none when the node is gone.
    pub(super) fn next<'a>(
        &mut self,
        stream: &'a UnixStream,
        receive: impl Fn(&'a UnixStream, &mut [u8], &mut Vec<OwnedFd>) -> io::Result<usize>,
    ) -> io::Result<Option<FromNode>> {
        let mut buffer = [0; 16 * 1024];
        loop {
            if let Some((message, _)) = take_message(&mut self.bytes)? {
                return Ok(Some(message));
            }
            match receive(stream, &mut buffer, &mut self.descriptors) {
                Ok(0) => return Ok(None),
                Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn descriptor(&mut self) -> Option<OwnedFd> {
        if self.descriptors.is_empty() { None } else { Some(self.descriptors.remove(0)) }
    }
}

//! Parses bytes from the node's Unix socket into messages, and collects the descriptors that
//! accompany them.
//!
//! Does not interpret messages, nor know which thread receives them.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use super::protocol::{FromNode, take_message};

/// Bytes and descriptors received from the node and not taken yet.
#[derive(Default)]
pub(super) struct ReplyReader {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl ReplyReader {
    /// Reads the next message; `receive` blocks or not. None once the node is gone.
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

//! The protocol between a node and attached processes over the node's Unix socket.
//!
//! A frame is a little-endian u32 length and a postcard body, in both directions. Only the node
//! sends descriptors: with `Lifeline` and with each frame whose `has_descriptor` is set, in the
//! same order.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use hoplite_proto::{
    error::Error as CallError,
    id::Instance,
    limits::CONTROL_BYTES_MAX,
    members::Member,
    request::{Reply, Request},
    wire,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Version of the protocol. Processes with another version can't attach.
pub(crate) const LOCAL_VERSION: u32 = 21;

/// Bytes of the longest frame, including the length.
pub(crate) const FRAME_BYTES_MAX: usize = 4 + CONTROL_BYTES_MAX as usize;

/// Messages of a process to its node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToNode {
    /// The first message.
    Hello { version: u32 },
    /// A request with a timeout in nanoseconds.
    Request { request: u64, body: Request, timeout_ns: Option<u64> },
    /// Cancels a request. A reply is still sent.
    Cancel { request: u64 },
    /// A request without a reply.
    Notify { body: Request },
    /// More bytes of an object are written.
    Advanced { instance: Instance },
    /// The process mapped a new extent; from now on no other process may map it writable.
    Mapped { extent: u64 },
    /// An extent is not mapped: it was freed or could not be mapped. Send its descriptor again when
    /// needed.
    Unmapped { extent: u64 },
    /// Stops following a growing object.
    StopFollowing { request: u64 },
    /// The process is about to fork. Its views are pinned again, while any process has the
    /// `Lifeline` sent in reply.
    PinForFork,
    /// The first message of a process with a capability, instead of `Hello`.
    HelloRestricted { version: u32, capability: String },
}

/// Messages of a node to a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromNode {
    /// Reply to `Hello`: the node, and whether the members of its cluster are authenticated.
    Welcome { member: Member, is_authenticated: bool },
    /// Refusal of the attachment, with the reason.
    Refused { said: String },
    /// Reply to a request.
    Reply { request: u64, reply: Result<Reply, CallError>, region: Option<Region> },
    /// The node freed these extents; their memory is free once no process maps them. The process
    /// replies with `Unmapped` for each.
    Unmap { extents: Vec<u64> },
    /// The node has stopped, with the reason: it replies to no more requests, read or unread.
    Down { said: String },
    /// Refusal instead of `Welcome`: the capability is rejected or missing, with the reason.
    NotAllowed { said: String },
    /// Reply to `PinForFork`, with the write end of a pipe as descriptor: the parent closes it and
    /// the child keeps it.
    Lifeline,
}

/// Location of an object in shared memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Region {
    pub(crate) extent: u64,
    pub(crate) extent_len: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Whether the extent's descriptor accompanies this frame.
    pub(crate) has_descriptor: bool,
}

/// Flag in the extent ids of copies made for one process. Copies can be [taken
/// back](hoplite_shm::Lent).
pub(crate) const COPY: u64 = 1 << 63;

/// Encodes a body, preceded by its length.
pub(crate) fn frame<T: Serialize>(body: &T) -> Vec<u8> {
    let body = wire::encode(body);
    let mut bytes = Vec::with_capacity(4 + body.len());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Removes the first message from `bytes`; also returns the length of its body. None if it is
/// incomplete.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`].
pub(crate) fn take_message<T: DeserializeOwned>(
    bytes: &mut Vec<u8>,
) -> io::Result<Option<(T, usize)>> {
    let invalid = |said| io::Error::new(io::ErrorKind::InvalidData, said);
    let Some(length) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length);
    if length > CONTROL_BYTES_MAX {
        return Err(invalid(format!(
            "a frame of {length} bytes exceeds the limit of {CONTROL_BYTES_MAX}"
        )));
    }
    let length = length as usize;
    let Some(body) = bytes.get(4..4 + length) else { return Ok(None) };
    let message = wire::decode(body).map_err(|error| invalid(error.to_string()))?;
    bytes.drain(..4 + length);
    Ok(Some((message, length)))
}

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

    /// The next descriptor, in the order of the frames.
    pub(super) fn descriptor(&mut self) -> Option<OwnedFd> {
        if self.descriptors.is_empty() { None } else { Some(self.descriptors.remove(0)) }
    }
}

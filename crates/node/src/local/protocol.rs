//! What a node and the other processes of its host say to each other over the node's Unix socket.
//!
//! Frames are a little-endian u32 length and a postcard body, both ways. Descriptors travel from the node alone, beside
//! `Lifeline` and each frame that says `has_descriptor`, in the same order.

use std::io;

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    id::Instance,
    limits::CONTROL_BYTES_MAX,
    members::Member,
    wire,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Processes with other releases can't share memory with this one.
pub(crate) const LOCAL_VERSION: u32 = 13;

/// Bytes of the longest frame, with its length.
pub(crate) const FRAME_BYTES_MAX: usize = 4 + CONTROL_BYTES_MAX as usize;

/// What a process says to the node of its host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToNode {
    /// First of all.
    Hello { version: u32 },
    /// A question; `timeout_ns` from now. `Ask::Status` is answered with a `Description`.
    Ask { request: u64, ask: Ask, timeout_ns: Option<u64> },
    /// The answer is not wanted any more. It comes all the same.
    Cancel { request: u64 },
    /// Something that has no answer.
    Tell { ask: Ask },
    /// More of an object is filled.
    Advanced { instance: Instance },
    /// A new extent is mapped; no other process may map it writable from now on.
    Mapped { extent: u64 },
    /// An extent is not mapped: it was forgotten, or could not be, and its descriptor is wanted again.
    Unmapped { extent: u64 },
    /// What grew is not read any more.
    LetGo { request: u64 },
    /// The process is about to fork. What it reads is pinned once more, until no process has the `Lifeline` that it gets.
    Hold,
    /// First of all in place of `Hello`, of a process that has a capability.
    Confined { version: u32, capability: String },
}

/// What a node says to a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromNode {
    /// After `Hello`: the node, and whether all members of its cluster have proved who they are.
    Welcome { member: Member, is_authenticated: bool },
    /// Instead of that: go away, and why.
    Refused { said: String },
    /// The answer to a question.
    Answer { request: u64, answer: Result<Answer, CallError>, place: Option<Place> },
    /// The status of the node, as JSON.
    Description { request: u64, json: Result<String, CallError> },
    /// These extents are gone from the node; their memory is free when no process maps them. Answered by `Unmapped` for each.
    Forget { extents: Vec<u64> },
    /// The node has ended itself, and why: it answers no question any more, also none that it has not read.
    Down { said: String },
    /// Instead of `Welcome`: not with that capability, or not without one, and why.
    NotAllowed { said: String },
    /// After `Hold`, with a descriptor: the writing end of a pipe, for the parent to close and the child to keep.
    Lifeline,
}

/// Where an object is in shared memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) extent: u64,
    pub(crate) extent_len: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Whether the extent's descriptor comes with this frame.
    pub(crate) has_descriptor: bool,
}

/// What the numbers of copies that were made for one process have, and those of extents have not. Copies can be
/// [taken back](hoplite_shm::Lent).
pub(crate) const COPY: u64 = 1 << 63;

/// A body with its length in front.
pub(crate) fn frame<T: Serialize>(body: &T) -> Vec<u8> {
    let body = wire::encode(body);
    let mut bytes = Vec::with_capacity(4 + body.len());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Takes the first message off `bytes`, and says how long its body was; none if it is not all there.
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
            "a frame of {length} bytes, the limit is {CONTROL_BYTES_MAX}"
        )));
    }
    let length = length as usize;
    let Some(body) = bytes.get(4..4 + length) else { return Ok(None) };
    let message = wire::decode(body).map_err(|error| invalid(error.to_string()))?;
    bytes.drain(..4 + length);
    Ok(Some((message, length)))
}

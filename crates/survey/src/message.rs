//! Messages between the nodes of a survey. The node's own messages contain them as bytes.

use alloc::vec::Vec;

use hoplite_proto::{id::NodeId, inline::Inline, limits::SURVEY_BYTES_MAX, place::Place};
use serde::{Deserialize, Serialize};

use crate::survey::{FILLING_BYTES, NODES_MAX};

const _: () = assert!(FILLING_BYTES + 16 <= SURVEY_BYTES_MAX);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// From the surveying member: send a burst to another member now.
    Measure { round: u32, to: NodeId, bytes: u32 },
    /// One part of a burst, with filler bytes without meaning.
    Burst { round: u32, is_last: bool, filling: Inline },
    /// To the sender of a burst: all of it has arrived. `is_busy`: whether the receiver was transferring objects.
    BurstReceived { round: u32, is_busy: bool },
    /// To the surveying member: the result of a burst.
    Measured { round: u32, burst: Burst },
    /// From the surveying member: the surveyed members, with the places of those that share a link.
    Places(Vec<(NodeId, Option<Place>)>),
}

/// The result of a burst, as reported by its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Burst {
    /// The duration in nanoseconds.
    Took(u64),
    /// One of the two nodes transferred objects, or the sender cannot send a burst now.
    Void,
    /// The sender takes no part in surveys.
    Refused,
}

impl Message {
    pub(crate) fn encode(&self) -> Inline {
        // It fails only if it has no memory, which ends the process.
        postcard::to_allocvec(self).unwrap_or_default().into()
    }

    /// Decodes a message of another member; `None` if it is malformed.
    pub(crate) fn decode(bytes: &Inline) -> Option<Self> {
        let (message, rest) = postcard::take_from_bytes(bytes.as_bytes()).ok()?;
        let is_valid = match &message {
            Self::Places(places) => places.len() <= NODES_MAX,
            _ => true,
        };
        (is_valid && rest.is_empty()).then_some(message)
    }
}

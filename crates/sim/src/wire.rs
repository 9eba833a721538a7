//! Passes all that nodes and clients send through its wire format: what arrives must equal what was
//! sent. The receiver then gets the original, whose bytes of small objects are shared.

use std::fmt::Debug;

use hoplite_proto::{
    id::NodeId,
    message::Message,
    wire::{self, Fetch, FrameKind, Header},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    shell::{BLOCK_BYTES, CREDIT_BLOCKS, Flow},
    world::World,
};

impl World {
    /// Passes a message between nodes. A real receiver drops the connection if the frame is too
    /// long or the message is inconsistent.
    pub(crate) fn pass_message(&mut self, from: NodeId, message: &Message) {
        if !message.is_valid() {
            self.fail(format!("{from:?} sends an inconsistent message: {message:?}"));
        }
        self.pass(message, Some(FrameKind::Control));
    }

    /// Passes the request for the payload of a flow.
    pub(crate) fn pass_fetch(&mut self, flow: &Flow) {
        let what = flow.target();
        let credit = u64::from(CREDIT_BLOCKS) * BLOCK_BYTES;
        let fetch = Fetch { what, credit, frame: BLOCK_BYTES as u32, more: false };
        self.pass(&fetch, Some(FrameKind::Fetch));
    }

    /// Passes a request of a client, or its reply.
    pub(crate) fn pass_local<T>(&mut self, sent: &T)
    where
        T: Serialize + DeserializeOwned + PartialEq + Debug,
    {
        self.pass(sent, None);
    }

    fn pass<T>(&mut self, sent: &T, kind: Option<FrameKind>)
    where
        T: Serialize + DeserializeOwned + PartialEq + Debug,
    {
        let arrived = pass(sent, kind);
        if arrived.as_ref() != Ok(sent) {
            self.fail(format!("{sent:?} becomes {arrived:?} on the wire"));
        }
    }
}

/// Encodes and decodes a body, and the header of its frame, if it has one.
fn pass<T: Serialize + DeserializeOwned>(sent: &T, kind: Option<FrameKind>) -> Result<T, String> {
    let body = wire::encode(sent);
    if let Some(kind) = kind {
        let header = Header::new(kind, body.len() as u32, 0);
        let arrived = Header::decode(&header.encode()).map_err(|error| error.to_string())?;
        if arrived != header {
            return Err(format!("a frame with the header {arrived:?}"));
        }
    }
    wire::decode(&body).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use hoplite_proto::limits::CONTROL_BYTES_MAX;

    use super::*;

    #[test]
    fn a_frame_that_is_too_long_does_not_arrive() {
        let longest = vec![7_u8; CONTROL_BYTES_MAX as usize - 4];
        assert_eq!(pass(&longest, Some(FrameKind::Control)).as_ref(), Ok(&longest));
        let longer = vec![7_u8; CONTROL_BYTES_MAX as usize];
        let refused = pass(&longer, Some(FrameKind::Control)).unwrap_err();
        assert!(refused.contains("above the limit"), "{refused}");
    }
}

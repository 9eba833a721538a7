//! Bytes of the protocol: a fixed header, then a body. Encoding only; who says what when is in [`crate::message`].
//!
//! ```text
//!   0      4     5      6        8        12       16          24         32     48
//!   | magic | ver | kind | shares | length | crc32c | transfer  | offset   | tag  | body ...
//! ```
//!
//! All numbers are little-endian. `length` counts the body, `crc32c` covers it. Control bodies are postcard;
//! the body of `Blocks` is payload, which goes straight between the socket and its place in memory.
//!
//! Of a frame that is sealed the body is encrypted and `crc32c` is masked; `tag` authenticates the 32 bytes before it and
//! the body. Of others `tag` is zero.

use alloc::{string::String, vec::Vec};
use core::{fmt, ops::Range};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    id::{Instance, NodeId, ObjectId},
    limits::{CONTROL_BYTES_MAX, FRAME_BYTES_MAX},
    members::Member,
    message::FoldKey,
    quoted::Quoted,
};

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"HPLT";

/// Nodes of different versions don't talk.
pub const VERSION: u8 = 17;

/// Bytes of a header.
pub const HEADER_BYTES: usize = SIGNED_BYTES + TAG_BYTES;

/// Bytes of a header that its tag authenticates.
pub const SIGNED_BYTES: usize = 32;

/// Bytes of a tag: those of AES-GCM.
pub const TAG_BYTES: usize = 16;

/// Bytes of the number of a node's start, which a node with a certificate says before TLS.
pub const START_BYTES: u32 = 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::FromRepr)]
#[strum(serialize_all = "lowercase")]
#[repr(u8)]
pub enum FrameKind {
    /// A step of the handshake: a [`Greeting`].
    Greeting = 1,
    /// A [`crate::message::Message`].
    Control = 2,
    /// A [`Fetch`]: please send.
    Fetch = 3,
    /// Payload of a transfer: a run of blocks.
    Blocks = 4,
    /// `offset` more bytes may be sent in a transfer.
    Credit = 5,
    /// The transfer is complete.
    End = 6,
    /// The transfer can't begin or go on: an [`Unavailable`].
    Unavailable = 7,
    /// A TLS handshake follows, in which the next greetings are said.
    Secure = 8,
    /// The sender's own copy does not grow for the moment: it waits too ([`crate::patience`]).
    Waits = 9,
}

impl FrameKind {
    /// The longest body of such a frame.
    const fn length_max(self) -> u32 {
        match self {
            Self::Greeting => 16 * 1024,
            Self::Control => CONTROL_BYTES_MAX,
            // The ranges still missing, or the parts of a result.
            Self::Fetch => 1024 * 1024,
            Self::Blocks => FRAME_BYTES_MAX as u32,
            Self::Credit | Self::End | Self::Waits => 0,
            Self::Secure => START_BYTES,
            Self::Unavailable => 4096,
        }
    }
}

/// The fixed part of every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: FrameKind,
    /// Of payload: how many transfers share the link of its sender, this one included. Zero in other frames.
    pub shares: u16,
    /// Bytes that follow.
    pub length: u32,
    /// CRC-32C of these bytes.
    pub checksum: u32,
    /// Counts the transfers of a payload connection, so that late credits don't count for the next.
    pub transfer: u64,
    /// Where blocks belong; how much a credit grants.
    pub offset: u64,
    /// Authenticates a frame that is sealed.
    pub tag: [u8; TAG_BYTES],
}

impl Header {
    /// The header of a frame that is not sealed.
    pub const fn new(kind: FrameKind, length: u32, checksum: u32) -> Self {
        Self { kind, shares: 0, length, checksum, transfer: 0, offset: 0, tag: [0; TAG_BYTES] }
    }

    /// The header as it travels.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[6..8].copy_from_slice(&self.shares.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.transfer.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.offset.to_le_bytes());
        bytes[SIGNED_BYTES..].copy_from_slice(&self.tag);
        bytes
    }

    /// Reads a header, and checks its length against the limit of its kind before memory is taken for it.
    ///
    /// # Errors
    /// [`WireError`], which says what a stranger or a damaged stream sent instead.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let u32_at =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let u64_at =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        if bytes[..4] != MAGIC {
            return Err(WireError::NotHoplite([bytes[0], bytes[1], bytes[2], bytes[3]]));
        }
        if bytes[4] != VERSION {
            return Err(WireError::OtherVersion { theirs: bytes[4], ours: VERSION });
        }
        let kind = FrameKind::from_repr(bytes[5]).ok_or(WireError::UnknownKind(bytes[5]))?;
        let length = u32_at(8);
        if length > kind.length_max() {
            return Err(WireError::TooLong { kind, length, limit: kind.length_max() });
        }
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&bytes[SIGNED_BYTES..]);
        let (checksum, transfer, offset) = (u32_at(12), u64_at(16), u64_at(24));
        let shares = u16::from_le_bytes([bytes[6], bytes[7]]);
        Ok(Self { kind, shares, length, checksum, transfer, offset, tag })
    }
}

/// A body as bytes.
///
/// # Panics
/// Never: every type of this crate has an encoding.
pub fn encode<T: Serialize>(body: &T) -> Vec<u8> {
    postcard::to_allocvec(body).unwrap_or_else(|error| panic!("a body has no encoding: {error}"))
}

/// Bytes as a body.
///
/// # Errors
/// [`WireError::Malformed`] for bytes that are not exactly one `T`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    match postcard::take_from_bytes(bytes) {
        Ok((body, [])) => Ok(body),
        Ok((_, rest)) => Err(WireError::Malformed(alloc::format!("{} extra bytes", rest.len()))),
        Err(error) => Err(WireError::Malformed(alloc::format!("{error}"))),
    }
}

/// First bytes of what is no frame: as text if they are, else as hex.
struct Beginning([u8; 4]);

impl fmt::Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_text = self.0.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
        match core::str::from_utf8(&self.0) {
            Ok(text) if is_text => Quoted(text).fmt(f),
            _ => write!(f, "the bytes {:08x}", u32::from_be_bytes(self.0)),
        }
    }
}

/// Why a frame was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It does not begin as frames do.
    #[error("the peer does not use the Hoplite protocol: its stream begins with {}", Beginning(*.0))]
    NotHoplite([u8; 4]),
    /// The peer runs another release.
    #[error(
        "the peer uses protocol version {theirs}, this node {ours}: install the same release on both"
    )]
    OtherVersion {
        /// What the peer speaks.
        theirs: u8,
        /// What we speak.
        ours: u8,
    },
    /// No such kind.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// Longer than such a frame may be.
    #[error("a frame of kind {kind} has a length of {length} bytes, above the limit of {limit}")]
    TooLong {
        /// Which kind.
        kind: FrameKind,
        /// What it says.
        length: u32,
        /// The limit.
        limit: u32,
    },
    /// A kind that does not belong here.
    #[error("unexpected frame: {0}")]
    Unexpected(String),
    /// The body differs from its checksum.
    #[error("checksum mismatch: the header has {theirs:08x}, the body {ours:08x}")]
    Checksum {
        /// What the header says.
        theirs: u32,
        /// What the bytes say.
        ours: u32,
    },
    /// The frame is not what the other side of the connection sealed.
    #[error("a frame of kind {0} failed authentication: its bytes changed on the way")]
    NotAuthentic(FrameKind),
    /// The body is not what its kind says.
    #[error("malformed body: {0}")]
    Malformed(String),
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Messages from the caller to the called.
    Control,
    /// The same, in place of a connection that broke.
    ControlAgain,
    /// Payload from the called to the caller.
    Payload,
    /// To another member, which the caller can't reach: [`Greeting::PassOn`] follows.
    Detour,
    /// To get to know each other: nothing follows, and each calls the other for what it has to say.
    Meet,
}

/// Bytes of a proof: an HMAC-SHA256.
pub type MacBytes = [u8; 32];

/// What the caller says first, inside TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the caller's cluster.
    pub cluster: String,
    /// The caller. Its id is that of the key with which it has signed the TLS handshake.
    pub member: Member,
    /// What the connection is for.
    pub role: Role,
    /// The node that the caller means, if it knows.
    pub callee: Option<NodeId>,
    /// Grows with each handshake of the caller: a control connection takes the place of those with a lower one.
    pub turn: u64,
    /// Whether the caller seals no frame.
    pub is_plain: bool,
    /// That the caller knows the token: an HMAC over what only the two ends of this TLS connection know. One for each
    /// token of the caller, at most [`TOKENS_MAX`]; none in a cluster without.
    pub proofs: Vec<MacBytes>,
}

/// Tokens that a node may have at a time: the present one, and the one that it replaces.
pub const TOKENS_MAX: usize = 2;

/// The answer to a [`Hello`], inside TLS: the caller is admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The called. Its id is that of the key with which it has signed the TLS handshake.
    pub member: Member,
    /// That the called knows the token; none in a cluster without.
    pub proof: Option<MacBytes>,
}

/// What a caller says first on a payload connection to a node that it has a control connection to. What it wants follows
/// at once, sealed with keys that both nodes derive from the secret of that connection and the nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The caller.
    pub caller: NodeId,
    /// The node that it means.
    pub callee: NodeId,
    /// Fresh random bytes. The called takes each once.
    pub nonce: [u8; 16],
    /// That the caller is the node that was admitted there.
    pub pass: MacBytes,
}

/// What a greeting may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Greeting {
    /// First, inside TLS.
    Hello(Hello),
    /// The answer to it, inside TLS.
    Welcome(Welcome),
    /// First, instead of TLS.
    Resume(Resume),
    /// The answer to it: that the called is the node that the caller means.
    Resumed(MacBytes),
    /// On a [`Role::Detour`], sealed: connect to this member. After the answer [`Greeting::Admitted`] the called passes on
    /// to the other what either says, as it is.
    PassOn(NodeId),
    /// The answer to that, sealed.
    Admitted,
    /// On a control connection, sealed: how long is the round trip?
    Ping,
    /// The answer to that, sealed.
    Pong,
    /// Instead of any: go away, and why.
    Refused(String),
}

/// What a receiver asks for on a payload connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Which bytes.
    pub what: What,
    /// How many may be sent before more is granted.
    pub credit: u64,
    /// Bytes of the frames they are to come in, from the beginning of each range; a whole number of blocks.
    pub frame: u32,
}

/// What can be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A copy, or the rest of one.
    Copy {
        /// Of which object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
        /// What is missing, in the order in which it is to come.
        ranges: Vec<Range<u64>>,
        /// Whether the holder is to make it, and may hear so only now.
        ordered: bool,
    },
    /// The stream of a position of a reduce.
    Partial(FoldKey),
}

/// Why a transfer ended without its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unavailable {
    /// There is no such copy here.
    NotHere,
    /// There was, but it was dropped before it was complete.
    Dropped,
    /// The fold failed or was stopped.
    Stopped,
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString, vec};

    use proptest::prelude::*;

    use super::*;
    use crate::message::{Message, Receives};

    const HEADER: Header = Header {
        kind: FrameKind::Blocks,
        shares: 3,
        length: 5,
        checksum: 7,
        transfer: 1 << 40,
        offset: 1 << 50,
        tag: [9; TAG_BYTES],
    };

    #[test]
    fn a_header_reads_back() {
        assert_eq!(Header::decode(&HEADER.encode()), Ok(HEADER));
    }

    #[test]
    fn a_stranger_is_told_from_another_version() {
        let mut bytes = HEADER.encode();
        bytes[4] = VERSION + 1;
        assert_eq!(
            Header::decode(&bytes),
            Err(WireError::OtherVersion { theirs: VERSION + 1, ours: VERSION })
        );
        bytes[..4].copy_from_slice(b"GET ");
        assert!(Header::decode(&bytes).unwrap_err().to_string().contains("not use the Hoplite"));
    }

    #[test]
    fn a_length_beyond_the_limit_of_its_kind_is_refused() {
        let mut bytes = HEADER.encode();
        bytes[8..12].copy_from_slice(&(FRAME_BYTES_MAX as u32 + 1).to_le_bytes());
        assert!(matches!(Header::decode(&bytes), Err(WireError::TooLong { .. })));
    }

    #[test]
    fn bytes_that_are_left_over_are_an_error() {
        let mut bytes = encode(&Message::Leave);
        bytes.push(0);
        assert!(matches!(decode::<Message>(&bytes), Err(WireError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Message>(&bytes);
            let _ = decode::<Greeting>(&bytes);
            let _ = decode::<Fetch>(&bytes);
            let mut header = [0; HEADER_BYTES];
            let length = bytes.len().min(HEADER_BYTES);
            header[..length].copy_from_slice(&bytes[..length]);
            let _ = Header::decode(&header);
        }

        #[test]
        fn a_message_reads_back(node in any::<u64>(), serial in any::<u64>(), name in "[a-z/0-9]{1,40}") {
            let instance = Instance { node: NodeId(node), serial };
            for message in [
                Message::Withdraw { id: name.parse().unwrap(), instance },
                Message::Locate {
                    id: ObjectId::Minted { node: NodeId(node), serial },
                    avoid: vec![NodeId(serial)],
                    not_here: Some((NodeId(node), instance)),
                    receives: Receives { slowness: serial, usual: Some(node) },
                    seen: node % 2 == 0,
                },
            ] {
                prop_assert_eq!(decode::<Message>(&encode(&message)), Ok(message));
            }
        }
    }
}

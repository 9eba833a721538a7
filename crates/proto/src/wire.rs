//! Wire format: a fixed header, then a body. Contains the encoding only; [`crate::message`] defines
//! the protocol.
//!
//! ```text
//!   0      4     5      6        8        12       16          24         32     48
//!   | magic | ver | kind | shares | length | crc32c | transfer  | offset   | tag  | body ...
//! ```
//!
//! All numbers are little-endian. `length` is the size of the body in bytes, `crc32c` its checksum.
//! Control bodies are postcard. The body of `Blocks` is payload, which moves directly between the
//! socket and shared memory.
//!
//! In a sealed frame the body is encrypted and `crc32c` is masked; `tag` authenticates the 32 bytes
//! before it and the body. In other frames `tag` is zero.

use alloc::{string::String, vec::Vec};
use core::{fmt, ops::Range};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    cluster_id::ClusterId,
    id::{Instance, NodeId, ObjectId},
    limits::{CONTROL_BYTES_MAX, FRAME_BYTES_MAX},
    members::Member,
    message::FoldKey,
    quoted::Quoted,
};

/// The first bytes of every frame.
pub const MAGIC: [u8; 4] = *b"HPLT";

/// Protocol version. Nodes of different versions can't connect.
pub const VERSION: u8 = 30;

/// Size of a header in bytes.
pub const HEADER_BYTES: usize = SIGNED_BYTES + TAG_BYTES;

/// Size in bytes of the part of the header that its tag authenticates.
pub const SIGNED_BYTES: usize = 32;

/// Size of a tag in bytes, as in AES-GCM.
pub const TAG_BYTES: usize = 16;

/// Size in bytes of the start number that a node with a certificate sends before TLS.
pub const START_BYTES: u32 = 16;

/// Type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::FromRepr)]
#[strum(serialize_all = "lowercase")]
#[repr(u8)]
pub enum FrameKind {
    /// A step of the handshake: a [`Greeting`].
    Greeting = 1,
    /// A [`crate::message::Message`].
    Control = 2,
    /// A request for payload: a [`Fetch`].
    Fetch = 3,
    /// Payload of a transfer: consecutive blocks.
    Blocks = 4,
    /// Grants `offset` more bytes of a transfer.
    Credit = 5,
    /// The transfer is complete.
    End = 6,
    /// The transfer can't begin or continue: an [`Unavailable`].
    Unavailable = 7,
    /// A TLS handshake follows, and the next greetings are sent inside TLS.
    Secure = 8,
    /// The sender's own copy does not grow at the moment, because it waits too
    /// ([`crate::progress_timeout`]).
    KeepAlive = 9,
}

impl FrameKind {
    /// Maximum size of the body in bytes.
    const fn length_max(self) -> u32 {
        match self {
            Self::Greeting => 16 * 1024,
            Self::Control => CONTROL_BYTES_MAX,
            // The missing ranges, or the parts of a result.
            Self::Fetch => 1024 * 1024,
            Self::Blocks => FRAME_BYTES_MAX as u32,
            Self::Credit | Self::End | Self::KeepAlive => 0,
            Self::Secure => START_BYTES,
            Self::Unavailable => 4096,
        }
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of the frame.
    pub kind: FrameKind,
    /// In payload frames: number of transfers that share the sender's link, including this one.
    /// Otherwise zero.
    pub shares: u16,
    /// Size of the body in bytes.
    pub length: u32,
    /// CRC-32C of the body.
    pub checksum: u32,
    /// Number of the transfer on its payload connection, so that late credits do not count for the
    /// next transfer.
    pub transfer: u64,
    /// Offset of the blocks in the object, or bytes granted by a credit.
    pub offset: u64,
    /// Authenticates a sealed frame.
    pub tag: [u8; TAG_BYTES],
}

impl Header {
    /// A header of a frame that is not sealed.
    pub const fn new(kind: FrameKind, length: u32, checksum: u32) -> Self {
        Self { kind, shares: 0, length, checksum, transfer: 0, offset: 0, tag: [0; TAG_BYTES] }
    }

    /// Encodes the header.
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

    /// Decodes a header, and checks its length against the limit of its type before memory is
    /// allocated for the body.
    ///
    /// # Errors
    /// [`WireError`] if a stranger or a corrupt stream sent something else.
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

/// Encodes a body.
///
/// # Panics
/// Never: every type of this crate has an encoding.
pub fn encode<T: Serialize>(body: &T) -> Vec<u8> {
    // Most messages fit, so that the bytes are not moved while they grow.
    let bytes = Vec::with_capacity(128);
    let encoded = postcard::to_extend(body, bytes);
    encoded.unwrap_or_else(|error| panic!("a body has no encoding: {error}"))
}

/// Decodes a body.
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

/// First bytes of an unknown stream, displayed as text if they are printable, otherwise as hex.
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

/// Why a frame was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
pub enum WireError {
    /// The stream does not begin with [`MAGIC`].
    #[error(
        "the peer does not use the Hoplite protocol: its stream begins with {}",
        Beginning(*.0)
    )]
    NotHoplite([u8; 4]),
    /// The peer runs another protocol version.
    #[error(
        "the peer uses protocol version {theirs}, but this node uses {ours}: install the same \
         release on both"
    )]
    OtherVersion {
        /// Version of the peer.
        theirs: u8,
        /// Version of this node.
        ours: u8,
    },
    /// The frame type is unknown.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// The frame is longer than its type allows.
    #[error("a frame of kind {kind} has a length of {length} bytes, above the limit of {limit}")]
    TooLong {
        /// Type of the frame.
        kind: FrameKind,
        /// Length in its header.
        length: u32,
        /// The limit.
        limit: u32,
    },
    /// The frame type is not valid at this point.
    #[error("unexpected frame: {0}")]
    Unexpected(String),
    /// The body does not match its checksum.
    #[error("checksum mismatch: the header has {theirs:08x}, the body {ours:08x}")]
    Checksum {
        /// Checksum in the header.
        theirs: u32,
        /// Checksum of the body.
        ours: u32,
    },
    /// The sealed frame failed authentication.
    #[error("a frame of kind {0} failed authentication: its bytes changed in transit")]
    NotAuthentic(FrameKind),
    /// The body can't be decoded.
    #[error("malformed body: {0}")]
    Malformed(String),
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Messages from the initiator to the acceptor.
    Control,
    /// The same, replacing a connection that broke.
    ControlReconnect,
    /// Payload from the acceptor to the initiator.
    Payload,
    /// Relay to a member that the initiator can't reach directly; [`Greeting::Relay`] follows.
    Relay,
    /// Introduction only. Nothing follows; each node connects to the other for its own messages.
    Join,
}

/// A proof: an HMAC-SHA256.
pub type MacBytes = [u8; 32];

/// First greeting of the initiator, inside TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the initiator's cluster.
    pub cluster: String,
    /// Id of the initiator's cluster.
    pub cluster_id: ClusterId,
    /// The initiator. Its id belongs to the key that signed its TLS handshake.
    pub member: Member,
    /// Purpose of the connection.
    pub role: Role,
    /// The node that the initiator expects, if any.
    pub target: Option<NodeId>,
    /// Increases with each handshake of the initiator. A control connection replaces those with a
    /// lower number.
    pub turn: u64,
    /// Whether the initiator sends its frames without sealing.
    pub no_encryption: bool,
    /// Proofs that the initiator has the token: HMACs over secrets of this TLS connection. There is
    /// one for each token of the initiator, at most [`TOKENS_MAX`]; none in a cluster without
    /// tokens.
    pub proofs: Vec<MacBytes>,
}

/// Maximum number of tokens of a node: the present token and the token that it replaces.
pub const TOKENS_MAX: usize = 2;

/// Reply to [`Hello`] inside TLS: the initiator is admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The acceptor. Its id belongs to the key that signed its TLS handshake.
    pub member: Member,
    /// Id of the cluster that both nodes belong to now.
    pub cluster_id: ClusterId,
    /// Proof that the acceptor has the token; `None` in a cluster without tokens.
    pub proof: Option<MacBytes>,
}

/// First greeting on a payload connection to a node with an existing control connection. The
/// request follows at once, sealed with keys that both nodes derive from the secret of the control
/// connection and the nonce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The initiator.
    pub initiator: NodeId,
    /// The node that the initiator expects.
    pub target: NodeId,
    /// Fresh random bytes. The acceptor accepts each nonce once.
    pub nonce: [u8; 16],
    /// Proof that the initiator is the node admitted on the control connection.
    pub pass: MacBytes,
}

/// A greeting of a handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Greeting {
    /// First greeting, inside TLS.
    Hello(Hello),
    /// The reply to `Hello`, inside TLS.
    Welcome(Welcome),
    /// First greeting, instead of TLS.
    Resume(Resume),
    /// The reply to `Resume`: proof that the acceptor is the node that the initiator expects.
    Resumed(MacBytes),
    /// On a [`Role::Relay`], sealed: connect to this member. After [`Greeting::Admitted`] the
    /// acceptor forwards bytes in both directions unchanged.
    Relay(NodeId),
    /// The reply to `Relay`, sealed.
    Admitted,
    /// On a control connection, sealed: measures the round-trip time.
    Ping,
    /// The reply to `Ping`, sealed.
    Pong,
    /// Instead of any other greeting: the connection is rejected, for this reason.
    Refused(String),
    /// Instead of [`Greeting::Welcome`]: the acceptor belongs to another cluster, with this id.
    OtherCluster(ClusterId),
}

/// Request on a payload connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// The payload.
    pub what: FetchTarget,
    /// Bytes that may be sent before more credit is granted.
    pub credit: u64,
    /// Frame size in bytes, counted from the beginning of each range; a whole number of blocks.
    pub frame: u32,
    /// Whether the receiver has not yet requested all that it wants of this copy: more may follow
    /// right afterwards, on this connection or on another.
    pub more: bool,
}

/// Payload that a node can fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchTarget {
    /// A copy, or the missing ranges of one.
    Copy {
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
        /// Missing ranges, in the order to send them.
        ranges: Vec<Range<u64>>,
        /// Whether a reduce orders the holder to produce the copy. The holder may not have received
        /// that order yet.
        ordered: bool,
    },
    /// The stream of one position of a reduce.
    Partial(FoldKey),
}

/// Why a transfer ended early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unavailable {
    /// The node has no such copy.
    NotHere,
    /// The copy was dropped before it was complete.
    Dropped,
    /// The fold failed or was stopped.
    Stopped,
}

#[cfg(test)]
mod tests {
    use alloc::{boxed::Box, string::ToString, vec};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        id::QuestionId,
        message::{Message, ReceiveRate},
        question::{Locate, Question},
    };

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
    fn a_stranger_is_distinguished_from_another_version() {
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
                Message::Ask {
                    number: QuestionId(serial),
                    question: Question::Locate(Box::new(Locate {
                        id: ObjectId::Minted { node: NodeId(node), serial },
                        avoid: vec![NodeId(serial)],
                        not_here: Some((NodeId(node), instance)),
                        receives: ReceiveRate { slowness: serial, usual: Some(node) },
                        seen_at: (node % 2 == 0).then_some(NodeId(serial)),
                    })),
                },
            ] {
                prop_assert_eq!(decode::<Message>(&encode(&message)), Ok(message));
            }
        }
    }
}

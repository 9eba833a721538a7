//! Why a node did not start, or a call failed.

use std::io;

use hoplite_proto::{error::Error as CallError, id::NodeId, limits::TURN_BYTES, wire::WireError};

/// Why a node did not start, or a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call failed; says what the caller may do.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The address, or the path of the socket, is taken.
    #[error("{address} is in use: {detail}; choose another or stop what listens there")]
    AddressInUse {
        /// Host and port, or path.
        address: String,
        /// By which process, if known.
        detail: String,
    },
    /// No address, or none that can be used.
    #[error("can't listen on {address}: {detail}")]
    Listen {
        /// What was asked for.
        address: String,
        /// Why it can't be.
        detail: String,
    },
    /// No address that others could be told.
    #[error("can't advertise {address}: {detail}")]
    Advertise {
        /// What was asked for.
        address: String,
        /// Why it can't be.
        detail: String,
    },
    /// A file of certificates can't be used; says which, why, and what to do.
    #[error("{0}")]
    Certificates(String),
    /// A folder can't be spilled to; says which, why, and what to do.
    #[error("{0}")]
    Spill(String),
    /// No node that was named let this node in.
    #[error("could not join the cluster: {0}")]
    Join(String),
    /// No node answers on the socket.
    #[error("can't attach to a node at {path}: {detail}")]
    Attach {
        /// The socket's path.
        path: String,
        /// Why.
        detail: String,
    },
    /// The program has closed its client.
    #[error("this client is closed; make another by hoplite.init() or node.client()")]
    Closed,
    /// The process was forked after it attached or started its node.
    #[error(
        "this process was forked from the one that opened the connection to Hoplite: call hoplite.init() or \
         hoplite.connect() in the child"
    )]
    Forked,
}

impl Error {
    /// The node is closed, or its process is gone.
    pub(crate) fn node_down(detail: impl Into<String>) -> Self {
        Self::Call(CallError::NodeDown(detail.into()))
    }
}

/// Why a connection to another node ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    /// By this node or the other one.
    #[error("refused: {0}")]
    Refused(String),
    #[error("the peer refused: {0}")]
    Revoked(String),
    /// The address of a node is that of another one now.
    #[error("this is node {by}, not {node}, whose place it has taken")]
    Replaced { node: NodeId, by: NodeId },
    /// A caller did not mean this node, or does not want it.
    #[error("the caller hung up: {0}")]
    Declined(String),
    #[error(
        "node {0} has as many connections open to this one as one member may have, {1}: let some of its transfers end \
         first, or raise ulimit -n there"
    )]
    Full(NodeId, usize),
    #[error("the other node's certificate {0}")]
    Certificate(String),
    #[error("another node answers at that address")]
    Stranger,
    #[error("node {0} is not a member here")]
    NotMember(NodeId),
    #[error("the node left the cluster or counts as dead")]
    Lost,
    #[error("it {0} less than {TURN_BYTES} bytes within {1} s")]
    Slow(&'static str, f32),
    #[error("no answer within {0} s")]
    Silent(f32),
    #[error(
        "it took the connection and has said nothing for {0} s: it is no node, or it stands still"
    )]
    Mute(f32),
}

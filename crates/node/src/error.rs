//! Errors of nodes and clients, and of connections between nodes.

use std::{io, net::SocketAddr};

use hoplite_proto::{
    cluster_id::ClusterId, error::Error as CallError, id::NodeId, limits::PROGRESS_BYTES_MIN,
    wire::WireError,
};

/// Reason why a node did not start or a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call failed. The text names what the caller can do.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The address, or the path of the socket, is in use.
    #[error("{address} is in use: {detail}; choose another address, or free this one")]
    AddressInUse {
        /// Host and port, or path.
        address: String,
        /// The process that uses it, if known.
        detail: String,
    },
    /// The listen address is not valid or not usable.
    #[error("can't listen on {address}: {detail}")]
    Listen {
        /// The requested address.
        address: String,
        /// Why it can't be used.
        detail: String,
    },
    /// The advertised address is not valid.
    #[error("can't advertise {address}: {detail}")]
    Advertise {
        /// The requested address.
        address: String,
        /// Why it can't be used.
        detail: String,
    },
    /// A certificate file can't be used. The text names the file, the reason and the fix.
    #[error("{0}")]
    Certificates(String),
    /// The spill folder can't be used. The text names the folder, the reason and the fix.
    #[error("{0}")]
    Spill(String),
    /// None of the configured members admitted this node.
    #[error("could not join the cluster: {0}")]
    Join(String),
    /// No node serves the socket.
    #[error("can't attach to a node at {path}: {detail}")]
    Attach {
        /// The socket's path.
        path: String,
        /// The reason.
        detail: String,
    },
    /// The program has closed this client.
    #[error("this client is closed: create another with hoplite.init() or node.client()")]
    Closed,
    /// The process was forked after it attached or started its node.
    #[error(
        "this process was forked from the process that opened the connection to Hoplite: call \
         hoplite.init() or hoplite.connect() in the child"
    )]
    Forked,
}

impl Error {
    /// The node is closed, or its process is gone.
    pub(crate) fn node_down(detail: impl Into<String>) -> Self {
        Self::Call(CallError::NodeDown(detail.into()))
    }

    /// The node's reply does not fit the request.
    pub(crate) fn unexpected_reply() -> Self {
        Self::node_down("it replied to another request: use a node of the same release")
    }
}

/// Reason why a connection to another node ended.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
pub(crate) enum LinkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Refused by this node or by the peer.
    #[error("refused: {0}")]
    Refused(String),
    #[error("refused: {0}")]
    Revoked(String),
    /// Another node now listens at the address of the expected one.
    #[error("node {by} has replaced node {node} at this address")]
    Replaced { node: NodeId, by: NodeId },
    /// One of both clusters has lost a member, so their nodes must not connect at an address from
    /// `join`.
    #[error(
        "node {node} at {address} is of cluster {theirs}, but this node is of cluster {ours}, and \
         clusters do not merge: if they belong together, restart the nodes of one of them, each \
         with join set to a node of the other; otherwise remove the address from join, or use \
         another cluster name"
    )]
    OtherCluster { node: NodeId, address: SocketAddr, theirs: ClusterId, ours: ClusterId },
    /// The initiator expected another node, or rejects this one.
    #[error("the initiator ended the handshake: {0}")]
    Declined(String),
    #[error(
        "node {0} already has {1} connections to this node, the limit per member: let some of its \
         transfers end first, or raise ulimit -n of this node"
    )]
    Full(NodeId, usize),
    #[error("the peer's certificate {0}")]
    Certificate(String),
    #[error("another node replied at that address")]
    Stranger,
    #[error("node {0} is not a member of this cluster")]
    NotMember(NodeId),
    #[error("the node left the cluster or was declared dead")]
    Failed,
    #[error("the peer {0} less than {PROGRESS_BYTES_MIN} bytes within {1} s")]
    Slow(&'static str, f32),
    #[error("no reply within {0} s")]
    NoHandshake(f32),
    #[error(
        "it accepted the connection but sent nothing for {0} s: check that it is a Hoplite node \
         and not paused"
    )]
    NoGreeting(f32),
}

impl LinkError {
    /// The kind of error, without what the peer sent: one cause for the log.
    pub(crate) fn class(&self) -> String {
        match self {
            Self::Io(error) => error.kind().to_string(),
            Self::Wire(error) => <&str>::from(error).into(),
            other => <&str>::from(other).into(),
        }
    }
}

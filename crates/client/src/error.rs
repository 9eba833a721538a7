//! Errors of calls and nodes: a kind that programs compare, and a message for people.

use std::fmt;

use hoplite_node::{Error as NodeError, proto::error::Error as CallError};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. The message names the object, the nodes and the numbers, and ends with what fixes it.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: Box<str>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The kind of an error, with the name of the exception in Python.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind { $($(#[$doc])* $name,)* }

        impl ErrorKind {
            /// The name of the kind, such as `ObjectLost`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

kinds! {
    /// The timeout expired. The object may still appear.
    Timeout,
    /// No copy of the object is left, or too few inputs of a reduce can still arrive.
    ObjectLost,
    /// All nodes with a copy sent bytes that do not match the digest of the put.
    ObjectCorrupt,
    /// The object, or an input of the reduce that produces it, was deleted.
    ObjectDeleted,
    /// An object with this name exists.
    NameTaken,
    /// The store had no capacity or memory for the object within the timeout.
    StoreFull,
    /// Two inputs of a reduce, or an object and the memory for it, differ in dtype or shape.
    ShapeMismatch,
    /// The op of a reduce is unknown.
    UnknownOp,
    /// The dtype is not supported by the store, by the op of a reduce, or by the requested element type.
    UnsupportedDtype,
    /// An argument or setting is not valid.
    InvalidArgument,
    /// The node of this client has closed, failed or does not reply.
    NodeDown,
    /// The client's capability does not permit the call, or the node requires one.
    NotAllowed,
    /// The client was closed.
    ClientClosed,
    /// A client was used in a forked child, which can't attach to the node of its parent.
    ForkedClient,
    /// A node could not join its cluster.
    JoinError,
    /// Another process uses the address or the socket on which a node should listen.
    AddressInUse,
    /// No node serves the socket to which a client should attach.
    ConnectError,
    /// This process or its host denies what the call needs, such as a file within its limit of open files.
    HostError,
    /// A defect in Hoplite, or a call that its host interrupted.
    Internal,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<Box<str>>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An [`ErrorKind::InvalidArgument`].
    pub(crate) fn argument(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::InvalidArgument, message.to_string())
    }

    /// The kind of the error.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.message)
    }
}

impl std::error::Error for Error {}

#[doc(hidden)]
impl From<NodeError> for Error {
    fn from(error: NodeError) -> Self {
        let kind = match &error {
            NodeError::Call(call) => match call {
                CallError::Timeout { .. } => ErrorKind::Timeout,
                CallError::ObjectLost { .. } | CallError::TooFewInputs { .. } => {
                    ErrorKind::ObjectLost
                }
                CallError::ObjectCorrupt { .. } => ErrorKind::ObjectCorrupt,
                CallError::ObjectDeleted { .. } => ErrorKind::ObjectDeleted,
                CallError::NameTaken { .. } => ErrorKind::NameTaken,
                CallError::StoreFull { .. } | CallError::NoMemory { .. } => ErrorKind::StoreFull,
                CallError::ShapeMismatch { .. } => ErrorKind::ShapeMismatch,
                CallError::Unreducible { .. } => ErrorKind::UnsupportedDtype,
                CallError::InvalidArgument(_) => ErrorKind::InvalidArgument,
                CallError::NodeDown(_) => ErrorKind::NodeDown,
                CallError::NotAllowed(_) => ErrorKind::NotAllowed,
                _ => ErrorKind::Internal,
            },
            NodeError::AddressInUse { .. } => ErrorKind::AddressInUse,
            NodeError::Listen { .. }
            | NodeError::Advertise { .. }
            | NodeError::Certificates(_)
            | NodeError::Spill(_) => ErrorKind::InvalidArgument,
            NodeError::Join(_) => ErrorKind::JoinError,
            NodeError::Attach { .. } => ErrorKind::ConnectError,
            NodeError::Closed => ErrorKind::ClientClosed,
            NodeError::Forked => ErrorKind::ForkedClient,
            _ => ErrorKind::Internal,
        };
        let message = error.to_string();
        if message.ends_with(TOO_MANY_FILES) {
            let advice = "close files of this process, or raise its limit with ulimit -n";
            return Self::new(ErrorKind::HostError, format!("{message}: {advice}"));
        }
        Self::new(kind, message)
    }
}

/// The end of a message if the process has reached its limit of descriptors (EMFILE).
const TOO_MANY_FILES: &str = "(os error 24)";

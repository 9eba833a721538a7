//! The result of each function: a code.
//!
//! Knows nothing of the messages, which `errors` keeps.

/// Result of a function. `hoplite_last_error` has the details of every code but `HOPLITE_OK`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The call succeeded.
    Ok = 0,
    /// The timeout passed before the call was over.
    Timeout = 1,
    /// Every copy of the object is gone, or too few inputs of a reduce remain.
    ObjectLost = 2,
    /// The bytes of the object do not match its checksum.
    ObjectCorrupt = 3,
    /// The object was deleted.
    ObjectDeleted = 4,
    /// Another object has this name.
    NameTaken = 5,
    /// The store or a memory limit has no capacity for the object.
    StoreFull = 6,
    /// The dtype or shape is not the expected one, or two inputs of a reduce differ.
    ShapeMismatch = 7,
    /// The reduce operation does not exist.
    UnknownOp = 8,
    /// The operation does not support this dtype.
    UnsupportedDtype = 9,
    /// An argument is not valid; the message names it.
    InvalidArgument = 10,
    /// The node has failed or was closed.
    NodeDown = 11,
    /// The capability of the client does not permit the call.
    NotAllowed = 12,
    /// The client was closed.
    ClientClosed = 13,
    /// The client belongs to an embedded node of the parent process.
    ForkedClient = 14,
    /// The node could not join the cluster.
    JoinError = 15,
    /// Another process listens on the address.
    AddressInUse = 16,
    /// No connection to the node was possible.
    ConnectError = 17,
    /// A handle is stale, was released before, or is of another type.
    InvalidHandle = 18,
    /// The call was cancelled.
    Cancelled = 19,
    /// The queue is empty.
    NotReady = 20,
    /// This process or its host denies what the call needs, such as a file within its limit of open files. The message
    /// states what to do.
    HostError = 21,
    /// A defect in Hoplite. Report it with its message.
    Internal = 99,
}

impl Code {
    /// Returns the code with this number.
    pub(crate) fn of(number: i32) -> Option<Code> {
        CODES.iter().find(|(code, _)| *code as i32 == number).map(|(code, _)| *code)
    }

    /// Returns the name of the constant, as in the header.
    pub(crate) fn name(self) -> &'static std::ffi::CStr {
        CODES.iter().find(|(code, _)| *code == self).map_or(c"", |(_, name)| name)
    }
}

const CODES: [(Code, &std::ffi::CStr); 23] = [
    (Code::Ok, c"HOPLITE_OK"),
    (Code::Timeout, c"HOPLITE_TIMEOUT"),
    (Code::ObjectLost, c"HOPLITE_OBJECT_LOST"),
    (Code::ObjectCorrupt, c"HOPLITE_OBJECT_CORRUPT"),
    (Code::ObjectDeleted, c"HOPLITE_OBJECT_DELETED"),
    (Code::NameTaken, c"HOPLITE_NAME_TAKEN"),
    (Code::StoreFull, c"HOPLITE_STORE_FULL"),
    (Code::ShapeMismatch, c"HOPLITE_SHAPE_MISMATCH"),
    (Code::UnknownOp, c"HOPLITE_UNKNOWN_OP"),
    (Code::UnsupportedDtype, c"HOPLITE_UNSUPPORTED_DTYPE"),
    (Code::InvalidArgument, c"HOPLITE_INVALID_ARGUMENT"),
    (Code::NodeDown, c"HOPLITE_NODE_DOWN"),
    (Code::NotAllowed, c"HOPLITE_NOT_ALLOWED"),
    (Code::ClientClosed, c"HOPLITE_CLIENT_CLOSED"),
    (Code::ForkedClient, c"HOPLITE_FORKED_CLIENT"),
    (Code::JoinError, c"HOPLITE_JOIN_ERROR"),
    (Code::AddressInUse, c"HOPLITE_ADDRESS_IN_USE"),
    (Code::ConnectError, c"HOPLITE_CONNECT_ERROR"),
    (Code::InvalidHandle, c"HOPLITE_INVALID_HANDLE"),
    (Code::Cancelled, c"HOPLITE_CANCELLED"),
    (Code::NotReady, c"HOPLITE_NOT_READY"),
    (Code::HostError, c"HOPLITE_HOST_ERROR"),
    (Code::Internal, c"HOPLITE_INTERNAL"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_of_the_header_has_its_name() {
        let header = include_str!("../../../packages/native/include/hoplite/hoplite.h");
        let declared: BTreeSet<(String, String)> = header
            .lines()
            .filter_map(|line| {
                line.strip_prefix("    HOPLITE_")?.strip_suffix(',')?.split_once(" = ")
            })
            .map(|(name, number)| (format!("HOPLITE_{name}"), number.to_owned()))
            .collect();
        let named = CODES.map(|(code, name)| {
            assert_eq!(Code::of(code as i32), Some(code));
            (name.to_str().unwrap().to_owned(), (code as i32).to_string())
        });
        assert_eq!(declared, BTreeSet::from(named));
    }
}

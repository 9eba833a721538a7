//! Names of the threads and tasks of a node.

use strum::{Display, VariantArray};

/// A thread or task, for the log and for tests that inject a panic into it.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, VariantArray)]
#[repr(u8)]
pub enum Task {
    /// The state machine and its quick actions, on any thread.
    Machine = 1,
    /// Slow actions: memory for large copies, folds of many small inputs.
    SlowActions,
    /// Reports the state machine's deadline.
    Timer,
    /// The thread that receives control messages.
    Control,
    /// Accepts connections of other nodes.
    Listen,
    /// Accepts the handshake of one connection.
    Handshake,
    /// Writes to one member, and reconnects to it.
    Connection,
    /// Writes messages that can wait.
    DeferredWrites,
    /// Reconnects to a lost member.
    Reconnect,
    /// Connects to the configured members.
    SeedRetry,
    /// Re-reads the revocation list.
    Revocation,
    /// Surveys the links of members.
    Survey,
    /// Relays a connection to another member.
    Relay,
    /// Sends over one payload connection.
    Send,
    /// Receives one copy.
    Receive,
    /// Receives the stream of one child of a fold.
    Stream,
    /// Folds one position of a reduce.
    Fold,
    /// Expires permits of stalled transfers.
    Limiter,
    /// Frees memory that no fold has used lately.
    Trim,
    /// Accepts processes of this host.
    Attach,
    /// Serves one attached process.
    Session,
    /// Writes to one attached process that reads slowly.
    ReplyWriter,
    /// Holds the pins of a forked process.
    Fork,
    /// Writes and reads files of objects.
    Disk,
}

impl Task {
    /// All threads and tasks.
    pub const ALL: &'static [Self] = Self::VARIANTS;
}

//! Names of the threads and tasks of a node.

use strum::{Display, VariantArray};

/// A thread or task, for the log and for tests that inject a panic into it.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, VariantArray)]
#[repr(u8)]
pub enum Task {
    /// The state machine and its quick actions, on any thread.
    Machine = 1,
    /// Slow actions: memory for large copies, folds of many small inputs.
    Orders,
    /// Reports the state machine's deadline.
    Timer,
    /// The thread that receives control messages.
    Control,
    /// Accepts connections of other nodes.
    Listen,
    /// Accepts the handshake of one connection.
    Welcome,
    /// Writes to one member, and reconnects to it.
    Redial,
    /// Writes messages that can wait.
    Late,
    /// Reconnects to a lost member.
    Call,
    /// Connects to the configured members.
    Seek,
    /// Re-reads the revocation list.
    Revocation,
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
    Spare,
    /// Accepts processes of this host.
    Attach,
    /// Serves one attached process.
    Session,
    /// Writes to one attached process that reads slowly.
    Answers,
    /// Holds the pins of a forked process.
    Fork,
    /// Writes and reads files of objects.
    Disk,
}

impl Task {
    /// All threads and tasks.
    pub const ALL: &'static [Self] = Self::VARIANTS;
}

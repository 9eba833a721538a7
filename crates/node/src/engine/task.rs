//! The names of the threads and tasks of a node.

use strum::{Display, VariantArray};

/// Which thread or task: for the log, and for tests that plant a panic in it.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, VariantArray)]
#[repr(u8)]
pub enum Task {
    /// The state machine and its quick orders, on whatever thread.
    Machine = 1,
    /// Orders that take a while: memory for large copies, folds of many small inputs.
    Orders,
    /// Tells the machine that its deadline is there.
    Timer,
    /// The thread that takes control messages.
    Control,
    /// Accepts connections of other nodes.
    Listen,
    /// Answers the handshake of one connection.
    Welcome,
    /// Writes to one member, and connects to it again.
    Redial,
    /// Writes messages that could wait.
    Late,
    /// Calls a member that was lost.
    Call,
    /// Calls the members that were named at the start.
    Seek,
    /// Reads the list of revocations again.
    Revocation,
    /// Passes a connection on to a third node.
    Relay,
    /// Sends over one payload connection.
    Send,
    /// Receives one copy.
    Receive,
    /// Receives the stream of one child of a fold.
    Stream,
    /// Folds one position of a reduce.
    Fold,
    /// Takes permits from transfers that receive nothing.
    Limiter,
    /// Gives memory back that no fold has used lately.
    Spare,
    /// Accepts processes of this host.
    Attach,
    /// Serves one attached process.
    Session,
    /// Writes to one attached process that reads slowly.
    Answers,
    /// Keeps the pins of a forked process.
    Fork,
    /// Writes and reads files of objects.
    Disk,
}

impl Task {
    /// All of them.
    pub const ALL: &'static [Self] = Self::VARIANTS;
}

//! Options and results of a simulation, and deliberate errors for testing the checkers.

use hoplite_proto::mutants::Mutant;

/// What to do with the events and actions of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Nothing; the fastest.
    Nothing,
    /// Print one line each.
    Print,
    /// Hash them, to compare two runs.
    Hash,
}

/// A deliberate error that the checkers must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The second block of every transfer belongs to another object.
    ServesOtherBytes,
    /// Replies of directories are lost.
    LosesMessage,
    /// Folds omit an input.
    FoldsLess,
    /// A mutant of the node.
    Node(Mutant),
}

impl Mutation {
    /// The mutant of the node, if any.
    pub(crate) const fn node_mutant(self) -> Option<Mutant> {
        match self {
            Self::Node(bug) => Some(bug),
            Self::ServesOtherBytes | Self::LosesMessage | Self::FoldsLess => None,
        }
    }
}

/// Result of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The finding of a checker, if any.
    pub failure: Option<String>,
    /// Number of events.
    pub events: u64,
    /// Hash of all events, if they were recorded that way.
    pub hash: u64,
}

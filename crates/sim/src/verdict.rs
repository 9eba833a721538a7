//! What is wanted of a simulation, what is done wrong in it on purpose, and how it ended.

use hoplite_proto::planted::Bug;

/// What is to be done with the events and orders of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Nothing, which is fastest.
    Nothing,
    /// Printed, one line each.
    Print,
    /// Hashed, to compare two runs.
    Hash,
}

/// Something that is done wrong on purpose, to see that the checkers notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The second block of every transfer is another object's.
    ServesOtherBytes,
    /// The answers of directories get lost.
    LosesMessage,
    /// Folds leave out an input.
    FoldsLess,
    /// Nodes decide wrongly.
    Planted(Bug),
}

impl Sabotage {
    /// What nodes decide wrongly.
    pub(crate) const fn planted(self) -> Option<Bug> {
        match self {
            Self::Planted(bug) => Some(bug),
            Self::ServesOtherBytes | Self::LosesMessage | Self::FoldsLess => None,
        }
    }
}

/// How a simulation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What a checker found, if one did.
    pub failure: Option<String>,
    /// How much happened.
    pub events: u64,
    /// Of everything that happened, if it was recorded so.
    pub hash: u64,
}

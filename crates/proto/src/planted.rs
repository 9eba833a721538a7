//! Mutations of a node's behavior, to test that the simulator detects them.
//!
//! Without the feature `planted-bugs`, [`has`] is always false and costs nothing. With it, one mutation at a time can
//! be active in the calling thread.

/// A mutation: something that a node does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
pub enum Bug {
    /// A get returns a copy that is still partial.
    AnswersGetsTooEarly,
    /// All epochs of a reduce use the number of the first.
    IgnoresEpochs,
    /// The folds of a failed epoch are not stopped.
    KeepsVoidAttempts,
    /// A failed reduce is not restarted.
    NeverFoldsAgain,
    /// A reduce folds its first input twice.
    FoldsAnInputTwice,
    /// Folds of a dead coordinator continue.
    LeavesFoldsOfTheDead,
    /// Copies are not announced to new owners.
    TellsNewOwnersNothing,
    /// An owner keeps the copies of a failed member as holders.
    KeepsHoldersThatAreGone,
    /// An owner assigns a source that itself waits for the requester.
    NamesDescendants,
    /// An owner grants a name that is taken.
    GrantsNamesTwice,
    /// A copy that is announced after its deletion counts as new.
    ForgetsDeletions,
    /// A new owner confirms a deletion before the holders have had time to announce the object.
    DeletesUnheard,
    /// Requesters of a lost object get no error.
    TellsNobodyOfLosses,
    /// Watchers of an object are not notified when it appears.
    TellsNoWatchers,
    /// A deletion does not reach the copies.
    KeepsDroppedCopies,
    /// A receiver whose source failed requests no other.
    GivesUpAfterOneSender,
    /// Receivers that were assigned to this node too early never get a reply.
    LosesParkedReceivers,
    /// A copy that clients read may be evicted.
    EvictsWhatIsRead,
    /// Deadlines are ignored.
    ForgetsDeadlines,
    /// Failed members are never redialed.
    NeverCallsTheLost,
    /// Objects that wait for capacity stay queued when capacity is free.
    GrantsNoRoomLater,
    /// Messages sent over a connection that broke count as received.
    TrustsBrokenConnections,
    /// A node that was requested to keep a replica counts as if it had one.
    CountsQuestionsAsCopies,
    /// A replica that is lost with its node is not replaced.
    ReplacesNoKeepers,
    /// Of two objects with the same name, an owner keeps the one that it received first.
    KeepsTheFirstOfTwo,
    /// An owner reads an entry in the state before a membership change, until the next slice updates it.
    ReadsWhatIsNotSettled,
    /// A reader that yields to others is never assigned a source.
    ForgetsThoseThatYield,
    /// An owner ignores rate reports.
    IgnoresPaces,
    /// A coordinator ignores reports of positions that wait for a child.
    IgnoresSilentChildren,
    /// An owner does not delete objects after their time to live.
    ForgetsTimes,
    /// A pinned copy whose file could not be written counts as written.
    BelievesFailedWrites,
    /// Leases of a dead member's clients remain.
    KeepsLeasesOfTheDead,
}

impl Bug {
    /// Every mutation.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;
}

/// Whether this mutation is active.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn has(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
pub(crate) use self::planting::has;
#[cfg(feature = "planted-bugs")]
pub use self::planting::plant;

#[cfg(feature = "planted-bugs")]
mod planting {
    extern crate std;

    use core::cell::Cell;

    use super::Bug;

    std::thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Activates a mutation for all nodes of the calling thread; `None` deactivates it.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn has(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

//! Mistakes that are made on purpose, to see that a simulation finds them: test only.
//!
//! Without the feature `planted-bugs` [`has`] is false and costs nothing. With it one mistake at a time can be planted,
//! for the calling thread.

/// Something that a node does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
pub enum Bug {
    /// A get is answered with a copy that is still growing.
    AnswersGetsTooEarly,
    /// All attempts of a reduce go by the number of the first.
    IgnoresEpochs,
    /// What is left of an attempt that has failed is not stopped.
    KeepsVoidAttempts,
    /// A reduce that failed once is not begun again.
    NeverFoldsAgain,
    /// The first input of a reduce is folded twice.
    FoldsAnInputTwice,
    /// Folds of a caller that died go on.
    LeavesFoldsOfTheDead,
    /// New owners are not told of the copies that are here.
    TellsNewOwnersNothing,
    /// An owner keeps the copies of a member that is gone.
    KeepsHoldersThatAreGone,
    /// An owner names a sender that itself waits for the asker.
    NamesDescendants,
    /// An owner grants a name that is taken.
    GrantsNamesTwice,
    /// A copy that comes back after its deletion is taken for a new one.
    ForgetsDeletions,
    /// A new owner answers a deletion before the holders have had their time to tell it of the object.
    DeletesUnheard,
    /// Who waits for what is gone is not told.
    TellsNobodyOfLosses,
    /// Who watches an object is not told that it came.
    TellsNoWatchers,
    /// A deletion does not reach the copies.
    KeepsDroppedCopies,
    /// When a sender is lost no other is sought.
    GivesUpAfterOneSender,
    /// Receivers that were sent here too early are never answered.
    LosesParkedReceivers,
    /// What clients read may be evicted.
    EvictsWhatIsRead,
    /// Deadlines pass unnoticed.
    ForgetsDeadlines,
    /// Members that were lost are not called again.
    NeverCallsTheLost,
    /// What waits for room is not looked at again when there is some.
    GrantsNoRoomLater,
    /// What was said over a connection that broke counts as heard.
    TrustsBrokenConnections,
    /// A node that was asked to keep an object counts as if it did.
    CountsQuestionsAsCopies,
    /// No node takes the place of a member that kept an object and is gone.
    ReplacesNoKeepers,
    /// Of two objects that were put under one name an owner keeps the one that it heard of first.
    KeepsTheFirstOfTwo,
    /// An owner looks at an entry as it was before the members changed, until the next slice brings it up to date.
    ReadsWhatIsNotSettled,
    /// A node that lets others go first is never given a sender.
    ForgetsThoseThatYield,
    /// An owner hears nothing of how fast objects come.
    IgnoresPaces,
    /// A coordinator hears nothing of positions that wait for a child.
    IgnoresSilentChildren,
    /// An owner does not end what has had its time.
    ForgetsTimes,
    /// An original whose file could not be written counts as written.
    BelievesFailedWrites,
    /// Leases that clients of a dead member had taken count as taken.
    KeepsLeasesOfTheDead,
}

impl Bug {
    /// All of them.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;
}

/// Whether this mistake is to be made.
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

    /// Has all nodes of the calling thread make this mistake from now on, or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn has(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

//! Mutations of a node's behavior, to test that the simulator detects them.
//!
//! Without the feature `node_mutant-bugs`, [`is_active`] is always false and costs nothing. With
//! it, one mutation at a time can be active in the calling thread.

/// A mutation: something that a node does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
pub enum Mutant {
    /// A get returns a copy that is still partial.
    RepliesTooEarly,
    /// All epochs of a reduce use the number of the first.
    IgnoresEpochs,
    /// The folds of a failed epoch are not stopped.
    KeepsAbortedEpochs,
    /// A failed reduce is not restarted.
    NeverRestartsReduces,
    /// A reduce folds its first input twice.
    FoldsInputTwice,
    /// Folds of a dead coordinator continue.
    KeepsFoldsOfFailedNodes,
    /// Copies are not announced to new owners.
    NeverReannounces,
    /// An owner keeps the copies of a failed member as holders.
    KeepsFailedHolders,
    /// An owner assigns a source that itself waits for the requester.
    AssignsDescendants,
    /// An owner grants a name that is taken.
    GrantsNamesTwice,
    /// A copy that is announced after its deletion counts as new.
    ForgetsDeletions,
    /// A new owner confirms a deletion before the holders have had time to announce the object.
    DeletesBeforeReannouncement,
    /// Requesters of a lost object get no error.
    NeverReportsLosses,
    /// Watchers of an object are not notified when it appears.
    NeverNotifiesWatchers,
    /// A deletion does not reach the copies.
    KeepsDroppedCopies,
    /// A receiver whose source failed requests no other.
    GivesUpAfterOneSource,
    /// Receivers that were assigned to this node too early never get a reply.
    LosesParkedReceivers,
    /// A copy that clients read may be evicted.
    EvictsCopiesInUse,
    /// Deadlines are ignored.
    ForgetsDeadlines,
    /// Failed members are never redialed.
    NeverReconnects,
    /// Objects that wait for capacity stay queued when capacity is free.
    NeverAdmitsWaiting,
    /// Messages sent over a connection that broke count as received.
    TrustsBrokenConnections,
    /// A node that was requested to keep a replica counts as if it had one.
    CountsRequestedReplicas,
    /// A replica that is lost with its node is not replaced.
    NeverReplacesReplicas,
    /// Of two objects with the same name, an owner keeps the first that it received.
    KeepsFirstAnnounced,
    /// An owner reads an entry in the state before a membership change, until the next slice
    /// updates it.
    ReadsStaleEntries,
    /// A reader that yields to others is never assigned a source.
    NeverServesYielding,
    /// An owner ignores rate reports.
    IgnoresRateReports,
    /// A coordinator ignores reports of positions that wait for a child.
    IgnoresStalledChildren,
    /// An owner does not delete objects after their time to live.
    IgnoresExpiry,
    /// A pinned copy whose file could not be written counts as written.
    IgnoresWriteErrors,
    /// Leases of a dead member's clients remain.
    KeepsLeasesOfFailedNodes,
    /// A copy counts as complete although its digest is wrong.
    IgnoresDigests,
    /// A copy counts as corrupt at all holders once one has sent wrong bytes.
    GivesUpAfterOneCorruptCopy,
    /// Sources that send corrupt blocks are not avoided.
    TrustsCorruptSources,
    /// A member that is barred remains one.
    KeepsRevokedMembers,
    /// The copies that a forked child reads are not pinned for it.
    IgnoresForks,
}

impl Mutant {
    /// Every mutation.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;
}

/// Whether this mutation is active.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn is_active(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
pub use self::active::activate;
#[cfg(feature = "mutants")]
pub(crate) use self::active::is_active;

#[cfg(feature = "mutants")]
mod active {
    extern crate std;

    use core::cell::Cell;

    use super::Mutant;

    std::thread_local! {
        static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Activates a mutation for all nodes of the calling thread; `None` deactivates it.
    pub fn activate(bug: Option<Mutant>) {
        PLANTED.set(bug);
    }

    pub(crate) fn is_active(bug: Mutant) -> bool {
        PLANTED.get() == Some(bug)
    }
}

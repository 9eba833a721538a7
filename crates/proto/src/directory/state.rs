//! What the directory of a node knows, and what of it ends when.
//!
//! Knows nothing of messages: other files take them, each a kind.

use alloc::{
    collections::{BTreeSet, VecDeque},
    string::String,
    vec::Vec,
};

use super::{
    accounts::{Accounts, Charge},
    entries::{Entries, Slice},
    leases::Leases,
    speeds::Speeds,
    world::World,
};
use crate::{
    id::{Instance, NodeId, ObjectId, RequestId},
    limits::{ENTRIES_MAX, MERGE_NS, ORPHAN_GRACE_NS, STRAY_NS},
    members::Members,
    message::Announce,
    time::Instant,
};

/// The entries this node keeps as first or second owner.
#[derive(Debug)]
pub struct Directory {
    pub(super) entries: Entries,
    /// Who waits for a newer name under a prefix.
    pub(super) latest: Vec<LatestWaiter>,
    /// When something has to be looked at again: orphans to give up, entries that others own.
    pub(super) alarms: BTreeSet<(Instant, ObjectId)>,
    /// Deletions and losses, oldest first, and until when they are remembered.
    pub(super) remembered: VecDeque<(Instant, ObjectId)>,
    /// How long entries are kept that others own, as this node sees the members.
    pub(super) stray_ns: u64,
    /// Members had given this node up, and tell it from then, and until then, what happened meanwhile.
    pub(super) catching_up_since: Instant,
    pub(super) catching_up_until: Instant,
    /// When members changed last, so that this node may own what its holders have not told it of.
    pub(super) changed_at: Option<Instant>,
    /// Members were met again, and may not have told everything before then.
    pub(super) merging_until: Instant,
    /// Announcements of other instances than those that are known here, which wait until then.
    pub(super) parked: Vec<Parked>,
    /// What the bytes of small objects cost the members that told them.
    pub(super) accounts: Accounts,
    /// Limits that have turned away what members said since this was last asked.
    pub(super) limited: Vec<(NodeId, &'static str)>,
    /// How fast nodes are.
    pub(super) speeds: Speeds,
    /// For which reasons objects live on.
    pub(super) leases: Leases,
    /// How much of a change of members is worked off in one go, and when the next of it is.
    pub(super) slice: Slice,
    pub(super) next_slice_at: Instant,
    /// When the rest of what is due is looked at: after a change of members that may be as much as there is.
    pub(super) resumed_at: Instant,
}

impl Default for Directory {
    fn default() -> Self {
        Self::new(None, Slice::default(), u64::MAX)
    }
}

/// An announcement that waits, since what it is of may have been deleted meanwhile.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) from: NodeId,
    pub(super) announce: Announce,
    _charge: Option<Charge>,
}

impl Parked {
    pub(super) const fn new(from: NodeId, announce: Announce, charge: Option<Charge>) -> Self {
        Self { from, announce, _charge: charge }
    }

    pub(super) fn is(&self, from: NodeId, instance: Instance) -> bool {
        (self.from, self.announce.instance) == (from, instance)
    }
}

/// Who waits for a newer name under a prefix.
#[derive(Debug)]
pub(super) struct LatestWaiter {
    pub(super) node: NodeId,
    pub(super) request: RequestId,
    pub(super) prefix: String,
    pub(super) after: Option<u64>,
}

impl Directory {
    /// One that knows nothing. `detection_ns`: for how long members may take one for alive whose end others know of.
    /// `small`: how many bytes of small objects of other members there is room for.
    pub fn new(detection_ns: Option<u64>, slice: Slice, small: u64) -> Self {
        let stray_ns = detection_ns.unwrap_or(0).saturating_mul(2).max(STRAY_NS);
        Self {
            entries: Entries::default(),
            slice,
            next_slice_at: Instant::default(),
            resumed_at: Instant::default(),
            latest: Vec::new(),
            alarms: BTreeSet::new(),
            remembered: VecDeque::new(),
            stray_ns,
            changed_at: None,
            catching_up_since: Instant::default(),
            catching_up_until: Instant::default(),
            merging_until: Instant::default(),
            parked: Vec::new(),
            accounts: Accounts::new(small, ENTRIES_MAX),
            limited: Vec::new(),
            speeds: Speeds::default(),
            leases: Leases::default(),
        }
    }

    /// A member had given this node up. What is known here may be old: names that were deleted and put again. Until the
    /// others have told of that, no instance is refused for another.
    pub fn catch_up(&mut self, now: Instant) {
        if self.catching_up_until <= now {
            self.catching_up_since = now;
        }
        // However many say so one after the other, claims of names are answered some time.
        self.catching_up_until = (now + ORPHAN_GRACE_NS).min(self.catching_up_since + MERGE_NS);
    }

    /// A member that was lost, or is taken for a new one, tells everything again. What others lack until then is not lost.
    pub fn merge(&mut self, now: Instant) {
        self.merging_until = now + MERGE_NS;
    }

    /// When what has no holder since then counts as lost.
    pub(super) fn lost_at(&self, since: Instant) -> Instant {
        (since + ORPHAN_GRACE_NS).max(self.merging_until.min(since + MERGE_NS))
    }

    /// The node of this directory has measured how fast it receives.
    pub const fn set_usual_rate(&mut self, usual: Option<u64>) {
        self.speeds.usual = usual;
    }

    /// Starts the grace after which those who wait are told of the loss, if no node is left that could have it.
    pub(super) fn check_orphan(&mut self, now: Instant, id: &ObjectId, members: &Members) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.check_orphan(now, id, members, &mut self.alarms);
        }
    }

    /// What is told to a node that is no owner was said before a change of members that the sender does not know of
    /// yet, or after one that this node does not know of. The first is told again elsewhere and forgotten here.
    pub(super) fn keep_for_a_while(&mut self, world: &World<'_>, id: &ObjectId) {
        let (now, members) = (world.now, world.members);
        if !members.owners(id).contains(members.me())
            && let Some(entry) = self.entries.get_mut(id)
        {
            entry.kept_until = now + self.stray_ns;
            self.alarms.insert((entry.kept_until, id.clone()));
        }
    }

    pub(super) fn forget_if_empty(&mut self, id: &ObjectId) {
        if self.entries.get(id).is_some_and(|entry| entry.is_empty()) {
            self.entries.remove(id);
        }
    }
}

//! The state of the directory of one node, and its deadlines.
//!
//! Does not know messages: other files handle them, one kind each.

use alloc::{
    collections::{BTreeSet, VecDeque},
    vec::Vec,
};

use super::{
    accounts::{Accounts, Charge, RecordedObjects},
    context::Context,
    entries::{Entries, Slice},
    entry::Entry,
    leases::Leases,
    questions::OpenQuestions,
    speeds::Speeds,
    versions::Versions,
};
use crate::{
    id::{Instance, NodeId, ObjectId},
    limits::{ENTRIES_MAX, MERGE_NS, ORPHAN_GRACE_NS, STRAY_NS},
    members::Members,
    message::Announce,
    time::Instant,
};

/// The entries that this node stores as primary or backup owner, and what they share.
#[derive(Debug)]
pub struct Directory {
    pub(super) entries: Entries,
    /// Where each open question is.
    pub(super) asked: OpenQuestions,
    /// Names that end in a number, by prefix.
    pub(super) versions: Versions,
    /// When to look at an entry again, for example to declare an orphan lost or to remove an entry
    /// that other nodes own.
    pub(super) alarms: BTreeSet<(Instant, ObjectId)>,
    /// Deletions and losses, oldest first, each with the time until which it is remembered.
    pub(super) remembered: VecDeque<(Instant, ObjectId)>,
    /// How long entries are kept that other nodes own according to this node's membership view.
    pub(super) stray_ns: u64,
    /// Since when, and until when, members that had declared this node dead send what happened
    /// meanwhile.
    pub(super) catching_up_since: Instant,
    pub(super) catching_up_until: Instant,
    /// When membership last changed. After that, this node may own objects whose holders have not
    /// announced them yet.
    pub(super) changed_at: Option<Instant>,
    /// Until when members that were met again may still have copies to announce.
    pub(super) merging_until: Instant,
    /// Announcements of instances that differ from the recorded ones. They wait until
    /// `catching_up_until` and `parked_until`.
    pub(super) parked: Vec<Parked>,
    pub(super) parked_until: Instant,
    /// Memory that each member uses here for the bytes of small objects, and the entries of its
    /// objects.
    pub(super) accounts: Accounts,
    /// The number of live objects and of those whose loss is not reported yet.
    pub(super) recorded: RecordedObjects,
    /// Limits that rejected input of a member since the last [`Directory::take_limited`].
    pub(super) limited: Vec<(NodeId, &'static str)>,
    /// Which nodes are slow, stalled or busy.
    pub(super) speeds: Speeds,
    /// Leases: reasons for which objects stay alive.
    pub(super) leases: Leases,
    /// How many due entries one event handles.
    pub(super) slice: Slice,
    /// When to continue with due alarms. After a membership change all entries may be due.
    pub(super) resumed_at: Instant,
}

impl Default for Directory {
    fn default() -> Self {
        Self::new(None, Slice::default(), u64::MAX)
    }
}

/// An announcement that waits, because its object may have been deleted meanwhile.
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

impl Directory {
    /// Creates an empty directory. `detection_ns`: how long a member may count a node as alive
    /// after others have detected its failure. `inline`: capacity in bytes for the small objects of
    /// other members.
    pub fn new(detection_ns: Option<u64>, slice: Slice, inline: u64) -> Self {
        let stray_ns = detection_ns.unwrap_or(0).saturating_mul(2).max(STRAY_NS);
        Self {
            entries: Entries::default(),
            slice,
            resumed_at: Instant::default(),
            asked: OpenQuestions::default(),
            versions: Versions::default(),
            alarms: BTreeSet::new(),
            remembered: VecDeque::new(),
            stray_ns,
            changed_at: None,
            catching_up_since: Instant::default(),
            catching_up_until: Instant::default(),
            merging_until: Instant::default(),
            parked: Vec::new(),
            parked_until: Instant::default(),
            accounts: Accounts::new(inline, ENTRIES_MAX),
            recorded: RecordedObjects::default(),
            limited: Vec::new(),
            speeds: Speeds::default(),
            leases: Leases::default(),
        }
    }

    /// A member had declared this node dead. What is recorded here may be outdated: names may have
    /// been deleted and put again. Until the others have reported that, no instance is refused in
    /// favor of another.
    pub fn catch_up(&mut self, now: Instant) {
        if self.catching_up_until <= now {
            self.catching_up_since = now;
        }
        // Bounded, so that claims of names get a reply however often members report this.
        self.catching_up_until = (now + ORPHAN_GRACE_NS).min(self.catching_up_since + MERGE_NS);
    }

    /// A member that was lost, or counts as new, announces everything again. Until then, missing
    /// copies do not count as lost.
    pub fn merge(&mut self, now: Instant) {
        self.merging_until = now + MERGE_NS;
    }

    /// Until when holders may not have announced their copies here, because membership has changed.
    pub(super) fn unsettled_until(&self, now: Instant) -> Option<Instant> {
        self.changed_at.map(|changed| changed + ORPHAN_GRACE_NS).filter(|until| now < *until)
    }

    /// When an object counts as lost that has no holder. If this owner has not known one, a holder
    /// with very many objects may announce it late.
    pub(super) fn lost_at(&self, id: &ObjectId, entry: &Entry) -> Option<Instant> {
        let since = entry.orphan_since?;
        let longest = since + MERGE_NS;
        if entry.is_unrecorded_name(id) || entry.live.as_ref().is_some_and(|live| !live.was_fed) {
            return Some(longest);
        }
        Some((since + ORPHAN_GRACE_NS).max(self.merging_until.min(longest)))
    }

    /// Sets the rate at which this node has measured that it receives.
    pub const fn set_usual_rate(&mut self, usual: Option<u64>) {
        self.speeds.usual = usual;
    }

    /// Starts the grace period before the loss is reported to requesters, if no remaining node can
    /// have the object.
    pub(super) fn check_orphan(&mut self, now: Instant, id: &ObjectId, members: &Members) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.check_orphan(now, id, members, &mut self.alarms);
        }
    }

    /// The same for a name that is not recorded here ([`Entry::check_unrecorded`]).
    pub(super) fn check_unrecorded(&mut self, now: Instant, id: &ObjectId, members: &Members) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.check_unrecorded(now, id, members, &mut self.alarms);
        }
    }

    /// Keeps an entry for a while if this node is not its owner. Its sender may not know of a
    /// membership change yet: then it sends the message again to the new owners, and the entry
    /// expires here. Or this node does not know of a change yet, and is the new owner.
    pub(super) fn keep_as_stray(&mut self, context: &Context<'_>, id: &ObjectId) {
        let (now, members) = (context.now, context.members);
        if !members.owners(id).contains(members.me())
            && let Some(entry) = self.entries.get_mut(id)
        {
            entry.stray_until = now + self.stray_ns;
            self.alarms.insert((entry.stray_until, id.clone()));
        }
    }

    pub(super) fn forget_if_empty(&mut self, id: &ObjectId) {
        if self.entries.get(id).is_some_and(|entry| entry.is_empty()) {
            self.remove_entry(id);
        }
    }

    /// Removes an entry with its questions.
    pub(super) fn remove_entry(&mut self, id: &ObjectId) {
        if let Some(mut entry) = self.entries.remove(id) {
            entry.close_everything(&mut self.asked);
            self.versions.remove(id);
        }
    }
}

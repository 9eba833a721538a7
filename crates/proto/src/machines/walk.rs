//! The walks after a membership change, or after an owner became unresponsive: how far they have
//! come through the state that other nodes hold, and for which changes.
//!
//! ```text
//!                 +--- what came meanwhile, as one ----+            +- what came meanwhile -+
//!                 v                                    |            v                       |
//!   change --> names --> leases --> what waits --> replicas --> copies and entries --> (applied)
//! ```
//! The first walk is short, and each change gets one at once. The second one, through the objects,
//! begins when the first is over. One event visits a slice, which is for both walks if both go on:
//! neither may a lease end nor a request stall because very many objects come first, and changes
//! without end must not keep an owner from what it owns. Whatever begins during a walk is sent to
//! the present owners anyway. Does not know what a visit does.

use alloc::{sync::Arc, vec::Vec};

use crate::{
    directory::Slice,
    id::{Instance, Name, ObjectId, QuestionId},
    lifetime::Lease,
    machines::{membership_change::MembershipChange, world::World},
    time::Instant,
};

/// Progress of the walks.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Through everything but the objects.
    first: Lap<Stage>,
    /// Through the objects.
    objects: Lap<Option<ObjectId>>,
    /// Whether a change came since the last slice.
    has_news: bool,
    /// When the next slice is due.
    next_at: Instant,
}

/// A walk through one part of the state.
#[derive(Debug, Default)]
struct Lap<At> {
    /// What it applies, if there is one, and what has changed since it began.
    change: Option<Arc<MembershipChange>>,
    later: Option<Arc<MembershipChange>>,
    /// What was visited last.
    at: At,
}

impl<At: Default + Ord> Lap<At> {
    fn note(&mut self, change: MembershipChange) {
        let is_new = self.at == At::default();
        let pending = if is_new { &mut self.change } else { &mut self.later };
        match pending {
            Some(pending) => Arc::make_mut(pending).merge(change),
            None => *pending = Some(Arc::new(change)),
        }
    }

    /// The changes that are not applied at this point yet, oldest first.
    fn pending(&self, at: &At) -> impl Iterator<Item = Arc<MembershipChange>> {
        let change = self.change.iter().filter(|_| self.at < *at);
        change.chain(&self.later).cloned()
    }

    /// Ends the walk, and begins the next one if there were changes meanwhile. Returns what is
    /// applied now.
    fn end(&mut self) -> Option<MembershipChange> {
        self.at = At::default();
        let over = core::mem::replace(&mut self.change, self.later.take());
        over.map(Arc::unwrap_or_clone)
    }
}

/// A point of a walk: one kind of state, in the order of the visits, and the last key of it that
/// was visited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Names that are reserved.
    Names(Option<ObjectId>),
    /// Leases of clients of this node, and those that this node owns.
    Leases(Option<Lease>),
    /// Jobs that have objects in this shard of the directory.
    Jobs(Option<Name>),
    /// Objects that arrive.
    Pulls(Option<ObjectId>),
    Puts(Option<Instance>),
    /// Questions to owners and members.
    Questions(Option<QuestionId>),
    /// Objects that other nodes replicate for this one.
    Replicas(Option<Instance>),
    /// The second walk: copies of this node, and entries of its shard.
    Objects(Option<ObjectId>),
}

impl Default for Stage {
    fn default() -> Self {
        Self::Names(None)
    }
}

impl Stage {
    /// Whether it concerns requests that wait for an owner to reply.
    const fn is_request(&self) -> bool {
        matches!(self, Self::Questions(_))
    }

    /// The next kind of state in the first walk.
    fn next(&self) -> Option<Self> {
        Some(match self {
            Self::Names(_) => Self::Leases(None),
            Self::Leases(_) => Self::Jobs(None),
            Self::Jobs(_) => Self::Pulls(None),
            Self::Pulls(_) => Self::Puts(None),
            Self::Puts(_) => Self::Questions(None),
            Self::Questions(_) => Self::Replicas(None),
            Self::Replicas(_) | Self::Objects(_) => return None,
        })
    }
}

impl Walk {
    /// When the next slice is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let is_over = self.first.change.is_none() && self.objects.change.is_none();
        (!is_over).then_some(self.next_at)
    }

    /// Adds a membership change, which affects everything.
    pub(crate) fn note(&mut self, change: MembershipChange) {
        self.first.note(change);
        self.has_news = true;
    }

    /// Visits all requests to owners, since one has become unresponsive. A walk for a change does
    /// so too.
    pub(crate) fn note_unresponsive(&mut self, world: &World, number: u32) {
        let Lap { change, later, at } = &self.first;
        if later.is_none() && (change.is_none() || *at != Stage::default()) {
            let members = world.members().clone();
            self.first.note(MembershipChange::of_replies(members, number));
        }
        self.has_news = true;
    }

    /// Whether a change came since the last slice.
    pub(crate) const fn has_news(&self) -> bool {
        self.has_news
    }

    /// The changes that are not applied yet to what `point` names, oldest first.
    pub(crate) fn pending(&self, point: &Stage) -> Vec<Arc<MembershipChange>> {
        let objects = match point {
            Stage::Objects(id) => Some(self.objects.pending(id)),
            _ => None,
        };
        objects.into_iter().flatten().chain(self.first.pending(point)).collect()
    }

    /// What to visit next in the first walk, and the changes to apply to it.
    pub(crate) fn current(&self) -> Option<(Stage, Arc<MembershipChange>)> {
        Some((self.first.at.clone(), self.first.change.clone()?))
    }

    /// The same in the walk through the objects.
    pub(crate) fn current_object(&self) -> Option<(Stage, Arc<MembershipChange>)> {
        Some((Stage::Objects(self.objects.at.clone()), self.objects.change.clone()?))
    }

    /// Records a visit.
    pub(crate) fn visited(&mut self, stage: Stage) {
        match stage {
            Stage::Objects(id) => self.objects.at = id,
            stage => self.first.at = stage,
        }
    }

    /// Continues with the next kind of state in the first walk.
    pub(crate) fn next_stage(&mut self) {
        let is_for_all = self.first.change.as_ref().is_some_and(|change| change.is_of_members());
        while let Some(next) = self.first.at.next() {
            self.first.at = next;
            if is_for_all || self.first.at.is_request() {
                return;
            }
        }
        if let Some(change) = self.first.end().filter(MembershipChange::is_of_members) {
            self.objects.note(change);
        }
    }

    /// Ends the walk through the objects. Returns the number of the change that is applied
    /// everywhere now.
    pub(crate) fn end_objects(&mut self) -> Option<u32> {
        self.objects.end().map(|change| change.number)
    }

    /// The work of one event in the first walk, and in the one through the objects, which is for
    /// the other one if it ends.
    pub(crate) fn slices(&self, world: &World) -> (usize, usize) {
        let all = world.config().slice.entries;
        match (&self.first.change, &self.objects.change) {
            (Some(_), Some(_)) => (all.div_ceil(2), (all / 2).max(1)),
            _ => (all, 0),
        }
    }

    /// How many visits one event makes.
    pub(crate) fn slice(world: &World) -> usize {
        world.config().slice.of(world.members())
    }

    /// Schedules the next slice.
    pub(crate) fn pause(&mut self, world: &World) {
        let Slice { pause_ns, .. } = world.config().slice;
        (self.next_at, self.has_news) = (world.now() + pause_ns, false);
    }
}

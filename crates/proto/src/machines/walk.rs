//! The walks after a membership change, or after an owner became unresponsive: how far they have
//! come through the state that other nodes hold, and for which changes.
//!
//! ```text
//!                 +--- what came meanwhile, as one ----+            +- what came meanwhile -+
//!                 v                                    |            v                       |
//!   change --> names --> leases --> what waits --> replicas --> copies and entries --> (applied)
//! ```
//! The first walk is short, and each change gets one at once. The second one, through the objects,
//! begins when the first is over. An owner that becomes unresponsive has a walk through the
//! questions alone. One event visits a slice, which is for all walks that go on: neither may a
//! lease end nor a request stall because very many objects come first, and changes without end
//! must not keep an owner from what it owns. Whatever begins during a walk is sent to the present
//! owners anyway. Does not know what a visit does.

use alloc::{sync::Arc, vec::Vec};

use crate::{
    id::{Instance, Name, ObjectId, QuestionId},
    lifetime::Lease,
    machines::{membership_change::MembershipChange, world::World},
    time::Instant,
};

/// Progress of the walks.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Through the questions, since an owner has become unresponsive.
    replies: Lap<Option<QuestionId>>,
    /// Through everything but the objects.
    first: Lap<Stage>,
    /// Through the objects.
    objects: Lap<Option<ObjectId>>,
    /// Whether a change came since the last slice.
    has_news: bool,
    /// When the next slice is due.
    next_at: Instant,
}

/// One of the walks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Replies,
    First,
    Objects,
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
        let changes = [&self.replies.change, &self.first.change, &self.objects.change];
        changes.into_iter().any(Option::is_some).then_some(self.next_at)
    }

    /// Adds a membership change, which affects everything.
    pub(crate) fn note(&mut self, change: MembershipChange) {
        self.first.note(change);
        self.has_news = true;
    }

    /// Visits all questions, since an owner has become unresponsive. Very many may at once.
    pub(crate) fn note_unresponsive(&mut self, world: &World) {
        let Lap { change, later, at } = &self.replies;
        if later.is_none() && (change.is_none() || at.is_some()) {
            self.replies.note(MembershipChange::new(world.members().clone(), None));
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

    /// What a walk visits next, and the changes to apply to it.
    pub(crate) fn current(&self, part: Part) -> Option<(Stage, Arc<MembershipChange>)> {
        Some(match part {
            Part::Replies => (Stage::Questions(self.replies.at), self.replies.change.clone()?),
            Part::First => (self.first.at.clone(), self.first.change.clone()?),
            Part::Objects => {
                (Stage::Objects(self.objects.at.clone()), self.objects.change.clone()?)
            }
        })
    }

    /// Records a visit.
    pub(crate) fn visited(&mut self, part: Part, stage: Stage) {
        match (part, stage) {
            (Part::Replies, Stage::Questions(number)) => self.replies.at = number,
            (_, Stage::Objects(id)) => self.objects.at = id,
            (_, stage) => self.first.at = stage,
        }
    }

    /// Continues with the next kind of state. Returns the number of the change that is applied
    /// everywhere now, if one is.
    pub(crate) fn next_stage(&mut self, part: Part) -> Option<u32> {
        match part {
            Part::Replies => drop(self.replies.end()),
            Part::First => match self.first.at.next() {
                Some(next) => self.first.at = next,
                None => self.first.end().into_iter().for_each(|it| self.objects.note(it)),
            },
            Part::Objects => return self.objects.end().map(|change| change.number),
        }
        None
    }

    /// Schedules the next slice.
    pub(crate) fn pause(&mut self, world: &World) {
        (self.next_at, self.has_news) = (world.now() + world.config().slice.pause_ns, false);
    }
}

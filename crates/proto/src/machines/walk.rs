//! The walks after a membership change, or after an owner became unresponsive: how far they have
//! come through the state that other nodes hold, and for which changes.
//!
//! ```text
//!   change, or an unresponsive owner --> questions
//!
//!             +------ what came meanwhile, as one -------+            +- what came meanwhile -+
//!             v                                          |            v                       |
//!   change --> names --> leases --> pulls, puts --> replicas --> copies and entries --> (applied)
//! ```
//! The first two walks are short, and each change gets them at once: one through the questions, and
//! one through the rest of what is small. The one through the objects begins when the second is
//! over. One event visits a slice, which is for all walks that go on: neither may a lease end nor a
//! request stall because very many objects come first, and changes without end must not keep an
//! owner from what it owns. Whatever begins during a walk is sent to the present owners anyway.
//! Does not know what a visit does.

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
    /// Through the questions.
    questions: Lap<Option<QuestionId>>,
    /// Through everything but the questions and the objects.
    small: Lap<Stage>,
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
    Questions,
    Small,
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
    fn note(&mut self, change: Arc<MembershipChange>) {
        let is_new = self.at == At::default();
        let pending = if is_new { &mut self.change } else { &mut self.later };
        match pending {
            Some(pending) => Arc::make_mut(pending).merge(&change),
            None => *pending = Some(change),
        }
    }

    /// The changes that are not applied at this point yet, oldest first.
    fn pending(&self, at: &At) -> impl Iterator<Item = Arc<MembershipChange>> {
        let change = self.change.iter().filter(|_| self.at < *at);
        change.chain(&self.later).cloned()
    }

    /// Ends the walk, and begins the next one if there were changes meanwhile. Returns what is
    /// applied now.
    fn end(&mut self) -> Option<Arc<MembershipChange>> {
        self.at = At::default();
        core::mem::replace(&mut self.change, self.later.take())
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
    /// Objects that other nodes replicate for this one.
    Replicas(Option<Instance>),
    /// A walk of its own: copies of this node, and entries of its shard.
    Objects(Option<ObjectId>),
    /// A walk of its own: questions to owners and members.
    Questions(Option<QuestionId>),
}

impl Default for Stage {
    fn default() -> Self {
        Self::Names(None)
    }
}

impl Stage {
    /// The next kind of state in the walk through what is small.
    fn next(&self) -> Option<Self> {
        Some(match self {
            Self::Names(_) => Self::Leases(None),
            Self::Leases(_) => Self::Jobs(None),
            Self::Jobs(_) => Self::Pulls(None),
            Self::Pulls(_) => Self::Puts(None),
            Self::Puts(_) => Self::Replicas(None),
            Self::Replicas(_) | Self::Objects(_) | Self::Questions(_) => return None,
        })
    }
}

impl Walk {
    /// When the next slice is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let changes = [&self.questions.change, &self.small.change, &self.objects.change];
        changes.into_iter().any(Option::is_some).then_some(self.next_at)
    }

    /// Adds a membership change, which affects everything.
    pub(crate) fn note(&mut self, change: MembershipChange) {
        let change = Arc::new(change);
        self.questions.note(change.clone());
        self.small.note(change);
        self.has_news = true;
    }

    /// Visits all questions, since an owner has become unresponsive. Very many may become so at
    /// once.
    pub(crate) fn note_unresponsive(&mut self, world: &World) {
        let Lap { change, later, at } = &self.questions;
        if later.is_none() && (change.is_none() || at.is_some()) {
            self.questions.note(MembershipChange::new(world.members().clone(), None).into());
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
        objects.into_iter().flatten().chain(self.small.pending(point)).collect()
    }

    /// What a walk visits next, and the changes to apply to it.
    pub(crate) fn current(&self, part: Part) -> Option<(Stage, Arc<MembershipChange>)> {
        Some(match part {
            Part::Questions => {
                (Stage::Questions(self.questions.at), self.questions.change.clone()?)
            }
            Part::Small => (self.small.at.clone(), self.small.change.clone()?),
            Part::Objects => {
                (Stage::Objects(self.objects.at.clone()), self.objects.change.clone()?)
            }
        })
    }

    /// Records a visit.
    pub(crate) fn visited(&mut self, stage: Stage) {
        match stage {
            Stage::Questions(number) => self.questions.at = number,
            Stage::Objects(id) => self.objects.at = id,
            stage => self.small.at = stage,
        }
    }

    /// Continues with the next kind of state. Returns the number of the change that is applied
    /// everywhere now, if one is.
    pub(crate) fn next_stage(&mut self, part: Part) -> Option<u32> {
        match part {
            Part::Questions => drop(self.questions.end()),
            Part::Small => match self.small.at.next() {
                Some(next) => self.small.at = next,
                None => self.small.end().into_iter().for_each(|it| self.objects.note(it)),
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

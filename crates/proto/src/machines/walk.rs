//! The walk after a membership change: how far it has come through the state that other nodes hold, and for which changes.
//!
//! ```text
//!   change --> names reserved --> leases --> what waits for an owner --> replicas --> copies and entries --> (over)
//!                 ^                                                                            |
//!                 +------------------- changes that came meanwhile, as one --------------------+
//! ```
//! One event visits a slice. The order matters: an object must not reach a new owner before the reservation of its name,
//! and no lease may end because it is reported after very many objects. Whatever begins during a walk is sent to the
//! present owners anyway. Does not know what a visit does.

use alloc::sync::Arc;

use crate::{
    directory::Slice,
    id::{Instance, Name, ObjectId, QuestionId},
    lifetime::Lease,
    machines::{membership_change::MembershipChange, world::World},
    time::Instant,
};

/// Progress of the walk.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// What the walk applies, if there is one, and what has changed since it began.
    change: Option<Arc<MembershipChange>>,
    later: Option<Arc<MembershipChange>>,
    stage: Stage,
    /// When the next slice is due.
    next_at: Instant,
}

/// What the walk visits next: one kind of state, and the last key of it that was visited.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Copies of this node, and entries of its shard.
    Objects(Option<ObjectId>),
}

impl Default for Stage {
    fn default() -> Self {
        Self::Names(None)
    }
}

impl Stage {
    fn next(&self) -> Option<Self> {
        Some(match self {
            Self::Names(_) => Self::Leases(None),
            Self::Leases(_) => Self::Jobs(None),
            Self::Jobs(_) => Self::Pulls(None),
            Self::Pulls(_) => Self::Puts(None),
            Self::Puts(_) => Self::Questions(None),
            Self::Questions(_) => Self::Replicas(None),
            Self::Replicas(_) => Self::Objects(None),
            Self::Objects(_) => return None,
        })
    }
}

impl Walk {
    /// When the next slice is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.change.is_some().then_some(self.next_at)
    }

    /// Adds a membership change, which affects everything.
    pub(crate) fn note(&mut self, change: MembershipChange) {
        let is_new = self.stage == Stage::default();
        let pending = if is_new { &mut self.change } else { &mut self.later };
        match pending {
            Some(pending) => Arc::make_mut(pending).merge(change),
            None => *pending = Some(Arc::new(change)),
        }
    }

    /// All changes that are not applied everywhere yet.
    pub(crate) fn pending(&self) -> [Option<Arc<MembershipChange>>; 2] {
        [self.change.clone(), self.later.clone()]
    }

    /// Whether new owners may lack reservations of names.
    pub(crate) const fn may_lack_names(&self) -> bool {
        self.later.is_some() || self.change.is_some() && matches!(self.stage, Stage::Names(_))
    }

    /// What to visit next, and the changes to apply to it.
    pub(crate) fn current(&self) -> Option<(Stage, Arc<MembershipChange>)> {
        self.change.clone().map(|change| (self.stage.clone(), change))
    }

    /// Records a visit.
    pub(crate) fn visited(&mut self, stage: Stage) {
        self.stage = stage;
    }

    /// Continues with the next kind of state. After the last one, returns the number of the change that is applied
    /// everywhere now; the later ones are next.
    pub(crate) fn next_stage(&mut self) -> Option<u32> {
        let next = self.stage.next();
        let over = self.change.take_if(|_| next.is_none());
        if over.is_some() {
            self.change = self.later.take();
        }
        self.stage = next.unwrap_or_default();
        over.map(|change| change.number)
    }

    /// How many visits one event makes.
    pub(crate) fn slice(world: &World) -> usize {
        world.config().slice.of(world.members())
    }

    /// Schedules the next slice.
    pub(crate) fn pause(&mut self, world: &World) {
        let Slice { pause_ns, .. } = world.config().slice;
        self.next_at = world.now() + pause_ns;
    }
}

//! Leases: who has taken them, and which objects live as long as they do.
//!
//! The owners of a lease know which members have clients that took it; if none has for [`LEASE_GRACE_NS`], the first owner
//! ends the object, or tells those members that own objects of the job. All this is told again when members change, like what
//! is known of copies. Does not know the objects.
//!
//! ```text
//!   clients --Leased--> owners of the job <--Covers-- owners of its objects
//!                             |                            ^
//!                             +---------- JobEnded --------+  again until they own none any more
//! ```

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::world::World;
use crate::{
    id::{Name, NodeId, ObjectId},
    lifetime::Lease,
    limits::{LEASE_GRACE_NS, LEASES_MAX},
    message::Message,
    planted::{self, Bug},
    time::Instant,
    timed::{Deadline, Timed},
};

#[derive(Debug, Default)]
pub(super) struct Leases {
    /// Those that this node owns; and for a while those that it does not, as it sees the members.
    pub(super) all: Timed<Lease, Record>,
    /// Objects of this part of the directory, by the job whose end is theirs. They may be gone since.
    pub(super) covered: BTreeMap<Name, Covered>,
    /// Jobs that have ended, behind which object the next slice begins, and when it is worked off.
    pub(super) ending: BTreeMap<Name, Option<ObjectId>>,
    pub(super) resumed_at: Instant,
}

/// Who has taken a lease, and who owns objects that live as long as it.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) takers: BTreeSet<NodeId>,
    pub(super) coverers: BTreeSet<NodeId>,
    /// When it is looked at: it is over, or others own it.
    pub(super) look_at: Option<Instant>,
}

impl Deadline for Record {
    fn deadline(&self) -> Option<Instant> {
        self.look_at
    }
}

impl Record {
    /// If no client has it any more, it is over after the grace.
    fn ends_if_untaken(&mut self, now: Instant) {
        if !self.takers.is_empty() {
            self.look_at = None;
        } else if self.look_at.is_none() {
            self.look_at = Some(now + LEASE_GRACE_NS);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Covered {
    pub(super) ids: BTreeSet<ObjectId>,
    /// How many they were when those that are gone were last sorted out.
    pub(super) sorted: usize,
}

impl Leases {
    pub(super) fn deadline(&self) -> Option<Instant> {
        let resumed = (!self.ending.is_empty()).then_some(self.resumed_at);
        self.all.deadline().into_iter().chain(resumed).min()
    }

    /// False if there are too many already.
    fn change(&mut self, now: Instant, lease: Lease, change: impl FnOnce(&mut Record)) -> bool {
        if !self.all.contains_key(&lease) {
            if self.all.len() >= LEASES_MAX {
                return false;
            }
            self.all.insert(lease.clone(), Record::default());
        }
        self.all.update(&lease, |record| {
            change(record);
            record.ends_if_untaken(now);
        });
        true
    }

    /// Clients of a member have taken a lease, or have it no more; false if there are too many leases already.
    pub(super) fn leased(
        &mut self,
        now: Instant,
        from: NodeId,
        lease: &Lease,
        is_taken: bool,
    ) -> bool {
        self.change(now, lease.clone(), |record| {
            if is_taken {
                record.takers.insert(from);
            } else {
                record.takers.remove(&from);
            }
        })
    }

    /// A member owns objects of a job, or none any more; false if there are too many leases already.
    pub(super) fn covers(&mut self, now: Instant, from: NodeId, job: &Name, covers: bool) -> bool {
        let lease = Lease::Job(job.clone());
        if covers {
            self.change(now, lease, |record| {
                record.coverers.insert(from);
            })
        } else {
            self.all.update(&lease, |record| record.coverers.remove(&from));
            true
        }
    }

    /// A member is gone with its clients and its part of the directory.
    pub(super) fn member_gone(&mut self, now: Instant, node: NodeId) {
        if planted::has(Bug::KeepsLeasesOfTheDead) {
            return;
        }
        for lease in self.all.keys().cloned().collect::<Vec<Lease>>() {
            self.all.update(&lease, |record| {
                record.coverers.remove(&node);
                if record.takers.remove(&node) {
                    record.ends_if_untaken(now);
                }
            });
        }
    }

    /// Leases have other owners: what others own is kept for a while, since they may not all have heard of it. Who owns
    /// objects of jobs tells the owners of those.
    pub(super) fn members_changed(&mut self, world: &mut World<'_>, stray_ns: u64) {
        for lease in self.all.keys().cloned().collect::<Vec<Lease>>() {
            self.keep_for_a_while(world, &lease, stray_ns);
        }
        for job in self.covered.keys() {
            tell_of_objects(job, true, world);
        }
    }

    /// What is told of a lease that others own is kept for a while: this node may not have heard yet that it is its own.
    pub(super) fn keep_for_a_while(&mut self, world: &World<'_>, lease: &Lease, stray_ns: u64) {
        let (now, members) = (world.now, world.members);
        if !members.owners(&lease.place()).contains(members.me()) {
            self.all.update(lease, |record| {
                record.look_at.get_or_insert(now + stray_ns);
            });
        }
    }

    /// An object of a job is known here.
    pub(super) fn cover(&mut self, job: &Name, id: &ObjectId, world: &mut World<'_>) {
        let covered = self.covered.entry(job.clone()).or_default();
        if covered.ids.is_empty() {
            tell_of_objects(job, true, world);
        }
        covered.ids.insert(id.clone());
    }
}

pub(super) fn tell_of_objects(job: &Name, covers: bool, world: &mut World<'_>) {
    let members = world.members;
    let place = ObjectId::Named(job.clone());
    for owner in members.owners(&place).iter() {
        world.mail.push((owner, Message::Covers { job: job.clone(), covers }));
    }
}

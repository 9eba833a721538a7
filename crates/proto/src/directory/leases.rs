//! Leases: which members have clients that took them, and which objects they keep alive.
//!
//! The owners of a lease record which members have clients that took it. If none has for
//! [`LEASE_GRACE_NS`], the primary owner ends the object, or notifies the members that own objects
//! of the job. When membership changes, nodes report their leases again, like their copies. Does
//! not know the objects.
//!
//! ```text
//!   clients --LeaseUpdate--> owners of the job <--JobObjects-- owners of its objects
//!                                  |                                ^
//!                                  +------------ JobEnded ----------+
//!                                          repeated until they own none
//! ```

use alloc::collections::{BTreeMap, BTreeSet};

use super::context::Context;
use crate::{
    id::{Name, NodeId, ObjectId},
    lifetime::Lease,
    limits::{LEASE_GRACE_NS, LEASES_MAX},
    message::Message,
    mutants::{self, Mutant},
    time::Instant,
    timed::{Deadline, Timed},
};

#[derive(Debug, Default)]
pub(super) struct Leases {
    /// Leases that this node owns, and for a while those that it does not own in its membership
    /// view.
    pub(super) all: Timed<Lease, LeaseRecord>,
    /// Objects in this shard, by the job that ends them. They may be gone since.
    pub(super) covered: BTreeMap<Name, JobObjects>,
    /// Jobs that have ended, with the object after which the next slice begins, and when that is
    /// due.
    pub(super) ending: BTreeMap<Name, Option<ObjectId>>,
    pub(super) resumed_at: Instant,
}

/// The members whose clients have taken a lease, and the owners of objects that it keeps alive.
#[derive(Debug, Default)]
pub(super) struct LeaseRecord {
    pub(super) lease_holders: BTreeSet<NodeId>,
    pub(super) object_owners: BTreeSet<NodeId>,
    /// When to check it: because it has expired, or because other nodes own it.
    pub(super) look_at: Option<Instant>,
    /// The number of the last membership change that was applied to it.
    pub(super) changes_seen: u32,
}

impl Deadline for LeaseRecord {
    fn deadline(&self) -> Option<Instant> {
        self.look_at
    }
}

impl LeaseRecord {
    /// Starts the grace period if no client has the lease any more.
    fn expire_if_unheld(&mut self, now: Instant) {
        if !self.lease_holders.is_empty() {
            self.look_at = None;
        } else if self.look_at.is_none() {
            self.look_at = Some(now + LEASE_GRACE_NS);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct JobObjects {
    pub(super) ids: BTreeSet<ObjectId>,
    /// The number of objects when ended ones were last removed.
    pub(super) sorted: usize,
}

impl Leases {
    pub(super) fn deadline(&self) -> Option<Instant> {
        let resumed = (!self.ending.is_empty()).then_some(self.resumed_at);
        let due = self.all.deadline().map(|at| at.max(self.resumed_at));
        due.into_iter().chain(resumed).min()
    }

    /// Changes a lease; inserts `new` if it is unknown. Returns false if there are too many.
    pub(super) fn change(
        &mut self,
        now: Instant,
        lease: &Lease,
        new: Option<LeaseRecord>,
        change: impl FnOnce(&mut LeaseRecord) -> bool,
    ) -> bool {
        if let Some(new) = new.filter(|_| !self.all.contains_key(lease)) {
            if self.all.len() >= LEASES_MAX {
                return false;
            }
            self.all.insert(lease.clone(), new);
        }
        self.all.update(lease, |record| {
            change(record);
            record.expire_if_unheld(now);
        });
        true
    }

    /// Applies membership changes to a lease, up to the one with the number `last`: removes the
    /// members that are gone, with their clients and their shards of the directory.
    pub(super) fn settle(&mut self, now: Instant, lease: &Lease, removed: &[NodeId], last: u32) {
        self.all.update(lease, |record| {
            record.changes_seen = last;
            if mutants::is_active(Mutant::KeepsLeasesOfFailedNodes) {
                return;
            }
            for node in removed {
                record.object_owners.remove(node);
                if record.lease_holders.remove(node) {
                    record.expire_if_unheld(now);
                }
            }
        });
    }

    /// Keeps a lease for a while that other nodes own: this node may not know yet that it is the
    /// owner.
    pub(super) fn keep_as_stray(&mut self, context: &Context<'_>, lease: &Lease, stray_ns: u64) {
        let (now, members) = (context.now, context.members);
        if !members.owners(&lease.place()).contains(members.me()) {
            self.all.update(lease, |record| {
                record.look_at.get_or_insert(now + stray_ns);
            });
        }
    }

    /// Records that this shard has an object of a job.
    pub(super) fn cover(&mut self, job: &Name, id: &ObjectId, context: &mut Context<'_>) {
        let covered = self.covered.entry(job.clone()).or_default();
        if covered.ids.is_empty() {
            notify_job_objects(job, true, context);
        }
        covered.ids.insert(id.clone());
    }
}

/// Reports to the owners of a job whether this shard has objects of it.
pub(crate) fn notify_job_objects(job: &Name, has_objects: bool, context: &mut Context<'_>) {
    let members = context.members;
    let place = ObjectId::Named(job.clone());
    for owner in members.owners(&place).iter() {
        context.outbox.push((owner, Message::JobObjects { job: job.clone(), has_objects }));
    }
}

//! Objects that end without a deletion by a client: their time to live is over, or the lease of
//! their job or of the object itself has ended.
//!
//! The primary owner, or later the backup owner, ends the object and notifies the other one. For
//! leases see [`super::leases`].

use alloc::vec::Vec;
use core::ops::Bound;

use super::{
    context::Context,
    leases::{LeaseRecord, notify_job_objects},
    state::Directory,
};
use crate::{
    error::Error,
    id::{Name, NodeId, ObjectId},
    lifetime::{Lease, Terms},
    limits::{LEASE_GRACE_NS, OWNER_TIMEOUT_NS, limit_name},
    members::Members,
    message::Message,
    mutants::{self, Mutant},
};

/// How many ended objects of a job may be recorded, in addition to as many as live, before they are
/// removed.
const GONE_MAX: usize = 1024;

impl Directory {
    /// Records how long a live object lives, or an earlier end than before.
    pub(super) fn bind(&mut self, context: &mut Context<'_>, id: &ObjectId, announced: &Terms) {
        let now = context.now;
        let live = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut());
        let Some(live) = live else { return };
        let terms = live.terms.get_or_insert_default();
        terms.join(announced);
        if let Some(at) = terms.ends_at {
            // If the time is already over, end the object in a later step, not while its
            // announcement is handled.
            self.alarms.insert((at.max(now + 1), id.clone()));
        }
        let Some(job) = terms.lease().cloned() else { return };
        self.leases.cover(&job, id, context);
        let covered = self.leases.covered.get(&job);
        if covered.is_some_and(|covered| covered.ids.len() > 2 * covered.sorted + GONE_MAX) {
            self.prune(&job, context);
        }
    }

    /// Ends an object whose time is over. The backup owner does so later, in case the primary owner
    /// cannot report the end or does not have the object.
    pub(super) fn end_in_time(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let (now, members) = (context.now, context.members);
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        let ends_at = live.and_then(|live| live.terms.as_ref()).and_then(|terms| terms.ends_at);
        let Some(ends_at) = ends_at.filter(|at| *at <= now) else { return };
        if mutants::is_active(Mutant::IgnoresExpiry) {
            return;
        }
        let owners = members.owners(id);
        let is_late = now >= ends_at + OWNER_TIMEOUT_NS;
        if owners.primary == members.me() || is_late && owners.contains(members.me()) {
            self.end(context, id);
        } else if owners.contains(members.me()) {
            self.alarms.insert((ends_at + OWNER_TIMEOUT_NS, id.clone()));
        }
    }

    /// Deletes the current object of an id, and notifies the other owner.
    fn end(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        let Some(instance) = live.map(|live| live.instance) else { return };
        let error = Error::ObjectDeleted { id: id.clone() };
        self.bury(context, id, error, Vec::from([instance]));
        self.notify_other_owners(context, id);
        self.notify_locators(context, id);
    }

    /// Records what a member reports about a lease, which is created if `is_new`.
    pub(super) fn update_lease(
        &mut self,
        context: &Context<'_>,
        from: NodeId,
        lease: &Lease,
        is_new: bool,
        change: impl FnOnce(&mut LeaseRecord) -> bool,
    ) {
        self.settle_lease(context, lease);
        let changes_seen = self.entries.last_change();
        let new = is_new.then(|| LeaseRecord { changes_seen, ..LeaseRecord::default() });
        if !self.leases.change(context.now, lease, new, change) {
            self.limited.push((from, limit_name!(LEASES_MAX)));
        }
        self.leases.keep_as_stray(context, lease, self.stray_ns);
    }

    /// Ends the objects of an ended job that this node must end, a slice at a time.
    pub(super) fn job_ended(&mut self, context: &mut Context<'_>, job: &Name) {
        if !self.leases.covered.contains_key(job) {
            // This node has reported before that it has none, but the message was lost.
            return notify_job_objects(job, false, context);
        }
        self.leases.ending.entry(job.clone()).or_default();
        self.end_some(context);
    }

    fn end_some(&mut self, context: &mut Context<'_>) {
        let (now, members) = (context.now, context.members);
        let Some((job, after)) = self.leases.ending.pop_first() else { return };
        let begin = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let covered = self.leases.covered.get(&job);
        let ids =
            covered.iter().flat_map(|it| it.ids.range::<ObjectId, _>((begin, Bound::Unbounded)));
        let most = self.slice.of(members);
        let ids: Vec<ObjectId> = ids.take(most).cloned().collect();
        for id in &ids {
            self.settle(context, id);
            if self.is_of(id, &job) && self.must_end(id, members) {
                self.end(context, id);
            }
        }
        match ids.last().filter(|_| ids.len() == most) {
            Some(last) => drop(self.leases.ending.insert(job, Some(last.clone()))),
            None => self.prune(&job, context),
        }
        self.leases.resumed_at = now + self.slice.pause_ns;
    }

    /// Whether `id` is live and its lifetime ends with the job.
    fn is_of(&self, id: &ObjectId, job: &Name) -> bool {
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        let terms = live.and_then(|live| live.terms.as_ref());
        terms.and_then(|terms| terms.lease()) == Some(job)
    }

    /// Whether this node ends an object whose job is over. The primary owner does, but it may have
    /// no entry if only owners have the bytes of the object, and it lacks room for them.
    fn must_end(&self, id: &ObjectId, members: &Members) -> bool {
        let owners = members.owners(id);
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        let is_bare = live.is_some_and(|live| live.tree.is_empty());
        owners.primary == members.me() || is_bare && owners.contains(members.me())
    }

    /// Removes the objects of a job that are gone.
    fn prune(&mut self, job: &Name, context: &mut Context<'_>) {
        let Some(mut covered) = self.leases.covered.remove(job) else { return };
        covered.ids.retain(|id| self.is_of(id, job));
        covered.sorted = covered.ids.len();
        if covered.ids.is_empty() {
            notify_job_objects(job, false, context);
        } else {
            self.leases.covered.insert(job.clone(), covered);
        }
    }

    /// Handles the leases that are due.
    pub(super) fn expire_leases(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        if self.leases.resumed_at > now {
            return;
        }
        if !self.leases.ending.is_empty() {
            self.end_some(context);
        }
        for _ in 0..self.slice.of(context.members) {
            let Some(lease) = self.leases.all.first_due(now) else { return };
            self.settle_lease(context, &lease);
            if !self.is_still_kept(context, &lease) {
                self.leases.all.remove(&lease);
            }
        }
        self.leases.resumed_at = now + self.slice.pause_ns;
    }

    /// Ends what an expired lease covers, and returns whether to keep the record of the lease.
    fn is_still_kept(&mut self, context: &mut Context<'_>, lease: &Lease) -> bool {
        let (now, members) = (context.now, context.members);
        let owners = members.owners(&lease.place());
        let (is_owner, is_primary_owner) =
            (owners.contains(members.me()), owners.primary == members.me());
        let is_held =
            self.leases.all.get(lease).is_some_and(|record| !record.lease_holders.is_empty());
        if is_owner && !is_held {
            match lease {
                Lease::Job(job) => {
                    let record = self.leases.all.get(lease);
                    let object_owners = record.iter().flat_map(|record| &record.object_owners);
                    let object_owners: Vec<NodeId> = object_owners.copied().collect();
                    if object_owners.is_empty() {
                        return false;
                    }
                    for node in object_owners.into_iter().filter(|_| is_primary_owner) {
                        context.outbox.push((node, Message::JobEnded { job: job.clone() }));
                    }
                }
                Lease::Object(id) => {
                    self.settle(context, id);
                    if is_primary_owner {
                        self.end(context, id);
                    }
                    if self.entries.get(id).is_none_or(|entry| entry.live.is_none()) {
                        return false;
                    }
                }
            }
        }
        let look_at = (is_owner && !is_held).then_some(now + LEASE_GRACE_NS);
        self.leases.all.update(lease, |record| record.look_at = look_at);
        is_owner
    }

    /// How many leases this node records as an owner; for checkers.
    pub fn leases(&self) -> usize {
        self.leases.all.len()
    }
}

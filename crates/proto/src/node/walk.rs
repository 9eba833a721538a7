//! What new owners need after a membership change: everything that they hold for this node, a slice
//! at a time.
//!
//! Nodes need no consensus on the membership: holders and requesters repeat what concerns the new
//! owners. Questions come first, also when an owner has become unresponsive: the backup owner gets
//! them. The rest follows in the order of [`Stage`]: what waits for an owner comes before the
//! copies, which may be very many. What an owner must have before a question is sent with it.

use super::Node;
use crate::{
    directory,
    id::{Instance, NodeId, ObjectId, QuestionId},
    lifetime::Lease,
    machines::{
        membership_change::MembershipChange,
        walk::{Part, Stage},
    },
    message::{Announce, Message},
    mutants::{self, Mutant},
};

impl Node {
    /// Notes a membership change. The walk for all changes of an event begins at its end.
    pub(super) fn members_changed(&mut self, mut change: MembershipChange) {
        self.worker.reannounce_leaving(&change, &mut self.world);
        // A new change has one at most.
        let rejoined = change.rejoined().next();
        change.number =
            self.update_directory(|directory, world| directory.members_changed(world, rejoined));
        self.walk.note(change);
    }

    /// Visits the first slice after the changes of this event.
    pub(super) fn walk_after_changes(&mut self) {
        if self.walk.has_news() {
            self.walk();
        }
    }

    pub(super) fn expire_walk(&mut self) {
        if self.walk.deadline().is_some_and(|at| at <= self.world.now()) {
            self.walk();
        }
    }

    /// Visits one slice. Each walk leaves a share of it to those after it, but visits one at least.
    fn walk(&mut self) {
        let all = self.world.config().slice.entries;
        let mut left = all;
        for (part, kept) in [(Part::Questions, all / 2), (Part::Small, all / 8), (Part::Objects, 0)]
        {
            left = left.max(kept + 1);
            while left > kept
                && let Some((stage, change)) = self.walk.current(part)
            {
                let before = self.world.output();
                if let Some(visited) = self.visit(stage, &change) {
                    self.walk.visited(visited);
                    let search = self.world.config().slice.search(self.world.members());
                    left = left.saturating_sub(search + self.world.output() - before);
                } else if let Some(number) = self.walk.next_stage(part) {
                    self.directory.changes_applied(number);
                }
            }
        }
        self.walk.pause(&self.world);
    }

    /// Sends to new owners what they need again about the next one of a kind. Returns `None` after
    /// the last one.
    fn visit(&mut self, stage: Stage, change: &MembershipChange) -> Option<Stage> {
        let world = &mut self.world;
        Some(match stage {
            Stage::Names(after) => {
                let id = self.claims.next_reservation(after.as_ref())?;
                self.claims.resend_reservation(&id, change, world);
                Stage::Names(Some(id))
            }
            Stage::Leases(after) => {
                let taken = self.client_leases.next_after(after.as_ref());
                let owned = self.directory.next_lease(after.as_ref());
                let lease = taken.into_iter().chain(owned).min()?;
                self.client_leases.reannounce(&lease, change, world);
                self.update_directory(|directory, world| directory.settle_lease(world, &lease));
                Stage::Leases(Some(lease))
            }
            Stage::Jobs(after) => {
                let job = self.directory.next_job(after.as_ref())?;
                self.update_directory(|_, world| directory::notify_job_objects(&job, true, world));
                Stage::Jobs(Some(job))
            }
            Stage::Pulls(after) => {
                let arriving = self.incoming.next_object(after.as_ref());
                let expected = self.replicas.next_incoming(after.as_ref());
                let id = arriving.into_iter().chain(expected).min()?;
                if self.replicas.end_if_lost(&id) {
                    self.end_if_unwanted(&id);
                }
                self.resend_pull(&id, change);
                Stage::Pulls(Some(id))
            }
            Stage::Puts(after) => {
                let instance = self.claims.next_put(after)?;
                self.resend_put(instance, change);
                Stage::Puts(Some(instance))
            }
            Stage::Questions(after) => {
                let number = self.questions.next_after(after)?;
                self.resend_before(number);
                self.repeat_question(number, |node| change.rejoined().any(|it| it == node));
                Stage::Questions(Some(number))
            }
            Stage::Replicas(after) => {
                let instance = self.replicas.next_after(after)?;
                self.settle_replicas(instance);
                Stage::Replicas(Some(instance))
            }
            Stage::Objects(after) => {
                let held = self.copies.table().next_current(after.as_ref());
                let owned = self.directory.next_entry(after.as_ref());
                let id = held.into_iter().chain(owned).min()?.clone();
                self.resend_object(&id, change);
                Stage::Objects(Some(id))
            }
        })
    }

    /// Sends what an owner must have before it gets a question: the part of the object that is
    /// here, which this node announces again only later.
    fn resend_before(&mut self, number: QuestionId) {
        let Some(id) = self.questions.subject(number) else { return };
        for change in self.walk.pending(&Stage::Pulls(Some(id.clone()))) {
            self.resend_pull(&id, &change);
        }
    }

    /// Announces the part of an object that is here. An owner that gets a question about the rest,
    /// which is repeated after this, must have that.
    fn resend_pull(&mut self, id: &ObjectId, change: &MembershipChange) {
        if let Some(instance) = self.copies.current(id) {
            self.reannounce_copy(instance, change);
        }
        if let Some(announce) =
            self.pull_without_capacity(id).and_then(|instance| self.announcement(instance))
        {
            self.announce_to(&change.new_owners(id, &self.world), &announce);
        }
    }

    fn resend_put(&mut self, instance: Instance, change: &MembershipChange) {
        match self.claims.why_without_slot(instance, &self.world) {
            Some(error) => self.fail_put(instance, error),
            None => {
                let table = self.copies.table();
                self.claims.resend_claim(instance, change, table, &mut self.world);
            }
        }
    }

    fn resend_object(&mut self, id: &ObjectId, change: &MembershipChange) {
        // That of a pull was announced with it, or since.
        if let Some(instance) = self.copies.current(id)
            && self.incoming.of_object(id).is_none()
        {
            self.reannounce_copy(instance, change);
        }
        self.update_directory(|directory, world| directory.settle(world, id));
    }

    /// Sends the reservation of a name to new owners before the object that is made under it, which
    /// they would otherwise take for a claim.
    pub(super) fn resend_name(&mut self, id: &ObjectId) {
        if self.walk.deadline().is_none() {
            return;
        }
        for change in self.walk.pending(&Stage::Names(Some(id.clone()))) {
            self.claims.resend_reservation(id, &change, &mut self.world);
        }
    }

    /// Applies pending changes to the replicas of a copy before they are counted: a lost node keeps
    /// none.
    pub(super) fn settle_replicas(&mut self, instance: Instance) {
        let changes = self.walk.pending(&Stage::Replicas(Some(instance)));
        self.replicas.resend(instance, &changes, &mut self.requests, &mut self.world);
    }

    /// Sends the reservation of an object that is about to be deleted, and announces its copy: they
    /// must not follow the deletion.
    pub(super) fn announce_before_deletion(&mut self, id: &ObjectId) {
        self.resend_name(id);
        let Some(instance) = self.copies.current(id) else { return };
        for change in self.walk.pending(&Stage::Objects(Some(id.clone()))) {
            self.reannounce_copy(instance, &change);
        }
    }

    fn reannounce_copy(&mut self, instance: Instance, change: &MembershipChange) {
        let is_current = |id: &ObjectId| self.copies.current(id) == Some(instance);
        let copy = self.copies.get(instance).filter(|copy| is_current(&copy.id));
        let Some(copy) = copy.filter(|_| !mutants::is_active(Mutant::NeverReannounces)) else {
            return;
        };
        let new = change.new_owners(&copy.id, &self.world);
        if new.is_empty() {
            return;
        }
        let Some(announce) = self.announcement(instance) else { return };
        self.announce_to(&new, &announce);
    }

    /// Announces a copy to new owners. They must know the reservation of its name, and the lease of
    /// its job: the owner of a job ends it if nobody reports the lease.
    fn announce_to(&mut self, owners: &[NodeId], announce: &Announce) {
        self.resend_name(&announce.id);
        let job = announce.lifetime.as_ref().and_then(|lifetime| lifetime.job.clone());
        if let Some(lease) = job.map(Lease::Job) {
            for change in self.walk.pending(&Stage::Leases(Some(lease.clone()))) {
                self.client_leases.reannounce(&lease, &change, &mut self.world);
            }
        }
        for owner in owners {
            self.world.send(*owner, Message::Announce(announce.clone()));
        }
    }
}

//! Dispatch of messages to the directory.
//!
//! Passes each message to the part that handles it. Does not know time.

use alloc::{boxed::Box, vec::Vec};

use super::{
    context::Context,
    entry::{Entry, answer},
    questions::{Asker, OpenQuestion},
    state::Directory,
};
use crate::{
    id::{NodeId, ObjectId},
    lifetime::Lease,
    limits::limit_name,
    message::Message,
    mutants::{self, Mutant},
    question::{Answer, Question},
};

/// The result of offering a message to the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryOutcome {
    /// The message is not for an owner.
    No,
    /// The directory has handled it.
    Yes,
    /// Handled: the sender requested a source of this object.
    SourceRequested(ObjectId),
    /// Handled: this object was deleted.
    Deleted(ObjectId),
}

impl Directory {
    /// Handles a message if it is for an owner.
    pub fn handle(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        message: &Message,
    ) -> DirectoryOutcome {
        let now = context.now;
        self.speeds.responded(from);
        self.settle_for(context, message);
        match message {
            Message::Announce(announce) => {
                let is_awaited = self.announce(context, from, announce);
                self.keep_as_stray(context, &announce.id);
                if !is_awaited {
                    return DirectoryOutcome::Yes;
                }
            }
            Message::Withdraw { id, instance } => {
                self.withdraw(context, from, id, *instance);
            }
            Message::Locate { id, avoid, not_here, receives, seen } => {
                self.speeds.rate_reported(now, from, *receives);
                if let Some((holder, instance)) = not_here
                    && self.is_refusal_news(id, from, *holder)
                {
                    self.verify_copy(context, *holder, id, *instance);
                }
                let (avoid, since, seen) = (avoid.clone(), now, *seen);
                let question = OpenQuestion { avoid, since, seen, ..OpenQuestion::default() };
                self.assign_source(context, from, question, id);
                return DirectoryOutcome::SourceRequested(id.clone());
            }
            Message::LocateRange { id, instance, bytes, avoid, not_here, request } => {
                if let Some((holder, ago_ns)) = not_here
                    && self.was_announced_before(id, *holder, now.before(*ago_ns))
                {
                    self.verify_copy(context, *holder, id, *instance);
                }
                self.locate_range(context, from, id, *instance, *bytes, avoid, *request);
            }
            Message::RateReport(_) if mutants::is_active(Mutant::IgnoresRateReports) => {}
            Message::RateReport(rate_reported) => self.rate_reported(context, from, rate_reported),
            Message::CancelLocate { id } => self.unlocate(from, id),
            Message::Ask { number, question } => {
                return self.answer_question(context, (from, *number), question);
            }
            Message::Cancel { number } => self.close((from, *number)),
            Message::Reserve { id, instance } => {
                self.reserve(context, from, id, *instance);
                self.keep_as_stray(context, id);
            }
            Message::Dropped { id, instance } => self.dropped(context, from, id, *instance),
            Message::Fail { id, error, reserved } => {
                let entry = self.entries.get(id);
                let is_over = |entry: &Entry| reserved.is_some_and(|it| entry.is_over(now, &it));
                // The name may belong to another object by now.
                let maker = entry.and_then(|entry| entry.maker());
                let is_its =
                    |entry: &Entry| entry.reserved.as_ref().map(|it| it.instance) == *reserved;
                if entry.is_some_and(is_over) {
                    // The name was deleted meanwhile, and is free.
                } else if id.is_slot() && !entry.is_some_and(is_its) {
                    // The slot is filled, or was deleted.
                } else if id.minter().is_some() || maker.is_none_or(|maker| maker == from) {
                    self.bury(context, id, error.clone(), Vec::new());
                    self.forward_to_owners(id, context);
                } else if let Some(entry) = self.entries.get_mut(id) {
                    entry.reserved.take_if(|reserved| reserved.instance.node == from);
                }
            }
            Message::Abandon { id, instance } => {
                let live = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut());
                if let Some(live) = live.filter(|live| live.instance == *instance)
                    && live.tree.get(from).is_some()
                {
                    live.abandoned_by = Some(Box::new(from));
                }
            }
            Message::LeaseUpdate { lease, is_held } => {
                self.settle_lease(context, lease);
                let seen = self.entries.last_change();
                if !self.leases.leased(now, from, lease, *is_held, seen) {
                    self.limited.push((from, limit_name!(LEASES_MAX)));
                }
                self.leases.keep_as_stray(context, lease, self.stray_ns);
            }
            Message::JobObjects { job, has_objects } => {
                let lease = Lease::Job(job.clone());
                self.settle_lease(context, &lease);
                let seen = self.entries.last_change();
                if !self.leases.has_objects(now, from, job, *has_objects, seen) {
                    self.limited.push((from, limit_name!(LEASES_MAX)));
                }
                self.leases.keep_as_stray(context, &lease, self.stray_ns);
            }
            Message::JobEnded { job } => self.job_ended(context, job),
            Message::Tombstone { id, instances, error: Some(error), pruned } => {
                // Without instances it is not clear which object of that name has ended.
                let is_clear = id.minter().is_some() || !instances.is_empty();
                // A repetition is ignored: the name may have been deleted since, and the reason
                // with it.
                let tombstone = self.entries.get(id).and_then(|entry| entry.tombstone.as_ref());
                let is_known = tombstone.is_some_and(|tombstone| {
                    instances.iter().all(|instance| tombstone.instances.contains(instance))
                });
                if is_clear && !is_known {
                    self.bury(context, id, error.clone(), instances.clone());
                }
                if let Some(tombstone) =
                    self.entries.get_mut(id).and_then(|entry| entry.tombstone.as_mut())
                    && !tombstone.known_to.contains(&from)
                {
                    tombstone.known_to.push(from);
                    tombstone.pruned |= *pruned;
                }
            }
            Message::Tombstone { id, instances, error: None, .. } => {
                self.bury_older(context, id, instances);
            }
            _ => return DirectoryOutcome::No,
        }
        if let Some(id) = message.object() {
            self.notify_locators(context, id);
        }
        DirectoryOutcome::Yes
    }

    /// Answers a question, or keeps it open.
    fn answer_question(
        &mut self,
        context: &mut Context<'_>,
        asker: Asker,
        question: &Question,
    ) -> DirectoryOutcome {
        // It may arrive again.
        self.close(asker);
        match question {
            Question::Watch { id, seen } => self.watch(context, asker, id, *seen),
            Question::Locations { id, known } => {
                self.locations(context, asker, id, known.clone());
            }
            Question::Latest { prefix, after } => {
                self.watch_latest(context, asker, prefix, *after);
            }
            Question::OlderVersions { name, retain } => {
                let names = self.older(context, name, *retain);
                context.outbox.push(answer(asker, Answer::OlderVersions(names)));
            }
            Question::Delete { id, pruned } => {
                self.delete(context, asker, id, *pruned);
                self.forward_to_owners(id, context);
                self.notify_locators(context, id);
                return DirectoryOutcome::Deleted(id.clone());
            }
            Question::List { prefix, after } => {
                let (rows, next) = self.list(context, prefix, after.as_ref());
                context.outbox.push(answer(asker, Answer::List { rows, next }));
            }
            Question::Inspect(_) => return DirectoryOutcome::No,
        }
        DirectoryOutcome::Yes
    }

    /// Closes a question without an answer.
    fn close(&mut self, asker: Asker) {
        let Some((id, kind)) = self.asked.place(asker).cloned() else { return };
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.close(kind, asker, &mut self.asked);
        }
        self.forget_if_empty(&id);
    }
}

//! Dispatch of messages to the directory.
//!
//! Passes each message to the part that handles it. Does not know time.

use super::{
    context::Context,
    entry::answer,
    questions::{Asker, OpenQuestion},
    state::Directory,
};
use crate::{
    id::{NodeId, ObjectId},
    lifetime::Lease,
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
            Message::Withdraw { id, instance } => self.withdraw(context, from, id, *instance),
            Message::RateReport(_) if mutants::is_active(Mutant::IgnoresRateReports) => {}
            Message::RateReport(report) => {
                self.rate_reported(context, from, report);
                // It changes no holder.
                return DirectoryOutcome::Yes;
            }
            Message::Decline { id } => self.declined(context, from, id),
            Message::Ask { number, question } => {
                return self.answer_question(context, (from, *number), question);
            }
            Message::Cancel { number } => drop(self.close(context, (from, *number))),
            Message::Reserve { id, instance } => {
                self.reserve(context, from, id, *instance);
                self.keep_as_stray(context, id);
            }
            Message::Dropped { id, instance } => self.dropped(context, from, id, *instance),
            Message::Fail { id, error, reserved } => {
                self.failed(context, from, id, error, *reserved);
            }
            Message::Abandon { id, instance } => self.abandoned(from, id, *instance),
            Message::Tombstone { .. } if self.pass_on_deletion(context, from, message) => {}
            Message::Tombstone { id, instances, error: Some(error), pruned } => {
                self.buried_elsewhere(context, from, (id, instances, error), *pruned);
            }
            Message::Tombstone { id, instances, error: None, .. } => {
                self.bury_older(context, id, instances);
            }
            Message::LeaseUpdate { .. } | Message::JobObjects { .. } | Message::JobEnded { .. } => {
                self.handle_lease(context, from, message);
            }
            _ => return DirectoryOutcome::No,
        }
        if let Some(id) = message.object() {
            self.notify_locators(context, id);
        }
        DirectoryOutcome::Yes
    }

    /// Handles a message about a lease.
    fn handle_lease(&mut self, context: &mut Context<'_>, from: NodeId, message: &Message) {
        match message {
            Message::LeaseUpdate { lease, is_held } => {
                self.update_lease(context, from, lease, true, |record| match is_held {
                    true => record.lease_holders.insert(from),
                    false => record.lease_holders.remove(&from),
                });
            }
            Message::JobObjects { job, has_objects } => {
                let (lease, is_new) = (Lease::Job(job.clone()), *has_objects);
                self.update_lease(context, from, &lease, is_new, |record| match has_objects {
                    true => record.object_owners.insert(from),
                    false => record.object_owners.remove(&from),
                });
            }
            Message::JobEnded { job } => self.job_ended(context, job),
            // Other messages concern no lease.
            _ => {}
        }
    }

    /// Answers a question, or keeps it open.
    fn answer_question(
        &mut self,
        context: &mut Context<'_>,
        asker: Asker,
        question: &Question,
    ) -> DirectoryOutcome {
        // It may arrive again.
        let before = self.close(context, asker);
        match question {
            Question::Locate(locate) => {
                self.locate(context, asker, locate, before);
                self.notify_locators(context, &locate.id);
                return DirectoryOutcome::SourceRequested(locate.id.clone());
            }
            Question::LocateRange(locate) => {
                self.locate_range(context, asker, locate);
                self.notify_locators(context, &locate.id);
            }
            Question::Watch { id, seen_at } => self.watch(context, asker, id, *seen_at),
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
    fn close(&mut self, context: &mut Context<'_>, asker: Asker) -> Option<OpenQuestion> {
        let (id, kind) = self.asked.place(asker).cloned()?;
        self.settle_before_use(context, &id);
        let entry = self.entries.get_mut(&id);
        let closed = entry.and_then(|entry| entry.close(kind, asker, &mut self.asked));
        if closed.as_ref().is_some_and(|question| question.seen_at.is_some()) {
            // The others may have seen it only at nodes that are gone.
            self.check_unrecorded(context.now, &id, context.members);
        }
        self.forget_if_empty(&id);
        closed
    }
}

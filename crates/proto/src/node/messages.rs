//! Dispatches messages of other nodes to machines.

use alloc::{boxed::Box, vec::Vec};

use super::Node;
use crate::{
    directory::{self, Directory, DirectoryOutcome},
    error::Error,
    event::{Action, LogEvent},
    id::NodeId,
    lifetime::Terms,
    machines::membership::DepartureReason,
    message::{Announce, Message},
    mutants::{self, Mutant},
    question::Question,
};

impl Node {
    /// Handles a message of another node or of this node, unless it is not valid.
    pub(super) fn receive(&mut self, from: NodeId, message: Message) {
        if !self.accepts(from, &message) {
            self.world.note(LogEvent::MessageRejected { from, message: Box::new(message) });
            return;
        }
        if let Message::Withdraw { instance, .. } = message {
            self.replica_lost(from, instance);
        }
        match self.update_directory(|directory, world| directory.handle(world, from, &message)) {
            DirectoryOutcome::No => self.receive_as_peer(from, message),
            DirectoryOutcome::Yes => {}
            DirectoryOutcome::SourceRequested(id) => self.result_requested(&id),
            // A result that is still being folded has no copy to drop. A named one has a
            // reservation, which is dropped instead.
            DirectoryOutcome::Deleted(id) if id.minter().is_some() => {
                self.claims.forget(&id, &mut self.world);
                self.fail_reduce_of(&id, &Error::ObjectDeleted { id: id.clone() });
            }
            DirectoryOutcome::Deleted(_) => {}
        }
    }

    /// Handles a message that is not for an owner.
    fn receive_as_peer(&mut self, from: NodeId, message: Message) {
        match message {
            Message::Members(members) => self.learn(from, &members),
            Message::Leaving => self.member_leaving(from),
            Message::Drained => self.worker.drained(from),
            Message::Leave => self.remove_member(from, DepartureReason::Left),
            Message::Down { node, incarnation, reason } => {
                let world = &mut self.world;
                let lost = self.membership.reported_down(from, node, incarnation, reason, world);
                self.handle_departure(lost);
            }
            Message::StateDropped => self.state_dropped(from),
            Message::Swim(rumour) => self.membership.handle_swim(from, rumour, &mut self.world),
            Message::Claimed { id, instance, taken_by } => {
                self.claimed(from, &id, instance, taken_by)
            }
            Message::ClaimAtBackup(Announce { ref id, instance, .. })
            | Message::ReserveAtBackup { ref id, instance } => {
                self.claim_at_backup(from, &id.clone(), instance, message);
            }
            Message::Redirect { id, instance, source } => {
                self.redirected(&id, instance, source);
            }
            Message::Drop { id, instance, error } => {
                self.drop_copy(from, &id, instance, error);
            }
            Message::Reannounce { id, instance } => self.reannounce_if_held(from, &id, instance),
            Message::DropPartial { id, instance, error } => {
                self.drop_partial(from, &id, instance, error);
            }
            Message::Ask { number, question: Question::Inspect(inspection) } => {
                self.world.act(Action::Inspect { to: from, number, inspection });
            }
            Message::Answer { number, answer } => self.answered(from, number, answer),
            Message::MarkSlow { times, bytes_per_second } => {
                self.incoming.found_slow(times, bytes_per_second, self.world.now());
            }
            Message::StoreReplica { id, instance, meta, inline, lifetime, may_wait } => {
                let terms = lifetime.map(|told| Terms::from_lifetime(&told, self.world.now()));
                self.store_replica(from, id, instance, meta, inline, terms, may_wait);
            }
            Message::ReplicaReply { instance, accepted, .. } => {
                self.replica_reply(from, instance, accepted)
            }
            Message::ReleaseReplica { id, instance } => self.release_replica(from, &id, instance),
            Message::Survey(message) => self.world.act(Action::Survey { from, message }),
            about_a_fold => self.receive_about_fold(from, about_a_fold),
        }
    }

    /// Handles a message of a reduce.
    fn receive_about_fold(&mut self, from: NodeId, message: Message) {
        match message {
            Message::Fold(order) => self.fold(from, order),
            Message::RingReduce(order) => self.ring_ordered(from, *order),
            Message::EndEpoch { reduce, epoch, is_aborted } => {
                self.end_epoch(reduce, epoch, is_aborted);
            }
            Message::FoldStalled { .. } if mutants::is_active(Mutant::IgnoresStalledChildren) => {}
            Message::FoldStalled { reduce, epoch, node } => {
                self.stall_reported(from, reduce, epoch, node);
            }
            Message::FoldProbe { reduce, epoch } => {
                self.world.send(from, Message::FoldProbeAck { reduce, epoch });
            }
            Message::FoldProbeAck { reduce, epoch } => self.fold_alive(from, reduce, epoch),
            Message::FoldFailed { reduce, epoch, detail, is_lost } => {
                self.reduce_failed(reduce, epoch, detail, is_lost);
            }
            // The directory has handled the other messages.
            _ => {}
        }
    }

    /// Passes a fact to this node's shard of the directory, and sends the resulting messages.
    pub(super) fn update_directory<T>(
        &mut self,
        fact: impl FnOnce(&mut Directory, &mut directory::Context<'_>) -> T,
    ) -> T {
        let mut outbox = Vec::new();
        let (now, members, link) =
            (self.world.now(), self.world.members(), self.world.config().link);
        let mut world = directory::Context { now, members, link, outbox: &mut outbox };
        let told = fact(&mut self.directory, &mut world);
        self.world.post(outbox);
        told
    }
}

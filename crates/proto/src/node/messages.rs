//! Dispatches messages of other nodes to machines.

use alloc::{boxed::Box, vec::Vec};

use super::Node;
use crate::{
    directory::{self, Directory, Taken},
    error::Error,
    event::Note,
    id::NodeId,
    lifetime::Terms,
    machines::membership::Loss,
    message::Message,
    planted::{self, Bug},
};

impl Node {
    /// Handles a message of another node or of this node, unless it is not valid.
    pub(super) fn receive(&mut self, from: NodeId, message: Message) {
        if !self.accepts(from, &message) {
            self.world.note(Note::MessageRefused { from, message: Box::new(message) });
            return;
        }
        match self.tell_directory(|directory, world| directory.handle(world, from, &message)) {
            Taken::No => self.receive_as_peer(from, message),
            Taken::Yes => {}
            Taken::SenderAsked(id) => self.result_asked(&id),
            // A result that is still being folded has no copy to drop. A named one has a reservation, which is dropped
            // instead.
            Taken::Deleted(id) if id.minter().is_some() => {
                self.promises.forget(&id);
                self.fail_reduce_of(&id, &Error::ObjectDeleted { id: id.clone() });
            }
            Taken::Deleted(_) => {}
        }
    }

    /// Handles a message that is not for an owner.
    fn receive_as_peer(&mut self, from: NodeId, message: Message) {
        match message {
            Message::Members(members) => self.learn(from, &members),
            Message::Leaving => self.member_leaves(from),
            Message::Unseated => self.leaving.unseated(from),
            Message::Leave => self.lose(from, Loss::Left),
            Message::Down { node, incarnation, reason } => {
                let world = &mut self.world;
                let lost = self.membership.told_down(from, node, incarnation, reason, world);
                self.go_on_without(lost);
            }
            Message::Forgotten => self.was_forgotten(from),
            Message::Rumour(rumour) => self.membership.hear_rumour(from, rumour, &mut self.world),
            Message::Claimed { id, instance, taken_by } => {
                self.claimed(from, &id, instance, taken_by)
            }
            Message::Waiting { id } => self.pull_acknowledged(from, &id),
            Message::Located { id, instance, meta, source, lifetime } => {
                let terms = lifetime.map(|told| Terms::told(&told, self.world.now()));
                self.located(from, id, instance, meta, source, terms);
            }
            Message::Redirect { id, instance, source } => {
                self.redirected(&id, instance, source);
            }
            Message::Gone { id, error } => self.gone(from, &id, &error),
            Message::Found { id, found } => self.found(from, &id, found),
            Message::Deleted { id, request } => {
                self.requests.deleted(from, &id, request, &mut self.world)
            }
            Message::Drop { id, instance, error } => {
                self.drop_copy(from, &id, instance, error);
            }
            Message::Doubted { id, instance } => self.doubted(&id, instance),
            Message::Stranded { id, instance, error } => {
                self.stranded(from, &id, instance, error);
            }
            Message::LatestIs { name, request } => {
                self.requests.latest_is(from, name, request, &mut self.world)
            }
            Message::NothingYet { request, id } => self.nothing_yet(from, request, id),
            Message::OlderAre { names, request } => self.prune_these(request, names),
            Message::ListIs { request, rows, next } => {
                self.requests.list_is(from, request, rows, next, &mut self.world);
            }
            Message::LocationsAre { request, holdings } => {
                self.requests.located_all(from, request, holdings, &mut self.world)
            }
            Message::Fold(order) => self.fold(from, order),
            Message::Scatter(order) => self.scattered(from, *order),
            Message::Unfold { reduce, epoch, is_void } => {
                self.unfold(reduce, epoch, is_void);
            }
            Message::Slow { times, bytes_per_second } => {
                self.pulls.found_slow(times, bytes_per_second, self.world.now());
            }
            Message::FoldStarves { .. } if planted::has(Bug::IgnoresSilentChildren) => {}
            Message::FoldStarves { reduce, epoch, node } => {
                self.fold_starves(from, reduce, epoch, node);
            }
            Message::FoldProbe { reduce, epoch } => {
                self.world.send(from, Message::FoldAlive { reduce, epoch });
            }
            Message::FoldAlive { reduce, epoch } => self.fold_alive(from, reduce, epoch),
            Message::FoldFailed { reduce, epoch, detail, is_lost } => {
                self.reduce_failed(reduce, epoch, detail, is_lost);
            }
            Message::Adopt { id, instance, meta, inline, lifetime, may_wait } => {
                let terms = lifetime.map(|told| Terms::told(&told, self.world.now()));
                self.adopt(from, id, instance, meta, inline, terms, may_wait);
            }
            Message::Adopted { instance, kept, .. } => self.adopted(from, instance, kept),
            Message::Unkeep { instance, .. } => self.unkeep(from, instance),
            Message::Measure { .. }
            | Message::Burst { .. }
            | Message::BurstCame { .. }
            | Message::Measured { .. }
            | Message::Places { .. } => {
                let is_busy = self.moves_objects();
                self.surveys.receive(from, message, is_busy, &mut self.world);
            }
            // The directory has handled the other messages.
            _ => {}
        }
    }

    /// Whether this node is transferring objects or partial results.
    fn moves_objects(&self) -> bool {
        self.pulls.receiving().next().is_some()
            || self.readers.is_serving()
            || self.worker.len() + self.scatters.len() > 0
    }

    /// Passes a fact to this node's shard of the directory, and sends the resulting messages.
    pub(super) fn tell_directory<T>(
        &mut self,
        fact: impl FnOnce(&mut Directory, &mut directory::World<'_>) -> T,
    ) -> T {
        let mut mail = Vec::new();
        let (now, members, link) =
            (self.world.now(), self.world.members(), self.world.config().link);
        let mut world = directory::World { now, members, link, mail: &mut mail };
        let told = fact(&mut self.directory, &mut world);
        self.world.post(mail);
        told
    }
}

//! Get: a client's request for an object, until the client has it or a source of it is known.
//!
//! ```text
//!   get --> (here) give                                                   [`super::receive`]
//!       --> wait --> pull_if_wanted --> locate --> located --> capacity and memory --> in_memory
//! ```
//! [`crate::machines::incoming`] tracks the arrival, [`crate::machines::readers`] the clients that
//! wait for it.

use alloc::boxed::Box;

use super::Node;
use crate::{
    error::Error,
    event::LogEvent,
    id::{Instance, NodeId, ObjectId, RequestId},
    inline::Inline,
    lifetime::Terms,
    machines::{
        copies::PendingCopy,
        incoming::{Arrival, ArrivalId, Phase},
        questions::Asker,
        requests::{RequestContext, RequestKind},
    },
    message::{Located, Message, Source},
    meta::Meta,
    mutants::{self, Mutant},
    question::{Locate, Question},
    request::Reply,
    table::{Copy, State},
};

/// From the request to the search.
impl Node {
    pub(super) fn get(
        &mut self,
        context: &RequestContext,
        id: ObjectId,
    ) -> Option<Result<Reply, Error>> {
        let current = self.copies.current(&id);
        let is_usable = |copy: &Copy| {
            copy.is_readable() || mutants::is_active(Mutant::RepliesTooEarly) && copy.has_memory()
        };
        let complete = current.filter(|instance| self.copies.get(*instance).is_some_and(is_usable));
        if let Some(instance) = complete {
            return Some(self.give(context.client, instance));
        }
        self.requests.remember(context, RequestKind::Object(id.clone()), &self.world);
        self.readers.wait(&id, context.request);
        match current {
            Some(instance) => self.restore(instance),
            None => self.pull_if_wanted(&id),
        }
        None
    }

    /// A client wants to read an object before it is complete.
    pub(super) fn follow(
        &mut self,
        context: &RequestContext,
        id: ObjectId,
    ) -> Option<Result<Reply, Error>> {
        let current = self.copies.current(&id);
        if let Some((instance, copy)) = current.and_then(|i| Some((i, self.copies.get(i)?))) {
            if copy.is_readable() {
                return Some(Ok(Reply::Done));
            }
            if copy.state == State::Filling(context.client) {
                // It has the memory for writing, and must not have it for reading before the object
                // is complete.
                return Some(Ok(Reply::Done));
            }
            if copy.meta.digest.is_some() {
                // The bytes may fail the digest check later.
                return Some(Ok(Reply::Done));
            }
            if copy.has_memory() {
                let meta = copy.meta.clone();
                return Some(Ok(Reply::Growing { meta, instance }));
            }
        }
        if !self.readers.are_waiting(&id) {
            // The `Get` next to it already has its reply, inline or an error: nothing will arrive.
            return Some(Ok(Reply::Done));
        }
        self.readers.follow(&id, context.request);
        self.requests.remember(context, RequestKind::Follow(id), &self.world);
        None
    }

    /// Begins to search for an object that is not arriving, if a client or an adoption waits for
    /// it.
    pub(super) fn pull_if_wanted(&mut self, id: &ObjectId) {
        let is_wanted = self.readers.are_waiting(id) || self.replicas.expects(id);
        let is_here = self.copies.current(id).is_some();
        if is_wanted && !is_here && self.incoming.of_object(id).is_none() {
            let arrival = self.incoming.begin_whole(id);
            self.locate(arrival);
        }
    }
}

/// The choice of a source.
impl Node {
    /// Requests a source from the owners.
    pub(super) fn locate(&mut self, arrival: ArrivalId) {
        if let Some(question) = self.source_question(arrival) {
            self.ask_for_source(arrival, question);
        }
    }

    /// For a range, the owner that reported the object gets the request: the other one may not know
    /// the object yet.
    pub(super) fn ask_for_source(&mut self, arrival: ArrivalId, question: Question) {
        let range = self.incoming.get(arrival).and_then(Arrival::range);
        let first = range.and_then(|range| range.owner);
        self.questions.ask_first(Asker::Arrival(arrival), first, question, &mut self.world);
    }

    /// The request for a source.
    pub(super) fn source_question(&mut self, arrival: ArrivalId) -> Option<Question> {
        let now = self.world.now();
        let not_here = self.incoming.update(arrival, |it| it.locate(now))?;
        let (avoid, receives) = (self.incoming.avoided(arrival), self.incoming.receives(now));
        let it = self.incoming.get(arrival)?;
        if it.range().is_some() {
            let not_here = not_here.map(|(node, at)| (node, now.since(at)));
            return self.range_question(arrival, not_here);
        }
        let (id, seen_at) = (it.id.clone(), it.located_at);
        let not_here = not_here.map(|(node, _)| node).zip(it.copy);
        let locate = Locate { id, avoid, not_here, receives, seen_at };
        Some(Question::Locate(Box::new(locate)))
    }

    /// An arrival is due.
    pub(super) fn expire_arrivals(&mut self) {
        for arrival in self.incoming.due(self.world.now()) {
            let Some(it) = self.incoming.get(arrival) else { continue };
            match (&it.phase, it.range()) {
                (Phase::Receiving { .. }, _) => self.report_stall(arrival),
                (_, Some(range)) => {
                    let (id, request) = (it.id.clone(), range.request);
                    self.incoming.update(arrival, |it| it.phase = Phase::Watching);
                    self.watch_range(request, id);
                }
                (_, None) => self.locate(arrival),
            }
        }
    }

    /// An owner has chosen a source.
    pub(super) fn located(&mut self, arrival: ArrivalId, located: Located) {
        let Located { id, instance, meta, source, lifetime } = located;
        let terms = lifetime.map(|told| Terms::from_lifetime(&told, self.world.now()));
        if let Source::Holder { node, .. } = source {
            self.incoming.update(arrival, |it| it.located_at = Some(node));
        }
        match source {
            Source::Inline(bytes) => self.located_inline(&id, instance, meta, bytes, terms),
            // The owner has no other holder than this node: try again later.
            Source::Holder { node, .. } if node == self.world.me() => self.pause(arrival),
            Source::Holder { node, reason } => {
                let note = LogEvent::SourceChosen { id: id.clone(), source: node, reason };
                self.world.note(note);
                self.located_at(arrival, instance, meta, node, terms);
            }
        }
    }

    /// An owner has chosen a source, but no request is open: the arrival has ended another way, or
    /// both owners got the request and this answer is the second.
    pub(super) fn located_late(&mut self, from: NodeId, located: Located) {
        let Located { id, instance, source, .. } = located;
        let (arrival, current) = (self.incoming.object(&id), self.copies.current(&id));
        // A newer request is open.
        let Source::Holder { node, .. } = source else { return };
        if arrival.is_some_and(Arrival::is_locating) {
            return;
        }
        if arrival.is_none() && current.is_none() {
            return self.world.send(from, Message::Decline { id });
        }
        // The primary owner's answer holds. If this node followed both, whose views of the
        // broadcast tree differ, copies could grow from each other in a cycle.
        if self.world.members().owners(&id).primary == from {
            self.redirected(&id, instance, node);
        } else if let Some(copy) = current {
            self.announce(copy);
        }
        self.announce_if_without_capacity(&id);
    }

    /// An owner reported that an object can't appear.
    pub(super) fn source_gone(&mut self, arrival: ArrivalId, id: &ObjectId, error: Error) {
        match self.incoming.get(arrival).and_then(Arrival::range).map(|range| range.request) {
            Some(request) => self.reply_range(request, Err(error)),
            None => self.pull_failed(id, &error),
        }
    }

    pub(super) fn pause(&mut self, arrival: ArrivalId) {
        let now = self.world.now();
        self.incoming.update(arrival, |it| it.pause(now));
    }

    /// Small objects are not cached where they are only read: their owner replies in one round
    /// trip.
    fn located_inline(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        meta: Meta,
        bytes: Inline,
        terms: Option<Box<Terms>>,
    ) {
        // A part of an older, larger object with the same name.
        self.withdraw_partial(id);
        self.end_pull(id);
        self.end_following(id);
        self.replica_received_inline(id, instance, &meta, &bytes, terms);
        for request in self.readers.take_waiting(id) {
            let (id, meta, inline) = (id.clone(), meta.clone(), Some(bytes.clone()));
            self.requests.reply(
                request,
                Ok(Reply::Got { id, meta, instance, inline, is_range: false }),
                &mut self.world,
            );
        }
    }

    fn located_at(
        &mut self,
        arrival: ArrivalId,
        instance: Instance,
        meta: Meta,
        source: NodeId,
        terms: Option<Box<Terms>>,
    ) {
        let Some(id) = self.incoming.get(arrival).map(|it| it.id.clone()) else { return };
        if let Some(terms) = &terms {
            self.copies.add_terms(instance, terms);
        }
        if let Some(before) = self.copies.current(&id).filter(|before| *before != instance) {
            // Blocks of another instance are useless for this one.
            self.doom(before);
        }
        // A copy that is produced on this node has no source.
        let is_made = |copy: &Copy| matches!(copy.state, State::Filling(_) | State::Folding);
        let cannot_receive_into =
            self.copies.get(instance).is_some_and(|copy| copy.doomed || is_made(copy));
        if let Some(copy) = self.copies.get(instance).filter(|_| !cannot_receive_into) {
            if copy.is_complete() {
                self.reveal(instance);
                self.announce(instance);
                return self.completed(instance);
            }
            self.incoming.admit(arrival, instance, Some(source));
            return self.receive_from(arrival, source);
        }
        if !self.copies.table().could_hold(meta.size) {
            let error = self.copies.store_full(meta.size);
            return self.pull_failed(&id, &error);
        }
        if cannot_receive_into || self.copies.pending(instance).is_some() {
            // Try again later. Either a client still uses a dropped part of this instance, or the
            // owner has not received its deletion, or the instance that waits for capacity is
            // produced on this node.
            return self.pause(arrival);
        }
        self.incoming.admit(arrival, instance, Some(source));
        let (state, inline) = (State::Arriving, None);
        self.want(instance, PendingCopy { id: id.clone(), meta, inline, state, terms });
        self.announce_if_without_capacity(&id);
    }

    /// Announces that the object waits for capacity, so that owners send no receivers here:
    /// capacity may never become free.
    fn announce_if_without_capacity(&mut self, id: &ObjectId) {
        if let Some(instance) = self.pull_without_capacity(id) {
            self.announce(instance);
            self.serve_parked(id);
            self.replica_lacks_capacity(id);
        }
    }

    /// Whether an object has capacity here, so that received blocks may be read.
    fn pull_is_arriving(&self, id: &ObjectId) -> bool {
        let has_room = |instance: Instance| self.copies.get(instance).is_some();
        let arrival = self.incoming.object(id);
        arrival.is_some_and(|it| it.is_receiving() || it.awaited().is_some_and(has_room))
    }

    /// The instance of an object that was located and waits for capacity here.
    pub(super) fn pull_without_capacity(&self, id: &ObjectId) -> Option<Instance> {
        let awaited = self.incoming.object(id)?.awaited();
        awaited.filter(|instance| self.copies.pending(*instance).is_some())
    }
}

/// The end without the object.
impl Node {
    /// Ends a pull, for example since the object was created on this node, and serves the receivers
    /// that it kept waiting.
    pub(super) fn end_pull(&mut self, id: &ObjectId) {
        let Some(arrival) = self.incoming.of_object(id) else { return };
        self.stop_fetches(arrival);
        self.questions.close_of(Asker::Arrival(arrival), &mut self.world);
        let Some(ended) = self.incoming.end(arrival) else { return };
        debug_assert!(ended.is_whole(), "the copy of parts is doomed first");
        match (ended.phase, ended.copy) {
            // The owners list this node as a receiver.
            (Phase::Locating | Phase::Backoff { .. }, _) if ended.located_at.is_some() => {
                self.decline(id)
            }
            (Phase::Admitting { .. }, Some(instance)) => self.copies.cancel(instance),
            _ => {}
        }
        self.serve_parked(id);
    }

    /// Reports to the owners that this node receives nothing of an object.
    fn decline(&mut self, id: &ObjectId) {
        self.world.send_owners(id, &Message::Decline { id: id.clone() });
    }

    /// Fails a pull: waiting clients get the error, and received blocks are dropped.
    pub(super) fn pull_failed(&mut self, id: &ObjectId, error: &Error) {
        self.withdraw_partial(id);
        self.end_pull(id);
        self.end_following(id);
        let error = self.with_file(id, error);
        for request in self.readers.take_waiting(id) {
            self.requests.reply(request, Err(error.clone()), &mut self.world);
        }
        self.replicas.refuse(id, &mut self.world);
    }

    /// Drops the blocks of an object that have arrived, and withdraws the copy from the owners.
    fn withdraw_partial(&mut self, id: &ObjectId) {
        if let Some(instance) = self.copies.current(id)
            && self.copies.get(instance).is_some_and(|copy| copy.state == State::Arriving)
        {
            self.withdraw(id, instance);
        }
    }

    /// Removes one waiting reader. An arriving object continues to arrive; a search without readers
    /// ends.
    pub(super) fn stop_waiting(&mut self, id: &ObjectId, request: RequestId) {
        if self.readers.stop_waiting(id, request) {
            self.end_if_unwanted(id);
        }
    }

    /// Ends the pull of an object that no client and no downstream receiver waits for, unless it is
    /// arriving.
    pub(super) fn end_if_unwanted(&mut self, id: &ObjectId) {
        self.leave_on_disk_if_unwanted(id);
        let is_arriving = self.pull_is_arriving(id);
        let awaits_room = self.pull_without_capacity(id).is_some();
        let has_parked = self.readers.have_parked(id);
        let is_wanted = self.readers.are_waiting(id) || self.replicas.expects(id);
        let part = self.copies.current(id);
        let is_read =
            part.and_then(|part| self.copies.get(part)).is_some_and(|copy| copy.readers > 0);
        let is_pulled = self.incoming.of_object(id).is_some();
        if !is_pulled || is_arriving || is_wanted || has_parked || is_read {
            return;
        }
        if let Some(instance) = part {
            self.withdraw(id, instance);
        } else if awaits_room {
            self.decline(id);
        }
        self.end_pull(id);
    }
}

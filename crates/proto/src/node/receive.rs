//! Receive: the way of an object from its source into memory here, and to the clients that wait for
//! it.
//!
//! ```text
//!   in_memory --> receive_from --> fetch_grew ... --> fetch_ended --> arrived --> completed
//!                      ^                |                                             |
//!                      +-- locate <-- fetch_failed, copy_differs; redirected          v
//!                                                                                    give
//! ```
//! [`super::get`] finds the first source. The shell compares digests.

use alloc::format;

use super::Node;
use crate::{
    error::Error,
    event::{Action, FetchOrder, LogEvent, RangeSource},
    id::{ClientId, FetchId, Instance, NodeId, ObjectId},
    machines::{
        incoming::{Arrival, ArrivalId, DigestMismatch, Phase, Purpose},
        questions::Asker,
    },
    message::Message,
    mutants::{self, Mutant},
    rate::StallReport,
    request::Reply,
    table::State,
};

/// Transfers.
impl Node {
    /// Memory is allocated for a copy that arrives.
    pub(super) fn in_memory(&mut self, instance: Instance) {
        let Some(arrival) = self.incoming.of_copy(instance) else { return };
        let Some(it) = self.incoming.get(arrival) else { return };
        match (&it.phase, it.range()) {
            (Phase::Admitting { .. }, Some(_)) => self.locate(arrival),
            (&Phase::Admitting { source: Some(source) }, None) => {
                self.receive_from(arrival, source);
                self.fold_on(instance);
            }
            // It had arrived with the wrong digest.
            (Phase::Admitting { source: None }, None) => {
                let id = it.id.clone();
                self.pause(arrival);
                self.end_if_unwanted(&id);
                self.locate(arrival);
            }
            _ => {}
        }
    }

    pub(super) fn receive_from(&mut self, arrival: ArrivalId, source: NodeId) {
        let Some(it) = self.incoming.get(arrival) else { return };
        let Some((id, instance)) = it.copy.map(|instance| (it.id.clone(), instance)) else {
            return;
        };
        self.growing(instance);
        self.fetch(arrival, source);
        // To both owners, since the backup owner may have assigned the source, or another owner
        // before a membership change.
        self.announce(instance);
        self.serve_parked(&id);
    }

    /// Begins a transfer of what is missing.
    pub(super) fn fetch(&mut self, arrival: ArrivalId, source: NodeId) {
        let Some(it) = self.incoming.get(arrival) else { return };
        let copy = it.copy.and_then(|instance| Some((instance, self.copies.get(instance)?)));
        let Some((instance, copy)) = copy else { return };
        let (id, size) = (it.id.clone(), copy.meta.size);
        let (ranges, in_parts) = match &it.purpose {
            Purpose::Parts(parts) => (Some(parts.order.rest(self.world.me())), true),
            Purpose::Whole | Purpose::Range(_) => (None, false),
        };
        let range = it.range().and_then(|range| range.at);
        let range = range.map(|at| RangeSource { of: at.of, start: at.start });
        let digest = copy.meta.digest.as_deref().copied().filter(|_| it.is_whole());
        let fetch = self.incoming.begin_fetch(arrival, source, size, self.world.now());
        self.world.act(Action::Fetch(FetchOrder {
            fetch,
            id,
            instance,
            source,
            ranges,
            in_parts,
            digest,
            range,
        }));
    }

    /// Stops all transfers of an arrival.
    pub(super) fn stop_fetches(&mut self, arrival: ArrivalId) {
        for fetch in self.incoming.end_fetches(arrival) {
            self.world.act(Action::StopFetch { fetch });
        }
    }

    /// More of a copy has arrived.
    pub(super) fn fetch_grew(&mut self, fetch: FetchId, received: u64, missing: u64, shares: u16) {
        let now = self.world.now();
        if let Some(report) = self.incoming.grew(fetch, received, missing, shares, now) {
            let owner = self.world.members().owners(&report.id).primary;
            self.world.send(owner, Message::RateReport(report));
        }
    }

    /// Nothing has arrived for a while.
    pub(super) fn report_stall(&mut self, arrival: ArrivalId) {
        let Some((report, due)) = self.incoming.stalled(arrival, self.world.now()) else { return };
        if self.incoming.get(arrival).is_some_and(|it| !it.is_whole()) {
            return self.range_stalled(arrival, report.source);
        }
        let owners = self.world.members().owners(&report.id);
        let owner = match due {
            StallReport::ToPrimary => Some(owners.primary),
            StallReport::ToBackup => owners.backup,
        };
        if let Some(owner) = owner {
            self.world.send(owner, Message::RateReport(report));
        }
    }

    /// An owner assigned a new source: a receiver was inserted between this node and its source, or
    /// the new source is faster.
    pub(super) fn redirected(&mut self, id: &ObjectId, instance: Instance, source: NodeId) {
        let is_it = |it: &&Arrival| it.is_whole() && it.copy == Some(instance);
        let arrival = self.incoming.of_object(id);
        let known = arrival.and_then(|it| Some((it, self.incoming.get(it).filter(is_it)?)));
        if let Some((arrival, it)) = known {
            let before = it.source();
            let is_usable = !self.incoming.avoids(arrival, source) && source != self.world.me();
            match it.phase {
                // The owner has no better source.
                Phase::Receiving { .. } if before == Some(source) => {
                    self.incoming.update(arrival, Arrival::sender_confirmed);
                    return;
                }
                Phase::Admitting { .. } if is_usable && self.copies.get(instance).is_none() => {
                    return self.incoming.admit(arrival, instance, Some(source));
                }
                Phase::Admitting { .. } | Phase::Receiving { .. } if is_usable => {
                    self.replace_source(arrival, before, source);
                }
                _ => {}
            }
        }
        if let Some(current) = self.copies.current(id) {
            // The owner assumes that this node followed its request.
            self.announce(current);
        }
    }

    pub(super) fn replace_source(
        &mut self,
        arrival: ArrivalId,
        before: Option<NodeId>,
        source: NodeId,
    ) {
        let Some(before) = before.filter(|before| *before != source) else { return };
        let Some(it) = self.incoming.get(arrival) else { return };
        let (id, is_receiving) = (it.id.clone(), it.is_receiving());
        self.world.note(LogEvent::SourceReplaced { id, before, source });
        if is_receiving {
            self.stop_fetches(arrival);
            self.fetch(arrival, source);
        } else {
            self.incoming
                .update(arrival, |it| it.phase = Phase::Admitting { source: Some(source) });
        }
    }
}

/// Failures.
impl Node {
    /// A member is gone: its transfers continue from other sources, even if its connections stay
    /// open for long.
    pub(super) fn reroute_pulls(&mut self, node: NodeId) {
        for fetch in self.incoming.fetches_from(node) {
            self.world.act(Action::StopFetch { fetch });
            self.fetch_failed(fetch, false);
        }
    }

    /// A transfer failed: another source is requested, the first time at once.
    pub(super) fn fetch_failed(&mut self, fetch: FetchId, not_here: bool) {
        let Some((arrival, source)) = self.incoming.end_fetch(fetch) else { return };
        let Some(it) = self.incoming.get(arrival) else { return };
        let Some((id, instance)) = it.copy.map(|instance| (it.id.clone(), instance)) else {
            return;
        };
        let (is_whole, now) = (it.is_whole(), self.world.now());
        if it.is_parts() {
            let detail = format!("a part did not arrive from node {source}");
            return self.parts_failed(instance, detail);
        }
        if mutants::is_active(Mutant::GivesUpAfterOneSource) {
            return;
        }
        let failed = self.incoming.update(arrival, |it| it.failed(source, not_here, now));
        if is_whole {
            self.end_if_unwanted(&id);
        }
        if failed == Some(true) {
            self.locate(arrival);
        }
        self.announce_to_backup(instance);
    }

    /// A whole copy arrived, but does not match its creator's digest, for example because of faulty
    /// memory in the source. Readers and receivers keep the present memory, since a ready block
    /// never changes. The copy is fetched again into other memory.
    pub(super) fn copy_differs(&mut self, fetch: FetchId) {
        let Some((arrival, source)) = self.incoming.end_fetch(fetch) else { return };
        let Some(it) = self.incoming.get(arrival) else { return };
        let Some((id, instance)) = it.copy.map(|instance| (it.id.clone(), instance)) else {
            return;
        };
        if mutants::is_active(Mutant::IgnoresDigests) {
            return self.arrived(instance);
        }
        let mismatch = self.incoming.update(arrival, |it| it.mismatched(source));
        if mismatch != Some(DigestMismatch::Several) {
            self.block_corrupt(source);
        }
        match mismatch {
            Some(DigestMismatch::One | DigestMismatch::Several) => {
                self.copies.replace_memory(instance, &mut self.world);
                self.announce_to_backup(instance);
            }
            Some(DigestMismatch::All) => self.pull_is_corrupt(arrival, &id),
            None => {}
        }
    }

    /// An inline object arrived that does not match its creator's digest. The other owner has the
    /// bytes too.
    pub(super) fn inline_differs(&mut self, id: &ObjectId, source: NodeId) {
        self.block_corrupt(source);
        let Some(arrival) = self.incoming.of_object(id) else { return };
        let is_locating = self.incoming.get(arrival).is_some_and(Arrival::is_locating);
        if !is_locating {
            return;
        }
        let mismatch = self.incoming.update(arrival, |it| {
            it.located_at = Some(source);
            it.mismatched(source)
        });
        if mismatch != Some(DigestMismatch::One) {
            return self.pull_is_corrupt(arrival, id);
        }
        if let Some(question) = self.source_question(arrival) {
            self.questions.ask_other(Asker::Arrival(arrival), source, question, &mut self.world);
        }
    }

    /// The copies of all holders are corrupt.
    fn pull_is_corrupt(&mut self, arrival: ArrivalId, id: &ObjectId) {
        let senders = self.incoming.get(arrival).map(Arrival::corrupt_senders).unwrap_or_default();
        self.pull_failed(id, &Error::ObjectCorrupt { id: id.clone(), senders });
    }

    /// A block from a member did not match its checksum.
    pub(super) fn block_corrupt(&mut self, source: NodeId) {
        if self.world.members().contains(source)
            && let Some(blocks) = self.incoming.block_corrupt(source)
        {
            self.world.note(LogEvent::SourceAvoided { node: source, blocks });
        }
    }

    /// Announces to the backup owner that this copy has no source. The primary owner learns it from
    /// the next `Locate`.
    fn announce_to_backup(&mut self, instance: Instance) {
        if let Some(announce) = self.announcement(instance)
            && let Some(backup) = self.world.members().owners(&announce.id).backup
        {
            self.world.send(backup, Message::Announce(announce));
        }
    }
}

/// The end of an arrival, and its readers.
impl Node {
    /// A transfer has delivered everything.
    pub(super) fn fetch_ended(&mut self, fetch: FetchId) {
        let Some((arrival, _)) = self.incoming.end_fetch(fetch) else { return };
        let Some(it) = self.incoming.get(arrival).filter(|it| it.is_fetched()) else { return };
        let Some(instance) = it.copy else { return };
        match &it.purpose {
            Purpose::Whole => self.arrived(instance),
            Purpose::Range(_) => self.range_arrived(arrival),
            Purpose::Parts(_) => self.parts_arrived(instance),
        }
    }

    /// A copy has arrived.
    pub(super) fn arrived(&mut self, instance: Instance) {
        let copy = self.copies.get(instance).filter(|copy| !copy.doomed);
        if copy.is_some_and(|copy| copy.state == State::Arriving) {
            self.copies.set_state(instance, State::Complete);
            self.announce(instance);
            self.completed(instance);
        }
    }

    /// A copy is complete: all waiting clients on this node get it.
    pub(super) fn completed(&mut self, instance: Instance) {
        let Some(copy) = self.copies.get(instance).filter(|copy| !copy.doomed) else { return };
        let (id, is_readable) = (copy.id.clone(), copy.is_readable());
        self.end_pull(&id);
        if !is_readable {
            return self.restore(instance);
        }
        self.end_following(&id);
        for request in self.readers.take_waiting(&id) {
            if let Some(client) = self.requests.client(request) {
                let reply = self.give(client, instance);
                self.requests.reply(request, reply, &mut self.world);
            }
        }
        self.replica_received(&id, instance);
    }

    /// Gives a complete copy to a reader, and pins it while the client reads.
    pub(super) fn give(&mut self, client: ClientId, instance: Instance) -> Result<Reply, Error> {
        let Some(copy) = self.copies.get(instance) else {
            return Err(Error::NodeDown(format!("instance {instance} vanished")));
        };
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        if inline.is_none() {
            self.copies.add_reader(instance);
            self.readers.begin(client, instance);
        }
        Ok(Reply::Got { id, meta, instance, inline, is_range: false })
    }

    /// Memory is allocated for an arriving copy.
    pub(super) fn growing(&mut self, instance: Instance) {
        let Some(copy) = self.copies.get(instance) else { return };
        let (id, meta, state) = (copy.id.clone(), copy.meta.clone(), copy.state);
        for request in self.readers.take_followers(&id) {
            let client = self.requests.client(request);
            let is_own = client.is_some_and(|client| state == State::Filling(client));
            let must_not_follow = is_own || meta.digest.is_some();
            let growing = Reply::Growing { meta: meta.clone(), instance };
            self.requests.reply(
                request,
                Ok(if must_not_follow { Reply::Done } else { growing }),
                &mut self.world,
            );
        }
    }

    /// Ends the following of an object; the reply to the client's `Get` contains the result.
    pub(super) fn end_following(&mut self, id: &ObjectId) {
        for request in self.readers.take_followers(id) {
            self.requests.reply(request, Ok(Reply::Done), &mut self.world);
        }
    }

    /// A client stopped reading. If it has copied the object and no other client reads it, the copy
    /// is evicted first.
    pub(super) fn release(&mut self, client: ClientId, instance: Instance, is_copied: bool) {
        if self.readers.end(client, instance) {
            if is_copied {
                self.copies.pass_over(instance);
            }
            self.remove_reader(instance);
        }
    }
}

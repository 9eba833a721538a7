//! Which machine hears of an event, a question of a client or a message.

use alloc::{boxed::Box, format, vec::Vec};

use super::{Event, Node, Note, membership::Loss, requests::Asked};
use crate::{
    ask::{Answer, Ask},
    directory::{self, Directory, Taken},
    error::Error,
    id::{ClientId, NodeId, RequestId},
    lifetime::Terms,
    message::Message,
    planted::{self, Bug},
    time::Instant,
};

impl Node {
    pub(super) fn dispatch(&mut self, event: Event) {
        match event {
            Event::Asked { client, request, ask, deadline } => {
                self.ask(client, request, ask, deadline);
            }
            Event::Cancelled { request } => self.time_out(request),
            Event::ClientGone { client } => self.client_gone(client),
            Event::ClientForked { client, heir } => self.client_forked(client, heir),
            Event::SlotReady { instance } => self.slot_ready(instance),
            Event::SlotRefused { instance, detail } => {
                self.copies.slot_refused(instance, detail, &mut self.world);
            }
            Event::SlotFailed { instance, detail } => self.slot_failed(instance, detail),
            Event::Kept { all } => self.adopt_kept(all),
            Event::Spilled { instance } => self.copies.spilled(instance, &self.world),
            Event::SpillFailed { instance, detail } => self.spill_failed(instance, detail),
            Event::Unspilled { instance } => self.unspilled(instance),
            Event::UnspillFailed { instance, detail } => self.unspill_failed(instance, detail),
            Event::Message { from, message } => {
                // A node that is no member (any more) has to introduce itself first.
                if self.world.members().contains(from) {
                    self.membership.heard(from);
                    self.receive(from, message);
                }
            }
            Event::PeerUp { member } => self.meet(member),
            Event::PeerAgain { member } => self.meet_again(member),
            Event::PeerLost { node, is_dead } => {
                let lost = self.membership.peer_lost(node, is_dead, &mut self.world);
                self.go_on_without(lost);
            }
            Event::PeerBarred { node, reason } => {
                let lost = self.membership.peer_barred(node, reason, &mut self.world);
                self.go_on_without(lost);
            }
            Event::CallFailed { node, failure } => self.membership.call_failed(node, failure),
            Event::FetchAsked { serve, id, instance } => self.serve(serve, &id, instance),
            Event::ServeEnded { serve } => self.serve_ended(serve),
            Event::FetchGrew { instance, source, received, missing, shares } => {
                self.fetch_grew(instance, source, received, missing, shares);
            }
            Event::Fetched { instance } => self.fetched(instance),
            Event::FetchFailed { instance, source, not_here } => {
                self.fetch_failed(instance, source, not_here);
            }
            Event::BlockCorrupt { source } => self.block_corrupt(source),
            Event::CopyDiffers { instance, source } => self.copy_differs(instance, source),
            Event::InlineDiffers { id, source } => self.inline_differs(&id, source),
            Event::FoldedInline { reduce, epoch, result } => {
                self.folded_inline(reduce, epoch, result);
            }
            Event::FoldWaited { key, node } => self.fold_waited(key, node),
            Event::FoldEnded { key, failure } => self.fold_ended(key, failure),
            Event::LinkMeasured { link, has_bandwidth } => {
                self.world.link_measured(link);
                let usual = has_bandwidth.then_some(link.bytes_per_second);
                self.pulls.set_usual_rate(usual);
                self.directory.set_usual_rate(usual);
            }
            Event::LeaveAsked { patience_ns } => self.leave(patience_ns),
            Event::DeadlinePassed => self.expire(),
        }
    }

    fn ask(&mut self, client: ClientId, request: RequestId, ask: Ask, deadline: Option<Instant>) {
        if self.leaving.has_begun() && !ask.ends_something() {
            let error = Error::NodeDown(format!("node {} is closing", self.world.me()));
            self.world.reply(client, request, Err(error));
            return;
        }
        let asked = Asked { client, request, deadline };
        let answer = match ask {
            Ask::Put { id, meta, bytes, ttl_ns } => {
                self.put_inline(&asked, id, meta, bytes, ttl_ns)
            }
            Ask::Join { job } => Some(Ok(self.join_job(client, job))),
            Ask::TakeLease { id } => Some(Ok(self.take_lease(client, id))),
            Ask::ReturnLease { id } => Some(Ok(self.return_lease(client, id))),
            Ask::Promise { name } => Some(Ok(self.promise(client, name))),
            Ask::BreakPromises => {
                self.break_promises(client);
                return;
            }
            Ask::Create { id, meta, ttl_ns } => self.create(&asked, id, meta, ttl_ns),
            Ask::Seal { instance } => Some(self.seal(client, instance)),
            Ask::Abort { instance } => Some(self.abort(client, instance)),
            Ask::Get { id } => self.get(&asked, id),
            Ask::Keep { id, copies } => self.keep(&asked, id, copies),
            Ask::Release { instance } => {
                self.release(client, instance, false);
                return;
            }
            Ask::ReleaseCopied { instance } => {
                self.release(client, instance, true);
                return;
            }
            Ask::Follow { id } => self.follow(&asked, id),
            Ask::Wait { ids, count } => {
                let Self { requests, copies, watches, world, .. } = self;
                requests.wait(&asked, ids, count, copies.table(), watches, world)
            }
            Ask::Reduce { inputs, op, count, id, ttl_ns } => {
                self.begin_reduce(&asked, inputs, op, count, id, ttl_ns)
            }
            Ask::Inputs { id } => self.inputs(&asked, id),
            Ask::Lost { id } => Some(self.lost(&id)),
            Ask::Delete { ids } => {
                ids.iter().for_each(|id| {
                    self.tell_before_deletion(id);
                    self.take_promise_back(id);
                });
                self.requests.delete(&asked, ids, &mut self.world)
            }
            Ask::Latest { prefix, after } => {
                self.requests.latest(&asked, prefix, after, &mut self.world)
            }
            Ask::Prune { name, keep } => self.requests.prune(&asked, name, keep, &mut self.world),
            Ask::Locations { id, known } => {
                self.requests.locations(&asked, id, known, &mut self.world)
            }
            Ask::Explain { id } => Some(Ok(self.explain(&id))),
            Ask::Owners { id } => {
                Some(Ok(Answer::Owners(self.world.members().owners(&id).iter().collect())))
            }
            Ask::List { owner, prefix, after } => {
                self.requests.list(&asked, owner, prefix, after, &mut self.world)
            }
            Ask::Status => Some(Ok(Answer::Status(Box::new(self.status())))),
            Ask::Objects => Some(Ok(Answer::Objects(self.objects()))),
        };
        if let Some(answer) = answer {
            self.world.reply(client, request, answer);
        }
    }

    /// Handles a message of another node, or of this one, unless it is to be dropped.
    pub(super) fn receive(&mut self, from: NodeId, message: Message) {
        if !self.accepts(from, &message) {
            self.world.note(Note::MessageRefused { from, message: Box::new(message) });
            return;
        }
        match self.tell_directory(|directory, world| directory.handle(world, from, &message)) {
            Taken::No => self.receive_as_peer(from, message),
            Taken::Yes => {}
            Taken::SenderAsked(id) => self.result_asked(&id),
            Taken::Deleted(id) => self.promise_deleted(&id),
        }
    }

    /// Handles what is not meant for an owner.
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
            Message::Measure { round, to, bytes } => {
                let is_busy = self.moves_objects();
                self.surveys.measure(from, round, to, bytes, is_busy, &mut self.world);
            }
            Message::Burst { round, left: 0, .. } => {
                let is_busy = self.moves_objects();
                self.world.send(from, Message::BurstCame { round, is_busy });
            }
            Message::BurstCame { round, is_busy } => {
                let is_busy = is_busy || self.moves_objects();
                self.surveys.burst_came(from, round, is_busy, &mut self.world);
            }
            Message::Measured { round, burst } => {
                self.surveys.measured(from, round, burst, &self.world);
            }
            Message::Places { places } => self.surveys.told(from, places, &mut self.world),
            // The directory has taken the others.
            _ => {}
        }
    }

    /// Whether objects or partial results are on their way from or to this node.
    fn moves_objects(&self) -> bool {
        self.pulls.receiving().next().is_some()
            || self.readers.is_serving()
            || self.worker.len() + self.scatters.len() > 0
    }

    /// Has this node's part of the directory take a fact, and sends what it says to that.
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

    fn expire(&mut self) {
        self.tell_directory(Directory::expire);
        self.expire_retelling();
        self.expire_pulls();
        self.copies.expire(&mut self.world);
        self.watches.expire(&mut self.world);
        self.expire_reduces();
        self.leaving.expire(self.world.now());
        self.leases.expire(self.world.now());
        for request in self.replicas.expire(&mut self.requests, &mut self.world) {
            self.time_out(request);
        }
        self.expire_members();
        self.surveys.expire(&mut self.world);
    }
}

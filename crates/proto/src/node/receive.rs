//! Receive: fetches the blocks of an object from one source after another until it is complete.
//!
//! [`super::get`] finds the first source; [`super::rate`] reports the rate. The shell compares
//! digests.

use alloc::{format, vec::Vec};

use super::Node;
use crate::{
    error::Error,
    event::{Action, FetchOrder, LogEvent},
    id::{FetchId, Instance, NodeId, ObjectId},
    machines::{fetches::Fetch, pull_state::DigestMismatch},
    message::{Announce, Message},
    mutants::{self, Mutant},
    table::State,
};

impl Node {
    pub(super) fn receive_from(&mut self, id: &ObjectId, instance: Instance, source: NodeId) {
        self.begin_to_receive(id, instance);
        self.growing(instance);
        if !self.pulls.contains(id) {
            return;
        }
        if self.ring_results.contains(instance) {
            self.begin_parts(instance);
        } else {
            self.fetch(id, instance, source);
        }
        // To both owners, since the backup owner may have assigned the source, or another owner
        // before a membership change.
        self.announce(instance);
        self.serve_parked(id);
    }

    pub(super) fn fetch(&mut self, id: &ObjectId, instance: Instance, source: NodeId) {
        let copy = self.copies.get(instance);
        let digest = copy.and_then(|copy| copy.meta.digest.as_deref().copied());
        let order = self.fetch_order(id.clone(), instance, source);
        self.world.act(Action::Fetch(FetchOrder { digest, ..order }));
    }

    /// Begins a transfer of what a copy lacks. The caller sends the order, perhaps for less.
    pub(super) fn fetch_order(
        &mut self,
        id: ObjectId,
        instance: Instance,
        source: NodeId,
    ) -> FetchOrder {
        let fetch = self.fetches.begin(instance, source);
        let (ranges, in_parts, digest, range) = (None, false, None, None);
        FetchOrder { fetch, id, instance, source, ranges, in_parts, digest, range }
    }

    /// Stops all transfers into a copy.
    pub(super) fn stop_fetches(&mut self, instance: Instance) {
        for fetch in self.fetches.end_all(instance) {
            self.world.act(Action::StopFetch { fetch });
        }
    }

    /// An owner assigned a new source: a receiver was inserted between this node and its source, or
    /// the new source is faster.
    pub(super) fn redirected(&mut self, id: &ObjectId, instance: Instance, source: NodeId) {
        if self.keeps_source(id, instance, source) {
            return;
        }
        let is_avoided = self.pulls.avoids(id, source) || source == self.world.me();
        let awaits_room = self.pulls.located(id) == Some(instance);
        if !is_avoided && awaits_room && self.copies.redirect(instance, source) {
            return;
        }
        let is_arriving = !is_avoided && self.pull_is_arriving(id);
        let Some(current) = self.copies.current(id) else { return };
        if is_arriving
            && current == instance
            && !self.ring_results.contains(instance)
            && let Some(copy) = self.copies.get(instance).filter(|copy| !copy.doomed)
            && let State::Flowing(Some(before)) = copy.state
            && before != source
        {
            self.copies.set_state(instance, State::Flowing(Some(source)));
            self.world.note(LogEvent::SourceReplaced { id: id.clone(), before, source });
            if self.pulls.is_receiving(id) {
                self.begin_to_receive(id, instance);
                self.stop_fetches(instance);
                self.fetch(id, instance, source);
            }
        }
        // The owner assumes that this node followed its request.
        self.announce(current);
    }

    /// A transfer has delivered everything.
    pub(super) fn fetch_ended(&mut self, fetch: FetchId) {
        let Some(Fetch { instance, .. }) = self.fetches.end(fetch) else { return };
        if self.range_reads.has_copy(instance) {
            self.range_arrived(instance);
        } else {
            self.fetched(instance);
        }
    }

    pub(super) fn fetched(&mut self, instance: Instance) {
        if self.ring_received(instance) {
            return;
        }
        let Some(copy) = self.copies.get(instance).filter(|copy| !copy.doomed) else { return };
        if matches!(copy.state, State::Flowing(_)) {
            self.copies.set_state(instance, State::Complete);
            self.announce(instance);
            self.completed(instance);
        }
    }

    /// A member is gone: its transfers continue from other sources, even if its connections stay
    /// open for long.
    pub(super) fn reroute_pulls(&mut self, node: NodeId) {
        // A copy without memory has not sent its request yet; it will, and fail then.
        let is_fed = |instance: &Instance| {
            let copy = self.copies.get(*instance).filter(|copy| !copy.doomed);
            copy.is_some_and(|copy| copy.state == State::Flowing(Some(node)))
                && !self.ring_results.contains(*instance)
        };
        let fed: Vec<Instance> = self.pulls.receiving().filter(is_fed).collect();
        for instance in fed {
            self.stop_fetches(instance);
            self.source_failed(instance, node, false);
        }
        self.reroute_range_reads(node);
    }

    pub(super) fn fetch_failed(&mut self, fetch: FetchId, not_here: bool) {
        let Some(Fetch { instance, source }) = self.fetches.end(fetch) else { return };
        if self.range_reads.has_copy(instance) {
            self.range_failed(instance, source, not_here);
        } else {
            self.source_failed(instance, source, not_here);
        }
    }

    fn source_failed(&mut self, instance: Instance, source: NodeId, not_here: bool) {
        if self.ring_results.contains(instance) {
            let detail = format!("a part did not arrive from node {source}");
            return self.parts_failed(instance, detail);
        }
        let Some(copy) = self.copies.get(instance).filter(|copy| !copy.doomed) else { return };
        if copy.state != State::Flowing(Some(source)) {
            return;
        }
        let id = copy.id.clone();
        self.copies.set_state(instance, State::Flowing(None));
        if mutants::is_active(Mutant::GivesUpAfterOneSource) {
            return;
        }
        let not_here = not_here.then_some((source, instance));
        let failed = self.pulls.failed(&id, source, not_here, self.world.now());
        let Some(is_first) = failed else { return };
        self.end_if_unwanted(&id);
        if is_first {
            self.locate(&id);
        }
        self.announce_to_backup(instance);
    }

    /// A whole copy arrived, but does not match its creator's digest, for example because of faulty
    /// memory in the source. Readers and receivers keep the present memory, since a ready block
    /// never changes. The copy is fetched again into other memory.
    pub(super) fn copy_differs(&mut self, fetch: FetchId) {
        let Some(Fetch { instance, source }) = self.fetches.end(fetch) else { return };
        if mutants::is_active(Mutant::IgnoresDigests) {
            return self.fetched(instance);
        }
        let Some(copy) = self.copies.get(instance).filter(|copy| !copy.doomed) else { return };
        if copy.state != State::Flowing(Some(source)) {
            return;
        }
        let id = copy.id.clone();
        self.copies.set_state(instance, State::Flowing(None));
        let mismatch = self.pulls.mismatched(&id, source);
        if mismatch != Some(DigestMismatch::Several) {
            self.block_corrupt(source);
        }
        match mismatch {
            Some(DigestMismatch::One | DigestMismatch::Several) => {
                self.copies.replace_memory(instance, &mut self.world);
                self.announce_to_backup(instance);
            }
            Some(DigestMismatch::All) => self.pull_is_corrupt(&id),
            None => {}
        }
    }

    /// Other memory is allocated for a copy with a digest mismatch: request a source.
    pub(super) fn seek_other(&mut self, id: &ObjectId) {
        self.pulls.pause(id, self.world.now());
        self.end_if_unwanted(id);
        self.locate(id);
    }

    /// An inline object arrived that does not match its creator's digest. The other owner has the
    /// bytes too.
    pub(super) fn inline_differs(&mut self, id: &ObjectId, source: NodeId) {
        self.block_corrupt(source);
        if !self.pulls.is_locating(id) {
            return;
        }
        if self.pulls.mismatched(id, source) != Some(DigestMismatch::One) {
            return self.pull_is_corrupt(id);
        }
        let owners = self.world.members().owners(id);
        let owner = owners.iter().find(|owner| *owner != source).unwrap_or(source);
        let (avoid, receives) = (self.pulls.avoided(id), self.pulls.receives(self.world.now()));
        let (id, not_here, seen) = (id.clone(), None, true);
        self.world.send(owner, Message::Locate { id, avoid, not_here, receives, seen });
    }

    /// The copies of all holders are corrupt.
    fn pull_is_corrupt(&mut self, id: &ObjectId) {
        let (id, senders) = (id.clone(), self.pulls.corrupt_senders(id));
        self.pull_failed(&id.clone(), &Error::ObjectCorrupt { id, senders });
    }

    /// Announces to the backup owner that this copy has no source. The primary owner learns it from
    /// the next `Locate`.
    pub(super) fn announce_to_backup(&mut self, instance: Instance) {
        if let Some(announce) = self.announcement(instance) {
            self.send_to_backup(announce);
        }
    }

    pub(super) fn send_to_backup(&mut self, announce: Announce) {
        if let Some(second) = self.world.members().owners(&announce.id).backup {
            self.world.send(second, Message::Announce(announce));
        }
    }
}

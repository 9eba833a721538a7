//! Leave: this node replicates its pinned copies elsewhere, finishes its folds, then leaves.
//!
//! Client requests fail at once. But clients may still seal objects that they are filling, which
//! others may be reading.
//!
//! Each pinned copy gets one more replica ([`crate::machines::replicas`]). If this node leaves
//! files for the next one, all pinned copies are written to disk meanwhile. The files of copies
//! that others keep are removed; the others stay. Otherwise a copy that no member takes is lost, if
//! any member stays: the owners ([`Message::Abandon`]) and the user of this node are notified.
//!
//! A reduce that folds on this node would have to restart, so this node sends [`Message::Leaving`]
//! to every member. From then on the members' reduces use no position here; they take an input from
//! the node that keeps it now. A member replies ([`Message::Drained`]) once none of its reduces has
//! a position here. Earlier orders have arrived by then, since messages of one member keep their
//! order. Reduces of this node's own clients fail at once: their results would be lost with this
//! node.
//!
//! ```text
//!   leave request --> replicated or on disk, unseated, folds over --> Leave
//!         |                                                ^
//!         +--------------- time limit reached -------------+
//!                          reduces that fold here restart without it
//! ```

use super::Node;
use crate::{
    directory::{Context, notify_job_objects},
    error::Error,
    event::Action,
    id::{Instance, NodeId},
    machines::{
        replicas::{Farewell, FarewellStage},
        requests::PendingRequest,
    },
    members::Members,
    message::Message,
    table::{Copy, FileState, Residency},
};

impl Node {
    /// Begins to leave: other members take over the pinned copies of this node.
    pub(super) fn leave(&mut self, timeout_ns: u64) {
        if self.world.members().self_is_leaving() {
            return;
        }
        let me = self.world.me();
        self.world.members_mut().begin_to_leave(me);
        let has_fills = self.claims.filling().next().is_some();
        self.replicas.begin_hand_over(timeout_ns, has_fills, &self.world);
        self.worker.begin_to_drain(&mut self.world);
        for id in self.coordinator.results() {
            let said =
                alloc::format!("node {me}, which coordinated the reduce of {id}, left the cluster");
            self.fail_reduce_of(&id, &Error::NodeDown(said));
        }
        for request in self.requests.numbers() {
            let Some(ended) = self.requests.end(request) else { continue };
            let PendingRequest { client, kind, .. } = ended;
            self.stop_work(request, &kind);
            let error = Error::NodeDown(alloc::format!("node {me} is closing"));
            self.world.reply(client, request, Err(error));
        }
        // A node that requested a replica here requests it from another member.
        for id in self.replicas.refuse_all(&mut self.world) {
            self.end_if_unwanted(&id);
        }
        self.hand_over();
    }

    /// Requests another member for each pinned copy of a slice, if one is due.
    pub(super) fn hand_over(&mut self) {
        for instance in self.replicas.next_to_hand_over(self.copies.table(), &self.world) {
            self.replicate_elsewhere(instance);
        }
    }

    /// Requests another member for a pinned copy of this node, which leaves.
    pub(super) fn replicate_elsewhere(&mut self, instance: Instance) {
        self.settle_replicas(instance);
        let copy = self.copies.get(instance);
        let Some(copy) = copy.filter(|copy| is_handed_over(copy)) else { return };
        self.replicas.hand_over((instance, copy), &mut self.requests, &mut self.world);
        if self.copies.is_persistent() {
            self.copies.write_if_capacity(instance, &mut self.world);
        }
    }

    /// A member is leaving: reduces of this node order no new folds there.
    pub(super) fn member_leaving(&mut self, node: NodeId) {
        let is_repeated = self.world.members().is_leaving(node);
        self.world.members_mut().begin_to_leave(node);
        self.coordinator.begin_draining(node);
        if !is_repeated {
            self.coordinator.keys().into_iter().for_each(|key| self.holder_leaves(key, node));
        }
    }

    /// Leaves once nothing is left to do, or when its time is over. Called after each event, so
    /// that all messages of that event are sent first.
    pub(super) fn leave_when_empty(&mut self) {
        let now = self.world.now();
        if self.replicas.is_hand_over_late(now) || self.has_handed_over() {
            self.replicas.begin_farewell(now);
            self.worker.reject_orders();
        }
        if self.replicas.farewell(now).is_some() {
            self.take_leave();
        }
    }

    /// Whether copies are being handed over, and nothing is left to wait for.
    fn has_handed_over(&self) -> bool {
        let is_open = |instance| self.copies.get(instance).is_some_and(|copy| !copy.doomed);
        // What no member takes stays on disk for the next node.
        let is_written = || !self.replicas.lack_takers() || !self.copies.is_writing();
        self.replicas.is_handed_over()
            && !(self.replicas.awaits_fills() && self.claims.filling().any(is_open))
            && self.worker.is_drained()
            && self.worker.is_done()
            && self.incoming.counts().1 == 0
            && is_written()
    }

    /// Visits one slice of what the other nodes must learn, and then leaves.
    fn take_leave(&mut self) {
        let mut without_me = self.world.members().clone();
        without_me.resign();
        for _ in 0..self.world.slice() {
            let Some(farewell) = self.replicas.farewell(self.world.now()) else { return };
            let stage = farewell.next.clone();
            let Some(next) = self.take_leave_of(stage, &without_me) else {
                return self.end_leave();
            };
            if let Some(farewell) = self.replicas.farewell(self.world.now()) {
                farewell.next = next;
            }
        }
        self.replicas.pause_hand_over(&self.world);
    }

    /// Handles the next one of a kind, and returns where to continue. The nodes that are owners
    /// after this node has left get what no holder could repeat.
    fn take_leave_of(&mut self, stage: FarewellStage, after_me: &Members) -> Option<FarewellStage> {
        let later = |world: &mut Context<'_>, visit: &mut dyn FnMut(&mut Context<'_>)| {
            visit(&mut Context { members: after_me, outbox: world.outbox, ..*world });
        };
        Some(match stage {
            FarewellStage::Copies(after) => {
                let next = self.copies.table().following(after).next();
                let Some(instance) = next else { return Some(FarewellStage::Jobs(None)) };
                self.end_copy(instance);
                FarewellStage::Copies(Some(instance))
            }
            FarewellStage::Jobs(after) => {
                let next = self.directory.next_job(after.as_ref());
                let Some(job) = next else { return Some(FarewellStage::Entries(None)) };
                self.update_directory(|_, world| {
                    later(world, &mut |world| notify_job_objects(&job, true, world));
                });
                FarewellStage::Jobs(Some(job))
            }
            FarewellStage::Entries(after) => {
                let id = self.directory.next_entry(after.as_ref())?.clone();
                self.update_directory(|directory, world| {
                    later(world, &mut |world| directory.pass_on(world, &id));
                });
                FarewellStage::Entries(Some(id))
            }
        })
    }

    /// Sends the last messages.
    fn end_leave(&mut self) {
        let Farewell { lost, files, .. } = self.replicas.end_farewell();
        files.into_iter().for_each(|instance| self.world.act(Action::DropSpilled { instance }));
        for other in self.world.others() {
            self.world.send(other, Message::Leave);
        }
        self.world.act(Action::Left { lost });
    }

    /// Whether a pinned copy is lost because no other node has taken it.
    fn is_lost(&self, instance: Instance) -> bool {
        self.copies.get(instance).is_some_and(is_handed_over) && self.replicas.is_lost(instance)
    }

    /// Reports a pinned copy that no other node has to its owners, unless no member stays. The
    /// owners have the bytes of a small object. A copy on disk for the next node is not lost.
    ///
    /// Removes the file of a copy that another member keeps. The next node must not restore it,
    /// since it may be deleted by then.
    fn end_copy(&mut self, instance: Instance) {
        self.settle_replicas(instance);
        let Some(copy) = self.copies.get(instance) else { return };
        let is_persistent = self.copies.is_persistent();
        let is_restored = is_persistent && copy.file_state == FileState::Written;
        let is_reported = self.world.members().staying() > 0 || is_persistent;
        let lost = (copy.inline.is_none() && is_reported && !is_restored).then(|| copy.id.clone());
        let (is_dropped, residency) = (self.is_file_dropped(instance), copy.residency);
        if let Some(id) = lost.filter(|_| self.is_lost(instance)) {
            self.world.send_owners(&id, &Message::Abandon { id: id.clone(), instance });
            if let Some(farewell) = self.replicas.farewell(self.world.now()) {
                farewell.count_lost(id);
            }
        }
        if !is_dropped {
            return;
        }
        if residency == Residency::Memory {
            self.copies.abandon_file(instance, &mut self.world);
        } else if let Some(farewell) = self.replicas.farewell(self.world.now()) {
            farewell.files.push(instance);
        }
    }

    /// Whether the next node must not restore a copy from its file.
    fn is_file_dropped(&self, instance: Instance) -> bool {
        let Some(copy) = self.copies.get(instance).filter(|_| self.copies.is_persistent()) else {
            return false;
        };
        let is_kept = copy.file_state == FileState::Written && self.is_lost(instance);
        copy.file_state.has_file() && !is_kept
    }
}

/// Whether other members take over a copy.
fn is_handed_over(copy: &Copy) -> bool {
    copy.pinned && copy.is_complete() && !copy.doomed
}

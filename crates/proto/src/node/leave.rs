//! Leave: this node hands over the copies that only it has, finishes its folds, then leaves.
//!
//! Client requests fail at once. But clients may still seal objects that they are filling, which others may be reading.
//!
//! If this node leaves files for the next one, all pinned copies are written to disk while other members are requested
//! to adopt them. The files of adopted copies are removed; the others stay. Otherwise a copy that no member adopts is
//! lost, if any member stays: the owners ([`Message::Abandon`]) and the user of this node are notified.
//!
//! A reduce that folds on this node would have to restart, so this node sends [`Message::Leaving`] to every member.
//! From then on the members' reduces use no position here; they take an input from the node that adopts it. A member
//! replies ([`Message::Drained`]) once none of its reduces has a position here. Earlier orders have arrived by then,
//! since messages of one member keep their order. Reduces of this node's own clients fail at once: their results would
//! be lost with this node.
//!
//! ```text
//!   leave request --> adopted or on disk, unseated, folds over --> Leave
//!         |                                                ^
//!         +--------------- time limit reached -------------+  reduces that fold here restart without it
//! ```

use alloc::vec::Vec;

use super::Node;
use crate::{
    directory,
    error::Error,
    event::Action,
    id::{Instance, NodeId},
    machines::requests::RequestKind,
    message::Message,
    table::{FileState, Residency},
};

impl Node {
    /// Begins to leave: other members take over the pinned copies of this node.
    pub(super) fn leave(&mut self, timeout_ns: u64) {
        if self.leaving.has_begun() {
            return;
        }
        let filling = self.claims.filling();
        self.leaving.begin(timeout_ns, filling, &mut self.world);
        let me = self.world.me();
        for id in self.coordinator.results() {
            let said =
                alloc::format!("node {me}, which coordinated the reduce of {id}, left the cluster");
            self.fail_reduce_of(&id, &Error::NodeDown(said));
        }
        for request in self.requests.numbers() {
            match self.requests.kind(request).cloned() {
                Some(RequestKind::Object(id)) => self.stop_waiting(&id, request),
                Some(RequestKind::Follow(id)) => self.readers.stop_following(&id, request),
                Some(RequestKind::Wait(waited)) => {
                    waited.stop(request, &mut self.watches, &mut self.world);
                }
                Some(RequestKind::Range(_)) => self.end_range(request),
                _ => {}
            }
            let error = Error::NodeDown(alloc::format!("node {me} is closing"));
            self.requests.reply(request, Err(error), &mut self.world);
        }
        // A node that requested adoption here requests it from another member.
        for id in self.hosted_replicas.refuse_all(&mut self.world) {
            self.end_if_unwanted(&id);
        }
        self.hand_over();
    }

    /// Hands over a slice of the pinned copies, if one is due.
    pub(super) fn hand_over(&mut self) {
        self.leaving.hand_over(self.copies.table(), &mut self.world);
    }

    /// A member is leaving: reduces of this node order no new folds there.
    pub(super) fn member_leaving(&mut self, node: NodeId) {
        self.world.members_mut().begin_to_leave(node);
        self.leaving.begin_draining(node);
        for key in self.coordinator.keys() {
            self.update_reduce(key, |reduce, _, _, steps| reduce.holder_leaves(node, steps));
        }
    }

    /// Notifies leaving members when no reduce of this node has a position there.
    pub(super) fn confirm_drained(&mut self) {
        if self.leaving.draining() == 0 {
            return;
        }
        self.leaving.confirm_drained(&self.coordinator.contributing_nodes(), &mut self.world);
    }

    /// Leaves once nothing is left to do, or when its time is over. Called after each event, so that all messages of
    /// that event are sent first.
    pub(super) fn leave_when_empty(&mut self) {
        if self.copies.is_persistent() {
            self.spill_untransferred();
        }
        let has_folded = self.worker.is_done() && self.ring_results.len() == 0;
        let Self { leaving, copies, world, .. } = self;
        let is_written = |instance| {
            let state = copies.get(instance).map(|copy| copy.file_state);
            !matches!(state, Some(FileState::Writing(_)))
        };
        if !leaving.end(has_folded, is_written, world.now()) {
            return;
        }
        let Some(slice) = leaving.next_farewell(copies.table(), world) else { return };
        self.take_leave_of(&slice.copies);
        if !slice.is_last {
            return;
        }
        self.drop_files_in_use();
        let mut without_me = self.world.members().clone();
        without_me.resign();
        self.update_directory(|directory, world| {
            directory.leave(&mut directory::Context {
                members: &without_me,
                outbox: world.outbox,
                ..*world
            });
        });
        for other in self.world.others() {
            self.world.send(other, Message::Leave);
        }
        let lost = self.leaving.left();
        self.world.act(Action::Left { lost });
    }

    /// Writes copies that no other node adopted to disk, if there is room.
    fn spill_untransferred(&mut self) {
        for instance in self.leaving.take_unspilled() {
            self.copies.write_if_capacity(instance, &mut self.world);
        }
    }

    /// Reports pinned copies that no other node has to their owners, unless no member stays. The owners have the bytes
    /// of small objects. Copies on disk for the next node are not lost.
    ///
    /// Removes files of adopted copies. The next node must not restore them, since they may be deleted by then.
    fn take_leave_of(&mut self, some: &[Instance]) {
        let is_persistent = self.copies.is_persistent();
        let members = self.world.members();
        let is_last = self.world.others().into_iter().all(|other| members.is_leaving(other));
        let is_reported = !is_last || is_persistent;
        for instance in some.iter().copied() {
            let Some(copy) = self.copies.get(instance) else { continue };
            let is_lost = self.leaving.is_lost(instance, self.copies.table());
            let is_restored = is_persistent && copy.file_state == FileState::Written;
            if is_lost && is_reported && copy.inline.is_none() && !is_restored {
                let id = copy.id.clone();
                self.world.send_owners(&id, &Message::Abandon { id: id.clone(), instance });
                self.leaving.count_lost(id);
            }
            if copy.residency == Residency::Memory && self.is_file_dropped(instance) {
                self.copies.abandon_file(instance, &mut self.world);
            }
        }
    }

    /// Whether the next node must not restore a copy from its file.
    fn is_file_dropped(&self, instance: Instance) -> bool {
        let Some(copy) = self.copies.get(instance).filter(|_| self.copies.is_persistent()) else {
            return false;
        };
        let is_lost = self.leaving.is_lost(instance, self.copies.table());
        let is_kept = copy.file_state == FileState::Written && is_lost && !copy.doomed;
        copy.file_state.has_file() && !is_kept
    }

    /// Removes files of adopted copies that may be read until this node ends.
    fn drop_files_in_use(&mut self) {
        let table = self.copies.table().iter();
        let in_use = table.filter(|(_, copy)| copy.residency != Residency::Memory);
        let mut instances: Vec<Instance> = in_use.map(|(instance, _)| instance).collect();
        instances.retain(|instance| self.is_file_dropped(*instance));
        for instance in instances {
            self.world.act(Action::DropSpilled { instance });
        }
    }
}

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
//! replies ([`Message::Unseated`]) once none of its reduces has a position here. Earlier orders have arrived by then,
//! since messages of one member keep their order. Reduces of this node's own clients fail at once: their results would
//! be lost with this node.
//!
//! ```text
//!   leave request --> adopted or on disk, unseated, folds over --> Leave
//!         |                                                ^
//!         +--------------- time limit reached -------------+  reduces that fold here restart without it
//! ```

use alloc::{collections::BTreeSet, vec::Vec};

use super::Node;
use crate::{
    directory,
    error::Error,
    event::{Action, Lost},
    id::{Instance, NodeId},
    limits::LOST_NAMED_MAX,
    machines::requests::Waiting,
    message::Message,
    table::{Copy, Filed},
};

impl Node {
    /// Begins to leave: other members take over the pinned copies of this node.
    pub(super) fn leave(&mut self, patience_ns: u64) {
        if self.leaving.has_begun() {
            return;
        }
        let filling = self.puts.filling();
        self.leaving.begin(patience_ns, filling, &mut self.world);
        let me = self.world.me();
        for id in self.coordinator.results() {
            let said =
                alloc::format!("node {me}, which coordinated the reduce of {id}, left the cluster");
            self.fail_reduce_of(&id, &Error::NodeDown(said));
        }
        for request in self.requests.numbers() {
            match self.requests.kind(request).cloned() {
                Some(Waiting::Object(id)) => self.stop_waiting(&id, request),
                Some(Waiting::Growth(id)) => self.readers.stop_following(&id, request),
                Some(Waiting::Several(waited)) => {
                    waited.stop(request, &mut self.watches, &mut self.world);
                }
                _ => {}
            }
            let error = Error::NodeDown(alloc::format!("node {me} is closing"));
            self.requests.reply(request, Err(error), &mut self.world);
        }
        // A node that requested adoption here requests it from another member.
        for id in self.adoptions.refuse_all(&mut self.world) {
            self.end_if_unwanted(&id);
        }
        let originals = self
            .copies
            .table()
            .iter()
            .filter(|(_, copy)| copy.origin && copy.is_complete() && !copy.doomed);
        for instance in originals.map(|(instance, _)| instance).collect::<Vec<Instance>>() {
            self.leaving.filled(instance, self.copies.table(), &mut self.world);
        }
    }

    /// A member is leaving: reduces of this node order no new folds there.
    pub(super) fn member_leaves(&mut self, node: NodeId) {
        self.world.members_mut().begin_to_leave(node);
        self.leaving.begin_unseating(node);
        for key in self.coordinator.keys() {
            self.advise(key, |reduce, _, _, steps| reduce.holder_leaves(node, steps));
        }
    }

    /// Notifies leaving members when no reduce of this node has a position there.
    pub(super) fn unseat(&mut self) {
        if self.leaving.unseating() == 0 {
            return;
        }
        self.leaving.unseat(&self.coordinator.seats(), &mut self.world);
    }

    /// Leaves once nothing is left to do, or when its time is over. Called after each event, so that all messages of
    /// that event are sent first.
    pub(super) fn leave_when_empty(&mut self) {
        let has_folded = self.worker.is_done() && self.scatters.len() == 0;
        let has_written = !self.copies.is_keeping() || self.has_filed();
        let is_done = has_folded && has_written;
        let Some(homeless) = self.leaving.end(is_done, self.world.now()) else { return };
        let lost = self.abandon(&homeless);
        if self.copies.is_keeping() {
            self.drop_files_but(&homeless);
        }
        let mut without_me = self.world.members().clone();
        without_me.resign();
        self.tell_directory(|directory, world| {
            directory.leave(&mut directory::World {
                members: &without_me,
                mail: world.mail,
                ..*world
            });
        });
        for other in self.world.others() {
            self.world.send(other, Message::Leave);
        }
        self.world.act(Action::Left { lost });
    }

    /// Writes copies that no other node adopted to disk, if there is room. Returns whether all such writes have ended.
    fn has_filed(&mut self) -> bool {
        for instance in self.leaving.take_unfiled() {
            self.copies.write_if_room(instance, &mut self.world);
        }
        let Self { leaving, copies, .. } = self;
        leaving.is_so_of_the_homeless(|instance| {
            copies.get(instance).is_none_or(|copy| copy.filed != Filed::Writing)
        })
    }

    /// Removes files of adopted copies. The next node must not restore them, since they may be deleted by then.
    fn drop_files_but(&mut self, homeless: &BTreeSet<Instance>) {
        let is_filed = |(instance, copy): &(Instance, &Copy)| {
            copy.filed != Filed::No
                && !(copy.filed == Filed::Written && homeless.contains(instance) && !copy.doomed)
        };
        let void = self.copies.table().iter().filter(is_filed).map(|(instance, _)| instance);
        for instance in void.collect::<Vec<Instance>>() {
            self.world.act(Action::DropSpilled { instance });
        }
    }

    /// Reports pinned copies that no other node has to their owners, unless no member stays. The owners have the bytes
    /// of small objects. Copies on disk for the next node are not lost.
    fn abandon(&mut self, originals: &BTreeSet<Instance>) -> Lost {
        let mut lost = Lost::default();
        let members = self.world.members();
        let is_last = self.world.others().into_iter().all(|other| members.is_leaving(other));
        if is_last && !self.copies.is_keeping() {
            return lost;
        }
        for instance in originals {
            let copy = self.copies.get(*instance);
            let Some(copy) = copy.filter(|copy| copy.inline.is_none()) else { continue };
            if self.copies.is_keeping() && copy.filed == Filed::Written {
                // The next node restores it.
                continue;
            }
            let id = copy.id.clone();
            self.world.send_owners(&id, &Message::Abandon { id: id.clone(), instance: *instance });
            lost.count += 1;
            if lost.ids.len() < LOST_NAMED_MAX {
                lost.ids.push(id);
            }
        }
        lost
    }
}

//! Leave: this node hands over what only it holds and finishes what it folds, then says good-bye.
//!
//! Clients are told at once that it is closing; but what they are filling in that moment, and others may be reading while
//! it grows, they may still seal.
//!
//! What no other member takes stays on disk, if this node leaves files for the next one: all originals are written while
//! others are asked, and the files of those that were taken go. Else it is lost, if a member stays: the owners are told
//! ([`Message::Abandon`]), and the user of this node.
//!
//! A reduce that folds here would have to begin again, so this node asks every member ([`Message::Leaving`]). From then on
//! the member's reduces take no seat here: an input that only this node holds they take from the node that adopts it. A
//! member answers ([`Message::Unseated`]) when none of its reduces has a seat here any more; orders that it gave before
//! have come by then, since messages of one member keep their order. What this node's own clients reduce fails at once:
//! their result would be lost with this node.
//!
//! ```text
//!   told to leave --> adopted or on disk, unseated, folds over --> good-bye
//!         |                                                ^
//!         +--------------- its time is over ---------------+  what it still folds begins again without it
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
    /// This node shall leave: others take over the originals that are here.
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
        // A node that asked this one, and leaves too, asks another one.
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

    /// A member was told to leave: reduces of this node order it nothing new.
    pub(super) fn member_leaves(&mut self, node: NodeId) {
        self.world.members_mut().begin_to_leave(node);
        self.leaving.begin_unseating(node);
        for key in self.coordinator.keys() {
            self.advise(key, |reduce, _, _, steps| reduce.holder_leaves(node, steps));
        }
    }

    /// Members that leave hear when no reduce of this node has a seat there.
    pub(super) fn unseat(&mut self) {
        if self.leaving.unseating() == 0 {
            return;
        }
        self.leaving.unseat(&self.coordinator.seats(), &mut self.world);
    }

    /// Says good-bye once nothing is left to be done, or its time is over; after each event, for what came of it is to be
    /// said before.
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

    /// Has what no other node has taken written to disk, as far as there is room; whether that is done of what none takes.
    fn has_filed(&mut self) -> bool {
        for instance in self.leaving.take_unfiled() {
            self.copies.write_if_room(instance, &mut self.world);
        }
        let Self { leaving, copies, .. } = self;
        leaving.is_so_of_the_homeless(|instance| {
            copies.get(instance).is_none_or(|copy| copy.filed != Filed::Writing)
        })
    }

    /// What other nodes have taken over is not to come back with the next node: it may be deleted by then.
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

    /// Tells the owners of originals that no other node has. Where no member stays nothing is lost to one; and the bytes of
    /// a small object are at its owners too. What is on disk for the next node is not lost, and comes back with it.
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
                // It comes back.
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

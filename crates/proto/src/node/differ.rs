//! Bytes that came and have another digest than their maker announced: they are void, and are sought at other nodes.
//!
//! The shell makes digests and compares them; what arrives, and from where, is in [`super::get`]. Only an object whose
//! maker announced a digest comes here. Of others checksums find what changes on the way, and a sender that lies is believed.

use super::{Action, Node};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    message::Message,
    table::State,
};

impl Node {
    /// A whole copy has come, and is void. Who passes it on, and who reads it on the way, keeps the memory in which it is: a
    /// block that is ready never changes. What comes next comes into other memory.
    pub(super) fn copy_differs(&mut self, instance: Instance, source: NodeId) {
        let Some(copy) = self.table.get(instance).filter(|copy| !copy.doomed) else { return };
        if copy.state != State::Flowing(Some(source)) {
            return;
        }
        let (id, size) = (copy.id.clone(), copy.meta.size);
        self.table.set_state(instance, State::Flowing(None));
        let Some(liars) = self.pulls.differed(&id) else { return };
        for node in liars {
            self.block_corrupt(node);
        }
        self.world.act(Action::FreeSlot { instance });
        self.world.act(Action::CreateSlot { instance, size, writer: None });
        self.tell_second(instance);
    }

    /// There is memory for an object again whose bytes were void: another sender is sought.
    pub(super) fn seek_other(&mut self, id: &ObjectId) {
        self.pulls.pause(id, self.world.now());
        self.end_if_unwanted(id);
        self.locate(id);
    }

    /// An owner has sent a small object, and is not believed. The other owner has the bytes too.
    pub(super) fn inline_differs(&mut self, id: &ObjectId, source: NodeId) {
        self.block_corrupt(source);
        if !self.pulls.is_asking(id) {
            return;
        }
        self.pulls.lied(id, source);
        let owners = self.world.members().owners(id);
        let other = core::iter::once(owners.first)
            .chain(owners.second)
            .find(|owner| !self.pulls.has_lied(id, *owner));
        let Some(owner) = other else { return self.pull_is_corrupt(id) };
        let (avoid, receives) = (self.pulls.avoided(id), self.pulls.receives(self.world.now()));
        let (id, not_here, seen) = (id.clone(), None, true);
        self.world.send(owner, Message::Locate { id, avoid, not_here, receives, seen });
    }

    /// Who has the object has sent other bytes.
    pub(super) fn pull_is_corrupt(&mut self, id: &ObjectId) {
        let (id, senders) = (id.clone(), self.pulls.liars(id));
        self.pull_failed(&id.clone(), &Error::ObjectCorrupt { id, senders });
    }
}

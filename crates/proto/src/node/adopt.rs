//! Adopt: this node holds an original for another one, which leaves, or wants it to be at several nodes.

use alloc::vec::Vec;

use super::{Action, Node};
use crate::{
    id::{Instance, NodeId, ObjectId},
    inline::Inline,
    limits::INLINE_BYTES_MAX,
    message::Message,
    meta::Meta,
    table::State,
};

/// An original on its way to here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adoption {
    pub(super) asker: NodeId,
    instance: Instance,
    /// Whether the asker waits until there is room here.
    may_wait: bool,
}

impl Node {
    /// Another node asks this one to keep an original.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn adopt(
        &mut self,
        asker: NodeId,
        id: ObjectId,
        instance: Instance,
        meta: Meta,
        inline: Option<Inline>,
        may_wait: bool,
        out: &mut Vec<Action>,
    ) {
        let is_small = meta.size <= INLINE_BYTES_MAX;
        let is_wrong = !meta.is_consistent() || is_small != inline.is_some();
        let is_void = self.table.get(instance).is_some_and(|copy| copy.doomed);
        // What is here of another instance is not it, and keeps it from being received.
        let is_other = self.table.current(&id).is_some_and(|current| current != instance);
        if self.leaving.is_some() || is_wrong || is_void || is_other {
            return self.send(asker, Message::Adopted { id, instance, kept: false }, out);
        }
        if let Some(copy) = self.table.get_mut(instance) {
            if copy.is_complete() {
                copy.origin = true;
                self.announce(instance, out);
                return self.send(asker, Message::Adopted { id, instance, kept: true }, out);
            }
        } else if inline.is_some() {
            let Some(evicted) = self.table.make_room(meta.size) else {
                return self.send(asker, Message::Adopted { id, instance, kept: false }, out);
            };
            self.evicted(evicted, out);
            self.table.insert(instance, id.clone(), meta, inline, State::Complete, true);
            self.reveal(instance, out);
            self.announce(instance, out);
            self.completed(instance, out);
            return self.send(asker, Message::Adopted { id, instance, kept: true }, out);
        }
        let adoption = Adoption { asker, instance, may_wait };
        if let Some(before) = self.adoptions.insert(id.clone(), adoption)
            && before.asker != asker
        {
            self.refuse_adoption(&id, before, out);
        }
        self.pull_if_wanted(&id, out);
        self.adoption_lacks_room(&id, out);
    }

    /// A copy has arrived; if it was taken over for another node, that is told.
    pub(super) fn adoption_arrived(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        out: &mut Vec<Action>,
    ) {
        let Some(adoption) = self.adoptions.remove(id) else { return };
        if adoption.instance != instance {
            return self.refuse_adoption(id, adoption, out);
        }
        if let Some(copy) = self.table.get_mut(instance) {
            copy.origin = true;
        }
        self.announce(instance, out);
        let id = id.clone();
        self.send(adoption.asker, Message::Adopted { id, instance, kept: true }, out);
    }

    /// There is no room for an object now. If its adoption is to be refused for that, another node may have some.
    pub(super) fn adoption_lacks_room(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        let is_refused = self.adoptions.get(id).is_some_and(|adoption| !adoption.may_wait);
        if is_refused && self.pull_has_waited(id) {
            self.adoption_failed(id, out);
            self.end_if_unwanted(id, out);
        }
    }

    /// An original will not come to here.
    pub(super) fn adoption_failed(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        if let Some(adoption) = self.adoptions.remove(id) {
            self.refuse_adoption(id, adoption, out);
        }
    }

    fn refuse_adoption(&mut self, id: &ObjectId, adoption: Adoption, out: &mut Vec<Action>) {
        let (id, instance, kept) = (id.clone(), adoption.instance, false);
        self.send(adoption.asker, Message::Adopted { id, instance, kept }, out);
    }
}

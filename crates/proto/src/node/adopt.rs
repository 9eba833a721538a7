//! Adopt: this node holds an original for another one, which leaves, or wants it to be at several nodes.
//!
//! What is kept for a node that lives can be given back, when clients here need its room: the other node finds another
//! keeper first.

use alloc::vec::Vec;

use super::{Node, SpaceFor};
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

/// An original that is kept for a node that has it too.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptFor {
    asker: NodeId,
    /// Whether that was asked to find another keeper.
    is_given_back: bool,
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
    ) {
        let is_small = meta.size <= INLINE_BYTES_MAX;
        let is_wrong = !meta.is_consistent() || is_small != inline.is_some();
        let is_void = self.table.get(instance).is_some_and(|copy| copy.doomed);
        // What is here of another instance is not it, and keeps it from being received.
        let is_other = self.table.current(&id).is_some_and(|current| current != instance);
        if self.leaving.is_some() || is_wrong || is_void || is_other {
            return self.world.send(asker, Message::Adopted { id, instance, kept: false });
        }
        if let Some(copy) = self.table.get_mut(instance) {
            if copy.is_complete() {
                let was_original = core::mem::replace(&mut copy.origin, true);
                self.note_keeping(instance, asker, may_wait, was_original);
                self.announce(instance);
                return self.world.send(asker, Message::Adopted { id, instance, kept: true });
            }
        } else if inline.is_some() {
            let Some(evicted) = self.table.make_room(meta.size) else {
                return self.world.send(asker, Message::Adopted { id, instance, kept: false });
            };
            self.evicted(evicted);
            self.table.insert(instance, id.clone(), meta, inline, State::Complete, true);
            self.note_keeping(instance, asker, may_wait, false);
            self.reveal(instance);
            self.announce(instance);
            self.completed(instance);
            return self.world.send(asker, Message::Adopted { id, instance, kept: true });
        }
        let adoption = Adoption { asker, instance, may_wait };
        if let Some(before) = self.adoptions.insert(id.clone(), adoption)
            && before.asker != asker
        {
            self.refuse_adoption(&id, before);
        }
        self.pull_if_wanted(&id);
        self.adoption_lacks_room(&id);
    }

    /// A copy has arrived; if it was taken over for another node, that is told.
    pub(super) fn adoption_arrived(&mut self, id: &ObjectId, instance: Instance) {
        let Some(adoption) = self.adoptions.remove(id) else { return };
        if adoption.instance != instance {
            return self.refuse_adoption(id, adoption);
        }
        if let Some(copy) = self.table.get_mut(instance) {
            let was_original = core::mem::replace(&mut copy.origin, true);
            self.note_keeping(instance, adoption.asker, adoption.may_wait, was_original);
        }
        self.announce(instance);
        let id = id.clone();
        self.world.send(adoption.asker, Message::Adopted { id, instance, kept: true });
    }

    /// An original is kept for `asker`: for good if that leaves.
    fn note_keeping(
        &mut self,
        instance: Instance,
        asker: NodeId,
        leaves: bool,
        was_original: bool,
    ) {
        if leaves {
            self.kept_for.remove(&instance);
        } else if !was_original || self.kept_for.contains_key(&instance) {
            self.kept_for.insert(instance, KeptFor { asker, is_given_back: false });
        }
    }

    /// Clients of this node wait for room: asks to give back so much of what is kept for others as that takes, if it can be
    /// enough.
    pub(super) fn give_back(&mut self, wants: &SpaceFor, size: u64) {
        let is_for_another =
            |id: &ObjectId| self.adoptions.contains_key(id) && !self.waiting.contains_key(id);
        if matches!(wants, SpaceFor::Pull(id) if is_for_another(id)) {
            return;
        }
        let mut missing = self.table.missing_for(size);
        let mut chosen = Vec::new();
        for (instance, kept) in &self.kept_for {
            let copy =
                self.table.get(*instance).filter(|copy| copy.is_complete() && copy.pins == 0);
            let can_go =
                self.world.members().contains(kept.asker) && !self.keeping.contains_key(instance);
            let Some(copy) = copy.filter(|_| can_go) else { continue };
            if missing == 0 && !kept.is_given_back {
                continue;
            }
            missing = missing.saturating_sub(copy.cost());
            if !kept.is_given_back {
                chosen.push((*instance, kept.asker, copy.id.clone()));
            }
        }
        for (instance, asker, id) in chosen.into_iter().filter(|_| missing == 0) {
            if let Some(kept) = self.kept_for.get_mut(&instance) {
                kept.is_given_back = true;
            }
            self.world.send(asker, Message::Adopted { id, instance, kept: false });
        }
    }

    /// Enough other nodes keep an original: the copy here may go.
    pub(super) fn unkeep(&mut self, asker: NodeId, instance: Instance) {
        if self.kept_for.get(&instance).is_none_or(|kept| kept.asker != asker) {
            return;
        }
        self.kept_for.remove(&instance);
        if self.keeping.contains_key(&instance) {
            // A client of this node wants copies of it, too.
            return;
        }
        if let Some(copy) = self.table.get_mut(instance) {
            copy.origin = false;
            self.announce(instance);
            self.grant_space();
        }
    }

    /// There is no room for an object now. If its adoption is to be refused for that, another node may have some.
    pub(super) fn adoption_lacks_room(&mut self, id: &ObjectId) {
        let is_refused = self.adoptions.get(id).is_some_and(|adoption| !adoption.may_wait);
        if is_refused && self.pull_has_waited(id) {
            self.adoption_failed(id);
            self.end_if_unwanted(id);
        }
    }

    /// An original will not come to here.
    pub(super) fn adoption_failed(&mut self, id: &ObjectId) {
        if let Some(adoption) = self.adoptions.remove(id) {
            self.refuse_adoption(id, adoption);
        }
    }

    fn refuse_adoption(&mut self, id: &ObjectId, adoption: Adoption) {
        let (id, instance, kept) = (id.clone(), adoption.instance, false);
        self.world.send(adoption.asker, Message::Adopted { id, instance, kept });
    }
}

//! Adopt: this node holds an original for another one, which leaves, or wants it to be at several nodes.
//!
//! What is kept for a node that lives can be given back, when clients here need its room: the other node finds another
//! keeper first.

use alloc::{collections::BTreeMap, vec::Vec};

use super::{Action, Node, room::SpaceFor};
use crate::{
    id::{Instance, NodeId, ObjectId},
    inline::Inline,
    limits::INLINE_BYTES_MAX,
    message::Message,
    meta::Meta,
    table::{Copy, State},
};

/// An original on its way to here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adoption {
    pub(super) asker: NodeId,
    instance: Instance,
    /// Whether the asker waits until there is room here.
    may_wait: bool,
}

/// Originals that are kept for nodes that have them too.
#[derive(Debug, Default)]
pub(super) struct KeptForOthers {
    /// Those that were not given back.
    kept: BTreeMap<Instance, KeptFor>,
    kept_bytes: u64,
    /// Those for which another keeper is sought.
    given_back: BTreeMap<Instance, KeptFor>,
    given_back_bytes: u64,
}

/// For whom an original is kept, and what it takes of the capacity.
#[derive(Clone, Copy, Debug)]
struct KeptFor {
    asker: NodeId,
    bytes: u64,
}

impl KeptForOthers {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.given_back.is_empty()
    }

    fn asker(&self, instance: Instance) -> Option<NodeId> {
        let kept = self.kept.get(&instance).or_else(|| self.given_back.get(&instance));
        kept.map(|kept| kept.asker)
    }

    fn insert(&mut self, instance: Instance, asker: NodeId, bytes: u64) {
        self.remove(instance);
        self.kept_bytes += bytes;
        self.kept.insert(instance, KeptFor { asker, bytes });
    }

    pub(super) fn remove(&mut self, instance: Instance) {
        if let Some(kept) = self.kept.remove(&instance) {
            self.kept_bytes -= kept.bytes;
        } else if let Some(given) = self.given_back.remove(&instance) {
            self.given_back_bytes -= given.bytes;
        }
    }

    fn give_back(&mut self, instance: Instance) {
        if let Some(kept) = self.kept.remove(&instance) {
            self.kept_bytes -= kept.bytes;
            self.given_back_bytes += kept.bytes;
            self.given_back.insert(instance, kept);
        }
    }

    /// A node that is lost looks for no other keepers.
    pub(super) fn without(&mut self, node: NodeId) {
        let hit = self.given_back.iter().filter(|(_, given)| given.asker == node);
        for (instance, given) in hit.map(|(i, given)| (*i, *given)).collect::<Vec<_>>() {
            self.insert(instance, given.asker, given.bytes);
        }
    }
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
        if let Some(copy) = self.table.get(instance) {
            if copy.is_complete() {
                let was_original = self.table.set_origin(instance, true).unwrap_or_default();
                self.note_keeping(instance, asker, may_wait, was_original);
                self.announce(instance, out);
                return self.send(asker, Message::Adopted { id, instance, kept: true }, out);
            }
        } else if inline.is_some() {
            let Some(evicted) = self.table.make_room(meta.size) else {
                return self.send(asker, Message::Adopted { id, instance, kept: false }, out);
            };
            self.evicted(evicted, out);
            self.table.insert(instance, id.clone(), meta, inline, State::Complete, true);
            self.note_keeping(instance, asker, may_wait, false);
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
        if let Some(was_original) = self.table.set_origin(instance, true) {
            self.note_keeping(instance, adoption.asker, adoption.may_wait, was_original);
        }
        self.announce(instance, out);
        let id = id.clone();
        self.send(adoption.asker, Message::Adopted { id, instance, kept: true }, out);
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
            self.kept_for.remove(instance);
        } else if !was_original || self.kept_for.asker(instance).is_some() {
            let bytes = self.table.get(instance).map_or(0, Copy::cost);
            self.kept_for.insert(instance, asker, bytes);
        }
    }

    /// Clients of this node wait for room: asks to give back so much of what is kept for others as that takes, if it can be
    /// enough for one of them.
    pub(super) fn give_back(&mut self, out: &mut Vec<Action>) {
        if self.kept_for.kept.is_empty() || self.space.len() == 0 {
            return;
        }
        let Some(missing) = self.missing_with(self.kept_for.kept_bytes) else { return };
        let (mut chosen, covered) = self.returnable(missing);
        if covered < missing {
            // Some of it is read now: the rest may be enough for another object.
            let Some(missing) = self.missing_with(covered) else { return };
            chosen = self.returnable(missing).0;
        }
        for (instance, asker, id) in chosen {
            self.kept_for.give_back(instance);
            self.send(asker, Message::Adopted { id, instance, kept: false }, out);
        }
    }

    /// What the largest object that clients wait for would lack when all that was given back is gone, if `more` bytes beside
    /// it are enough for that object.
    fn missing_with(&self, more: u64) -> Option<u64> {
        let is_for_another = |who: &SpaceFor| match who {
            SpaceFor::Pull(id) => self.adoptions.contains_key(id) && !self.waiting.contains_key(id),
            _ => false,
        };
        let given_back = self.kept_for.given_back_bytes;
        let room = self.table.room_with(given_back.saturating_add(more))?;
        let (_, size) = self.space.largest_within(room).find(|(who, _)| !is_for_another(who))?;
        Some(self.table.missing_for(size).saturating_sub(given_back))
    }

    /// Originals of others that can go, enough of them for `missing` bytes or all; and the bytes that they take.
    fn returnable(&self, missing: u64) -> (Vec<(Instance, NodeId, ObjectId)>, u64) {
        let (mut chosen, mut covered) = (Vec::new(), 0);
        for (instance, kept) in &self.kept_for.kept {
            if covered >= missing {
                break;
            }
            let copy =
                self.table.get(*instance).filter(|copy| copy.is_complete() && copy.pins == 0);
            let can_go = self.members.contains(kept.asker) && !self.keeping.contains_key(instance);
            if let Some(copy) = copy.filter(|_| can_go) {
                covered += kept.bytes;
                chosen.push((*instance, kept.asker, copy.id.clone()));
            }
        }
        (chosen, covered)
    }

    /// Enough other nodes keep an original: the copy here may go.
    pub(super) fn unkeep(&mut self, asker: NodeId, instance: Instance, out: &mut Vec<Action>) {
        if self.kept_for.asker(instance) != Some(asker) {
            return;
        }
        self.kept_for.remove(instance);
        if self.keeping.contains_key(&instance) {
            // A client of this node wants copies of it, too.
            return;
        }
        if self.table.set_origin(instance, false).is_some() {
            self.announce(instance, out);
            self.grant_space(out);
        }
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

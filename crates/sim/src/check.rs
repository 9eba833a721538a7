//! Checkers: invariants after every event, of every reply, and at the end.

mod answers;
mod end;

use std::collections::BTreeMap;

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId},
    message::{Message, Progress},
    node::Action,
    table::{Census, Residency},
};

use crate::{payload::Content, plan::SECOND, world::World};

/// How often one holder may refuse the same copy to one receiver: once after it lost the copy, and a few times because
/// its announcements cross the refusals.
const REFUSALS_MAX: u32 = 6;

impl World {
    /// Checks the invariants of a node after each of its events.
    pub(crate) fn check_node(&mut self, node: NodeId) {
        let Some(host) = self.hosts.get(&node) else { return };
        let table = host.node.table();
        let mut broken = None;
        let in_memory = table.iter().filter(|(_, copy)| copy.residency != Residency::Disk);
        let bytes: u64 = in_memory.map(|(_, copy)| copy.meta.size).sum();
        if bytes > table.used() || table.used() > table.capacity() {
            broken = Some(format!(
                "{node:?} holds {bytes} bytes, but accounts for {} of {}",
                table.used(),
                table.capacity()
            ));
        }
        let (small, most) = host.node.directory().inline_bytes();
        if small > most {
            broken = Some(format!(
                "{node:?} stores {small} bytes of small objects, above the limit {most}"
            ));
        }
        let (directory, counted) = (host.node.directory(), host.node.directory().recount());
        if directory.len() != counted {
            let kept = directory.len();
            broken = Some(format!("{node:?} counts {kept} objects in its directory of {counted}"));
        }
        let (kept, counted) = (table.census(), Census::of(table.iter().map(|(_, copy)| copy)));
        if *kept != counted {
            broken = Some(format!("{node:?} counts {kept:?} of its copies, which are {counted:?}"));
        }
        broken = broken.or_else(|| self.check_disk(node));
        broken = broken.or_else(|| self.counts_barred(node));
        if let Some(cycle) = self.directory_cycle(node) {
            broken = Some(cycle);
        }
        if let Some(broken) = broken {
            self.fail(broken);
        }
    }

    /// A stale location must be corrected by its first use.
    pub(crate) fn check_refusal(&mut self, receiver: NodeId, holder: NodeId, instance: Instance) {
        let count = self.shell.refusals.entry((receiver, holder, instance)).or_default();
        *count += 1;
        if *count > REFUSALS_MAX {
            let count = *count;
            self.fail(format!("{holder:?} refused {instance} to {receiver:?} {count} times"));
        }
    }

    /// A node may drop a message only if it disagrees with the sender about the members.
    pub(crate) fn check_message_refusal(&mut self, node: NodeId, from: NodeId, message: &Message) {
        if !self.users.is_shrunk && self.now.since(self.agreed_since) > SECOND {
            self.fail(format!(
                "{node:?} drops {message:?} from {from:?}, although all nodes agree on the members"
            ));
        }
    }

    /// Checks small copies from an event: all copies of one instance must be equal, and each result must be a fold.
    pub(crate) fn check_small_copies(&mut self, node: NodeId, actions: &[Action]) {
        let Some(host) = self.hosts.get(&node) else { return };
        let mut new = Vec::new();
        let mut broken = None;
        let held = host.node.table().iter();
        let held =
            held.filter_map(|(instance, copy)| Some((instance, &copy.id, copy.inline.as_ref()?)));
        // A copy that lost its name to another exists only during the event: look at the announcements too.
        let told = actions.iter().filter_map(|action| match action {
            Action::Send { message: Message::Announce(told), .. } if told.pinned => {
                let Progress::Inline(bytes) = &told.progress else { return None };
                Some((told.instance, &told.id, bytes))
            }
            _ => None,
        });
        for (instance, id, inline) in held.chain(told) {
            let content = Content::from_inline(inline);
            match self.shell.contents.get(&instance) {
                None => new.push((instance, id.clone(), content)),
                Some(known) if known.is_same(&content) => {}
                Some(known) => broken = Some(format!("{instance} is {content:?}, not {known:?}")),
            }
        }
        for (instance, id, content) in new {
            self.result_made(&id, &content);
            self.shell.contents.insert(instance, content);
        }
        if let Some(broken) = broken {
            self.fail(broken);
        }
    }

    /// Finds a cycle of copies that receive from each other, in the view of one owner.
    fn directory_cycle(&self, node: NodeId) -> Option<String> {
        let host = self.hosts.get(&node)?;
        let mut sources: BTreeMap<(&ObjectId, NodeId), NodeId> = BTreeMap::new();
        for (id, receiver, sender) in host.node.directory().sources() {
            if host.node.members().owners(id).primary == node {
                sources.insert((id, receiver), sender);
            }
        }
        for (id, start) in sources.keys() {
            let mut at = *start;
            for _ in 0..=sources.len() {
                match sources.get(&(*id, at)) {
                    Some(sender) => at = *sender,
                    None => break,
                }
                if at == *start {
                    return Some(format!(
                        "{node:?} has a cycle of transfers of {id:?} through {start:?}"
                    ));
                }
            }
        }
        None
    }

    /// Finds a cycle of copies that receive from each other. Owners that had not seen each other's replies may assign
    /// such sources, but the cycle must not last after they are informed.
    pub(crate) fn check_sources(&mut self, start: NodeId, instance: Instance, is_first: bool) {
        let mut sources = BTreeMap::new();
        let mut id = None;
        for flow in self.shell.flows.values() {
            // The nodes of a ring reduce exchange parts of its result.
            if let crate::shell::FlowTarget::Copy { id: of, instance: what, ordered: false, .. } =
                &flow.what
                && *what == instance
            {
                sources.insert(flow.to, flow.from);
                id = Some(of);
            }
        }
        let Some(id) = id else { return };
        let mut at = start;
        let mut circle = Vec::new();
        for _ in 0..sources.len() {
            let Some(sender) = sources.get(&at) else { return };
            at = *sender;
            circle.push(at);
            if at != start {
                continue;
            }
            if is_first || circle.iter().any(|receiver| self.was_held_up(*receiver, id)) {
                let again = crate::world::SimEvent::CheckSources { start, instance };
                return self.after(SECOND, again);
            }
            return self.fail(format!(
                "transfers of {instance} form a cycle through {start:?}: {sources:?}"
            ));
        }
    }

    /// Whether a fault separated a node and the owner of an id within the last second.
    fn was_held_up(&self, node: NodeId, id: &ObjectId) -> bool {
        let lately = self.now.before(SECOND);
        let Some(host) = self.hosts.get(&node) else { return false };
        let owner = host.node.members().owners(id).primary;
        let thaws = |id| self.hosts.get(&id).and_then(|host| host.frozen_until).unwrap_or_default();
        [
            thaws(node),
            thaws(owner),
            self.net.healed_at(node, owner),
            self.net.healed_at(owner, node),
        ]
        .into_iter()
        .any(|until| until > lately)
    }
}

//! The checkers: what must hold after every event, of every answer, and when all is over.

mod answers;
mod end;

use std::collections::BTreeMap;

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId},
    message::{Message, Progress},
    node::Action,
    table::Place,
};

use crate::{payload::Content, plan::SECOND, world::World};

/// How often one holder may refuse one receiver the same copy: once when it has none any more, and a few times because
/// news of its copies cross the refusals.
const REFUSALS_MAX: u32 = 6;

impl World {
    /// After every event of a node.
    pub(crate) fn check_node(&mut self, node: NodeId) {
        let Some(host) = self.hosts.get(&node) else { return };
        let table = host.node.table();
        let mut broken = None;
        let in_memory = table.iter().filter(|(_, copy)| copy.place != Place::Disk);
        let bytes: u64 = in_memory.map(|(_, copy)| copy.meta.size).sum();
        if bytes > table.used() || table.used() > table.capacity() {
            broken = Some(format!(
                "{bytes} bytes at {node:?}: {} accounted of {}",
                table.used(),
                table.capacity()
            ));
        }
        let (small, most) = host.node.directory().small_bytes();
        if small > most {
            broken = Some(format!("{small} bytes of small objects live at {node:?}, of {most}"));
        }
        broken = broken.or_else(|| self.check_disk(node));
        if let Some(cycle) = self.directory_cycle(node) {
            broken = Some(cycle);
        }
        if let Some(broken) = broken {
            self.fail(broken);
        }
    }

    /// A stale location is corrected by its first use.
    pub(crate) fn check_refusal(&mut self, receiver: NodeId, holder: NodeId, instance: Instance) {
        let count = self.shell.refusals.entry((receiver, holder, instance)).or_default();
        *count += 1;
        if *count > REFUSALS_MAX {
            let count = *count;
            self.fail(format!("{receiver:?} was refused {instance} {count} times by {holder:?}"));
        }
    }

    /// A node drops a message only if its sender and it do not agree on who is a member.
    pub(crate) fn check_message_refusal(&mut self, node: NodeId, from: NodeId, message: &Message) {
        if !self.users.is_shrunk && self.now.since(self.agreed_since) > SECOND {
            self.fail(format!("{node:?} refuses {message:?} of {from:?}, though all agree"));
        }
    }

    /// Small copies that an event brought: all of one instance must be equal, and each result a fold.
    pub(crate) fn check_small_copies(&mut self, node: NodeId, actions: &[Action]) {
        let Some(host) = self.hosts.get(&node) else { return };
        let mut new = Vec::new();
        let mut broken = None;
        let held = host.node.table().iter();
        let held =
            held.filter_map(|(instance, copy)| Some((instance, &copy.id, copy.inline.as_ref()?)));
        // One that lost its name to another was there for no longer than the event.
        let told = actions.iter().filter_map(|action| match action {
            Action::Send { message: Message::Announce(told), .. } if told.origin => {
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

    /// Copies that grow from each other in a circle, as far as one owner knows.
    fn directory_cycle(&self, node: NodeId) -> Option<String> {
        let host = self.hosts.get(&node)?;
        let mut feeds: BTreeMap<(&ObjectId, NodeId), NodeId> = BTreeMap::new();
        for (id, receiver, sender) in host.node.directory().feeds() {
            if host.node.members().owners(id).first == node {
                feeds.insert((id, receiver), sender);
            }
        }
        for (id, start) in feeds.keys() {
            let mut at = *start;
            for _ in 0..=feeds.len() {
                match feeds.get(&(*id, at)) {
                    Some(sender) => at = *sender,
                    None => break,
                }
                if at == *start {
                    return Some(format!("{node:?} lets {start:?} wait for itself for {id:?}"));
                }
            }
        }
        None
    }

    /// Copies that are received from each other in a circle: owners who did not know of each other's answers may have
    /// named such senders, but not for long after they are told of all of it.
    pub(crate) fn check_feeds(&mut self, start: NodeId, instance: Instance, is_first: bool) {
        let mut feeds = BTreeMap::new();
        let mut id = None;
        for flow in self.shell.flows.values() {
            // Those who make parts of a result take them from each other.
            if let crate::shell::What::Copy { id: of, instance: what, ordered: false, .. } =
                &flow.what
                && *what == instance
            {
                feeds.insert(flow.to, flow.from);
                id = Some(of);
            }
        }
        let Some(id) = id else { return };
        let mut at = start;
        let mut circle = Vec::new();
        for _ in 0..feeds.len() {
            let Some(sender) = feeds.get(&at) else { return };
            at = *sender;
            circle.push(at);
            if at != start {
                continue;
            }
            if is_first || circle.iter().any(|receiver| self.was_held_up(*receiver, id)) {
                let again = crate::world::Happening::CheckFeeds { start, instance };
                return self.after(SECOND, again);
            }
            return self.fail(format!("{start:?} receives {instance} from itself: {feeds:?}"));
        }
    }

    /// Whether something kept a node and the owner of a name from each other within the last second.
    fn was_held_up(&self, node: NodeId, id: &ObjectId) -> bool {
        let lately = self.now.before(SECOND);
        let Some(host) = self.hosts.get(&node) else { return false };
        let owner = host.node.members().owners(id).first;
        let thaws = |id| self.hosts.get(&id).and_then(|host| host.frozen_until).unwrap_or_default();
        [thaws(node), thaws(owner), self.net.mended(node, owner), self.net.mended(owner, node)]
            .into_iter()
            .any(|until| until > lately)
    }
}

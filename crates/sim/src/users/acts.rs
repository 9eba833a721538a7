//! Acts of clients: each act becomes requests to nodes. Replies are handled in `answers`.

use std::collections::BTreeSet;

use hoplite_proto::{
    id::{ClientId, NodeId, ObjectId, RequestId},
    limits::INLINE_BYTES_MAX,
    meta::Op,
    node::{Event, LEAVE_TIMEOUT_NS},
    request::Request,
};

use super::{Later, Purpose, Writer};
use crate::{
    payload::{Content, Piece, Tag},
    plan::{Act, Fate, MICROSECOND, Make, PUBLISHED, Spec},
    shell::blocks_of,
    world::{SimEvent, World},
};

impl World {
    pub(crate) fn act(&mut self, act: Act) {
        match &act {
            Act::Make { object, at } => {
                let object = *object;
                match &self.users.objects[object].spec.make {
                    Make::Put { .. } => self.put(object, *at),
                    Make::Reduce { .. } => self.reduce(object, *at, &act),
                }
            }
            Act::Get { object, at, selection, timeout_ns, cancel_ns, read_ns } => {
                let Some(id) = self.id_or_later(*object, &act) else { return };
                let Some((node, client)) = self.client_at(*at) else { return };
                let (selection, read_ns) = (*selection, *read_ns);
                let purpose = Purpose::Get { id: id.clone(), selection, read_ns };
                let body = match selection {
                    None => Request::Get { id },
                    Some(selection) => Request::GetRange { id, selection },
                };
                let request = self.ask(node, client, body, purpose, *timeout_ns);
                self.cancel_after(request, *cancel_ns);
            }
            Act::Follow { .. } | Act::Wait { .. } | Act::Locations { .. } | Act::Prune { .. } => {
                self.query(&act)
            }
            Act::Inputs { object } => {
                let Some(id) = self.id_or_later(*object, &act) else { return };
                let node = self.users.objects[*object].node;
                let nodes = self.staying();
                let Some(node) = node.filter(|node| nodes.contains(node)) else { return };
                let client = self.client_of(node);
                let purpose = Purpose::Inputs { object: *object };
                self.ask(node, client, Request::Inputs { id }, purpose, None);
            }
            Act::Replicate { object, replicas: copies } => self.keep(*object, *copies, &act),
            Act::Delete { object, at } => {
                let Some(id) = self.id_or_later(*object, &act) else { return };
                let Some((node, client)) = self.client_at(*at) else { return };
                self.delete(node, client, vec![id]);
            }
            Act::Latest { after, at, timeout_ns } => {
                let Some((node, client)) = self.client_at(*at) else { return };
                let (prefix, after) = (PUBLISHED, *after);
                let body = Request::Latest { prefix: prefix.into(), after };
                let purpose = Purpose::Latest { prefix, after, newest: None };
                self.ask(node, client, body, purpose, Some(*timeout_ns));
            }
            Act::ClientDies { at } => {
                if let Some((_, client)) = self.client_at(*at) {
                    self.client_dies(client);
                }
            }
            Act::Join => self.add_host(None),
            Act::Leave { at } => self.leave(*at),
            Act::Fault { at, fault, time_ns } => self.inject_fault(*at, *fault, *time_ns),
            Act::Crash { at } => drop(self.crash(*at)),
            Act::Revoke { at } => self.revoke(*at),
            Act::Fork { at, time_ns } => self.fork(*at, *time_ns),
            Act::Break { at } => self.break_off(*at),
            Act::Restart { at, pause_ns } => self.restart(*at, *pause_ns),
        }
    }

    fn leave(&mut self, at: u64) {
        let nodes = self.staying();
        let can_leave = nodes.len() > 1 && self.all_have_met();
        let Some(node) = nodes.get(at as usize % nodes.len().max(1)).filter(|_| can_leave) else {
            return;
        };
        let node = *node;
        self.users.is_shrunk = true;
        if let Some(host) = self.hosts.get_mut(&node) {
            host.is_leaving = true;
        }
        self.deliver(node, Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS });
    }

    /// Puts an object. In some clusters its client reserves the name first, and puts it later; or it fills a slot of
    /// another client.
    fn put(&mut self, object: usize, at: u64) {
        let Some((node, client)) = self.client_at(at) else { return };
        if self.plan.has_slots && self.users.objects[object].spec.name.is_none() {
            let caller = self.dice.below(1 << 20);
            let Some((its, caller)) = self.client_at(caller) else { return };
            let purpose = Purpose::Slot { object, node, filler: client };
            self.ask(its, caller, Request::Slots { count: 1 }, purpose, None);
            return;
        }
        let Some(name) =
            self.users.objects[object].spec.name.clone().filter(|_| self.plan.reserves)
        else {
            return self.put_at(object, node, client);
        };
        let (is_agreed, has_joined) = (self.all_have_met(), self.has_joined(node));
        let known = &mut self.users.objects[object];
        (known.is_agreed, known.has_joined, known.node) = (is_agreed, has_joined, Some(node));
        let body = Request::Reserve { name: Some(name) };
        self.ask(node, client, body, Purpose::Reserve { object }, None);
    }

    fn put_at(&mut self, object: usize, node: NodeId, client: ClientId) {
        let tag = Tag(self.users.count());
        let (is_agreed, has_joined) = (self.all_have_met(), self.has_joined(node));
        let known = &mut self.users.objects[object];
        known.has_joined = has_joined;
        known.is_agreed = is_agreed;
        known.node = Some(node);
        known.contents.insert(Content::of(tag));
        let slot = known.id.clone().filter(ObjectId::is_slot);
        let id = known.spec.name.clone().map(ObjectId::Named).or(slot);
        let meta = known.spec.meta.clone();
        if meta.size <= INLINE_BYTES_MAX {
            let (bytes, ttl_ns) = (Content::of(tag).to_inline(), self.lives(object, client));
            let body = Request::Put { id, meta, bytes, ttl_ns };
            self.ask(node, client, body, Purpose::Put { object, tag }, None);
        } else {
            let timeout_ns = self.dice.chance(20).then_some(self.plan.end.0 / 4);
            let body = Request::Create { id, meta, ttl_ns: self.lives(object, client) };
            self.ask(node, client, body, Purpose::Create { object, tag }, timeout_ns);
        }
    }

    fn reduce(&mut self, object: usize, at: u64, act: &Act) {
        let Spec { name, make, .. } = self.users.objects[object].spec.clone();
        let Make::Reduce { inputs, count, timeout_ns, cancel_ns } = make else { return };
        let mut ids = Vec::new();
        for input in inputs {
            let Some(id) = self.id_or_later(input, act) else { return };
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let Some((node, client)) = self.client_at(at) else { return };
        let has_joined = self.has_joined(node);
        let known = &mut self.users.objects[object];
        (known.node, known.has_joined) = (Some(node), has_joined);
        let count = count.min(ids.len()) as u32;
        let id = name.map(ObjectId::Named);
        let ttl_ns = self.lives(object, client);
        let body = Request::Reduce { inputs: ids, op: Op::Sum, count, id, ttl_ns };
        let request = self.ask(node, client, body, Purpose::Reduce { object }, timeout_ns);
        self.cancel_after(request, cancel_ns);
    }

    pub(crate) fn delete(&mut self, node: NodeId, client: ClientId, ids: Vec<ObjectId>) {
        for id in &ids {
            for object in self.users.by_id.get(id).cloned().unwrap_or_default() {
                self.users.objects[object].is_delete_requested = true;
            }
        }
        let ended = self.no_longer_made(node, &ids);
        self.ask(node, client, Request::Delete { ids }, Purpose::Delete { ended }, None);
    }

    pub(crate) fn client_dies(&mut self, client: ClientId) {
        let Some(dead) = self.users.clients.get_mut(&client).filter(|client| !client.is_gone)
        else {
            return;
        };
        dead.is_gone = true;
        let node = dead.node;
        self.users.end_reads(client);
        let (mut created, mut sealed, mut reduced) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for asked in self.users.requests.values().filter(|asked| asked.client == client) {
            match asked.purpose {
                Purpose::Create { object, .. } => created.insert(object),
                Purpose::Seal { object, .. } => sealed.insert(object),
                // A reduce that is not complete ends with its client.
                Purpose::Reduce { object } => reduced.insert(object),
                _ => false,
            };
        }
        let promised = self.users.requests.values().filter(|asked| asked.client == client);
        let promised = promised.filter_map(|asked| match asked.purpose {
            Purpose::Reserve { object } => Some(object),
            _ => None,
        });
        for object in promised.collect::<Vec<_>>() {
            self.users.objects[object].is_failed |= !self.users.objects[object].is_made;
        }
        for object in created.difference(&sealed).chain(&reduced) {
            self.users.objects[*object].is_failed = true;
        }
        for pending in self.users.requests.values_mut() {
            pending.is_void |= pending.client == client;
        }
        self.deliver(node, Event::ClientDisconnected { client, process: None });
        let requests = self.users.requests.iter();
        let open = requests.filter(|(_, asked)| asked.client == client && !asked.is_answered);
        if let Some((request, _)) = open.into_iter().next().filter(|_| self.is_up(node)) {
            self.fail(format!("{request:?} of {client:?}, which has ended, got no reply"));
        }
    }

    /// Ends the clients of a failed host; they no longer wait for replies.
    pub(crate) fn users_of_host_gone(&mut self, node: NodeId) {
        for client in self.users.clients.values_mut().filter(|client| client.node == node) {
            client.is_gone = true;
        }
        self.users.reads.retain(|(host, _, _), _| *host != node);
        for pending in self.users.requests.values_mut().filter(|asked| asked.node == node) {
            pending.is_void = true;
            pending.is_answered = true;
        }
    }

    pub(crate) fn users_later(&mut self, later: Later) {
        match later {
            Later::Cancel { request } => self.cancel(request),
            Later::ChildEnds { node, child } => self.child_ends(node, child),
            Later::Begin { member } => self.add_host(Some(member)),
            Later::Put { object, node, client } => {
                if self.users.is_gone(client) || !self.is_up(node) {
                    self.users.objects[object].is_failed = true;
                } else {
                    self.put_at(object, node, client);
                }
            }
            Later::Release { node, client, instance } => {
                let Some(count) = self.users.reads.get_mut(&(node, instance, client)) else {
                    return;
                };
                *count -= 1;
                if *count == 0 {
                    self.users.reads.remove(&(node, instance, client));
                }
                let request = RequestId(self.users.count());
                // Readers copied every second object.
                let body = if instance.serial.is_multiple_of(2) {
                    Request::Release { instance }
                } else {
                    Request::ReleaseCopied { instance }
                };
                self.deliver(node, Event::Request { client, request, body, deadline: None });
            }
            Later::Locations { node, client, id, known, changes } => {
                if self.users.is_gone(client) || !self.is_up(node) {
                    return;
                }
                let known = Some(known);
                let must = Vec::new();
                let body = Request::Locations { id: id.clone(), known: known.clone() };
                let purpose = Purpose::Locations { id, known, changes, must };
                self.ask(node, client, body, purpose, None);
            }
        }
    }

    pub(crate) fn cancel(&mut self, request: RequestId) {
        let Some(pending) = self.users.requests.get_mut(&request) else { return };
        if pending.is_answered {
            return;
        }
        pending.is_void = true;
        let (node, client) = (pending.node, pending.client);
        self.deliver(node, Event::Cancelled { client, request });
        let is_answered = self.users.requests.get(&request).is_some_and(|asked| asked.is_answered);
        if !is_answered && self.is_up(node) {
            self.fail(format!("{request:?} was canceled and got no reply"));
        }
    }

    pub(crate) fn write(&mut self, mut writer: Writer) {
        let Writer { object, node, client, instance, tag, next } = writer;
        if self.users.is_gone(client) || !self.is_up(node) {
            self.users.objects[object].is_failed = true;
            return;
        }
        let slot = self.hosts.get(&node).and_then(|host| host.slots.get(&instance)).copied();
        let Some(slot) = slot else {
            return self.fail(format!("{client:?} writes {instance} at {node:?}, which was freed"));
        };
        let Make::Put { fate, pace_ns } = self.users.objects[object].spec.make else { return };
        let end = blocks_of(self.shell.slots[slot].size);
        if next == end {
            let purpose = Purpose::Seal { object, instance };
            self.ask(node, client, Request::Seal { instance }, purpose, None);
            return;
        }
        if fate != Fate::Sealed && next > end / 2 {
            self.users.objects[object].is_failed = true;
            if fate == Fate::Orphaned {
                return self.client_dies(client);
            }
            self.ask(node, client, Request::Abort { instance }, Purpose::Abort, None);
            return;
        }
        self.write_slot(slot, Piece { index: next, content: Content::of(tag) });
        writer.next += 1;
        self.after(pace_ns + 5 * MICROSECOND, SimEvent::Write(writer));
    }
}

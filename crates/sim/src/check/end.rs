//! Checks the end of a simulation: every client that still waits has a reason to, and nothing remains after all objects
//! are deleted.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId},
    table::{Residency, Table, file_bytes},
    time::Instant,
};

use crate::{
    plan::{Disk, Make, SECOND},
    users::Purpose,
    world::{Host, World},
};

impl World {
    /// Runs the plan, lets the cluster settle, and checks the final state.
    pub(crate) fn check_end(&mut self) {
        let end = self.plan.end + 90 * SECOND;
        self.run_until(self.plan.end);
        self.end_job();
        self.run_until(end);
        self.check_lifetimes();
        self.check_directories();
        self.check_stored();
        self.check_deleted();
        self.check_replica_promises();
        let existing = self.existing();
        self.query_once_more(&existing);
        self.check_surviving_names();
        self.get_everything_once_more();
        self.run_until(end + 60 * SECOND);
        self.check_waiters();
        self.clear_away(end + 90 * SECOND);
    }

    /// Cancels all requests and deletes all objects; nothing may remain at `end`.
    fn clear_away(&mut self, end: Instant) {
        let open = self.users.requests.iter().filter(|(_, asked)| !asked.is_answered);
        for request in open.map(|(request, _)| *request).collect::<Vec<_>>() {
            if self.failure.is_none() {
                self.cancel(request);
            }
        }
        self.delete_everything();
        self.run_until(end);
        self.check_rest();
    }

    /// Returns objects that are complete somewhere: by id, the nodes that hold them.
    pub(crate) fn existing(&self) -> BTreeMap<ObjectId, Vec<NodeId>> {
        let mut existing: BTreeMap<ObjectId, Vec<NodeId>> = BTreeMap::new();
        for (node, host) in self.hosts.iter().filter(|(_, host)| host.is_up && !host.is_leaving) {
            for (instance, copy) in host.node.table().iter() {
                let is_current = host.node.table().current(&copy.id) == Some(instance);
                if copy.is_complete() && !copy.doomed && is_current {
                    existing.entry(copy.id.clone()).or_default().push(*node);
                }
            }
        }
        existing
    }

    /// Each complete copy must be registered with the primary owner of its object, and all must be of one instance.
    fn check_directories(&mut self) {
        for (id, nodes) in self.existing() {
            let current = |node: &NodeId| self.hosts[node].node.table().current(&id);
            let instances: BTreeSet<Option<Instance>> = nodes.iter().map(current).collect();
            if instances.len() > 1 {
                self.fail(format!("{id:?} has several instances {instances:?} at {nodes:?}"));
            }
            let Some(some) = self.hosts.get(&nodes[0]) else { continue };
            let owner = some.node.members().owners(&id).primary;
            let Some(host) = self.hosts.get(&owner).filter(|host| host.is_up) else {
                self.fail(format!(
                    "{:?} still considers {owner:?} a member, which is down",
                    nodes[0]
                ));
                continue;
            };
            let known = host.node.directory().holders(&id);
            for node in nodes {
                if !known.contains(&node) {
                    self.fail(format!("{owner:?} has no entry for the copy of {id:?} at {node:?}"));
                }
            }
        }
    }

    /// Small objects of which no node has a copy, each with an owner that stores its bytes.
    pub(crate) fn without_copies(&self) -> Vec<(ObjectId, NodeId)> {
        let up = self.hosts.iter().filter(|(_, host)| host.is_up && !host.is_leaving);
        let of = |(node, host): (&NodeId, &Host)| {
            let ids = host.node.directory().without_copies(host.node.members());
            ids.map(|id| (id.clone(), *node)).collect::<Vec<_>>()
        };
        up.flat_map(of).collect()
    }

    /// The primary owner must know each object that another owner has, unless it has no capacity for the bytes.
    pub(crate) fn check_stored(&mut self) {
        for (id, node) in self.without_copies() {
            let owner = self.hosts[&node].node.members().owners(&id).primary;
            let is_known = self.hosts.get(&owner).is_some_and(|it| it.node.directory().is_fed(&id));
            if !is_known && self.plan.config.inline_capacity.is_none() {
                self.fail(format!("{owner:?} has no entry for {id:?}, which {node:?} has stored"));
            }
        }
    }

    /// No owner may have an entry of an object that has neither a copy nor stored bytes.
    pub(crate) fn check_entries(&mut self) {
        let up = || self.hosts.values().filter(|host| host.is_up && !host.is_leaving);
        let mut left: BTreeSet<(ObjectId, Instance)> = BTreeSet::new();
        for host in up() {
            left.extend(host.node.directory().live().map(|(id, it)| (id.clone(), it)));
        }
        for host in up() {
            for (instance, copy) in host.node.table().iter() {
                left.remove(&(copy.id.clone(), instance));
            }
        }
        let is_reserved = |id: &ObjectId| up().any(|h| h.node.directory().is_reserved(id));
        left.retain(|(id, _)| !is_reserved(id));
        left.retain(|(id, _)| !self.without_copies().iter().any(|(stored, _)| stored == id));
        if let Some((id, instance)) = left.first() {
            self.fail(format!("of {id:?}, {instance}, there is an entry but nothing else"));
        }
    }

    fn get_everything_once_more(&mut self) {
        for id in self.existing().into_keys() {
            for _ in 0..2 {
                let nodes = self.staying();
                let Some(node) = self.dice.pick(&nodes) else { continue };
                let client = self.client_of(node);
                let body = hoplite_proto::request::Request::Get { id: id.clone() };
                let purpose = Purpose::Get { id: id.clone(), selection: None, read_ns: 0 };
                self.ask(node, client, body, purpose, None);
            }
        }
    }

    /// No client may wait for an object that exists, unless it does not fit.
    fn check_waiters(&mut self) {
        let existing = self.existing();
        let mut stuck = None;
        for (request, asked) in &self.users.requests {
            if asked.is_answered {
                continue;
            }
            match &asked.purpose {
                Purpose::Get { id, .. } if existing.contains_key(id) => {
                    let table = self.hosts[&asked.node].node.table();
                    let holder = self.hosts[&existing[id][0]].node.table();
                    let copy = holder.current(id).and_then(|instance| holder.get(instance));
                    let size = copy.map_or(0, |copy| copy.meta.size) + 4096;
                    let can_be_sent = copy.is_none_or(|copy| copy.residency == Residency::Memory);
                    if has_room(table, size, self.plan.disk)
                        && (can_be_sent || has_room(holder, size, self.plan.disk))
                    {
                        stuck = Some(format!(
                            "{request:?} at {:?} waits for {id:?}; {} of {} bytes are used, {} pinned",
                            asked.node,
                            table.used(),
                            table.capacity(),
                            table.pinned()
                        ));
                    }
                }
                Purpose::Get { id, .. } if self.could_be_folded(id, &existing) => {
                    stuck =
                        Some(format!("{request:?} waits for {id:?}, of which all inputs exist"));
                }
                Purpose::Get { id, .. } if self.is_abandoned(id) => {
                    stuck = Some(format!("{request:?} waits for {id:?}, whose client has ended"));
                }
                Purpose::Seal { .. }
                | Purpose::Delete { .. }
                | Purpose::Reduce { .. }
                | Purpose::Reserve { .. }
                | Purpose::Slot { .. } => {
                    stuck = Some(format!("{request:?} waits: {:?}", asked.purpose));
                }
                Purpose::Put { .. } | Purpose::Create { .. } | Purpose::Replicate { .. }
                    if !self.is_tight() =>
                {
                    stuck = Some(format!("{request:?} waits: {:?}", asked.purpose));
                }
                purpose => {
                    if let Some(why) = self.stuck_query(asked.node, purpose, &existing) {
                        stuck = Some(format!("{request:?} waits: {purpose:?}: {why}"));
                    }
                }
            }
        }
        if let Some(stuck) = stuck {
            self.fail(format!("{stuck}: nothing prevents it"));
        }
    }

    /// Whether the only client that was to put an object has ended before, after it had reserved the name.
    fn is_abandoned(&self, id: &ObjectId) -> bool {
        let mut made = self.users.objects_of(id);
        let (Some(object), None) = (made.next(), made.next()) else { return false };
        let is_over = object.reserved_by.is_some_and(|client| self.users.is_gone(client));
        is_over && !(object.is_made || object.may_be_gone() || self.users.is_shrunk)
    }

    /// Whether an object is the result of a reduce that can complete: its caller and enough inputs exist, and there is
    /// capacity for everything.
    fn could_be_folded(&self, id: &ObjectId, existing: &BTreeMap<ObjectId, Vec<NodeId>>) -> bool {
        let mut made = self.users.objects_of(id);
        let (Some(object), None) = (made.next(), made.next()) else { return false };
        let Make::Reduce { inputs, count, timeout_ns, .. } = &object.spec.make else {
            return false;
        };
        // It may have timed out while the owners of its name did not learn of that.
        if timeout_ns.is_some() && object.spec.name.is_some() && self.users.is_shrunk {
            return false;
        }
        let ids = self.ids(inputs);
        // A reduce does without a name that was deleted while it was reserved, even if the name is put later.
        let was_released = |id: &ObjectId| self.plan.reserves && self.users.is_delete_requested(id);
        let is_there = |id: &&ObjectId| {
            existing.contains_key(*id)
                && self.users.objects_of(id).count() == 1
                && !was_released(id)
        };
        let is_caller_there = object.node.is_some_and(|node| self.staying().contains(&node));
        is_caller_there
            && !(self.is_tight() || object.is_failed || object.may_be_gone())
            && ids.iter().filter(is_there).count() >= (*count).min(ids.len())
    }

    fn delete_everything(&mut self) {
        let nodes = self.staying();
        let Some(node) = self.dice.pick(&nodes) else { return };
        let known = self.users.objects.iter().filter_map(|object| object.id.clone());
        let mut ids: BTreeSet<ObjectId> = known.collect();
        for host in self.hosts.values().filter(|host| host.is_up) {
            ids.extend(host.node.table().iter().map(|(_, copy)| copy.id.clone()));
        }
        let client = self.client_of(node);
        if self.failure.is_none() {
            self.delete(node, client, ids.into_iter().collect());
        }
    }

    /// After everything is deleted and no request is open, nothing may remain.
    fn check_rest(&mut self) {
        let mut left = Vec::new();
        for (node, host) in self.hosts.iter().filter(|(_, host)| host.is_up) {
            let waiting = host.node.open_requests();
            if waiting > 0 {
                left.push(format!("{waiting} requests at {node:?}"));
            }
            for (instance, copy) in host.node.table().iter() {
                left.push(format!("a copy of {:?} at {node:?}: {instance} {copy:?}", copy.id));
            }
            // Between two membership changes, a request may remain at a node that owned the object in between.
            let is_stale = |what: &String| what.ends_with("of other nodes") && self.users.is_shrunk;
            let unfinished = host.node.unfinished().filter(|what| !is_stale(what));
            left.extend(unfinished.map(|what| format!("{what} at {node:?}")));
            left.extend(host.slots.keys().map(|slot| format!("slot {slot} at {node:?}")));
            left.extend(host.files.keys().map(|file| format!("a file of {file} at {node:?}")));
            let entries = host.node.directory().live();
            left.extend(entries.map(|(id, it)| format!("an entry of {id:?}, {it}, at {node:?}")));
        }
        let stored = self.without_copies().into_iter();
        left.extend(stored.map(|(id, node)| format!("the bytes of {id:?} at {node:?}")));
        left.extend(self.shell.flows.values().map(|flow| format!("{flow:?}")));
        left.extend(self.shell.folds.values().map(|fold| format!("{fold:?}")));
        let open = self.users.requests.iter().filter(|(_, asked)| !asked.is_answered);
        left.extend(open.map(|(request, asked)| format!("{request:?}: {:?}", asked.purpose)));
        if !left.is_empty() {
            self.fail(format!("left after everything was deleted: {}", left.join("; ")));
        }
    }
}

/// Whether a node has capacity for a copy, or can free it by spilling others to its disk.
fn has_room(table: &Table, size: u64, disk: Option<Disk>) -> bool {
    let disk = disk.filter(|disk| disk.failures == 0);
    let largest = table.iter().map(|(_, copy)| file_bytes(copy.meta.size)).max().unwrap_or(0);
    let files = table.unfiled() + (table.unfiled() >> 3) + 8192 * table.len() as u64;
    let taken = table.on_disk() + files + 2 * largest;
    let spillable = if disk.is_some_and(|disk| taken <= disk.limit) { table.unfiled() } else { 0 };
    table.pinned() - spillable + size <= table.capacity()
}

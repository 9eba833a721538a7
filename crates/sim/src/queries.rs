//! Clients that observe: they wait for several objects, follow one that arrives, and watch its holders. Also clients
//! that prune. Sends the requests of the plan and checks the replies.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_proto::{
    error::Error,
    id::{ClientId, Instance, Name, NodeId, ObjectId, RequestId},
    message::Holding,
    meta::Meta,
    request::{Location, Request},
    table::Residency,
};

use crate::{
    plan::{Act, PUBLISHED},
    users::{Later, Purpose},
    world::{SimEvent, World},
};

impl World {
    /// Sends the request of an act, if it is one of these.
    pub(crate) fn query(&mut self, act: &Act) {
        match act {
            Act::Follow { object, at, with_get, timeout_ns, cancel_ns } => {
                let Some(id) = self.id_or_later(*object, act) else { return };
                let Some((node, client)) = self.client_at(*at) else { return };
                if *with_get {
                    let purpose = Purpose::Get { id: id.clone(), selection: None, read_ns: 0 };
                    let body = Request::Get { id: id.clone() };
                    let request = self.ask(node, client, body, purpose, *timeout_ns);
                    self.cancel_after(request, *cancel_ns);
                }
                let purpose = Purpose::Follow { id: id.clone() };
                let request = self.ask(node, client, Request::Follow { id }, purpose, *timeout_ns);
                self.cancel_after(request, *cancel_ns);
            }
            Act::Wait { objects, count, at, timeout_ns, cancel_ns } => {
                let mut ids = Vec::new();
                for object in objects {
                    let Some(id) = self.id_or_later(*object, act) else { return };
                    if !ids.contains(&id) {
                        ids.push(id);
                    }
                }
                let Some((node, client)) = self.client_at(*at) else { return };
                let count = (*count).min(ids.len());
                let purpose = Purpose::Wait { ids: ids.clone(), count };
                let body = Request::Wait { ids, count: count as u32 };
                let request = self.ask(node, client, body, purpose, *timeout_ns);
                self.cancel_after(request, *cancel_ns);
            }
            Act::Locations { object, at, changes, timeout_ns, cancel_ns } => {
                let Some(id) = self.id_or_later(*object, act) else { return };
                let Some((node, client)) = self.client_at(*at) else { return };
                let (known, changes) = (None, *changes);
                let purpose = Purpose::Locations { id: id.clone(), known, changes, must: vec![] };
                let body = Request::Locations { id, known: None };
                let request = self.ask(node, client, body, purpose, *timeout_ns);
                self.cancel_after(request, *cancel_ns);
            }
            Act::Prune { version, retain: keep, at, timeout_ns } => {
                let Some((node, client)) = self.client_at(*at) else { return };
                let is_older = |id: &ObjectId| published(id).is_some_and(|other| other < *version);
                for object in self.users.objects.iter_mut() {
                    object.is_delete_requested |= object.id.as_ref().is_some_and(is_older);
                }
                let Ok(name) = format!("{PUBLISHED}{version}").parse::<Name>() else { return };
                let body = Request::Prune { name, retain: *keep };
                self.ask(node, client, body, Purpose::Prune, *timeout_ns);
            }
            _ => {}
        }
    }

    pub(crate) fn cancel_after(&mut self, request: RequestId, delay_ns: Option<u64>) {
        if let Some(delay_ns) = delay_ns {
            self.after(delay_ns, SimEvent::Users(Later::Cancel { request }));
        }
    }

    /// Records the objects that were complete somewhere after an event of `node`.
    pub(crate) fn note_complete(&mut self, node: NodeId) {
        let Some(host) = self.hosts.get(&node) else { return };
        for (instance, copy) in host.node.table().iter() {
            // The owner of a name has the bytes of a small object before its creator learns that it got the name.
            let is_there = copy.is_complete() || copy.inline.is_some();
            if is_there && self.users.completed.insert(instance) {
                self.users.came.insert(copy.id.clone());
            }
        }
        self.note_complete_since(node);
    }

    /// Checks the reply to a wait: as many objects as requested, each complete or lost.
    pub(crate) fn check_waited(
        &mut self,
        request: RequestId,
        ids: &[ObjectId],
        count: usize,
        ready: &[u32],
    ) {
        let Some(asked) = self.users.requests.get(&request) else { return };
        let is_over = asked.is_void || asked.deadline.is_some_and(|deadline| deadline <= self.now);
        let distinct: BTreeSet<u32> = ready.iter().copied().collect();
        let is_known = distinct.len() == ready.len()
            && distinct.last().is_none_or(|last| (*last as usize) < ids.len());
        if !is_known || ready.len() > count || ready.len() < count && !is_over {
            return self
                .fail(format!("{ready:?} are ready, but the request was for {count} of {ids:?}"));
        }
        for id in ready.iter().map(|place| &ids[*place as usize]) {
            let is_gone = || {
                let mut hosts = self.hosts.values();
                // One reduce of the name may fail before another one gets the name.
                let is_rival = self.users.objects_of(id).count() > 1;
                let mut objects = self.users.objects_of(id);
                is_rival
                    || objects.any(|object| object.may_be_gone() || object.is_failed)
                    || self.users.is_shrunk
                    || hosts.any(|host| host.node.directory().why_gone(id).is_some())
            };
            if !self.users.came.contains(id) && !is_gone() {
                return self
                    .fail(format!("{id:?} is reported ready, but was never complete anywhere"));
            }
        }
    }

    /// Checks that a growing object has memory to read from.
    pub(crate) fn check_growing(
        &mut self,
        node: NodeId,
        id: &ObjectId,
        meta: &Meta,
        instance: Instance,
    ) {
        // Its node may have dropped it in the same event; the memory is freed after the reply.
        let host = self.hosts.get(&node);
        let slot = host.and_then(|host| host.slots.get(&instance));
        let slot = slot.map(|slot| &self.shell.slots[*slot]);
        if !slot.is_some_and(|slot| !slot.is_freed && slot.size == meta.size) {
            self.fail(format!("{instance} of {id:?} grows at {node:?} without a slot"));
        }
    }

    /// Checks a reply about holders. A watching client repeats its request.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn check_locations(
        &mut self,
        node: NodeId,
        client: ClientId,
        id: ObjectId,
        known: Option<Vec<Holding>>,
        changes: u32,
        must: &[NodeId],
        locations: &[Location],
    ) {
        let told: Vec<Holding> = locations
            .iter()
            .map(|location| Holding { node: location.member.id, complete: location.complete })
            .collect();
        if !told.is_sorted_by(|one, other| one.node < other.node) {
            self.fail(format!("the holders {told:?} of {id:?} are not sorted"));
        }
        // Holders that the requesting node has not met, or has declared dead, are omitted.
        let is_steady = !self.users.is_shrunk && self.all_have_met();
        if is_steady && known.as_ref() == Some(&told) {
            self.fail(format!(
                "{node:?} received {told:?} for {id:?}, although nothing has changed"
            ));
        }
        for holder in must {
            if !told.contains(&Holding { node: *holder, complete: true }) {
                self.fail(format!("{holder:?} holds {id:?}, but is not among {told:?}"));
            }
        }
        if changes == 0 || self.users.is_gone(client) || !self.is_up(node) {
            return;
        }
        let changes = changes - 1;
        let again = Later::Locations { node, client, id, known: told, changes };
        // Without a delay, a client that gets the same reply again and again would keep all nodes busy.
        self.after(crate::plan::MILLISECOND, SimEvent::Users(again));
    }

    /// After the cluster has settled, requests the newest name and the holders of all objects; all replies must be
    /// complete.
    pub(crate) fn query_once_more(&mut self, existing: &BTreeMap<ObjectId, Vec<NodeId>>) {
        let nodes = self.staying();
        let Some(node) = self.dice.pick(&nodes) else { return };
        let client = self.client_of(node);
        let newest = existing.keys().filter_map(published).max();
        let purpose = Purpose::Latest { prefix: PUBLISHED, after: None, newest: Some(newest) };
        let body = Request::Latest { prefix: PUBLISHED.into(), after: None };
        self.ask(node, client, body, purpose, Some(crate::plan::SECOND));
        for (id, holders) in existing {
            let Some(node) = self.dice.pick(&nodes) else { return };
            let client = self.client_of(node);
            let is_small = self.users.objects_of(id).any(|object| object.spec.meta.size <= 512);
            // Reads that run now may evict other copies. Small objects are only where they were put and at their
            // owners. Where memory allocation fails at times, copies are evicted for it.
            let may_go = self.is_tight() || self.plan.slot_failures > 0;
            let must = if may_go || is_small { vec![] } else { holders.clone() };
            let (known, changes) = (None, 0);
            let purpose = Purpose::Locations { id: id.clone(), known, changes, must };
            self.ask(
                node,
                client,
                Request::Locations { id: id.clone(), known: None },
                purpose,
                None,
            );
        }
    }

    /// Returns why a request that is still open after the cluster has settled should have a reply.
    pub(crate) fn stuck_query(
        &self,
        node: NodeId,
        purpose: &Purpose,
        existing: &BTreeMap<ObjectId, Vec<NodeId>>,
    ) -> Option<String> {
        let host = self.hosts.get(&node)?;
        let owner = |id: &ObjectId| {
            let owner = host.node.members().owners(id).primary;
            self.hosts.get(&owner).map(|host| host.node.directory())
        };
        match purpose {
            Purpose::Wait { ids, count } => {
                // A deleted name is free again, and the request waits for its next put.
                let is_over = |id: &ObjectId, error: Error| {
                    id.is_unique() || error != Error::ObjectDeleted { id: id.clone() }
                };
                let is_settled = |id: &&ObjectId| {
                    let gone = owner(id).and_then(|owner| owner.why_gone(id));
                    existing.contains_key(id) || gone.is_some_and(|error| is_over(id, error))
                };
                let settled: Vec<&ObjectId> = ids.iter().filter(is_settled).collect();
                (settled.len() >= *count).then(|| format!("{settled:?} exist or are lost"))
            }
            Purpose::Follow { id } => {
                let current = host.node.table().current(id)?;
                // A copy on disk is not arriving.
                host.node.table().get(current).filter(|copy| copy.residency != Residency::Disk)?;
                Some(format!("{current} is here"))
            }
            Purpose::Locations { id, known, .. } => {
                let holders: Vec<NodeId> = owner(id)?.holders(id);
                let told = known.iter().flatten().map(|holding| holding.node);
                let is_known = known.is_some() && told.eq(holders.iter().copied());
                (!is_known).then(|| format!("{holders:?} hold it"))
            }
            Purpose::Latest { .. } | Purpose::Prune => Some("its deadline has passed".into()),
            _ => None,
        }
    }
}

/// The version number of a published name.
pub(crate) fn published(id: &ObjectId) -> Option<u64> {
    match id {
        ObjectId::Named(name) if name.as_str().starts_with(PUBLISHED) => name.version(),
        _ => None,
    }
}

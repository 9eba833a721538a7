//! Descriptions of a node's state: for clients that wait, for `status`, and for checkers.

use alloc::{
    format,
    string::{String, ToString},
};

use super::Node;
use crate::{
    error::Error,
    id::{ClientId, Instance, NodeId, ObjectId, RequestId},
    machines::{
        incoming::{Arrival, ArrivalId},
        questions::Asker,
    },
    members::Member,
    request::{Counts, ObjectRow, Reply, Status, StoreCounts, Waiting},
    swim::Suspicion,
    table::{CopyKey, Residency, State},
};

/// State of an object that no owner knows.
pub(super) const NOT_PUT: &str = "no client has put it";

impl Node {
    /// Everything in progress, as text; empty if the node is idle. For checkers.
    pub fn unfinished(&self) -> impl Iterator<Item = String> {
        let (ranges, rings) = self.incoming.counts();
        let counts = [
            ("reduces", self.coordinator.len()),
            ("questions", self.questions.len()),
            ("range reads", ranges),
            ("results", self.coordinator.unfinished_results()),
            ("folds", self.worker.len() + rings),
            ("adoptions", self.replicas.incoming()),
            ("replicated objects", self.replicas.len()),
            ("requests of other nodes", self.directory.questions(self.world.members())),
            ("former members in the directory", self.directory.strangers(self.world.members())),
            ("leaving members", self.coordinator.draining()),
            ("reserved names", self.directory.reservations()),
            ("leases", self.client_leases.len()),
            ("leases of other nodes", self.directory.leases()),
        ];
        let readers = self.readers.counts().into_iter();
        let counts = readers
            .chain(self.copies.counts())
            .chain(self.claims.counts())
            .chain(counts)
            .filter(|(_, count)| *count > 0)
            .map(|(what, count)| format!("{count} {what}"));
        let pulls = self.incoming.objects();
        pulls.map(|(id, _)| format!("a pull of {id}")).chain(counts)
    }

    pub(super) fn explain(&self, id: &ObjectId) -> Reply {
        let all = self.coming(id).into_iter().chain(self.claims.put_of(id));
        let needed = all.filter_map(|instance| self.copies.waits_for(instance)).next();
        let lacks = needed.map(|needed| (needed, self.copies.table().capacity()));
        Reply::Explained { what: id.to_string(), state: self.state_of(id), lacks }
    }

    /// Explains what a request of this client waits for.
    pub(super) fn explain_request(&self, client: ClientId, request: RequestId) -> Reply {
        let is_its_own = self.requests.client(request) == Some(client);
        let wait = self.wait_of(request).filter(|_| is_its_own);
        let Waiting { what, state, .. } = wait.unwrap_or_else(|| Waiting {
            what: "a reply".into(),
            state: "it has just been sent".into(),
            waited_ns: 0,
        });
        Reply::Explained { what, state, lacks: None }
    }

    /// What a request without a reply waits for.
    pub fn wait_of(&self, request: RequestId) -> Option<Waiting> {
        let (kind, since) = (self.requests.kind(request)?, self.requests.since(request)?);
        let (what, state) = self.description(request, kind);
        Some(Waiting { what, state, waited_ns: self.world.now().since(since) })
    }

    /// How far an arrival is; `None` while only the existence of the object is not known.
    pub(super) fn arrival_state(&self, arrival: ArrivalId) -> Option<String> {
        let it = self.incoming.get(arrival)?;
        let is_silent = !self.questions.are_answered(Asker::Arrival(arrival));
        it.state(is_silent.then(|| self.world.members().owners(&it.id).primary))
    }

    /// The instance of an object that is here, is arriving, or is being folded.
    fn coming(&self, id: &ObjectId) -> Option<Instance> {
        let awaited = self.incoming.object(id).and_then(Arrival::awaited);
        let here = awaited.or_else(|| self.copies.current(id));
        here.or_else(|| self.coordinator.instance_of(id))
    }

    /// The error of an object that waits for capacity or memory on this node.
    pub(super) fn shortfall(&self, id: &ObjectId) -> Option<Error> {
        self.coming(id).and_then(|instance| self.copies.shortfall(instance))
    }

    /// Describes why an object is not here, for a waiting client.
    pub(super) fn state_of(&self, id: &ObjectId) -> String {
        if let Some(full) = self.shortfall(id) {
            return full.to_string();
        }
        if let Some(reduce) = self.coordinator.making(id) {
            return format!("it is the result of a reduce; {}", reduce.state());
        }
        if let Some(copy) = self.copies.current(id).and_then(|instance| self.copies.get(instance)) {
            return match copy.state {
                State::Filling(_) => "a client of this node is still writing it".to_string(),
                State::Arriving => match self.incoming.object(id).and_then(Arrival::source) {
                    Some(source) => format!("it is arriving from node {source}"),
                    None => "its source failed and no other is known yet".to_string(),
                },
                State::Folding => "a reduce is still folding it".to_string(),
                State::Complete => match copy.residency {
                    Residency::Memory => "it is here".to_string(),
                    Residency::Disk => "it is on the disk of this node".to_string(),
                    Residency::Pending | Residency::Restoring(_) => {
                        "it is being read from the disk of this node".to_string()
                    }
                },
            };
        }
        let arrival = self.incoming.of_object(id);
        if let Some(state) = arrival.and_then(|it| self.arrival_state(it)) {
            return state;
        }
        let first = self.incoming.range_of(id);
        first.map_or_else(|| NOT_PUT.to_string(), |request| self.range_state(request))
    }

    /// A member with its measured place, if it has no configured one.
    fn placed(&self, member: Member) -> Member {
        Member { place: self.world.members().place(member.id), ..member }
    }

    /// The status of this node.
    pub fn status(&self) -> Status {
        let (table, (small, small_capacity)) = (self.copies.table(), self.directory.inline_bytes());
        Status {
            me: self.placed(self.world.my_member()),
            members: self.world.members().iter().map(|member| self.placed(member)).collect(),
            suspicions: self.membership.suspicions().collect(),
            failed: self.membership.failed(),
            corrupt: self.incoming.corrupt(),
            counts: Counts {
                objects: table.len() as u64,
                owned: self.directory.len() as u64,
                waiting: self.requests.len() as u64,
                reduces: self.coordinator.len() as u64,
            },
            store: StoreCounts {
                used: table.used(),
                capacity: table.capacity(),
                small,
                small_capacity,
                spilled: table.on_disk(),
                spill_limit: self.copies.spill_limit(),
            },
        }
    }

    /// Members that currently fail to ack probes.
    pub fn suspicions(&self) -> impl Iterator<Item = (NodeId, Suspicion)> {
        self.membership.suspicions()
    }

    /// Numbers of copies and requests that wait.
    pub fn queues(&self) -> [(&'static str, u64); 5] {
        let [capacity, memory, spills, returns] =
            self.copies.counts().map(|(_, count)| count as u64);
        let requests = self.requests.len() as u64;
        [
            ("capacity", capacity),
            ("memory", memory),
            ("spills", spills),
            ("returns", returns),
            ("requests", requests),
        ]
    }

    /// One page of the copies whose refs begin with `prefix`.
    pub(super) fn objects(&self, prefix: &str, after: Option<&CopyKey>) -> Reply {
        let table = self.copies.table();
        let row = |(id, instance): CopyKey| {
            let copy = table.get(instance)?;
            Some(ObjectRow {
                id,
                instance,
                meta: copy.meta.clone(),
                state: copy.state_name().to_string(),
                pinned: copy.pinned,
                readers: copy.readers,
                lifetime: copy.lifetime(self.world.now()),
            })
        };
        let (page, next) = table.page(prefix, after);
        Reply::Objects { rows: page.into_iter().filter_map(row).collect(), next }
    }
}

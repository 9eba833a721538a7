//! The end of a request without its result: it timed out, was canceled, or its client has ended.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use super::{Node, status::NOT_PUT};
use crate::{
    error::{Error, List, Quoted},
    event::LogEvent,
    id::{ClientId, NodeId, ObjectId, RequestId},
    machines::{
        claims::Ending,
        requests::{EndedRequest, RequestKind, WaitProgress, names::stop_latest},
    },
    mutants::{self, Mutant},
    request::{Reply, Waiting},
    table::Residency,
};

/// Objects of a wait whose states are compared; as many as [`List`] names.
const NAMED_MAX: usize = 10;

/// State of a request to an owner.
const SILENT: &str = "its owner has not replied";

impl Node {
    pub(super) fn expire_requests(&mut self) {
        loop {
            let awaits_name = |instance| self.claims.is_claiming(instance);
            let Some(request) = self.requests.next_overdue(awaits_name, &self.world) else {
                return;
            };
            self.time_out(request);
        }
    }

    /// An owner has nothing new, and keeps the request open.
    pub(super) fn nothing_yet(&mut self, from: NodeId, request: RequestId, id: Option<ObjectId>) {
        if self.requests.nothing_yet(from, request, id, &mut self.world) {
            self.time_out(request);
        }
    }

    /// An owner reported that an object does not exist.
    pub(super) fn wait_absent(&mut self, id: &ObjectId) {
        for request in self.requests.wait_absent(id, &self.watches) {
            self.time_out(request);
        }
    }

    /// An object is complete, or can no longer appear.
    pub(super) fn wait_settled(&mut self, id: &ObjectId) {
        let Self { requests, watches, world, .. } = self;
        for request in requests.wait_settled(id, watches, world) {
            self.time_out(request);
        }
    }

    /// Reports each request once that has waited for [`LONG_WAIT_NS`].
    pub(super) fn report_long_waits(&mut self) {
        while let Some(request) = self.requests.next_long_wait(self.world.now()) {
            if let Some(Waiting { what, state, waited_ns }) = self.wait_of(request) {
                self.world.note(LogEvent::LongWait { request, what, state, waited_ns });
            }
        }
    }

    /// What a request waits for, and why that is not here.
    pub(super) fn description(&self, request: RequestId, kind: &RequestKind) -> (String, String) {
        match kind {
            RequestKind::Object(id) => (format!("object {id}"), self.state_of(id)),
            RequestKind::Range(id) => {
                (format!("a part of object {id}"), self.range_state(id, request))
            }
            RequestKind::Create(instance) => self.put_description(*instance),
            RequestKind::Follow(id) => (format!("the first bytes of {id}"), self.state_of(id)),
            RequestKind::Name(id) => self.name_description(id),
            RequestKind::Replicas(id, instance) => {
                let mut state = self.replicas.state(*instance);
                if self
                    .copies
                    .get(*instance)
                    .is_some_and(|copy| copy.residency != Residency::Memory)
                {
                    let me = self.world.me();
                    state += &format!(
                        "; the pinned copy is on the disk of node {me}, which needs free memory to read it back"
                    );
                }
                (format!("replicas of {id}"), state)
            }
            RequestKind::Inputs(id) => (format!("the inputs of {id}"), self.state_of(id)),
            RequestKind::Deletion(ids) => {
                let ids: Vec<ObjectId> = ids.iter().cloned().collect();
                (format!("the deletion of {}", List(&ids)), SILENT.to_string())
            }
            RequestKind::Latest { prefix, after, is_answered, .. } => {
                let newer = after.map_or_else(String::new, |after| format!(" newer than {after}"));
                let state = if *is_answered { "no client has put one" } else { SILENT };
                (format!("a name under {}{newer}", Quoted(prefix)), state.to_string())
            }
            RequestKind::OlderVersions { name, .. } => {
                (format!("the names older than {}", Quoted(name.as_str())), SILENT.to_string())
            }
            RequestKind::Page { owner } => {
                (format!("the objects owned by node {owner}"), "it has not replied".to_string())
            }
            RequestKind::Inspection { node } => {
                (format!("the report of node {node}"), "it has not replied".to_string())
            }
            RequestKind::Wait(waited) => self.wait_description(waited),
            RequestKind::Locations { id, is_answered, .. } => {
                let state = if *is_answered { "they have not changed" } else { SILENT };
                (format!("a change of the holders of {id}"), state.to_string())
            }
        }
    }

    /// What a wait for several objects still needs.
    fn wait_description(&self, waited: &WaitProgress) -> (String, String) {
        let missing = waited.missing();
        let what = format!("{} of the objects {}", waited.left(), List(&missing));
        let first = missing.iter().take(NAMED_MAX).map(|id| self.state_of(id));
        let local = first.into_iter().find(|state| state != NOT_PUT);
        let state = local.unwrap_or_else(|| match waited.is_answered() {
            true => "no node has a complete copy of one".into(),
            false => SILENT.into(),
        });
        (what, state)
    }

    /// Ends a request without its result, and all work that was done for it alone.
    pub(super) fn time_out(&mut self, request: RequestId) {
        let Some(ended) = self.requests.end(request, &self.world) else { return };
        let EndedRequest { client, waited_ns, kind } = ended;
        if let RequestKind::Wait(waited) = &kind {
            // For a wait, a timeout is a normal result.
            waited.stop(request, &mut self.watches, &mut self.world);
            let reply = Ok(Reply::Waited { ready: waited.ready() });
            self.world.reply(client, request, reply);
            return;
        }
        let full = match &kind {
            RequestKind::Object(id) | RequestKind::Inputs(id) => self.shortfall(id),
            RequestKind::Range(_) => self.range_shortfall(request),
            RequestKind::Create(instance) => self.copies.shortfall(*instance),
            _ => None,
        };
        let error = full.unwrap_or_else(|| {
            let (what, state) = self.description(request, &kind);
            Error::Timeout { what, waited_ns, state }
        });
        self.stop_work(request, &kind);
        self.world.reply(client, request, Err(error));
    }

    /// Ends the work that was done for a request alone.
    fn stop_work(&mut self, request: RequestId, kind: &RequestKind) {
        match kind {
            RequestKind::Object(id) => self.stop_waiting(id, request),
            RequestKind::Range(_) => self.end_range(request),
            RequestKind::Create(instance) => self.withdraw_put(*instance),
            RequestKind::Follow(id) => self.readers.stop_following(id, request),
            RequestKind::Name(id) => self.give_up_reservation(id),
            RequestKind::Replicas(_, instance) => self.replicas.stop_waiting(*instance, request),
            RequestKind::Latest { prefix, has_standby, .. } => {
                stop_latest(prefix, *has_standby, None, request, &mut self.world);
            }
            RequestKind::Locations { id, .. } => {
                self.requests.stop_locating(id, request, &mut self.world);
            }
            RequestKind::Inputs(_)
            | RequestKind::Deletion(_)
            | RequestKind::OlderVersions { .. }
            | RequestKind::Page { .. }
            | RequestKind::Inspection { .. }
            | RequestKind::Wait(_) => {}
        }
    }

    pub(super) fn client_disconnected(&mut self, client: ClientId, process: Option<u32>) {
        for request in self.requests.of_client(client) {
            self.time_out(request);
        }
        for (instance, count) in self.readers.end_all(client) {
            (0..count).for_each(|_| self.remove_reader(instance));
        }
        for instance in self.claims.puts_of(client) {
            let _ = self.abort(client, instance);
        }
        self.end_reduces_of(client, process);
        self.claims.end_client(client, Ending::Disconnected(process), &mut self.world);
        self.client_leases.client_disconnected(client, &mut self.world);
    }

    pub(super) fn client_forked(&mut self, client: ClientId, child: ClientId) {
        if mutants::is_active(Mutant::IgnoresForks) {
            return;
        }
        for instance in self.readers.inherit(client, child) {
            self.copies.add_reader(instance);
        }
    }
}

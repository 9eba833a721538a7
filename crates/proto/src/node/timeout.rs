//! The end of a request without its result: it timed out, was canceled, or its client has ended.

use alloc::{format, string::String};

use super::{Node, status::NOT_PUT};
use crate::{
    error::{Error, List},
    event::LogEvent,
    id::{ClientId, RequestId},
    machines::{
        claims::Ending,
        questions::Asker,
        requests::{PendingRequest, RequestKind, WaitProgress},
    },
    mutants::{self, Mutant},
    request::{Reply, Waiting},
    table::Residency,
};

/// Objects of a wait whose states are compared; as many as [`List`] names.
const NAMED_MAX: usize = 10;

/// State of a request to an owner.
pub(super) const SILENT: &str = "its owner has not replied";

impl Node {
    pub(super) fn expire_requests(&mut self) {
        loop {
            let Self { requests, claims, questions, world, .. } = self;
            let unanswered_since = |request, it: &PendingRequest| match it.kind {
                RequestKind::Create(instance) => claims.is_claiming(instance).then_some(it.since),
                RequestKind::Name(_) => Some(it.since),
                _ => questions.unanswered_since(Asker::Request(request), world.now()),
            };
            let Some(request) = requests.next_overdue(unanswered_since, world) else { return };
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
            RequestKind::Range(id) => (format!("a part of object {id}"), self.range_state(request)),
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
                        "; the pinned copy is on the disk of node {me}, which needs free memory \
                         to read it back"
                    );
                }
                (format!("replicas of {id}"), state)
            }
            RequestKind::Reduce => ("a reduce".into(), "its inputs are read".into()),
            RequestKind::Inputs(id) => (format!("the inputs of {id}"), self.state_of(id)),
            RequestKind::Wait(waited) => self.wait_description(request, waited),
            RequestKind::Answers => self.question_description(request),
        }
    }

    /// What a wait for several objects still needs.
    fn wait_description(&self, request: RequestId, waited: &WaitProgress) -> (String, String) {
        let missing = waited.missing();
        let what = format!("{} of the objects {}", waited.left(), List(&missing));
        let first = missing.iter().take(NAMED_MAX).map(|id| self.state_of(id));
        let local = first.into_iter().find(|state| state != NOT_PUT);
        let state =
            local.unwrap_or_else(|| match self.questions.are_answered(Asker::Request(request)) {
                true => "no node has a complete copy of one".into(),
                false => SILENT.into(),
            });
        (what, state)
    }

    /// Ends a request without its result, and all work that was done for it alone.
    pub(super) fn time_out(&mut self, request: RequestId) {
        let Some(ended) = self.requests.end(request) else { return };
        let PendingRequest { client, since, kind, .. } = ended;
        if let RequestKind::Wait(waited) = &kind {
            // For a wait, a timeout is a normal result.
            self.stop_work(request, &kind);
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
            Error::Timeout { what, waited_ns: self.world.now().since(since), state }
        });
        self.stop_work(request, &kind);
        self.world.reply(client, request, Err(error));
    }

    /// Ends the work that was done for a request alone.
    pub(super) fn stop_work(&mut self, request: RequestId, kind: &RequestKind) {
        match kind {
            RequestKind::Object(id) => self.stop_waiting(id, request),
            RequestKind::Range(_) => self.end_range(request),
            RequestKind::Create(instance) => self.withdraw_put(*instance),
            RequestKind::Follow(id) => self.readers.stop_following(id, request),
            RequestKind::Name(id) => self.give_up_reservation(id),
            RequestKind::Replicas(_, instance) => self.replicas.stop_waiting(*instance, request),
            RequestKind::Answers | RequestKind::Wait(_) => {
                self.questions.close_of(Asker::Request(request), &mut self.world);
            }
            RequestKind::Reduce | RequestKind::Inputs(_) => {}
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

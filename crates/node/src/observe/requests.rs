//! Client requests in the record: puts, deletions and reduces that began, and requests that wait.
//!
//! A request that is answered at once leaves no trace, unless it changed something or failed.

use hoplite_proto::{
    error::Error,
    id::{ClientId, ObjectId, RequestId},
    meta::Op,
    node::Node as Machine,
    request::{Reply, Request},
};

use super::{
    clients::{Lookup, OpenRequest},
    events::{Subject, What, beginning},
    recorder::Recorder,
    totals::Latency,
};

/// Deletions of one request that become events.
const DELETIONS_MAX: usize = 64;

/// Time of a `create` that is an event: 100 ms.
const SLOW_CREATE_NS: u64 = 100_000_000;

/// The number of inputs of a reduce to fold, and the operation.
type Fold = Option<(u32, Op)>;

impl Recorder {
    /// Takes note of a request. Most are answered at once: a get by id looks up and allocates
    /// nothing.
    pub(super) fn requested(
        &mut self,
        client: ClientId,
        request: RequestId,
        body: &Request,
        machine: &Machine,
        lookup: &impl Lookup,
    ) {
        let object = |id: &ObjectId| Subject::Object(id.clone());
        let (verb, subject, size, reduce): (_, _, u64, Fold) = match body {
            Request::Get { id } | Request::GetRange { id, .. } => ("get", object(id), 0, None),
            Request::Put { id, meta, .. } => {
                ("put", id.as_ref().map_or(Subject::Nothing, object), meta.size, None)
            }
            Request::Create { id, meta, .. } => {
                ("create", id.as_ref().map_or(Subject::Nothing, object), meta.size, None)
            }
            Request::Seal { instance } => match machine.table().get(*instance) {
                Some(copy) => ("seal", object(&copy.id), 0, None),
                None => return,
            },
            Request::Wait { ids, .. } => {
                let only = ids.first().filter(|_| ids.len() == 1);
                ("wait", only.map_or(Subject::Nothing, object), 0, None)
            }
            Request::Replicate { id, .. } => ("replicate", object(id), 0, None),
            Request::Inputs { id } => ("inputs", object(id), 0, None),
            Request::Locations { id, .. } => ("locations", object(id), 0, None),
            Request::Reduce { inputs, op, count, id, .. } => {
                let subject = id.as_ref().map_or(Subject::Nothing, object);
                ("reduce", subject, inputs.len() as u64, Some((*count, *op)))
            }
            Request::Delete { ids } => {
                self.totals.deletes += ids.len() as u64;
                let process = self.clients.process(client, lookup);
                for id in ids.iter().take(DELETIONS_MAX) {
                    self.record(What::Delete { id: id.clone(), process });
                }
                ("delete", ids.first().map_or(Subject::Nothing, object), 0, None)
            }
            Request::Latest { prefix, .. } => {
                ("latest", Subject::Prefix(beginning(prefix)), 0, None)
            }
            Request::Prune { name, .. } => ("prune", Subject::Prefix(name.group().into()), 0, None),
            Request::List { prefix, .. } => ("list", Subject::Prefix(beginning(prefix)), 0, None),
            _ => return,
        };
        let since = self.now;
        let open = OpenRequest { request, client, verb, subject, since, size, reduce };
        self.clients.current = Some(open);
    }

    /// The last request waits, if the state machine has not answered it.
    pub(super) fn begin_to_wait(&mut self, lookup: &impl Lookup) {
        let Some(open) = self.clients.current.take() else { return };
        let process = self.clients.process(open.client, lookup);
        // Memory for an object takes a moment, which is no news.
        if open.verb != "create" {
            let (verb, subject) = (open.verb, open.subject.clone());
            self.events.push(open.since, What::Wait { verb, subject, process });
        }
        self.waits.insert(open.request, (open, process));
    }

    pub(super) fn replied(
        &mut self,
        request: RequestId,
        reply: &Result<Reply, Error>,
        lookup: &impl Lookup,
    ) {
        let current = self.clients.current.take_if(|open| open.request == request);
        let has_waited = current.is_none();
        let (open, known) = match current {
            Some(open) => (open, None),
            None if self.waits.is_empty() => return,
            None => match self.waits.remove(&request) {
                Some((open, process)) => (open, Some(process)),
                None => return,
            },
        };
        if let Ok(reply) = reply {
            self.succeeded(&open, reply, lookup);
        }
        let ns = self.now.since(open.since);
        if has_waited {
            match open.verb {
                "get" => self.totals.gets_waited += 1,
                "delete" => self.latencies.add(Latency::Delete, ns),
                "list" => self.latencies.add(Latency::List, ns),
                _ => {}
            }
        }
        let is_failure = matches!(reply, Err(error) if !matches!(error, Error::Timeout { .. }));
        if has_waited && (open.verb != "create" || ns >= SLOW_CREATE_NS) || is_failure {
            // A client that has ended is forgotten already.
            let process = known.unwrap_or_else(|| self.clients.process(open.client, lookup));
            let error = reply.as_ref().err().map(|error| beginning(&error.to_string()));
            let OpenRequest { verb, subject, .. } = open;
            self.record(What::Reply { verb, subject, process, ns, error });
        }
    }

    /// Takes note of what a request has changed.
    fn succeeded(&mut self, open: &OpenRequest, reply: &Reply, lookup: &impl Lookup) {
        let bytes = open.size;
        match reply {
            Reply::Got { id: ObjectId::Named(name), .. } => {
                self.clients.has_read(self.now, open.client, name, lookup);
            }
            Reply::Put { .. } if open.verb == "seal" => {
                self.totals.puts += 1;
                if let Subject::Object(id) = &open.subject {
                    self.record(What::Seal { id: id.clone() });
                }
            }
            Reply::Put { id } => {
                self.totals.puts += 1;
                let process = self.clients.process(open.client, lookup);
                self.record(What::Put { id: id.clone(), bytes, process });
            }
            Reply::Created { id, .. } => {
                let process = self.clients.process(open.client, lookup);
                self.record(What::Create { id: id.clone(), bytes, process });
            }
            Reply::Reducing { id } => {
                self.totals.reduces += 1;
                let process = self.clients.process(open.client, lookup);
                let (count, op) = open.reduce.unwrap_or((0, Op::Sum));
                let inputs = u32::try_from(open.size).unwrap_or(u32::MAX);
                let (result, op) = (id.clone(), op.name());
                self.record(What::ReduceBegin { result, count, inputs, op, process });
            }
            _ => {}
        }
    }
}

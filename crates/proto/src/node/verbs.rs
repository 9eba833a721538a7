//! Dispatches client requests to machines.

use alloc::{boxed::Box, format};

use super::Node;
use crate::{
    error::Error,
    id::{ClientId, ObjectId, RequestId},
    lifetime::Lease,
    machines::{claims::Ending, requests::RequestContext},
    request::{Reply, Request},
    time::Instant,
};

impl Node {
    pub(super) fn handle_request(
        &mut self,
        client: ClientId,
        request: RequestId,
        body: Request,
        deadline: Option<Instant>,
    ) {
        if self.world.members().self_is_leaving() && !body.is_allowed_while_leaving() {
            let error = Error::NodeDown(format!("node {} is closing", self.world.me()));
            self.world.reply(client, request, Err(error));
            return;
        }
        let context = RequestContext { client, request, deadline };
        if let Some(reply) = self.begin_request(&context, body) {
            self.world.reply(client, request, reply);
        }
    }

    /// Handles a request. Returns the reply if it comes at once; a few requests get none.
    fn begin_request(
        &mut self,
        context: &RequestContext,
        body: Request,
    ) -> Option<Result<Reply, Error>> {
        let RequestContext { client, request, .. } = *context;
        match body {
            Request::Put { id, meta, bytes, ttl_ns } => {
                self.put_inline(context, id, meta, bytes, ttl_ns)
            }
            Request::JoinJob { .. }
            | Request::AcquireLease { .. }
            | Request::ReleaseLease { .. } => Some(Ok(self.change_leases(client, request, body))),
            Request::Reserve { name } => self.reserve(context, name),
            Request::Slots { count } => Some(self.slots(client, request, count)),
            Request::CancelReservations => {
                self.claims.end_client(client, Ending::Closed, &mut self.world);
                None
            }
            Request::Create { id, meta, ttl_ns } => self.create(context, id, meta, ttl_ns),
            Request::Seal { instance } => Some(self.seal(client, instance)),
            Request::Abort { instance } => Some(self.abort(client, instance)),
            Request::Get { id } => self.get(context, id),
            Request::GetRange { id, selection } => self.get_range(context, id, selection),
            Request::Replicate { id, replicas } => self.keep(context, id, replicas),
            Request::Release { instance } => {
                self.release(client, instance, false);
                None
            }
            Request::ReleaseCopied { instance } => {
                self.release(client, instance, true);
                None
            }
            Request::Follow { id } => self.follow(context, id),
            Request::Wait { ids, count } => {
                let Self { requests, copies, questions, world, .. } = self;
                requests.wait(context, ids, count, copies.table(), questions, world)
            }
            Request::Reduce { inputs, op, count, id, ttl_ns } => {
                self.begin_reduce(context, inputs, op, count, id, ttl_ns)
            }
            Request::Inputs { id } => self.inputs(context, id),
            Request::LostInputs { id } => Some(self.lost(&id)),
            Request::Delete { ids } => self.delete(context, ids),
            Request::Latest { prefix, after } => self.latest(context, &prefix, after),
            Request::Prune { name, retain } => self.prune(context, name, retain),
            Request::Locations { id, known } => self.locations(context, id, known),
            Request::Explain { id } => Some(Ok(self.explain(&id))),
            Request::ExplainRequest { request } => Some(Ok(self.explain_request(client, request))),
            Request::Owners { id } => Some(Ok(self.owners(&id))),
            Request::List { owner, prefix, after } => self.list(context, owner, prefix, after),
            Request::Inspect { node, inspection } => self.inspect(context, node, inspection),
            Request::Status => Some(Ok(Reply::Status(Box::new(self.status())))),
            Request::Objects { prefix, after } => Some(Ok(self.objects(&prefix, after.as_ref()))),
        }
    }

    fn change_leases(&mut self, client: ClientId, request: RequestId, body: Request) -> Reply {
        let Self { client_leases, world, .. } = self;
        match body {
            Request::JoinJob { job } => client_leases.join(client, request, job, world),
            Request::AcquireLease { id } => {
                client_leases.acquire(client, request, Lease::Object(id), world);
            }
            Request::ReleaseLease { id } => {
                client_leases.release(client, &Lease::Object(id), world);
            }
            // Other requests concern no lease.
            _ => {}
        }
        Reply::Done
    }

    fn owners(&self, id: &ObjectId) -> Reply {
        Reply::Owners(self.world.members().owners(id).iter().collect())
    }
}

//! Dispatches client requests to machines.

use alloc::{boxed::Box, format};

use super::Node;
use crate::{
    error::Error,
    id::{ClientId, RequestId},
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
        let reply = match body {
            Request::Put { id, meta, bytes, ttl_ns } => {
                self.put_inline(&context, id, meta, bytes, ttl_ns)
            }
            Request::JoinJob { job } => {
                self.client_leases.join(client, request, job, &mut self.world);
                Some(Ok(Reply::Done))
            }
            Request::AcquireLease { id } => {
                self.client_leases.acquire(client, request, Lease::Object(id), &mut self.world);
                Some(Ok(Reply::Done))
            }
            Request::ReleaseLease { id } => {
                self.client_leases.release(client, &Lease::Object(id), &mut self.world);
                Some(Ok(Reply::Done))
            }
            Request::Reserve { name } => self.reserve(&context, name),
            Request::Slots { count } => Some(self.slots(client, request, count)),
            Request::CancelReservations => {
                self.claims.end_client(client, Ending::Closed, &mut self.world);
                return;
            }
            Request::Create { id, meta, ttl_ns } => self.create(&context, id, meta, ttl_ns),
            Request::Seal { instance } => Some(self.seal(client, instance)),
            Request::Abort { instance } => Some(self.abort(client, instance)),
            Request::Get { id } => self.get(&context, id),
            Request::GetRange { id, selection } => self.get_range(&context, id, selection),
            Request::Replicate { id, replicas: copies } => self.keep(&context, id, copies),
            Request::Release { instance } => {
                self.release(client, instance, false);
                return;
            }
            Request::ReleaseCopied { instance } => {
                self.release(client, instance, true);
                return;
            }
            Request::Follow { id } => self.follow(&context, id),
            Request::Wait { ids, count } => {
                let Self { requests, copies, questions, world, .. } = self;
                requests.wait(&context, ids, count, copies.table(), questions, world)
            }
            Request::Reduce { inputs, op, count, id, ttl_ns } => {
                self.begin_reduce(&context, inputs, op, count, id, ttl_ns)
            }
            Request::Inputs { id } => self.inputs(&context, id),
            Request::LostInputs { id } => Some(self.lost(&id)),
            Request::Delete { ids } => self.delete(&context, ids),
            Request::Latest { prefix, after } => self.latest(&context, &prefix, after),
            Request::Prune { name, retain } => self.prune(&context, name, retain),
            Request::Locations { id, known } => self.locations(&context, id, known),
            Request::Explain { id } => Some(Ok(self.explain(&id))),
            Request::ExplainRequest { request } => Some(Ok(self.explain_request(client, request))),
            Request::Owners { id } => {
                Some(Ok(Reply::Owners(self.world.members().owners(&id).iter().collect())))
            }
            Request::List { owner, prefix, after } => self.list(&context, owner, prefix, after),
            Request::Inspect { node, inspection } => self.inspect(&context, node, inspection),
            Request::Status => Some(Ok(Reply::Status(Box::new(self.status())))),
            Request::Objects { prefix, after } => Some(Ok(self.objects(&prefix, after.as_ref()))),
        };
        if let Some(reply) = reply {
            self.world.reply(client, request, reply);
        }
    }
}

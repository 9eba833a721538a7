//! Dispatches client requests to machines.

use alloc::{boxed::Box, format};

use super::Node;
use crate::{
    ask::{Answer, Ask},
    error::Error,
    id::{ClientId, RequestId},
    lifetime::Lease,
    machines::requests::Asked,
    time::Instant,
};

impl Node {
    pub(super) fn ask(
        &mut self,
        client: ClientId,
        request: RequestId,
        ask: Ask,
        deadline: Option<Instant>,
    ) {
        if self.leaving.has_begun() && !ask.ends_something() {
            let error = Error::NodeDown(format!("node {} is closing", self.world.me()));
            self.world.reply(client, request, Err(error));
            return;
        }
        let asked = Asked { client, request, deadline };
        let answer = match ask {
            Ask::Put { id, meta, bytes, ttl_ns } => {
                self.put_inline(&asked, id, meta, bytes, ttl_ns)
            }
            Ask::Join { job } => {
                self.leases.join(client, job, &mut self.world);
                Some(Ok(Answer::Done))
            }
            Ask::TakeLease { id } => {
                self.leases.take(client, Lease::Object(id), &mut self.world);
                Some(Ok(Answer::Done))
            }
            Ask::ReturnLease { id } => {
                self.leases.give_back(client, &Lease::Object(id), &mut self.world);
                Some(Ok(Answer::Done))
            }
            Ask::Promise { name } => Some(Ok(self.promises.promise(client, name, &mut self.world))),
            Ask::BreakPromises => {
                self.promises.end(client, &mut self.world);
                return;
            }
            Ask::Create { id, meta, ttl_ns } => self.create(&asked, id, meta, ttl_ns),
            Ask::Seal { instance } => Some(self.seal(client, instance)),
            Ask::Abort { instance } => Some(self.abort(client, instance)),
            Ask::Get { id } => self.get(&asked, id),
            Ask::Keep { id, copies } => self.keep(&asked, id, copies),
            Ask::Release { instance } => {
                self.release(client, instance, false);
                return;
            }
            Ask::ReleaseCopied { instance } => {
                self.release(client, instance, true);
                return;
            }
            Ask::Follow { id } => self.follow(&asked, id),
            Ask::Wait { ids, count } => {
                let Self { requests, copies, watches, world, .. } = self;
                requests.wait(&asked, ids, count, copies.table(), watches, world)
            }
            Ask::Reduce { inputs, op, count, id, ttl_ns } => {
                self.begin_reduce(&asked, inputs, op, count, id, ttl_ns)
            }
            Ask::Inputs { id } => self.inputs(&asked, id),
            Ask::Lost { id } => Some(self.lost(&id)),
            Ask::Delete { ids } => {
                ids.iter().for_each(|id| {
                    self.tell_before_deletion(id);
                    self.promises.take_back(id, &mut self.world);
                });
                self.requests.delete(&asked, ids, &mut self.world)
            }
            Ask::Latest { prefix, after } => {
                self.requests.latest(&asked, prefix, after, &mut self.world)
            }
            Ask::Prune { name, keep } => self.requests.prune(&asked, name, keep, &mut self.world),
            Ask::Locations { id, known } => {
                self.requests.locations(&asked, id, known, &mut self.world)
            }
            Ask::Explain { id } => Some(Ok(self.explain(&id))),
            Ask::Owners { id } => {
                Some(Ok(Answer::Owners(self.world.members().owners(&id).iter().collect())))
            }
            Ask::List { owner, prefix, after } => {
                self.requests.list(&asked, owner, prefix, after, &mut self.world)
            }
            Ask::Status => Some(Ok(Answer::Status(Box::new(self.status())))),
            Ask::Objects => Some(Ok(Answer::Objects(self.objects()))),
        };
        if let Some(answer) = answer {
            self.world.reply(client, request, answer);
        }
    }
}

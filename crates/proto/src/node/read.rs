//! Read: a client gets an object that is on this node, or waits until it is complete.
//!
//! [`super::get`] brings objects to this node.

use alloc::format;

use super::Node;
use crate::{
    error::Error,
    id::{ClientId, Instance, ObjectId},
    machines::requests::{RequestContext, RequestKind},
    mutants::{self, Mutant},
    request::Reply,
    table::{Copy, State},
};

impl Node {
    pub(super) fn get(
        &mut self,
        context: &RequestContext,
        id: ObjectId,
    ) -> Option<Result<Reply, Error>> {
        let current = self.copies.current(&id);
        let is_usable = |copy: &Copy| {
            copy.is_readable() || mutants::is_active(Mutant::RepliesTooEarly) && copy.has_memory()
        };
        let complete = current.filter(|instance| self.copies.get(*instance).is_some_and(is_usable));
        if let Some(instance) = complete {
            return Some(self.give(context.client, instance));
        }
        self.requests.remember(context, RequestKind::Object(id.clone()), &self.world);
        self.readers.wait(&id, context.request);
        match current {
            Some(instance) => self.restore(instance),
            None => self.pull_if_wanted(&id),
        }
        None
    }

    /// Gives a complete copy to a reader, and pins it while the client reads.
    fn give(&mut self, client: ClientId, instance: Instance) -> Result<Reply, Error> {
        let Some(copy) = self.copies.get(instance) else {
            return Err(Error::NodeDown(format!("instance {instance} vanished")));
        };
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        if inline.is_none() {
            self.copies.add_reader(instance);
            self.readers.begin(client, instance);
        }
        Ok(Reply::Got { id, meta, instance, inline, is_range: false })
    }

    /// A client stopped reading. If it has copied the object and no other client reads it, the copy
    /// is evicted first.
    pub(super) fn release(&mut self, client: ClientId, instance: Instance, is_copied: bool) {
        if self.readers.end(client, instance) {
            if is_copied {
                self.copies.pass_over(instance);
            }
            self.remove_reader(instance);
        }
    }

    /// A client wants to read an object before it is complete.
    pub(super) fn follow(
        &mut self,
        context: &RequestContext,
        id: ObjectId,
    ) -> Option<Result<Reply, Error>> {
        let current = self.copies.current(&id);
        if let Some((instance, copy)) = current.and_then(|i| Some((i, self.copies.get(i)?))) {
            if copy.is_readable() {
                return Some(Ok(Reply::Done));
            }
            if copy.state == State::Filling(context.client) {
                // It has the memory for writing, and must not have it for reading before the object
                // is complete.
                return Some(Ok(Reply::Done));
            }
            if copy.meta.digest.is_some() {
                // The bytes may fail the digest check later.
                return Some(Ok(Reply::Done));
            }
            if copy.has_memory() {
                let meta = copy.meta.clone();
                return Some(Ok(Reply::Growing { meta, instance }));
            }
        }
        if !self.readers.are_waiting(&id) {
            // The `Get` next to it already has its reply, inline or an error: nothing will arrive.
            return Some(Ok(Reply::Done));
        }
        self.readers.follow(&id, context.request);
        self.requests.remember(context, RequestKind::Follow(id), &self.world);
        None
    }

    /// Memory is allocated for an arriving copy.
    pub(super) fn growing(&mut self, instance: Instance) {
        let Some(copy) = self.copies.get(instance) else { return };
        let (id, meta, state) = (copy.id.clone(), copy.meta.clone(), copy.state);
        for request in self.readers.take_followers(&id) {
            let client = self.requests.client(request);
            let is_own = client.is_some_and(|client| state == State::Filling(client));
            let must_not_follow = is_own || meta.digest.is_some();
            let growing = Reply::Growing { meta: meta.clone(), instance };
            self.requests.reply(
                request,
                Ok(if must_not_follow { Reply::Done } else { growing }),
                &mut self.world,
            );
        }
    }

    /// Ends the following of an object; the reply to the client's `Get` contains the result.
    pub(super) fn end_following(&mut self, id: &ObjectId) {
        for request in self.readers.take_followers(id) {
            self.requests.reply(request, Ok(Reply::Done), &mut self.world);
        }
    }

    /// A copy is complete: all waiting clients on this node get it.
    pub(super) fn completed(&mut self, instance: Instance) {
        let Some(copy) = self.copies.get(instance).filter(|copy| !copy.doomed) else { return };
        let (id, is_readable) = (copy.id.clone(), copy.is_readable());
        self.end_pull(&id);
        if !is_readable {
            return self.restore(instance);
        }
        self.end_following(&id);
        for request in self.readers.take_waiting(&id) {
            if let Some(client) = self.requests.client(request) {
                let reply = self.give(client, instance);
                self.requests.reply(request, reply, &mut self.world);
            }
        }
        self.replica_received(&id, instance);
    }
}

//! Read: a client gets an object that is here, or waits for one; those that wait are answered when it is complete.
//!
//! How an object comes to here is in [`super::get`].

use alloc::format;

use super::Node;
use crate::{
    ask::Answer,
    error::Error,
    id::{ClientId, Instance, ObjectId},
    machines::requests::{Asked, Waiting},
    planted::{self, Bug},
    table::{Copy, State},
};

impl Node {
    pub(super) fn get(&mut self, asked: &Asked, id: ObjectId) -> Option<Result<Answer, Error>> {
        let current = self.copies.current(&id);
        let is_usable = |copy: &Copy| {
            copy.is_readable() || planted::has(Bug::AnswersGetsTooEarly) && copy.has_memory()
        };
        let complete = current.filter(|instance| self.copies.get(*instance).is_some_and(is_usable));
        if let Some(instance) = complete {
            return Some(self.give(asked.client, instance));
        }
        self.requests.remember(asked, Waiting::Object(id.clone()), &self.world);
        self.readers.wait(&id, asked.request);
        match current {
            Some(instance) => self.want_back(instance),
            None => self.pull_if_wanted(&id),
        }
        None
    }

    /// Hands a complete copy to a reader and pins it for as long as that reads.
    fn give(&mut self, client: ClientId, instance: Instance) -> Result<Answer, Error> {
        let Some(copy) = self.copies.get(instance) else {
            return Err(Error::NodeDown(format!("instance {instance} vanished")));
        };
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        if inline.is_none() {
            self.copies.pin(instance);
            self.readers.begin(client, instance);
        }
        Ok(Answer::Got { id, meta, instance, inline })
    }

    /// A client reads no more. What it has copied, and no other reads, goes before all that may go.
    pub(super) fn release(&mut self, client: ClientId, instance: Instance, is_copied: bool) {
        if self.readers.end(client, instance) {
            if is_copied {
                self.copies.pass_over(instance);
            }
            self.unpin(instance);
        }
    }

    /// A client wants to read what is here of an object before it is complete.
    pub(super) fn follow(&mut self, asked: &Asked, id: ObjectId) -> Option<Result<Answer, Error>> {
        let current = self.copies.current(&id);
        if let Some((instance, copy)) = current.and_then(|i| Some((i, self.copies.get(i)?))) {
            if copy.is_readable() {
                return Some(Ok(Answer::Done));
            }
            if copy.state == State::Filling(asked.client) {
                // It has the memory to write, which it can't have to read as well before it is complete.
                return Some(Ok(Answer::Done));
            }
            if copy.meta.digest.is_some() {
                // What is here of it may turn out to be void.
                return Some(Ok(Answer::Done));
            }
            if copy.has_memory() {
                let meta = copy.meta.clone();
                return Some(Ok(Answer::Growing { meta, instance }));
            }
        }
        if !self.readers.are_waiting(&id) {
            // The get beside it was answered already, by bytes in a message or with an error: nothing will come.
            return Some(Ok(Answer::Done));
        }
        self.readers.follow(&id, asked.request);
        self.requests.remember(asked, Waiting::Growth(id), &self.world);
        None
    }

    /// There is memory for a copy that begins to arrive.
    pub(super) fn growing(&mut self, instance: Instance) {
        let Some(copy) = self.copies.get(instance) else { return };
        let (id, meta, state) = (copy.id.clone(), copy.meta.clone(), copy.state);
        for request in self.readers.take_followers(&id) {
            let client = self.requests.client(request);
            let is_own = client.is_some_and(|client| state == State::Filling(client));
            let is_void = is_own || meta.digest.is_some();
            let growing = Answer::Growing { meta: meta.clone(), instance };
            self.requests.reply(
                request,
                Ok(if is_void { Answer::Done } else { growing }),
                &mut self.world,
            );
        }
    }

    /// What there is to say of the object is said to those who get it.
    pub(super) fn end_following(&mut self, id: &ObjectId) {
        for request in self.readers.take_followers(id) {
            self.requests.reply(request, Ok(Answer::Done), &mut self.world);
        }
    }

    /// A copy is complete: all clients here that waited for the object get it now.
    pub(super) fn completed(&mut self, instance: Instance) {
        let Some(copy) = self.copies.get(instance).filter(|copy| !copy.doomed) else { return };
        let (id, is_readable) = (copy.id.clone(), copy.is_readable());
        self.end_pull(&id);
        if !is_readable {
            return self.want_back(instance);
        }
        self.end_following(&id);
        for request in self.readers.take_waiting(&id) {
            if let Some(client) = self.requests.client(request) {
                let answer = self.give(client, instance);
                self.requests.reply(request, answer, &mut self.world);
            }
        }
        self.adoption_arrived(&id, instance);
    }
}

//! Sends replies to a process, and the memory that goes with them. Does not know the requests.

use std::sync::{Arc, Weak};

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    id::Instance,
};

use super::Session;
use crate::{
    engine::task::Task,
    local::{
        answers::Descriptor,
        confined::NoCopy,
        limits,
        protocol::{FromNode, Place},
    },
    mutants::{self, Bug},
    store::Held,
    sync::lock,
};

impl Session {
    pub(super) fn answer(self: &Arc<Self>, request: u64, answer: Result<Answer, CallError>) {
        if let Some(confined) = self.confined.get() {
            return self.answer_confined(request, confined.hears(answer));
        }
        self.answer_freely(request, answer);
    }

    /// Replies to a process with a capability: it gets copies of objects, and can't follow objects that still arrive.
    fn answer_confined(self: &Arc<Self>, request: u64, answer: Result<Answer, CallError>) {
        let instance = match &answer {
            Ok(Answer::Growing { .. }) => return self.tell(request, Ok(Answer::Done), None, None),
            Ok(Answer::Got { instance, inline: None, .. }) => *instance,
            _ => return self.answer_freely(request, answer),
        };
        let session = self.clone();
        let copying = move || session.answer_with_copy(request, answer, instance);
        drop(self.programs.network.tasks.spawn_blocking(Task::Orders, copying));
    }

    fn answer_with_copy(
        &self,
        request: u64,
        answer: Result<Answer, CallError>,
        instance: Instance,
    ) {
        let (held, confined) = (self.programs.store.get(instance), self.confined.get());
        let Some((held, confined)) = held.zip(confined) else {
            let answer = Err(CallError::NodeDown("the memory of the object is gone".into()));
            return self.tell(request, answer, None, None);
        };
        let tell = |place, descriptor| self.tell(request, answer, Some(place), descriptor);
        if let Err(NoCopy { limit, detail }) =
            confined.lend(&self.takers(), instance, &held.slot, tell)
        {
            if let Some(limit) = limit {
                self.turned_away(limit);
            }
            self.programs.requests.tell(self.client, Ask::Release { instance });
            let needed = held.slot.len();
            self.tell(request, Err(CallError::NoMemory { needed, detail }), None, None);
        }
    }

    fn answer_freely(self: &Arc<Self>, request: u64, answer: Result<Answer, CallError>) {
        let instance = match &answer {
            Ok(Answer::Created { instance, .. } | Answer::Got { instance, inline: None, .. }) => {
                *instance
            }
            Ok(Answer::Growing { instance, .. }) => {
                let Some(held) = self.programs.store.get(*instance) else {
                    return self.tell(request, Ok(Answer::Done), None, None);
                };
                if !self.is_sealed(&held) {
                    let answering = answer_when_sealed(Arc::downgrade(self), request, answer, held);
                    self.programs.network.tasks.spawn(Task::Session, answering);
                    return;
                }
                if !self.follow(request, held) {
                    return self.tell(request, Ok(Answer::Done), None, None);
                }
                *instance
            }
            _ => return self.tell(request, answer, None, None),
        };
        let Some((place, descriptor)) = self.place(instance) else {
            let answer = Err(CallError::NodeDown("the memory of the object is gone".into()));
            return self.tell(request, answer, None, None);
        };
        let is_got = matches!(answer, Ok(Answer::Got { .. }));
        self.tell(request, answer, Some(place), descriptor);
        if is_got && mutants::has(Bug::ReleasesAtOnce) {
            self.programs.requests.tell(self.client, Ask::Release { instance });
        }
    }

    fn is_sealed(&self, held: &Held) -> bool {
        self.programs.store.arena.is_sealed(held.slot.extent())
    }

    /// Registers a copy that the process follows. Returns false at the limit; the process then gets the complete copy
    /// only.
    fn follow(&self, request: u64, held: Arc<Held>) -> bool {
        let mut growing = lock(&self.growing);
        let bytes: u64 = growing.values().map(|held| held.slot.len()).sum();
        let is_too_much = bytes.saturating_add(held.slot.len()) > self.programs.store.capacity();
        // One object may have any size.
        if growing.len() >= limits::FOLLOWED_MAX || !growing.is_empty() && is_too_much {
            self.turned_away("FOLLOWED_MAX");
            return false;
        }
        growing.insert(request, held);
        true
    }

    fn place(&self, instance: Instance) -> Option<(Place, Option<Descriptor>)> {
        let held = self.programs.store.get(instance)?;
        let extent = held.slot.extent();
        let (descriptor, extent_len) =
            self.programs.store.arena.descriptor(extent, self.writer())?;
        let has_descriptor = lock(&self.known).insert(extent);
        let (offset, len) = (held.slot.offset(), held.slot.len());
        let place = Place { extent: extent.0, extent_len, offset, len, has_descriptor };
        Some((place, has_descriptor.then_some(descriptor as Descriptor)))
    }

    /// Sends a reply.
    pub(super) fn tell(
        &self,
        request: u64,
        answer: Result<Answer, CallError>,
        place: Option<Place>,
        descriptor: Option<Descriptor>,
    ) {
        lock(&self.asked).end(request);
        self.say(FromNode::Answer { request, answer, place }, descriptor);
    }
}

/// Replies to a follow once the writer has mapped the extent: until then, a process with the descriptor could map it
/// writable too. Nothing can be read before.
async fn answer_when_sealed(
    session: Weak<Session>,
    request: u64,
    answer: Result<Answer, CallError>,
    held: Arc<Held>,
) {
    let is_sealed = || session.upgrade().is_none_or(|session| session.is_sealed(&held));
    let is_there = held.until(is_sealed).await;
    if let Some(session) = session.upgrade() {
        session.answer(request, if is_there { answer } else { Ok(Answer::Done) });
    }
}

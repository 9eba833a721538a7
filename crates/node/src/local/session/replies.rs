//! Sends replies to a process, and the memory that goes with them. Does not know the requests.

use std::sync::{Arc, Weak};

use hoplite_proto::{
    error::Error as CallError,
    id::Instance,
    request::{Reply, Request},
};

use super::Session;
use crate::{
    backing::Backing,
    engine::tasks::Task,
    local::{
        limits,
        protocol::{FromNode, Region},
        reply_writer::Descriptor,
        restricted::CopyError,
    },
    mutants::{self, Mutant},
    store::StoredCopy,
    sync::lock,
};

impl Session {
    pub(super) fn answer(self: &Arc<Self>, request: u64, reply: Result<Reply, CallError>) {
        if let Some(restricted) = self.restricted.get() {
            return self.answer_confined(request, restricted.filter_reply(reply));
        }
        self.answer_freely(request, reply);
    }

    /// Replies to a process with a capability: it gets copies of objects, and can't follow objects
    /// that still arrive.
    fn answer_confined(self: &Arc<Self>, request: u64, reply: Result<Reply, CallError>) {
        let instance = match &reply {
            Ok(Reply::Growing { .. }) => {
                return self.send_reply(request, Ok(Reply::Done), None, None);
            }
            Ok(Reply::Got { instance, inline: None, .. }) => *instance,
            _ => return self.answer_freely(request, reply),
        };
        let session = self.clone();
        let copying = move || session.answer_with_copy(request, reply, instance);
        drop(self.programs.network.tasks.spawn_blocking(Task::SlowActions, copying));
    }

    fn answer_with_copy(&self, request: u64, reply: Result<Reply, CallError>, instance: Instance) {
        let (stored, restricted) = (self.programs.store.get(instance), self.restricted.get());
        let Some((stored, restricted)) = stored.zip(restricted) else {
            let reply = Err(CallError::NodeDown("the memory of the object is gone".into()));
            return self.send_reply(request, reply, None, None);
        };
        let send = |region, descriptor| self.send_reply(request, reply, Some(region), descriptor);
        if let Err(CopyError { limit, detail }) =
            restricted.lend(&self.takers(), instance, stored.shared(), send)
        {
            if let Some(limit) = limit {
                self.limit_reached(limit);
            }
            self.programs.notify(self.client, Request::Release { instance });
            let needed = stored.len();
            self.send_reply(request, Err(CallError::NoMemory { needed, detail }), None, None);
        }
    }

    fn answer_freely(self: &Arc<Self>, request: u64, reply: Result<Reply, CallError>) {
        let instance = match &reply {
            Ok(Reply::Created { instance, .. } | Reply::Got { instance, inline: None, .. }) => {
                *instance
            }
            Ok(Reply::Growing { instance, .. }) => {
                let Some(stored) = self.programs.store.get(*instance) else {
                    return self.send_reply(request, Ok(Reply::Done), None, None);
                };
                if !self.is_sealed(&stored) {
                    let answering =
                        answer_when_sealed(Arc::downgrade(self), request, reply, stored);
                    self.programs.network.tasks.spawn(Task::Session, answering);
                    return;
                }
                if !self.follow(request, stored) {
                    return self.send_reply(request, Ok(Reply::Done), None, None);
                }
                *instance
            }
            _ => return self.send_reply(request, reply, None, None),
        };
        let Some((region, descriptor)) = self.region(instance) else {
            let reply = Err(CallError::NodeDown("the memory of the object is gone".into()));
            return self.send_reply(request, reply, None, None);
        };
        let is_got = matches!(reply, Ok(Reply::Got { .. }));
        self.send_reply(request, reply, Some(region), descriptor);
        if is_got && mutants::is_active(Mutant::ReleasesTooEarly) {
            self.programs.notify(self.client, Request::Release { instance });
        }
    }

    fn is_sealed(&self, stored: &StoredCopy) -> bool {
        self.programs.store.arena.is_sealed(stored.shared().extent())
    }

    /// Registers a copy that the process follows. Returns false at the limit; the process then gets
    /// the complete copy only.
    fn follow(&self, request: u64, stored: Arc<StoredCopy>) -> bool {
        let mut growing = lock(&self.growing);
        let bytes: u64 = growing.values().map(|stored| stored.len()).sum();
        let is_too_much = bytes.saturating_add(stored.len()) > self.programs.store.capacity();
        // One object may have any size.
        if growing.len() >= limits::FOLLOWED_MAX || !growing.is_empty() && is_too_much {
            self.limit_reached("FOLLOWED_MAX");
            return false;
        }
        growing.insert(request, stored);
        true
    }

    fn region(&self, instance: Instance) -> Option<(Region, Option<Descriptor>)> {
        let stored = self.programs.store.get(instance)?;
        let slot = stored.shared();
        let extent = slot.extent();
        let (descriptor, extent_len) =
            self.programs.store.arena.descriptor(extent, self.writer())?;
        let has_descriptor = lock(&self.sent_extents).insert(extent);
        let (offset, len) = (slot.offset(), slot.len());
        let region = Region { extent: extent.0, extent_len, offset, len, has_descriptor };
        Some((region, has_descriptor.then_some(descriptor as Descriptor)))
    }

    /// Sends a reply.
    pub(super) fn send_reply(
        &self,
        request: u64,
        reply: Result<Reply, CallError>,
        region: Option<Region>,
        descriptor: Option<Descriptor>,
    ) {
        lock(&self.open_requests).end(request);
        self.send(FromNode::Reply { request, reply, region }, descriptor);
    }
}

/// Replies to a follow once the writer has mapped the extent: until then, a process with the
/// descriptor could map it writable too. Nothing can be read before.
async fn answer_when_sealed(
    session: Weak<Session>,
    request: u64,
    reply: Result<Reply, CallError>,
    stored: Arc<StoredCopy>,
) {
    let is_sealed = || session.upgrade().is_none_or(|session| session.is_sealed(&stored));
    let is_there = stored.until(is_sealed).await;
    if let Some(session) = session.upgrade() {
        session.answer(request, if is_there { reply } else { Ok(Reply::Done) });
    }
}

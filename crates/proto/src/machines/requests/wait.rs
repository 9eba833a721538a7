//! Waits for several objects.

use alloc::{collections::BTreeMap, format, vec::Vec};

use super::{RequestContext, RequestKind, Requests, wait_progress::WaitProgress};
use crate::{
    error::Error,
    event::LimitSubject,
    id::{ObjectId, RequestId},
    limits::{WAIT_OBJECTS_MAX, limit_name},
    machines::{
        watches::{Listener, Watches},
        world::World,
    },
    request::Reply,
    table::{Copy, Table},
};

impl Requests {
    /// Waits until `count` of `ids` have come. An object has come when a complete copy exists, or when it is certain
    /// that none can. In both cases a get of it waits only for the network.
    pub(crate) fn wait(
        &mut self,
        context: &RequestContext,
        ids: Vec<ObjectId>,
        count: u32,
        table: &Table,
        watches: &mut Watches,
        world: &mut World,
    ) -> Option<Result<Reply, Error>> {
        let places = ids.len();
        if places > WAIT_OBJECTS_MAX {
            world
                .limit_reached(LimitSubject::Client(context.client), limit_name!(WAIT_OBJECTS_MAX));
            let said = format!(
                "cannot wait for {places} objects: pass at most {WAIT_OBJECTS_MAX} in one call"
            );
            return Some(Err(Error::InvalidArgument(said)));
        }
        let missing: BTreeMap<ObjectId, u32> = ids.into_iter().zip(0..).collect();
        if missing.len() < places || count as usize > places {
            let said = format!(
                "cannot wait for {count} of {places} refs, {} of them distinct: pass each ref once",
                missing.len()
            );
            return Some(Err(Error::InvalidArgument(said)));
        }
        let mut waited = WaitProgress::new(missing, count as usize);
        let is_here = |id: &ObjectId| {
            let current = table.current(id).and_then(|instance| table.get(instance));
            current.is_some_and(Copy::is_complete)
        };
        for id in waited.missing().into_iter().filter(is_here) {
            waited.settle(&id);
        }
        if waited.is_over() {
            return Some(Ok(Reply::Waited { ready: waited.ready() }));
        }
        waited.begin_to_ask();
        let missing = waited.missing();
        self.remember(context, RequestKind::Wait(waited), world);
        for id in missing {
            watches.start(&id, Listener::Request(context.request), world);
        }
        None
    }

    /// Handles the reply that an object has not come. Returns the requests that only waited for that reply.
    #[must_use]
    pub(crate) fn wait_absent(&mut self, id: &ObjectId, watches: &Watches) -> Vec<RequestId> {
        let is_over = |request: &RequestId| {
            self.several(*request).is_some_and(|waited| waited.answered(id) && waited.is_answered())
                && self.is_late(*request)
        };
        watches.requests(id).into_iter().filter(is_over).collect()
    }

    /// Handles that an object has come, or cannot come any more. Returns the requests that only waited for a reply of
    /// an owner.
    #[must_use]
    pub(crate) fn wait_settled(
        &mut self,
        id: &ObjectId,
        watches: &mut Watches,
        world: &mut World,
    ) -> Vec<RequestId> {
        let mut over = Vec::new();
        for request in watches.requests(id) {
            let Some(waited) = self.several(request) else { continue };
            if waited.settle(id) {
                let waited = waited.clone();
                waited.stop(request, watches, world);
                self.reply(request, Ok(Reply::Waited { ready: waited.ready() }), world);
            } else if waited.is_answered() && self.is_late(request) {
                over.push(request);
            }
        }
        watches.stop_requests(id, world);
        over
    }

    fn several(&mut self, request: RequestId) -> Option<&mut WaitProgress> {
        match &mut self.all.get_mut(&request)?.kind {
            RequestKind::Wait(waited) => Some(waited),
            _ => None,
        }
    }
}

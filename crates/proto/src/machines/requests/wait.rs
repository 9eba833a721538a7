//! Waits for several objects.

use alloc::{collections::BTreeMap, format, vec::Vec};

use super::{RequestContext, RequestKind, Requests, wait_progress::WaitProgress};
use crate::{
    error::Error,
    event::LimitSubject,
    id::{ObjectId, RequestId},
    limits::{WAIT_OBJECTS_MAX, limit_name},
    machines::{
        questions::{Asker, Questions},
        world::World,
    },
    request::Reply,
    table::{Copy, Table},
};

impl Requests {
    /// Waits until `count` of `ids` have come. An object has come when a complete copy exists, or
    /// when it is certain that none can. In both cases a get of it waits only for the network.
    pub(crate) fn wait(
        &mut self,
        context: &RequestContext,
        ids: Vec<ObjectId>,
        count: u32,
        table: &Table,
        questions: &mut Questions,
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
        let missing = waited.missing();
        self.remember(context, RequestKind::Wait(waited), world);
        questions.watch_all(Asker::Request(context.request), missing.into());
        None
    }

    /// Handles that an object has come, or cannot come any more. Returns the positions of those
    /// that came, if the wait is over.
    pub(crate) fn wait_settled(&mut self, request: RequestId, id: &ObjectId) -> Option<Vec<u32>> {
        let ready = self.all.update(&request, |pending| match &mut pending.kind {
            RequestKind::Wait(waited) => waited.settle(id).then(|| waited.ready()),
            _ => None,
        });
        ready.flatten()
    }
}

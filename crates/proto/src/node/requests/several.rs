//! The question which of several objects have come.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    vec::Vec,
};

use super::{Asked, Requests, Waiting};
use crate::{
    ask::Answer,
    error::Error,
    id::{ObjectId, RequestId},
    limits::{WAIT_OBJECTS_MAX, limit_name},
    node::{
        Whose,
        watches::{Listener, Watches},
        world::World,
    },
    table::{Copy, Table},
};

/// What a client waits for, and what of it has been seen.
#[derive(Clone, Debug)]
pub(in crate::node) struct Waited {
    /// Those that have not come, and their places in the question.
    missing: BTreeMap<ObjectId, u32>,
    /// Places of those that have, in the order in which they were seen.
    ready: Vec<u32>,
    count: usize,
    /// Those that no owner has spoken of: a question whose time is over waits for their word, if that is not long.
    unanswered: BTreeSet<ObjectId>,
}

impl Waited {
    pub(in crate::node) fn is_answered(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// The first that came, as many as were asked for.
    pub(in crate::node) fn ready(&self) -> Vec<u32> {
        self.ready.iter().take(self.count).copied().collect()
    }

    /// The question is over: it does not listen any more to what has not come.
    pub(in crate::node) fn stop(
        &self,
        request: RequestId,
        watches: &mut Watches,
        world: &mut World,
    ) {
        for id in self.missing.keys() {
            watches.stop(id, Listener::Request(request), world);
        }
    }

    fn settle(&mut self, id: &ObjectId) -> bool {
        self.unanswered.remove(id);
        self.ready.extend(self.missing.remove(id));
        self.ready.len() >= self.count
    }
}

impl Requests {
    /// An object has come when all its bytes are somewhere, or when it is certain that it can't: in both cases a get
    /// of it waits for the network alone.
    pub(in crate::node) fn wait(
        &mut self,
        asked: &Asked,
        ids: Vec<ObjectId>,
        count: u32,
        table: &Table,
        watches: &mut Watches,
        world: &mut World,
    ) -> Option<Result<Answer, Error>> {
        let places = ids.len();
        if places > WAIT_OBJECTS_MAX {
            world.turned_away(Whose::Client(asked.client), limit_name!(WAIT_OBJECTS_MAX));
            let said =
                format!("a wait for {places} objects: at most {WAIT_OBJECTS_MAX} in one call");
            return Some(Err(Error::InvalidArgument(said)));
        }
        let missing: BTreeMap<ObjectId, u32> = ids.into_iter().zip(0..).collect();
        if missing.len() < places || count as usize > places {
            let said =
                format!("a wait for {count} of {places} refs, {} of them different", missing.len());
            return Some(Err(Error::InvalidArgument(said)));
        }
        let (ready, unanswered) = (Vec::new(), BTreeSet::new());
        let mut waited = Waited { missing, ready, count: count as usize, unanswered };
        let is_here = |id: &ObjectId| {
            let current = table.current(id).and_then(|instance| table.get(instance));
            current.is_some_and(Copy::is_complete)
        };
        let mut here: Vec<(u32, ObjectId)> = waited
            .missing
            .iter()
            .filter(|(id, _)| is_here(id))
            .map(|(id, place)| (*place, id.clone()))
            .collect();
        here.sort_unstable();
        for (_, id) in here {
            waited.settle(&id);
        }
        if waited.ready.len() >= waited.count {
            return Some(Ok(Answer::Waited { ready: waited.ready() }));
        }
        let mut missing: Vec<(u32, ObjectId)> =
            waited.missing.iter().map(|(id, place)| (*place, id.clone())).collect();
        missing.sort_unstable();
        waited.unanswered = waited.missing.keys().cloned().collect();
        self.remember(asked, Waiting::Several(waited), world);
        for (_, id) in missing {
            watches.start(&id, Listener::Request(asked.request), world);
        }
        None
    }

    /// An owner says that an object has not come; the questions that only waited for that word.
    #[must_use]
    pub(in crate::node) fn several_absent(
        &mut self,
        id: &ObjectId,
        watches: &Watches,
    ) -> Vec<RequestId> {
        let is_over = |request: &RequestId| {
            self.several(*request)
                .is_some_and(|waited| waited.unanswered.remove(id) && waited.is_answered())
                && self.is_late(*request)
        };
        watches.requests(id).into_iter().filter(is_over).collect()
    }

    /// An object has come, or can't; the questions that only waited for the word of an owner.
    #[must_use]
    pub(in crate::node) fn several_settled(
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
                self.reply(request, Ok(Answer::Waited { ready: waited.ready() }), world);
            } else if waited.is_answered() && self.is_late(request) {
                over.push(request);
            }
        }
        watches.stop_requests(id, world);
        over
    }

    fn several(&mut self, request: RequestId) -> Option<&mut Waited> {
        match &mut self.all.get_mut(&request)?.kind {
            Waiting::Several(waited) => Some(waited),
            _ => None,
        }
    }
}

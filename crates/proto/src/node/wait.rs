//! Wait: which of several objects have come; and who holds an object, now or as that changes.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    vec::Vec,
};

use super::{Asked, Node, Pending, Waiting};
use crate::{
    ask::{Answer, Location},
    error::Error,
    id::{NodeId, ObjectId, RequestId},
    limits::WAIT_OBJECTS_MAX,
    message::{Holding, Message},
    table::Copy,
};

/// What a client waits for, and what of it has been seen.
#[derive(Clone, Debug)]
pub(super) struct Waited {
    /// Those that have not come, and their places in the question.
    missing: BTreeMap<ObjectId, u32>,
    /// Places of those that have, in the order in which they were seen.
    ready: Vec<u32>,
    count: usize,
    /// Those that no owner has spoken of: a question whose time is over waits for their word, if that is not long.
    unanswered: BTreeSet<ObjectId>,
}

impl Waited {
    pub(super) fn is_answered(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// The first that came, as many as were asked for.
    pub(super) fn ready(&self) -> Vec<u32> {
        self.ready.iter().take(self.count).copied().collect()
    }

    fn settle(&mut self, id: &ObjectId) -> bool {
        self.unanswered.remove(id);
        self.ready.extend(self.missing.remove(id));
        self.ready.len() >= self.count
    }
}

impl Node {
    /// An object has come when all its bytes are somewhere, or when it is certain that it can't: in both cases a get
    /// of it waits for nobody but the network.
    pub(super) fn wait(
        &mut self,
        asked: &Asked,
        ids: Vec<ObjectId>,
        count: u32,
    ) -> Option<Result<Answer, Error>> {
        let places = ids.len();
        if places > WAIT_OBJECTS_MAX {
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
            let current = self.table.current(id).and_then(|instance| self.table.get(instance));
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
        self.remember(asked, Waiting::Several(waited));
        for (_, id) in missing {
            self.awaited.entry(id.clone()).or_default().insert(asked.request);
            self.watch(id);
        }
        None
    }

    /// An owner says that an object has not come.
    pub(super) fn awaited_absent(&mut self, id: &ObjectId) {
        for request in self.awaited.get(id).cloned().unwrap_or_default() {
            let Some(pending) = self.requests.get_mut(&request) else { continue };
            let Waiting::Several(waited) = &mut pending.kind else { continue };
            if waited.unanswered.remove(id) && waited.is_answered() {
                self.answered_at_last(request);
            }
        }
    }

    /// An object has come, or can't.
    pub(super) fn awaited_settled(&mut self, id: &ObjectId) {
        for request in self.awaited.get(id).cloned().unwrap_or_default() {
            let Some(pending) = self.requests.get_mut(&request) else { continue };
            let Waiting::Several(waited) = &mut pending.kind else { continue };
            if waited.settle(id) {
                let waited = waited.clone();
                self.stop_listening(&waited, request);
                self.reply(request, Ok(Answer::Waited { ready: waited.ready() }));
            } else if waited.is_answered() {
                self.answered_at_last(request);
            }
        }
        self.awaited.remove(id);
        self.unwatch_if_unwanted(id);
    }

    /// A question is over: what it still listened to is not listened to on its behalf any more.
    pub(super) fn stop_listening(&mut self, waited: &Waited, request: RequestId) {
        for id in waited.missing.keys() {
            let Some(listeners) = self.awaited.get_mut(id) else { continue };
            listeners.remove(&request);
            if listeners.is_empty() {
                self.awaited.remove(id);
                self.unwatch_if_unwanted(id);
            }
        }
    }

    /// Tells the owners that nobody here listens to an object, if so.
    pub(super) fn unwatch_if_unwanted(&mut self, id: &ObjectId) {
        let is_watched = self.watches.contains_key(id) || self.awaited.contains_key(id);
        if !is_watched && !self.undecided().any(|undecided| undecided == id) {
            self.watch_answered(id);
            // The second may have been the first when it was asked.
            self.world.send_owners(id, &Message::Unwatch { id: id.clone() });
        }
    }

    pub(super) fn locations(
        &mut self,
        asked: &Asked,
        id: ObjectId,
        known: Option<Vec<Holding>>,
    ) -> Option<Result<Answer, Error>> {
        let (owner, request) = (self.world.members().owners(&id).first, asked.request);
        let (kept, is_answered) = (known.clone(), false);
        self.remember(asked, Waiting::Locations { id: id.clone(), known: kept, is_answered });
        self.world.send(owner, Message::Locations { id, known, request });
        None
    }

    pub(super) fn located_all(
        &mut self,
        from: NodeId,
        request: RequestId,
        holdings: Result<Vec<Holding>, Error>,
    ) {
        let Some(Pending { kind: Waiting::Locations { id, .. }, .. }) = self.requests.get(&request)
        else {
            return;
        };
        // One that was the first before may answer first.
        let id = id.clone();
        let others = self.world.members().owners(&id).iter().filter(|owner| *owner != from);
        for owner in others.collect::<Vec<_>>() {
            self.world.send(owner, Message::Unlocations { id: id.clone(), request });
        }
        let location = |holding: &Holding| {
            let member = self.world.members().iter().find(|member| member.id == holding.node)?;
            Some(Location { member, complete: holding.complete })
        };
        let answer =
            holdings.map(|all| Answer::Locations(all.iter().filter_map(location).collect()));
        self.reply(request, answer);
    }

    pub(super) fn stop_locating(&mut self, id: &ObjectId, request: RequestId) {
        self.world.send_owners(id, &Message::Unlocations { id: id.clone(), request });
    }
}

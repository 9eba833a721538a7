//! Client requests, each from [`RequestContext`] until its one `Reply`: what it waits for, and its
//! deadline.
//!
//! Does not know how a reply is produced, except that to a [`wait`] for several objects.

mod wait;
mod wait_progress;

use alloc::{collections::BTreeSet, vec::Vec};

pub(crate) use self::wait_progress::WaitProgress;
use crate::{
    error::Error,
    id::{ClientId, Instance, ObjectId, RequestId},
    limits::{LONG_WAIT_NS, OWNER_TIMEOUT_NS},
    machines::world::World,
    mutants::{self, Mutant},
    request::Reply,
    time::Instant,
    timed::{Deadline, Timed},
};

/// All requests without a reply.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    all: Timed<RequestId, PendingRequest>,
    /// The requests for the inputs of each result.
    for_inputs: BTreeSet<(ObjectId, RequestId)>,
    /// The last request that was reported as a long wait. Later ones have higher numbers.
    reported: RequestId,
}

/// A request that has no reply yet.
pub(crate) struct RequestContext {
    pub(crate) client: ClientId,
    pub(crate) request: RequestId,
    pub(crate) deadline: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) client: ClientId,
    pub(crate) since: Instant,
    /// When to check it: at the client's deadline, or a moment later.
    deadline: Option<Instant>,
    /// Whether the client's deadline has passed, so that the request waits only for the first reply
    /// of an owner.
    is_late: bool,
    pub(crate) kind: RequestKind,
}

impl Deadline for PendingRequest {
    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

/// What a request waits for.
#[derive(Clone, Debug)]
pub(crate) enum RequestKind {
    Object(ObjectId),
    /// For capacity, for memory or for a name.
    Create(Instance),
    /// For the memory of an object in transfer.
    Follow(ObjectId),
    /// For a range of an object.
    Range(ObjectId),
    /// For a reduce, whose inputs are very many and read a slice at a time.
    Reduce,
    /// For a name that the client reserves, or its reduce.
    Name(ObjectId),
    Inputs(ObjectId),
    /// For replicas on other nodes.
    Replicas(ObjectId, Instance),
    /// For the answers to its questions.
    Answers,
    /// For several objects.
    Wait(WaitProgress),
}

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// When to check the next request.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let unreported = self.unreported().map(|(_, at)| at);
        self.all.deadline().into_iter().chain(unreported).min()
    }

    /// The first request that has not been reported as a long wait, and when to report it.
    fn unreported(&self) -> Option<(RequestId, Instant)> {
        let first = self.all.next_after(Some(&self.reported))?;
        Some((first, self.since(first)? + LONG_WAIT_NS))
    }

    /// The next request that has waited for [`LONG_WAIT_NS`]; each is returned once.
    pub(crate) fn next_long_wait(&mut self, now: Instant) -> Option<RequestId> {
        let (request, _) = self.unreported().filter(|(_, at)| *at <= now)?;
        self.reported = request;
        Some(request)
    }

    /// All requests, the lowest number first.
    pub(crate) fn numbers(&self) -> Vec<RequestId> {
        self.all.keys().copied().collect()
    }

    pub(crate) fn of_client(&self, client: ClientId) -> Vec<RequestId> {
        let its = self.all.iter().filter(|(_, pending)| pending.client == client);
        its.map(|(request, _)| *request).collect()
    }

    /// The requests for the inputs of a result, known at its end.
    pub(crate) fn for_inputs(&self, id: &ObjectId) -> Vec<RequestId> {
        let (first, last) = ((id.clone(), RequestId(0)), (id.clone(), RequestId(u64::MAX)));
        self.for_inputs.range(first..=last).map(|(_, request)| *request).collect()
    }

    /// The client of a request.
    pub(crate) fn client(&self, request: RequestId) -> Option<ClientId> {
        self.all.get(&request).map(|pending| pending.client)
    }

    /// The client of a request and its deadline.
    pub(crate) fn context(&self, request: RequestId) -> Option<RequestContext> {
        let PendingRequest { client, deadline, .. } = *self.all.get(&request)?;
        Some(RequestContext { client, request, deadline })
    }

    /// When a request began.
    pub(crate) fn since(&self, request: RequestId) -> Option<Instant> {
        self.all.get(&request).map(|pending| pending.since)
    }

    /// What a request waits for.
    pub(crate) fn kind(&self, request: RequestId) -> Option<&RequestKind> {
        self.all.get(&request).map(|pending| &pending.kind)
    }

    /// Stores a request until its reply.
    pub(crate) fn remember(&mut self, context: &RequestContext, kind: RequestKind, world: &World) {
        let RequestContext { client, request, deadline } = *context;
        let deadline = deadline.filter(|_| !mutants::is_active(Mutant::ForgetsDeadlines));
        if let RequestKind::Inputs(id) = &kind {
            self.for_inputs.insert((id.clone(), request));
        }
        let pending = PendingRequest { client, since: world.now(), deadline, is_late: false, kind };
        self.all.insert(request, pending);
    }

    /// Ends a request; the caller sends the reply.
    pub(crate) fn end(&mut self, request: RequestId) -> Option<PendingRequest> {
        let pending = self.all.remove(&request)?;
        if let RequestKind::Inputs(id) = &pending.kind {
            self.for_inputs.remove(&(id.clone(), request));
        }
        Some(pending)
    }

    /// Replies to a request, if it has no reply yet.
    pub(crate) fn reply(
        &mut self,
        request: RequestId,
        reply: Result<Reply, Error>,
        world: &mut World,
    ) {
        if let Some(pending) = self.end(request) {
            world.reply(pending.client, request, reply);
        }
    }

    /// The first request whose deadline has passed. `unanswered_since` returns when the last
    /// message about it was sent that needs a reply of another node and has none.
    pub(crate) fn next_overdue(
        &mut self,
        unanswered_since: impl Fn(RequestId, &PendingRequest) -> Option<Instant>,
        world: &World,
    ) -> Option<RequestId> {
        while let Some(request) = self.all.first_due(world.now()) {
            if !self.postpone(request, &unanswered_since, world.now()) {
                return Some(request);
            }
        }
        None
    }

    /// Extends the deadline of a request about the state of other nodes until its owner has had
    /// time to reply, since a client without a timeout wants the current state. Returns whether the
    /// deadline was extended.
    fn postpone(
        &mut self,
        request: RequestId,
        unanswered_since: impl Fn(RequestId, &PendingRequest) -> Option<Instant>,
        now: Instant,
    ) -> bool {
        let postponed = self.all.update(&request, |pending| {
            let until = unanswered_since(request, pending).map(|since| since + OWNER_TIMEOUT_NS);
            let Some(until) = until.filter(|until| *until > now) else { return false };
            (pending.is_late, pending.deadline) = (true, Some(until));
            true
        });
        postponed.unwrap_or(false)
    }

    /// Whether the client's deadline has passed, so that the request waits only for the first reply
    /// of an owner.
    pub(crate) fn is_late(&self, request: RequestId) -> bool {
        self.all.get(&request).is_some_and(|pending| pending.is_late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Action;

    const ASKED: Instant = Instant(1_000_000_000);
    const REQUEST: RequestId = RequestId(7);

    /// A request with a timeout of zero.
    fn asked_at_once() -> (Requests, World) {
        let mut world = World::of(1);
        world.wait_until(ASKED);
        let mut requests = Requests::default();
        let context =
            RequestContext { client: ClientId(1), request: REQUEST, deadline: Some(ASKED) };
        requests.remember(&context, RequestKind::Answers, &world);
        (requests, world)
    }

    #[test]
    fn a_request_without_a_timeout_waits_for_the_first_reply_of_the_owner() {
        let (mut requests, world) = asked_at_once();
        assert_eq!(requests.next_overdue(|_, it| Some(it.since), &world), None);
        assert_eq!(requests.deadline(), Some(ASKED + OWNER_TIMEOUT_NS));
        assert!(requests.is_late(REQUEST));
        assert!(requests.end(REQUEST).is_some());
        assert_eq!((requests.len(), requests.deadline()), (0, None));
    }

    #[test]
    fn an_unresponsive_owner_delays_a_request_no_longer_than_its_timeout() {
        let (mut requests, mut world) = asked_at_once();
        assert_eq!(requests.next_overdue(|_, it| Some(it.since), &world), None);
        world.wait_until(ASKED + OWNER_TIMEOUT_NS);
        assert_eq!(requests.next_overdue(|_, it| Some(it.since), &world), Some(REQUEST));
    }

    #[test]
    fn an_answered_request_is_not_delayed() {
        let (mut requests, world) = asked_at_once();
        assert_eq!(requests.next_overdue(|_, _| None, &world), Some(REQUEST));
    }

    #[test]
    fn a_request_gets_one_reply() {
        let (mut requests, mut world) = asked_at_once();
        for _ in 0..2 {
            requests.reply(REQUEST, Ok(Reply::Done), &mut world);
        }
        let actions = world.taken();
        let replies = actions.iter().filter(|action| matches!(action, Action::Reply { .. }));
        assert_eq!(replies.count(), 1);
    }
}

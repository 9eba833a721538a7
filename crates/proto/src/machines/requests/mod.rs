//! Client requests, each from [`RequestContext`] until its one `Reply`: what it waits for, and its deadline.
//!
//! Requests that only wait for replies of owners are handled here completely: [`deletion`], [`inspections`],
//! [`locations`], [`names`], [`pages`] and [`wait`]. Of any other request this module knows the client and what it
//! waits for, but not how its reply is produced.

mod deletion;
mod inspections;
mod locations;
pub(crate) mod names;
mod pages;
mod wait;
mod wait_progress;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use core::ops::Bound;

pub(crate) use self::wait_progress::WaitProgress;
use crate::{
    error::Error,
    id::{ClientId, Instance, Name, NodeId, ObjectId, RequestId},
    limits::{LONG_WAIT_NS, OWNER_TIMEOUT_NS},
    machines::{membership_change::MembershipChange, world::World},
    message::{Holding, Message},
    mutants::{self, Mutant},
    request::Reply,
    time::Instant,
    timed::key_after,
};

/// All requests without a reply.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    all: BTreeMap<RequestId, PendingRequest>,
    deadlines: BTreeSet<(Instant, RequestId)>,
    /// Requests that must be found by what they wait for.
    subjects: BTreeSet<(Subject, RequestId)>,
    /// The last request that was reported as a long wait. Later ones have higher numbers.
    reported: RequestId,
    /// Number of requests for a newer name.
    latest: usize,
}

/// A request that ended without its reply.
pub(crate) struct EndedRequest {
    pub(crate) client: ClientId,
    pub(crate) waited_ns: u64,
    pub(crate) kind: RequestKind,
}

/// A request that has no reply yet.
pub(crate) struct RequestContext {
    pub(crate) client: ClientId,
    pub(crate) request: RequestId,
    pub(crate) deadline: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct PendingRequest {
    client: ClientId,
    since: Instant,
    /// When to check it: at the client's deadline, or a moment later.
    deadline: Option<Instant>,
    /// Whether the client's deadline has passed, so that the request waits only for the first reply of an owner.
    is_late: bool,
    kind: RequestKind,
}

/// What several requests may wait for at once; an index to find them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// The inputs of a reduce, known at its end.
    Inputs(ObjectId),
    /// A page of the objects that a member owns.
    Page(NodeId),
    /// The report of a member.
    Inspection(NodeId),
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
    /// For a name that the client reserves, or its reduce.
    Name(ObjectId),
    Inputs(ObjectId),
    /// For replicas on other nodes.
    Replicas(ObjectId, Instance),
    Deletion(BTreeSet<ObjectId>),
    Latest {
        prefix: String,
        after: Option<u64>,
        /// Whether an owner has replied that no such name exists yet.
        is_answered: bool,
        /// Whether the backup owner got the request too.
        has_standby: bool,
    },
    /// For the list of names to delete.
    OlderVersions {
        name: Name,
        retain: u64,
    },
    /// For a page of the objects that a member owns.
    Page {
        owner: NodeId,
    },
    /// For the report of a member.
    Inspection {
        node: NodeId,
    },
    Wait(WaitProgress),
    Locations {
        id: ObjectId,
        known: Option<Vec<Holding>>,
        /// Whether its owner has replied that there is nothing new.
        is_answered: bool,
    },
}

impl RequestKind {
    fn subject(&self) -> Option<Subject> {
        match self {
            Self::Inputs(id) => Some(Subject::Inputs(id.clone())),
            Self::Page { owner } => Some(Subject::Page(*owner)),
            Self::Inspection { node } => Some(Subject::Inspection(*node)),
            _ => None,
        }
    }
}

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// When to check the next request.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next = self.deadlines.first().map(|(at, _)| *at);
        next.into_iter().chain(self.unreported().map(|(_, at)| at)).min()
    }

    /// The first request that has not been reported as a long wait, and when to report it.
    fn unreported(&self) -> Option<(RequestId, Instant)> {
        let first = self.all.range((Bound::Excluded(self.reported), Bound::Unbounded)).next();
        first.map(|(request, pending)| (*request, pending.since + LONG_WAIT_NS))
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

    /// The requests that wait for `subject`.
    pub(crate) fn requesters(&self, subject: Subject) -> Vec<RequestId> {
        let (first, last) = ((subject.clone(), RequestId(0)), (subject, RequestId(u64::MAX)));
        self.subjects.range(first..=last).map(|(_, request)| *request).collect()
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
        if let Some(deadline) = deadline.filter(|_| !mutants::is_active(Mutant::ForgetsDeadlines)) {
            self.deadlines.insert((deadline, request));
        }
        self.subjects.extend(kind.subject().map(|subject| (subject, request)));
        self.latest += usize::from(matches!(kind, RequestKind::Latest { .. }));
        let pending = PendingRequest { client, since: world.now(), deadline, is_late: false, kind };
        self.all.insert(request, pending);
    }

    fn forget(&mut self, request: RequestId) -> Option<PendingRequest> {
        let pending = self.all.remove(&request)?;
        self.latest -= usize::from(matches!(pending.kind, RequestKind::Latest { .. }));
        if let Some(deadline) = pending.deadline {
            self.deadlines.remove(&(deadline, request));
        }
        if let Some(subject) = pending.kind.subject() {
            self.subjects.remove(&(subject, request));
        }
        Some(pending)
    }

    /// Ends a request; the caller sends the reply.
    pub(crate) fn end(&mut self, request: RequestId, world: &World) -> Option<EndedRequest> {
        let PendingRequest { client, since, kind, .. } = self.forget(request)?;
        Some(EndedRequest { client, waited_ns: world.now().since(since), kind })
    }

    /// Replies to a request, if it has no reply yet.
    pub(crate) fn reply(
        &mut self,
        request: RequestId,
        reply: Result<Reply, Error>,
        world: &mut World,
    ) {
        if let Some(pending) = self.forget(request) {
            world.reply(pending.client, request, reply);
        }
    }

    /// The first request whose deadline has passed. `awaits_name` returns whether a put waits for the owner of its
    /// name.
    pub(crate) fn next_overdue(
        &mut self,
        awaits_name: impl Fn(Instance) -> bool,
        world: &World,
    ) -> Option<RequestId> {
        while let Some((at, request)) = self.deadlines.first().copied() {
            if at > world.now() {
                return None;
            }
            if !self.postpone(request, &awaits_name, world.now()) {
                return Some(request);
            }
        }
        None
    }

    /// Extends the deadline of a request about the state of other nodes until its owner has had time to reply, since a
    /// client without a timeout wants the current state. Returns whether the deadline was extended.
    fn postpone(
        &mut self,
        request: RequestId,
        awaits_name: impl Fn(Instance) -> bool,
        now: Instant,
    ) -> bool {
        let Some(pending) = self.all.get_mut(&request) else { return false };
        let is_answered = match &pending.kind {
            RequestKind::Wait(waited) => waited.is_answered(),
            RequestKind::Latest { is_answered, .. }
            | RequestKind::Locations { is_answered, .. } => *is_answered,
            RequestKind::Create(instance) => !awaits_name(*instance),
            RequestKind::Name(_)
            | RequestKind::OlderVersions { .. }
            | RequestKind::Page { .. }
            | RequestKind::Inspection { .. } => false,
            _ => true,
        };
        let until = pending.since + OWNER_TIMEOUT_NS;
        if is_answered || until <= now {
            return false;
        }
        pending.is_late = true;
        if let Some(before) = pending.deadline.replace(until) {
            self.deadlines.remove(&(before, request));
        }
        self.deadlines.insert((until, request));
        true
    }

    /// Whether the client's deadline has passed, so that the request waits only for the first reply of an owner.
    fn is_late(&self, request: RequestId) -> bool {
        self.all.get(&request).is_some_and(|pending| pending.is_late)
    }

    /// Handles the reply of an owner that has nothing yet and keeps the request. Returns whether that ends the
    /// request.
    #[must_use]
    pub(crate) fn nothing_yet(
        &mut self,
        from: NodeId,
        request: RequestId,
        id: Option<ObjectId>,
        world: &mut World,
    ) -> bool {
        let Some(pending) = self.all.get_mut(&request) else {
            // The request was sent twice, because membership changed, and an earlier reply has ended it.
            let taken_back = match id {
                Some(id) => Message::CancelLocations { id, request },
                None => Message::CancelLatest { request },
            };
            world.send(from, taken_back);
            return false;
        };
        match &mut pending.kind {
            RequestKind::Latest { is_answered, .. }
            | RequestKind::Locations { is_answered, .. } => {
                *is_answered = true;
                pending.is_late
            }
            _ => false,
        }
    }

    /// The request after another one, or the first.
    pub(crate) fn next_after(&self, after: Option<RequestId>) -> Option<RequestId> {
        key_after(&self.all, after.as_ref())
    }

    /// Repeats a request to new owners.
    pub(crate) fn resend(&self, request: RequestId, change: &MembershipChange, world: &mut World) {
        self.resend_deletions(request, change, world);
        if let Some((id, question)) = self.owner_question(request)
            && let Some(owner) = change.new_owner(&id, world)
        {
            world.send(owner, question);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{limits::LATEST_MAX, node::Action};

    const ASKED: Instant = Instant(1_000_000_000);
    const REQUEST: RequestId = RequestId(7);

    /// A request for a name with a timeout of zero.
    fn asked_at_once() -> (Requests, World) {
        let mut world = World::of(1);
        world.wait_until(ASKED);
        let mut requests = Requests::default();
        let context =
            RequestContext { client: ClientId(1), request: REQUEST, deadline: Some(ASKED) };
        assert!(requests.latest(&context, "policy/".into(), None, &mut world).is_none());
        (requests, world)
    }

    #[test]
    fn a_request_without_a_timeout_waits_for_the_first_reply_of_the_owner() {
        let (mut requests, mut world) = asked_at_once();
        assert_eq!(requests.next_overdue(|_| false, &world), None);
        assert_eq!(requests.deadline(), Some(ASKED + OWNER_TIMEOUT_NS));
        assert!(requests.nothing_yet(NodeId(1), REQUEST, None, &mut world));
        assert!(requests.end(REQUEST, &world).is_some());
        assert_eq!((requests.len(), requests.deadline()), (0, None));
    }

    #[test]
    fn an_unresponsive_owner_delays_a_request_no_longer_than_its_timeout() {
        let (mut requests, mut world) = asked_at_once();
        assert_eq!(requests.next_overdue(|_| false, &world), None);
        world.wait_until(ASKED + OWNER_TIMEOUT_NS);
        assert_eq!(requests.next_overdue(|_| false, &world), Some(REQUEST));
    }

    #[test]
    fn more_requests_for_newer_names_than_an_owner_keeps_are_refused_here() {
        let mut world = World::of(1);
        let mut requests = Requests::default();
        let mut latest = |request: u64, requests: &mut Requests| {
            let (client, request) = (ClientId(1), RequestId(request));
            let context = RequestContext { client, request, deadline: None };
            requests.latest(&context, "policy/".into(), None, &mut world)
        };
        for request in 0..LATEST_MAX as u64 {
            assert_eq!(latest(request, &mut requests), None);
        }
        let Some(Err(Error::InvalidArgument(said))) = latest(u64::MAX, &mut requests) else {
            panic!("the owner would not reply")
        };
        assert!(
            said.contains("in 16384 calls, and the limit is 16384 (LATEST_MAX): end"),
            "{said}"
        );
        let world = &World::of(1);
        assert!(requests.end(RequestId(7), world).is_some());
        assert_eq!(latest(u64::MAX, &mut requests), None);
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

//! Questions of clients, each from `Asked` until its one `Reply`: what it waits for, and what ends it without its answer.
//!
//! Knows nothing of what an answer takes; the files that handle a question keep it here, and answer it by its number.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};

use super::{Action, Node, put::Create, wait::Waited};
use crate::{
    ask::Answer,
    error::{Error, List, Quoted},
    id::{ClientId, Instance, Name, NodeId, ObjectId, ReduceId, RequestId},
    limits::OWNER_PATIENCE_NS,
    message::{Holding, Message},
    planted::{self, Bug},
    time::Instant,
};

/// A question on its way to its answer.
pub(super) struct Asked {
    pub(super) client: ClientId,
    pub(super) request: RequestId,
    pub(super) deadline: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) client: ClientId,
    pub(super) since: Instant,
    /// When it is looked at again: the client's own deadline, or a moment later.
    deadline: Option<Instant>,
    /// Whether the client's deadline has passed and only the first word of an owner is waited for.
    is_late: bool,
    pub(super) kind: Waiting,
}

/// What several questions may wait for at once, so that they are found by it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// The end of a reduce.
    Inputs(ObjectId),
    /// Other nodes that keep an original.
    Copies(Instance),
    /// A page of what a member owns.
    Page(NodeId),
}

/// What a question waits for.
#[derive(Clone, Debug)]
pub(super) enum Waiting {
    Object(ObjectId),
    /// For room, for memory or for a name.
    Create(Instance),
    /// For the memory of an object that arrives.
    Growth(ObjectId),
    /// For a name that a reduce will make.
    Reservation(ReduceId),
    Inputs(ObjectId),
    /// For others to keep an original too.
    Copies(ObjectId, Instance),
    Deletion(BTreeSet<ObjectId>),
    Latest {
        prefix: String,
        after: Option<u64>,
        /// Whether its owner has said that there is none yet.
        is_answered: bool,
    },
    /// For the list of names to delete.
    Older {
        name: Name,
        keep: u64,
    },
    /// For a page of what a member owns.
    Page {
        owner: NodeId,
    },
    Several(Waited),
    Locations {
        id: ObjectId,
        known: Option<Vec<Holding>>,
        /// Whether its owner has said that there is nothing new.
        is_answered: bool,
    },
}

impl Waiting {
    fn subject(&self) -> Option<Subject> {
        match self {
            Self::Inputs(id) => Some(Subject::Inputs(id.clone())),
            Self::Copies(_, instance) => Some(Subject::Copies(*instance)),
            Self::Page { owner } => Some(Subject::Page(*owner)),
            _ => None,
        }
    }
}

/// Of an owner who was asked.
const SILENT: &str = "its owner has not answered";

impl Node {
    /// Keeps a question until it is answered.
    pub(super) fn remember(&mut self, asked: &Asked, kind: Waiting) {
        let Asked { client, request, deadline } = *asked;
        if let Some(deadline) = deadline.filter(|_| !planted::has(Bug::ForgetsDeadlines)) {
            self.deadlines.insert((deadline, request));
        }
        self.subjects.extend(kind.subject().map(|subject| (subject, request)));
        self.requests
            .insert(request, Pending { client, since: self.now, deadline, is_late: false, kind });
    }

    pub(super) fn forget(&mut self, request: RequestId) -> Option<Pending> {
        let pending = self.requests.remove(&request)?;
        if let Some(deadline) = pending.deadline {
            self.deadlines.remove(&(deadline, request));
        }
        if let Some(subject) = pending.kind.subject() {
            self.subjects.remove(&(subject, request));
        }
        Some(pending)
    }

    /// The questions that wait for this.
    pub(super) fn askers(&self, subject: Subject) -> Vec<RequestId> {
        let (first, last) = ((subject.clone(), RequestId(0)), (subject, RequestId(u64::MAX)));
        self.subjects.range(first..=last).map(|(_, request)| *request).collect()
    }

    /// Answers a question, if it still has no answer.
    pub(super) fn reply(
        &mut self,
        request: RequestId,
        answer: Result<Answer, Error>,
        out: &mut Vec<Action>,
    ) {
        if let Some(pending) = self.forget(request) {
            out.push(Action::Reply { client: pending.client, request, answer });
        }
    }

    pub(super) fn expire_requests(&mut self, out: &mut Vec<Action>) {
        while let Some((at, request)) = self.deadlines.first().copied() {
            if at > self.now {
                break;
            }
            if !self.postpone(request) {
                self.time_out(request, out);
            }
        }
    }

    /// A question about what others know is not over before they have been asked: whoever gives it no time wants to
    /// hear what is so now. Whether it was put off until its owner should have answered.
    pub(super) fn postpone(&mut self, request: RequestId) -> bool {
        let now = self.now;
        let Some(pending) = self.requests.get_mut(&request) else { return false };
        let is_answered = match &pending.kind {
            Waiting::Several(waited) => waited.is_answered(),
            Waiting::Latest { is_answered, .. } | Waiting::Locations { is_answered, .. } => {
                *is_answered
            }
            Waiting::Create(instance) => {
                !self.creates.get(instance).is_some_and(Create::awaits_its_name)
            }
            Waiting::Reservation(_) | Waiting::Older { .. } | Waiting::Page { .. } => false,
            _ => true,
        };
        let until = pending.since + OWNER_PATIENCE_NS;
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

    /// All owners have spoken: a question that only waited for that is over.
    pub(super) fn answered_at_last(&mut self, request: RequestId, out: &mut Vec<Action>) {
        if self.requests.get(&request).is_some_and(|pending| pending.is_late) {
            self.time_out(request, out);
        }
    }

    /// An owner has nothing to say yet, and keeps the question.
    pub(super) fn nothing_yet(
        &mut self,
        from: NodeId,
        request: RequestId,
        id: Option<ObjectId>,
        out: &mut Vec<Action>,
    ) {
        let Some(pending) = self.requests.get_mut(&request) else {
            // It was asked twice, as members came and went, and is answered since the first.
            let taken_back = match id {
                Some(id) => Message::Unlocations { id, request },
                None => Message::Unlatest { request },
            };
            return self.send(from, taken_back, out);
        };
        if let Waiting::Latest { is_answered, .. } | Waiting::Locations { is_answered, .. } =
            &mut pending.kind
        {
            *is_answered = true;
            self.answered_at_last(request, out);
        }
    }

    /// Ends a question without its answer, and whatever was done for it alone.
    pub(super) fn time_out(&mut self, request: RequestId, out: &mut Vec<Action>) {
        let Some(pending) = self.forget(request) else { return };
        let waited_ns = self.now.since(pending.since);
        let full = match &pending.kind {
            Waiting::Object(id) | Waiting::Inputs(id) => self.without_room(id),
            _ => None,
        };
        let (what, state) = match &pending.kind {
            Waiting::Object(id) => {
                let state = self.state_of(id);
                self.stop_waiting(id, request, out);
                (format!("object {id}"), state)
            }
            Waiting::Create(instance) => {
                let answer = Err(self.create_timed_out(*instance, waited_ns, out));
                out.push(Action::Reply { client: pending.client, request, answer });
                return;
            }
            Waiting::Growth(id) => {
                self.stop_following(id, request);
                (format!("the first byte of {id}"), self.state_of(id))
            }
            Waiting::Reservation(key) => {
                self.give_up_reservation(*key, out);
                (
                    "a name for the result of a reduce".into(),
                    "its owner has not confirmed it".into(),
                )
            }
            Waiting::Copies(id, instance) => {
                (format!("more copies of {id}"), self.keeping_state(*instance))
            }
            Waiting::Inputs(id) => (format!("the list of inputs of {id}"), self.state_of(id)),
            Waiting::Deletion(ids) => {
                let ids: Vec<ObjectId> = ids.iter().cloned().collect();
                (
                    format!("the deletion of {}", List(&ids)),
                    "its owner has not answered".to_string(),
                )
            }
            Waiting::Latest { prefix, after, is_answered } => {
                self.stop_latest(prefix, request, out);
                let newer = after.map_or_else(String::new, |after| format!(" newer than {after}"));
                let state = if *is_answered { "nobody has put one" } else { SILENT };
                (format!("a name under {}{newer}", Quoted(prefix)), state.to_string())
            }
            Waiting::Older { name, .. } => {
                (format!("the names before {}", Quoted(name.as_str())), SILENT.to_string())
            }
            Waiting::Page { owner } => {
                (format!("the objects that node {owner} owns"), "it has not answered".to_string())
            }
            Waiting::Several(waited) => {
                // Time that is over is an answer too.
                self.stop_listening(waited, request, out);
                let answer = Ok(Answer::Waited { ready: waited.ready() });
                out.push(Action::Reply { client: pending.client, request, answer });
                return;
            }
            Waiting::Locations { id, is_answered, .. } => {
                self.stop_locating(id, request, out);
                let state = if *is_answered { "they have not changed" } else { SILENT };
                (format!("news of the holders of {id}"), state.to_string())
            }
        };
        let answer = Err(full.unwrap_or(Error::Timeout { what, waited_ns, state }));
        out.push(Action::Reply { client: pending.client, request, answer });
    }

    pub(super) fn client_gone(&mut self, client: ClientId, out: &mut Vec<Action>) {
        let asked = self.requests.iter().filter(|(_, pending)| pending.client == client);
        let asked: Vec<RequestId> = asked.map(|(request, _)| *request).collect();
        for request in asked {
            self.time_out(request, out);
        }
        for (instance, count) in self.reads.remove(&client).unwrap_or_default() {
            (0..count).for_each(|_| self.unpin(instance, out));
        }
        let unsealed = self.creates.iter().filter(|(_, create)| create.client == client);
        let unsealed: Vec<Instance> = unsealed.map(|(instance, _)| *instance).collect();
        for instance in unsealed {
            let _ = self.abort(client, instance, out);
        }
        self.break_promises(client, out);
    }

    pub(super) fn client_forked(&mut self, client: ClientId, heir: ClientId) {
        let read = self.reads.get(&client).into_iter().flat_map(BTreeMap::keys).copied();
        let held: BTreeMap<Instance, u32> = read.map(|instance| (instance, 1)).collect();
        held.keys().for_each(|instance| self.table.pin(*instance));
        self.reads.insert(heir, held);
    }
}

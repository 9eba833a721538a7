//! Questions: to the owners of an object or to one member, for client requests, reduces, ranges and
//! results of rings.
//!
//! [`crate::machines::questions`] has the open ones, and sends them to the nodes that can answer.

use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};

use super::{Node, timeout::SILENT};
use crate::{
    error::{Error, List, Quoted},
    event::LimitSubject,
    id::{Name, NodeId, ObjectId, QuestionId, RequestId},
    inspection::Inspection,
    limits::{LATEST_MAX, MEMBERS_MAX, NAME_BYTES_MAX, limit_name},
    machines::{
        questions::Asker,
        requests::{RequestContext, RequestKind},
    },
    message::{Holding, Message},
    question::{Answer, Question},
    request::{Location, Reply},
};

/// The reply to a request, if there is one at once.
type MaybeReply = Option<Result<Reply, Error>>;

impl Node {
    /// Waits for the newest name below a prefix.
    pub(super) fn latest(
        &mut self,
        context: &RequestContext,
        prefix: &str,
        after: Option<u64>,
    ) -> MaybeReply {
        let is_prefix = prefix.ends_with('/') && format!("{prefix}0").parse::<Name>().is_ok();
        let Some(prefix) = prefix.parse().ok().filter(|_: &Name| is_prefix) else {
            let said = format!(
                "{} is not a prefix of names: end it with \"/\", like \"policy/\"",
                Quoted(prefix)
            );
            return Some(Err(Error::InvalidArgument(said)));
        };
        // An owner keeps no more of one member, and would not reply to another one.
        let open = self.questions.latest();
        if open >= LATEST_MAX {
            let limit = limit_name!(LATEST_MAX);
            self.world.limit_reached(LimitSubject::Client(context.client), limit);
            let said = format!(
                "the programs of this node wait for a newer name in {open} calls, and the limit \
                 is {LATEST_MAX} ({limit}): end some calls of latest",
            );
            return Some(Err(Error::InvalidArgument(said)));
        }
        self.ask_owners(context, Question::Latest { prefix, after })
    }

    /// Deletes the versions older than a name, except the newest ones: `retain` versions stay,
    /// `name` included.
    pub(super) fn prune(
        &mut self,
        context: &RequestContext,
        name: Name,
        retain: u64,
    ) -> MaybeReply {
        if name.version().is_none() || retain == 0 {
            let said = format!(
                "retain={retain} of {}: set at least 1 version to keep, and end the name in \"/\" \
                 and a number",
                Quoted(name.as_str())
            );
            return Some(Err(Error::InvalidArgument(said)));
        }
        self.ask_owners(context, Question::OlderVersions { name, retain })
    }

    /// Waits until the holders of an object are other than `known`.
    pub(super) fn locations(
        &mut self,
        context: &RequestContext,
        id: ObjectId,
        known: Option<Vec<Holding>>,
    ) -> MaybeReply {
        if let Some(count) = known.as_ref().map(Vec::len).filter(|count| *count > MEMBERS_MAX) {
            // The owner would take it for a malformed message of this node.
            let said =
                format!("{count} known locations of {id} are more than {MEMBERS_MAX} members");
            return Some(Err(Error::InvalidArgument(said)));
        }
        self.ask_owners(context, Question::Locations { id, known })
    }

    /// Deletes objects. The request is complete when the primary owner of each has confirmed the
    /// deletion.
    pub(super) fn delete(&mut self, context: &RequestContext, ids: Vec<ObjectId>) -> MaybeReply {
        ids.iter().for_each(|id| self.announce_before_deletion(id));
        let ids: BTreeSet<ObjectId> = ids.into_iter().collect();
        if ids.is_empty() {
            return Some(Ok(Reply::Done));
        }
        self.requests.remember(context, RequestKind::Answers, &self.world);
        for id in ids {
            let question = Question::Delete { id, pruned: false };
            self.questions.ask(Asker::Request(context.request), question, &mut self.world);
        }
        None
    }

    /// Requests a page of the objects that a member owns.
    pub(super) fn list(
        &mut self,
        context: &RequestContext,
        owner: NodeId,
        prefix: String,
        after: Option<ObjectId>,
    ) -> MaybeReply {
        if prefix.len() > NAME_BYTES_MAX {
            let said = format!(
                "a prefix of {} bytes is too long: use at most {NAME_BYTES_MAX} bytes",
                prefix.len()
            );
            return Some(Err(Error::InvalidArgument(said)));
        }
        self.ask_member(context, owner, Question::List { prefix, after })
    }

    /// Requests a report of a member about itself.
    pub(super) fn inspect(
        &mut self,
        context: &RequestContext,
        node: Option<NodeId>,
        inspection: Inspection,
    ) -> MaybeReply {
        let node = node.unwrap_or(self.world.me());
        self.ask_member(context, node, Question::Inspect(inspection))
    }

    fn ask_owners(&mut self, context: &RequestContext, question: Question) -> MaybeReply {
        self.requests.remember(context, RequestKind::Answers, &self.world);
        self.questions.ask(Asker::Request(context.request), question, &mut self.world);
        None
    }

    fn ask_member(
        &mut self,
        context: &RequestContext,
        node: NodeId,
        question: Question,
    ) -> MaybeReply {
        if !self.world.members().contains(node) {
            return Some(Err(question.member_gone(node)));
        }
        self.requests.remember(context, RequestKind::Answers, &self.world);
        let asker = Asker::Request(context.request);
        self.questions.ask_member(asker, node, question, &mut self.world);
        None
    }

    /// A member answered a question, now or again later.
    pub(super) fn answered(&mut self, from: NodeId, number: QuestionId, answer: Answer) {
        let Self { questions, world, .. } = self;
        let Some((asker, question)) = questions.answered(from, number, &answer, world) else {
            if let Answer::Located(located) = answer {
                self.located_late(from, *located);
            }
            return;
        };
        match (asker, &answer) {
            // The holder of an input may reconnect, or a client may put it again.
            (Asker::Reduce(_), Answer::Gone(Error::ObjectLost { .. })) => {
                questions.ask_later(number, world);
            }
            _ if answer.keeps_open() => {}
            _ => questions.close(number, Some(from), world),
        }
        let (asker, id) = match (asker, question.subject()) {
            (Asker::Request(request), _) => {
                return self.request_answered(request, number, &question, answer);
            }
            (asker, Some(id)) => (asker, id),
            (_, None) => return,
        };
        let is_first = self.world.members().owners(&id).primary == from;
        match (asker, answer) {
            (Asker::Reduce(key), Answer::Found(found)) => {
                self.input_found(key, number, &id, Some(*found));
            }
            (Asker::Reduce(key), Answer::Pending) => self.input_found(key, number, &id, None),
            (Asker::Reduce(key), Answer::Gone(error)) => self.input_gone(key, &id, &error),
            (Asker::Range(request), Answer::Found(found)) => {
                self.range_found(from, request, &id, &found);
            }
            (Asker::Range(request), Answer::Gone(error)) => {
                self.range_gone(is_first, request, error);
            }
            (Asker::Arrival(arrival), Answer::Located(located)) => self.located(arrival, *located),
            (Asker::Arrival(arrival), Answer::RangeLocated(source)) => {
                self.range_located(arrival, source);
            }
            (Asker::Arrival(arrival), Answer::Gone(error)) => {
                self.source_gone(arrival, &id, error);
            }
            (Asker::Parts(_), Answer::Found(found)) => self.parts_found(&found),
            // Another owner may not have the next put of the name yet.
            (Asker::Parts(_), Answer::Gone(error)) if is_first => self.pull_failed(&id, &error),
            _ => {}
        }
    }

    fn request_answered(
        &mut self,
        request: RequestId,
        number: QuestionId,
        question: &Question,
        answer: Answer,
    ) {
        let reply = match (question, answer) {
            (Question::Watch { id, .. }, answer) => {
                let is_settled = match &answer {
                    Answer::Found(found) => found.complete,
                    answer => !answer.keeps_open(),
                };
                if is_settled {
                    self.questions.close(number, None, &mut self.world);
                }
                let over = is_settled.then(|| self.requests.wait_settled(request, id)).flatten();
                match over {
                    Some(ready) => Ok(Reply::Waited { ready }),
                    None => return self.end_if_late(request),
                }
            }
            (_, Answer::Pending) => return self.end_if_late(request),
            (_, Answer::Locations(holdings)) => Ok(Reply::Locations(self.locations_of(&holdings))),
            (_, Answer::Latest(name)) => Ok(Reply::Latest { name }),
            (_, Answer::OlderVersions(names)) => {
                self.delete_versions(names);
                Ok(Reply::Done)
            }
            (_, Answer::Deleted | Answer::Unknown) => {
                if self.questions.of(Asker::Request(request)).next().is_some() {
                    return;
                }
                Ok(Reply::Done)
            }
            (_, Answer::List { rows, next }) => Ok(Reply::List { rows, next }),
            (_, Answer::Report(report)) => Ok(Reply::Inspected { report }),
            (_, Answer::Gone(error)) => Err(error),
            (_, Answer::NoSource | Answer::Located(_) | Answer::RangeLocated(_)) => return,
            (_, Answer::Found(_)) => return,
        };
        self.questions.close_of(Asker::Request(request), &mut self.world);
        self.requests.reply(request, reply, &mut self.world);
    }

    /// Ends a request past its deadline that only waited for the first answers.
    fn end_if_late(&mut self, request: RequestId) {
        if self.requests.is_late(request) && self.questions.are_answered(Asker::Request(request)) {
            self.time_out(request);
        }
    }

    fn locations_of(&self, holdings: &[Holding]) -> Vec<Location> {
        let location = |holding: &Holding| {
            let member = self.world.members().iter().find(|member| member.id == holding.node)?;
            Some(Location { member, complete: holding.complete })
        };
        holdings.iter().filter_map(location).collect()
    }

    /// Deletes older versions of a name. Waiting until all holders have dropped them would let a
    /// slow holder delay a publisher. Names that an owner loses by failing are found at the next
    /// prune.
    fn delete_versions(&mut self, names: Vec<Name>) {
        for id in names.into_iter().map(ObjectId::Named) {
            self.announce_before_deletion(&id);
            let number = QuestionId(self.world.next_serial());
            let question = Question::Delete { id: id.clone(), pruned: true };
            let primary = self.world.members().owners(&id).primary;
            for owner in [Some(primary), self.world.standby(&id)].into_iter().flatten() {
                self.world.send(owner, Message::Ask { number, question: question.clone() });
            }
        }
    }

    /// Sends a question to the owners that lack it. `has_lost` returns whether a member has lost
    /// what it received.
    pub(super) fn repeat_question(
        &mut self,
        number: QuestionId,
        has_lost: impl Fn(NodeId) -> bool,
    ) {
        if let Some(id) = self.questions.deleted_by(number).cloned() {
            self.announce_before_deletion(&id);
        }
        let gone = self.questions.follow_owners(number, has_lost, &mut self.world);
        if let Some((node, error)) = gone {
            self.answered(node, number, Answer::Gone(error));
        }
    }

    /// What a request waits for whose questions have no answer, and why.
    pub(super) fn question_description(&self, request: RequestId) -> (String, String) {
        let asker = Asker::Request(request);
        let Some((question, member)) = self.questions.of(asker).next() else {
            return ("a reply".into(), SILENT.into());
        };
        let (what, kept) = match question {
            Question::Latest { prefix, after } => {
                let newer = after.map_or_else(String::new, |after| format!(" newer than {after}"));
                let prefix = Quoted(prefix.as_str());
                (format!("a name under {prefix}{newer}"), "no client has put one")
            }
            Question::Locations { id, .. } => {
                (format!("a change of the holders of {id}"), "they have not changed")
            }
            Question::OlderVersions { name, .. } => {
                (format!("the names older than {}", Quoted(name.as_str())), SILENT)
            }
            Question::Delete { .. } => {
                let ids = self.questions.of(asker).filter_map(|(question, _)| question.subject());
                (format!("the deletion of {}", List(&ids.collect::<Vec<ObjectId>>())), SILENT)
            }
            Question::List { .. } => {
                (format!("the objects owned by node {member}"), "it has not replied")
            }
            Question::Inspect(_) => (format!("the report of node {member}"), "it has not replied"),
            Question::Watch { id, .. } => (format!("object {id}"), SILENT),
            Question::Locate(_) | Question::LocateRange(_) => ("a source".into(), SILENT),
        };
        let is_silent = question.is_kept() && !self.questions.are_answered(asker);
        (what, if is_silent { SILENT } else { kept }.to_string())
    }
}

//! Questions of this node to the owners of objects, or to one member, each until the answer that
//! closes it.
//!
//! The primary owner gets each question. The backup owner gets it too if the primary owner is
//! unresponsive, does not answer in time, has no object to watch yet, or knows none to delete. If
//! the primary owner is responsive and has none, reports of the backup owner count only a while
//! later: the first may be of an earlier object. For the source of a range that the backup owner
//! reported, it is the other way round. When the owners change, the new ones get the question, and
//! the former ones a cancellation. Does not know what follows from an answer.

use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId, QuestionId, ReduceId, RequestId},
    limits::OWNER_TIMEOUT_NS,
    machines::{incoming::ArrivalId, world::World},
    message::Message,
    question::{Answer, Question},
    time::Instant,
    timed::{Deadline, Timed, key_after},
};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

/// The reason for a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asker {
    /// A request of a client.
    Request(RequestId),
    /// The object is an input of this reduce.
    Reduce(ReduceId),
    /// A client wants a range of the object.
    Range(RequestId),
    /// This arrival needs a source.
    Arrival(ArrivalId),
    /// All parts of this result are here, but it is not known whether it is complete.
    Parts(Instance),
}

/// All open questions.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    open: Timed<QuestionId, OpenQuestion>,
    /// Objects to watch, which may be very many.
    unwatched: BTreeMap<Asker, VecDeque<ObjectId>>,
    /// The asker whose object was watched last: each gets one in turn, so that one with very many
    /// objects delays no other.
    watched: Option<Asker>,
    /// Askers that have ended, and still have questions.
    closing: BTreeSet<Asker>,
    /// The questions of each asker, by their subject: at most one about each.
    by_asker: BTreeMap<(Asker, Option<ObjectId>), QuestionId>,
    /// The number of questions of each asker that have no answer, and when it put the last one.
    unanswered: BTreeMap<Asker, (usize, Instant)>,
    /// The number of questions for a newer name.
    latest: usize,
    /// When to continue with what is due: at most a slice of the questions is handled at a time.
    resumed_at: Instant,
}

/// A question without its last answer.
#[derive(Debug)]
struct OpenQuestion {
    question: Question,
    asker: Asker,
    /// The owner that got it first, the primary one as a rule, or the member.
    first: NodeId,
    /// The other owner, if it has the question too.
    other: Option<NodeId>,
    is_answered: bool,
    /// Whether the primary owner has no such object, according to its last answer.
    is_pending: bool,
    /// From when on a report of the backup owner counts nevertheless.
    doubted_until: Option<Instant>,
    next: Option<Next>,
}

/// How long the backup owner may lack what the primary owner has reported to it. After this time it
/// gets the question again.
const DOUBT_NS: u64 = 100_000_000;

/// What happens to a question without another answer, and when.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The other owner gets it too.
    Other(Instant),
    /// The owners get it again.
    Again(Instant),
}

impl Deadline for OpenQuestion {
    fn deadline(&self) -> Option<Instant> {
        self.next.map(|(Next::Other(at) | Next::Again(at))| at)
    }
}

impl Questions {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// The number of the last open question.
    #[cfg(test)]
    pub(crate) fn last(&self) -> Option<&QuestionId> {
        self.open.last_key()
    }

    /// The number of an open question about an object.
    #[cfg(test)]
    pub(crate) fn about(&self, id: &ObjectId) -> Option<QuestionId> {
        let mut all = self.by_asker.iter();
        all.find(|((_, subject), _)| subject.as_ref() == Some(id)).map(|(_, number)| *number)
    }

    /// The number of questions for a newer name.
    pub(crate) const fn latest(&self) -> usize {
        self.latest
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = self.open.deadline().map(|at| at.max(self.resumed_at));
        due.into_iter().chain(self.has_more().then_some(self.resumed_at)).min()
    }

    /// Whether questions are left to send or to close.
    fn has_more(&self) -> bool {
        !self.unwatched.is_empty() || !self.closing.is_empty()
    }

    /// Watches objects, in order, from the end of this event on.
    pub(crate) fn watch_all(&mut self, asker: Asker, mut ids: VecDeque<ObjectId>) {
        if !ids.is_empty() {
            self.unwatched.entry(asker).or_default().append(&mut ids);
        }
    }

    /// Sends and closes the next questions, if a slice is due.
    pub(crate) fn advance(&mut self, world: &mut World) {
        if self.resumed_at > world.now() {
            return;
        }
        let mut left = world.slice();
        while left > 0
            && let Some((asker, id)) = self.next_unwatched()
        {
            self.ask(asker, Question::Watch { id, seen_at: None }, world);
            left -= 1;
        }
        while left > 0
            && let Some(asker) = self.closing.pop_first()
        {
            left -= self.close_some(asker, left, world);
        }
        if left == 0 {
            self.pause(world);
        }
    }

    /// Schedules the next slice, if there is one.
    pub(crate) fn pause(&mut self, world: &World) {
        if self.has_more() && self.resumed_at <= world.now() {
            self.resumed_at = world.now() + world.config().slice.pause_ns;
        }
    }

    fn next_unwatched(&mut self) -> Option<(Asker, ObjectId)> {
        let next = key_after(&self.unwatched, self.watched.as_ref());
        self.watched = next.or_else(|| key_after(&self.unwatched, None));
        let asker = self.watched?;
        let left = self.unwatched.get_mut(&asker)?;
        let id = left.pop_front()?;
        if left.is_empty() {
            self.unwatched.remove(&asker);
        }
        Some((asker, id))
    }

    /// Sends a question to the owners of its subject, or sends it again.
    pub(crate) fn ask(&mut self, asker: Asker, question: Question, world: &mut World) {
        self.ask_first(asker, None, question, world);
    }

    /// The same, to the owner `first` in place of the primary one.
    pub(crate) fn ask_first(
        &mut self,
        asker: Asker,
        first: Option<NodeId>,
        question: Question,
        world: &mut World,
    ) {
        let Some(id) = question.subject() else { return };
        let key = (asker, Some(id));
        if let Some(number) = self.by_asker.get(&key) {
            return self.send(*number, world);
        }
        let (_, Some(id)) = key else { return };
        let owners = world.members().owners(&id);
        let first = first.filter(|first| owners.contains(*first)).unwrap_or(owners.primary);
        let number = self.insert(asker, question, first, world);
        self.send(number, world);
    }

    /// Sends a question to a member.
    pub(crate) fn ask_member(
        &mut self,
        asker: Asker,
        node: NodeId,
        question: Question,
        world: &mut World,
    ) {
        let number = self.insert(asker, question, node, world);
        self.send(number, world);
    }

    fn insert(
        &mut self,
        asker: Asker,
        question: Question,
        first: NodeId,
        world: &mut World,
    ) -> QuestionId {
        let number = QuestionId(world.next_serial());
        self.latest += usize::from(matches!(question, Question::Latest { .. }));
        // A deletion waits for the holders.
        let (other, is_answered, next) = (None, matches!(question, Question::Delete { .. }), None);
        self.by_asker.insert((asker, question.subject()), number);
        let (is_pending, doubted_until) = (false, None);
        let open = OpenQuestion {
            question,
            asker,
            first,
            other,
            is_answered,
            is_pending,
            doubted_until,
            next,
        };
        self.open.insert(number, open);
        if !is_answered {
            let unanswered = self.unanswered.entry(asker).or_default();
            *unanswered = (unanswered.0 + 1, world.now());
        }
        number
    }

    /// Sends a question to the owner that gets it first, and to the backup owner if the primary one
    /// is unresponsive.
    fn send(&mut self, number: QuestionId, world: &mut World) {
        let Some(open) = self.open.get(&number) else { return };
        let (first, question) = (open.first, open.question.clone());
        let (subject, expects_reply) = (question.subject(), question.expects_reply());
        world.send(first, Message::Ask { number, question });
        let Some(id) = subject else { return };
        let backup = world.members().owners(&id).backup;
        if backup != Some(first) && world.standby(&id).is_some() {
            self.send_other(number, world);
        } else if !expects_reply {
            return;
        } else if first != world.me() && backup.is_some() {
            let at = world.now() + OWNER_TIMEOUT_NS;
            self.open.update(&number, |open| open.next = Some(Next::Other(at)));
        }
        self.open.update(&number, |open| open.question.forget_refusal());
    }

    /// Sends a question to the owner that did not get it first.
    fn send_other(&mut self, number: QuestionId, world: &mut World) {
        let sent = self.open.update(&number, |open| {
            open.next = None;
            let owners = world.members().owners(&open.question.subject()?);
            let backup = owners.backup?;
            let other = if backup == open.first { owners.primary } else { backup };
            open.other = Some(other);
            Some((other, open.question.clone()))
        });
        if let Some((other, question)) = sent.flatten() {
            world.send(other, Message::Ask { number, question });
        }
    }

    /// Sends a changed question to the other owner, since the answer of `owner` is useless.
    pub(crate) fn ask_other(
        &mut self,
        asker: Asker,
        owner: NodeId,
        question: Question,
        world: &mut World,
    ) {
        let Some(number) = self.by_asker.get(&(asker, question.subject())).copied() else { return };
        let first = self.open.update(&number, |open| {
            open.question = question.clone();
            open.first
        });
        match first {
            Some(first) if first == owner => self.send_other(number, world),
            Some(first) => world.send(first, Message::Ask { number, question }),
            None => {}
        }
        self.open.update(&number, |open| open.question.forget_refusal());
    }

    /// Sends a question again later. The owner that answered has closed it.
    pub(crate) fn ask_later(&mut self, number: QuestionId, world: &World) {
        let at = world.now() + OWNER_TIMEOUT_NS;
        self.open.update(&number, |open| open.next = Some(Next::Again(at)));
    }

    /// Whether a member may answer a question. To one that is closed, any may: it has no effect.
    pub(crate) fn accepts(
        &self,
        from: NodeId,
        number: QuestionId,
        answer: &Answer,
        world: &World,
    ) -> bool {
        let Some(open) = self.open.get(&number) else { return true };
        let subject = open.question.subject();
        let is_about_it =
            !matches!(answer, Answer::Located(located) if subject.as_ref() != Some(&located.id));
        let is_from_owner = match subject {
            Some(id) => id.minter() == Some(from) || world.members().owners(&id).contains(from),
            None => open.first == from,
        };
        is_from_owner && is_about_it && open.question.takes(answer)
    }

    /// Records an answer. Returns the asker and the question; None if the answer has no effect.
    pub(crate) fn answered(
        &mut self,
        from: NodeId,
        number: QuestionId,
        answer: &Answer,
        world: &mut World,
    ) -> Option<(Asker, Question)> {
        let Some(open) = self.open.get(&number) else {
            // Both owners got the question, and the first answer has closed it.
            if answer.keeps_open() {
                world.send(from, Message::Cancel { number });
            }
            return None;
        };
        let owners = open.question.subject().map(|id| world.members().owners(&id));
        let is_primary = owners.is_none_or(|owners| owners.primary == from);
        if matches!(open.question, Question::Delete { .. }) {
            // Only the primary owner has records of all copies.
            let is_last = is_primary || open.is_pending && open.other == Some(from);
            let has_other = owners.is_some_and(|owners| owners.backup.is_some());
            if is_primary && *answer == Answer::Unknown && has_other {
                self.open.update(&number, |open| open.is_pending = true);
                self.send_other(number, world);
                return None;
            }
            return is_last.then(|| (open.asker, open.question.clone()));
        }
        if !is_primary && self.is_doubtful(from, number, answer, world) {
            return None;
        }
        let open = self.open.get(&number)?;
        let was_answered = open.is_answered;
        self.open.update(&number, |open| {
            open.is_answered = true;
            if is_primary {
                open.is_pending = *answer == Answer::Pending;
            }
            if !open.is_pending || !is_primary {
                (open.doubted_until, open.next) = (None, None);
            }
            open.next.take_if(|_| open.doubted_until.is_none());
            if let Question::Watch { seen_at, .. } = &mut open.question {
                *seen_at = match answer {
                    Answer::Pending => *seen_at,
                    Answer::Found(found) if found.inline.is_some() => Some(from),
                    Answer::Found(found) => Some(found.holder),
                    _ => None,
                };
            }
        });
        let open = self.open.get(&number)?;
        let (asker, question, lacks_backup) =
            (open.asker, open.question.clone(), open.other.is_none());
        if !was_answered {
            self.has_answer(asker);
        }
        // Otherwise, if the primary owner freezes or is partitioned before the object appears, the
        // notification would be late by the time until its failure is detected.
        let is_watched = matches!(question, Question::Watch { .. })
            && *answer == Answer::Pending
            && !matches!(asker, Asker::Parts(_));
        if is_watched && is_primary && lacks_backup {
            self.send_other(number, world);
        }
        Some((asker, question))
    }

    /// Whether the report of an object, or of its end, from the backup owner is to be ignored. The
    /// primary owner would report it too: the object may have ended before this question.
    fn is_doubtful(
        &mut self,
        from: NodeId,
        number: QuestionId,
        answer: &Answer,
        world: &World,
    ) -> bool {
        let now = world.now();
        self.open.update(&number, |open| {
            let is_watched = matches!(open.question, Question::Watch { .. });
            let is_report = matches!(answer, Answer::Found(_) | Answer::Gone(_));
            let is_news = open.is_pending || matches!(answer, Answer::Gone(_));
            let is_second = open.is_answered && open.other == Some(from) && is_news;
            if !is_watched || !is_report || !is_second || world.is_unresponsive(open.first) {
                return false;
            }
            if matches!(open.next, Some(Next::Again(_))) {
                // The primary owner has reported the loss, and gets the question again.
                return true;
            }
            let until = *open.doubted_until.get_or_insert(now + DOUBT_NS);
            open.next = (now < until).then_some(Next::Other(until));
            now < until
        }) == Some(true)
    }

    /// Closes a question. The owners that have it, except the owner that closed it, get a
    /// cancellation.
    pub(crate) fn close(
        &mut self,
        number: QuestionId,
        closed_by: Option<NodeId>,
        world: &mut World,
    ) {
        let Some(open) = self.open.remove(&number) else { return };
        self.latest -= usize::from(matches!(open.question, Question::Latest { .. }));
        self.by_asker.remove(&(open.asker, open.question.subject()));
        if !open.is_answered {
            self.has_answer(open.asker);
        }
        if open.question.is_kept() {
            let others = [Some(open.first), open.other].into_iter().flatten();
            for other in others.filter(|other| Some(*other) != closed_by) {
                world.send(other, Message::Cancel { number });
            }
        }
    }

    /// Closes all questions of an asker that has ended: a slice now, and the others later.
    pub(crate) fn close_of(&mut self, asker: Asker, world: &mut World) {
        self.unwatched.remove(&asker);
        self.close_some(asker, world.slice(), world);
    }

    /// Closes questions of an asker, at most `most`. Returns how many.
    fn close_some(&mut self, asker: Asker, most: usize, world: &mut World) -> usize {
        for closed in 0..most {
            let Some(number) = self.numbers(asker).next() else { return closed };
            self.close(number, None, world);
        }
        if self.numbers(asker).next().is_some() {
            self.closing.insert(asker);
        }
        most
    }

    fn has_answer(&mut self, asker: Asker) {
        if let Some(unanswered) = self.unanswered.get_mut(&asker) {
            unanswered.0 -= 1;
            if unanswered.0 == 0 {
                self.unanswered.remove(&asker);
            }
        }
    }

    fn numbers(&self, asker: Asker) -> impl Iterator<Item = QuestionId> {
        let from = self.by_asker.range((asker, None)..);
        from.take_while(move |((of, _), _)| *of == asker).map(|(_, number)| *number)
    }

    /// The questions of an asker, each with the member that got it first.
    pub(crate) fn of(&self, asker: Asker) -> impl Iterator<Item = (&Question, NodeId)> {
        let open = self.numbers(asker).filter_map(|number| self.open.get(&number));
        open.map(|open| (&open.question, open.first))
    }

    /// Whether no question of an asker waits for its first answer.
    pub(crate) fn are_answered(&self, asker: Asker) -> bool {
        !self.unanswered.contains_key(&asker) && !self.unwatched.contains_key(&asker)
    }

    /// When an asker put its last question, if one has no answer: now, if it has more.
    pub(crate) fn unanswered_since(&self, asker: Asker, now: Instant) -> Option<Instant> {
        let has_more = self.unwatched.contains_key(&asker);
        let last = self.unanswered.get(&asker).map(|(_, last)| *last);
        if has_more { Some(now) } else { last }
    }

    /// Repeats what is due.
    pub(crate) fn expire(&mut self, world: &mut World) {
        if self.resumed_at > world.now() {
            return;
        }
        let due = self.open.some_due(world.now(), world.slice());
        if due.len() == world.slice() {
            self.resumed_at = world.now() + world.config().slice.pause_ns;
        }
        for number in due {
            match self.open.get(&number).and_then(|open| open.next) {
                Some(Next::Again(_)) => {
                    self.open.update(&number, |open| open.next = None);
                    self.send(number, world);
                }
                _ => self.send_other(number, world),
            }
        }
    }

    /// The question after another one, or the first.
    pub(crate) fn next_after(&self, after: Option<QuestionId>) -> Option<QuestionId> {
        self.open.next_after(after.as_ref())
    }

    /// The object of a question.
    pub(crate) fn subject(&self, number: QuestionId) -> Option<ObjectId> {
        self.open.get(&number)?.question.subject()
    }

    /// The object that a question deletes.
    pub(crate) fn deleted_by(&self, number: QuestionId) -> Option<&ObjectId> {
        match &self.open.get(&number)?.question {
            Question::Delete { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Sends a question to the owners that do not have it. Returns the error if it was for a member
    /// that is gone.
    pub(crate) fn follow_owners(
        &mut self,
        number: QuestionId,
        has_lost: impl Fn(NodeId) -> bool,
        world: &mut World,
    ) -> Option<(NodeId, Error)> {
        let open = self.open.get(&number)?;
        let (first, other) = (open.first, open.other);
        let Some(id) = open.question.subject() else {
            if !world.members().contains(first) {
                return Some((first, open.question.member_gone(first)));
            }
            if has_lost(first) {
                self.send(number, world);
            }
            return None;
        };
        let owners = world.members().owners(&id);
        // The primary owner may not know the object that the backup owner has reported.
        let is_of_backup = matches!(open.question, Question::LocateRange(_));
        if is_of_backup && owners.backup == Some(first) && other.is_none() && !has_lost(first) {
            return None;
        }
        let former = [Some(first), other].into_iter().flatten();
        let former = former.filter(|node| open.question.is_kept() && !owners.contains(*node));
        former.for_each(|node| world.send(node, Message::Cancel { number }));
        let lacks_backup = open.question.expects_reply()
            && owners.backup.is_some()
            && (other != owners.backup && (other.is_some() || world.standby(&id).is_some())
                || other.is_some_and(&has_lost));
        // The primary owner does not know what is to be deleted, and the other one is gone.
        let is_at_other = open.is_pending && matches!(open.question, Question::Delete { .. });
        let lacks_other = is_at_other && (other != owners.backup || other.is_some_and(&has_lost));
        let lacks_primary = first != owners.primary || has_lost(owners.primary) || lacks_other;
        self.open.update(&number, |open| {
            if lacks_primary {
                (open.is_pending, open.doubted_until) = (false, None);
            }
            open.first = owners.primary;
            let both = [Some(first), other].into_iter().flatten();
            open.other = both.into_iter().find(|node| Some(*node) == owners.backup);
        });
        if lacks_primary {
            self.send(number, world);
        }
        if lacks_backup {
            self.send_other(number, world);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use alloc::{boxed::Box, format, vec::Vec};

    use super::*;
    use crate::{event::Action, question::LocateRange};

    const OTHER: NodeId = NodeId(3);

    fn sent(world: &mut World) -> Vec<(u64, Message)> {
        let sent = |action| match action {
            Action::Send { to, message } => Some((to.0, message)),
            _ => None,
        };
        world.taken().into_iter().filter_map(sent).collect()
    }

    /// Node 1 of five, and an object of node 2.
    fn world() -> (World, ObjectId) {
        (World::of(5), ObjectId::Minted { node: NodeId(2), serial: 1 })
    }

    fn watch(id: &ObjectId) -> Question {
        Question::Watch { id: id.clone(), seen_at: None }
    }

    fn reduce(serial: u64) -> Asker {
        Asker::Reduce(ReduceId { node: NodeId(1), serial })
    }

    /// The number of the only question that was sent, and its receiver.
    fn asked(world: &mut World) -> (u64, QuestionId) {
        match &sent(world)[..] {
            [(to, Message::Ask { number, .. })] => (*to, *number),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_owners_that_have_a_question_get_its_cancellation() {
        let ((mut world, id), mut questions) = (world(), Questions::default());
        let backup = world.members().owners(&id).backup.unwrap();
        questions.ask(reduce(7), watch(&id), &mut world);
        let (to, number) = asked(&mut world);
        assert_eq!(to, 2);
        questions.answered(NodeId(2), number, &Answer::Pending, &mut world);
        assert_eq!(asked(&mut world), (backup.0, number), "the object does not exist yet");
        questions.close_of(reduce(7), &mut world);
        let cancel = Message::Cancel { number };
        assert_eq!(sent(&mut world), [(2, cancel.clone()), (backup.0, cancel.clone())]);
        // A late answer of an owner that keeps it.
        questions.answered(OTHER, number, &Answer::Pending, &mut world);
        assert_eq!(sent(&mut world), [(OTHER.0, cancel)]);
        assert_eq!((questions.len(), questions.deadline()), (0, None));
        assert!(questions.by_asker.is_empty() && questions.unanswered.is_empty());
    }

    #[test]
    fn the_backup_owner_gets_a_question_if_the_primary_owner_does_not_answer() {
        let ((mut world, id), mut questions) = (world(), Questions::default());
        questions.ask(reduce(7), watch(&id), &mut world);
        let (_, number) = asked(&mut world);
        assert!(!questions.are_answered(reduce(7)));
        world.wait_until(questions.deadline().expect("the primary owner may not answer"));
        questions.expire(&mut world);
        let backup = world.members().owners(&id).backup.unwrap();
        assert_eq!(asked(&mut world), (backup.0, number));
        assert_eq!(questions.deadline(), None);
        questions.answered(backup, number, &Answer::Pending, &mut world);
        assert!(questions.are_answered(reduce(7)));
    }

    #[test]
    fn an_asker_has_one_question_about_an_object() {
        let ((mut world, id), mut questions) = (world(), Questions::default());
        questions.ask(reduce(7), watch(&id), &mut world);
        let first = asked(&mut world);
        questions.ask(reduce(7), watch(&id), &mut world);
        assert_eq!(asked(&mut world), first);
        questions.ask(reduce(8), watch(&id), &mut world);
        assert_ne!(asked(&mut world), first);
        assert_eq!(questions.len(), 2);
    }

    /// Goal: questions without an answer hold up no node that has very many.
    #[test]
    fn an_event_sends_a_slice_of_the_questions_to_backup_owners() {
        let (mut world, mut questions) = (World::of(5), Questions::default());
        let most = world.slice();
        for serial in 0..20 * most as u64 {
            let id = ObjectId::Minted { node: NodeId(2), serial };
            questions.ask(reduce(serial), watch(&id), &mut world);
        }
        sent(&mut world);
        // All of them are due at the same time.
        world.wait_until(questions.deadline().unwrap() + OWNER_TIMEOUT_NS);
        questions.expire(&mut world);
        // This node is the backup owner of some objects.
        assert!((1..=most).contains(&sent(&mut world).len()));
        let pause_ns = world.config().slice.pause_ns;
        assert_eq!(questions.deadline(), Some(world.now() + pause_ns), "the others follow");
    }

    #[test]
    fn an_asker_with_very_many_objects_delays_no_other() {
        let (mut world, mut questions) = (World::of(5), Questions::default());
        let most = world.slice() as u64;
        let id = |serial| ObjectId::Minted { node: NodeId(2), serial };
        let [many, one] = [1, 2].map(|number| Asker::Request(RequestId(number)));
        questions.watch_all(many, (0..2 * most - 1).map(id).collect());
        questions.watch_all(one, [id(0)].into());
        questions.advance(&mut world);
        assert_eq!(questions.of(one).count(), 1);
        let begun = world.now();
        world.wait_until(questions.deadline().expect("one slice is left"));
        assert_eq!(questions.unanswered_since(many, world.now()), Some(world.now()));
        assert_eq!(questions.unanswered_since(one, world.now()), Some(begun));
        questions.advance(&mut world);
        assert_eq!(questions.of(many).count() as u64, 2 * most - 1);
    }

    #[test]
    fn the_end_of_a_slice_of_questions_leaves_nothing() {
        let (mut world, mut questions) = (World::of(5), Questions::default());
        for serial in 0..world.slice() as u64 {
            let id = ObjectId::Minted { node: NodeId(2), serial };
            questions.ask(reduce(7), watch(&id), &mut world);
        }
        questions.close_of(reduce(7), &mut world);
        assert!(questions.len() == 0 && questions.closing.is_empty());
    }

    #[test]
    fn a_new_primary_owner_gets_the_question_and_a_former_one_the_cancellation() {
        let (mut world, mut questions) = (World::of(5), Questions::default());
        let name = (0..).map(|number| format!("x{number}").parse::<ObjectId>().unwrap());
        let is_of_others = |id: &ObjectId| {
            let owners = world.members().owners(id);
            !owners.contains(NodeId(1)) && owners.primary == NodeId(2)
        };
        let id = name.into_iter().find(is_of_others).unwrap();
        let backup = world.members().owners(&id).backup.unwrap();
        questions.ask(reduce(7), watch(&id), &mut world);
        let (_, number) = asked(&mut world);
        questions.answered(NodeId(2), number, &Answer::Pending, &mut world);
        sent(&mut world);
        world.members_mut().remove(NodeId(2));
        questions.follow_owners(number, |_| false, &mut world);
        let second = world.members().owners(&id).backup.unwrap();
        let receivers: Vec<u64> = sent(&mut world).into_iter().map(|(to, _)| to).collect();
        assert_eq!(world.members().owners(&id).primary, backup);
        assert!(receivers.contains(&backup.0), "{receivers:?} {second}");
    }

    fn range(id: &ObjectId) -> Question {
        let instance = Instance { node: NodeId(2), serial: 1 };
        let (avoid, not_here) = (Vec::new(), Some((OTHER, 7)));
        let locate = LocateRange { id: id.clone(), instance, bytes: 1, avoid, not_here };
        Question::LocateRange(Box::new(locate))
    }

    /// Goal: the owner that knows the object chooses, and is charged for one transfer.
    #[test]
    fn the_other_owner_gets_a_question_late_that_went_to_the_backup_owner_first() {
        let ((mut world, id), mut questions) = (world(), Questions::default());
        let backup = world.members().owners(&id).backup.unwrap();
        questions.ask_first(reduce(7), Some(backup), range(&id), &mut world);
        let (to, number) = asked(&mut world);
        assert_eq!(to, backup.0);
        questions.follow_owners(number, |_| false, &mut world);
        assert_eq!(sent(&mut world), [], "it still is an owner");
        world.wait_until(questions.deadline().expect("it may not answer"));
        questions.expire(&mut world);
        assert_eq!(asked(&mut world), (2, number));
        // A member that does not own the object gets no request.
        questions.ask_first(reduce(8), Some(NodeId(9)), range(&id), &mut world);
        assert_eq!(asked(&mut world).0, 2);
    }

    /// Goal: the age of a refusal, which was computed at first, is not taken for the present one.
    #[test]
    fn a_question_that_is_sent_again_carries_no_refusal() {
        let ((mut world, id), mut questions) = (world(), Questions::default());
        let mut carries = |questions: &mut Questions| {
            questions.ask(reduce(7), range(&id), &mut world);
            match &sent(&mut world)[..] {
                [(2, Message::Ask { question: Question::LocateRange(locate), .. })] => {
                    locate.not_here.is_some()
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([carries(&mut questions), carries(&mut questions)], [true, false]);
    }

    #[test]
    fn a_deletion_goes_to_the_backup_owner_if_the_primary_one_knows_no_object() {
        let ((mut world, id), mut questions) = (world(), Questions::default());
        let (primary, backup) = (NodeId(2), world.members().owners(&id).backup.unwrap());
        let asker = Asker::Request(RequestId(1));
        questions.ask(asker, Question::Delete { id, pruned: false }, &mut world);
        let (to, number) = asked(&mut world);
        assert_eq!((to, questions.deadline()), (primary.0, None), "the other one gets none later");
        let answer = |questions: &mut Questions, from, answer: Answer, world: &mut World| {
            questions.answered(from, number, &answer, world).is_some()
        };
        assert!(!answer(&mut questions, backup, Answer::Deleted, &mut world));
        assert!(!answer(&mut questions, primary, Answer::Unknown, &mut world));
        assert_eq!(asked(&mut world), (backup.0, number));
        // The backup owner ends before its answer.
        world.members_mut().remove(backup);
        assert!(questions.follow_owners(number, |_| false, &mut world).is_none());
        assert_eq!(asked(&mut world), (primary.0, number), "it may know the object now");
        assert!(answer(&mut questions, primary, Answer::Deleted, &mut world));
    }

    /// Goal: an object that was deleted before the question is not used, although the backup owner
    /// has not received the deletion. If the primary owner does not know it a while later, it may
    /// have no entry for it.
    #[test]
    fn the_backup_owner_alone_is_believed_after_a_while() {
        let ((mut world, id), mut questions) = (world(), Questions::default());
        let (primary, backup) = (NodeId(2), world.members().owners(&id).backup.unwrap());
        let ended = Answer::Gone(Error::ObjectDeleted { id: id.clone() });
        questions.ask(reduce(7), watch(&id), &mut world);
        let (_, number) = asked(&mut world);
        questions.answered(primary, number, &Answer::Pending, &mut world).unwrap();
        assert_eq!(asked(&mut world), (backup.0, number), "it gets the question too");
        assert!(questions.answered(backup, number, &ended, &mut world).is_none());
        assert_eq!(questions.deadline(), Some(world.now() + DOUBT_NS));
        world.wait_until(world.now() + DOUBT_NS);
        questions.expire(&mut world);
        assert_eq!(asked(&mut world), (backup.0, number), "once more");
        assert!(questions.answered(backup, number, &ended, &mut world).is_some());
    }

    #[test]
    fn a_question_to_a_member_ends_with_it() {
        let (mut world, mut questions) = (World::of(3), Questions::default());
        let asker = Asker::Request(RequestId(1));
        let list = Question::List { prefix: "".into(), after: None };
        questions.ask_member(asker, OTHER, list, &mut world);
        let (to, number) = asked(&mut world);
        assert_eq!(to, OTHER.0);
        world.members_mut().remove(OTHER);
        let ended = questions.follow_owners(number, |_| false, &mut world);
        assert!(matches!(ended, Some((OTHER, Error::NodeDown(_)))), "{ended:?}");
    }
}

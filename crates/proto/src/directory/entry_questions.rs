//! The open questions of one entry: opens and closes them, together with the record of where they
//! are.

use alloc::vec::Vec;

use super::{
    entry::Entry,
    questions::{Asker, Kind, OpenQuestion, OpenQuestions},
};
use crate::id::{NodeId, ObjectId, QuestionId};

impl Entry {
    /// Opens a question; it replaces an earlier one of the same number.
    pub(super) fn ask(
        &mut self,
        id: &ObjectId,
        kind: Kind,
        asker: Asker,
        question: OpenQuestion,
        open: &mut OpenQuestions,
    ) {
        open.insert(asker, id, kind);
        self.questions.get_or_insert_default().insert(kind, asker, question);
    }

    /// Closes a question.
    pub(super) fn close(
        &mut self,
        kind: Kind,
        asker: Asker,
        open: &mut OpenQuestions,
    ) -> Option<OpenQuestion> {
        let question = self.questions.as_mut()?.remove(kind, asker)?;
        open.remove(asker);
        self.free_questions();
        Some(question)
    }

    /// Closes the questions of a kind for which `is_meant` returns true, and returns them.
    pub(super) fn close_all(
        &mut self,
        kind: Kind,
        is_meant: impl Fn(&OpenQuestion) -> bool,
        open: &mut OpenQuestions,
    ) -> Vec<Asker> {
        let meant = self.open(kind).filter(|(_, question)| is_meant(question));
        let meant: Vec<Asker> = meant.map(|(asker, _)| asker).collect();
        meant.iter().for_each(|asker| drop(self.close(kind, *asker, open)));
        meant
    }

    /// Closes the questions for a newer name whose nodes do not have this version, and returns
    /// them.
    pub(super) fn close_older(&mut self, version: u64, open: &mut OpenQuestions) -> Vec<Asker> {
        let Some(questions) = &self.questions else { return Vec::new() };
        let older = questions.by_version.range(..(Some(version), (NodeId(0), QuestionId(0))));
        let older: Vec<Asker> = older.map(|(_, asker)| *asker).collect();
        older.iter().for_each(|asker| drop(self.close(Kind::Latest, *asker, open)));
        older
    }

    /// Closes the questions of a kind of one node.
    pub(super) fn close_of(&mut self, kind: Kind, node: NodeId, open: &mut OpenQuestions) {
        let its: Vec<Asker> = self.open_of(kind, node).map(|(asker, _)| asker).collect();
        its.into_iter().for_each(|asker| drop(self.close(kind, asker, open)));
    }

    /// Closes all questions, because the entry is removed.
    pub(super) fn close_everything(&mut self, open: &mut OpenQuestions) {
        let questions = self.questions.take();
        questions.into_iter().flat_map(|it| it.all).for_each(|((_, asker), _)| open.remove(asker));
    }

    /// The open questions of a kind.
    pub(super) fn open(&self, kind: Kind) -> impl Iterator<Item = (Asker, &OpenQuestion)> {
        self.questions.iter().flat_map(move |it| it.of(kind, None))
    }

    /// The open questions of a kind of one node.
    pub(super) fn open_of(
        &self,
        kind: Kind,
        node: NodeId,
    ) -> impl Iterator<Item = (Asker, &OpenQuestion)> {
        self.questions.iter().flat_map(move |it| it.of(kind, Some(node)))
    }

    pub(super) fn has_open(&self, kind: Kind) -> bool {
        self.open(kind).next().is_some()
    }

    pub(super) fn has_questions(&self) -> bool {
        self.questions.is_some()
    }

    /// Records that a question waits no longer.
    pub(super) fn settle_question(&mut self, kind: Kind, asker: Asker) {
        let question = self.questions.as_mut().and_then(|it| it.all.get_mut(&(kind, asker)));
        question.into_iter().for_each(|question| question.until = None);
    }

    /// Whether a question for a newer name waits for this version.
    pub(super) fn awaits_version(&self, version: u64) -> bool {
        let first = self.questions.as_ref().and_then(|it| it.by_version.first());
        first.is_some_and(|(after, _)| *after < Some(version))
    }

    fn free_questions(&mut self) {
        self.questions.take_if(|questions| questions.all.is_empty());
    }
}

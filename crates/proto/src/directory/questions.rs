//! Open questions of nodes: those about an object are at its entry, in order of kind, node and
//! number.
//!
//! [`OpenQuestions`] finds a question by its node and number. Therefore neither an answer, a
//! cancellation nor the departure of a node looks at other questions. Does not know when a question
//! gets its answer.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{
    id::{NodeId, ObjectId, QuestionId},
    message::Holding,
    time::Instant,
};

/// A question's node and number.
pub(super) type Asker = (NodeId, QuestionId);

/// What an open question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A source for the object.
    Source,
    /// Whether the object exists.
    Watch,
    /// The next change of its holders.
    Locations,
    /// The deletion of the object, once no holder serves it any more.
    Delete,
    /// The newest name below this prefix.
    Latest,
}

/// An open question.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenQuestion {
    /// The node that had the object when an owner last reported it, if any has. Only then do
    /// deletions apply to the question.
    pub(super) seen_at: Option<NodeId>,
    /// Until when it waits: a source for a node that receives slowly yields to other nodes; the
    /// reply to a deletion, or that there is no newer name, waits for announcements.
    pub(super) until: Option<Instant>,
    /// Whether this owner knew what is to be deleted, and has been an owner throughout.
    pub(super) is_known: bool,
    /// The last list of holders that the node has.
    pub(super) known: Option<Vec<Holding>>,
    /// The version that the node has.
    pub(super) after: Option<u64>,
    /// Sources that failed the node.
    pub(super) avoid: Vec<NodeId>,
    /// When a request for a source arrived.
    pub(super) since: Instant,
}

/// The open questions of one entry.
#[derive(Debug, Default)]
pub(super) struct EntryQuestions {
    /// In boxes, because most entries have one question, and a map has room for eleven.
    pub(super) all: BTreeMap<(Kind, Asker), Box<OpenQuestion>>,
    /// Those for a newer name, in order of the version that the node has.
    pub(super) by_version: BTreeSet<(Option<u64>, Asker)>,
}

/// Where each numbered question is.
#[derive(Debug, Default)]
pub(super) struct OpenQuestions {
    places: BTreeMap<Asker, (ObjectId, Kind)>,
    /// The number of questions for a newer name of each node.
    latest: BTreeMap<NodeId, usize>,
}

impl Kind {
    pub(super) const ALL: [Self; 5] =
        [Self::Source, Self::Watch, Self::Locations, Self::Delete, Self::Latest];
}

impl OpenQuestions {
    /// The object and the kind of an open question.
    pub(super) fn place(&self, asker: Asker) -> Option<&(ObjectId, Kind)> {
        self.places.get(&asker)
    }

    /// The number of questions of a node for a newer name.
    pub(super) fn latest_of(&self, node: NodeId) -> usize {
        self.latest.get(&node).copied().unwrap_or_default()
    }

    /// Whether any node waits for a newer name.
    pub(super) fn has_latest(&self) -> bool {
        !self.latest.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn insert(&mut self, asker: Asker, id: &ObjectId, kind: Kind) {
        let before = self.places.insert(asker, (id.clone(), kind));
        if kind == Kind::Latest && before.is_none() {
            *self.latest.entry(asker.0).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, asker: Asker) {
        if let Some((_, Kind::Latest)) = self.places.remove(&asker)
            && let Some(count) = self.latest.get_mut(&asker.0)
        {
            *count -= 1;
            if *count == 0 {
                self.latest.remove(&asker.0);
            }
        }
    }
}

impl EntryQuestions {
    /// The questions of a kind, or those of one node among them.
    pub(super) fn of(
        &self,
        kind: Kind,
        node: Option<NodeId>,
    ) -> impl Iterator<Item = (Asker, &OpenQuestion)> {
        let (first, last) = node.map_or((NodeId(0), NodeId(u64::MAX)), |node| (node, node));
        let first = (kind, (first, QuestionId(0)));
        let its = self.all.range(first..=(kind, (last, QuestionId(u64::MAX))));
        its.map(|((_, asker), question)| (*asker, &**question))
    }

    pub(super) fn insert(&mut self, kind: Kind, asker: Asker, question: OpenQuestion) {
        if kind == Kind::Latest {
            self.by_version.insert((question.after, asker));
        }
        self.all.insert((kind, asker), Box::new(question));
    }

    pub(super) fn remove(&mut self, kind: Kind, asker: Asker) -> Option<OpenQuestion> {
        let question = self.all.remove(&(kind, asker))?;
        if kind == Kind::Latest {
            self.by_version.remove(&(question.after, asker));
        }
        Some(*question)
    }
}

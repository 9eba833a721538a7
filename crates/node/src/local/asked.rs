//! The questions of one attached process that have no answer yet: as it numbers them, and as its node does.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use hoplite_proto::{error::Error as CallError, id::RequestId};

use super::limits::{
    QUESTION_BYTES_MAX, QUESTION_BYTES_OF_ALL_MAX, QUESTION_COST_BYTES, QUESTION_SHARE_BYTES,
    QUESTIONS_MAX,
};

/// The open questions of one process.
pub(super) struct Asked {
    open: HashMap<u64, Question>,
    bytes: usize,
    /// What those of all processes take.
    of_all: Arc<AtomicUsize>,
}

struct Question {
    /// The node's number of it, as soon as that is known.
    ours: Option<RequestId>,
    bytes: usize,
}

/// A question that is one too many.
pub(super) struct TooMuch {
    /// The limit that it is beyond.
    pub(super) limit: &'static str,
    /// What the process is told.
    pub(super) error: CallError,
}

impl Asked {
    /// None yet, of a process among those whose questions take `of_all`.
    pub(super) fn new(of_all: Arc<AtomicUsize>) -> Self {
        Self { open: HashMap::new(), bytes: 0, of_all }
    }

    /// Notes a question of so many bytes. With an [`TooMuch`] inside it is one too many, to be answered with that.
    ///
    /// # Errors
    /// A question of that number is open: the process is broken.
    pub(super) fn begin(&mut self, request: u64, bytes: usize) -> io::Result<Result<(), TooMuch>> {
        if self.open.contains_key(&request) {
            let said = format!("it asked question {request} again before that was answered");
            return Err(io::Error::new(io::ErrorKind::InvalidData, said));
        }
        if self.open.len() >= QUESTIONS_MAX || self.bytes + bytes > QUESTION_BYTES_MAX {
            let said = format!(
                "this process has {} questions of {} bytes at its node that are not answered, and may have \
                 {QUESTIONS_MAX} of {QUESTION_BYTES_MAX} bytes: let some of its calls end first",
                self.open.len(),
                self.bytes
            );
            let is_many = self.open.len() >= QUESTIONS_MAX;
            let limit = if is_many { "QUESTIONS_MAX" } else { "QUESTION_BYTES_MAX" };
            return Ok(Err(TooMuch { limit, error: CallError::InvalidArgument(said) }));
        }
        let (cost, own) = (bytes + QUESTION_COST_BYTES, self.cost());
        let of_all = self.of_all.fetch_add(cost, Ordering::Relaxed);
        if of_all + cost > QUESTION_BYTES_OF_ALL_MAX && own + cost > QUESTION_SHARE_BYTES {
            self.of_all.fetch_sub(cost, Ordering::Relaxed);
            let said = format!(
                "the processes of this host have questions at their node that are not answered and take {of_all} bytes of \
                 {QUESTION_BYTES_OF_ALL_MAX}, {own} of them those of this one: let some of its calls end first"
            );
            let error = CallError::InvalidArgument(said);
            return Ok(Err(TooMuch { limit: "QUESTION_BYTES_OF_ALL_MAX", error }));
        }
        self.open.insert(request, Question { ours: None, bytes });
        self.bytes += bytes;
        Ok(Ok(()))
    }

    /// What its questions take.
    fn cost(&self) -> usize {
        self.bytes + self.open.len() * QUESTION_COST_BYTES
    }

    /// Says which number the node gave a question, unless it was answered meanwhile.
    pub(super) fn is_asked_as(&mut self, request: u64, ours: RequestId) {
        if let Some(question) = self.open.get_mut(&request) {
            question.ours = Some(ours);
        }
    }

    /// The node's number of a question.
    pub(super) fn ours(&self, request: u64) -> Option<RequestId> {
        self.open.get(&request)?.ours
    }

    /// A question has its answer.
    pub(super) fn end(&mut self, request: u64) {
        if let Some(question) = self.open.remove(&request) {
            self.bytes -= question.bytes;
            self.of_all.fetch_sub(question.bytes + QUESTION_COST_BYTES, Ordering::Relaxed);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.of_all.fetch_sub(self.cost(), Ordering::Relaxed);
    }
}

//! The questions of one attached process that have no answer yet: as it numbers them, and as its node does.

use std::{collections::HashMap, io};

use hoplite_proto::{error::Error as CallError, id::RequestId};

use super::limits::{QUESTION_BYTES_MAX, QUESTIONS_MAX};

/// The open questions of one process.
#[derive(Default)]
pub(super) struct Asked {
    open: HashMap<u64, Question>,
    bytes: usize,
}

struct Question {
    /// The node's number of it, as soon as that is known.
    ours: Option<RequestId>,
    bytes: usize,
}

impl Asked {
    /// Notes a question of so many bytes. With an error inside it is one too many, to be answered with that.
    ///
    /// # Errors
    /// A question of that number is open: the process is broken.
    pub(super) fn begin(
        &mut self,
        request: u64,
        bytes: usize,
    ) -> io::Result<Result<(), CallError>> {
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
            return Ok(Err(CallError::InvalidArgument(said)));
        }
        self.open.insert(request, Question { ours: None, bytes });
        self.bytes += bytes;
        Ok(Ok(()))
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
        }
    }
}

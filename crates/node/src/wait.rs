//! An answer that is on its way to a program.

use std::{sync::mpsc, time::Duration};

use hoplite_proto::{ask::Answer, error::Error as CallError};

use crate::{client::Client, error::Error, view::Guard};

/// What came back for a question, with the memory it speaks of.
pub(crate) type Raw = Result<(Answer, Option<Guard>), CallError>;

/// An answer that is on its way. Dropping it takes the question back.
pub struct Wait<T> {
    pub(crate) client: Client,
    pub(crate) request: u64,
    pub(crate) answers: mpsc::Receiver<Raw>,
    pub(crate) finish: Option<Finish<T>>,
}

/// Makes of an answer what the caller wants.
pub(crate) type Finish<T> = Box<dyn FnOnce(Answer, Option<Guard>) -> Result<T, Error> + Send>;

impl<T> Wait<T> {
    /// Waits for at most `time`; none if there is no answer yet.
    pub fn wait_for(&mut self, time: Duration) -> Option<Result<T, Error>> {
        match self.answers.recv_timeout(time) {
            Ok(raw) => Some(self.end(raw)),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(self.no_answer())),
        }
    }

    /// Waits until there is an answer.
    ///
    /// # Errors
    /// What went wrong with the call.
    pub fn join(mut self) -> Result<T, Error> {
        match self.answers.recv() {
            Ok(raw) => self.end(raw),
            Err(mpsc::RecvError) => Err(self.no_answer()),
        }
    }

    fn end(&mut self, raw: Raw) -> Result<T, Error> {
        let finish = self.finish.take();
        let (answer, guard) = raw?;
        match finish {
            Some(finish) => finish(answer, guard),
            None => Err(Error::node_down("the answer was taken before")),
        }
    }

    fn no_answer(&mut self) -> Error {
        self.finish = None;
        if self.client.is_forked() { Error::Forked } else { Error::node_down("it gave no answer") }
    }
}

impl<T> std::fmt::Debug for Wait<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("request", &self.request).finish_non_exhaustive()
    }
}

impl<T> Drop for Wait<T> {
    fn drop(&mut self) {
        if self.finish.is_some() {
            self.client.cancel(self.request);
        }
    }
}

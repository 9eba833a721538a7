//! `reduce`: folds the first inputs to arrive.

use std::{sync::Arc, time::Duration};

use hoplite_node::proto::{
    id::ObjectId,
    meta::{Op, UnknownOp},
};

use super::checks;
use crate::{
    attachment::Attachment,
    call::{Call, Verb},
    error::{Error, ErrorKind, Result},
    mode::Mode,
    outcome::{Discard, Outcome},
    reference::{self, Ref},
};

/// The verb of [`Client::reduce`](crate::Client::reduce).
#[derive(Debug)]
pub struct Reduce {
    inputs: Result<Vec<ObjectId>>,
    op: Result<Op>,
    count: Option<usize>,
    name: Option<Result<ObjectId>>,
    ttl: Option<Duration>,
}

impl Reduce {
    pub(crate) fn new(inputs: Result<Vec<ObjectId>>, op: &str) -> Self {
        let op = op
            .parse()
            .map_err(|error: UnknownOp| Error::new(ErrorKind::UnknownOp, error.to_string()));
        Self { inputs, op, count: None, name: None, ttl: None }
    }
}

impl Call<'_, Reduce> {
    /// Sets how many inputs to fold, the first to arrive; all by default.
    pub fn count(mut self, count: impl Into<Option<usize>>) -> Self {
        self.verb.count = count.into();
        self
    }

    /// Names the result, or gives it a reserved ref.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.verb.name = Some(reference::parse(name));
        self
    }

    /// Deletes the result after a time, counted from when it is complete.
    pub fn ttl(mut self, ttl: impl Into<Option<Duration>>) -> Self {
        self.verb.ttl = ttl.into();
        self
    }
}

impl Verb for Reduce {
    type Output = Ref;

    async fn run(
        self,
        attachment: &Arc<Attachment>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<Outcome<Ref>> {
        let (inputs, op) = (self.inputs?, self.op?);
        if inputs.is_empty() {
            let message = "the list of inputs is empty: a reduce needs at least one";
            return Err(Error::argument(message));
        }
        checks::distinct(&inputs, "inputs")?;
        let count = self.count.map(|count| checks::count(count, 1, inputs.len())).transpose()?;
        let (name, ttl) = (self.name.transpose()?, checks::ttl(self.ttl)?);
        let (native, limit) = attachment.open(mode, limit).await?;
        let id = mode.reply(native.start_reduce(inputs, op, count, name, ttl, limit)).await?;
        Ok(Outcome::new(Ref::new(&id), Discard::new(&native, &id)))
    }
}

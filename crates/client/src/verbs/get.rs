//! `get`: a view of an object.

use std::{sync::Arc, time::Duration};

use hoplite_node::proto::{id::ObjectId, selection::Selection};

use crate::{
    attachment::Attachment,
    call::{Call, Verb},
    error::Result,
    interrupt,
    mode::{Mode, finish},
    outcome::Outcome,
    reference,
    view::View,
};

/// The verb of [`Client::get`](crate::Client::get).
#[derive(Debug)]
pub struct Get {
    id: Result<ObjectId>,
    part: Option<Selection>,
}

impl Get {
    pub(crate) fn new(reference: impl AsRef<str>) -> Self {
        Self { id: reference::parse(reference), part: None }
    }
}

impl Call<'_, Get> {
    /// Gets only the rows of an array, or the bytes of a plain object, from `start` to `stop`, as in a Python slice:
    /// a negative bound counts from the end, and None means the end.
    pub fn part(mut self, start: impl Into<Option<i64>>, stop: impl Into<Option<i64>>) -> Self {
        self.verb.part = Some(Selection { start: start.into(), stop: stop.into() });
        self
    }
}

impl Verb for Get {
    type Output = View;

    async fn run(
        self,
        attachment: &Arc<Attachment>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<Outcome<View>> {
        let id = self.id?;
        let (native, limit) = attachment.open(mode, limit).await?;
        let reply = match self.part {
            None => native.start_get(&id, limit),
            Some(part) => native.start_get_range(&id, part, limit),
        };
        Ok(View::new(mode.reply(reply).await?).into())
    }

    /// Without a future and its copies, which would take a twentieth of the time of a local get.
    #[inline]
    fn wait(self, attachment: &Arc<Attachment>, limit: Option<Duration>) -> Result<View> {
        match attachment.ready(Mode::Blocking) {
            Some(native) if self.part.is_none() => {
                Ok(View::new(interrupt::join(native.start_get(&self.id?, limit))?))
            }
            _ => finish(self.run(attachment, Mode::Blocking, limit)).map(Outcome::keep),
        }
    }
}

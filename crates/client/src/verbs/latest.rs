//! `latest`: the newest object under a prefix.

use std::{sync::Arc, time::Duration};

use hoplite_node::proto::id::ObjectId;

use crate::{
    attachment::Attachment,
    call::{Call, Verb},
    error::{Error, Result},
    mode::Mode,
    outcome::Outcome,
    reference::Ref,
};

/// The verb of [`Client::latest`](crate::Client::latest).
#[derive(Debug)]
pub struct Latest {
    prefix: String,
    after: Option<u64>,
}

impl Latest {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into(), after: None }
    }
}

impl Call<'_, Latest> {
    /// Accepts only numbers above this one.
    pub fn after(mut self, after: impl Into<Option<u64>>) -> Self {
        self.verb.after = after.into();
        self
    }
}

impl Verb for Latest {
    type Output = Ref;

    async fn run(
        self,
        attachment: &Arc<Attachment>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<Outcome<Ref>> {
        let Self { prefix, after } = self;
        if !prefix.ends_with('/') {
            let message = format!(
                "the prefix {prefix:?} does not end in \"/\": use {:?}",
                format!("{prefix}/")
            );
            return Err(Error::argument(message));
        }
        let (native, limit) = attachment.open(mode, limit).await?;
        let name = mode.reply(native.start_latest(&prefix, after, limit)).await?;
        Ok(Ref::new(&ObjectId::Named(name)).into())
    }
}

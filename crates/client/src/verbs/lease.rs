//! Leases: an object with leases is deleted after its last lease ends.

use std::{fmt, sync::Arc, time::Duration};

use hoplite_node::proto::id::ObjectId;

use crate::{
    attachment::Attachment,
    call::Verb,
    error::{ErrorKind, Result},
    mode::Mode,
    outcome::Outcome,
    reference::Ref,
};

/// A client's lease of an object, from [`Client::lease`](crate::Client::lease). Dropping it releases it.
///
/// It also ends when its client closes, or when the process or the node of the client ends.
pub struct Lease {
    attachment: Arc<Attachment>,
    id: ObjectId,
}

impl Lease {
    fn new(attachment: &Arc<Attachment>, id: ObjectId) -> Self {
        attachment.note_lease(&id);
        Self { attachment: attachment.clone(), id }
    }

    /// The ref of the object.
    pub fn reference(&self) -> Ref {
        Ref::new(&self.id)
    }

    /// Releases the lease, without waiting.
    pub fn release(self) {}
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.attachment.release_lease(&self.id);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({})", self.id)
    }
}

/// The verb of [`Client::lease`](crate::Client::lease).
#[derive(Debug)]
pub struct Acquire(pub(crate) Result<ObjectId>);

impl Verb for Acquire {
    type Output = Lease;

    async fn run(
        self,
        attachment: &Arc<Attachment>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<Outcome<Lease>> {
        use ErrorKind::{NotAllowed, ObjectDeleted, ObjectLost};
        let id = self.0?;
        let (native, limit) = attachment.open(mode, limit).await?;
        let lease = Lease::new(attachment, id.clone());
        let acquired = native.start_acquire_lease(&id);
        // The node and the owner receive the lease before this request. Its reply confirms both, within the timeout.
        // A client that may not lease may not look either; the refusal of the lease names the verb.
        match mode.reply(native.start_locations(&id, None, limit)).await {
            Err(error) if !matches!(error.kind(), NotAllowed | ObjectDeleted | ObjectLost) => {
                return Err(error);
            }
            _ => {}
        }
        mode.reply(acquired).await?;
        Ok(lease.into())
    }
}

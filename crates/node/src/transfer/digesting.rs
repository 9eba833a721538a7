//! Computes the digest of a copy while it arrives. Does not know the expected digest.

use std::sync::Arc;

use hoplite_proto::{limits::BLOCK_BYTES, meta::Digest};

use crate::{
    backing::Backing,
    digest::Digesting,
    engine::{supervisor::Supervisor, task::Task},
    store::StoredCopy,
};

/// Bytes digested at a time, on a blocking thread: 4 MiB take 3 ms, during which other blocking
/// work waits.
const RUN_BYTES: u64 = 256 * BLOCK_BYTES;

/// Computes the digest of a copy once it is complete; None if the rest will not come.
pub(crate) async fn digest_of(tasks: &Supervisor, stored: &Arc<StoredCopy>) -> Option<Digest> {
    let (mut digesting, mut at) = (Digesting::new(), 0);
    while at < stored.len() {
        let run = at..(at + RUN_BYTES).min(stored.len());
        stored.wait(run.clone()).await.ok()?;
        at = run.end;
        let stored = stored.clone();
        let work = move || {
            // Only this process writes the memory of received bytes.
            digesting.add(stored.bytes(run, &mut Vec::new()).ok()?.own()?);
            Some(digesting)
        };
        digesting = tasks.spawn_blocking(Task::Receive, work).await.ok().flatten().flatten()?;
    }
    Some(digesting.finish())
}

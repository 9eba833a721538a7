//! An input of a fold on this node: in memory, where it may still grow, or in a file, which is read
//! in pieces and takes no capacity of the store.

use std::{ops::Range, sync::Arc};

use hoplite_proto::{id::Instance, node::Event};
use hoplite_shm::Ready;

use crate::{
    backing::Backing,
    disk::file::{SpillFile, SpillReader},
    engine::tasks::Task,
    store::StoredCopy,
    transfer::shared::Transfers,
};

pub(super) enum Input {
    Stored { stored: Arc<StoredCopy>, buffer: Vec<u8> },
    File { instance: Instance, reading: Option<SpillReader>, frame: Vec<u8> },
}

impl Input {
    /// An input in memory.
    pub(super) const fn of(stored: Arc<StoredCopy>) -> Self {
        Self::Stored { stored, buffer: Vec::new() }
    }

    /// Opens an input in a file.
    pub(super) fn open(file: &SpillFile, instance: Instance) -> Result<Self, String> {
        let reading = SpillReader::open(file).map_err(|error| error.to_string())?;
        Ok(Self::File { instance, reading: Some(reading), frame: Vec::new() })
    }

    /// Waits for the bytes of `range`.
    pub(super) async fn bytes(
        &mut self,
        transfers: &Transfers,
        range: Range<u64>,
    ) -> Result<Ready<'_>, String> {
        let (instance, reading, frame) = match self {
            Self::Stored { stored, buffer } => {
                let dropped = |_| "an input was dropped".to_string();
                stored.wait(range.clone()).await.map_err(dropped)?;
                return stored.bytes(range, buffer).map_err(|error| format!("an input: {error}"));
            }
            Self::File { instance, reading, frame } => (*instance, reading, frame),
        };
        frame.clear();
        let mut at = range.start;
        while at < range.end {
            let file =
                reading.as_mut().ok_or_else(|| "an earlier read of its file failed".to_string())?;
            if let Some(bytes) = file.there(at, range.end) {
                frame.extend_from_slice(bytes);
                at += bytes.len() as u64;
                continue;
            }
            let Some(mut file) = reading.take() else { continue };
            // A disk takes milliseconds: transfers on this runtime continue meanwhile.
            let read = transfers.tasks.spawn_blocking(Task::Disk, move || {
                let read = file.read(at);
                (file, read)
            });
            let Ok(Some((file, read))) = read.await else {
                return Err("the node is stopping".into());
            };
            if let Err(error) = read {
                transfers.counters.spill_failures.add(1);
                let detail = format!("{}: {error}", file.path().display());
                let failed = Event::UnspillFailed { instance, detail: detail.clone() };
                transfers.events.send(failed);
                return Err(detail);
            }
            *reading = Some(file);
        }
        Ok(frame[..].into())
    }
}

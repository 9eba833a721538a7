//! State that the clients of this process share: the background runtime, and the leases to take again after a
//! reconnect. One lock guards both, and a fork holds it, so that the child finds consistent state.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use hoplite_node::proto::id::ObjectId;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{
    error::{Error, ErrorKind},
    signals,
};

/// The shared state.
#[derive(Default)]
pub(crate) struct Shared {
    /// The process that started the runtime, and the runtime. A forked child has none of its threads.
    runtime: Option<(u32, Runtime)>,
    /// Number of leases of an object, by the number of the client.
    pub(crate) leases: BTreeMap<(u64, ObjectId), u32>,
}

static SHARED: Mutex<Option<Shared>> = Mutex::new(None);

/// The locked state.
pub(crate) type Locked = MutexGuard<'static, Option<Shared>>;

/// Locks the state, for a fork.
pub(crate) fn lock() -> Locked {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads or changes the state.
pub(crate) fn with<T>(change: impl FnOnce(&mut Shared) -> T) -> T {
    change(lock().get_or_insert_default())
}

/// Keeps the numbers 0, 1 and 2 from the descriptors of this library, in a process that has closed one of them.
///
/// # Errors
/// [`ErrorKind::HostError`] if /dev/null can't be opened.
pub(crate) fn fill_standard_descriptors() -> Result<(), Error> {
    hoplite_node::fill_standard_descriptors().map_err(|error| {
        let message = format!(
            "descriptor 0, 1 or 2 of this process is closed and /dev/null can't be opened ({error}): start the process \
             with these descriptors open"
        );
        Error::new(ErrorKind::HostError, message)
    })
}

/// The runtime for timers and for calls in the background; starts it in this process if it does not run.
///
/// # Errors
/// [`ErrorKind::HostError`] if this process can't start a thread.
pub(crate) fn runtime() -> Result<Handle, Error> {
    let process = std::process::id();
    with(|shared| {
        if let Some((owner, runtime)) = &shared.runtime
            && *owner == process
        {
            return Ok(runtime.handle().clone());
        }
        let started = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("hoplite-client")
            .enable_time()
            .on_thread_start(signals::block)
            .build()
            .map_err(|error| {
                let message = format!(
                    "can't start a thread for calls in the background ({error}): raise ulimit -u, or use blocking calls"
                );
                Error::new(ErrorKind::HostError, message)
            })?;
        let handle = started.handle().clone();
        // The parent's runtime can't be dropped here: its threads do not exist in this process.
        std::mem::forget(shared.runtime.replace((process, started)));
        Ok(handle)
    })
}

//! Frees memory that nothing has used lately. Does not know what it was used for.

use std::time::Duration;

use hoplite_shm::{Arena, trim_heap};
use tokio::time::sleep;

use crate::{
    engine::tasks::{Supervisor, Task},
    transfer::streams::Streams,
};

/// How long unused memory of folds is kept, and the interval of [`Arena::trim_idle`].
const KEPT: Duration = Duration::from_secs(1);

/// Frees unused memory of copies and frames, until the node ends; of the heap each time that
/// `ended` completes. `tell_gone` notifies processes of extents to unmap.
pub(crate) async fn give_back<E: Future<Output = ()> + Send>(
    tasks: &Supervisor,
    arena: &Arena,
    streams: &Streams,
    ended: impl Fn() -> E,
    tell_gone: impl Fn() + Clone + Send + 'static,
) {
    loop {
        let is_heap_spare = tokio::select! {
            () = arena.spare() => false,
            () = streams.spare() => false,
            () = ended() => true,
        };
        sleep(KEPT).await;
        streams.give_back();
        let (arena, tell_gone) = (arena.clone(), tell_gone.clone());
        // Unmapping takes 50 ms per GiB.
        let trimming = tasks.spawn_blocking(Task::Trim, move || {
            arena.trim_idle();
            tell_gone();
            if is_heap_spare {
                trim_heap();
            }
        });
        let _ = trimming.await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::runtime::Handle;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unused_memory_is_freed_and_idle_node_does_nothing() {
        let arena = Arena::new(1 << 20);
        let (streams, rounds) = (Arc::<Streams>::default(), Arc::<AtomicUsize>::default());
        tokio::spawn({
            let (arena, streams, rounds) = (arena.clone(), streams.clone(), rounds.clone());
            let tasks = Supervisor::new(Handle::current());
            let count = move || {
                rounds.fetch_add(1, Ordering::Relaxed);
            };
            let never = std::future::pending;
            async move { give_back(&tasks, &arena, &streams, never, count).await }
        });
        let rounds_in_an_hour = async || {
            let before = rounds.load(Ordering::Relaxed);
            sleep(Duration::from_secs(3600)).await;
            rounds.load(Ordering::Relaxed) - before
        };
        let slot = arena.allocate(64 << 20, None).unwrap();
        assert_eq!(rounds_in_an_hour().await, 0, "all memory is in use");
        drop(slot);
        assert!(rounds_in_an_hour().await > 0);
        assert_eq!(arena.stats().mapped_bytes, 0);
        drop(streams.piece(1000));
        assert!(rounds_in_an_hour().await > 0);
        assert_eq!(rounds_in_an_hour().await, 0, "all memory was freed");
    }
}

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use super::*;
use crate::Ready;
use crate::{BLOCK_BYTES, header_bytes};

const EXTENT: u64 = 1 << 20;
const WRITER: Option<WriterId> = Some(WriterId(1));
/// A client that writes to none of the extents.
const READER: WriterId = WriterId(99);

#[test]
fn freed_space_is_used_again_and_starts_anew() {
    let arena = Arena::new(EXTENT);
    let slot = arena.allocate(3 * BLOCK_BYTES, None).unwrap();
    slot.copy_from(&vec![7; 3 * BLOCK_BYTES as usize], |_| {}).unwrap();
    let (extent, offset) = (slot.extent(), slot.offset());
    let used_bytes = 4096 + 3 * BLOCK_BYTES;
    let stats = ArenaStats { extents: 1, mapped_bytes: used_bytes, used_bytes, warm_bytes: 0 };
    assert_eq!(arena.stats(), stats);
    let clone = slot.clone();
    drop(slot);
    assert_eq!(arena.stats(), stats);
    drop(clone);
    assert_eq!(arena.stats().used_bytes, 0);
    let again = arena.allocate(3 * BLOCK_BYTES, None).unwrap();
    assert_eq!((again.extent(), again.offset()), (extent, offset));
    assert_eq!(again.progress().ready_bytes(), 0);
    assert!(!again.is_complete());
    assert!(again.claim(0..BLOCK_BYTES).is_some());
}

#[test]
fn an_owned_claim_keeps_the_space() {
    let arena = Arena::new(EXTENT);
    let claim = arena.allocate(10, None).unwrap().claim_owned(0..10).unwrap();
    assert_eq!(arena.stats().used_bytes, 8192);
    drop(claim);
    assert_eq!(arena.stats().used_bytes, 0);
}

#[test]
fn a_large_object_has_an_extent_of_its_own() {
    let arena = Arena::new(EXTENT);
    let large = arena.allocate(5 * EXTENT + 1, None).unwrap();
    let small = arena.allocate(1, None).unwrap();
    assert_ne!(large.extent(), small.extent());
    let (_, bytes) = arena.descriptor(large.extent(), READER).unwrap();
    assert_eq!(bytes, 5 * EXTENT + 4096 + header_bytes(5 * EXTENT + 1));
    // A freed extent serves an object of nearly its size, and no other.
    drop(large);
    let smaller = arena.allocate(4 * EXTENT, None).unwrap();
    assert_eq!(arena.stats().extents, 3);
    let nearly = arena.allocate(5 * EXTENT - 4096, None).unwrap();
    assert_eq!((arena.stats().extents, arena.stats().warm_bytes), (3, 0));
    let next = arena.allocate(EXTENT / 64, None).unwrap();
    assert_eq!(next.extent(), small.extent());
    drop((smaller, nearly));
}

#[test]
fn free_extents_are_unmapped_for_others_within_the_bound() {
    let arena = Arena::bounded(EXTENT, 40 * EXTENT, 4096);
    let mut all_gone = Vec::new();
    for writer in 1..100 {
        let writer = WriterId(writer);
        let mut slots = Vec::new();
        while slots.len() < 9 {
            let before = arena.lefts();
            match arena.allocate(4 * EXTENT, Some(writer)) {
                Ok(slot) => slots.push(slot),
                Err(error) => {
                    assert!(
                        matches!(error, ShmError::NoMemory { limit: Limit::Bound, .. }),
                        "{error}"
                    );
                    // The allocation waits until processes have unmapped the removed extents.
                    let gone = arena.take_gone();
                    gone.iter().for_each(|extent| arena.left(*extent));
                    all_gone.extend(gone);
                    assert!(arena.wait_for_left(before, Duration::ZERO));
                }
            }
        }
        assert!(arena.stats().mapped_bytes <= 40 * EXTENT);
        if writer == WriterId(2) {
            let error = arena.allocate(4 * EXTENT, None).unwrap_err();
            assert!(matches!(error, ShmError::NoMemory { limit: Limit::Bound, .. }), "{error}");
        }
        drop(slots);
    }
    assert!(all_gone.len() > 800);
    assert!(!arena.wait_for_left(arena.lefts(), Duration::from_secs(60)), "none is leaving");
    let first = WriterId(1);
    assert!(all_gone.iter().all(|extent| arena.descriptor(*extent, first).is_none()));
}

#[test]
fn threads_that_allocate_at_once_keep_to_the_bound() {
    let arena = Arena::bounded(EXTENT, 20 * EXTENT, 4096);
    let (made, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 1..=4 {
            let (arena, made, refused) = (&arena, &made, &refused);
            scope.spawn(move || {
                for _ in 0..50 {
                    match arena.allocate(6 * EXTENT, Some(WriterId(writer))) {
                        Ok(_slot) => made.fetch_add(1, Ordering::Relaxed),
                        Err(_) => refused.fetch_add(1, Ordering::Relaxed),
                    };
                    assert!(arena.stats().mapped_bytes <= 20 * EXTENT);
                }
            });
        }
    });
    assert_eq!(made.into_inner() + refused.into_inner(), 200);
    assert_eq!(arena.stats().used_bytes, 0);
}

#[test]
fn extents_idle_for_five_rounds_are_unmapped() {
    let arena = Arena::new(EXTENT);
    let slot = arena.allocate(100 * EXTENT, None).unwrap();
    let extent = slot.extent();
    (0..9).for_each(|_| arena.trim_idle());
    drop(slot);
    (0..5).for_each(|_| arena.trim_idle());
    assert_eq!(arena.stats().extents, 1);
    arena.trim_idle();
    assert_eq!((arena.stats().extents, arena.take_gone()), (0, vec![extent]));
    // It counts until it was reported as left, or until the timeout.
    assert_eq!(arena.stats().mapped_bytes, 100 * EXTENT + 4096);
    (0..3).for_each(|_| arena.trim_idle());
    assert_eq!(arena.stats(), ArenaStats::default());
}

#[test]
fn memory_is_spare_until_it_is_returned() {
    let arena = Arena::new(EXTENT);
    let mut spare = pin!(arena.spare());
    let mut is_spare = || spare.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    let slots = [1, 64 << 20].map(|bytes| arena.allocate(bytes, None).unwrap());
    assert!(!is_spare());
    drop(slots);
    assert!(is_spare());
    (0..9).for_each(|_| arena.trim_idle());
    let mut spare = pin!(arena.spare());
    assert!(spare.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn extents_of_a_writer_serve_only_that_writer() {
    let arena = Arena::new(EXTENT);
    let of_writer = arena.allocate(10, WRITER).unwrap();
    let of_other = arena.allocate(10, Some(WriterId(2))).unwrap();
    let of_node = arena.allocate(10, None).unwrap();
    let (mine, other, node) = (of_writer.extent(), of_other.extent(), of_node.extent());
    assert_eq!(arena.stats().extents, 3);
    assert_eq!(arena.allocate(10, WRITER).unwrap().extent(), mine);
    assert!(of_node.is_writable());
    assert!(!of_writer.is_writable());
    assert!(of_writer.claim(0..10).is_none());

    // The writer maps it before it is sealed; afterwards no process can map it writable.
    let (fd, bytes) = arena.descriptor(mine, WriterId(1)).unwrap();
    assert!(!arena.is_sealed(mine));
    assert!(arena.is_sealed(node));
    let mapping = Arc::new(Mapping::map_writable(fd.as_fd(), bytes).unwrap());
    arena.seal(mine, WriterId(1)).unwrap();
    arena.seal(mine, WriterId(1)).unwrap();
    assert!(arena.is_sealed(mine));
    assert!(Mapping::map_writable(fd.as_fd(), bytes).is_err());
    let (pool_fd, pool_bytes) = arena.descriptor(node, READER).unwrap();
    assert!(Mapping::map_writable(pool_fd.as_fd(), pool_bytes).is_err());

    // The node sees what the writer fills.
    let slot = Slot::open(mapping, of_writer.offset(), 10).unwrap();
    slot.copy_from(b"0123456789", |_| {}).unwrap();
    assert_eq!(of_writer.bytes().map(Ready::trusting_writer), Some(&b"0123456789"[..]));
    drop((slot, of_node));

    // After the writer has ended, a child that it forked may still write there: the extent serves nothing else.
    let filler = arena.allocate(EXTENT / 64, None).unwrap();
    assert_eq!(filler.extent(), node);
    arena.retire(WriterId(1));
    let others = [None, Some(WriterId(2)), Some(WriterId(3))];
    let others = others.map(|writer| arena.allocate(10, writer).unwrap());
    assert!(others.iter().all(|slot| slot.extent() != mine));
    assert_eq!(
        of_writer.bytes().map(Ready::trusting_writer),
        Some(&b"0123456789"[..]),
        "what it put stays"
    );
    assert!(arena.descriptor(mine, READER).is_some(), "and can be read");
    assert!(!arena.is_sealed(other));
}

#[test]
fn only_its_writer_gets_an_unsealed_extent() {
    let arena = Arena::new(EXTENT);
    let slot = arena.allocate(10, WRITER).unwrap();
    let extent = slot.extent();
    assert!(arena.descriptor(extent, READER).is_none());
    assert!(arena.descriptor(extent, WriterId(1)).is_some());
    // Only its writer can report that it has been mapped.
    let error = arena.seal(extent, READER).unwrap_err();
    assert!(matches!(error, ShmError::NotItsExtent { .. }), "{error}");
    let of_node = arena.allocate(10, None).unwrap();
    assert!(matches!(arena.seal(of_node.extent(), READER), Err(ShmError::NotItsExtent { .. })));
    assert!(!arena.is_sealed(extent));
    arena.seal(extent, WriterId(1)).unwrap();
    assert!(arena.descriptor(extent, READER).is_some());
}

#[test]
fn trimming_returns_wholly_free_extents() {
    let arena = Arena::new(EXTENT);
    let slots: Vec<Slot> = (0..2).map(|_| arena.allocate(EXTENT - 4096, None).unwrap()).collect();
    let large = arena.allocate(2 * EXTENT, None).unwrap();
    let of_writer = arena.allocate(1, WRITER).unwrap();
    arena.trim();
    assert_eq!(arena.take_gone(), []);
    let kept = slots[0].extent();
    let gone = [slots[1].extent(), large.extent(), of_writer.extent()];
    let mappings: Vec<_> =
        gone.iter().map(|id| Arc::downgrade(&arena.state().extents[id].mapping)).collect();
    let first = slots[0].clone();
    drop((slots, large, of_writer));
    arena.trim();
    assert_eq!(arena.take_gone(), gone);
    gone.iter().for_each(|extent| arena.left(*extent));
    assert!(mappings.iter().all(|mapping| mapping.strong_count() == 0));
    assert!(arena.descriptor(gone[0], READER).is_none());
    let error = arena.seal(gone[2], WriterId(1)).unwrap_err();
    assert_eq!(error.to_string(), format!("{} does not exist or was trimmed", gone[2]));
    assert_eq!(arena.stats().mapped_bytes, EXTENT, "the used one");
    assert_eq!(first.extent(), kept);
    assert!(arena.allocate_warm(10, None).is_none());
}

/// A program that starts with many objects at once must not wait for memory for each of them.
#[test]
fn concurrent_small_requests_share_an_extent() {
    let arena = Arena::new(64 << 20);
    let barrier = std::sync::Barrier::new(8);
    let slots: Vec<Slot> = std::thread::scope(|scope| {
        let allocate = || {
            barrier.wait();
            arena.allocate(12_000, None).unwrap()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(allocate)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(slots.len(), 8);
    assert_eq!((arena.stats().extents, arena.stats().mapped_bytes), (2, 128 << 10));
}

#[test]
fn a_slot_outlives_its_arena() {
    let arena = Arena::new(EXTENT);
    let slot = arena.allocate(3, None).unwrap();
    drop(arena);
    slot.copy_from(b"abc", |_| {}).unwrap();
    assert_eq!(slot.bytes().map(Ready::trusting_writer), Some(&b"abc"[..]));
}

#[test]
fn absurd_sizes_are_errors() {
    let arena = Arena::new(EXTENT);
    assert!(matches!(arena.allocate(1 << 50, None), Err(ShmError::NoMemory { .. })));
    for len in [u64::MAX, u64::MAX - 4096, 1 << 63, (1 << 63) - 4096] {
        let error = arena.allocate(len, None).unwrap_err();
        assert!(matches!(error, ShmError::TooLarge { .. }), "{error}");
    }
    assert_eq!(arena.stats(), ArenaStats::default());
}

#[test]
fn threads_share_an_arena() {
    let arena = Arena::new(EXTENT);
    std::thread::scope(|scope| {
        for thread in 0..3_u8 {
            let arena = arena.clone();
            scope.spawn(move || {
                for step in 0..100_usize {
                    let bytes = vec![thread; step * 1000];
                    let slot = arena.allocate(bytes.len() as u64, None).unwrap();
                    slot.copy_from(&bytes, |_| {}).unwrap();
                    assert_eq!(slot.bytes().map(Ready::trusting_writer), Some(&bytes[..]));
                }
            });
        }
    });
    assert_eq!(arena.stats().used_bytes, 0);
}

#[test]
fn a_retired_writer_leaves_nothing_behind() {
    let arena = Arena::new(EXTENT);
    let writer = Some(WriterId(7));
    let kept = arena.allocate(10, writer).unwrap();
    let large = arena.allocate(3 * EXTENT, writer).unwrap();
    drop(large);
    arena.retire(WriterId(7));
    assert_eq!(arena.stats().extents, 1, "the free one goes at once");
    drop(kept);
    assert_eq!(arena.stats().extents, 0, "the other with its last slot");
}

#[test]
fn memory_is_created_ahead_only_for_large_objects_of_the_node() {
    let arena = Arena::new(1 << 20);
    let made_ahead = |writer| {
        let _slots = [1, 2].map(|_| arena.allocate(1 << 20, writer).unwrap());
        let begins = arena.begin_ahead();
        arena.make_ahead();
        begins && arena.allocate_warm(1 << 20, writer).is_some()
    };
    assert!(!made_ahead(Some(WriterId(7))));
    assert!(made_ahead(None));
}

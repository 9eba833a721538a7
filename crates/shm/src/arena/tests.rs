use std::os::fd::AsFd;

use super::*;
use crate::{BLOCK_BYTES, header_bytes};

const EXTENT: u64 = 1 << 20;
const WRITER: Option<WriterId> = Some(WriterId(1));

#[test]
fn freed_space_is_used_again_and_starts_anew() {
    let arena = Arena::new(EXTENT);
    let slot = arena.allocate(3 * BLOCK_BYTES, None).unwrap();
    slot.copy_from(&vec![7; 3 * BLOCK_BYTES as usize], |_| {}).unwrap();
    let (extent, offset) = (slot.extent(), slot.offset());
    let stats = ArenaStats { extents: 1, mapped_bytes: EXTENT, used_bytes: 4096 + 3 * BLOCK_BYTES };
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
    let (_, bytes) = arena.descriptor(large.extent()).unwrap();
    assert_eq!(bytes, 5 * EXTENT + 4096 + header_bytes(5 * EXTENT + 1));
    drop(large);
    // The tightest place is taken, and the long one stays for long objects.
    let next = arena.allocate(EXTENT / 2, None).unwrap();
    assert_eq!(next.extent(), small.extent());
    arena.allocate(4 * EXTENT, None).unwrap();
    assert_eq!(arena.stats().extents, 2);
}

#[test]
fn extents_of_a_writer_serve_nobody_else_while_it_lives() {
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

    // The writer maps it before it is sealed; nobody can afterwards.
    let (fd, bytes) = arena.descriptor(mine).unwrap();
    assert!(!arena.is_sealed(mine));
    assert!(arena.is_sealed(node));
    let mapping = Arc::new(Mapping::map_writable(fd.as_fd(), bytes).unwrap());
    arena.seal(mine).unwrap();
    arena.seal(mine).unwrap();
    assert!(arena.is_sealed(mine));
    assert!(Mapping::map_writable(fd.as_fd(), bytes).is_err());
    let (pool_fd, pool_bytes) = arena.descriptor(node).unwrap();
    assert!(Mapping::map_writable(pool_fd.as_fd(), pool_bytes).is_err());

    // What it fills, the node sees.
    let slot = Slot::open(mapping, of_writer.offset(), 10).unwrap();
    slot.copy_from(b"0123456789", |_| {}).unwrap();
    assert_eq!(of_writer.bytes(), Some(&b"0123456789"[..]));
    drop((slot, of_node));

    let filler = arena.allocate(EXTENT - 4096, None).unwrap();
    assert_eq!(filler.extent(), node);
    arena.writer_gone(WriterId(1));
    let reused = arena.allocate(10, None).unwrap();
    assert_eq!(reused.extent(), mine);
    assert!(reused.is_writable());
    assert_eq!(of_writer.bytes(), Some(&b"0123456789"[..]), "what it put stays");
    assert_ne!(arena.allocate(10, Some(WriterId(2))).unwrap().extent(), mine);
    arena.writer_gone(WriterId(2));
    assert!(arena.is_sealed(other), "it died before it had mapped the extent");
}

#[test]
fn trimming_keeps_one_spare_and_returns_the_rest() {
    let arena = Arena::new(EXTENT);
    let slots: Vec<Slot> = (0..3).map(|_| arena.allocate(EXTENT - 4096, None).unwrap()).collect();
    let large = arena.allocate(2 * EXTENT, None).unwrap();
    let of_writer = arena.allocate(1, WRITER).unwrap();
    assert_eq!(arena.trim(), []);
    let (kept, spare, gone) =
        (slots[0].extent(), slots[1].extent(), [slots[2].extent(), large.extent()]);
    let mappings: Vec<_> =
        gone.iter().map(|id| Arc::downgrade(&arena.state().extents[id].mapping)).collect();
    let first = slots[0].clone();
    drop((slots, large, of_writer));
    assert_eq!(arena.trim(), gone);
    assert!(mappings.iter().all(|mapping| mapping.strong_count() == 0));
    assert!(arena.descriptor(gone[0]).is_none());
    let error = arena.seal(gone[1]).unwrap_err();
    assert_eq!(error.to_string(), format!("{} does not exist or was trimmed", gone[1]));
    assert_eq!(arena.stats().extents, 3, "the used one, the spare, the writer's");
    assert_eq!(first.extent(), kept);
    assert_eq!(arena.allocate(EXTENT - 4096, None).unwrap().extent(), spare);
}

#[test]
fn an_extent_can_be_made_ahead_of_use() {
    let arena = Arena::new(EXTENT);
    arena.warm(None).unwrap();
    arena.warm(None).unwrap();
    arena.warm(WRITER).unwrap();
    assert_eq!(arena.stats(), ArenaStats { extents: 2, mapped_bytes: 2 * EXTENT, used_bytes: 0 });
    let _slot = arena.allocate(1, None).unwrap();
    assert_eq!(arena.stats().extents, 2);
    arena.warm(None).unwrap();
    assert_eq!(arena.stats().extents, 3);
}

#[test]
fn a_slot_outlives_its_arena() {
    let arena = Arena::new(EXTENT);
    let slot = arena.allocate(3, None).unwrap();
    drop(arena);
    slot.copy_from(b"abc", |_| {}).unwrap();
    assert_eq!(slot.bytes(), Some(&b"abc"[..]));
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
    let error = Arena::new(u64::MAX).allocate(1, None).unwrap_err();
    assert!(matches!(error, ShmError::NoMemory { .. }), "{error}");
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
                    assert_eq!(slot.bytes(), Some(&bytes[..]));
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
fn all_free_memory_can_be_given_back() {
    let arena = Arena::new(EXTENT);
    for writer in [None, Some(WriterId(1)), Some(WriterId(2))] {
        drop(arena.allocate(10, writer).unwrap());
    }
    assert!(arena.allocate_warm(10, None).is_some());
    assert!(arena.allocate_warm(2 * EXTENT, None).is_none());
    assert!(arena.trim().is_empty(), "one spare each stays warm");
    assert_eq!(arena.trim_all().len(), 3);
    assert_eq!(arena.stats().mapped_bytes, 0);
    assert!(arena.allocate_warm(10, None).is_none());
}

use super::*;
use crate::Arena;
use crate::claim::{COPY_BYTES, OwnedWriteGuard};
use crate::ready::Ready;

const B: u64 = BLOCK_BYTES;

fn slot(len: u64) -> Slot {
    Arena::new(1 << 20).allocate(len, None).unwrap()
}

fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / B) as u8).collect()
}

#[test]
fn only_committed_bytes_are_ready() {
    let slot = slot(3 * B + 10);
    assert_eq!(slot.ready(0..1).map(Ready::trusting_writer), None);
    let mut last = slot.claim(3 * B..3 * B + 10).unwrap();
    last.fill(9);
    assert_eq!(slot.ready(3 * B..3 * B + 10).map(Ready::trusting_writer), None);
    last.commit();
    assert_eq!(slot.ready(3 * B + 2..3 * B + 10).map(Ready::trusting_writer), Some(&[9; 8][..]));
    assert_eq!(slot.ready(3 * B - 1..3 * B + 1).map(Ready::trusting_writer), None);
    assert_eq!(slot.progress().prefix(), 0);
    assert_eq!(slot.progress().ready_bytes(), 10);
    let mut rest = slot.claim(0..3 * B).unwrap();
    rest.fill(1);
    rest.commit();
    assert!(slot.is_complete());
    assert_eq!(slot.bytes().unwrap().len() as u64, 3 * B + 10);
    assert_eq!(slot.ready(3 * B - 1..3 * B + 1).map(Ready::trusting_writer), Some(&[1, 9][..]));
    assert_eq!(slot.ready(0..slot.len() + 1).map(Ready::trusting_writer), None);
}

#[test]
fn a_source_in_parts_is_concatenated() {
    let slot = slot(70 * B + 7);
    let source = pattern(70 * B + 7);
    let (first, rest) = source.split_at(5);
    let (second, third) = rest.split_at(67 * B as usize);
    let mut told = 0;
    slot.copy_from_parts(&[first, &[], second, third], |_| told += 1).unwrap();
    assert_eq!(slot.bytes().map(Ready::trusting_writer), Some(&source[..]));
    assert_eq!(told, 2, "a part of 1 MiB and the rest");
}

#[test]
fn a_claim_is_exclusive_until_it_ends() {
    let slot = slot(4 * B + 1);
    let first = slot.claim(B..3 * B).unwrap();
    assert_eq!(first.range(), B..3 * B);
    for taken in [0..2 * B, B..2 * B, 2 * B..3 * B, 2 * B..4 * B + 1, 0..4 * B + 1] {
        assert!(slot.clone().claim_owned(taken).is_none());
    }
    let before = slot.claim(0..B).unwrap();
    let after = slot.claim(3 * B..4 * B + 1).unwrap();
    drop(first);
    let again = slot.claim_owned(B..2 * B).unwrap();
    drop((before, after));
    again.commit();
    assert!(slot.claim(0..4 * B).is_none(), "block 1 is ready");
    assert!(slot.claim(B..2 * B).is_none(), "block 1 is ready");
    assert!(slot.claim(2 * B..4 * B + 1).is_some());
}

#[test]
fn claims_have_the_bounds_of_blocks() {
    let slot = slot(2 * B + 5);
    assert!(slot.claim(1..B).is_none());
    assert!(slot.claim(0..B - 1).is_none());
    assert!(slot.claim(0..3 * B).is_none());
    assert!(slot.claim(2 * B..2 * B + 4).is_none());
    #[expect(clippy::reversed_empty_ranges, reason = "a confused caller")]
    let backwards = 2 * B..B;
    assert!(slot.claim(backwards).is_none());
    assert!(slot.claim(B..B).unwrap().is_empty());
    assert!(slot.claim(2 * B..2 * B + 5).is_some());
}

#[test]
fn a_claim_can_be_committed_in_pieces() {
    let slot = slot(3 * B + 5);
    let mut guard = slot.claim_owned(0..slot.len()).unwrap();
    guard[..B as usize + 1].fill(1);
    assert_eq!(guard.commit_front(B - 1), 0);
    assert_eq!(guard.commit_front(B + 1), B);
    assert_eq!(guard.len() as u64, 2 * B + 5);
    assert_eq!(guard[0], 1);
    assert_eq!(slot.progress().prefix(), B);
    assert!(slot.claim(0..B).is_none());
    assert!(slot.claim(B..2 * B).is_none());
    assert_eq!(guard.commit_front(B), B);
    drop(guard);
    assert_eq!(slot.progress().prefix(), 2 * B);
    slot.claim(2 * B..slot.len()).unwrap().commit();
    assert!(slot.is_complete());
}

#[test]
fn copying_reports_the_prefix_after_each_part() {
    let source = pattern(2 * COPY_BYTES + 3);
    let slot = slot(source.len() as u64);
    let mut told = Vec::new();
    slot.copy_from(&source, |prefix| told.push(prefix)).unwrap();
    assert_eq!(told, [COPY_BYTES, 2 * COPY_BYTES, 2 * COPY_BYTES + 3]);
    assert_eq!(slot.bytes().map(Ready::trusting_writer), Some(&source[..]));
    let error = slot.copy_from(&source, |_| {}).unwrap_err();
    assert!(
        error.to_string().starts_with("bytes 0..1048576 of 2097155 cannot be claimed"),
        "{error}"
    );
    let error = slot.copy_from(&source[1..], |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "2097154 bytes cannot fill a slot of 2097155 bytes");
}

#[test]
fn an_empty_slot_is_complete_at_once() {
    let slot = slot(0);
    assert!(slot.is_complete() && slot.is_empty());
    assert_eq!(slot.bytes().map(Ready::trusting_writer), Some(&[][..]));
    slot.copy_from(&[], |_| panic!("an empty copy must not report progress")).unwrap();
    slot.claim(0..0).unwrap().commit();
    assert!(slot.claim(0..1).is_none());
}

#[test]
fn another_mapping_reads_while_the_slot_is_filled() {
    let arena = Arena::new(1 << 20);
    let _other = arena.allocate(5, None).unwrap();
    let source = pattern(4 * B + 3);
    let slot = arena.allocate(source.len() as u64, None).unwrap();
    let (fd, bytes) = arena.descriptor(slot.extent(), crate::WriterId(1)).unwrap();
    let mapping = Mapping::map_readonly(&fd, bytes).unwrap().with_extent(slot.extent());
    let reader = Slot::open(Arc::new(mapping), slot.offset(), slot.len()).unwrap();
    assert_eq!((reader.extent(), reader.offset()), (slot.extent(), slot.offset()));
    assert!(!reader.is_writable());
    assert!(reader.claim(0..B).is_none());
    std::thread::scope(|scope| {
        scope.spawn(|| slot.copy_from(&source, |_| {}).unwrap());
        let mut prefix = 0;
        while prefix < reader.len() {
            let now = reader.progress().prefix();
            assert_eq!(
                reader.ready(prefix..now).map(Ready::trusting_writer),
                Some(&source[prefix as usize..now as usize])
            );
            prefix = now;
        }
    });
    assert_eq!(reader.bytes().map(Ready::trusting_writer), Some(&source[..]));
}

#[test]
fn slots_of_one_mapping_are_opened_once_and_never_overlap() {
    let (mapping, _fd) = Mapping::create(1 << 20).unwrap();
    let mapping = Arc::new(mapping);
    let open = |offset, len| Slot::open(mapping.clone(), offset, len);
    let first = open(8192, 3 * B).unwrap();
    let same = open(8192, 3 * B).unwrap();
    let claim = first.claim(0..B).unwrap();
    assert!(same.claim(0..B).is_none());
    drop(claim);
    assert!(matches!(open(8192, 2 * B), Err(ShmError::Overlap { other: 8192, .. })));
    assert!(matches!(open(0, 4097), Err(ShmError::Overlap { other: 8192, .. })));
    assert!(matches!(open(12288, 1), Err(ShmError::Overlap { other: 8192, .. })));
    let before = open(0, 4096).unwrap();
    let after = open(8192 + 4096 + 3 * B, 4096).unwrap();
    drop(first);
    assert!(open(12288, 1).is_err());
    drop(same);
    let inside = open(12288, 1).unwrap();
    assert!(matches!(open(8192, 3 * B), Err(ShmError::Overlap { other: 12288, .. })));
    drop((before, inside, after));
    assert!(mapping.opened().is_empty());
}

#[test]
fn invalid_places_are_refused() {
    let (mapping, _fd) = Mapping::create(1 << 20).unwrap();
    let mapping = Arc::new(mapping);
    let cases =
        [(1, 1), (4095, 1), (1 << 20, 0), (0, (1 << 20) - 4095), (4096, u64::MAX), (0, u64::MAX)];
    for (offset, len) in cases.into_iter().chain([(!4095, 1), (!4095, u64::MAX)]) {
        let error = Slot::open(mapping.clone(), offset, len).unwrap_err();
        assert!(matches!(error, ShmError::OutOfBounds { .. }), "{error}");
    }
    Slot::open(mapping.clone(), 0, (1 << 20) - 4096).unwrap();
    Slot::open(mapping, (1 << 20) - 4096, 0).unwrap();
}

/// Sums of header, payload and offset for objects that no test machine could hold.
#[test]
fn sizes_above_four_gib_do_not_wrap() {
    let five_gib = 5 << 30;
    assert_eq!(slot_bytes(five_gib), Some(five_gib + header_bytes(five_gib)));
    assert_eq!(slot_bytes(five_gib + 1), Some(five_gib + 4096 + header_bytes(five_gib + 1)));
    assert_eq!(slot_bytes(u64::MAX), None);
    assert_eq!(slot_bytes(1 << 63), None);
}

/// A file of 6 GiB in which only the touched pages exist.
#[test]
fn a_slot_above_four_gib_is_filled_at_its_end() {
    use rustix::fs::{self, MemfdFlags, SealFlags};
    let len = (5 << 30) + 3;
    let fd = fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    fs::ftruncate(&fd, 6 << 30).unwrap();
    fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    let mapping = Mapping::map_sparse(&fd, 6 << 30).unwrap();
    let slot = Slot::open(Arc::new(mapping), 4096, len).unwrap();
    let last = len / B * B;
    let mut guard = slot.claim(last..len).unwrap();
    guard.copy_from_slice(b"end");
    guard.commit();
    assert_eq!(slot.ready(last..len).map(Ready::trusting_writer), Some(&b"end"[..]));
    assert_eq!(slot.ready(last - 1..len).map(Ready::trusting_writer), None);
    assert_eq!(slot.progress().ready_bytes(), 3);
    let mut got = [0; 3];
    let at = 4096 + header_bytes(len) + last;
    assert_eq!(rustix::io::pread(&fd, &mut got, at), Ok(3));
    assert_eq!(&got, b"end");
    let committed = fs::fstat(&fd).unwrap().st_blocks * 512;
    assert!(committed < 1 << 20, "{committed} bytes exist though a few pages were touched");
}

#[test]
fn guards_can_go_to_another_thread() {
    fn is_send<T: Send + 'static>() {}
    is_send::<OwnedWriteGuard>();
    is_send::<Slot>();
    fn is_sync<T: Sync>() {}
    is_sync::<Slot>();
    is_sync::<Arena>();
    is_sync::<Mapping>();
}

/// Threads that claim at random: exactly one of them writes each block, and ready blocks never change.
#[test]
fn threads_that_fight_for_blocks_fill_the_slot() {
    let slot = slot(40 * B + 17);
    let blocks = slot.progress().blocks();
    std::thread::scope(|scope| {
        for thread in 1..=3_u8 {
            let slot = slot.clone();
            scope.spawn(move || {
                for step in 0..blocks {
                    let block = (step * u64::from(thread) * 7) % blocks;
                    let range = block * B..((block + 2) * B).min(slot.len());
                    if let Some(mut guard) = slot.claim(range) {
                        guard.fill(thread);
                        guard.commit_front(B);
                    }
                }
                for block in 0..blocks {
                    let range = block * B..((block + 1) * B).min(slot.len());
                    if let Some(mut guard) = slot.claim(range) {
                        guard.fill(thread);
                        guard.commit();
                    }
                }
            });
        }
    });
    // A block may remain if every thread found it claimed by another one that then dropped the claim.
    for block in 0..blocks {
        let range = block * B..((block + 1) * B).min(slot.len());
        match slot.ready(range.clone()) {
            Some(Ready::Own(bytes)) => {
                assert!(bytes[0] > 0 && bytes.iter().all(|byte| *byte == bytes[0]))
            }
            Some(Ready::Foreign(_)) => panic!("memory of the pool"),
            None => slot.claim(range).unwrap().commit(),
        }
    }
    assert!(slot.is_complete());
}

/// Goal: a writer that resets its header takes nothing back from a process that knows the object to be complete.
#[test]
fn a_recorded_slot_stays_complete_whatever_its_writer_does() {
    let (arena, writer, source) = (Arena::new(1 << 20), crate::WriterId(1), pattern(4 * B + 3));
    let slot = arena.allocate(source.len() as u64, Some(writer)).unwrap();
    let (fd, bytes) = arena.descriptor(slot.extent(), writer).unwrap();
    let mapping = Mapping::map_writable(&fd, bytes).unwrap();
    let theirs = Slot::open(Arc::new(mapping), slot.offset(), slot.len()).unwrap();
    theirs.copy_from(&source, |_| {}).unwrap();
    assert!(slot.is_complete());
    theirs.reset();
    assert!(!slot.is_complete() && slot.bytes().is_none());
    slot.record_complete();
    let progress = slot.progress();
    assert!(slot.is_complete() && progress.is_ready(4) && !progress.is_ready(5));
    assert_eq!((progress.prefix(), progress.ready_bytes()), (slot.len(), slot.len()));
    let all = slot.bytes().unwrap();
    assert!(all.own().is_none() && all.to_vec() == source);
    assert!(slot.ready(0..slot.len() + 1).is_none());
}

use proptest::prelude::*;

use super::*;

const B: u64 = BLOCK_BYTES;

fn heap(len: u64) -> Vec<AtomicU64> {
    (0..word_count(len)).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn header_holds_a_word_and_a_bit_per_block_on_whole_pages() {
    assert_eq!(header_bytes(0), 4096);
    assert_eq!(header_bytes(1), 4096);
    // 511 words of bits plus the prefix fill the first page.
    assert_eq!(header_bytes(511 * 64 * B), 4096);
    assert_eq!(header_bytes(511 * 64 * B + 1), 8192);
    // 1 TiB: 2^26 blocks, 2^20 words of bits.
    assert_eq!(header_bytes(1 << 40), (1 << 23) + 4096);
    // The largest length has a header too; only the caller's sum overflows.
    assert_eq!(header_bytes(u64::MAX), (1u64 << 47) + 4096);
}

#[test]
fn a_payload_without_bytes_is_complete() {
    let words = heap(0);
    let progress = ProgressWriter::new(&words, 0);
    progress.advance_prefix(0);
    let progress = progress.reader();
    assert!(progress.is_complete() && progress.is_empty());
    assert_eq!((progress.prefix(), progress.ready_bytes(), progress.blocks()), (0, 0, 0));
    assert!(progress.is_range_ready(0..0));
    assert!(!progress.is_range_ready(0..1));
    assert!(!progress.is_ready(0));
}

#[test]
fn lengths_above_four_gib_do_not_wrap() {
    let len = (5 << 32) + 3;
    let words = heap(len);
    let writer = ProgressWriter::new(&words, len);
    let progress = writer.reader();
    let last = progress.blocks() - 1;
    writer.mark_block(last);
    assert_eq!(progress.ready_bytes(), 3);
    writer.mark_blocks(0..last - 1);
    assert_eq!(progress.prefix(), (last - 1) * B);
    assert!(progress.is_range_ready((5 << 32)..len));
    assert!(!progress.is_range_ready((5 << 32) - 1..len));
    writer.mark_block(last - 1);
    assert_eq!(progress.prefix(), len);
    assert!(progress.is_complete());
}

#[test]
fn malicious_words_stay_inside_the_payload() {
    let len = 3 * B + 1;
    let words = heap(len);
    words[0].store(u64::MAX, Ordering::Relaxed);
    words[1].store(u64::MAX, Ordering::Relaxed);
    let progress = ProgressRef::new(&words, len);
    assert_eq!(progress.prefix(), len);
    assert_eq!(progress.ready_bytes(), len);
    assert!(!progress.is_ready(4));
    assert!(!progress.is_range_ready(0..len + 1));
    #[expect(clippy::reversed_empty_ranges, reason = "a malicious peer sends such ranges")]
    let backwards = 2..1;
    assert!(!progress.is_range_ready(backwards));
    words[0].store(0, Ordering::Relaxed);
    assert_eq!(progress.ready_bytes(), len);
    ProgressWriter::new(&words, len).mark_block(0);
    assert_eq!(progress.prefix(), len);
}

#[derive(Clone, Debug)]
enum Step {
    Mark(u64, u64),
    Advance(u64),
}

proptest! {
    /// The words agree with a plain list of ready bytes after every step.
    #[test]
    fn agrees_with_a_list(
        blocks in 1u64..200,
        short in 0..B,
        steps in prop::collection::vec(
            prop_oneof![
                (any::<u64>(), 0u64..5).prop_map(|(at, run)| Step::Mark(at, run)),
                any::<u64>().prop_map(Step::Advance),
            ],
            0..60,
        ),
    ) {
        let len = blocks * B - short;
        let words = heap(len);
        let writer = ProgressWriter::new(&words, len);
        let progress = writer.reader();
        let mut ready = vec![false; blocks as usize];
        let mut prefix = 0;
        for step in steps {
            match step {
                Step::Mark(at, run) => {
                    let first = at % blocks;
                    let end = (first + run).min(blocks);
                    writer.mark_blocks(first..end);
                    ready[first as usize..end as usize].fill(true);
                }
                Step::Advance(bytes) => {
                    // Covers small and large steps.
                    let bytes = (bytes % (len + 1)) >> (bytes % 7);
                    writer.advance_prefix(bytes);
                    prefix = bytes.max(prefix);
                    let whole = if bytes == len { blocks } else { bytes / B };
                    ready[..whole as usize].fill(true);
                }
            }
            let joined = ready.iter().take_while(|ready| **ready).count() as u64;
            prefix = prefix.max((joined * B).min(len));
            prop_assert_eq!(progress.prefix(), prefix);
            prop_assert_eq!(progress.is_complete(), ready.iter().all(|ready| *ready));
            let mut bytes = 0;
            for (block, ready) in ready.iter().enumerate() {
                let start = block as u64 * B;
                let end = (start + B).min(len);
                prop_assert_eq!(progress.is_ready(block as u64), *ready);
                prop_assert_eq!(progress.is_range_ready(start..end), *ready);
                prop_assert_eq!(progress.is_any_ready(start..end), *ready || start < prefix);
                bytes += if *ready { end - start } else { prefix.clamp(start, end) - start };
            }
            prop_assert_eq!(progress.ready_bytes(), bytes);
        }
    }
}

#[test]
fn many_threads_lose_no_mark() {
    let blocks = 64 * 5 + 7;
    let len = blocks * B;
    for _ in 0..50 {
        let words = heap(len);
        let writer = ProgressWriter::new(&words, len);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    for block in (thread..blocks).step_by(3) {
                        writer.mark_block(block);
                    }
                });
            }
        });
        assert!(writer.reader().is_complete(), "prefix {} of {len}", writer.reader().prefix());
    }
}

//! Checks every interleaving and every allowed reordering of two writers and a reader.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;

/// Progress words and, in place of each block's bytes, a cell that loom checks for races.
struct Shared {
    words: Vec<AtomicU64>,
    cells: Vec<UnsafeCell<u64>>,
    len: u64,
}

// SAFETY: only the thread that later marks its block writes a cell, and it is read only after that mark was seen.
// Otherwise loom fails the test.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new(blocks: u64) -> Arc<Self> {
        let len = blocks * BLOCK_BYTES - 1;
        Arc::new(Self {
            words: (0..word_count(len)).map(|_| AtomicU64::new(0)).collect(),
            cells: (0..blocks).map(|_| UnsafeCell::new(0)).collect(),
            len,
        })
    }

    fn fill(&self, block: u64) {
        self.cells[block as usize].with_mut(|cell| {
            // SAFETY: only this thread writes the cell, before the mark; loom checks that.
            unsafe { *cell = block + 1 }
        });
    }

    fn mark(&self, block: u64) {
        self.fill(block);
        ProgressWriter::new(&self.words, self.len).mark_block(block);
    }

    fn read(&self, block: u64) -> u64 {
        // SAFETY: the caller saw the block's mark; loom checks that.
        self.cells[block as usize].with(|cell| unsafe { *cell })
    }

    fn progress(&self) -> ProgressRef<'_> {
        ProgressRef::new(&self.words, self.len)
    }
}

#[test]
fn bytes_below_the_prefix_can_be_read() {
    loom::model(|| {
        let shared = Shared::new(2);
        let writers: Vec<_> = (0..2)
            .map(|block| {
                let shared = shared.clone();
                thread::spawn(move || shared.mark(block))
            })
            .collect();
        let prefix = shared.progress().prefix();
        for block in 0..prefix.div_ceil(BLOCK_BYTES) {
            assert_eq!(shared.read(block), block + 1);
        }
        for writer in writers {
            writer.join().unwrap();
        }
        assert!(shared.progress().is_complete());
    });
}

#[test]
fn bytes_of_a_marked_block_can_be_read() {
    loom::model(|| {
        let shared = Shared::new(3);
        let writers: Vec<_> = (1..3)
            .map(|block| {
                let shared = shared.clone();
                thread::spawn(move || shared.mark(block))
            })
            .collect();
        for block in 1..3 {
            if shared.progress().is_ready(block) {
                assert_eq!(shared.read(block), block + 1);
            }
        }
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(shared.progress().prefix(), 0);
    });
}

/// Blocks 63 and 64 are in different words, where release and acquire alone would let both writers stop early.
#[test]
fn writers_of_different_words_lose_no_prefix() {
    loom::model(|| {
        let shared = Shared::new(65);
        ProgressWriter::new(&shared.words, shared.len).mark_blocks(0..63);
        let writers: Vec<_> = (63..65)
            .map(|block| {
                let shared = shared.clone();
                thread::spawn(move || shared.mark(block))
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        assert!(shared.progress().is_complete());
    });
}

#[test]
fn advancing_joins_blocks_marked_out_of_order() {
    loom::model(|| {
        let shared = Shared::new(2);
        let other = shared.clone();
        let writer = thread::spawn(move || other.mark(1));
        shared.fill(0);
        ProgressWriter::new(&shared.words, shared.len).advance_prefix(BLOCK_BYTES);
        if shared.progress().is_complete() {
            assert_eq!(shared.read(1), 2);
        }
        writer.join().unwrap();
        assert!(shared.progress().is_complete());
    });
}

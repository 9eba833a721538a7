//! Tests of the latch with real threads.

use std::{sync::Arc, thread, time::Duration};

use crate::latch::Latch;

#[test]
fn open_latch_wakes_every_waiting_thread() {
    let latch = Arc::new(Latch::default());
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let latch = latch.clone();
            thread::spawn(move || {
                while !latch.is_open() {
                    latch.wait(Duration::MAX);
                }
            })
        })
        .collect();
    while !latch.is_awaited() {
        thread::yield_now();
    }
    assert!(!latch.is_open());
    latch.open();
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    latch.wait(Duration::MAX);
}

#[test]
fn wait_ends_at_its_timeout() {
    let latch = Latch::default();
    assert!(latch.wait(Duration::from_millis(1)));
    assert!(!latch.is_open());
}

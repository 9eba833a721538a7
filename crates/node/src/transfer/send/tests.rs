//! Tests of the sending end of one connection; the test is the receiver.

use std::iter::once;

use hoplite_proto::{
    id::ReduceId,
    limits::BLOCK_BYTES,
    wire::{self, FrameKind},
};
use tokio::{task::JoinHandle, time::timeout};

use super::*;
use crate::{
    channel::Channel,
    frame,
    transfer::{
        streams::Stream,
        tcp,
        tests::{INSTANCE, PEER, SOON, Scene, block, channels, fill, next},
    },
};

type Served = JoinHandle<Result<(), LinkError>>;

/// The receiver of a transfer.
struct Receiver {
    channel: Channel,
    serving: Served,
}

impl Receiver {
    async fn of(scene: &Scene) -> Self {
        let (near, channel) = channels().await;
        let transfers = scene.transfers.clone();
        let serving =
            tokio::spawn(async move { serve(&transfers, NodeId(2), tcp::split(near)).await });
        Self { channel, serving }
    }

    async fn fetch(&mut self, transfer: u64, what: FetchTarget, credit: u64, frame: u64) {
        self.fetch_more(transfer, what, credit, frame, false).await;
    }

    /// Announces another request of the same copy, if `more`.
    async fn fetch_more(
        &mut self,
        transfer: u64,
        what: FetchTarget,
        credit: u64,
        frame: u64,
        more: bool,
    ) {
        let fetch = Fetch { what, credit, frame: frame as u32, more };
        self.channel.send(frame::frame(FrameKind::Fetch, transfer, &fetch)).await.unwrap();
    }

    async fn grant(&mut self, transfer: u64, bytes: u64) {
        self.channel.send(frame::bare(FrameKind::Credit, transfer, bytes)).await.unwrap();
    }

    /// Reads the next frame, skipping Waits frames.
    async fn next(&mut self) -> Option<(FrameKind, Vec<u8>)> {
        loop {
            let frame = next(&mut self.channel).await;
            if !matches!(frame, Some((FrameKind::KeepAlive, _))) {
                return frame;
            }
        }
    }

    async fn expect_blocks(&mut self, numbers: Range<u64>) {
        for number in numbers {
            assert_eq!(self.next().await, Some((FrameKind::Blocks, block(number))), "{number}");
        }
    }

    async fn expect_end(&mut self) {
        assert_eq!(self.next().await, Some((FrameKind::End, Vec::new())));
    }

    async fn expect_unavailable(&mut self, why: Unavailable) {
        let (kind, body) = self.next().await.unwrap();
        assert_eq!((kind, wire::decode(&body)), (FrameKind::Unavailable, Ok(why)));
    }

    /// Waits until the node closes the connection, and returns the reason.
    async fn ended(mut self) -> String {
        assert_eq!(self.next().await, None);
        let served = timeout(SOON, self.serving).await.unwrap().unwrap();
        served.unwrap_err().to_string()
    }
}

fn copy(ranges: impl IntoIterator<Item = Range<u64>>) -> FetchTarget {
    let (id, ranges) = (ObjectId::Minted { node: PEER, serial: 7 }, ranges.into_iter().collect());
    FetchTarget::Copy { id, instance: INSTANCE, ranges, ordered: false }
}

/// Waits for the request to the state machine whether a receiver may have a copy.
async fn asked(scene: &mut Scene) -> ServeId {
    let is_asked = |event| match event {
        Event::FetchRequested { serve, instance, .. } if instance == INSTANCE => Some(serve),
        _ => None,
    };
    scene.told(is_asked).await
}

async fn is_over(scene: &mut Scene, serve: ServeId) {
    let is_ended = move |event| (event == Event::ServeEnded { serve }).then_some(());
    scene.told(is_ended).await;
}

/// Checks that exactly `blocks` blocks were sent after other tasks have run.
async fn expect_sent(scene: &Scene, blocks: u64) {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(scene.transfers.counters.values().bytes_direct, blocks * BLOCK_BYTES);
}

#[tokio::test]
async fn growing_copy_is_sent_within_its_credit() {
    let mut scene = Scene::new();
    let stored = scene.memory(6);
    fill(&stored, 0..1);
    let mut receiver = Receiver::of(&scene).await;
    receiver.fetch(5, copy(once(0..6 * BLOCK_BYTES)), 2 * BLOCK_BYTES, BLOCK_BYTES).await;
    let serve = asked(&mut scene).await;
    scene.transfers.grant_serve(serve, INSTANCE, false);
    receiver.expect_blocks(0..1).await;
    fill(&stored, 1..5);
    receiver.expect_blocks(1..2).await;
    // Credit for less than a frame, and for an earlier transfer.
    receiver.grant(5, BLOCK_BYTES - 1).await;
    receiver.grant(4, 9 * BLOCK_BYTES).await;
    expect_sent(&scene, 2).await;
    receiver.grant(5, BLOCK_BYTES + 1).await;
    receiver.expect_blocks(2..4).await;
    expect_sent(&scene, 4).await;
    receiver.grant(5, BLOCK_BYTES).await;
    receiver.expect_blocks(4..5).await;
    scene.transfers.store.free(INSTANCE);
    receiver.expect_unavailable(Unavailable::Dropped).await;
    is_over(&mut scene, serve).await;
    expect_sent(&scene, 5).await;
}

#[tokio::test]
async fn connection_carries_consecutive_transfers() {
    let mut scene = Scene::new();
    fill(&scene.memory(4), 0..4);
    let mut receiver = Receiver::of(&scene).await;
    receiver.fetch(1, copy(once(0..BLOCK_BYTES)), u64::MAX / 2, BLOCK_BYTES).await;
    let refused = asked(&mut scene).await;
    scene.transfers.refuse_serve(refused);
    receiver.expect_unavailable(Unavailable::NotHere).await;
    let ranges = [3 * BLOCK_BYTES..4 * BLOCK_BYTES, BLOCK_BYTES..3 * BLOCK_BYTES];
    receiver.fetch(2, copy(ranges), u64::MAX / 2, BLOCK_BYTES).await;
    let serve = asked(&mut scene).await;
    scene.transfers.grant_serve(serve, INSTANCE, true);
    receiver.expect_blocks(3..4).await;
    receiver.expect_blocks(1..3).await;
    receiver.expect_end().await;
    is_over(&mut scene, serve).await;
    let counters = scene.transfers.counters.values();
    assert_eq!((counters.serves, counters.bytes_relayed), (1, 3 * BLOCK_BYTES));
}

/// Goal: requests that follow each other without a pause are one use of the copy, and the credit of
/// each is for that one only.
#[tokio::test]
async fn requests_ahead_are_served_in_turn() {
    let mut scene = Scene::new();
    fill(&scene.memory(5), 0..5);
    let mut receiver = Receiver::of(&scene).await;
    let blocks =
        |blocks: Range<u64>| copy(once(blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES));
    receiver.fetch_more(1, blocks(0..2), 4 * BLOCK_BYTES, BLOCK_BYTES, true).await;
    receiver.fetch(2, blocks(2..5), BLOCK_BYTES, BLOCK_BYTES).await;
    let serve = asked(&mut scene).await;
    scene.transfers.grant_serve(serve, INSTANCE, false);
    receiver.expect_blocks(0..2).await;
    receiver.expect_end().await;
    // Credit for the transfer before is void.
    receiver.grant(1, 4 * BLOCK_BYTES).await;
    receiver.expect_blocks(2..3).await;
    expect_sent(&scene, 3).await;
    receiver.grant(2, 2 * BLOCK_BYTES).await;
    receiver.expect_blocks(3..5).await;
    receiver.expect_end().await;
    let over = scene.told(|event| match event {
        Event::FetchRequested { .. } => Some(None),
        Event::ServeEnded { serve } => Some(Some(serve)),
        _ => None,
    });
    assert_eq!(over.await, Some(serve), "the state machine was requested once");
    assert_eq!(scene.transfers.counters.values().serves, 1);
    // Another request of the same copy later is another use. It ends if no more is requested.
    receiver.fetch_more(3, blocks(0..1), BLOCK_BYTES, BLOCK_BYTES, true).await;
    let other = asked(&mut scene).await;
    assert!(other != serve);
    scene.transfers.grant_serve(other, INSTANCE, false);
    receiver.expect_blocks(0..1).await;
    receiver.expect_end().await;
    is_over(&mut scene, other).await;
    assert_eq!(scene.transfers.counters.values().serves, 1, "a pause is not the end of a copy");
    receiver.fetch(4, blocks(1..5), 4 * BLOCK_BYTES, BLOCK_BYTES).await;
    let again = asked(&mut scene).await;
    scene.transfers.grant_serve(again, INSTANCE, false);
    receiver.expect_blocks(1..5).await;
    receiver.expect_end().await;
    is_over(&mut scene, again).await;
    assert_eq!(scene.transfers.counters.values().serves, 2);
}

#[tokio::test]
async fn invalid_request_ends_only_its_connection() {
    let mut scene = Scene::new();
    fill(&scene.memory(2), 0..2);
    let backwards = Range { start: 2 * BLOCK_BYTES, end: BLOCK_BYTES };
    for (range, said) in [
        (0..3 * BLOCK_BYTES, "bytes 0 to 49152 of 32768"),
        (backwards, "bytes 32768 to 16384"),
        (3 * BLOCK_BYTES..u64::MAX, "bytes 49152 to 18446744073709551615 of 32768"),
    ] {
        let mut receiver = Receiver::of(&scene).await;
        receiver.fetch(1, copy(once(range)), u64::MAX / 2, BLOCK_BYTES).await;
        let serve = asked(&mut scene).await;
        scene.transfers.grant_serve(serve, INSTANCE, false);
        let error = receiver.ended().await;
        assert!(error.contains(said), "{error}");
        is_over(&mut scene, serve).await;
    }
    let mut receiver = Receiver::of(&scene).await;
    receiver.fetch(1, copy(once(0..BLOCK_BYTES)), 0, BLOCK_BYTES + 1).await;
    let error = receiver.ended().await;
    assert!(error.contains("frames of 16385 bytes"), "{error}");
    let mut receiver = Receiver::of(&scene).await;
    receiver.channel.send(frame::bare(FrameKind::End, 1, 0)).await.unwrap();
    assert_eq!(receiver.next().await, None);
    assert_eq!(scene.transfers.counters.values().bytes_direct, 0);
}

#[tokio::test]
async fn ranges_begin_and_end_anywhere() {
    let mut scene = Scene::new();
    fill(&scene.memory(4), 0..4);
    let all: Vec<u8> = (0..4).flat_map(block).collect();
    let mut receiver = Receiver::of(&scene).await;
    let ranges = [5..BLOCK_BYTES + 9, 2 * BLOCK_BYTES - 1..2 * BLOCK_BYTES + 1, 7..7];
    receiver.fetch(1, copy(ranges), u64::MAX / 2, BLOCK_BYTES).await;
    let serve = asked(&mut scene).await;
    scene.transfers.grant_serve(serve, INSTANCE, false);
    for part in [
        5..BLOCK_BYTES + 5,
        BLOCK_BYTES + 5..BLOCK_BYTES + 9,
        2 * BLOCK_BYTES - 1..2 * BLOCK_BYTES + 1,
    ] {
        let expected = all[part.start as usize..part.end as usize].to_vec();
        assert_eq!(receiver.next().await, Some((FrameKind::Blocks, expected)), "{part:?}");
    }
    receiver.expect_end().await;
    is_over(&mut scene, serve).await;
    assert_eq!(scene.transfers.counters.values().bytes_direct, BLOCK_BYTES + 6);
}

/// Goal: a receiver that disconnects while it waits for the state machine or the copy leaves
/// nothing behind.
#[tokio::test]
async fn end_of_receiver_is_reported() {
    let mut scene = Scene::new();
    let _held = scene.memory(1);
    for is_granted in [false, true] {
        let mut receiver = Receiver::of(&scene).await;
        receiver.fetch(1, copy(once(0..BLOCK_BYTES)), BLOCK_BYTES, BLOCK_BYTES).await;
        let serve = asked(&mut scene).await;
        if is_granted {
            scene.transfers.grant_serve(serve, INSTANCE, false);
        }
        drop(receiver.channel);
        is_over(&mut scene, serve).await;
        assert!(timeout(SOON, receiver.serving).await.unwrap().unwrap().is_err());
        if !is_granted {
            // The state machine grants the copy too late.
            scene.transfers.grant_serve(serve, INSTANCE, false);
            is_over(&mut scene, serve).await;
        }
    }
}

#[tokio::test]
async fn stream_is_sent_to_its_end_or_reported_as_stopped() {
    let scene = Scene::new();
    let streams = &scene.transfers.streams;
    let reduce = ReduceId { node: PEER, serial: 1 };
    let key = |position| FoldKey { reduce, epoch: 0, segment: 0, position };
    for (position, is_whole) in [(1, true), (2, false)] {
        let (sender, frames) = mpsc::channel(8);
        streams.put(key(position), Stream { frames, ring: None });
        for number in 0..2 {
            let mut bytes = streams.piece(BLOCK_BYTES as usize);
            bytes.copy_from_slice(&block(number));
            sender.send(Frame::Bytes { offset: number * BLOCK_BYTES, bytes }).await.unwrap();
        }
        if is_whole {
            sender.send(Frame::End).await.unwrap();
        }
        let mut receiver = Receiver::of(&scene).await;
        receiver.fetch(1, FetchTarget::Partial(key(position)), WINDOW_BYTES, BLOCK_BYTES).await;
        receiver.expect_blocks(0..2).await;
        drop(sender);
        match is_whole {
            true => receiver.expect_end().await,
            false => receiver.expect_unavailable(Unavailable::Stopped).await,
        }
    }
    assert_eq!(scene.transfers.counters.values().bytes_partial, 4 * BLOCK_BYTES);
}

/// Goal: a parent whose connection to a busy node was replaced gets the stream on the next one.
#[tokio::test]
async fn stream_of_which_nothing_was_sent_goes_to_the_next_connection() {
    let scene = Scene::new();
    let streams = &scene.transfers.streams;
    let key =
        FoldKey { reduce: ReduceId { node: PEER, serial: 1 }, epoch: 0, segment: 0, position: 0 };
    let (window, frames) = mpsc::channel(1);
    streams.put(key, Stream { frames, ring: None });
    let mut first = Receiver::of(&scene).await;
    first.fetch(1, FetchTarget::Partial(key), WINDOW_BYTES, BLOCK_BYTES).await;
    // The fold has no frame yet: the receiver is notified that the request arrived.
    assert_eq!(next(&mut first.channel).await, Some((FrameKind::KeepAlive, Vec::new())));
    drop(first);
    let mut second = Receiver::of(&scene).await;
    second.fetch(2, FetchTarget::Partial(key), WINDOW_BYTES, BLOCK_BYTES).await;
    let mut bytes = streams.piece(BLOCK_BYTES as usize);
    bytes.fill(0);
    window.send(Frame::Bytes { offset: 0, bytes }).await.unwrap();
    window.send(Frame::End).await.unwrap();
    second.expect_blocks(0..1).await;
    second.expect_end().await;
}

#[tokio::test]
async fn batch_is_the_contiguous_ready_frames() {
    let scene = Scene::new();
    let stored = scene.memory(8);
    fill(&stored, 0..3);
    fill(&stored, 4..6);
    let blocks = |range: Range<u64>| range.start * BLOCK_BYTES..range.end * BLOCK_BYTES;
    let run = |first: Range<u64>, end: u64, frame: u64| {
        ready_run(&stored, blocks(first), end * BLOCK_BYTES, frame * BLOCK_BYTES)
    };
    assert_eq!(run(0..1, 8, 1), blocks(0..3));
    assert_eq!(run(0..2, 8, 2), blocks(0..2), "half of the next frame is ready");
    assert_eq!(run(0..1, 2, 1), blocks(0..2), "no more is requested");
    assert_eq!(run(4..5, 8, 1), blocks(4..6));
}

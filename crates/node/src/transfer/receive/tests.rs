//! Tests of the receiving end of one connection; the test is the sender.

use std::time::Duration;

use hoplite_proto::{
    id::{FetchId, Instance, ObjectId, ReduceId},
    limits::{CREDIT_BYTES, IDLE_REPLY_TIMEOUT_NS},
    meta::Digest,
    node::RangeSource,
    wire::{self, FrameKind, Header},
};
use tokio::time::timeout;

use super::*;
use crate::{
    channel::{self, Channel},
    digest::digest,
    frame,
    transfer::{
        blocks,
        tests::{INSTANCE, PEER, SOON, Scene, block, channels, fill},
        timeout::TURN,
    },
};

const BLOCK: u64 = hoplite_proto::limits::BLOCK_BYTES;

/// The sender of a transfer that a node requested.
struct Sender {
    channel: Channel,
    transfer: u64,
    fetch: Fetch,
}

impl Sender {
    /// Gives the node an idle connection, and returns its far end.
    async fn of(scene: &Scene) -> Channel {
        let (near, far) = channels().await;
        scene.transfers.network.peers.keep_idle(PEER, near);
        far
    }

    /// Reads the node's request on a connection.
    async fn asked(mut channel: Channel) -> Self {
        let header = timeout(SOON, channel::read_header(&mut channel.stream)).await.unwrap();
        let mut header = header.unwrap().expect("the node sends a request");
        let Channel { stream, open, .. } = &mut channel;
        let body = channel::read_body(stream, open, &mut header).await.unwrap();
        Self { channel, transfer: header.transfer, fetch: wire::decode(&body).unwrap() }
    }

    /// Sends blocks with these numbers, from block `at` of the object on, with a wrong checksum if
    /// `wrong`.
    async fn send(&mut self, at: u64, numbers: Range<u64>, wrong: bool) {
        self.send_from(at * BLOCK, numbers, wrong).await;
    }

    /// The same, from byte `at` on.
    async fn send_from(&mut self, at: u64, numbers: Range<u64>, wrong: bool) {
        let bytes: Vec<u8> = numbers.flat_map(block).collect();
        let frames = blocks::frames(bytes[..].into(), at, self.fetch.frame.into());
        for (offset, bytes) in frames {
            let checksum = if wrong { 1 } else { frame::crc(bytes.own().unwrap()) };
            let header = Header::new(FrameKind::Blocks, bytes.len() as u32, checksum);
            let header = Header { transfer: self.transfer, offset, ..header };
            self.channel.send([&header.encode()[..], &bytes.to_vec()].concat()).await.unwrap();
        }
    }

    async fn end(&mut self) {
        self.channel.send(frame::bare(FrameKind::End, self.transfer, 0)).await.unwrap();
    }

    /// Reads how many more bytes the node grants.
    async fn more(&mut self) -> u64 {
        let Channel { stream, open, .. } = &mut self.channel;
        let header = timeout(SOON, channel::read_header(stream)).await.unwrap();
        let mut header = header.unwrap().expect("the node grants more");
        channel::read_body(stream, open, &mut header).await.unwrap();
        assert_eq!((header.kind, header.transfer), (FrameKind::Credit, self.transfer));
        header.offset
    }

    async fn waits(&mut self) {
        self.channel.send(frame::bare(FrameKind::KeepAlive, self.transfer, 0)).await.unwrap();
    }

    async fn unavailable(&mut self, why: Unavailable) {
        let frame = frame::frame(FrameKind::Unavailable, self.transfer, &why);
        self.channel.send(frame).await.unwrap();
    }
}

const FETCH: FetchId = FetchId(1);

fn order(fetch: FetchId) -> FetchOrder {
    let (id, instance) = (ObjectId::Minted { node: PEER, serial: 7 }, INSTANCE);
    let (ranges, in_parts, digest, range) = (None, false, None, None);
    FetchOrder { fetch, id, instance, source: PEER, ranges, in_parts, digest, range }
}

fn begin(scene: &Scene, digest: Option<Digest>) {
    start(&scene.transfers, &scene.transfers.path, FetchOrder { digest, ..order(FETCH) });
}

/// Waits for the event that reports the end of a transfer.
async fn ended(scene: &mut Scene) -> Event {
    let is_end = |event| match event {
        Event::Fetched { .. } | Event::FetchFailed { .. } | Event::CopyCorrupt { .. } => {
            Some(event)
        }
        _ => None,
    };
    scene.told(is_end).await
}

#[tokio::test]
async fn range_of_another_copy_is_put_at_the_front() {
    const START: u64 = 5 * BLOCK + 7;
    let mut scene = Scene::new();
    let stored = scene.memory(3);
    fill(&stored, 0..1);
    let far = Sender::of(&scene).await;
    let of = Instance { node: PEER, serial: 99 };
    let range = Some(RangeSource { of, start: START });
    start(&scene.transfers, &scene.transfers.path, FetchOrder { range, ..order(FETCH) });
    let mut sender = Sender::asked(far).await;
    let FetchTarget::Copy { ranges, instance, .. } = &sender.fetch.what else { panic!() };
    let expected = START + BLOCK..START + 3 * BLOCK;
    assert_eq!((*instance, ranges.as_slice()), (of, &[expected][..]));
    sender.send_from(START + BLOCK, 1..3, false).await;
    sender.end().await;
    assert_eq!(ended(&mut scene).await, Event::Fetched { fetch: FETCH });
    let all: Vec<u8> = (0..3).flat_map(block).collect();
    assert!(stored.shared().bytes().unwrap().to_vec() == all);
    assert_eq!(stored.known_sum(START + BLOCK, BLOCK as usize), None, "it serves nobody");
}

#[tokio::test]
async fn missing_ranges_are_requested_and_put_in_place() {
    let mut scene = Scene::new();
    let stored = scene.memory(5);
    fill(&stored, 1..2);
    let far = Sender::of(&scene).await;
    begin(&scene, None);
    let mut sender = Sender::asked(far).await;
    let FetchTarget::Copy { ranges, instance, .. } = &sender.fetch.what else { panic!() };
    assert_eq!((*instance, ranges.as_slice()), (INSTANCE, &[0..BLOCK, 2 * BLOCK..5 * BLOCK][..]));
    sender.send(0, 0..1, false).await;
    sender.send(2, 2..5, false).await;
    sender.end().await;
    assert_eq!(ended(&mut scene).await, Event::Fetched { fetch: FETCH });
    let all: Vec<u8> = (0..5).flat_map(block).collect();
    assert!(stored.shared().bytes().unwrap().to_vec() == all);
    assert_eq!(scene.transfers.counters.values().bytes_received, 4 * BLOCK);
    assert!(
        scene.transfers.network.peers.take_idle(PEER).is_some(),
        "the connection is kept for the next transfer"
    );
}

/// Goal: corrupt bytes are never readable, those before them stay, and their source is reported.
#[tokio::test]
async fn corrupt_frame_is_not_kept() {
    let mut scene = Scene::new();
    let stored = scene.memory(3);
    let far = Sender::of(&scene).await;
    begin(&scene, None);
    let mut sender = Sender::asked(far).await;
    sender.send(0, 0..1, false).await;
    sender.send(1, 1..2, true).await;
    scene.told(|event| (event == Event::BlockCorrupt { source: PEER }).then_some(())).await;
    let failed = Event::FetchFailed { fetch: FETCH, not_here: false };
    assert_eq!(ended(&mut scene).await, failed);
    assert_eq!(stored.shared().progress().prefix(), BLOCK);
    let counters = scene.transfers.counters.values();
    assert_eq!((counters.blocks_corrupt, counters.fetches_failed), (1, 1));
    assert!(scene.transfers.network.peers.take_idle(PEER).is_none());
}

#[tokio::test]
async fn missing_copy_or_wrong_offset_fails_the_transfer() {
    let mut scene = Scene::new();
    let _held = scene.memory(2);
    for not_here in [true, false] {
        let far = Sender::of(&scene).await;
        begin(&scene, None);
        let mut sender = Sender::asked(far).await;
        match not_here {
            true => sender.unavailable(Unavailable::NotHere).await,
            false => sender.send(1, 1..2, false).await,
        }
        let failed = Event::FetchFailed { fetch: FETCH, not_here };
        assert_eq!(ended(&mut scene).await, failed);
    }
    assert_eq!(scene.transfers.counters.values().blocks_corrupt, 0);
}

#[tokio::test]
async fn copy_with_wrong_digest_is_reported() {
    let right = digest(&[&block(0), &block(1)]);
    for (wanted, is_right) in [(right, true), (digest(&[b"another"]), false)] {
        let mut scene = Scene::new();
        let _held = scene.memory(2);
        let far = Sender::of(&scene).await;
        begin(&scene, Some(wanted));
        let mut sender = Sender::asked(far).await;
        sender.send(0, 0..2, false).await;
        sender.end().await;
        let end = if is_right {
            Event::Fetched { fetch: FETCH }
        } else {
            Event::CopyCorrupt { fetch: FETCH }
        };
        assert_eq!(ended(&mut scene).await, end);
    }
}

#[tokio::test]
async fn replaced_transfer_reports_nothing() {
    let mut scene = Scene::new();
    let _held = scene.memory(1);
    let (one, other) = (Sender::of(&scene).await, Sender::of(&scene).await);
    begin(&scene, None);
    // Idle connections are used last in, first out.
    let first = Sender::asked(other).await;
    scene.transfers.stop_fetch(FETCH);
    let other = FetchId(2);
    start(&scene.transfers, &scene.transfers.path, order(other));
    let mut second = Sender::asked(one).await;
    drop(first);
    second.send(0, 0..1, false).await;
    second.end().await;
    assert_eq!(ended(&mut scene).await, Event::Fetched { fetch: other });
    assert_eq!(scene.transfers.counters.values().fetches_failed, 0);
}

/// Goal: two transfers fill one copy at the same time. Method: both requests arrive before the
/// first byte.
#[tokio::test]
async fn two_transfers_of_disjoint_ranges_fill_one_copy() {
    let mut scene = Scene::new();
    let stored = scene.memory(6);
    fill(&stored, 4..5);
    let mut senders = Vec::new();
    for (number, range) in [(1, 0..3 * BLOCK), (2, 3 * BLOCK..6 * BLOCK)] {
        let far = Sender::of(&scene).await;
        let ranges = Some(vec![range]);
        start(
            &scene.transfers,
            &scene.transfers.path,
            FetchOrder { ranges, ..order(FetchId(number)) },
        );
        senders.push(Sender::asked(far).await);
    }
    let requested = |sender: &Sender| match &sender.fetch.what {
        FetchTarget::Copy { ranges, .. } => ranges.clone(),
        FetchTarget::Partial(_) => panic!("a copy is requested"),
    };
    let front = 0..3 * BLOCK;
    assert_eq!(requested(&senders[0]), [front]);
    assert_eq!(requested(&senders[1]), [3 * BLOCK..4 * BLOCK, 5 * BLOCK..6 * BLOCK]);
    senders[0].send(0, 0..1, false).await;
    senders[1].send(3, 3..4, false).await;
    senders[0].send(1, 1..3, false).await;
    senders[0].end().await;
    assert_eq!(ended(&mut scene).await, Event::Fetched { fetch: FetchId(1) });
    assert!(!stored.is_complete());
    senders[1].send(5, 5..6, false).await;
    senders[1].end().await;
    assert_eq!(ended(&mut scene).await, Event::Fetched { fetch: FetchId(2) });
    let all: Vec<u8> = (0..6).flat_map(block).collect();
    assert!(stored.shared().bytes().unwrap().to_vec() == all);
}

/// Goal: a transfer that did not complete its copy does not report it as corrupt when another
/// completes it meanwhile. Method: the other parts of the copy are computed here.
#[tokio::test]
async fn only_the_transfer_that_completes_a_copy_verifies_it() {
    let mut scene = Scene::new();
    let stored = scene.memory(2);
    let all: Vec<u8> = (0..2).flat_map(block).collect();
    let (digest, far) = (Some(digest(&[&all])), Sender::of(&scene).await);
    let front = 0..BLOCK;
    let ranges = Some(vec![front]);
    let wanted = FetchOrder { digest, ranges, in_parts: true, ..order(FETCH) };
    start(&scene.transfers, &scene.transfers.path, wanted);
    let mut sender = Sender::asked(far).await;
    sender.send(0, 0..1, false).await;
    sender.end().await;
    // It has seen the end once it has kept the connection.
    let kept = async {
        while scene.transfers.network.peers.take_idle(PEER).is_none() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, kept).await.unwrap();
    fill(&stored, 1..2);
    assert_eq!(ended(&mut scene).await, Event::Fetched { fetch: FETCH });
}

/// Goal: bytes that one transfer receives are not requested by another until that has ended.
#[tokio::test]
async fn transfer_waits_for_another_one_of_the_same_bytes() {
    let mut scene = Scene::new();
    let _held = scene.memory(2);
    let (one, other) = (Sender::of(&scene).await, Sender::of(&scene).await);
    begin(&scene, None);
    let mut first = Sender::asked(other).await;
    let back = BLOCK..2 * BLOCK;
    let ranges = Some(vec![back]);
    start(&scene.transfers, &scene.transfers.path, FetchOrder { ranges, ..order(FetchId(2)) });
    first.send(0, 0..1, false).await;
    drop(first);
    let failed = Event::FetchFailed { fetch: FETCH, not_here: false };
    assert_eq!(ended(&mut scene).await, failed);
    let mut second = Sender::asked(one).await;
    second.send(1, 1..2, false).await;
    second.end().await;
    assert_eq!(ended(&mut scene).await, Event::Fetched { fetch: FetchId(2) });
}

/// Goal: a node that is late on a connection that was idle, and can't be reached on another, is not
/// given up. Method: the address of the peer refuses connections.
#[tokio::test]
async fn late_reply_is_received_if_no_new_connection_can_be_opened() {
    let mut scene = Scene::new();
    let _held = scene.memory(1);
    let far = Sender::of(&scene).await;
    begin(&scene, None);
    let mut late = Sender::asked(far).await;
    tokio::time::sleep(Duration::from_nanos(IDLE_REPLY_TIMEOUT_NS * 5 / 4)).await;
    late.send(0, 0..1, false).await;
    late.end().await;
    assert_eq!(ended(&mut scene).await, Event::Fetched { fetch: FETCH });
    assert_eq!(scene.transfers.counters.values().connections_silent, 0);
}

/// Receives a child's stream of three blocks, of which the test sends `blocks`; returns what the
/// fold gets.
async fn stream(blocks: u64, is_whole: bool) -> (Vec<Vec<u8>>, Option<String>, u64) {
    let scene = Scene::new();
    let key =
        FoldKey { reduce: ReduceId { node: PEER, serial: 1 }, epoch: 0, segment: 0, position: 3 };
    let far = Sender::of(&scene).await;
    let (window, mut pieces) = mpsc::channel(8);
    let receiving = partial(
        scene.transfers.clone(),
        scene.transfers.path.clone(),
        PEER,
        key,
        0..3 * BLOCK,
        BLOCK,
        window,
    );
    let receiving = tokio::spawn(receiving);
    let mut sender = Sender::asked(far).await;
    assert_eq!(sender.fetch.what, FetchTarget::Partial(key));
    sender.send(0, 0..blocks, false).await;
    match is_whole {
        true => sender.end().await,
        false => sender.unavailable(Unavailable::Stopped).await,
    }
    timeout(SOON, receiving).await.unwrap().unwrap();
    let (mut came, mut why) = (Vec::new(), None);
    while let Some(piece) = pieces.recv().await {
        match piece {
            Ok(piece) => came.push(piece.to_vec()),
            Err(error) => why = Some(error),
        }
    }
    (came, why, scene.transfers.counters.values().bytes_partial_received)
}

#[tokio::test]
async fn stream_arrives_in_order_and_ends_with_its_error() {
    let all: Vec<Vec<u8>> = (0..3).map(block).collect();
    assert_eq!(stream(3, true).await, (all.clone(), None, 3 * BLOCK));
    let (came, why, _) = stream(2, false).await;
    assert_eq!(came, all[..2]);
    let why = why.unwrap();
    assert!(why.contains("position 3") && why.contains("byte 32768 of 49152"), "{why}");
}

/// Goal: a stream ends with an error if its connection stays open and brings nothing, but not while
/// its sender reports that it waits.
#[tokio::test]
async fn stream_without_frames_ends_unless_its_sender_waits() {
    let scene = Scene::new();
    let key =
        FoldKey { reduce: ReduceId { node: PEER, serial: 1 }, epoch: 0, segment: 0, position: 3 };
    let far = Sender::of(&scene).await;
    let (window, mut pieces) = mpsc::channel(8);
    let receiving = partial(
        scene.transfers.clone(),
        scene.transfers.path.clone(),
        PEER,
        key,
        0..3 * BLOCK,
        BLOCK,
        window,
    );
    let receiving = tokio::spawn(receiving);
    let mut sender = Sender::asked(far).await;
    // Longer than a turn, in all.
    for _ in 0..8 {
        sender.waits().await;
        tokio::time::sleep(TURN / 5).await;
    }
    sender.send(0, 0..1, false).await;
    assert_eq!(*timeout(SOON, pieces.recv()).await.unwrap().unwrap().unwrap(), *block(0));
    let error = timeout(SOON, pieces.recv()).await.unwrap().unwrap().unwrap_err();
    assert!(error.contains("position 3") && error.contains("sent"), "{error}");
    timeout(SOON, receiving).await.unwrap().unwrap();
    assert_eq!(scene.transfers.counters.values().transfers_slow, 1);
}

#[tokio::test]
async fn credit_is_granted_while_a_copy_arrives() {
    let mut scene = Scene::new();
    let blocks = 2 * CREDIT_BYTES / BLOCK;
    let _held = scene.memory(blocks);
    let far = Sender::of(&scene).await;
    begin(&scene, None);
    let mut sender = Sender::asked(far).await;
    let (mut granted, mut sent) = (sender.fetch.credit, 0);
    let frame = u64::from(sender.fetch.frame) / BLOCK;
    while sent < blocks {
        let numbers = sent..(sent + frame).min(blocks);
        let length = (numbers.end - numbers.start) * BLOCK;
        while granted < length {
            granted += sender.more().await;
        }
        granted -= length;
        sender.send(sent, numbers.clone(), false).await;
        sent = numbers.end;
    }
    sender.end().await;
    assert_eq!(ended(&mut scene).await, Event::Fetched { fetch: FETCH });
}

//! Transfers between two nodes without a socket: the loops of both ends over channels in memory,
//! with peers that fail or stall.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hoplite_proto::{
    connections::{PARALLEL_BYTES_MIN, Proved, SEGMENT_BYTES_MAX},
    id::{FetchId, ObjectId, ReduceId, ServeId},
    message::FoldKey,
    meta::Digest,
    node::FetchOrder,
    wire::{Fetch, FetchTarget, Header, WireError},
};
use hoplite_shm::Ready;
use tokio::task::JoinHandle;

use super::*;
use crate::{
    backing::Backing,
    digest::digest,
    error::LinkError,
    transfer::{
        path::{Arrived, End, Headers, Incoming, Outgoing, PayloadPath, Request, Requests},
        receive,
        send::serve,
        streams::{Frame, Stream, Streams},
    },
};

/// A path to one node, which accepts the other ends of its connections, and how many more it
/// accepts.
struct InProcess(mpsc::UnboundedSender<Far>, AtomicUsize);

/// The sending node's ends of a connection.
type Far = (FarRequests, FarFrames);
struct FarRequests(mpsc::UnboundedReceiver<Request>);
struct FarFrames(mpsc::Sender<Sent>);

/// The receiving node's end.
struct Near {
    transfer: u64,
    sent: mpsc::Receiver<Sent>,
    unread: VecDeque<(Header, Vec<u8>)>,
    requests: mpsc::UnboundedSender<Request>,
}

enum Sent {
    Frames(Vec<(Header, Vec<u8>)>),
    Report(Arrived),
}

fn broken<T>(_: T) -> LinkError {
    io::Error::from(io::ErrorKind::UnexpectedEof).into()
}

impl PayloadPath for InProcess {
    type Incoming = Near;

    async fn fetch(&self, _: NodeId, transfer: u64, fetch: &Fetch) -> Result<Near, LinkError> {
        let left = self.1.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        left.map_err(broken)?;
        let (requests, asked) = mpsc::unbounded_channel();
        let (sender, sent) = mpsc::channel(1);
        requests.send(Request::Fetch(transfer, fetch.clone())).map_err(broken)?;
        self.0.send((FarRequests(asked), FarFrames(sender))).map_err(broken)?;
        Ok(Near { transfer, sent, unread: VecDeque::new(), requests })
    }
}

impl Incoming for Near {
    async fn next(&mut self, places: &mut [&mut [u8]]) -> Result<Arrived, LinkError> {
        if self.unread.is_empty() {
            match self.sent.recv().await.ok_or(()).map_err(broken)? {
                Sent::Frames(frames) => self.unread.extend(frames),
                Sent::Report(report) => return Ok(report),
            }
        }
        let count = places.len().min(self.unread.len());
        let read = self.unread.drain(..count).zip(places).map(|((header, bytes), place)| {
            place.copy_from_slice(&bytes);
            header
        });
        Ok(Arrived::Frames(read.collect()))
    }

    fn decrypt(&mut self, _: &mut Header, _: &mut [u8]) -> Result<(), WireError> {
        Ok(())
    }

    async fn grant(&mut self, bytes: u64) -> Result<(), LinkError> {
        self.requests.send(Request::Credit(self.transfer, bytes)).map_err(broken)
    }

    async fn request(&mut self, transfer: u64, fetch: &Fetch) -> Result<(), LinkError> {
        self.requests.send(Request::Fetch(transfer, fetch.clone())).map_err(broken)
    }

    fn follow(&mut self, transfer: u64) {
        self.transfer = transfer;
    }

    fn keep(self) {}
}

impl Requests for FarRequests {
    async fn next(&mut self) -> Result<Option<Request>, LinkError> {
        Ok(self.0.recv().await)
    }
}

impl Outgoing for FarFrames {
    fn limit_unsent(&mut self, _: bool) {}

    async fn send(
        &mut self,
        _: &Streams,
        frames: &[(u64, Ready<'_>)],
        headers: Headers<'_>,
    ) -> Result<(), LinkError> {
        let copied = frames.iter().map(|(offset, bytes)| {
            let bytes = bytes.to_vec();
            (headers.of(*offset, &bytes), bytes)
        });
        let frames = Sent::Frames(copied.collect());
        self.0.send(frames).await.map_err(broken)
    }

    async fn keep_alive(&mut self, _: u64) -> Result<(), LinkError> {
        self.0.send(Sent::Report(Arrived::KeepAlive)).await.map_err(broken)
    }

    async fn end(&mut self, _: u64, end: &End) -> Result<(), LinkError> {
        self.0.send(Sent::Report(Arrived::Ended(end.clone()))).await.map_err(broken)
    }
}

fn is_end(event: Event) -> Option<Event> {
    matches!(event, Event::Fetched { .. } | Event::FetchFailed { .. }).then_some(event)
}

fn is_request(event: Event) -> Option<ServeId> {
    match event {
        Event::FetchRequested { serve, .. } => Some(serve),
        _ => None,
    }
}

const BLOCKS: u64 = 40;
const FETCH: FetchId = FetchId(1);

/// A node that receives, one that sends, and the path between them.
struct Pair {
    near: Scene,
    far: Scene,
    path: Arc<InProcess>,
    accepted: mpsc::UnboundedReceiver<Far>,
}

impl Pair {
    fn new() -> Self {
        let (path, accepted) = mpsc::unbounded_channel();
        let path = Arc::new(InProcess(path, AtomicUsize::new(usize::MAX)));
        Self { near: Scene::new(), far: Scene::new(), path, accepted }
    }

    fn fetch(&self, digest: Option<Digest>) -> Arc<StoredCopy> {
        let stored = self.near.memory(BLOCKS);
        self.start(FETCH, digest);
        stored
    }

    fn start(&self, fetch: FetchId, digest: Option<Digest>) {
        let (id, instance) = (ObjectId::Minted { node: PEER, serial: 7 }, INSTANCE);
        let (ranges, in_parts, range) = (None, false, None);
        let order =
            FetchOrder { fetch, id, instance, source: PEER, ranges, in_parts, digest, range };
        receive::start(&self.near.transfers, &self.path, order);
    }

    /// Serves and grants this many connections. Each has requested a part of the copy.
    async fn serve_all(&mut self, connections: u16) -> Vec<JoinHandle<Result<(), LinkError>>> {
        let mut serving = Vec::new();
        for _ in 0..connections {
            serving.push(self.serve().await);
            self.grant().await;
        }
        serving
    }

    /// Serves the next connection.
    async fn serve(&mut self) -> JoinHandle<Result<(), LinkError>> {
        let (far, ends) = (self.far.transfers.clone(), self.accepted.recv().await.unwrap());
        tokio::spawn(async move { serve(&far, PEER, ends).await })
    }

    /// Lets the sender send its copy.
    async fn grant(&mut self) -> ServeId {
        let serve = self.far.told(is_request).await;
        self.far.transfers.grant_serve(serve, INSTANCE, false);
        serve
    }

    async fn ended(&mut self) -> Event {
        self.near.told(is_end).await
    }

    /// Serves and grants all connections until the transfer has ended. Returns how it ended, and
    /// the number of connections.
    async fn served(&mut self) -> (Event, usize) {
        let mut connections = 0;
        let Self { near, far, accepted, .. } = self;
        let transfers = far.transfers.clone();
        let serving = async {
            while let Some(ends) = accepted.recv().await {
                let far = transfers.clone();
                tokio::spawn(async move { serve(&far, PEER, ends).await });
            }
        };
        let granting = async {
            loop {
                let serve = far.told(is_request).await;
                far.transfers.grant_serve(serve, INSTANCE, false);
                connections += 1;
            }
        };
        let ended = tokio::select! {
            ended = near.told(is_end) => ended,
            () = serving => panic!("the path is open"),
            () = granting => unreachable!("it never ends"),
        };
        (ended, connections)
    }
}

fn key() -> FoldKey {
    FoldKey { reduce: ReduceId { node: PEER, serial: 1 }, epoch: 0, segment: 0, position: 3 }
}

#[tokio::test]
async fn growing_copy_arrives_with_its_digest() {
    let mut pair = Pair::new();
    let source = pair.far.memory(BLOCKS);
    fill(&source, 0..BLOCKS / 2);
    let all: Vec<u8> = (0..BLOCKS).flat_map(block).collect();
    let stored = pair.fetch(Some(digest(&[&all])));
    let _serving = pair.serve().await;
    let serve = pair.grant().await;
    assert!(stored.wait(0..BLOCK_BYTES).await.is_ok());
    fill(&source, BLOCKS / 2..BLOCKS);
    assert_eq!(pair.ended().await, Event::Fetched { fetch: FETCH });
    assert!(stored.shared().bytes().unwrap().to_vec() == all);
    pair.far.told(|event| (event == Event::ServeEnded { serve }).then_some(())).await;
}

#[tokio::test]
async fn partial_stream_arrives_in_order() {
    let mut pair = Pair::new();
    let (frames, stream) = mpsc::channel(8);
    pair.far.transfers.streams.put(key(), Stream { frames: stream, ring: None });
    let (window, mut pieces) = mpsc::channel(8);
    let (near, path, part) = (pair.near.transfers.clone(), pair.path.clone(), 0..3 * BLOCK_BYTES);
    tokio::spawn(receive::partial(near, path, PEER, key(), part, BLOCK_BYTES, window));
    let _serving = pair.serve().await;
    for number in 0..3 {
        let mut bytes = pair.far.transfers.streams.piece(BLOCK_BYTES as usize);
        bytes.copy_from_slice(&block(number));
        frames.send(Frame::Bytes { offset: number * BLOCK_BYTES, bytes }).await.unwrap();
    }
    frames.send(Frame::End).await.unwrap();
    for number in 0..3 {
        assert_eq!(*pieces.recv().await.unwrap().unwrap(), *block(number));
    }
    assert!(pieces.recv().await.is_none());
}

/// Goal: the link carries the oldest part of a ring first, and the seats after it never wait. Where
/// one connection does not fill the link, all send at once.
#[tokio::test(start_paused = true)]
async fn younger_stream_of_a_ring_waits_for_the_older_one() {
    for connections in [1, 2] {
        let mut pair = Pair::new();
        pair.far.transfers.link.record_proved(Proved::new(connections));
        // Several batches: the window of the fold and the connection hold fewer.
        let count = 64;
        let (mut arriving, mut serving) = (Vec::new(), Vec::new());
        for segment in 0..2 {
            let (key, streams) = (FoldKey { segment, ..key() }, &pair.far.transfers.streams);
            let (frames, stream) = mpsc::channel(count as usize + 1);
            let ring = Some(ObjectId::Minted { node: PEER, serial: 7 });
            streams.put(key, Stream { frames: stream, ring });
            for number in 0..count {
                let bytes = streams.piece(BLOCK_BYTES as usize);
                frames.send(Frame::Bytes { offset: number * BLOCK_BYTES, bytes }).await.unwrap();
            }
            frames.send(Frame::End).await.unwrap();
            let (window, pieces) = mpsc::channel(1);
            let (near, path) = (pair.near.transfers.clone(), pair.path.clone());
            let part = 0..count * BLOCK_BYTES;
            tokio::spawn(receive::partial(near, path, PEER, key, part, BLOCK_BYTES, window));
            serving.push(pair.serve().await);
            arriving.push(pieces);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
        let [old, young] = &mut arriving[..] else { unreachable!() };
        // The last batches of the older stream are on their way before the others are read.
        for number in 0..count / 2 {
            assert!(old.recv().await.unwrap().is_ok());
            assert_eq!(young.is_empty(), connections == 1, "{number} frames of the older stream");
        }
        for _ in count / 2..count {
            assert!(old.recv().await.unwrap().is_ok());
        }
        for _ in 0..count {
            assert!(young.recv().await.unwrap().is_ok());
        }
    }
}

#[tokio::test]
async fn bytes_of_a_failed_sender_stay() {
    let mut pair = Pair::new();
    fill(&pair.far.memory(BLOCKS), 0..BLOCKS / 2);
    let stored = pair.fetch(None);
    let serving = pair.serve().await;
    pair.grant().await;
    assert!(stored.wait(0..BLOCKS / 2 * BLOCK_BYTES).await.is_ok());
    serving.abort();
    assert_eq!(pair.ended().await, Event::FetchFailed { fetch: FETCH, not_here: false });
    assert!(stored.is_ready(0..BLOCKS / 2 * BLOCK_BYTES) && !stored.is_complete());
}

/// Blocks of a copy that may arrive on several connections, and more than whole segments.
const MANY: u64 = PARALLEL_BYTES_MIN / BLOCK_BYTES + 3;

#[tokio::test]
async fn large_copy_arrives_on_several_connections() {
    let mut pair = Pair::new();
    fill(&pair.far.memory(MANY), 0..MANY);
    let all: Vec<u8> = (0..MANY).flat_map(block).collect();
    let stored = pair.near.memory(MANY);
    pair.near.transfers.link.record_proved(Proved::new(3));
    pair.start(FETCH, Some(digest(&[&all])));
    let (ended, connections) = pair.served().await;
    assert_eq!((ended, connections >= 3), (Event::Fetched { fetch: FETCH }, true));
    assert!(stored.shared().bytes().unwrap().to_vec() == all);
    let (near, far) = (&pair.near.transfers, &pair.far.transfers);
    let (received, sent) = (near.counters.values(), far.counters.values());
    assert_eq!((received.fetches, sent.serves), (1, 1), "one transfer");
    assert_eq!(received.bytes_received, MANY * BLOCK_BYTES, "each block once");
    assert_eq!((near.streams.shares_in(), far.streams.shares_out()), (0, 0));
}

/// Goal: a large copy that grows slowly at its source arrives, although the source reports in each
/// segment that it waits.
#[tokio::test]
async fn large_copy_of_a_slow_writer_arrives() {
    let mut pair = Pair::new();
    let source = pair.far.memory(MANY);
    let stored = pair.near.memory(MANY);
    pair.start(FETCH, None);
    let segment = SEGMENT_BYTES_MAX / BLOCK_BYTES;
    tokio::spawn(async move {
        for number in 0..12 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            fill(&source, number * segment..(number + 1) * segment);
        }
        fill(&source, 12 * segment..MANY);
    });
    assert_eq!(pair.served().await.0, Event::Fetched { fetch: FETCH });
    assert!(stored.is_complete());
}

#[tokio::test]
async fn connection_that_can_not_be_opened_fails_no_transfer() {
    let mut pair = Pair::new();
    fill(&pair.far.memory(MANY), 0..MANY);
    let stored = pair.near.memory(MANY);
    pair.path.1.store(1, Relaxed);
    pair.near.transfers.link.record_proved(Proved::new(3));
    pair.start(FETCH, None);
    let _serving = pair.serve_all(1).await;
    assert_eq!(pair.ended().await, Event::Fetched { fetch: FETCH });
    assert!(stored.is_complete());
    assert_eq!(pair.near.transfers.counters.values().fetches_failed, 0);
}

/// Goal: a source without the copy is reported as such, although more of it was requested ahead.
#[tokio::test]
async fn large_copy_that_is_not_here_is_refused() {
    let mut pair = Pair::new();
    let _stored = pair.near.memory(MANY);
    pair.start(FETCH, None);
    let serving = pair.serve().await;
    let serve = pair.far.told(is_request).await;
    pair.far.transfers.refuse_serve(serve);
    assert_eq!(pair.ended().await, Event::FetchFailed { fetch: FETCH, not_here: true });
    assert!(timeout(SOON, serving).await.unwrap().unwrap().is_ok(), "it serves nothing more");
    assert_eq!(pair.far.transfers.counters.values().refusals, 1);
}

/// Goal: if one of several connections breaks, the transfer fails once, what has arrived stays, and
/// the next transfer brings the rest.
#[tokio::test]
async fn broken_connection_of_several_fails_the_transfer() {
    let mut pair = Pair::new();
    let source = pair.far.memory(MANY);
    fill(&source, 0..MANY / 2);
    let stored = pair.near.memory(MANY);
    pair.near.transfers.link.record_proved(Proved::new(2));
    pair.start(FETCH, None);
    let serving = pair.serve_all(2).await;
    assert!(stored.wait(0..MANY / 4 * BLOCK_BYTES).await.is_ok());
    serving[1].abort();
    assert_eq!(pair.ended().await, Event::FetchFailed { fetch: FETCH, not_here: false });
    fill(&source, MANY / 2..MANY);
    pair.start(FetchId(2), None);
    assert_eq!(pair.served().await.0, Event::Fetched { fetch: FetchId(2) });
    let all: Vec<u8> = (0..MANY).flat_map(block).collect();
    assert!(stored.shared().bytes().unwrap().to_vec() == all);
    assert_eq!(pair.near.transfers.counters.values().fetches_failed, 1);
}

/// Goal: both ends give up a peer that stays connected and does nothing.
#[tokio::test]
async fn stalled_peers_are_given_up() {
    let mut pair = Pair::new();
    fill(&pair.far.memory(BLOCKS), 0..BLOCKS);
    let _stored = pair.fetch(None);
    let _stalled = pair.accepted.recv().await.unwrap();
    assert_eq!(pair.ended().await, Event::FetchFailed { fetch: FETCH, not_here: false });
    assert_eq!(pair.near.transfers.counters.values().transfers_slow, 1);
    // Its credit is for the first block only.
    let id = ObjectId::Minted { node: PEER, serial: 7 };
    let ranges = std::iter::once(0..2 * BLOCK_BYTES).collect();
    let what = FetchTarget::Copy { id, instance: INSTANCE, ranges, ordered: false };
    let fetch = Fetch { what, credit: BLOCK_BYTES, frame: BLOCK_BYTES as u32, more: false };
    let _stalled = pair.path.fetch(PEER, 1, &fetch).await.unwrap();
    let serving = pair.serve().await;
    pair.grant().await;
    let served = timeout(SOON, serving).await.unwrap().unwrap();
    assert!(matches!(served, Err(LinkError::Slow("accepted", _))));
}

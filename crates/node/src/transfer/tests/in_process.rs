//! Transfers between two nodes without a socket: the loops of both ends over channels in memory,
//! with peers that fail or stall.

use std::{collections::VecDeque, io, sync::Arc};

use hoplite_proto::{
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
        streams::{Frame, Streams},
    },
};

/// A path to one node, which accepts the other ends of its connections.
struct InProcess(mpsc::UnboundedSender<Far>);

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

    fn keep(self) {}
}

impl Requests for FarRequests {
    async fn next(&mut self) -> Result<Option<Request>, LinkError> {
        Ok(self.0.recv().await)
    }
}

impl Outgoing for FarFrames {
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
        let path = Arc::new(InProcess(path));
        Self { near: Scene::new(), far: Scene::new(), path, accepted }
    }

    fn fetch(&self, digest: Option<Digest>) -> Arc<StoredCopy> {
        let stored = self.near.memory(BLOCKS);
        let (id, instance) = (ObjectId::Minted { node: PEER, serial: 7 }, INSTANCE);
        let (ranges, in_parts, range) = (None, false, None);
        let order = FetchOrder {
            fetch: FETCH,
            id,
            instance,
            source: PEER,
            ranges,
            in_parts,
            digest,
            range,
        };
        receive::start(&self.near.transfers, &self.path, order);
        stored
    }

    /// Serves the next connection.
    async fn serve(&mut self) -> JoinHandle<Result<(), LinkError>> {
        let (far, ends) = (self.far.transfers.clone(), self.accepted.recv().await.unwrap());
        tokio::spawn(async move { serve(&far, PEER, ends).await })
    }

    /// Lets the sender send its copy.
    async fn grant(&mut self) -> ServeId {
        let serve = self.far.told(|event| match event {
            Event::FetchRequested { serve, .. } => Some(serve),
            _ => None,
        });
        let serve = serve.await;
        self.far.transfers.grant_serve(serve, INSTANCE, false);
        serve
    }

    async fn ended(&mut self) -> Event {
        let is_end = |event| match event {
            Event::Fetched { .. } | Event::FetchFailed { .. } => Some(event),
            _ => None,
        };
        self.near.told(is_end).await
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
    pair.far.transfers.streams.put(key(), stream);
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
    let fetch = Fetch { what, credit: BLOCK_BYTES, frame: BLOCK_BYTES as u32 };
    let _stalled = pair.path.fetch(PEER, 1, &fetch).await.unwrap();
    let serving = pair.serve().await;
    pair.grant().await;
    let served = timeout(SOON, serving).await.unwrap().unwrap();
    assert!(matches!(served, Err(LinkError::Slow("accepted", _))));
}

//! Fixtures of transfer tests: one end of a transfer without a state machine, and a peer played by
//! the test.

use std::sync::{Arc, Mutex, Weak};

use hoplite_proto::{
    id::{Instance, NodeId},
    limits::BLOCK_BYTES,
    link::Link,
    members::Member,
    node::Event,
    wire::FrameKind,
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{mpsc, watch},
    time::timeout,
};

use super::shared::Transfers;
use crate::{
    backing::Backing,
    channel::{self, Channel},
    config::NodeConfig,
    counters::Counters,
    engine::{
        event_sender::{EventSender, HandleEvent, QueuedEvent},
        tasks::Supervisor,
    },
    limited::Limited,
    link::LinkMeter,
    network::{
        control::Control,
        handshake::{self, Identity},
        own_cluster::OwnCluster,
        own_revocation::OwnRevocation,
        peers::Peers,
        shared::{Network, Traffic},
        survey::Survey,
        tls::NodeKey,
    },
    sealing::{Open, Seal},
    shared_epoll::SharedEpoll,
    store::{Store, StoredCopy},
};

mod in_process;
mod stalls;

pub(super) const SOON: std::time::Duration = std::time::Duration::from_secs(20);

/// The peer node.
pub(super) const PEER: NodeId = NodeId(9);
/// One stream fills it.
const LINK: Link = Link { latency_ns: 50_000, bytes_per_second: 125_000_000 };
pub(super) const INSTANCE: Instance = Instance { node: PEER, serial: 7 };

/// A fake state machine, which forwards reported events to the test.
struct Machine(Mutex<mpsc::UnboundedSender<Event>>);

impl HandleEvent for Machine {
    fn handle(self: Arc<Self>, fact: QueuedEvent, _: bool) {
        if fact.is_current.is_none_or(|is_current| is_current()) {
            let _ = crate::sync::lock(&self.0).send(fact.event);
        }
    }
}

/// The transfers of a node, and the events that they report.
pub(super) struct Scene {
    pub(super) transfers: Arc<Transfers>,
    told: mpsc::UnboundedReceiver<Event>,
    _machine: Arc<Machine>,
}

impl Scene {
    pub(super) fn new() -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        let machine = Arc::new(Machine(Mutex::new(sender)));
        let weak: Weak<dyn HandleEvent> =
            Arc::downgrade(&(machine.clone() as Arc<dyn HandleEvent>));
        let (events, tasks) = (
            EventSender::new(weak, watch::channel([false; 2]).1),
            Supervisor::new(Handle::current()),
        );
        let (counters, limited) = (Arc::<Counters>::default(), Arc::<Limited>::default());
        let key = NodeKey::new().unwrap();
        let member = Member { id: key.id(), address: ([127, 0, 0, 1], 1).into(), place: None };
        let epoll = Arc::new(SharedEpoll::new().unwrap());
        let control = Control::new(epoll, events.clone(), counters.clone(), tasks.clone());
        let survey = Survey::new(key.id(), false, events.clone(), counters.clone());
        let network = Network {
            identity: identity(key, member),
            peers: Peers::new(limited.clone()),
            control: Arc::new(control),
            counters,
            limited,
            connection_limit: Arc::default(),
            own_revocation: OwnRevocation::default(),
            traffic: Traffic::default(),
            survey,
            events: events.clone(),
            link: Arc::new(LinkMeter::new(events, LINK)),
            tasks,
        };
        let peer = Member { id: PEER, ..member };
        network.peers.add(peer, Arc::default(), tokio::spawn(async { None }));
        let transfers = Arc::new(Transfers::new(Arc::new(network), Arc::new(Store::new(1 << 30))));
        Self { transfers, told, _machine: machine }
    }

    /// Waits for the next event for which `pick` returns a value.
    pub(super) async fn told<T>(&mut self, pick: impl Fn(Event) -> Option<T>) -> T {
        let telling = async {
            loop {
                if let Some(picked) = pick(self.told.recv().await.unwrap()) {
                    return picked;
                }
            }
        };
        timeout(SOON, telling).await.expect("the event is reported")
    }

    /// Allocates memory for a copy of `blocks` blocks.
    pub(super) fn memory(&self, blocks: u64) -> Arc<StoredCopy> {
        self.transfers.store.create(INSTANCE, blocks * BLOCK_BYTES, None, || {}).unwrap();
        self.transfers.store.get(INSTANCE).unwrap()
    }
}

pub(super) fn identity(key: NodeKey, member: Member) -> Identity {
    let (cluster, silence) = (NodeConfig::default().cluster, handshake::SILENCE_MAX);
    let (tokens, turns) = (Vec::new(), Arc::default());
    let admission = String::new();
    let own_cluster = Arc::new(OwnCluster::new().unwrap());
    Identity {
        member,
        key,
        cluster,
        own_cluster,
        tokens,
        admission,
        no_encryption: false,
        silence,
        turns,
    }
}

/// A block filled with its number.
pub(super) fn block(number: u64) -> Vec<u8> {
    vec![number as u8; BLOCK_BYTES as usize]
}

/// Fills blocks of a copy.
pub(super) fn fill(stored: &StoredCopy, blocks: std::ops::Range<u64>) {
    for number in blocks {
        stored.write(number * BLOCK_BYTES, &block(number)).unwrap();
    }
}

/// Both ends of an encrypted connection.
pub(super) async fn channels() -> (Channel, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    let channel = |stream, mine, theirs| {
        let (seal, open) = (Seal::new(Some([mine; 32])), Open::new(Some([theirs; 32])));
        Channel { stream, seal, open }
    };
    (channel(near.unwrap(), 1, 2), channel(far.unwrap().0, 2, 1))
}

/// Reads the next frame of a connection and its body; None once it has ended.
pub(super) async fn next(channel: &mut Channel) -> Option<(FrameKind, Vec<u8>)> {
    let hearing = async {
        let mut header = channel::read_header(&mut channel.stream).await.ok()??;
        let Channel { stream, open, .. } = channel;
        let body = channel::read_body(stream, open, &mut header).await.ok()?;
        Some((header.kind, body))
    };
    timeout(SOON, hearing).await.expect("the peer continues or closes the connection")
}

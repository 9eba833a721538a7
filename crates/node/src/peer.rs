//! Control connections to the other members, one from here to each: messages leave in the order of their decisions.
//!
//! A connection that breaks is made again; only when that fails is the member lost. What was under way may be lost
//! with a connection, so the machine is told of each new one and says again what matters.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use hoplite_proto::{
    id::NodeId,
    members::Member,
    message::Message,
    node::Event,
    wire::{FrameKind, Role},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{AbortHandle, JoinHandle},
    time::sleep,
};
use tracing::{debug, info};

use crate::{
    driver::{Core, lock},
    error::LinkError,
    frame, greet,
};

/// The other members, and the payload connections to them that nobody uses just now.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    all: Mutex<HashMap<NodeId, Peer>>,
    idle: Mutex<HashMap<NodeId, Vec<TcpStream>>>,
    /// Control connections that others made to us.
    incoming: Mutex<HashMap<NodeId, Vec<AbortHandle>>>,
}

#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    messages: UnboundedSender<Message>,
    task: JoinHandle<()>,
}

/// Pauses before a broken connection is tried again: a node that lives accepts within the first, one that restarts
/// its network within all of them.
const RETRIES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(400),
];

/// Payload connections to one peer that are kept for the next transfer; more are closed.
const IDLE_MAX: usize = 8;

impl Peers {
    /// Begins to connect to a member.
    pub(crate) fn add(&self, core: &Arc<Core>, member: Member) {
        let (messages, queue) = unbounded_channel();
        let task = core.runtime.spawn(talk(core.clone(), member, queue));
        lock(&self.all).insert(member.id, Peer { address: member.address, messages, task });
    }

    /// Ends the connections to a node, after what is queued for it.
    pub(crate) fn remove(&self, node: NodeId) {
        lock(&self.all).remove(&node);
        lock(&self.idle).remove(&node);
        for task in lock(&self.incoming).remove(&node).unwrap_or_default() {
            task.abort();
        }
    }

    /// Queues a message; one for a node that is gone goes nowhere.
    pub(crate) fn send(&self, to: NodeId, message: Message) {
        if let Some(peer) = lock(&self.all).get(&to) {
            let _ = peer.messages.send(message);
        }
    }

    /// Keeps the task of a connection that a node made to us, to end it with that node.
    pub(crate) fn keep_incoming(&self, node: NodeId, task: AbortHandle) {
        let mut incoming = lock(&self.incoming);
        let tasks = incoming.entry(node).or_default();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    /// A payload connection to a node: one that is idle, or a new one.
    pub(crate) async fn payload(
        &self,
        core: &Arc<Core>,
        node: NodeId,
    ) -> Result<TcpStream, LinkError> {
        loop {
            let idle = lock(&self.idle).get_mut(&node).and_then(Vec::pop);
            let Some(stream) = idle else { break };
            // One that the other side closed meanwhile has an end to read.
            if matches!(stream.try_read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            {
                return Ok(stream);
            }
        }
        let address = lock(&self.all).get(&node).map(|peer| peer.address);
        let address = address.ok_or(LinkError::Stranger)?;
        let met = greet::call(&core.identity, address, Role::Payload, Some(node)).await?;
        Ok(met.stream)
    }

    /// Gives a payload connection back after a transfer that ended in order.
    pub(crate) fn keep_idle(&self, node: NodeId, stream: TcpStream) {
        if !lock(&self.all).contains_key(&node) {
            return;
        }
        let mut idle = lock(&self.idle);
        let streams = idle.entry(node).or_default();
        if streams.len() < IDLE_MAX {
            streams.push(stream);
        }
    }

    /// Ends all connections when what is queued has been sent, or after `patience`.
    pub(crate) async fn close(&self, patience: Duration) {
        let peers: Vec<Peer> = lock(&self.all).drain().map(|(_, peer)| peer).collect();
        lock(&self.idle).clear();
        let mut tasks = Vec::new();
        for peer in peers {
            drop(peer.messages);
            tasks.push(peer.task);
        }
        for (_, incoming) in lock(&self.incoming).drain() {
            incoming.iter().for_each(AbortHandle::abort);
        }
        let all = async {
            for task in &mut tasks {
                let _ = task.await;
            }
        };
        if tokio::time::timeout(patience, all).await.is_err() {
            tasks.iter().for_each(JoinHandle::abort);
        }
    }
}

/// Sends what is queued for a member for as long as it can be reached.
async fn talk(core: Arc<Core>, member: Member, mut queue: UnboundedReceiver<Message>) {
    let mut was_connected = false;
    let mut unsent = Vec::new();
    loop {
        let Some(stream) = connect(&core, member).await else {
            if queue.is_closed() {
                // The member was let go of, or replaced: what becomes of this connection tells nothing.
                return;
            }
            info!(node = %member.id, address = %member.address, "lost");
            core.drive(Event::PeerLost { node: member.id });
            return;
        };
        if was_connected {
            core.drive(Event::PeerUp { member });
        }
        was_connected = true;
        match pump(stream, &mut queue, &mut unsent).await {
            Ok(()) => return,
            Err(error) => debug!(node = %member.id, %error, "connection broke"),
        }
    }
}

async fn connect(core: &Arc<Core>, member: Member) -> Option<TcpStream> {
    for pause in RETRIES {
        sleep(pause).await;
        match greet::call(&core.identity, member.address, Role::Control, Some(member.id)).await {
            Ok(met) => {
                if let Some(round_trip) = met.round_trip {
                    core.measured_round_trip(round_trip);
                }
                return Some(met.stream);
            }
            // Nobody listens there any more, or somebody else does.
            Err(LinkError::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return None;
            }
            Err(LinkError::Stranger | LinkError::Refused(_)) => return None,
            Err(error) => debug!(node = %member.id, %error, "no connection"),
        }
    }
    None
}

/// Writes messages until the queue is closed; fails when the connection does. What a failed write may not have
/// delivered stays in `unsent`.
async fn pump(
    stream: TcpStream,
    queue: &mut UnboundedReceiver<Message>,
    unsent: &mut Vec<Message>,
) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let mut bytes = Vec::new();
    loop {
        if unsent.is_empty() {
            let mut end = [0; 1];
            tokio::select! {
                count = queue.recv_many(unsent, 64) => if count == 0 {
                    return writer.shutdown().await;
                },
                // Nothing is ever sent this way: what can be read is the end.
                read = reader.read(&mut end) => {
                    read?;
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        bytes.clear();
        for message in unsent.iter() {
            bytes.extend_from_slice(&frame::frame(FrameKind::Control, 0, message));
        }
        writer.write_all(&bytes).await?;
        unsent.clear();
    }
}

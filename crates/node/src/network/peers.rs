//! The other members: the route to each, its queue of messages, and its idle payload connections.
//!
//! Opens no connections.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hoplite_proto::{
    id::NodeId,
    limits::{CONTROL_BYTES_MAX, IDLE_CONNECTION_MAX_NS},
    members::Member,
    message::Message,
    wire::{FrameKind, HEADER_BYTES, MacBytes},
};
use hoplite_shm::PathInfo;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::sleep,
};

use super::{
    certificates::PeerCertificate,
    outbox::{Outbox, Push},
    proofs::{Admitted, SharedSecret},
};
use crate::{
    channel::Channel,
    error::LinkError,
    frame,
    limited::{LimitKey, Limited},
    repeats::log_once,
    sync::{lock, until},
};

/// Outboxes to flush, in the order in which messages were queued, but those last whose first
/// message is an announcement that no request waits for.
#[derive(Debug, Default)]
pub(crate) struct DueOutboxes {
    others: Vec<Arc<Outbox>>,
    announcements: Vec<Arc<Outbox>>,
}

impl DueOutboxes {
    pub(crate) fn flush(&mut self) {
        self.others.drain(..).chain(self.announcements.drain(..)).for_each(|outbox| outbox.flush());
    }
}

/// The other members and their idle payload connections.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    all: Mutex<HashMap<NodeId, Peer>>,
    /// Each with the time since when it is idle, the oldest first.
    idle: Mutex<HashMap<NodeId, Vec<(Instant, Channel)>>>,
    /// Sessions with nodes that admitted this one, and with nodes that this one admitted: they
    /// spare payload connections a handshake.
    outgoing_sessions: Mutex<HashMap<NodeId, SharedSecret>>,
    incoming_sessions: Mutex<HashMap<NodeId, Admitted>>,
    /// Outboxes whose first message can wait.
    late: Mutex<Vec<Arc<Outbox>>>,
    is_late: Notify,
    /// A member was added.
    has_grown: Notify,
    /// Counts searches for relays, so that they rotate.
    sought: AtomicUsize,
    limited: Arc<Limited>,
}

#[derive(Debug)]
struct Peer {
    member: Member,
    /// The relay through which it is reached, if not directly.
    via: Option<NodeId>,
    outbox: Arc<Outbox>,
    task: JoinHandle<Option<()>>,
    /// Dropped with the peer, which ends transfers to the member.
    presence: watch::Sender<()>,
}

/// Delay of a message that can wait: much longer than later decisions take, much shorter than any
/// timeout.
const LATE: Duration = Duration::from_millis(20);

/// Idle payload connections kept for each peer; others are closed. One node seldom sends more large
/// objects to another at once. A new connection costs a round trip; a kept one costs both sides a
/// descriptor and encryption buffers.
const IDLE_COUNT_MAX: usize = 8;

/// How long they are kept at most.
pub(crate) const IDLE_MAX: Duration = Duration::from_nanos(IDLE_CONNECTION_MAX_NS);

impl Peer {
    /// Whether there is a direct connection to it.
    fn is_direct(&self) -> bool {
        self.via.is_none() && self.outbox.is_connected()
    }
}

impl Peers {
    /// Creates an empty set; `limited` counts members whose queue exceeded its limit.
    pub(crate) fn new(limited: Arc<Limited>) -> Self {
        Self { limited, ..Self::default() }
    }

    /// Adds a member; `task` writes its outbox.
    pub(crate) fn add(&self, member: Member, outbox: Arc<Outbox>, task: JoinHandle<Option<()>>) {
        let presence = watch::Sender::new(());
        let peer = Peer { member, via: None, outbox, task, presence };
        if let Some(before) = lock(&self.all).insert(member.id, peer) {
            before.outbox.close();
        }
        self.has_grown.notify_waiters();
    }

    /// Closes the connections to a node. If it has left, its queue is sent first.
    pub(crate) fn remove(&self, node: NodeId, has_left: bool) {
        if let Some(peer) = lock(&self.all).remove(&node) {
            peer.outbox.close();
            if !has_left {
                // On a later connection, the messages would be taken as new.
                peer.outbox.forget();
                peer.task.abort();
            }
        }
        lock(&self.idle).remove(&node);
        lock(&self.outgoing_sessions).remove(&node);
        lock(&self.incoming_sessions).remove(&node);
    }

    /// Completes when a member is removed. If the node is not a member yet, first waits until it
    /// is.
    pub(crate) async fn gone(&self, node: NodeId) {
        until(&self.has_grown, || self.is_member(node).then_some(())).await;
        self.lost(node).await;
    }

    /// Completes when a node is not, or is no longer, a member.
    pub(crate) async fn lost(&self, node: NodeId) {
        let presence = lock(&self.all).get(&node).map(|peer| peer.presence.subscribe());
        if let Some(mut presence) = presence {
            // Nothing is ever sent: an error means that the sender was dropped.
            while presence.changed().await.is_ok() {}
        }
    }

    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        lock(&self.all).contains_key(&node)
    }

    pub(crate) fn has_members(&self) -> bool {
        !lock(&self.all).is_empty()
    }

    /// Whether a member, or this node, has this address or id.
    pub(crate) fn is_known(&self, me: &Member, address: SocketAddr, id: Option<NodeId>) -> bool {
        let all = lock(&self.all);
        address == me.address
            || id == Some(me.id)
            || id.is_some_and(|id| all.contains_key(&id))
            || all.values().any(|peer| peer.member.address == address)
    }

    /// Queues a message; drops it if the node is not a member. Adds to `due` the outbox to flush
    /// once all messages are queued: one system call for several messages. A message that can wait
    /// leaves with the next one that can't, or with [`Peers::flush_late`].
    pub(crate) fn queue(&self, to: NodeId, message: &Message, due: &mut DueOutboxes) {
        let outbox = lock(&self.all).get(&to).map(|peer| peer.outbox.clone());
        let Some(outbox) = outbox else { return };
        let frame = frame::frame(FrameKind::Control, 0, message);
        if frame.len() > HEADER_BYTES + CONTROL_BYTES_MAX as usize {
            // The limits on names and counts prevent this; the receiver would close the connection.
            log_once!(
                error, to, node = %to, bytes = frame.len(),
                "dropped a message that exceeds the length limit"
            );
            return;
        }
        match outbox.push(frame, message) {
            Push::Done => {}
            Push::Full => self.limited.note(LimitKey::Member(to), "OUTBOX_BYTES_MAX"),
            Push::Due if matches!(message, Message::Announce(news) if !news.claim) => {
                due.announcements.push(outbox);
            }
            Push::Due => due.others.push(outbox),
            Push::Deferred => {
                let is_first = {
                    let mut late = lock(&self.late);
                    late.push(outbox);
                    late.len() == 1
                };
                if is_first {
                    self.is_late.notify_one();
                }
            }
        }
    }

    /// Flushes messages that can wait, shortly after they were queued, until the node ends.
    pub(crate) async fn flush_late(&self) {
        loop {
            self.is_late.notified().await;
            sleep(LATE).await;
            let late = std::mem::take(&mut *lock(&self.late));
            late.iter().for_each(|outbox| outbox.flush());
        }
    }

    /// The address of a member with a direct connection to this node.
    pub(crate) fn address(&self, node: NodeId) -> Option<SocketAddr> {
        let all = lock(&self.all);
        all.get(&node).filter(|peer| peer.is_direct()).map(|peer| peer.member.address)
    }

    /// Members that may relay to a member that this node can't reach.
    pub(crate) fn relay_candidates(&self, member: NodeId, count: usize) -> Vec<Member> {
        let all = lock(&self.all);
        let mut relay_candidates: Vec<Member> = all
            .values()
            .filter(|peer| peer.member.id != member && peer.is_direct())
            .map(|peer| peer.member)
            .collect();
        relay_candidates.sort_unstable_by_key(|helper| helper.id);
        let turn = self.sought.fetch_add(count, Ordering::Relaxed);
        let first = turn.checked_rem(relay_candidates.len()).unwrap_or_default();
        relay_candidates.rotate_left(first);
        relay_candidates.truncate(count);
        relay_candidates
    }

    /// Records the route to a member. Drops its idle connections, which used another route.
    pub(crate) fn note_reached(&self, node: NodeId, via: Option<NodeId>) {
        if let Some(peer) = lock(&self.all).get_mut(&node) {
            peer.via = via;
        }
        self.close_idle(node);
    }

    /// The relay through which a member is reached, if not directly.
    pub(crate) fn via(&self, node: NodeId) -> Option<NodeId> {
        lock(&self.all).get(&node)?.via
    }

    /// Stores the session with a node that admitted this one.
    pub(crate) fn note_outgoing_session(&self, node: NodeId, session: SharedSecret) {
        lock(&self.outgoing_sessions).insert(node, session);
    }

    /// Stores the session with a node that this one admitted.
    pub(crate) fn note_incoming_session(&self, node: NodeId, session: SharedSecret) {
        lock(&self.incoming_sessions).insert(node, Admitted::new(session));
    }

    /// Verifies a session proof for one payload connection; returns the session.
    pub(crate) fn admit(
        &self,
        node: NodeId,
        nonce: &[u8; 16],
        pass: &MacBytes,
    ) -> Option<SharedSecret> {
        lock(&self.incoming_sessions).get_mut(&node)?.admit(nonce, pass)
    }

    /// TCP's measurements of the path to a member; None if there is no direct connection.
    pub(crate) fn path(&self, node: NodeId) -> Option<PathInfo> {
        lock(&self.all).get(&node).filter(|peer| peer.via.is_none())?.outbox.path()
    }

    /// The address of a member, and the relay, if it is not reached directly.
    ///
    /// # Errors
    /// [`LinkError::NotMember`] for the member or its relay.
    pub(crate) fn route(&self, node: NodeId) -> Result<(SocketAddr, Option<Member>), LinkError> {
        let all = lock(&self.all);
        let peer = all.get(&node).ok_or(LinkError::NotMember(node))?;
        let helper = peer.via.map(|via| all.get(&via).ok_or(LinkError::NotMember(via)));
        Ok((peer.member.address, helper.transpose()?.map(|helper| helper.member)))
    }

    /// Takes an idle payload connection to a member: the one last used. Closes all if even that is
    /// too old.
    pub(crate) fn take_idle(&self, node: NodeId) -> Option<Channel> {
        let mut idle = lock(&self.idle);
        let (since, channel) = idle.get_mut(&node)?.pop()?;
        if since.elapsed() <= IDLE_MAX {
            return Some(channel);
        }
        idle.remove(&node);
        None
    }

    /// Closes the idle payload connections to a member.
    pub(crate) fn close_idle(&self, node: NodeId) {
        lock(&self.idle).remove(&node);
    }

    /// The session with a member that admitted this node.
    pub(crate) fn session(&self, node: NodeId) -> Option<SharedSecret> {
        lock(&self.outgoing_sessions).get(&node).cloned()
    }

    /// Certificates of peers in sessions of both directions.
    pub(crate) fn certificates(&self) -> Vec<(NodeId, Arc<PeerCertificate>)> {
        let outgoing = lock(&self.outgoing_sessions).clone();
        let incoming = lock(&self.incoming_sessions);
        let incoming = incoming.iter().map(|(node, admitted)| (node, &admitted.session));
        let all = outgoing.iter().chain(incoming);
        all.filter_map(|(node, session)| Some((*node, session.shown.clone()?))).collect()
    }

    /// Stores a payload connection as idle after a complete transfer.
    pub(crate) fn keep_idle(&self, node: NodeId, channel: Channel) {
        // Locked until it is stored: `remove` then finds it.
        let all = lock(&self.all);
        if !all.contains_key(&node) {
            return;
        }
        let mut idle = lock(&self.idle);
        let channels = idle.entry(node).or_default();
        if channels.len() < IDLE_COUNT_MAX {
            channels.push((Instant::now(), channel));
        }
    }

    /// Closes all connections after their queues are sent, or after the timeout.
    pub(crate) async fn close(&self, grace: Duration) {
        let peers: Vec<Peer> = lock(&self.all).drain().map(|(_, peer)| peer).collect();
        lock(&self.idle).clear();
        let mut tasks = Vec::new();
        for peer in peers {
            peer.outbox.close();
            tasks.push(peer.task);
        }
        let all = async {
            for task in &mut tasks {
                let _ = task.await;
            }
        };
        if tokio::time::timeout(grace, all).await.is_err() {
            tasks.iter().for_each(JoinHandle::abort);
        }
    }
}

#[cfg(test)]
mod tests {
    use hoplite_proto::id::{Instance, ObjectId};
    use serde_json::json;

    use super::*;

    /// Goal: dropping the queue of an unreachable member is counted in the status, once each time.
    #[tokio::test]
    async fn dropped_queue_is_counted_in_limits() {
        let limited = Arc::new(Limited::default());
        let peers = Peers::new(limited.clone());
        let id = NodeId(7);
        let member = Member { id, address: ([127, 0, 0, 1], 7420).into(), place: None };
        peers.add(member, Arc::default(), tokio::spawn(async { None }));
        let id = ObjectId::Minted { node: NodeId(1), serial: 1 };
        let instance = Instance { node: NodeId(1), serial: 2 };
        let message = Message::Withdraw { id, instance };
        let mut due = DueOutboxes::default();
        // Several times the limit of an outbox in tests.
        for _ in 0..100_000 {
            peers.queue(member.id, &message, &mut due);
        }
        let row = json!({
            "member": member.id.to_string(),
            "process": null,
            "limit": "OUTBOX_BYTES_MAX",
            "count": 1,
        });
        assert_eq!(limited.describe(), [row]);
    }
}

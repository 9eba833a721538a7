//! The other members: how each is reached, what is to be sent to it, and the payload connections to it that are idle.
//!
//! Does not connect to any of them.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hoplite_proto::{
    id::NodeId,
    limits::CONTROL_BYTES_MAX,
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
use tracing::error;

use super::{
    certificates::Shown,
    outbox::{Outbox, Push},
    proofs::{Admitted, Session},
};
use crate::{
    channel::Channel,
    error::LinkError,
    frame,
    limited::{Limited, Whose},
    sync::{lock, until},
};

/// The other members, and the payload connections to them that are idle.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    all: Mutex<HashMap<NodeId, Peer>>,
    idle: Mutex<HashMap<NodeId, Vec<Channel>>>,
    /// Which nodes admitted this one, and which ones this one did: for payload connections without another introduction.
    calls: Mutex<HashMap<NodeId, Session>>,
    callers: Mutex<HashMap<NodeId, Admitted>>,
    /// Outboxes that begin with a message that can wait.
    late: Mutex<Vec<Arc<Outbox>>>,
    is_late: Notify,
    /// There is another member.
    has_grown: Notify,
    /// How often helpers were looked for: not always the same are asked.
    sought: AtomicUsize,
    limited: Arc<Limited>,
}

#[derive(Debug)]
struct Peer {
    member: Member,
    /// By way of which node it is reached, if not directly.
    via: Option<NodeId>,
    outbox: Arc<Outbox>,
    task: JoinHandle<Option<()>>,
    /// Dropped with it: what is sent to the member over its payload connections ends.
    presence: watch::Sender<()>,
}

/// How long a message waits that can wait: much longer than what follows it takes to be decided, much shorter than
/// any timeout.
const LATE: Duration = Duration::from_millis(20);

/// Payload connections to one peer that are kept for the next transfer; more are closed. Of large objects one node seldom
/// sends more at once to another, and one more costs a round trip when it is needed, where one that is kept costs both sides
/// a descriptor and the buffers of its encryption.
const IDLE_MAX: usize = 8;

impl Peer {
    /// Whether there is a direct connection to it.
    fn is_direct(&self) -> bool {
        self.via.is_none() && self.outbox.is_connected()
    }
}

impl Peers {
    /// None so far; `limited` counts those for which too much had to wait.
    pub(crate) fn new(limited: Arc<Limited>) -> Self {
        Self { limited, ..Self::default() }
    }

    /// Takes a member in; `task` writes what is queued in its outbox.
    pub(crate) fn add(&self, member: Member, outbox: Arc<Outbox>, task: JoinHandle<Option<()>>) {
        let presence = watch::Sender::new(());
        let peer = Peer { member, via: None, outbox, task, presence };
        if let Some(before) = lock(&self.all).insert(member.id, peer) {
            before.outbox.close();
        }
        self.has_grown.notify_waiters();
    }

    /// Ends the connections to a node; of one that has left, after what is queued for it.
    pub(crate) fn remove(&self, node: NodeId, has_left: bool) {
        if let Some(peer) = lock(&self.all).remove(&node) {
            peer.outbox.close();
            if !has_left {
                // Said later, over another connection, it would be taken for new.
                peer.outbox.forget();
                peer.task.abort();
            }
        }
        lock(&self.idle).remove(&node);
        lock(&self.calls).remove(&node);
        lock(&self.callers).remove(&node);
    }

    /// Ends when the member is no member any more; if it is none yet, when it has been one.
    pub(crate) async fn gone(&self, node: NodeId) {
        until(&self.has_grown, || self.is_member(node).then_some(())).await;
        self.lost(node).await;
    }

    /// Ends when a node is no member (any more).
    pub(crate) async fn lost(&self, node: NodeId) {
        let presence = lock(&self.all).get(&node).map(|peer| peer.presence.subscribe());
        if let Some(mut presence) = presence {
            // Nothing is ever sent: an error says that the sender is gone.
            while presence.changed().await.is_ok() {}
        }
    }

    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        lock(&self.all).contains_key(&node)
    }

    /// Whether a member is reached at an address, or goes by an id; this node itself is known.
    pub(crate) fn is_known(&self, me: &Member, address: SocketAddr, id: Option<NodeId>) -> bool {
        let all = lock(&self.all);
        address == me.address
            || id == Some(me.id)
            || id.is_some_and(|id| all.contains_key(&id))
            || all.values().any(|peer| peer.member.address == address)
    }

    /// Queues a message; one for a node that is gone goes nowhere. What has to be flushed when all is queued that there
    /// is to say is added to `due`: one system call for several messages. One that can wait leaves with the next that
    /// can't, or with [`Peers::flush_late`].
    pub(crate) fn queue(&self, to: NodeId, message: &Message, due: &mut Vec<Arc<Outbox>>) {
        let outbox = lock(&self.all).get(&to).map(|peer| peer.outbox.clone());
        let Some(outbox) = outbox else { return };
        let frame = frame::frame(FrameKind::Control, 0, message);
        if frame.len() > HEADER_BYTES + CONTROL_BYTES_MAX as usize {
            // The limits on names and counts leave no such message; the receiver would close the connection for it.
            error!(node = %to, bytes = frame.len(), "a message is too long to be sent");
            return;
        }
        match outbox.push(frame, message) {
            Push::Done => {}
            Push::Full => self.limited.note(Whose::Member(to), "OUTBOX_BYTES_MAX"),
            // News that no request waits for leave last.
            Push::Due if matches!(message, Message::Announce(news) if !news.claim) => {
                due.push(outbox)
            }
            Push::Due => due.insert(0, outbox),
            Push::Later => {
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

    /// Writes what could wait, a moment after it was queued, again and again.
    pub(crate) async fn flush_late(&self) {
        loop {
            self.is_late.notified().await;
            sleep(LATE).await;
            let late = std::mem::take(&mut *lock(&self.late));
            late.iter().for_each(|outbox| outbox.flush());
        }
    }

    /// The address of a member to which this node has a direct connection.
    pub(crate) fn address(&self, node: NodeId) -> Option<SocketAddr> {
        let all = lock(&self.all);
        all.get(&node).filter(|peer| peer.is_direct()).map(|peer| peer.member.address)
    }

    /// Some of those who may reach a member if this node can't.
    pub(crate) fn helpers(&self, member: NodeId, count: usize) -> Vec<Member> {
        let all = lock(&self.all);
        let mut helpers: Vec<Member> = all
            .values()
            .filter(|peer| peer.member.id != member && peer.is_direct())
            .map(|peer| peer.member)
            .collect();
        helpers.sort_unstable_by_key(|helper| helper.id);
        let turn = self.sought.fetch_add(count, Ordering::Relaxed);
        let first = turn.checked_rem(helpers.len()).unwrap_or_default();
        helpers.rotate_left(first);
        helpers.truncate(count);
        helpers
    }

    /// A member is reached (again), by way of another one or directly: what was open to it the other way is not used.
    pub(crate) fn note_reached(&self, node: NodeId, via: Option<NodeId>) {
        if let Some(peer) = lock(&self.all).get_mut(&node) {
            peer.via = via;
        }
        lock(&self.idle).remove(&node);
    }

    /// By way of which node a member is reached, if not directly.
    pub(crate) fn via(&self, node: NodeId) -> Option<NodeId> {
        lock(&self.all).get(&node)?.via
    }

    /// A node has admitted this one.
    pub(crate) fn note_call(&self, node: NodeId, session: Session) {
        lock(&self.calls).insert(node, session);
    }

    /// This node has admitted another.
    pub(crate) fn note_caller(&self, node: NodeId, session: Session) {
        lock(&self.callers).insert(node, Admitted::new(session));
    }

    /// Admits a node that called before, for one payload connection; the secret of both.
    pub(crate) fn admit(&self, node: NodeId, nonce: &[u8; 16], pass: &MacBytes) -> Option<Session> {
        lock(&self.callers).get_mut(&node)?.admit(nonce, pass)
    }

    /// What TCP knows of the way to a member; none if there is no direct connection.
    pub(crate) fn path(&self, node: NodeId) -> Option<PathInfo> {
        lock(&self.all).get(&node).filter(|peer| peer.via.is_none())?.outbox.path()
    }

    /// The address of a member, and by way of which node it is reached, if not directly.
    ///
    /// # Errors
    /// [`LinkError::NotMember`] of it or its helper.
    pub(crate) fn route(&self, node: NodeId) -> Result<(SocketAddr, Option<Member>), LinkError> {
        let all = lock(&self.all);
        let peer = all.get(&node).ok_or(LinkError::NotMember(node))?;
        let helper = peer.via.map(|via| all.get(&via).ok_or(LinkError::NotMember(via)));
        Ok((peer.member.address, helper.transpose()?.map(|helper| helper.member)))
    }

    /// A payload connection to a member that is idle.
    pub(crate) fn take_idle(&self, node: NodeId) -> Option<Channel> {
        lock(&self.idle).get_mut(&node)?.pop()
    }

    /// What a member that has admitted this node knows it by.
    pub(crate) fn session(&self, node: NodeId) -> Option<Session> {
        lock(&self.calls).get(&node).cloned()
    }

    /// The certificates that nodes have shown which this one has admitted, or which have admitted this one.
    pub(crate) fn shown(&self) -> Vec<(NodeId, Arc<Shown>)> {
        let calls = lock(&self.calls);
        let called = calls.iter().map(|(node, session)| (*node, session.shown.clone()));
        let mut all: Vec<_> = called.collect();
        drop(calls);
        let callers = lock(&self.callers);
        all.extend(callers.iter().map(|(node, admitted)| (*node, admitted.session.shown.clone())));
        all.into_iter().filter_map(|(node, shown)| Some((node, shown?))).collect()
    }

    /// Gives a payload connection back after a transfer that ended in order.
    pub(crate) fn keep_idle(&self, node: NodeId, channel: Channel) {
        if !lock(&self.all).contains_key(&node) {
            return;
        }
        let mut idle = lock(&self.idle);
        let channels = idle.entry(node).or_default();
        if channels.len() < IDLE_MAX {
            channels.push(channel);
        }
    }

    /// Ends all connections when what is queued has been sent, or after `patience`.
    pub(crate) async fn close(&self, patience: Duration) {
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
        if tokio::time::timeout(patience, all).await.is_err() {
            tasks.iter().for_each(JoinHandle::abort);
        }
    }
}

#[cfg(test)]
mod tests {
    use hoplite_proto::id::{Instance, ObjectId};
    use serde_json::json;

    use super::*;

    /// Goal: a member that can't be reached, and for which too much waits, is seen in the status, once each time.
    #[tokio::test]
    async fn what_is_dropped_of_what_waits_for_a_member_is_counted() {
        let limited = Arc::new(Limited::default());
        let peers = Peers::new(limited.clone());
        let id = NodeId(7);
        let member = Member { id, address: ([127, 0, 0, 1], 7420).into(), place: None };
        peers.add(member, Arc::default(), tokio::spawn(async { None }));
        let id = ObjectId::Minted { node: NodeId(1), serial: 1 };
        let instance = Instance { node: NodeId(1), serial: 2 };
        let message = Message::Withdraw { id, instance };
        let mut due = Vec::new();
        // More than an outbox holds in tests, several times.
        for _ in 0..100_000 {
            peers.queue(member.id, &message, &mut due);
        }
        let row = json!({
            "member": member.id.to_string(), "process": null, "limit": "OUTBOX_BYTES_MAX", "count": 1
        });
        assert_eq!(limited.describe(), [row]);
    }
}

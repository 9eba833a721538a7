//! The active transfers of a node, and the state that their tasks share.
//!
//! Knows the start and end of a transfer, not how bytes are moved.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use hoplite_proto::{
    id::{FetchId, Instance, NodeId, ServeId},
    node::Event,
};
use tokio::{sync::oneshot, task::AbortHandle};

use super::{limiter::Limiter, streams::Streams, tcp::Tcp};
use crate::{
    counters::Counters,
    engine::{event_sender::EventSender, tasks::Supervisor},
    error::LinkError,
    link::LinkMeter,
    network::shared::Network,
    repeats::log_once,
    store::{Store, StoredCopy},
    sync::lock,
};

/// The transfers to and from one node.
pub(crate) struct Transfers {
    pub(crate) network: Arc<Network>,
    /// The transport to other nodes.
    pub(crate) path: Arc<Tcp>,
    pub(crate) store: Arc<Store>,
    pub(crate) streams: Streams,
    /// Limits concurrent transfers to this node.
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) link: Arc<LinkMeter>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) events: EventSender,
    pub(crate) tasks: Supervisor,
    /// Transfers from this node that wait for a decision of the state machine, with their
    /// receivers.
    serves: Mutex<HashMap<ServeId, (NodeId, ServeDecision)>>,
    /// The tasks of transfers to this node.
    fetches: Mutex<HashMap<FetchId, AbortHandle>>,
}

/// Receives a granted transfer; None if it is refused.
type ServeDecision = oneshot::Sender<Option<Serving>>;

/// A transfer that the state machine granted.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) stored: Arc<StoredCopy>,
    /// Whether the copy itself came over the network or is computed by a reduce.
    pub(crate) relayed: bool,
}

impl Transfers {
    pub(crate) fn new(network: Arc<Network>, store: Arc<Store>) -> Self {
        Self {
            path: Arc::new(Tcp(network.clone())),
            store,
            streams: Streams::default(),
            limiter: Arc::new(Limiter::new(network.tasks.clone())),
            link: network.link.clone(),
            counters: network.counters.clone(),
            events: network.events.clone(),
            tasks: network.tasks.clone(),
            network,
            serves: Mutex::default(),
            fetches: Mutex::default(),
        }
    }

    /// Registers a transfer that waits for a decision of the state machine.
    pub(crate) fn expect_serve(
        &self,
        reader: NodeId,
    ) -> (ServeId, oneshot::Receiver<Option<Serving>>) {
        let serve = ServeId(self.events.next_id());
        let (sender, receiver) = oneshot::channel();
        lock(&self.serves).insert(serve, (reader, sender));
        (serve, receiver)
    }

    /// The receiver of a transfer that waits for a decision.
    pub(crate) fn reader(&self, serve: ServeId) -> Option<NodeId> {
        lock(&self.serves).get(&serve).map(|(reader, _)| *reader)
    }

    /// Removes a transfer whose task no longer waits for the decision.
    pub(crate) fn forget_serve(&self, serve: ServeId) {
        lock(&self.serves).remove(&serve);
    }

    /// Grants a receiver a copy.
    pub(crate) fn grant_serve(&self, serve: ServeId, instance: Instance, relayed: bool) {
        let asker = lock(&self.serves).remove(&serve);
        let stored = self.store.get(instance);
        let is_taken = match (asker, stored) {
            (Some((_, asker)), Some(stored)) => {
                asker.send(Some(Serving { stored, relayed })).is_ok()
            }
            (Some((_, asker)), None) => {
                let _ = asker.send(None);
                false
            }
            (None, _) => false,
        };
        if !is_taken {
            // The receiver or its connection is gone: no task will report the end of this transfer.
            self.events.send(Event::ServeEnded { serve });
        }
    }

    /// Refuses a receiver: there is no such copy.
    pub(crate) fn refuse_serve(&self, serve: ServeId) {
        self.counters.refusals.add(1);
        if let Some((_, asker)) = lock(&self.serves).remove(&serve) {
            let _ = asker.send(None);
        }
    }

    /// Registers the task of a transfer, which `start` starts.
    pub(crate) fn begin_fetch(&self, fetch: FetchId, start: impl FnOnce() -> AbortHandle) {
        // Locked before the task can end and remove its entry.
        lock(&self.fetches).insert(fetch, start());
    }

    /// Aborts a transfer to this node.
    pub(crate) fn stop_fetch(&self, fetch: FetchId) {
        if let Some(task) = lock(&self.fetches).remove(&fetch) {
            task.abort();
        }
    }

    /// Reports the result of a transfer to the state machine, unless it was stopped before the
    /// event is handled.
    pub(crate) fn end_fetch(self: &Arc<Self>, fetch: FetchId, event: Event) {
        let transfers = self.clone();
        let is_current = move || lock(&transfers.fetches).remove(&fetch).is_some();
        self.events.send_if(event, is_current);
    }

    /// Counts bytes sent while other transfers share the link.
    pub(super) fn count_shared(&self, bytes: u64) {
        if self.streams.shares_out() > 1 {
            self.counters.bytes_shared.add(bytes);
        }
    }

    /// Counts and logs a failed transfer if the member sent or accepted too little.
    pub(super) fn note_slow(&self, node: NodeId, error: &LinkError) {
        if matches!(error, LinkError::Slow(..)) {
            self.counters.transfers_slow.add(1);
            log_once!(info, node, %node, %error, "aborted a stalled transfer");
        }
    }

    /// Aborts all transfers.
    pub(crate) fn close(&self) {
        for (_, task) in lock(&self.fetches).drain() {
            task.abort();
        }
        lock(&self.serves).clear();
    }
}

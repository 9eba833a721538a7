//! The transfers of a node that are under way, and what their tasks share.
//!
//! Knows how a transfer begins and that it is over; not how bytes are moved.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use hoplite_proto::{
    id::{Instance, NodeId, ServeId},
    node::Event,
};
use tokio::{sync::oneshot, task::AbortHandle};
use tracing::info;

use super::{limiter::Limiter, streams::Streams};
use crate::{
    counters::Counters,
    engine::{facts::Facts, tasks::Tasks},
    error::LinkError,
    link::LinkMeter,
    network::shared::Network,
    store::{Held, Store},
    sync::lock,
};

/// The transfers to and from one node.
pub(crate) struct Transfers {
    pub(crate) network: Arc<Network>,
    pub(crate) store: Arc<Store>,
    pub(crate) streams: Streams,
    /// Which transfers to here may begin.
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) link: Arc<LinkMeter>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) facts: Facts,
    pub(crate) tasks: Tasks,
    /// Transfers from here that the machine is asked about.
    serves: Mutex<HashMap<ServeId, oneshot::Sender<Option<Serving>>>>,
    /// Transfers to here by copy: the number of the task, and how to end it.
    fetches: Mutex<HashMap<Instance, (u64, AbortHandle)>>,
}

/// What the machine lets a receiver have.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) held: Arc<Held>,
    /// Whether the copy came over the network itself, or is made by a reduce.
    pub(crate) relayed: bool,
}

impl Transfers {
    pub(crate) fn new(network: Arc<Network>, store: Arc<Store>) -> Self {
        Self {
            store,
            streams: Streams::default(),
            limiter: Arc::new(Limiter::new(network.tasks.clone())),
            link: network.link.clone(),
            counters: network.counters.clone(),
            facts: network.facts.clone(),
            tasks: network.tasks.clone(),
            network,
            serves: Mutex::default(),
            fetches: Mutex::default(),
        }
    }

    /// Keeps the place of a transfer that the machine is asked about.
    pub(crate) fn expect_serve(&self) -> (ServeId, oneshot::Receiver<Option<Serving>>) {
        let serve = ServeId(self.facts.next_id());
        let (sender, receiver) = oneshot::channel();
        lock(&self.serves).insert(serve, sender);
        (serve, receiver)
    }

    /// Forgets a transfer on whose decision its task does not wait any more.
    pub(crate) fn forget_serve(&self, serve: ServeId) {
        lock(&self.serves).remove(&serve);
    }

    /// Lets a receiver have a copy.
    pub(crate) fn grant_serve(&self, serve: ServeId, instance: Instance, relayed: bool) {
        let asker = lock(&self.serves).remove(&serve);
        let held = self.store.get(instance);
        let is_taken = match (asker, held) {
            (Some(asker), Some(held)) => asker.send(Some(Serving { held, relayed })).is_ok(),
            (Some(asker), None) => {
                let _ = asker.send(None);
                false
            }
            (None, _) => false,
        };
        if !is_taken {
            // The receiver or its connection is gone: no task will say that this transfer is over.
            self.facts.tell(Event::ServeEnded { serve });
        }
    }

    /// Tells a receiver that there is no such copy.
    pub(crate) fn refuse_serve(&self, serve: ServeId) {
        self.counters.refusals.add(1);
        if let Some(asker) = lock(&self.serves).remove(&serve) {
            let _ = asker.send(None);
        }
    }

    /// Begins to receive a copy by the task that `start` starts under a number; ends the transfer of it before this one.
    pub(crate) fn begin_fetch(&self, instance: Instance, start: impl FnOnce(u64) -> AbortHandle) {
        let serial = self.facts.next_id();
        // Locked before the task can end, which takes its entry away.
        let mut fetches = lock(&self.fetches);
        if let Some((_, before)) = fetches.insert(instance, (serial, start(serial))) {
            before.abort();
        }
    }

    /// Ends the transfer of a copy to here.
    pub(crate) fn stop_fetch(&self, instance: Instance) {
        if let Some((_, task)) = lock(&self.fetches).remove(&instance) {
            task.abort();
        }
    }

    /// Tells the machine how a transfer to here ended, unless it is stopped or replaced by the time that the machine
    /// hears of it.
    pub(crate) fn end_fetch(self: &Arc<Self>, instance: Instance, serial: u64, event: Event) {
        let transfers = self.clone();
        self.facts.tell_if(event, move || {
            let mut fetches = lock(&transfers.fetches);
            let is_current = fetches.get(&instance).is_some_and(|(current, _)| *current == serial);
            if is_current {
                fetches.remove(&instance);
            }
            is_current
        });
    }

    /// Counts bytes that were sent, if other transfers share the link.
    pub(super) fn count_shared(&self, bytes: u64) {
        if self.streams.shares_out() > 1 {
            self.counters.bytes_shared.add(bytes);
        }
    }

    /// A transfer from or to a member broke off: counts it if the member gave or took too little.
    pub(super) fn note_slow(&self, node: NodeId, error: &LinkError) {
        if matches!(error, LinkError::Slow(..)) {
            self.counters.transfers_slow.add(1);
            info!(%node, %error, "ended a transfer");
        }
    }

    /// Ends all transfers.
    pub(crate) fn close(&self) {
        for (_, (_, task)) in lock(&self.fetches).drain() {
            task.abort();
        }
        lock(&self.serves).clear();
    }
}

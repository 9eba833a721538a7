//! This node's part in surveys of shared links ([`hoplite_survey`]), with a clock of its own.
//!
//! Passes members, messages and the time to the machine of surveys, and executes its effects. Does
//! not know what a survey measures, or which objects the node transfers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use hoplite_proto::{id::NodeId, inline::Inline, members::Members, message::Message, node::Event};
use hoplite_survey::{Effect, Surveys};
use tokio::sync::Notify;
use tracing::info;

use super::peers::{DueOutboxes, Peers};
use crate::{counters::Counters, engine::event_sender::EventSender, sync::lock};

/// Surveys of one node.
#[derive(Debug)]
pub(crate) struct Survey {
    surveys: Mutex<Surveys>,
    /// The deadline may have changed.
    is_changed: Notify,
    events: EventSender,
    counters: Arc<Counters>,
}

impl Survey {
    /// Surveys in which the node `me` takes part if `is_on`.
    pub(crate) fn new(
        me: NodeId,
        is_on: bool,
        events: EventSender,
        counters: Arc<Counters>,
    ) -> Self {
        let surveys = Mutex::new(Surveys::new(me, is_on));
        Self { surveys, is_changed: Notify::new(), events, counters }
    }

    /// The state of surveys as one word.
    pub(crate) fn state(&self) -> &'static str {
        lock(&self.surveys).state()
    }

    /// Handles a membership change.
    pub(crate) fn members_changed(&self, members: &Members) {
        lock(&self.surveys).members_changed(self.events.now(), members);
        self.is_changed.notify_one();
    }

    /// Handles a message of another member. `is_busy`: whether this node transfers objects.
    pub(crate) fn receive(
        &self,
        from: NodeId,
        message: &Inline,
        is_busy: bool,
        peers: &Peers,
        unsent: &mut DueOutboxes,
    ) {
        let now = self.events.now();
        let effects = lock(&self.surveys).receive(now, from, message, is_busy);
        self.execute(effects, peers, unsent);
        self.is_changed.notify_one();
    }

    /// Handles what is due, until the node ends.
    pub(crate) async fn keep_time(&self, peers: &Peers, is_busy: impl Fn() -> bool) {
        loop {
            let (now, due) = (self.events.now(), lock(&self.surveys).deadline());
            let changed = self.is_changed.notified();
            match due.map(|due| due.since(now)) {
                None => changed.await,
                Some(0) => {
                    let effects = lock(&self.surveys).expire(now, is_busy());
                    let mut unsent = DueOutboxes::default();
                    self.execute(effects, peers, &mut unsent);
                    unsent.flush();
                }
                Some(ns) => _ = tokio::time::timeout(Duration::from_nanos(ns), changed).await,
            }
        }
    }

    fn execute(&self, effects: Vec<Effect>, peers: &Peers, unsent: &mut DueOutboxes) {
        for effect in effects {
            match effect {
                Effect::Send { to, message } => {
                    self.counters.messages_sent.add(1);
                    peers.queue(to, &Message::Survey(message), unsent);
                }
                Effect::PlacesFound(places) => self.events.send(Event::PlacesFound { places }),
                Effect::Surveyed { nodes, groups } => {
                    info!(
                        nodes,
                        groups, "surveyed the network for groups of hosts that share a link"
                    );
                }
            }
        }
    }
}

//! This node's part in surveys of shared links ([`hoplite_survey`]), in a task with a clock of its
//! own.
//!
//! Passes members, messages and the time to the machine of surveys, and executes its effects. Does
//! not know what a survey measures, or which objects the node transfers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use hoplite_proto::{id::NodeId, inline::Inline, members::Members, message::Message, node::Event};
use hoplite_survey::{Effect, NODES_MAX, Scope, Surveys};
use tokio::sync::Notify;
use tracing::info;

use super::peers::{DueOutboxes, Peers};
use crate::{counters::Counters, engine::event_sender::EventSender, sync::lock};

/// Maximum number of messages that the task has not handled: a burst of 32, and two of each
/// member. Further ones are dropped; a round that loses messages does not count.
const MESSAGES_MAX: usize = 32 + 2 * NODES_MAX;

/// Surveys of one node.
#[derive(Debug)]
pub(crate) struct Survey {
    me: NodeId,
    is_on: bool,
    inbox: Mutex<Inbox>,
    /// The inbox is not empty.
    is_changed: Notify,
    /// The state as one word, as the task has written it.
    state: Mutex<&'static str>,
    events: EventSender,
    counters: Arc<Counters>,
}

/// What the event loop passes to the task.
#[derive(Debug, Default)]
struct Inbox {
    /// The members, if they changed.
    scope: Option<Scope>,
    messages: Vec<(NodeId, Inline)>,
}

impl Survey {
    /// Surveys in which the node `me` takes part if `is_on`.
    pub(crate) fn new(
        me: NodeId,
        is_on: bool,
        events: EventSender,
        counters: Arc<Counters>,
    ) -> Self {
        let (inbox, is_changed, state) = (Mutex::default(), Notify::new(), Mutex::new("none"));
        Self { me, is_on, inbox, is_changed, state, events, counters }
    }

    /// The state of surveys as one word.
    pub(crate) fn state(&self) -> &'static str {
        *lock(&self.state)
    }

    /// Notes a membership change for the task.
    pub(crate) fn members_changed(&self, members: &Members) {
        if self.is_on {
            lock(&self.inbox).scope = Some(Scope::new(members));
            self.is_changed.notify_one();
        }
    }

    /// Queues a message of another member for the task.
    pub(crate) fn receive(&self, from: NodeId, message: Inline) {
        let messages = &mut lock(&self.inbox).messages;
        if messages.len() < MESSAGES_MAX {
            messages.push((from, message));
            self.is_changed.notify_one();
        }
    }

    /// Handles members, messages and what is due, until the node ends.
    pub(crate) async fn run(&self, peers: &Peers, is_busy: impl Fn() -> bool) {
        let mut surveys = Surveys::new(self.me, self.is_on);
        loop {
            let Inbox { scope, messages } = std::mem::take(&mut *lock(&self.inbox));
            if let Some(scope) = scope {
                surveys.members_changed(self.events.now(), scope);
            }
            let mut unsent = DueOutboxes::default();
            for (from, message) in messages {
                let effects = surveys.receive(self.events.now(), from, &message, is_busy());
                self.execute(effects, peers, &mut unsent);
            }
            let effects = surveys.expire(self.events.now(), is_busy());
            self.execute(effects, peers, &mut unsent);
            unsent.flush();
            *lock(&self.state) = surveys.state();
            // A flood of messages does not keep a thread of the runtime.
            tokio::task::yield_now().await;
            let (changed, due) = (self.is_changed.notified(), surveys.deadline());
            match due.map(|due| due.since(self.events.now())) {
                None => changed.await,
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

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use tokio::{sync::watch, time::timeout};

    use super::*;
    use crate::engine::event_sender::{HandleEvent, QueuedEvent};

    struct NoMachine;

    impl HandleEvent for NoMachine {
        fn handle(self: Arc<Self>, _: QueuedEvent, _: bool) {}
    }

    /// Goal: the event loop keeps only so many messages for the task. Method: malformed ones.
    #[tokio::test]
    async fn messages_beyond_the_limit_are_dropped() {
        let (machine, me): (Weak<NoMachine>, _) = (Weak::new(), NodeId(1));
        let events = EventSender::new(machine, watch::channel([false; 2]).1);
        let survey = Survey::new(me, true, events, Arc::default());
        (0..2 * MESSAGES_MAX).for_each(|_| survey.receive(NodeId(2), vec![255].into()));
        assert_eq!(lock(&survey.inbox).messages.len(), MESSAGES_MAX);
        let peers = Peers::default();
        let _ = timeout(Duration::ZERO, survey.run(&peers, || false)).await;
        assert!(lock(&survey.inbox).messages.is_empty());
    }
}

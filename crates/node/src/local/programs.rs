//! The programs of this host that use the node: what a client in the process and a session of an attached one share.
//!
//! Does not know how a question reaches the node.

use std::{
    collections::HashMap,
    fmt, io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, Weak, atomic::AtomicUsize},
};

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    id::{ClientId, Instance, RequestId},
    node::Event,
};
use hoplite_shm::{ExtentId, WriterId};
use tokio::{io::AsyncReadExt, net::unix::pipe};

use super::{describe, leaving::Leaving, limits, shares::Shares};
use crate::{
    engine::{facts::Facts, requests::Requests, task::Task},
    network::shared::Network,
    store::Store,
    sync::lock,
};

/// One attached process, as the rest of the node sees it.
pub(crate) trait Attachment: Send + Sync {
    /// The node let go of extents: the process is to unmap those that it has.
    fn forget(&self, gone: &[ExtentId]);
    /// Ends the connection when what is queued was sent, and the reason.
    fn end(&self, reason: &str);
    /// Its number, if the kernel tells.
    fn process(&self) -> Option<u32>;
}

/// The programs that use one node.
pub(crate) struct Programs {
    pub(crate) facts: Facts,
    pub(crate) requests: Requests,
    pub(crate) store: Arc<Store>,
    pub(crate) network: Arc<Network>,
    /// Whether an attached process has to have a capability.
    pub(super) confine: bool,
    /// Those in other processes, which write their objects themselves, through shared memory.
    attached: Mutex<HashMap<ClientId, Weak<dyn Attachment>>>,
    pub(super) leaving: Leaving,
    /// What the questions of attached processes take that are not answered.
    pub(super) asked: Arc<AtomicUsize>,
    /// Forks that read what attached processes have read.
    pub(super) holds: Shares,
    /// Bytes of the copies of objects that confined processes read, and how many there are.
    pub(super) copy_bytes: Shares,
    pub(super) copies: Shares,
}

impl Programs {
    pub(crate) fn new(
        requests: Requests,
        store: Arc<Store>,
        network: Arc<Network>,
        confine: bool,
    ) -> Self {
        let (facts, attached) = (network.facts.clone(), Mutex::default());
        let leaving = Leaving::new(store.arena.clone());
        let copy_bytes = Shares::new(store.capacity());
        Self {
            facts,
            requests,
            store,
            network,
            confine,
            attached,
            leaving,
            asked: Arc::default(),
            holds: Shares::new(limits::holds_max()),
            copy_bytes,
            copies: Shares::new(limits::copies_max()),
        }
    }

    /// A number for a program that begins to use the node.
    pub(crate) fn next_client(&self) -> ClientId {
        ClientId(self.facts.next_id())
    }

    /// An attached process begins to use the node.
    pub(crate) fn attach(&self, client: ClientId, attachment: Weak<dyn Attachment>) {
        lock(&self.attached).insert(client, attachment);
    }

    /// The writer as which a client writes to shared memory, if it does so itself.
    pub(crate) fn writer(&self, client: ClientId) -> Option<WriterId> {
        lock(&self.attached).contains_key(&client).then_some(WriterId(client.0))
    }

    /// The process of a client: that of the node, if it is not attached.
    pub(crate) fn process(&self, client: ClientId) -> Option<u32> {
        let attached = lock(&self.attached).get(&client).cloned();
        match attached {
            Some(attached) => attached.upgrade()?.process(),
            None => Some(std::process::id()),
        }
    }

    /// A program is gone.
    pub(crate) fn gone(&self, client: ClientId) {
        self.facts.tell(Event::ClientGone { client });
        lock(&self.attached).remove(&client);
    }

    /// Tells all attached processes which extents the node let go of.
    pub(crate) fn forget_gone(&self) {
        let gone = self.leaving.take();
        if !gone.is_empty() {
            self.attachments().iter().for_each(|attachment| attachment.forget(&gone));
            gone.iter().for_each(|extent| self.leaving.unmapped(*extent));
        }
    }

    /// Answers all questions with the end of the node.
    pub(crate) fn close(&self) {
        self.requests.fail_all();
    }

    /// Ends the connections of all attached processes, and tells them why.
    pub(crate) fn detach_all(&self, reason: &str) {
        self.attachments().iter().for_each(|attachment| attachment.end(reason));
    }

    fn attachments(&self) -> Vec<Arc<dyn Attachment>> {
        lock(&self.attached).values().filter_map(Weak::upgrade).collect()
    }

    /// More of an object was filled.
    pub(crate) fn advanced(&self, instance: Instance) {
        if let Some(held) = self.store.get(instance) {
            held.grew();
        }
    }

    /// How the node is, as JSON.
    pub(crate) fn describe(
        self: &Arc<Self>,
        client: ClientId,
        sink: impl FnOnce(Result<String, CallError>) + Send + 'static,
    ) -> RequestId {
        let programs = self.clone();
        let answer = move |answer: Result<Answer, CallError>| {
            sink(answer.and_then(|answer| match answer {
                Answer::Status(status) => {
                    let arena = programs.store.arena.stats();
                    Ok(describe::description(&status, &programs.network, arena).to_string())
                }
                _ => Err(CallError::NodeDown("it gave an answer to another question".into())),
            }));
        };
        self.requests.ask(client, Ask::Status, None, false, Box::new(answer))
    }

    /// Pins what a client reads once more, until no process has the end of a pipe that this returns. `kept` is let go of then.
    ///
    /// # Errors
    /// This process may open no more files.
    pub(crate) fn hold(
        self: &Arc<Self>,
        client: ClientId,
        kept: impl Send + 'static,
    ) -> io::Result<OwnedFd> {
        let (end, lifeline) = io::pipe()?;
        let heir = self.next_client();
        self.facts.tell(Event::ClientForked { client, heir });
        let programs = self.clone();
        self.network.tasks.spawn(Task::Fork, async move {
            if let Ok(mut end) = pipe::Receiver::from_owned_fd(end.into()) {
                // Nothing is to be written into it: it is readable when it is over.
                let _ = end.read(&mut [0]).await;
            }
            programs.gone(heir);
            drop(kept);
        });
        Ok(lifeline.into())
    }
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Programs of node {}", self.network.identity.member.id)
    }
}

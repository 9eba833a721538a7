//! Simulates clients: they put, get, reduce and delete as planned, and record what each reply must be.

mod acts;
mod answers;
mod clients;

use std::collections::{BTreeMap, BTreeSet};

use hoplite_proto::{
    id::{ClientId, Instance, NodeId, ObjectId, RequestId},
    members::Member,
    message::Holding,
    selection::Selection,
    time::Instant,
};

use crate::{
    payload::{Content, Tag},
    plan::{Act, Make, Spec},
};

/// All clients with their requests and objects.
#[derive(Debug)]
pub(crate) struct Users {
    pub(crate) objects: Vec<Object>,
    /// Several objects may compete for one name.
    pub(crate) by_id: BTreeMap<ObjectId, Vec<usize>>,
    pub(crate) requests: BTreeMap<RequestId, PendingRequest>,
    clients: BTreeMap<ClientId, Client>,
    /// The readers of each slot, and how often each reads it.
    reads: BTreeMap<(NodeId, Instance, ClientId), u32>,
    /// Acts that wait for the id of an object.
    blocked: BTreeMap<usize, Vec<Act>>,
    /// Whether nodes left, failed or were partitioned: copies may be lost, and reduces with their callers.
    pub(crate) is_shrunk: bool,
    /// The content of the first get of each object with a generated id.
    pub(crate) given: BTreeMap<ObjectId, Content>,
    /// Instances that were complete somewhere, and their objects.
    pub(crate) completed: BTreeSet<Instance>,
    pub(crate) came: BTreeSet<ObjectId>,
    /// Objects that were put and must exist after the cluster has settled, and the instance of the first get then.
    pub(crate) must_exist: BTreeMap<ObjectId, Option<Instance>>,
    /// Objects whose deletion was confirmed to a client, and how many clients had started to create each by then.
    pub(crate) deleted: BTreeMap<ObjectId, usize>,
    /// Number of gets that returned an object, and when the last one of each node did.
    pub(crate) got: u64,
    pub(crate) got_by: BTreeMap<NodeId, Instant>,
    counted: u64,
}

/// An object of the plan and its state.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) spec: Spec,
    pub(crate) id: Option<ObjectId>,
    /// The node where it is created.
    pub(crate) node: Option<NodeId>,
    pub(crate) is_delete_requested: bool,
    /// When a client started to create it, whether that client was in the job, and whether the object may expire.
    pub(crate) made_at: Option<Instant>,
    pub(crate) is_of_job: bool,
    pub(crate) may_end: bool,
    /// The put failed.
    pub(crate) is_failed: bool,
    /// Its client received the confirmation of the put.
    pub(crate) is_made: bool,
    /// The client that reserved its name, or whose slot it fills.
    pub(crate) reserved_by: Option<ClientId>,
    /// Another object got its name.
    pub(crate) is_refused: bool,
    /// Possible contents of its copies.
    pub(crate) contents: BTreeSet<Content>,
    /// Whether all nodes had met when it was put.
    pub(crate) is_agreed: bool,
    /// Whether its node had joined the others when it was put.
    pub(crate) has_joined: bool,
    /// The number of replicas that its node has reported to a client.
    pub(crate) kept: Option<ReplicaPromise>,
}

impl Object {
    /// Whether a client has deleted it, or it may expire.
    pub(crate) const fn may_be_gone(&self) -> bool {
        self.is_delete_requested || self.may_end
    }
}

#[derive(Debug)]
struct Client {
    node: NodeId,
    is_gone: bool,
    /// When it joined the job.
    of_job_since: Option<Instant>,
}

/// An open or completed request, to check its reply.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) node: NodeId,
    pub(crate) client: ClientId,
    pub(crate) purpose: Purpose,
    pub(crate) at: Instant,
    pub(crate) deadline: Option<Instant>,
    /// Canceled, or its client has ended.
    pub(crate) is_void: bool,
    pub(crate) is_answered: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// A put of the object follows.
    Reserve {
        object: usize,
    },
    /// A put of the object by this client follows, into the slot of the client that requests it.
    Slot {
        object: usize,
        node: NodeId,
        filler: ClientId,
    },
    Put {
        object: usize,
        tag: Tag,
    },
    Create {
        object: usize,
        tag: Tag,
    },
    Seal {
        object: usize,
        instance: Instance,
    },
    Abort,
    Join,
    Get {
        id: ObjectId,
        selection: Option<Selection>,
        read_ns: u64,
    },
    Reduce {
        object: usize,
    },
    Inputs {
        object: usize,
    },
    Replicate {
        object: usize,
        replicas: u32,
    },
    /// `ended`: objects that no client is still creating, and how many clients had started to create each.
    Delete {
        ended: Vec<(ObjectId, usize)>,
    },
    /// `newest`: the newest version, `None` if there is no name; unknown until the cluster has settled.
    Latest {
        prefix: &'static str,
        after: Option<u64>,
        newest: Option<Option<u64>>,
    },
    Prune,
    Wait {
        ids: Vec<ObjectId>,
        count: usize,
    },
    Follow {
        id: ObjectId,
    },
    /// `must`: nodes that the reply must contain.
    Locations {
        id: ObjectId,
        known: Option<Vec<Holding>>,
        changes: u32,
        must: Vec<NodeId>,
    },
}

/// A client that fills a slot.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    object: usize,
    pub(crate) node: NodeId,
    client: ClientId,
    instance: Instance,
    tag: Tag,
    next: u32,
}

/// A later act of a client.
#[derive(Clone, Debug)]
pub(crate) enum Later {
    Cancel {
        request: RequestId,
    },
    Release {
        node: NodeId,
        client: ClientId,
        instance: Instance,
    },
    Locations {
        node: NodeId,
        client: ClientId,
        id: ObjectId,
        known: Vec<Holding>,
        changes: u32,
    },
    /// A client puts an object whose name it has reserved, or which fills a slot.
    Put {
        object: usize,
        node: NodeId,
        client: ClientId,
    },
    /// The child of a fork ends.
    ChildEnds {
        node: NodeId,
        child: ClientId,
    },
    /// A process starts at the address of one that failed.
    Begin {
        member: Member,
    },
}

impl Users {
    pub(crate) fn new(objects: &[Spec]) -> Self {
        let mut by_id: BTreeMap<ObjectId, Vec<usize>> = BTreeMap::new();
        let mut all = Vec::new();
        for (number, spec) in objects.iter().enumerate() {
            let id = spec.name.clone().map(ObjectId::Named);
            if let Some(id) = id.clone() {
                by_id.entry(id).or_default().push(number);
            }
            all.push(Object {
                spec: spec.clone(),
                id,
                node: None,
                is_delete_requested: false,
                made_at: None,
                is_of_job: false,
                may_end: false,
                is_failed: false,
                is_made: false,
                reserved_by: None,
                is_refused: false,
                contents: BTreeSet::new(),
                is_agreed: false,
                has_joined: false,
                kept: None,
            });
        }
        Self {
            objects: all,
            by_id,
            requests: BTreeMap::new(),
            clients: BTreeMap::new(),
            reads: BTreeMap::new(),
            blocked: BTreeMap::new(),
            got: 0,
            got_by: BTreeMap::new(),
            is_shrunk: false,
            completed: BTreeSet::new(),
            came: BTreeSet::new(),
            must_exist: BTreeMap::new(),
            deleted: BTreeMap::new(),
            given: BTreeMap::new(),
            counted: 0,
        }
    }

    /// Returns a client that reads a slot.
    pub(crate) fn reader_of(&self, node: NodeId, instance: Instance) -> Option<ClientId> {
        let from = (node, instance, ClientId(0));
        let (found, _) = self.reads.range(from..).next()?;
        ((found.0, found.1) == (node, instance)).then_some(found.2)
    }

    /// The clients that read something, with their nodes.
    pub(crate) fn reading(&self) -> BTreeSet<(NodeId, ClientId)> {
        self.reads.keys().map(|(node, _, client)| (*node, *client)).collect()
    }

    /// Makes a child read once each copy that a client reads.
    pub(crate) fn fork(&mut self, node: NodeId, client: ClientId) -> ClientId {
        let child = ClientId(self.count());
        let held = self.reads.keys().filter(|(_, _, reader)| *reader == client);
        let held: Vec<Instance> = held.map(|(_, instance, _)| *instance).collect();
        self.reads.extend(held.into_iter().map(|instance| ((node, instance, child), 1)));
        child
    }

    /// Ends all reads of a client.
    pub(crate) fn end_reads(&mut self, client: ClientId) {
        self.reads.retain(|(_, _, reader), _| *reader != client);
    }

    /// The objects with an id.
    pub(crate) fn objects_of(&self, id: &ObjectId) -> impl Iterator<Item = &Object> {
        self.by_id.get(id).into_iter().flatten().map(|object| &self.objects[*object])
    }

    /// Possible contents of copies with an id.
    pub(crate) fn contents_of(&self, id: &ObjectId) -> BTreeSet<Content> {
        self.objects_of(id).flat_map(|object| object.contents.iter().cloned()).collect()
    }

    pub(crate) fn is_delete_requested(&self, id: &ObjectId) -> bool {
        self.objects_of(id).any(Object::may_be_gone)
    }

    /// Whether the content was put under an id, rather than folded.
    fn is_put(&self, id: &ObjectId, content: &Content) -> bool {
        let mut puts =
            self.objects_of(id).filter(|object| matches!(object.spec.make, Make::Put { .. }));
        puts.any(|put| put.contents.contains(content))
    }

    pub(crate) fn is_of_job(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|client| client.of_job_since.is_some())
    }

    /// The clients of the job that have not ended.
    pub(crate) fn clients_of_job(&self) -> Vec<ClientId> {
        let all = self.clients.iter().filter(|(_, client)| !client.is_gone);
        all.filter(|(_, client)| client.of_job_since.is_some()).map(|(id, _)| *id).collect()
    }

    /// Whether a client exists that had already joined the job at that time.
    pub(crate) fn has_client_of_job_since(&self, then: Instant) -> bool {
        let is_one = |client: &Client| {
            !client.is_gone && client.of_job_since.is_some_and(|since| since <= then)
        };
        self.clients.values().any(is_one)
    }

    pub(crate) fn is_gone(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|client| client.is_gone)
    }

    fn count(&mut self) -> u64 {
        self.counted += 1;
        self.counted
    }
}

/// The reply to a [`hoplite_proto::request::Request::Replicate`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaPromise {
    /// The node that maintains the replicas.
    pub(crate) node: NodeId,
    /// The number requested, and the number at nodes that were up.
    pub(crate) asked: usize,
    pub(crate) made: usize,
    /// Number of nodes that had ended by then.
    pub(crate) ended: usize,
}

//! Clients: they put, get, fold and delete what the plan says, and remember what each answer must be.

mod acts;
mod answers;
mod clients;

use std::collections::{BTreeMap, BTreeSet};

use hoplite_proto::{
    id::{ClientId, Instance, NodeId, ObjectId, RequestId},
    members::Member,
    message::Holding,
    time::Instant,
};

use crate::{
    payload::{Content, Tag},
    plan::{Act, Make, Spec},
};

/// All clients, their questions and the objects they know of.
#[derive(Debug)]
pub(crate) struct Users {
    pub(crate) objects: Vec<Object>,
    /// A name may be tried for more than one object.
    pub(crate) by_id: BTreeMap<ObjectId, Vec<usize>>,
    pub(crate) questions: BTreeMap<RequestId, Question>,
    clients: BTreeMap<ClientId, Client>,
    /// Who reads which slot, and how often.
    reads: BTreeMap<(NodeId, Instance, ClientId), u32>,
    /// What can be done once the id of an object is known.
    blocked: BTreeMap<usize, Vec<Act>>,
    /// Whether a node left or died: copies may be lost, and reduces with their callers.
    pub(crate) is_shrunk: bool,
    /// What a minted object was got with first.
    pub(crate) given: BTreeMap<ObjectId, Content>,
    /// Instances that were complete somewhere, and of what.
    pub(crate) completed: BTreeSet<Instance>,
    pub(crate) came: BTreeSet<ObjectId>,
    /// What is there when everything is at rest, and was put; and as which instance it was got then.
    pub(crate) must_exist: BTreeMap<ObjectId, Option<Instance>>,
    /// What clients were told is deleted, and how many had begun to make it then.
    pub(crate) deleted: BTreeMap<ObjectId, usize>,
    /// Gets that brought an object, and when the last of each node did.
    pub(crate) got: u64,
    pub(crate) got_by: BTreeMap<NodeId, Instant>,
    counted: u64,
}

/// An object of the plan and what became of it.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) spec: Spec,
    pub(crate) id: Option<ObjectId>,
    /// Where it is made.
    pub(crate) node: Option<NodeId>,
    pub(crate) is_delete_asked: bool,
    /// When a client was about to make it, whether that was of the job, and whether it may end by itself.
    pub(crate) made_at: Option<Instant>,
    pub(crate) is_of_job: bool,
    pub(crate) may_end: bool,
    /// It was not put after all.
    pub(crate) is_failed: bool,
    /// Its client was told that it was put.
    pub(crate) is_made: bool,
    /// Another object has its name.
    pub(crate) is_refused: bool,
    /// What its copies may hold.
    pub(crate) contents: BTreeSet<Content>,
    /// Whether all nodes knew each other when it was put.
    is_agreed: bool,
    /// Whether its node had joined the others when it was put.
    pub(crate) has_joined: bool,
    /// How many copies the node has told a client that there are.
    pub(crate) kept: Option<KeptCopies>,
}

impl Object {
    /// Whether a client has deleted it, or it may end by itself.
    pub(crate) const fn may_be_gone(&self) -> bool {
        self.is_delete_asked || self.may_end
    }
}

#[derive(Debug)]
struct Client {
    node: NodeId,
    is_gone: bool,
    /// Since when it is of the job.
    of_job_since: Option<Instant>,
}

/// What was asked, to judge the answer.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) node: NodeId,
    pub(crate) client: ClientId,
    pub(crate) purpose: Purpose,
    pub(crate) deadline: Option<Instant>,
    /// Cancelled, or its client is gone.
    pub(crate) is_void: bool,
    pub(crate) is_answered: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Purpose {
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
        hold_ns: u64,
    },
    Reduce {
        object: usize,
    },
    Inputs {
        object: usize,
    },
    Keep {
        object: usize,
        copies: u32,
    },
    /// `ended`: of what no client is making any more, and how many had begun to make it.
    Delete {
        ended: Vec<(ObjectId, usize)>,
    },
    /// `newest`: its number, none if there is no name; not known before everything is at rest.
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
    /// `must`: who is certainly named.
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

/// What a client does later.
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
    /// A process begins where another one died.
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
                is_delete_asked: false,
                made_at: None,
                is_of_job: false,
                may_end: false,
                is_failed: false,
                is_made: false,
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
            questions: BTreeMap::new(),
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

    /// A client that reads a slot.
    pub(crate) fn reader_of(&self, node: NodeId, instance: Instance) -> Option<ClientId> {
        let from = (node, instance, ClientId(0));
        let (found, _) = self.reads.range(from..).next()?;
        ((found.0, found.1) == (node, instance)).then_some(found.2)
    }

    /// The objects that go by an id.
    pub(crate) fn objects_of(&self, id: &ObjectId) -> impl Iterator<Item = &Object> {
        self.by_id.get(id).into_iter().flatten().map(|object| &self.objects[*object])
    }

    /// What copies of an id may hold.
    pub(crate) fn contents_of(&self, id: &ObjectId) -> BTreeSet<Content> {
        self.objects_of(id).flat_map(|object| object.contents.iter().cloned()).collect()
    }

    pub(crate) fn is_delete_asked(&self, id: &ObjectId) -> bool {
        self.objects_of(id).any(Object::may_be_gone)
    }

    /// Whether that was put under an id, and not folded.
    fn is_put(&self, id: &ObjectId, content: &Content) -> bool {
        let mut puts =
            self.objects_of(id).filter(|object| matches!(object.spec.make, Make::Put { .. }));
        puts.any(|put| put.contents.contains(content))
    }

    pub(crate) fn is_of_job(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|client| client.of_job_since.is_some())
    }

    /// The clients of the job that are not gone.
    pub(crate) fn clients_of_job(&self) -> Vec<ClientId> {
        let all = self.clients.iter().filter(|(_, client)| !client.is_gone);
        all.filter(|(_, client)| client.of_job_since.is_some()).map(|(id, _)| *id).collect()
    }

    /// Whether a client is there that was of the job then.
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

/// What the answer to a [`hoplite_proto::ask::Ask::Keep`] promised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptCopies {
    /// Who sees to it.
    pub(crate) node: NodeId,
    /// How many there were to be, and how many there were at nodes that lived.
    pub(crate) asked: usize,
    pub(crate) made: usize,
    /// Nodes that had ended by then.
    pub(crate) ended: usize,
}

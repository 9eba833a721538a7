//! Clients: they put, get, fold and delete what the plan says, and remember what each answer must be.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error,
    id::{ClientId, Instance, NodeId, ObjectId, RequestId},
    limits::INLINE_BYTES_MAX,
    members::Member,
    message::Holding,
    meta::Op,
    node::{Event, LEAVE_PATIENCE_NS},
    time::Instant,
};

use crate::{
    keeps::KeptCopies,
    payload::{Content, Piece, Tag},
    plan::{Act, Fate, MICROSECOND, Make, PUBLISHED, Spec},
    shell::blocks_of,
    world::{Happening, World},
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
    Delete,
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

impl World {
    /// A node to ask, and one of its clients.
    pub(crate) fn client_at(&mut self, at: u64) -> Option<(NodeId, ClientId)> {
        let nodes = self.staying();
        let node = *nodes.get(at as usize % nodes.len().max(1))?;
        Some((node, self.client_of(node)))
    }

    pub(crate) fn client_of(&mut self, node: NodeId) -> ClientId {
        let here = self.users.clients.iter();
        let here = here.filter(|(_, client)| client.node == node && !client.is_gone);
        let here: Vec<ClientId> = here.map(|(id, _)| *id).collect();
        if here.len() < 2 || self.dice.chance(5) {
            let id = ClientId(self.users.count());
            let of_job_since = self.join_perhaps(node, id);
            self.users.clients.insert(id, Client { node, is_gone: false, of_job_since });
            return id;
        }
        self.dice.pick(&here).unwrap_or(ClientId(0))
    }

    pub(crate) fn act(&mut self, act: Act) {
        match &act {
            Act::Make { object, at } => {
                let object = *object;
                match &self.users.objects[object].spec.make {
                    Make::Put { .. } => self.put(object, *at),
                    Make::Reduce { .. } => self.reduce(object, *at, &act),
                }
            }
            Act::Get { object, at, patience_ns, cancel_ns, hold_ns } => {
                let Some(id) = self.id_or_later(*object, &act) else { return };
                let Some((node, client)) = self.client_at(*at) else { return };
                let purpose = Purpose::Get { id: id.clone(), hold_ns: *hold_ns };
                let request = self.ask(node, client, Ask::Get { id }, purpose, *patience_ns);
                self.cancel_after(request, *cancel_ns);
            }
            Act::Follow { .. } | Act::Wait { .. } | Act::Locations { .. } | Act::Prune { .. } => {
                self.look(&act)
            }
            Act::Inputs { object } => {
                let Some(id) = self.id_or_later(*object, &act) else { return };
                let node = self.users.objects[*object].node;
                let nodes = self.staying();
                let Some(node) = node.filter(|node| nodes.contains(node)) else { return };
                let client = self.client_of(node);
                let purpose = Purpose::Inputs { object: *object };
                self.ask(node, client, Ask::Inputs { id }, purpose, None);
            }
            Act::Keep { object, copies } => self.keep(*object, *copies, &act),
            Act::Delete { object, at } => {
                let Some(id) = self.id_or_later(*object, &act) else { return };
                let Some((node, client)) = self.client_at(*at) else { return };
                self.delete(node, client, vec![id]);
            }
            Act::Latest { after, at, patience_ns } => {
                let Some((node, client)) = self.client_at(*at) else { return };
                let (prefix, after) = (PUBLISHED, *after);
                let ask = Ask::Latest { prefix: prefix.into(), after };
                let purpose = Purpose::Latest { prefix, after, newest: None };
                self.ask(node, client, ask, purpose, Some(*patience_ns));
            }
            Act::ClientDies { at } => {
                if let Some((_, client)) = self.client_at(*at) {
                    self.client_dies(client);
                }
            }
            Act::Join => self.add_host(None),
            Act::Leave { at } => self.leave(*at),
            Act::Fault { at, fault, time_ns } => self.go_wrong(*at, *fault, *time_ns),
            Act::Crash { at } => drop(self.crash(*at)),
            Act::Break { at } => self.break_off(*at),
            Act::Restart { at, pause_ns } => self.restart(*at, *pause_ns),
        }
    }

    /// Whether all nodes know each other: if the only one that two groups know goes before it has told them of each
    /// other, they are two clusters.
    pub(crate) fn all_have_met(&self) -> bool {
        let up = || self.hosts.values().filter(|host| host.is_up);
        up().all(|host| up().all(|other| host.node.members().contains(other.member.id)))
    }

    fn leave(&mut self, at: u64) {
        let nodes = self.staying();
        let can_leave = nodes.len() > 1 && self.all_have_met();
        let Some(node) = nodes.get(at as usize % nodes.len().max(1)).filter(|_| can_leave) else {
            return;
        };
        let node = *node;
        self.users.is_shrunk = true;
        if let Some(host) = self.hosts.get_mut(&node) {
            host.is_leaving = true;
        }
        self.tell(node, Event::LeaveAsked { patience_ns: LEAVE_PATIENCE_NS });
    }

    /// The id of an object; if it is not known, the act waits for it.
    pub(crate) fn id_or_later(&mut self, object: usize, act: &Act) -> Option<ObjectId> {
        let id = self.users.objects[object].id.clone();
        if id.is_none() {
            self.users.blocked.entry(object).or_default().push(act.clone());
        }
        id
    }

    fn object_known(&mut self, object: usize, id: ObjectId) {
        let known = self.users.by_id.entry(id.clone()).or_default();
        if !known.contains(&object) {
            known.push(object);
        }
        self.users.objects[object].id = Some(id);
        for act in self.users.blocked.remove(&object).unwrap_or_default() {
            let delay_ns = self.dice.below(100 * MICROSECOND);
            self.after(delay_ns, Happening::Act(act));
        }
    }

    pub(crate) fn ask(
        &mut self,
        node: NodeId,
        client: ClientId,
        ask: Ask,
        purpose: Purpose,
        patience_ns: Option<u64>,
    ) -> RequestId {
        let request = RequestId(self.users.count());
        let deadline = patience_ns.map(|patience| self.now + patience);
        let (is_void, is_answered) = (false, false);
        let question = Question { node, client, purpose, deadline, is_void, is_answered };
        self.users.questions.insert(request, question);
        self.tell(node, Event::Asked { client, request, ask, deadline });
        request
    }

    fn put(&mut self, object: usize, at: u64) {
        let Some((node, client)) = self.client_at(at) else { return };
        let tag = Tag(self.users.count());
        let is_agreed = self.all_have_met();
        let known = &mut self.users.objects[object];
        known.is_agreed = is_agreed;
        known.node = Some(node);
        known.contents.insert(Content::of(tag));
        let (id, meta) = (known.spec.name.clone().map(ObjectId::Named), known.spec.meta.clone());
        if meta.size <= INLINE_BYTES_MAX {
            let (bytes, ttl_ns) = (Content::of(tag).to_inline(), self.lives(object, client));
            let ask = Ask::Put { id, meta, bytes, ttl_ns };
            self.ask(node, client, ask, Purpose::Put { object, tag }, None);
        } else {
            let patience_ns = self.dice.chance(20).then_some(self.plan.end.0 / 4);
            let ask = Ask::Create { id, meta, ttl_ns: self.lives(object, client) };
            self.ask(node, client, ask, Purpose::Create { object, tag }, patience_ns);
        }
    }

    fn reduce(&mut self, object: usize, at: u64, act: &Act) {
        let Spec { name, make, .. } = self.users.objects[object].spec.clone();
        let Make::Reduce { inputs, count, patience_ns, cancel_ns } = make else { return };
        let mut ids = Vec::new();
        for input in inputs {
            let Some(id) = self.id_or_later(input, act) else { return };
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let Some((node, client)) = self.client_at(at) else { return };
        self.users.objects[object].node = Some(node);
        let count = count.min(ids.len()) as u32;
        let id = name.map(ObjectId::Named);
        let ttl_ns = self.lives(object, client);
        let ask = Ask::Reduce { inputs: ids, op: Op::Sum, count, id, ttl_ns };
        let request = self.ask(node, client, ask, Purpose::Reduce { object }, patience_ns);
        self.cancel_after(request, cancel_ns);
    }

    pub(crate) fn delete(&mut self, node: NodeId, client: ClientId, ids: Vec<ObjectId>) {
        for id in &ids {
            for object in self.users.by_id.get(id).cloned().unwrap_or_default() {
                self.users.objects[object].is_delete_asked = true;
            }
        }
        self.ask(node, client, Ask::Delete { ids }, Purpose::Delete, None);
    }

    pub(crate) fn client_dies(&mut self, client: ClientId) {
        let Some(dead) = self.users.clients.get_mut(&client).filter(|client| !client.is_gone)
        else {
            return;
        };
        dead.is_gone = true;
        let node = dead.node;
        self.users.reads.retain(|(_, _, reader), _| *reader != client);
        let (mut created, mut sealed) = (BTreeSet::new(), BTreeSet::new());
        for asked in self.users.questions.values().filter(|asked| asked.client == client) {
            match asked.purpose {
                Purpose::Create { object, .. } => created.insert(object),
                Purpose::Seal { object, .. } => sealed.insert(object),
                _ => false,
            };
        }
        for object in created.difference(&sealed) {
            self.users.objects[*object].is_failed = true;
        }
        for question in self.users.questions.values_mut() {
            question.is_void |= question.client == client;
        }
        self.tell(node, Event::ClientGone { client });
        let questions = self.users.questions.iter();
        let open = questions.filter(|(_, asked)| asked.client == client && !asked.is_answered);
        if let Some((request, _)) = open.into_iter().next().filter(|_| self.is_up(node)) {
            self.fail(format!("{request:?} of {client:?}, which is gone, was not answered"));
        }
    }

    /// A host is down; its clients wait for no answer any more.
    pub(crate) fn users_of_host_gone(&mut self, node: NodeId) {
        for client in self.users.clients.values_mut().filter(|client| client.node == node) {
            client.is_gone = true;
        }
        self.users.reads.retain(|(host, _, _), _| *host != node);
        for question in self.users.questions.values_mut().filter(|asked| asked.node == node) {
            question.is_void = true;
            question.is_answered = true;
        }
    }

    pub(crate) fn users_later(&mut self, later: Later) {
        match later {
            Later::Cancel { request } => self.cancel(request),
            Later::Begin { member } => self.add_host(Some(member)),
            Later::Release { node, client, instance } => {
                let Some(count) = self.users.reads.get_mut(&(node, instance, client)) else {
                    return;
                };
                *count -= 1;
                if *count == 0 {
                    self.users.reads.remove(&(node, instance, client));
                }
                let request = RequestId(self.users.count());
                // Every second object was copied by its readers.
                let ask = if instance.serial.is_multiple_of(2) {
                    Ask::Release { instance }
                } else {
                    Ask::ReleaseCopied { instance }
                };
                self.tell(node, Event::Asked { client, request, ask, deadline: None });
            }
            Later::Locations { node, client, id, known, changes } => {
                if self.users.is_gone(client) || !self.is_up(node) {
                    return;
                }
                let known = Some(known);
                let must = Vec::new();
                let ask = Ask::Locations { id: id.clone(), known: known.clone() };
                let purpose = Purpose::Locations { id, known, changes, must };
                self.ask(node, client, ask, purpose, None);
            }
        }
    }

    pub(crate) fn cancel(&mut self, request: RequestId) {
        let Some(question) = self.users.questions.get_mut(&request) else { return };
        if question.is_answered {
            return;
        }
        question.is_void = true;
        let node = question.node;
        self.tell(node, Event::Cancelled { request });
        let is_answered = self.users.questions.get(&request).is_some_and(|asked| asked.is_answered);
        if !is_answered && self.is_up(node) {
            self.fail(format!("{request:?} was cancelled and not answered"));
        }
    }

    pub(crate) fn write(&mut self, mut writer: Writer) {
        let Writer { object, node, client, instance, tag, next } = writer;
        if self.users.is_gone(client) || !self.is_up(node) {
            self.users.objects[object].is_failed = true;
            return;
        }
        let slot = self.hosts.get(&node).and_then(|host| host.slots.get(&instance)).copied();
        let Some(slot) = slot else {
            return self.fail(format!("{client:?} writes {instance} at {node:?}, which was freed"));
        };
        let Make::Put { fate, pace_ns } = self.users.objects[object].spec.make else { return };
        let end = blocks_of(self.shell.slots[slot].size);
        if next == end {
            let purpose = Purpose::Seal { object, instance };
            self.ask(node, client, Ask::Seal { instance }, purpose, None);
            return;
        }
        if fate != Fate::Sealed && next > end / 2 {
            self.users.objects[object].is_failed = true;
            if fate == Fate::Orphaned {
                return self.client_dies(client);
            }
            self.ask(node, client, Ask::Abort { instance }, Purpose::Abort, None);
            return;
        }
        self.write_slot(slot, Piece { index: next, content: Content::of(tag) });
        writer.next += 1;
        self.after(pace_ns + 5 * MICROSECOND, Happening::Write(writer));
    }

    pub(crate) fn answered(
        &mut self,
        node: NodeId,
        client: ClientId,
        request: RequestId,
        answer: Result<Answer, Error>,
    ) {
        let Some(question) = self.users.questions.get_mut(&request) else {
            return self.fail(format!("an answer to {request:?}, which no client asked"));
        };
        if question.is_answered {
            return self.fail(format!("{request:?} was answered twice: {answer:?}"));
        }
        if (question.node, question.client) != (node, client) {
            return self.fail(format!("{request:?} was answered to {client:?} at {node:?}"));
        }
        question.is_answered = true;
        let purpose = question.purpose.clone();
        match answer {
            Ok(answer) => self.succeeded(node, client, request, purpose, answer),
            Err(error) => self.failed(request, purpose, error),
        }
    }

    fn succeeded(
        &mut self,
        node: NodeId,
        client: ClientId,
        request: RequestId,
        purpose: Purpose,
        answer: Answer,
    ) {
        let is_its_game = self.is_of_its_game(&purpose);
        match (purpose, answer) {
            (Purpose::Put { object, .. }, Answer::Put { id }) => {
                self.users.objects[object].is_made = true;
                self.object_known(object, id);
            }
            (Purpose::Create { object, tag }, Answer::Created { id, instance }) => {
                self.object_known(object, id);
                self.shell.contents.insert(instance, Content::of(tag));
                let writer = Writer { object, node, client, instance, tag, next: 0 };
                self.after(10 * MICROSECOND, Happening::Write(writer));
            }
            (Purpose::Seal { object, instance }, Answer::Put { id }) => {
                self.users.objects[object].is_made = true;
                if self.users.objects[object].id.as_ref() != Some(&id) {
                    self.fail(format!("{instance} was sealed as {id}"));
                }
                let slot = self.hosts.get(&node).and_then(|host| host.slots.get(&instance));
                if let Some(slot) = slot.copied() {
                    self.shell.slots[slot].is_complete = true;
                }
            }
            (Purpose::Get { id: asked, hold_ns }, Answer::Got { id, instance, inline, meta }) => {
                if id != asked {
                    return self.fail(format!("{id} was got for {asked}"));
                }
                self.check_got(node, &id, &meta, instance, inline.as_ref());
                self.check_same(node, &id, instance);
                self.users.got += 1;
                self.users.got_by.insert(node, self.now);
                if inline.is_none() {
                    *self.users.reads.entry((node, instance, client)).or_default() += 1;
                    let release = Later::Release { node, client, instance };
                    self.after(hold_ns + MICROSECOND, Happening::Users(release));
                }
            }
            (Purpose::Reduce { object }, Answer::Reducing { id }) => self.object_known(object, id),
            (
                Purpose::Inputs { .. }
                | Purpose::Keep { .. }
                | Purpose::Latest { .. }
                | Purpose::Wait { .. }
                | Purpose::Follow { .. }
                | Purpose::Locations { .. },
                _,
            ) if is_its_game => {}
            (Purpose::Inputs { object }, Answer::Inputs { ids }) => self.check_inputs(object, &ids),
            (Purpose::Keep { object, copies }, Answer::Done) => {
                self.check_kept(node, object, copies);
            }
            (Purpose::Latest { prefix, after, newest }, Answer::Latest { name }) => {
                let is_newer = name.version().is_some_and(|v| after.is_none_or(|after| v > after));
                if !name.as_str().starts_with(prefix) || !is_newer {
                    self.fail(format!("{name:?} is no name under {prefix} newer than {after:?}"));
                }
                // The owner of a small object has it still when its putter is gone, and so there may be more names
                // than copies.
                let version = name.version();
                let is_outlived = self.users.is_shrunk
                    || self.users.is_delete_asked(&ObjectId::Named(name.clone()));
                let is_wrong = |newest| newest > version || newest != version && !is_outlived;
                if newest.is_some_and(is_wrong) {
                    self.fail(format!("{name:?} is the latest, but the newest is {newest:?}"));
                }
            }
            (Purpose::Wait { ids, count }, Answer::Waited { ready }) => {
                self.check_waited(request, &ids, count, &ready);
            }
            (Purpose::Follow { id }, Answer::Growing { meta, instance }) => {
                self.check_growing(node, &id, &meta, instance);
            }
            (Purpose::Locations { id, known, changes, must }, Answer::Locations(all)) => {
                self.check_locations(node, client, id, known, changes, &must, &all);
            }
            (
                Purpose::Delete
                | Purpose::Abort
                | Purpose::Join
                | Purpose::Prune
                | Purpose::Follow { .. },
                Answer::Done,
            ) => {}
            (purpose, answer) => self.fail(format!("{answer:?} is no answer to {purpose:?}")),
        }
    }

    fn failed(&mut self, request: RequestId, purpose: Purpose, error: Error) {
        if let Err(why) = self.check_error(request, &error) {
            self.fail(format!("{request:?} failed: {error}; {why}"));
        }
        // Another owner may have granted the name while the members did not agree.
        let is_agreed = !self.users.is_shrunk && self.all_have_met();
        let is_refused = matches!(error, Error::NameTaken { .. });
        let is_taken = is_refused && is_agreed;
        match purpose {
            Purpose::Put { object, tag } | Purpose::Create { object, tag } => {
                let known = &mut self.users.objects[object];
                known.is_failed = true;
                known.is_refused = is_refused;
                // After any other error it may have been there for a moment.
                if is_taken && known.is_agreed {
                    known.contents.remove(&Content::of(tag));
                }
            }
            Purpose::Seal { object, .. } | Purpose::Reduce { object } => {
                self.users.objects[object].is_failed = true;
                self.users.objects[object].is_refused =
                    matches!(error, Error::ObjectDeleted { .. });
            }
            _ => {}
        }
    }

    /// The first block of the result of a reduce was folded.
    pub(crate) fn result_made(&mut self, id: &ObjectId, content: &Content) {
        if self.users.is_put(id, content) {
            return;
        }
        self.check_result(id, content);
        for object in self.users.by_id.get(id).cloned().unwrap_or_default() {
            self.users.objects[object].contents.insert(content.clone());
        }
    }
}

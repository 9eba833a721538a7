//! Client programs that react to replies: closed loops written as `async` functions and polled by the virtual clock.
//!
//! Owns the requests of the programs and their replies. It depends neither on what a program computes nor on how a node
//! works. A program sends a request through its [`Client`]. The request reaches the node at once, and the program
//! continues [`REPLY_NS`] after the reply. Everything runs in one thread, in the order of the programs.

mod run;

use std::{
    cell::RefCell, collections::BTreeMap, fmt, future::poll_fn, pin::Pin, rc::Rc, task::Poll,
};

use hoplite_proto::{
    error::Error,
    id::{ClientId, Instance, Name, NodeId, ObjectId, RequestId},
    limits::INLINE_BYTES_MAX,
    meta::{Meta, Op},
    request::{Reply, Request},
    time::Instant,
};

use crate::{
    payload::{Content, Tag},
    plan::{Fault, MICROSECOND},
};

/// Delay between a reply and the program that waits for it.
const REPLY_NS: u64 = 20 * MICROSECOND;

/// Requests of programs have numbers above this; requests of planned clients stay below.
const FIRST_REQUEST: u64 = 1 << 40;

type Program = Pin<Box<dyn Future<Output = ()>>>;

/// All programs of a world.
#[derive(Default)]
pub(crate) struct Programs {
    running: Vec<Program>,
    shared: Rc<RefCell<Shared>>,
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} programs", self.running.len())
    }
}

#[derive(Debug, Default)]
struct Shared {
    now: Instant,
    issued: u64,
    orders: Vec<ProgramOrder>,
    replies: BTreeMap<RequestId, ProgramReply>,
    /// The report of the first program that found an error.
    failure: Option<String>,
}

/// A reply, and the content of its copy, if that is a large one.
#[derive(Debug)]
struct ProgramReply {
    answer: Result<Reply, Error>,
    content: Option<Content>,
}

/// An action that a program requests from the world.
#[derive(Debug)]
enum ProgramOrder {
    Ask { node: NodeId, client: ClientId, request: RequestId, body: Request },
    Fill { node: NodeId, instance: Instance, tag: Tag },
    Wake { request: RequestId, after_ns: u64 },
    Disturb { at: u64, fault: Fault, time_ns: u64 },
}

/// A client of one node, for one program.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    node: NodeId,
    client: ClientId,
    shared: Rc<RefCell<Shared>>,
}

/// An object that a program reads.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The copy, if the reply did not have the bytes.
    instance: Option<Instance>,
    content: Option<Content>,
}

impl Reading {
    /// The tags of the puts that the copy sums.
    pub(crate) fn tags(&self) -> &[Tag] {
        self.content.as_ref().map_or(&[], Content::tags)
    }
}

impl Client {
    pub(crate) fn now(&self) -> Instant {
        self.shared.borrow().now
    }

    /// Reports an error and ends the simulation.
    pub(crate) fn fail(&self, what: String) {
        self.shared.borrow_mut().failure.get_or_insert(what);
    }

    /// Returns the next version of a prefix that is newer than `after`.
    pub(crate) async fn latest(&self, prefix: &str, after: Option<u64>) -> Result<u64, Error> {
        match self.ask(Request::Latest { prefix: prefix.into(), after }).await? {
            Reply::Latest { name } => Ok(name.version().unwrap_or_default()),
            other => Ok(self.unexpected(&other).unwrap_or_default()),
        }
    }

    pub(crate) async fn get(&self, id: &ObjectId) -> Result<Reading, Error> {
        let request = self.post(Request::Get { id: id.clone() });
        let ProgramReply { answer, content } = self.reply(request).await;
        match answer? {
            Reply::Got { inline: Some(bytes), .. } => {
                Ok(Reading { instance: None, content: Some(Content::from_inline(&bytes)) })
            }
            Reply::Got { instance, .. } => Ok(Reading { instance: Some(instance), content }),
            other => Ok(Reading { instance: self.unexpected(&other), content: None }),
        }
    }

    /// Releases a copy that the program has read.
    pub(crate) fn release(&self, reading: &Reading) {
        if let Some(instance) = reading.instance {
            self.post(Request::Release { instance });
        }
    }

    /// Creates an object, fills it at once and seals it.
    pub(crate) async fn put(
        &self,
        id: Option<ObjectId>,
        meta: Meta,
        tag: Tag,
    ) -> Result<ObjectId, Error> {
        let made = if meta.size <= INLINE_BYTES_MAX {
            let bytes = Content::of(tag).to_inline();
            self.ask(Request::Put { id, meta, bytes, ttl_ns: None }).await?
        } else {
            let Reply::Created { instance, .. } =
                self.ask(Request::Create { id, meta, ttl_ns: None }).await?
            else {
                return Ok(NO_OBJECT);
            };
            let fill = ProgramOrder::Fill { node: self.node, instance, tag };
            self.shared.borrow_mut().orders.push(fill);
            self.ask(Request::Seal { instance }).await?
        };
        match made {
            Reply::Put { id } => Ok(id),
            other => Ok(self.unexpected(&other).unwrap_or(NO_OBJECT)),
        }
    }

    /// Waits until an object is complete somewhere.
    pub(crate) async fn wait(&self, id: ObjectId) -> Result<(), Error> {
        let body = Request::Wait { ids: vec![id], count: 1 };
        self.ask(body).await.map(drop)
    }

    /// Reserves a name for an object that this client puts later.
    pub(crate) async fn reserve(&self, name: Name) -> Result<ObjectId, Error> {
        match self.ask(Request::Reserve { name: Some(name) }).await? {
            Reply::Reserved { id } => Ok(id),
            other => Ok(self.unexpected(&other).unwrap_or(NO_OBJECT)),
        }
    }

    /// Sums the first `count` of `inputs` into `id`, or a generated id.
    pub(crate) async fn sum(
        &self,
        inputs: Vec<ObjectId>,
        count: u32,
        id: Option<ObjectId>,
    ) -> Result<ObjectId, Error> {
        let body = Request::Reduce { inputs, op: Op::Sum, count, id, ttl_ns: None };
        match self.ask(body).await? {
            Reply::Reducing { id } => Ok(id),
            other => Ok(self.unexpected(&other).unwrap_or(NO_OBJECT)),
        }
    }

    pub(crate) async fn inputs(&self, id: &ObjectId) -> Result<Vec<ObjectId>, Error> {
        match self.ask(Request::Inputs { id: id.clone() }).await? {
            Reply::Inputs { ids } => Ok(ids),
            other => Ok(self.unexpected(&other).unwrap_or_default()),
        }
    }

    /// Deletes all versions up to this one except the newest `keep`.
    pub(crate) async fn prune(&self, id: &ObjectId, keep: u64) -> Result<(), Error> {
        let ObjectId::Named(name) = id else { return Ok(()) };
        self.ask(Request::Prune { name: name.clone(), retain: keep }).await.map(drop)
    }

    pub(crate) async fn delete(&self, ids: Vec<ObjectId>) -> Result<(), Error> {
        self.ask(Request::Delete { ids }).await.map(drop)
    }

    /// Simulates computation for a while.
    pub(crate) async fn sleep(&self, after_ns: u64) {
        let request = self.next_request();
        self.shared.borrow_mut().orders.push(ProgramOrder::Wake { request, after_ns });
        drop(self.reply(request).await);
    }

    /// Injects a fault at a host for a while.
    pub(crate) fn disturb(&self, at: u64, fault: Fault, time_ns: u64) {
        self.shared.borrow_mut().orders.push(ProgramOrder::Disturb { at, fault, time_ns });
    }

    fn unexpected<T>(&self, answer: &Reply) -> Option<T> {
        self.fail(format!("{answer:?} is not a reply to this request"));
        None
    }

    fn next_request(&self) -> RequestId {
        let mut shared = self.shared.borrow_mut();
        shared.issued += 1;
        RequestId(FIRST_REQUEST + shared.issued)
    }

    fn post(&self, body: Request) -> RequestId {
        let request = self.next_request();
        let (node, client) = (self.node, self.client);
        self.shared.borrow_mut().orders.push(ProgramOrder::Ask { node, client, request, body });
        request
    }

    async fn ask(&self, body: Request) -> Result<Reply, Error> {
        let request = self.post(body);
        self.reply(request).await.answer
    }

    async fn reply(&self, request: RequestId) -> ProgramReply {
        poll_fn(|_| match self.shared.borrow_mut().replies.remove(&request) {
            Some(reply) => Poll::Ready(reply),
            None => Poll::Pending,
        })
        .await
    }
}

const NO_OBJECT: ObjectId = ObjectId::Minted { node: NodeId(0), serial: 0 };

impl Programs {
    /// Creates a client for the next program, identified by `number`.
    pub(crate) fn client(&self, node: NodeId, number: u64) -> Client {
        Client { node, client: ClientId(number), shared: self.shared.clone() }
    }

    pub(crate) fn add(&mut self, program: impl Future<Output = ()> + 'static) {
        self.running.push(Box::pin(program));
    }

    /// Takes the reply to a request of a program. Returns it if the request is not from a program.
    pub(crate) fn take(
        &self,
        request: RequestId,
        answer: Result<Reply, Error>,
        content: impl FnOnce(Instance) -> Option<Content>,
    ) -> Option<Result<Reply, Error>> {
        if request.0 <= FIRST_REQUEST {
            return Some(answer);
        }
        let content = match answer {
            Ok(Reply::Got { instance, .. }) => content(instance),
            _ => None,
        };
        self.shared.borrow_mut().replies.insert(request, ProgramReply { answer, content });
        None
    }
}

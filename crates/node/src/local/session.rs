//! The node's side of one attached process: its requests, replies and memory. Knows neither users
//! nor the listening socket.

mod replies;

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Arc, Mutex, OnceLock, Weak},
    time::Instant,
};

use hoplite_proto::{error::Error as CallError, id::ClientId, request::Request};
use hoplite_shm::{ExtentId, ShmError, WriterId};
use tokio::{net::UnixStream, sync::Notify};

use super::{
    limits,
    open_requests::{self, OpenRequests, OverLimit, Places},
    programs::{Attachment, Programs, Sink},
    protocol::{FRAME_BYTES_MAX, FromNode, LOCAL_VERSION, ToNode, frame},
    quota::{Quota, QuotaHolder, QuotaPermit},
    reply_writer::{Descriptor, ReplyWriter},
    request_reader::{RequestReader, process_number},
    restricted::{PrivateCopy, Restricted},
};
use crate::{
    engine::event_sender::Source, limited::LimitKey, repeats::log_once, store::StoredCopy,
    sync::lock,
};

/// An attached process.
pub(super) struct Session {
    programs: Arc<Programs>,
    client: ClientId,
    /// Its process id, if the kernel reports it.
    process: Option<u32>,
    replies: Arc<ReplyWriter>,
    /// Set by the greeting of a process with a capability.
    restricted: OnceLock<Restricted>,
    /// Extents whose descriptors the process has.
    sent_extents: Mutex<HashSet<ExtentId>>,
    /// Extents that the process must unmap.
    retired_extents: Mutex<HashSet<ExtentId>>,
    /// Its open requests.
    open_requests: Mutex<OpenRequests>,
    /// Copies that it follows while they arrive, by its request. Their memory is not reused
    /// meanwhile, even if the copy is removed.
    growing: Mutex<HashMap<u64, Arc<StoredCopy>>>,
    /// Its identity for shared limits.
    quota_holder: QuotaHolder,
    /// Notified when the node ends the connection.
    ended: Notify,
    /// The reason, if the process broke the protocol.
    fault: Mutex<Option<String>>,
}

impl Session {
    /// Starts a session. The caller must run a task that writes the returned queue.
    pub(super) fn begin(
        programs: Arc<Programs>,
        stream: Arc<UnixStream>,
    ) -> (Arc<Self>, Arc<ReplyWriter>) {
        let client = programs.next_client();
        let (process, quota_holder) = (process_number(&stream), QuotaHolder::of(&stream));
        let unread = programs.unread_bytes.none(&quota_holder);
        let replies = Arc::new(ReplyWriter::new(stream, unread));
        let share = programs.request_bytes.none(&quota_holder);
        let session = Arc::new(Self {
            programs: programs.clone(),
            client,
            process,
            replies: replies.clone(),
            restricted: OnceLock::new(),
            sent_extents: Mutex::default(),
            retired_extents: Mutex::default(),
            open_requests: Mutex::new(OpenRequests::new(share)),
            growing: Mutex::default(),
            quota_holder,
            ended: Notify::new(),
            fault: Mutex::default(),
        });
        let of_programs: Weak<Self> = Arc::downgrade(&session);
        programs.attach(client, of_programs);
        (session, replies)
    }

    /// Its client id at the node.
    pub(super) const fn client(&self) -> ClientId {
        self.client
    }

    /// Its process id, if the kernel reports it.
    pub(super) const fn process(&self) -> Option<u32> {
        self.process
    }

    /// Its writer id for shared memory.
    const fn writer(&self) -> WriterId {
        WriterId(self.client.0)
    }

    /// Whether it received any memory.
    pub(super) fn has_memory(&self) -> bool {
        !lock(&self.sent_extents).is_empty() || !self.copies().is_empty()
    }

    /// The copies made for it. They are taken back when all references are dropped.
    pub(super) fn copies(&self) -> Vec<Arc<PrivateCopy>> {
        self.restricted.get().map(Restricted::copies).unwrap_or_default()
    }

    /// The parties against whose shares its usage counts.
    fn takers(&self) -> Vec<QuotaHolder> {
        let tenant = self.restricted.get().map(Restricted::tenant);
        [self.quota_holder.clone()].into_iter().chain(tenant).collect()
    }

    /// Records that a limit of the node rejected one of its requests.
    fn limit_reached(&self, limit: &'static str) {
        self.programs.network.limited.note(LimitKey::Process(self.process), limit);
    }

    /// Serves the process until it or the node closes the connection. Reports protocol errors to
    /// it.
    pub(super) async fn attend(
        self: &Arc<Self>,
        stream: &UnixStream,
        permit: &mut QuotaPermit,
    ) -> io::Result<()> {
        let result = tokio::select! {
            result = self.read(stream, permit) => result,
            () = self.ended.notified() => match lock(&self.fault).take() {
                Some(said) => Err(io::Error::other(said)),
                None => Ok(()),
            },
        };
        if let Err(error) = &result {
            self.send(FromNode::Refused { said: error.to_string() }, None);
        }
        result
    }

    async fn read(
        self: &Arc<Self>,
        stream: &UnixStream,
        permit: &mut QuotaPermit,
    ) -> io::Result<()> {
        let mut arriving = RequestReader::default();
        let Some((version, capability)) = self.greeting(&mut arriving, stream).await? else {
            // A check whether the node is alive.
            return Ok(());
        };
        if let Some(refusal) = self.refusal(version, capability.as_deref(), permit) {
            self.send(refusal, None);
            return Ok(());
        }
        let identity = &self.programs.network.identity;
        let (member, is_authenticated) = (identity.member, identity.is_authenticated());
        self.send(FromNode::Welcome { member, is_authenticated }, None);
        let mut begun = Instant::now();
        while let Some((message, bytes)) = arriving.next(stream).await? {
            self.programs.events.until_uncongested(Source::Programs).await;
            self.take(message, bytes)?;
            // The thread that serves it serves other processes too.
            if begun.elapsed() >= limits::TURN_MAX {
                tokio::task::yield_now().await;
                begun = Instant::now();
            }
        }
        Ok(())
    }

    /// Reads the greeting of the process: its version of the protocol, and its capability. None if
    /// it sends nothing.
    async fn greeting(
        &self,
        arriving: &mut RequestReader,
        stream: &UnixStream,
    ) -> io::Result<Option<(u32, Option<String>)>> {
        let greeting = tokio::time::timeout(limits::GREETING_MAX, arriving.next(stream)).await;
        let Ok(greeting) = greeting else {
            self.limit_reached("GREETING_MAX");
            let seconds = limits::GREETING_MAX.as_secs();
            let said = format!("the process sent no greeting for {seconds} s");
            return Err(io::Error::new(io::ErrorKind::TimedOut, said));
        };
        match greeting? {
            None => Ok(None),
            Some((ToNode::Hello { version }, _)) => Ok(Some((version, None))),
            Some((ToNode::HelloRestricted { version, capability }, _)) => {
                Ok(Some((version, Some(capability))))
            }
            Some(_) => {
                let said = "the first message must be a greeting";
                Err(io::Error::new(io::ErrorKind::InvalidData, said))
            }
        }
    }

    /// Admits the process, or returns the refusal.
    fn refusal(
        &self,
        version: u32,
        capability: Option<&str>,
        permit: &mut QuotaPermit,
    ) -> Option<FromNode> {
        if version != LOCAL_VERSION {
            let said = format!(
                "this node uses version {LOCAL_VERSION} of the local protocol, but this process \
                 uses {version}: install the same release of Hoplite for both"
            );
            return Some(FromNode::Refused { said });
        }
        let restricted = match Restricted::admit(&self.programs, capability) {
            Ok(restricted) => restricted?,
            Err(said) => {
                log_once!(info, "capability", %said, "refused a process");
                return Some(FromNode::NotAllowed { said });
            }
        };
        if let Err(excess) = permit.also(restricted.tenant()) {
            self.limit_reached("ATTACHED_MAX");
            let said = limits::no_place(excess);
            return Some(FromNode::Refused { said });
        }
        lock(&self.open_requests).also(restricted.tenant());
        self.replies.also(restricted.tenant());
        drop(self.restricted.set(restricted));
        None
    }

    /// Handles a message, whose frame has `bytes` bytes.
    fn take(self: &Arc<Self>, message: ToNode, bytes: usize) -> io::Result<()> {
        match message {
            ToNode::Hello { .. } | ToNode::HelloRestricted { .. } => {}
            ToNode::PinForFork => self.hold()?,
            ToNode::StopFollowing { request } => drop(lock(&self.growing).remove(&request)),
            // A release has no reply, even if sent as a request.
            ToNode::Request {
                body: body @ (Request::Release { .. } | Request::ReleaseCopied { .. }),
                ..
            } => self.end(body),
            ToNode::Request { request, body, timeout_ns } => {
                match self.begin_request(request, bytes, body)? {
                    Ok((body, places)) => self.ask(request, body, timeout_ns, places),
                    Err(error) => self.send_reply(request, Err(error), None, None),
                }
            }
            ToNode::Cancel { request } => {
                let ours = lock(&self.open_requests).ours(request);
                if let Some(ours) = ours {
                    self.programs.cancel(self.client, ours);
                }
            }
            ToNode::Notify { body } => {
                let has_no_answer = matches!(
                    body,
                    Request::Release { .. }
                        | Request::ReleaseCopied { .. }
                        | Request::Abort { .. }
                        | Request::CancelReservations
                );
                if has_no_answer {
                    self.end(body);
                }
            }
            ToNode::Advanced { instance } => self.programs.advanced(instance),
            ToNode::Mapped { extent } => {
                match self.programs.store.arena.seal(ExtentId(extent), self.writer()) {
                    // The object was aborted and its extent freed meanwhile.
                    Ok(()) | Err(ShmError::UnknownExtent { .. }) => {}
                    Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                }
            }
            ToNode::Unmapped { extent } => {
                if let Some(restricted) = self.restricted.get() {
                    restricted.unmapped(extent);
                }
                let extent = ExtentId(extent);
                lock(&self.sent_extents).remove(&extent);
                if lock(&self.retired_extents).remove(&extent) {
                    self.programs.retired_extents.unmapped(extent);
                }
            }
        }
        Ok(())
    }

    /// Registers a request of `bytes` bytes. Returns the request for the node, or the error of the
    /// reply.
    fn begin_request(
        &self,
        request: u64,
        bytes: usize,
        body: Request,
    ) -> io::Result<Result<(Request, Places), CallError>> {
        if let Err(excess) =
            lock(&self.open_requests).begin(request, open_requests::cost(&body, bytes))?
        {
            return Ok(Err(self.refuse(excess)));
        }
        // The only place that enforces the capability of a process.
        let authorized = match self.restricted.get() {
            None => Ok(body),
            Some(restricted) => restricted.authorize(body),
        };
        let admitted = authorized.and_then(|body| {
            let places = self.places(&body, bytes).map_err(|excess| self.refuse(excess))?;
            Ok((body, places))
        });
        Ok(admitted)
    }

    /// Counts a request beyond a limit, and returns its error.
    fn refuse(&self, OverLimit { limit, error }: OverLimit) -> CallError {
        self.limit_reached(limit);
        error
    }

    /// Takes the places that a request of `bytes` bytes needs besides these.
    fn places(&self, body: &Request, bytes: usize) -> Result<Places, OverLimit> {
        let take = |of: &Quota, amount| of.take(&self.takers(), amount);
        let listing = || {
            take(&self.programs.listings, 1)
                .map_err(|excess| OverLimit::of("LISTINGS_MAX", "open pages of listings", excess))
        };
        let mut places = Places { parts: 1, ..Places::default() };
        if let Some((parts, each)) = open_requests::kept_cost(body, bytes) {
            let share = take(&self.programs.request_bytes, parts * each);
            places.until_end = Some(share.map_err(OverLimit::of_bytes)?);
            places.parts = parts;
        }
        match body {
            Request::List { .. } | Request::Objects { .. } | Request::Status => {
                places.until_reply = Some(listing()?);
            }
            Request::Inspect { .. } => {
                let place = take(&self.programs.inspections, 1);
                places.until_reply = Some(place.map_err(|excess| {
                    OverLimit::of("INSPECTIONS_MAX", "open inspections", excess)
                })?);
            }
            // Beyond the limit, it may take a name that exists, but not wait for one.
            Request::Latest { .. } => match take(&self.programs.latest, 1) {
                Ok(place) => places.until_reply = Some(place),
                Err(excess) => {
                    places.until_reply = Some(listing()?);
                    places.may_not_wait =
                        Some(OverLimit::of("LATEST_MAX", "calls of latest that wait", excess));
                }
            },
            Request::Reduce { inputs, .. } => {
                let cost = open_requests::reduce_cost(inputs.len(), bytes);
                let share = take(&self.programs.request_bytes, cost);
                places.until_end = Some(share.map_err(OverLimit::of_bytes)?);
            }
            _ => {}
        }
        Ok(places)
    }

    /// Forwards a request without a reply, and ends what the process itself has open.
    fn end(&self, body: Request) {
        if let Some(restricted) = self.restricted.get()
            && let Request::Release { instance } | Request::ReleaseCopied { instance } = &body
            && let Some(extent) = restricted.released(*instance)
        {
            self.send(FromNode::Unmap { extents: vec![extent] }, None);
        }
        self.programs.notify(self.client, body);
    }

    /// Pins everything that the process reads, for a fork.
    fn hold(&self) -> io::Result<()> {
        // A process without a capability, such as one with many data loaders, may use all places.
        let takers = if self.restricted.get().is_some() { self.takers() } else { Vec::new() };
        let share = self.programs.holds.take(&takers, 1).map_err(|excess| {
            self.limit_reached("FORK_PINS_MAX");
            let remedy = "end some forks, or raise ulimit -n of the node";
            io::Error::other(excess.explain("FORK_PINS_MAX", "forks with views", remedy))
        })?;
        let lifeline = self.programs.hold(self.client, (share, self.copies()))?;
        self.send(FromNode::Lifeline, Some(Arc::new(lifeline)));
        Ok(())
    }

    fn ask(
        self: &Arc<Self>,
        request: u64,
        mut body: Request,
        timeout_ns: Option<u64>,
        places: Places,
    ) {
        if let Request::ExplainRequest { request: explained } = &mut body {
            // The node has numbers of its own. A request without one has its reply already.
            *explained = lock(&self.open_requests).ours(explained.0).unwrap_or_default();
        }
        if let Request::Seal { instance } = body
            && let Some(stored) = self.programs.store.get(instance)
        {
            let is_filled = stored.is_complete();
            // The writer has mapped the memory or never will: from now on others may read it.
            let sealed = self.programs.store.arena.seal(stored.shared().extent(), self.writer());
            if !is_filled || sealed.is_err() {
                let said = match sealed {
                    Err(error) => format!("instance {instance} can't be sealed: {error}"),
                    Ok(()) => {
                        format!("instance {instance} was sealed before all bytes were written")
                    }
                };
                return self.send_reply(request, Err(CallError::InvalidArgument(said)), None, None);
            }
            // The state machine is about to count on it.
            stored.shared().record_complete();
            stored.grew();
        }
        let session = self.clone();
        let Places { until_reply, until_end, parts, may_not_wait } = places;
        let timeout_ns = if may_not_wait.is_some() { Some(0) } else { timeout_ns };
        let deadline = timeout_ns.map(|timeout_ns| self.programs.events.now() + timeout_ns);
        let sink: Sink = Box::new(move |reply| {
            drop(until_reply);
            let reply = match (reply, may_not_wait) {
                (Err(CallError::Timeout { .. }), Some(excess)) => Err(session.refuse(excess)),
                (reply, _) => reply,
            };
            session.answer(request, reply);
        });
        let held = until_end.map(|share| open_requests::hold(share, parts));
        let ours = self.programs.submit(self.client, body, deadline, false, held, sink);
        lock(&self.open_requests).set_number(request, ours);
    }

    fn send(&self, mut message: FromNode, descriptor: Option<Descriptor>) {
        let mut bytes = frame(&message);
        if let FromNode::Reply { request, .. } = message
            && bytes.len() > FRAME_BYTES_MAX
        {
            let said = format!(
                "the reply of {} bytes exceeds the limit of {FRAME_BYTES_MAX}",
                bytes.len()
            );
            let reply = Err(CallError::InvalidArgument(said));
            message = FromNode::Reply { request, reply, region: None };
            bytes = frame(&message);
        }
        if let Err(unread) = self.replies.send(message, bytes, descriptor) {
            let (limit, said) = unread.describe();
            self.limit_reached(limit);
            self.replies.cut(frame(&FromNode::Refused { said: said.clone() }));
            *lock(&self.fault) = Some(said);
            self.ended.notify_one();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Close the connection even if a panic ended the task that serves it.
        self.replies.close();
        for extent in lock(&self.retired_extents).drain() {
            self.programs.retired_extents.unmapped(extent);
        }
    }
}

impl Attachment for Session {
    fn forget(&self, gone: &[ExtentId]) {
        let mut sent = lock(&self.sent_extents);
        let its: Vec<ExtentId> = gone.iter().copied().filter(|it| sent.remove(it)).collect();
        drop(sent);
        if its.is_empty() {
            return;
        }
        its.iter().for_each(|extent| self.programs.retired_extents.mapped(*extent));
        lock(&self.retired_extents).extend(&its);
        let extents = its.iter().map(|extent| extent.0).collect();
        self.send(FromNode::Unmap { extents }, None);
    }

    fn end(&self, reason: &str) {
        self.send(FromNode::Down { said: reason.into() }, None);
        self.ended.notify_one();
    }

    fn process(&self) -> Option<u32> {
        self.process
    }
}

#[cfg(test)]
mod tests;

//! The state machine of a node: every decision it takes, and nothing it does.
//!
//! [`Node::handle`] takes a fact and appends orders; [`Node::deadline`] says when to hand it
//! [`Event::DeadlinePassed`]. The files follow the journey of an object: [`promise`], [`put`], [`keep`], [`get`], [`serve`],
//! [`reduce`], then [`delete`], [`wait`], [`membership`] and [`leave`]; [`question`] has what clients wait for meanwhile. The directory
//! that this node owns a part of is [`crate::directory`].

mod adopt;
mod corrupt;
mod delete;
mod event;
mod get;
mod keep;
mod leave;
mod list;
mod membership;
mod names;
mod pace;
mod promise;
mod put;
mod question;
mod reduce;
mod reserve;
mod scatter;
mod serve;
mod starve;
mod status;
#[cfg(test)]
mod tests;
mod wait;
mod watch;

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    format,
    vec::Vec,
};

use self::{
    adopt::{Adoption, KeptFor},
    get::Pull,
    keep::Kept,
    leave::Leaving,
    membership::Loss,
    pace::Slow,
    put::Create,
    question::{Asked, Pending, Waiting},
    reduce::Fold,
    reserve::Reservation,
    scatter::Parts,
    watch::Due,
};
pub use self::{
    event::{Action, Config, Event, FOLD_WAITED_NS, GROWTH_NS, Note},
    leave::LEAVE_PATIENCE_NS,
};
use crate::{
    absent::Absentees,
    ask::{Answer, Ask},
    directory::Directory,
    error::Error,
    id::{ClientId, Instance, NodeId, ObjectId, ReduceId, RequestId, ServeId},
    inline::Inline,
    members::{Member, Members},
    message::{Announce, FoldKey, Message, Progress},
    planted::{self, Bug},
    reduce::Reduce,
    swim::Swim,
    table::{State, Table},
    time::Instant,
};

/// One node of the cluster.
#[derive(Debug)]
pub struct Node {
    me: Member,
    members: Members,
    swim: Swim,
    absentees: Absentees,
    config: Config,
    /// When the event at hand was handed over.
    now: Instant,
    directory: Directory,
    table: Table,
    next_serial: u64,
    requests: BTreeMap<RequestId, Pending>,
    deadlines: BTreeSet<(Instant, RequestId)>,
    /// Gets of objects that are not complete here, in order of asking.
    waiting: BTreeMap<ObjectId, Vec<RequestId>>,
    pulls: BTreeMap<ObjectId, Pull>,
    /// Bytes per second that this node receives when its senders are well, once that was measured.
    usual_rate: Option<u64>,
    /// That this node receives slowly, as an owner has told it.
    slow: Option<Slow>,
    creates: BTreeMap<Instance, Create>,
    /// Ids of objects that clients have said they will make.
    promises: BTreeMap<ObjectId, ClientId>,
    /// Those that wait for room, in order of asking.
    space: VecDeque<SpaceFor>,
    /// Copies that clients read, and how often each.
    reads: BTreeMap<ClientId, BTreeMap<Instance, u32>>,
    serves: BTreeMap<ServeId, Instance>,
    reduces: BTreeMap<ReduceId, Reduce>,
    reduce_of: BTreeMap<ObjectId, ReduceId>,
    /// Which reduces listen to an input.
    watches: BTreeMap<ObjectId, BTreeSet<ReduceId>>,
    /// Inputs, and objects that clients wait for, of which no owner has spoken.
    unanswered: Due,
    /// Inputs that are lost, or at nodes which are no members.
    missed: Due,
    /// Questions of clients that listen to an object.
    awaited: BTreeMap<ObjectId, BTreeSet<RequestId>>,
    /// Who wants to read an object while it arrives.
    followers: BTreeMap<ObjectId, Vec<RequestId>>,
    /// Names that are kept for the results of reduces, by the reduce.
    reservations: BTreeMap<ReduceId, Reservation>,
    /// Results of reduces that have no room yet, or are being folded.
    results: BTreeMap<Instance, reduce::Target>,
    /// Small results that have no room yet, and of which attempt.
    small_results: BTreeMap<ReduceId, (u32, Inline)>,
    /// What went into results that are held here.
    folded: BTreeMap<ObjectId, reduce::Folded>,
    /// The inputs that were lost of reduces that failed, the last one last.
    failed: VecDeque<(ObjectId, Vec<ObjectId>)>,
    folds: BTreeMap<FoldKey, Fold>,
    /// Results that grow here by parts.
    scatters: BTreeMap<Instance, Parts>,
    /// The newest serial of an order of each coordinator.
    scattered: BTreeMap<NodeId, u64>,
    /// Originals that this node is to keep for another one.
    adoptions: BTreeMap<ObjectId, Adoption>,
    /// How many blocks a member has sent that differ from their checksums.
    corrupt: BTreeMap<NodeId, u32>,
    /// Originals that this node keeps for another one that has them, too.
    kept_for: BTreeMap<Instance, KeptFor>,
    /// Originals that other nodes keep too.
    keeping: Kept,
    /// How many bytes of those each other node keeps, or was asked to.
    keepers: BTreeMap<NodeId, u64>,
    /// When the first of those is asked again that had no room.
    next_keeping: Option<Instant>,
    leaving: Option<Leaving>,
    /// Members that leave, and wait to hear that no reduce of this node needs them.
    unseating: BTreeSet<NodeId>,
    /// Messages to this node itself, handled before `handle` returns.
    loopback: VecDeque<Message>,
}

/// Who waits for room.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SpaceFor {
    Create(Instance),
    Pull(ObjectId),
    Result(Instance),
    SmallResult(ReduceId),
}

impl Node {
    /// A node alone in its cluster.
    pub fn new(me: Member, config: Config) -> Self {
        Self {
            me,
            members: Members::new(me),
            swim: Swim::new(me.id, config.detection_ns),
            absentees: Absentees::default(),
            config,
            now: Instant::default(),
            directory: Directory::new(config.detection_ns),
            table: Table::new(config.capacity),
            next_serial: 0,
            requests: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            waiting: BTreeMap::new(),
            pulls: BTreeMap::new(),
            usual_rate: None,
            slow: None,
            creates: BTreeMap::new(),
            promises: BTreeMap::new(),
            space: VecDeque::new(),
            reads: BTreeMap::new(),
            serves: BTreeMap::new(),
            reduces: BTreeMap::new(),
            reduce_of: BTreeMap::new(),
            watches: BTreeMap::new(),
            unanswered: Due::default(),
            missed: Due::default(),
            awaited: BTreeMap::new(),
            followers: BTreeMap::new(),
            reservations: BTreeMap::new(),
            results: BTreeMap::new(),
            small_results: BTreeMap::new(),
            folded: BTreeMap::new(),
            failed: VecDeque::new(),
            folds: BTreeMap::new(),
            scatters: BTreeMap::new(),
            scattered: BTreeMap::new(),
            adoptions: BTreeMap::new(),
            corrupt: BTreeMap::new(),
            kept_for: BTreeMap::new(),
            keeping: Kept::new(),
            keepers: BTreeMap::new(),
            next_keeping: None,
            leaving: None,
            unseating: BTreeSet::new(),
            loopback: VecDeque::new(),
        }
    }

    /// Takes a fact, and appends to `actions` what is to be done now, in order.
    pub fn handle(&mut self, now: Instant, event: Event, actions: &mut Vec<Action>) {
        self.now = now;
        self.dispatch(event, actions);
        self.hear_itself(actions);
        self.expire_requests(actions);
        self.hear_itself(actions);
        self.unseat(actions);
        self.leave_when_empty(actions);
    }

    fn hear_itself(&mut self, actions: &mut Vec<Action>) {
        while let Some(message) = self.loopback.pop_front() {
            self.receive(self.me.id, message, actions);
        }
    }

    /// When time alone changes something.
    pub fn deadline(&self) -> Option<Instant> {
        let requests = self.deadlines.first().map(|(at, _)| *at);
        let pulls = self.pulls.values().filter_map(Pull::deadline).min();
        let reduces = self.reduces.values().filter_map(Reduce::deadline).min();
        let leaving = self.leaving.as_ref().and_then(Leaving::deadline);
        let members = [self.swim.deadline(), self.absentees.deadline()];
        let all = [
            requests,
            pulls,
            self.unanswered.deadline(),
            self.missed.deadline(),
            reduces,
            leaving,
            self.next_keeping,
            self.directory.deadline(),
        ];
        all.into_iter().chain(members).flatten().min()
    }

    /// The members, as this node sees them.
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// The copies of this node.
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// This node's part of the directory.
    pub const fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Questions without an answer so far.
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    fn dispatch(&mut self, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Asked { client, request, ask, deadline } => {
                self.ask(client, request, ask, deadline, out);
            }
            Event::Cancelled { request } => self.time_out(request, out),
            Event::ClientGone { client } => self.client_gone(client, out),
            Event::ClientForked { client, heir } => self.client_forked(client, heir),
            Event::SlotReady { instance } => self.slot_ready(instance, out),
            Event::SlotFailed { instance, detail } => self.slot_failed(instance, detail, out),
            Event::Message { from, message } => {
                // Whoever is no member (any more) has to introduce itself first.
                if self.members.contains(from) {
                    self.swim.heard(from);
                    self.receive(from, message, out);
                }
            }
            Event::PeerUp { member } => self.meet(member, out),
            Event::PeerAgain { member } => self.meet_again(member, out),
            Event::PeerLost { node, is_dead } => self.peer_lost(node, is_dead, out),
            Event::CallFailed { node, is_refused } => {
                self.absentees.call_failed(node, is_refused);
            }
            Event::FetchAsked { serve, id, instance } => self.serve(serve, &id, instance, out),
            Event::ServeEnded { serve } => self.serve_ended(serve, out),
            Event::FetchGrew { instance, source, received, missing } => {
                self.fetch_grew(instance, source, received, missing, out);
            }
            Event::Fetched { instance } => self.fetched(instance, out),
            Event::FetchFailed { instance, source, not_here } => {
                self.fetch_failed(instance, source, not_here, out);
            }
            Event::BlockCorrupt { source } => self.block_corrupt(source, out),
            Event::FoldedInline { reduce, epoch, result } => {
                self.folded_inline(reduce, epoch, result, out);
            }
            Event::FoldWaited { key, node } => self.fold_waited(key, node, out),
            Event::FoldEnded { key, failure } => self.fold_ended(key, failure, out),
            Event::LinkMeasured { link, has_bandwidth } => {
                self.config.link = link;
                self.usual_rate = has_bandwidth.then_some(link.bytes_per_second);
                self.directory.set_usual_rate(self.usual_rate);
            }
            Event::LeaveAsked { patience_ns } => self.leave(patience_ns, out),
            Event::DeadlinePassed => self.expire(out),
        }
    }

    fn ask(
        &mut self,
        client: ClientId,
        request: RequestId,
        ask: Ask,
        deadline: Option<Instant>,
        out: &mut Vec<Action>,
    ) {
        let ends_something = matches!(
            ask,
            Ask::Seal { .. } | Ask::Release { .. } | Ask::Abort { .. } | Ask::BreakPromises
        );
        if self.leaving.is_some() && !ends_something {
            let error = Error::NodeDown(format!("node {} is closing", self.me.id));
            out.push(Action::Reply { client, request, answer: Err(error) });
            return;
        }
        let asked = Asked { client, request, deadline };
        let answer = match ask {
            Ask::Put { id, meta, bytes } => self.put_inline(&asked, id, meta, bytes, out),
            Ask::Promise => Some(Ok(self.promise(client))),
            Ask::BreakPromises => {
                self.break_promises(client, out);
                return;
            }
            Ask::Create { id, meta } => self.create(&asked, id, meta, out),
            Ask::Seal { instance } => Some(self.seal(client, instance, out)),
            Ask::Abort { instance } => Some(self.abort(client, instance, out)),
            Ask::Get { id } => self.get(&asked, id, out),
            Ask::Keep { id, copies } => self.keep(&asked, id, copies, out),
            Ask::Release { instance } => {
                self.release(client, instance, out);
                return;
            }
            Ask::Follow { id } => self.follow(&asked, id),
            Ask::Wait { ids, count } => self.wait(&asked, ids, count, out),
            Ask::Reduce { inputs, op, count, id } => {
                self.begin_reduce(&asked, inputs, op, count, id, out)
            }
            Ask::Inputs { id } => self.inputs(&asked, id),
            Ask::Lost { id } => Some(self.lost(&id)),
            Ask::Delete { ids } => self.delete(&asked, ids, out),
            Ask::Latest { prefix, after } => self.latest(&asked, prefix, after, out),
            Ask::Prune { name, keep } => self.prune(&asked, name, keep, out),
            Ask::Locations { id, known } => self.locations(&asked, id, known, out),
            Ask::Explain { id } => Some(Ok(self.explain(&id))),
            Ask::Owners { id } => {
                Some(Ok(Answer::Owners(self.members.owners(&id).iter().collect())))
            }
            Ask::List { owner, prefix, after } => self.list(&asked, owner, prefix, after, out),
            Ask::Status => Some(Ok(Answer::Status(Box::new(self.status())))),
            Ask::Objects => Some(Ok(Answer::Objects(self.objects()))),
        };
        if let Some(answer) = answer {
            out.push(Action::Reply { client, request, answer });
        }
    }

    /// Handles what another node, or this one, said.
    fn receive(&mut self, from: NodeId, message: Message, out: &mut Vec<Action>) {
        let mut mail = Vec::new();
        let (members, link) = (&self.members, self.config.link);
        if self.directory.handle(self.now, from, &message, members, link, &mut mail) {
            self.post(mail, out);
            if let Message::Locate { id, .. } = &message {
                self.result_asked(id, out);
            }
            if let Message::Delete { id, .. } = &message
                && id.minter().is_some()
            {
                self.promises.remove(id);
                // A result that is not there yet has no copy that could be dropped. A name has: its reservation.
                self.fail_reduce_of(id, &Error::ObjectDeleted { id: id.clone() }, out);
            }
            return;
        }
        match message {
            Message::Members(members) => self.learn(from, &members, out),
            Message::Leaving => self.member_leaves(from, out),
            Message::Unseated => self.unseated(from),
            Message::Leave => self.lose(from, Loss::Left, out),
            Message::Down { node, incarnation, reason } => {
                self.told_down(from, node, incarnation, reason, out);
            }
            Message::Forgotten => self.was_forgotten(from, out),
            Message::Rumour(rumour) => self.hear_rumour(from, rumour, out),
            Message::Claimed { id, instance, taken_by } => {
                self.claimed(from, &id, instance, taken_by, out)
            }
            Message::Waiting { id } => self.pull_acknowledged(from, &id, out),
            Message::Located { id, instance, meta, source } => {
                self.located(from, id, instance, meta, source, out);
            }
            Message::Redirect { id, instance, source } => {
                self.redirected(&id, instance, source, out);
            }
            Message::Gone { id, error } => self.gone(&id, &error, out),
            Message::Found { id, found } => self.found(from, &id, found, out),
            Message::Deleted { id, request } => self.deleted(from, &id, request, out),
            Message::Drop { id, instance, error } => {
                self.drop_copy(from, &id, instance, error, out);
            }
            Message::Doubted { instance, .. } => self.doubted(instance, out),
            Message::Stranded { id, instance, error } => {
                self.stranded(from, &id, instance, error, out);
            }
            Message::LatestIs { name, request } => self.latest_is(from, name, request, out),
            Message::NothingYet { request, id } => self.nothing_yet(from, request, id, out),
            Message::OlderAre { names, request } => self.prune_these(request, names, out),
            Message::ListIs { request, rows, next } => {
                self.list_is(from, request, rows, next, out);
            }
            Message::LocationsAre { request, holdings } => {
                self.located_all(from, request, holdings, out)
            }
            Message::Fold(order) => self.fold(from, order, out),
            Message::Scatter(order) => self.scattered(from, *order, out),
            Message::Unfold { reduce, epoch, is_void } => {
                self.unfold(reduce, epoch, is_void, out);
            }
            Message::Slow { times, bytes_per_second } => {
                self.slow = Some(Slow { times, bytes_per_second, at: self.now });
            }
            Message::FoldStarves { .. } if planted::has(Bug::IgnoresSilentChildren) => {}
            Message::FoldStarves { reduce, epoch, node } => {
                self.fold_starves(from, reduce, epoch, node, out);
            }
            Message::FoldProbe { reduce, epoch } => {
                self.send(from, Message::FoldAlive { reduce, epoch }, out);
            }
            Message::FoldAlive { reduce, epoch } => self.fold_alive(from, reduce, epoch),
            Message::FoldFailed { reduce, epoch, detail, is_lost } => {
                self.reduce_failed(reduce, epoch, detail, is_lost, out);
            }
            Message::Adopt { id, instance, meta, inline, may_wait } => {
                self.adopt(from, id, instance, meta, inline, may_wait, out);
            }
            Message::Adopted { instance, kept, .. } => self.adopted(from, instance, kept, out),
            Message::Unkeep { instance, .. } => self.unkeep(from, instance, out),
            // The directory has taken the others.
            _ => {}
        }
    }

    fn send(&mut self, to: NodeId, message: Message, out: &mut Vec<Action>) {
        if to == self.me.id {
            self.loopback.push_back(message);
        } else if self.members.contains(to) {
            out.push(Action::Send { to, message });
        }
    }

    fn send_owners(&mut self, id: &ObjectId, message: &Message, out: &mut Vec<Action>) {
        for owner in self.members.owners(id).iter() {
            self.send(owner, message.clone(), out);
        }
    }

    fn post(&mut self, mail: Vec<(NodeId, Message)>, out: &mut Vec<Action>) {
        for (to, message) in mail {
            self.send(to, message, out);
        }
    }

    /// What the owners have to know of a copy.
    fn announcement(&self, instance: Instance) -> Option<Announce> {
        let copy = self.table.get(instance).filter(|copy| !copy.doomed)?;
        // Of a result that is made in parts only the coordinator tells, until it is complete.
        if matches!(copy.state, State::Flowing(_)) && self.is_scattered(instance) {
            return None;
        }
        let source = match copy.state {
            State::Flowing(source) => source,
            State::Filling(_) | State::Folding | State::Complete => None,
        };
        let progress = match &copy.inline {
            Some(bytes) => Progress::Inline(bytes.clone()),
            None if copy.is_complete() => Progress::Complete,
            None if self.is_scattered(instance) => Progress::Parts,
            None => Progress::Partial { source },
        };
        let (id, meta, origin) = (copy.id.clone(), copy.meta.clone(), copy.origin);
        Some(Announce { id, instance, meta, origin, progress, claim: false })
    }

    fn announce(&mut self, instance: Instance, out: &mut Vec<Action>) {
        self.announce_but(instance, None, out);
    }

    /// Tells the owners of a copy, but for one that knows all of it.
    fn announce_but(
        &mut self,
        instance: Instance,
        knows_it: Option<NodeId>,
        out: &mut Vec<Action>,
    ) {
        let Some(announce) = self.announcement(instance) else { return };
        let owners = self.members.owners(&announce.id).iter();
        for owner in owners.filter(|owner| Some(*owner) != knows_it) {
            self.send(owner, Message::Announce(announce.clone()), out);
        }
    }

    fn next_instance(&mut self) -> Instance {
        self.next_serial += 1;
        Instance { node: self.me.id, serial: self.next_serial }
    }

    fn mint(&mut self) -> ObjectId {
        self.next_serial += 1;
        ObjectId::Minted { node: self.me.id, serial: self.next_serial }
    }

    fn expire(&mut self, out: &mut Vec<Action>) {
        let mut mail = Vec::new();
        self.directory.expire(self.now, &self.members, self.config.link, &mut mail);
        self.post(mail, out);
        self.expire_pulls(out);
        self.expire_watches(out);
        self.expire_reduces(out);
        self.expire_leaving();
        self.expire_keeping(out);
        self.expire_members(out);
    }
}

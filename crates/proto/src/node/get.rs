//! Get: an object that is elsewhere, or nowhere yet, comes to this node.
//!
//! One pull serves all local readers and all receivers behind this node:
//!
//! ```text
//!   Asking --> Room --> Memory --> Receiving --> (complete)
//!     ^                                |
//!     +----------- Pause <-------------+  the sender failed; what has arrived stays
//! ```

use alloc::{format, string::String, vec::Vec};

use super::{Action, Asked, Node, Note, SpaceFor, Waiting};
use crate::{
    ask::Answer,
    error::Error,
    id::{ClientId, Instance, NodeId, ObjectId, RequestId, ServeId},
    inline::Inline,
    limits::{INLINE_BYTES_MAX, OBJECT_BYTES_MAX, OWNER_PATIENCE_NS},
    members::Members,
    message::{Announce, Message, Progress, ScatterOrder, Source},
    meta::Meta,
    pace::Pace,
    planted::{self, Bug},
    table::{Copy, State},
    time::Instant,
};

/// An object on its way to this node.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) phase: Phase,
    /// Senders that failed, to be taken only if nobody else has it.
    pub(super) avoid: Vec<NodeId>,
    not_here: Option<(NodeId, Instance)>,
    failures: u32,
    /// Receivers that were sent here before the first byte was.
    parked: Vec<(ServeId, Instance)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// `second_at`: when the second owner is asked too; none once the first has acknowledged.
    Asking {
        second_at: Option<Instant>,
    },
    /// Until there is room, nobody is sent here.
    Room {
        instance: Instance,
        meta: Meta,
        source: NodeId,
        has_waited: bool,
    },
    Memory,
    Receiving {
        instance: Instance,
        pace: Pace,
        /// Bytes that are still to come, as far as the shell has said.
        missing: u64,
    },
    Pause {
        until: Instant,
    },
}

impl Pull {
    const fn new(phase: Phase) -> Self {
        Self { phase, avoid: Vec::new(), not_here: None, failures: 0, parked: Vec::new() }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Asking { second_at } => second_at,
            Phase::Pause { until } => Some(until),
            Phase::Receiving { ref pace, .. } => Some(pace.deadline()),
            Phase::Room { .. } | Phase::Memory => None,
        }
    }

    /// Bytes it waits for room for.
    pub(super) fn wanted_bytes(&self) -> Option<u64> {
        match &self.phase {
            Phase::Room { meta, .. } => Some(meta.size),
            _ => None,
        }
    }

    pub(super) fn state(&self, members: &Members, id: &ObjectId) -> String {
        match &self.phase {
            Phase::Asking { second_at: Some(_) } => {
                format!("its owner, node {}, has not answered yet", members.owners(id).first)
            }
            Phase::Asking { second_at: None } => "nobody has put it".into(),
            // The store says how much it lacks; this is what is true of a place in the queue.
            Phase::Room { .. } => "it waits for room here".into(),
            Phase::Memory => "memory is being made ready for it".into(),
            Phase::Receiving { .. } => "it is arriving".into(),
            Phase::Pause { .. } => format!("{} senders of it have failed", self.failures),
        }
    }
}

/// How long to wait after a sender has failed: 40 ms, doubled each time up to 1.28 s. A sender that is lost is out of
/// the directory by then.
fn pause_ns(failures: u32) -> u64 {
    20_000_000 << failures.min(6)
}

impl Node {
    pub(super) fn get(
        &mut self,
        asked: &Asked,
        id: ObjectId,
        out: &mut Vec<Action>,
    ) -> Option<Result<Answer, Error>> {
        let current = self.table.current(&id);
        let is_usable = |copy: &Copy| copy.is_complete() || planted::has(Bug::AnswersGetsTooEarly);
        let complete = current.filter(|instance| self.table.get(*instance).is_some_and(is_usable));
        if let Some(instance) = complete {
            return Some(self.give(asked.client, instance));
        }
        self.remember(asked, Waiting::Object(id.clone()));
        self.waiting.entry(id.clone()).or_default().push(asked.request);
        self.pull_if_wanted(&id, out);
        None
    }

    /// Hands a complete copy to a reader and pins it for as long as that reads.
    fn give(&mut self, client: ClientId, instance: Instance) -> Result<Answer, Error> {
        let Some(copy) = self.table.get(instance) else {
            return Err(Error::NodeDown(format!("instance {instance} vanished")));
        };
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        if inline.is_none() {
            self.table.pin(instance);
            *self.reads.entry(client).or_default().entry(instance).or_default() += 1;
        }
        Ok(Answer::Got { id, meta, instance, inline })
    }

    pub(super) fn release(&mut self, client: ClientId, instance: Instance, out: &mut Vec<Action>) {
        let Some(reads) = self.reads.get_mut(&client) else { return };
        let Some(count) = reads.get_mut(&instance) else { return };
        *count -= 1;
        if *count == 0 {
            reads.remove(&instance);
        }
        self.unpin(instance, out);
    }

    /// Somebody wants to read what is here of an object before it is complete.
    pub(super) fn follow(&mut self, asked: &Asked, id: ObjectId) -> Option<Result<Answer, Error>> {
        let current = self.table.current(&id);
        if let Some((instance, copy)) = current.and_then(|i| Some((i, self.table.get(i)?))) {
            if copy.is_complete() {
                return Some(Ok(Answer::Done));
            }
            if copy.state == State::Filling(asked.client) {
                // It has the memory to write, which it can't have to read as well before it is complete.
                return Some(Ok(Answer::Done));
            }
            if !self.pull_awaits_memory(&id) {
                let meta = copy.meta.clone();
                return Some(Ok(Answer::Growing { meta, instance }));
            }
        }
        if !self.waiting.contains_key(&id) {
            // The get beside it was answered already, by bytes in a message or with an error: nothing will come.
            return Some(Ok(Answer::Done));
        }
        self.followers.entry(id.clone()).or_default().push(asked.request);
        self.remember(asked, Waiting::Growth(id));
        None
    }

    /// There is memory for a copy that begins to arrive.
    pub(super) fn growing(&mut self, instance: Instance, out: &mut Vec<Action>) {
        let Some(copy) = self.table.get(instance) else { return };
        let (id, meta, state) = (copy.id.clone(), copy.meta.clone(), copy.state);
        for request in self.followers.remove(&id).unwrap_or_default() {
            let client = self.requests.get(&request).map(|pending| pending.client);
            let is_own = client.is_some_and(|client| state == State::Filling(client));
            let growing = Answer::Growing { meta: meta.clone(), instance };
            self.reply(request, Ok(if is_own { Answer::Done } else { growing }), out);
        }
    }

    /// What there is to say of the object is said to those who get it.
    fn end_following(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        for request in self.followers.remove(id).unwrap_or_default() {
            self.reply(request, Ok(Answer::Done), out);
        }
    }

    pub(super) fn stop_following(&mut self, id: &ObjectId, request: RequestId) {
        if let Some(followers) = self.followers.get_mut(id) {
            followers.retain(|follower| *follower != request);
            if followers.is_empty() {
                self.followers.remove(id);
            }
        }
    }

    /// A copy is complete: everybody here who waited for the object has it now.
    pub(super) fn completed(&mut self, instance: Instance, out: &mut Vec<Action>) {
        let Some(copy) = self.table.get(instance).filter(|copy| !copy.doomed) else { return };
        let id = copy.id.clone();
        self.end_pull(&id, out);
        self.end_following(&id, out);
        for request in self.waiting.remove(&id).unwrap_or_default() {
            if let Some(client) = self.requests.get(&request).map(|pending| pending.client) {
                let answer = self.give(client, instance);
                self.reply(request, answer, out);
            }
        }
        self.adoption_arrived(&id, instance, out);
        // A copy that is neither an original nor read may go, if somebody waits for room.
        self.grant_space(out);
    }

    /// The object comes into being here after all: nobody else need send it.
    pub(super) fn born(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        self.end_pull(id, out);
    }

    /// Ends a pull and settles the receivers that it kept waiting.
    fn end_pull(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        let Some(pull) = self.pulls.remove(id) else { return };
        self.space.retain(|waiting| *waiting != SpaceFor::Pull(id.clone()));
        match pull.phase {
            Phase::Asking { .. } | Phase::Pause { .. } => {
                self.send_owners(id, &Message::Unlocate { id: id.clone() }, out);
            }
            Phase::Receiving { instance, .. } => {
                let complete = self.table.get(instance).is_some_and(Copy::is_complete);
                if !complete {
                    out.push(Action::StopFetch { instance });
                }
            }
            Phase::Room { .. } | Phase::Memory => {}
        }
        if planted::has(Bug::LosesParkedReceivers) {
            return;
        }
        for (serve, instance) in pull.parked {
            self.serve_or_refuse(serve, instance, out);
        }
    }

    /// Starts to look for an object if somebody here waits for it and it is not on its way.
    pub(super) fn pull_if_wanted(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        let is_wanted = self.waiting.contains_key(id) || self.adoptions.contains_key(id);
        let is_here = self.table.current(id).is_some();
        if is_wanted && !is_here && !self.pulls.contains_key(id) {
            self.pulls.insert(id.clone(), Pull::new(Phase::Asking { second_at: None }));
            self.locate(id, out);
        }
    }

    /// Has the parts of an object that a reduce makes brought here, whether anybody here waits for it or not.
    pub(super) fn pull_parts(&mut self, order: &ScatterOrder) {
        let (instance, meta, source) =
            (order.instance, order.meta.clone(), order.source(self.me.id));
        let phase = Phase::Room { instance, meta, source, has_waited: false };
        self.pulls.insert(order.id.clone(), Pull::new(phase));
    }

    /// Asks the owner for a sender.
    fn locate(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        let avoid = self.avoided(id);
        let Some(pull) = self.pulls.get_mut(id) else { return };
        let owner = self.members.owners(id).first;
        let second_at = (owner != self.me.id).then(|| self.now + OWNER_PATIENCE_NS);
        pull.phase = Phase::Asking { second_at };
        let (not_here, slowness) = (pull.not_here.take(), self.slowness());
        self.send(owner, Message::Locate { id: id.clone(), avoid, not_here, slowness }, out);
    }

    /// Asks the owners again, since they have changed.
    pub(super) fn locate_again(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        if matches!(self.pulls.get(id), Some(Pull { phase: Phase::Asking { .. }, .. })) {
            self.locate(id, out);
        }
    }

    /// Objects that this node looks for.
    pub(super) fn sought(&self) -> Vec<ObjectId> {
        self.pulls.keys().cloned().collect()
    }

    /// An owner keeps the question for a sender.
    pub(super) fn pull_acknowledged(&mut self, from: NodeId, id: &ObjectId, out: &mut Vec<Action>) {
        match self.pulls.get_mut(id) {
            Some(Pull { phase: Phase::Asking { second_at }, .. }) => *second_at = None,
            Some(_) => {}
            // It was asked twice, and the first answer has ended what the second question was for.
            None => self.send(from, Message::Unlocate { id: id.clone() }, out),
        }
    }

    pub(super) fn located(
        &mut self,
        from: NodeId,
        id: ObjectId,
        instance: Instance,
        meta: Meta,
        source: Source,
        out: &mut Vec<Action>,
    ) {
        let is_asking =
            matches!(self.pulls.get(&id), Some(Pull { phase: Phase::Asking { .. }, .. }));
        if !is_asking {
            // The pull ended another way, or both owners were asked and this one was slower. What the first says holds:
            // of two who each know a part of who feeds whom, both obeyed, copies could grow from each other.
            if let Source::Holder { node, .. } = source
                && self.members.owners(&id).first == from
            {
                self.redirected(&id, instance, node, out);
            } else if let Some(copy) = self.table.current(&id) {
                self.announce(copy, out);
            }
            return self.wait_for_room(&id, out);
        }
        let is_unmade = instance.node == self.me.id && instance.serial > self.next_serial;
        if !meta.is_consistent() || meta.size > OBJECT_BYTES_MAX || is_unmade {
            let detail =
                format!("its owner describes it as {instance}, {meta} of {} bytes", meta.size);
            return self.pull_failed(&id.clone(), &Error::ObjectLost { id, detail }, out);
        }
        match source {
            Source::Inline(bytes) => self.located_inline(from, &id, instance, meta, bytes, out),
            Source::Holder { node, reason } => {
                let note = Note::SourceChosen { id: id.clone(), source: node, reason };
                out.push(Action::Note(note));
                self.located_at(&id, instance, meta, node, out);
            }
        }
    }

    /// Small objects are not kept where they are only read: their owner answers in one round trip.
    fn located_inline(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        meta: Meta,
        bytes: Inline,
        out: &mut Vec<Action>,
    ) {
        if bytes.len() != meta.size || meta.size > INLINE_BYTES_MAX {
            let (id, detail) =
                (id.clone(), format!("its owner sent {} bytes for {meta}", bytes.len()));
            return self.pull_failed(&id.clone(), &Error::ObjectLost { id, detail }, out);
        }
        let part = self.table.current(id);
        if let Some(part) = part.filter(|part| {
            self.table.get(*part).is_some_and(|copy| matches!(copy.state, State::Flowing(_)))
        }) {
            // What has arrived of a larger object that had the name before.
            self.doom(part, out);
            self.send_owners(id, &Message::Withdraw { id: id.clone(), instance: part }, out);
        }
        let is_first = self.members.owners(id).first == from;
        if let Some(pull) = self.pulls.get_mut(id).filter(|_| is_first) {
            // The owner has answered and keeps no question that would have to be taken back.
            pull.phase = Phase::Memory;
        }
        self.end_pull(id, out);
        self.end_following(id, out);
        self.adoption_failed(id, out);
        for request in self.waiting.remove(id).unwrap_or_default() {
            let (id, meta, inline) = (id.clone(), meta.clone(), Some(bytes.clone()));
            self.reply(request, Ok(Answer::Got { id, meta, instance, inline }), out);
        }
    }

    fn located_at(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        meta: Meta,
        source: NodeId,
        out: &mut Vec<Action>,
    ) {
        if let Some(before) = self.table.current(id).filter(|before| *before != instance) {
            // What has arrived of another instance is of no use for this one.
            self.doom(before, out);
        }
        let is_void = self.table.get(instance).is_some_and(|copy| copy.doomed);
        if let Some(copy) = self.table.get_mut(instance).filter(|copy| !copy.doomed) {
            if copy.is_complete() {
                self.reveal(instance, out);
                self.announce(instance, out);
                return self.completed(instance, out);
            }
            copy.state = State::Flowing(Some(source));
            return self.receive_from(id, instance, source, out);
        }
        if !self.table.could_hold(meta.size) {
            let error = self.store_full(meta.size);
            return self.pull_failed(id, &error, out);
        }
        let Some(pull) = self.pulls.get_mut(id) else { return };
        if is_void {
            // Somebody still uses a part of it that was given up here, or the owner does not know of its deletion.
            pull.failures += 1;
            pull.phase = Phase::Pause { until: self.now + pause_ns(pull.failures) };
            return;
        }
        pull.phase = Phase::Room { instance, meta, source, has_waited: false };
        self.space.push_back(SpaceFor::Pull(id.clone()));
        self.grant_space(out);
        self.wait_for_room(id, out);
    }

    /// If there was no room at once: nobody shall be sent here meanwhile, for it may never come.
    fn wait_for_room(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        let Some(pull) = self.pulls.get_mut(id) else { return };
        let Phase::Room { has_waited, .. } = &mut pull.phase else { return };
        *has_waited = true;
        let parked = core::mem::take(&mut pull.parked);
        if let Some(announce) = self.room_announcement(id) {
            self.send_owners(id, &Message::Announce(announce), out);
        }
        for (serve, instance) in parked {
            self.serve_or_refuse(serve, instance, out);
        }
        self.adoption_lacks_room(id, out);
    }

    /// Whether an object was located and there was no room for it at once.
    pub(super) fn pull_has_waited(&self, id: &ObjectId) -> bool {
        let phase = self.pulls.get(id).map(|pull| &pull.phase);
        matches!(phase, Some(Phase::Room { has_waited: true, .. }))
    }

    /// What the owners have to know of an object that waits for room here: as a holder without a sender this node still
    /// hears of a deletion.
    pub(super) fn room_announcement(&self, id: &ObjectId) -> Option<Announce> {
        let phase = self.pulls.get(id).map(|pull| &pull.phase);
        let Some(Phase::Room { instance, meta, has_waited: true, .. }) = phase else { return None };
        let (id, instance, meta) = (id.clone(), *instance, meta.clone());
        let (progress, claim, origin) = (Progress::Partial { source: None }, false, false);
        Some(Announce { id, instance, meta, origin, progress, claim })
    }

    pub(super) fn pull_in_room(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        let Some(pull) = self.pulls.get_mut(id) else { return };
        let Phase::Room { instance, meta, source, has_waited } = &pull.phase else { return };
        let (instance, meta, source, has_waited) = (*instance, meta.clone(), *source, *has_waited);
        pull.phase = Phase::Memory;
        let size = meta.size;
        self.table.insert(instance, id.clone(), meta, None, State::Flowing(Some(source)), false);
        self.reveal(instance, out);
        if has_waited {
            self.announce(instance, out);
        }
        out.push(Action::CreateSlot { instance, size, writer: None });
    }

    pub(super) fn pull_in_memory(&mut self, instance: Instance, out: &mut Vec<Action>) {
        let Some(copy) = self.table.get(instance) else { return };
        let State::Flowing(Some(source)) = copy.state else { return };
        let id = copy.id.clone();
        if !matches!(self.pulls.get(&id), Some(Pull { phase: Phase::Memory, .. })) {
            return;
        }
        self.receive_from(&id, instance, source, out);
    }

    fn receive_from(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        source: NodeId,
        out: &mut Vec<Action>,
    ) {
        self.begin_to_receive(id, instance);
        self.growing(instance, out);
        let Some(pull) = self.pulls.get_mut(id) else { return };
        let mut parked = core::mem::take(&mut pull.parked);
        if planted::has(Bug::LosesParkedReceivers) {
            parked.clear();
        }
        if self.is_scattered(instance) {
            self.begin_parts(instance, out);
        } else {
            out.push(Action::Fetch { id: id.clone(), instance, source, parts: None });
        }
        // Both, for the owner who chose the sender may have been the second, or another before a change of members.
        self.announce(instance, out);
        for (serve, instance) in parked {
            self.serve_or_refuse(serve, instance, out);
        }
    }

    /// An owner names the sender from now on: a receiver that has stepped in between this node and its sender, or one that
    /// is faster than the present sender.
    pub(super) fn redirected(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        source: NodeId,
        out: &mut Vec<Action>,
    ) {
        if self.stays_with(id, instance, source) {
            return;
        }
        let me = self.me.id;
        let phase = self
            .pulls
            .get_mut(id)
            .map(|pull| (pull.avoid.contains(&source) || source == me, &mut pull.phase));
        if let Some((false, Phase::Room { instance: located, source: sender, .. })) = phase
            && *located == instance
        {
            *sender = source;
            return;
        }
        let is_arriving = matches!(phase, Some((false, Phase::Memory | Phase::Receiving { .. })));
        let Some(current) = self.table.current(id) else { return };
        if is_arriving
            && current == instance
            && !self.is_scattered(instance)
            && let Some(copy) = self.table.get_mut(instance).filter(|copy| !copy.doomed)
            && let State::Flowing(Some(before)) = copy.state
            && before != source
        {
            copy.state = State::Flowing(Some(source));
            out.push(Action::Note(Note::SenderReplaced { id: id.clone(), before, source }));
            if matches!(self.pulls.get(id), Some(Pull { phase: Phase::Receiving { .. }, .. })) {
                self.begin_to_receive(id, instance);
                out.push(Action::Fetch { id: id.clone(), instance, source, parts: None });
            }
        }
        // Its owner believes that this node did as it was told.
        self.announce(current, out);
    }

    pub(super) fn fetched(&mut self, instance: Instance, out: &mut Vec<Action>) {
        if self.parts_complete(instance, out) {
            return;
        }
        let Some(copy) = self.table.get_mut(instance).filter(|copy| !copy.doomed) else { return };
        if matches!(copy.state, State::Flowing(_)) {
            copy.state = State::Complete;
            self.announce(instance, out);
            self.completed(instance, out);
        }
    }

    /// A member is gone: what it sends is sought elsewhere, though its connection may be open for long.
    pub(super) fn pulls_without(&mut self, node: NodeId, out: &mut Vec<Action>) {
        // One without memory so far has asked it for nothing: it will, and hear that it is gone.
        let is_receiving = |id: &ObjectId| {
            let phase = self.pulls.get(id).map(|pull| &pull.phase);
            matches!(phase, Some(Phase::Receiving { .. }))
        };
        let is_fed = |(instance, copy): &(Instance, &Copy)| {
            copy.state == State::Flowing(Some(node))
                && is_receiving(&copy.id)
                && !copy.doomed
                && !self.is_scattered(*instance)
        };
        let fed: Vec<Instance> =
            self.table.iter().filter(is_fed).map(|(instance, _)| instance).collect();
        for instance in fed {
            out.push(Action::StopFetch { instance });
            self.fetch_failed(instance, node, false, out);
        }
    }

    pub(super) fn fetch_failed(
        &mut self,
        instance: Instance,
        source: NodeId,
        not_here: bool,
        out: &mut Vec<Action>,
    ) {
        if self.is_scattered(instance) {
            let detail = format!("a part did not come from node {source}");
            return self.parts_failed(instance, detail, out);
        }
        let Some(copy) = self.table.get_mut(instance).filter(|copy| !copy.doomed) else { return };
        if copy.state != State::Flowing(Some(source)) {
            return;
        }
        copy.state = State::Flowing(None);
        let id = copy.id.clone();
        if planted::has(Bug::GivesUpAfterOneSender) {
            return;
        }
        let Some(pull) = self.pulls.get_mut(&id) else { return };
        pull.failures += 1;
        if !pull.avoid.contains(&source) {
            pull.avoid.push(source);
        }
        pull.not_here = not_here.then_some((source, instance));
        let is_first = pull.failures == 1;
        pull.phase = Phase::Pause { until: self.now + pause_ns(pull.failures) };
        self.end_if_unwanted(&id, out);
        if is_first {
            self.locate(&id, out);
        }
        // The owners learn that nobody feeds this copy.
        if let Some(announce) = self.announcement(instance) {
            self.send_second(announce, out);
        }
    }

    fn send_second(&mut self, announce: Announce, out: &mut Vec<Action>) {
        if let Some(second) = self.members.owners(&announce.id).second {
            self.send(second, Message::Announce(announce), out);
        }
    }

    /// Whether this instance was located and waits for room here.
    pub(super) fn pull_awaits_room_for(&self, id: &ObjectId, instance: Instance) -> bool {
        let phase = self.pulls.get(id).map(|pull| &pull.phase);
        matches!(phase, Some(Phase::Room { instance: located, .. }) if *located == instance)
    }

    /// The object will not come: those who wait are told, and what has arrived of it goes.
    pub(super) fn pull_failed(&mut self, id: &ObjectId, error: &Error, out: &mut Vec<Action>) {
        if let Some(instance) = self.table.current(id)
            && self.table.get(instance).is_some_and(|copy| matches!(copy.state, State::Flowing(_)))
        {
            self.doom(instance, out);
            self.send_owners(id, &Message::Withdraw { id: id.clone(), instance }, out);
        }
        self.end_pull(id, out);
        self.end_following(id, out);
        for request in self.waiting.remove(id).unwrap_or_default() {
            self.reply(request, Err(error.clone()), out);
        }
        self.adoption_failed(id, out);
    }

    /// One reader waits no more. What is arriving goes on; a search that nobody needs ends.
    pub(super) fn stop_waiting(
        &mut self,
        id: &ObjectId,
        request: RequestId,
        out: &mut Vec<Action>,
    ) {
        let Some(waiting) = self.waiting.get_mut(id) else { return };
        waiting.retain(|waiter| *waiter != request);
        if !waiting.is_empty() {
            return;
        }
        self.waiting.remove(id);
        self.end_if_unwanted(id, out);
    }

    /// Gives up an object that nobody here waits for, nor behind here, unless it is arriving.
    pub(super) fn end_if_unwanted(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        let Some(pull) = self.pulls.get(id) else { return };
        let is_arriving = matches!(pull.phase, Phase::Memory | Phase::Receiving { .. });
        let is_in_room = matches!(pull.phase, Phase::Room { .. });
        let has_parked = !pull.parked.is_empty();
        let is_wanted = self.waiting.contains_key(id) || self.adoptions.contains_key(id);
        let part = self.table.current(id);
        let is_read = part.and_then(|part| self.table.get(part)).is_some_and(|copy| copy.pins > 0);
        if is_arriving || is_wanted || has_parked || is_read {
            return;
        }
        if let Some(instance) = part {
            self.doom(instance, out);
            self.send_owners(id, &Message::Withdraw { id: id.clone(), instance }, out);
        } else if is_in_room {
            self.send_owners(id, &Message::Unlocate { id: id.clone() }, out);
        }
        self.end_pull(id, out);
    }

    /// Keeps a receiver waiting that was sent here before this node has a place for the object; false if this
    /// node does not look for it.
    pub(super) fn park(&mut self, serve: ServeId, id: &ObjectId, instance: Instance) -> bool {
        match self.pulls.get_mut(id) {
            Some(pull) if !matches!(pull.phase, Phase::Room { .. }) => {
                pull.parked.push((serve, instance));
                true
            }
            _ => false,
        }
    }

    /// Whether the object is on its way, and has a place in the accounts but no memory yet.
    pub(super) fn pull_awaits_memory(&self, id: &ObjectId) -> bool {
        matches!(self.pulls.get(id), Some(Pull { phase: Phase::Memory, .. }))
    }

    /// A receiver that was kept waiting has hung up.
    pub(super) fn unpark(&mut self, serve: ServeId, out: &mut Vec<Action>) {
        let is_parked = |pull: &Pull| pull.parked.iter().any(|(parked, _)| *parked == serve);
        let found = self.pulls.iter().find(|(_, pull)| is_parked(pull)).map(|(id, _)| id.clone());
        let Some(id) = found else { return };
        if let Some(pull) = self.pulls.get_mut(&id) {
            pull.parked.retain(|(parked, _)| *parked != serve);
        }
        self.end_if_unwanted(&id, out);
    }

    pub(super) fn expire_pulls(&mut self, out: &mut Vec<Action>) {
        let due = |pull: &Pull| pull.deadline().is_some_and(|deadline| deadline <= self.now);
        let due: Vec<ObjectId> =
            self.pulls.iter().filter(|(_, pull)| due(pull)).map(|(id, _)| id.clone()).collect();
        for id in due {
            let Some(pull) = self.pulls.get_mut(&id) else { continue };
            match &mut pull.phase {
                Phase::Asking { second_at } => {
                    *second_at = None;
                    let avoid = self.avoided(&id);
                    if let Some(second) = self.members.owners(&id).second {
                        let (not_here, slowness) = (None, self.slowness());
                        self.send(second, Message::Locate { id, avoid, not_here, slowness }, out);
                    }
                }
                Phase::Receiving { .. } => self.report_stall(&id, out),
                _ => self.locate(&id, out),
            }
        }
    }
}

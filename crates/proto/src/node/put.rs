//! Put: an object comes into being at this node.
//!
//! ```text
//!   Room --> Memory --> Name --> Filling --> (complete)      large; a minted id needs no Name
//!   Name --> (complete)                                      small
//! ```

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use super::{Action, Asked, Node, Waiting, room::SpaceFor};
use crate::{
    ask::Answer,
    error::Error,
    id::{ClientId, Instance, NodeId, ObjectId, RequestId},
    inline::Inline,
    limits::{INLINE_BYTES_MAX, OBJECT_BYTES_MAX},
    message::{Announce, Message, Progress},
    meta::Meta,
    planted::{self, Bug},
    table::{Removed, State},
};

/// An object that is being made by a client.
#[derive(Debug)]
pub(super) struct Create {
    pub(super) client: ClientId,
    request: Option<RequestId>,
    id: ObjectId,
    /// Whether its id was promised before.
    is_promised: bool,
    meta: Meta,
    /// The bytes, if they came with the question.
    inline: Option<Inline>,
    phase: Phase,
    /// The owner that was asked for its name.
    asked: Option<NodeId>,
    /// Whether somebody has deleted it since its name was confirmed.
    is_deleted: bool,
}

impl Create {
    /// Whether the owner of its name has been asked and has not answered.
    pub(super) fn awaits_its_name(&self) -> bool {
        self.phase == Phase::Name
    }

    /// Bytes of the object of this id that it waits for room for.
    pub(super) fn wanted_bytes(&self, id: &ObjectId) -> Option<u64> {
        (self.phase == Phase::Room && self.id == *id).then_some(self.meta.size)
    }

    /// Whether a client may be filling it.
    pub(super) fn is_filling(&self) -> bool {
        self.phase == Phase::Filling
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Room,
    Memory,
    Name,
    Filling,
}

impl Node {
    pub(super) fn put_inline(
        &mut self,
        asked: &Asked,
        id: Option<ObjectId>,
        meta: Meta,
        bytes: Inline,
    ) -> Option<Result<Answer, Error>> {
        if meta.size > INLINE_BYTES_MAX || meta.size != bytes.len() {
            let said =
                format!("{} bytes were sent for an object of {} bytes", bytes.len(), meta.size);
            return Some(Err(Error::InvalidArgument(said)));
        }
        self.begin_create(asked, id, meta, Some(bytes))
    }

    pub(super) fn create(
        &mut self,
        asked: &Asked,
        id: Option<ObjectId>,
        meta: Meta,
    ) -> Option<Result<Answer, Error>> {
        if meta.size <= INLINE_BYTES_MAX || meta.size > OBJECT_BYTES_MAX {
            let limits = format!("{} to {OBJECT_BYTES_MAX} bytes", INLINE_BYTES_MAX + 1);
            let said =
                format!("an object of {} bytes can't be created in place: {limits}", meta.size);
            return Some(Err(Error::InvalidArgument(said)));
        }
        self.begin_create(asked, id, meta, None)
    }

    fn begin_create(
        &mut self,
        asked: &Asked,
        id: Option<ObjectId>,
        meta: Meta,
        inline: Option<Inline>,
    ) -> Option<Result<Answer, Error>> {
        if !meta.is_consistent() {
            return Some(Err(Error::InvalidArgument(format!("{meta} is not {} bytes", meta.size))));
        }
        if !self.table.could_hold(meta.size) {
            return Some(Err(self.store_full(meta.size)));
        }
        let is_promised = id.as_ref().is_some_and(|id| id.minter().is_some());
        let id = match self.id_for(asked.client, id) {
            Ok(id) => id,
            Err(error) => return Some(Err(error)),
        };
        if self.coordinator.maker(&id).is_some() {
            // Its owner may not have heard of the reduce yet.
            return Some(Err(Error::NameTaken { id, holder: self.world.me() }));
        }
        let instance = self.world.next_instance();
        self.requests.remember(asked, Waiting::Create(instance), &self.world);
        let (client, request) = (asked.client, Some(asked.request));
        let (phase, owner, is_deleted) = (Phase::Room, None, false);
        let size = meta.size;
        let create = Create {
            client,
            request,
            id,
            is_promised,
            meta,
            inline,
            phase,
            asked: owner,
            is_deleted,
        };
        self.creates.insert(instance, create);
        self.ask_for_room(SpaceFor::Create(instance), size);
        None
    }

    /// There is room in the accounts: take memory for a large object; claim the name of a small one.
    pub(super) fn create_in_room(&mut self, instance: Instance) {
        let Some(create) = self.creates.get_mut(&instance) else { return };
        let (id, meta, client) = (create.id.clone(), create.meta.clone(), create.client);
        let (size, inline) = (meta.size, create.inline.clone());
        let is_small = inline.is_some();
        create.phase = if is_small { Phase::Name } else { Phase::Memory };
        // The copy takes room from now on, but no get uses it before its name is confirmed.
        self.table.insert(instance, id, meta, inline, State::Filling(client), true);
        self.table.pin(instance);
        if is_small {
            return self.claim_or_go_on(instance);
        }
        self.world.act(Action::CreateSlot { instance, size, writer: Some(client) });
    }

    /// There is memory for a client to fill.
    pub(super) fn create_in_memory(&mut self, instance: Instance) {
        if let Some(create) = self.creates.get_mut(&instance) {
            create.phase = Phase::Name;
            self.claim_or_go_on(instance);
        }
    }

    fn claim_or_go_on(&mut self, instance: Instance) {
        let Some(create) = self.creates.get(&instance) else { return };
        if create.id.minter().is_some() {
            return self.create_confirmed(instance, None);
        }
        self.ask_for_name(instance);
    }

    fn ask_for_name(&mut self, instance: Instance) {
        let Some(claim) = self.claim_of(instance) else { return };
        let owner = self.world.members().owners(&claim.id).first;
        if let Some(create) = self.creates.get_mut(&instance) {
            create.asked = Some(owner);
        }
        self.world.send(owner, Message::Announce(claim));
    }

    /// Asks for names of which no answer will come any more, after a change of members: `renewed` has lost what it was
    /// told. Others answer although they are no owners by now: a new owner may not know yet what they know, and give to
    /// this put a name that they refuse.
    pub(super) fn ask_for_names_again(&mut self, renewed: Option<NodeId>) {
        let will_answer = |asked: NodeId| {
            self.world.members().contains(asked) && renewed.is_none_or(|node| node != asked)
        };
        let waits = |create: &Create| create.phase == Phase::Name;
        let hit = self.creates.iter().filter(|(_, create)| waits(create));
        let hit = hit.filter(|(_, create)| !create.asked.is_some_and(will_answer));
        for instance in hit.map(|(instance, _)| *instance).collect::<Vec<Instance>>() {
            self.ask_for_name(instance);
        }
    }

    /// The claim of a name that is not confirmed, if `instance` has one.
    fn claim_of(&self, instance: Instance) -> Option<Announce> {
        let create = self.creates.get(&instance).filter(|create| create.phase == Phase::Name)?;
        let progress = match &create.inline {
            Some(bytes) => Progress::Inline(bytes.clone()),
            None => Progress::Partial { source: None },
        };
        let (id, meta) = (create.id.clone(), create.meta.clone());
        Some(Announce { id, instance, meta, origin: true, progress, claim: true })
    }

    /// The owner of a name has spoken.
    pub(super) fn claimed(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        taken_by: Option<NodeId>,
    ) {
        if let Some(key) = self.names.reduce_of(instance) {
            return self.reserved(from, key, id, taken_by);
        }
        let phase = self.creates.get(&instance).map(|create| create.phase);
        match (phase, taken_by) {
            (Some(Phase::Name), None) => self.create_confirmed(instance, Some(from)),
            (Some(Phase::Name), Some(holder)) => {
                self.fail_create(instance, Error::NameTaken { id: id.clone(), holder });
            }
            // The client gave up while its claim was under way: the name is to be free again.
            (None, None) if self.table.get(instance).is_none() => {
                self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
            }
            _ => {}
        }
    }

    /// The object may exist: the client fills it, or it is complete. `knows_it` has confirmed its name, and has the bytes
    /// of a small one since.
    fn create_confirmed(&mut self, instance: Instance, knows_it: Option<NodeId>) {
        let Some(create) = self.creates.get_mut(&instance) else { return };
        create.phase = Phase::Filling;
        let id = create.id.clone();
        let request = create.request.take();
        if create.inline.is_some() {
            self.creates.remove(&instance);
            self.table.set_state(instance, State::Complete);
            self.unpin(instance);
            self.reveal(instance);
            self.announce_but(instance, knows_it);
            self.completed(instance);
            if let Some(request) = request {
                self.requests.reply(request, Ok(Answer::Put { id }), &mut self.world);
            }
            return;
        }
        self.reveal(instance);
        self.announce(instance);
        self.born(&id);
        self.growing(instance);
        if let Some(request) = request {
            self.requests.reply(request, Ok(Answer::Created { id, instance }), &mut self.world);
        }
    }

    /// Somebody has deleted what may still be filled.
    pub(super) fn create_deleted(&mut self, instance: Instance) {
        if let Some(create) = self.creates.get_mut(&instance) {
            create.is_deleted = true;
        }
    }

    pub(super) fn seal(&mut self, client: ClientId, instance: Instance) -> Result<Answer, Error> {
        let is_filling =
            |create: &&mut Create| create.phase == Phase::Filling && create.client == client;
        let Some(create) = self.creates.get_mut(&instance).filter(is_filling) else {
            let said =
                format!("instance {instance} is not being filled: sealed or aborted before?");
            return Err(Error::InvalidArgument(said));
        };
        let (id, is_deleted) = (create.id.clone(), create.is_deleted);
        self.creates.remove(&instance);
        let Some(copy) = self.table.get(instance) else {
            return Err(Error::ObjectDeleted { id });
        };
        let is_doomed = copy.doomed;
        self.table.set_state(instance, State::Complete);
        self.unpin(instance);
        if is_doomed {
            self.leaving.forget(instance);
            // A sum takes inputs while they are filled, and whoever has it may delete them at once: their putters have done
            // their part. Of two that were put under one name on both sides of a cut, one has not come to be.
            return if is_deleted {
                Ok(Answer::Put { id })
            } else {
                Err(Error::ObjectDeleted { id })
            };
        }
        self.announce(instance);
        self.completed(instance);
        self.leaving.filled(instance, &self.table, &mut self.world);
        Ok(Answer::Put { id })
    }

    pub(super) fn abort(&mut self, client: ClientId, instance: Instance) -> Result<Answer, Error> {
        // Nobody ends what another client is still writing.
        let is_theirs = self.creates.get(&instance).is_some_and(|create| create.client != client);
        if is_theirs {
            let said = format!("instance {instance} is made by another client");
            return Err(Error::InvalidArgument(said));
        }
        if let Some(create) = self.creates.remove(&instance) {
            self.undo_create(&create, instance);
        }
        Ok(Answer::Done)
    }

    pub(super) fn fail_create(&mut self, instance: Instance, error: Error) {
        let Some(mut create) = self.creates.remove(&instance) else { return };
        let request = create.request.take();
        self.undo_create(&create, instance);
        if let Some(request) = request {
            self.requests.reply(request, Err(error), &mut self.world);
        }
    }

    fn undo_create(&mut self, create: &Create, instance: Instance) {
        self.space.remove(&SpaceFor::Create(instance));
        let is_announced = matches!(create.phase, Phase::Name | Phase::Filling);
        if self.table.get(instance).is_some() {
            if create.inline.is_none() {
                // Receivers that follow the growing copy must not wait for the rest.
                self.world.act(Action::FreeSlot { instance });
            }
            self.doom(instance);
            self.unpin(instance);
        }
        if is_announced {
            let id = create.id.clone();
            let message = match id.minter() {
                // A name may be put by somebody else; this id will never be anything.
                None => Message::Withdraw { id, instance },
                Some(_) => {
                    let detail = "its client gave it up before it was complete".into();
                    Message::Fail { error: Error::ObjectLost { id: id.clone(), detail }, id }
                }
            };
            self.world.send_owners(&create.id, &message);
        } else if create.is_promised {
            // Nobody has heard of it: its client may try again.
            self.promises.insert(create.id.clone(), create.client);
        }
        // Gets that found the object growing here look elsewhere now.
        self.pull_if_wanted(&create.id);
    }

    /// A create gave up waiting for room, memory or its name, each of which has an error of its own.
    pub(super) fn create_timed_out(&mut self, instance: Instance, waited_ns: u64) -> Error {
        let Some(create) = self.creates.remove(&instance) else {
            return Error::NodeDown(format!("instance {instance} vanished"));
        };
        self.undo_create(&create, instance);
        let id = &create.id;
        let (what, state) = match create.phase {
            Phase::Room => return self.store_full(create.meta.size),
            Phase::Memory => {
                (format!("memory for {id}"), "the node is still making it".to_string())
            }
            Phase::Name | Phase::Filling => {
                let owner = self.world.members().owners(id).first;
                (format!("the name {id}"), format!("its owner, node {owner}, has not confirmed it"))
            }
        };
        Error::Timeout { what, waited_ns, state }
    }

    pub(super) fn slot_ready(&mut self, instance: Instance) {
        match self.table.get(instance).map(|copy| copy.state) {
            Some(State::Filling(_)) => self.create_in_memory(instance),
            Some(State::Flowing(_)) => self.pull_in_memory(instance),
            Some(State::Folding) => self.result_in_memory(instance),
            Some(State::Complete) => {}
            // The copy went while its memory was being made.
            None => self.world.act(Action::FreeSlot { instance }),
        }
    }

    pub(super) fn slot_failed(&mut self, instance: Instance, detail: String) {
        let Some(copy) = self.table.get(instance) else { return };
        let (id, needed) = (copy.id.clone(), copy.meta.size);
        let error = Error::NoMemory { needed, detail };
        match copy.state {
            State::Filling(_) => self.fail_create(instance, error),
            State::Flowing(_) => self.pull_failed(&id, &error),
            State::Folding => self.result_failed(instance, error),
            State::Complete => {}
        }
    }

    /// Makes a copy the one that gets use. What is here of another instance is not current any more.
    pub(super) fn reveal(&mut self, instance: Instance) {
        let Some(id) = self.table.get(instance).map(|copy| copy.id.clone()) else { return };
        if let Some(before) = self.table.current(&id).filter(|before| *before != instance) {
            self.doom(before);
        }
        self.table.reveal(instance);
    }

    /// Takes a copy out of use. A client that fills it may go on to do so; nobody waits for the rest of another.
    pub(super) fn doom(&mut self, instance: Instance) {
        self.parts_doomed(instance);
        self.adoptions.forget(instance);
        self.replicas.end(instance, &mut self.requests, &mut self.world);
        let state = self.table.get(instance).map(|copy| copy.state);
        if matches!(state, Some(State::Flowing(_) | State::Folding)) {
            self.world.act(Action::FreeSlot { instance });
        }
        if let Some(removed) = self.table.doom(instance) {
            self.removed(&removed);
        }
        self.leaving.forget(instance);
    }

    pub(super) fn unpin(&mut self, instance: Instance) {
        if self.table.get(instance).is_none() {
            return;
        }
        match self.table.unpin(instance) {
            Some(removed) => self.removed(&removed),
            // What is unpinned may be evicted for somebody who waits.
            None if planted::has(Bug::GrantsNoRoomLater) => {}
            None => self.grant_space(),
        }
    }

    fn removed(&mut self, removed: &Removed) {
        if removed.has_slot {
            self.world.act(Action::FreeSlot { instance: removed.instance });
        }
        self.grant_space();
    }
}

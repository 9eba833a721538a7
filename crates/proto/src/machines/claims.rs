//! Claims: the ids and names that clients and reduces of this node hold until their objects are
//! complete.
//!
//! ```text
//!   put          waiting (capacity, memory) --> claiming --> filling --> (complete)
//!   reservation  requested --> granted <--> used (its client makes the object) --> (complete)
//!                  |            |          |
//!                  +------------+----------+--> withdrawn, lost with its client,
//!                                               or taken by another node
//! ```
//! A put claims its name with the announcement of its copy; of a small object, that is all that it
//! sends. A reservation, for a client or for the result of a reduce, has an instance that
//! represents it at the owners: they reject the claims of others, and report to waiting nodes that
//! its client or this node is gone. Both go to the primary owner, and to the backup owner too while
//! the primary owner is unresponsive.
//!
//! The ids that this node generates need no claim. A get of a reserved one waits here, and a small
//! object reaches it in one message. Any client may put a slot, which is such an id: this node's
//! part of the directory reserves it until its object is complete. Does not know copies, nor what
//! reduces decide.

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use crate::{
    directory::Directory,
    error::Error,
    event::Action,
    id::{ClientId, Instance, NodeId, ObjectId, ReduceId, RequestId},
    machines::{membership_change::MembershipChange, world::World},
    message::{Announce, Message, Progress},
    table::{Copy, Table},
    time::Instant,
    timed::key_after,
};

/// The puts and reservations of this node.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    puts: BTreeMap<Instance, Put>,
    reservations: BTreeMap<ObjectId, Reservation>,
}

/// An object that a client is making.
#[derive(Debug)]
pub(crate) struct Put {
    pub(crate) client: ClientId,
    /// The request, until it has a reply.
    pub(crate) request: Option<RequestId>,
    pub(crate) id: ObjectId,
    /// Whether its id was reserved before.
    pub(crate) is_reserved: bool,
    pub(crate) phase: PutPhase,
    /// Whether it was deleted after its name was confirmed.
    is_deleted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutPhase {
    /// It waits for capacity or memory.
    Waiting,
    /// Its name is claimed at this owner.
    Claiming(NodeId),
    Filling,
}

/// An id or name that is held before its object exists.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// Represents it at its owners. No object ever has this instance. `None` for an id that its
    /// client alone can put.
    instance: Option<Instance>,
    state: State,
    /// The request that began it.
    pub(crate) request: RequestId,
    pub(crate) holder: Holder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The owner of the name has not replied yet, nor has the request its reply.
    Asked,
    Granted,
    /// Its client makes the object.
    Used,
}

/// For whom an id or name is reserved.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Holder {
    /// A client. The work of its request ends with the reservation. Any client may fill a slot.
    Client(ClientId),
    /// A reduce, for its result. It begins once the name is granted.
    Reduce(ReduceId),
}

/// How a client ended that may have reserved objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// It was closed; its views may live on.
    Closed,
    /// Its connection ended, with its process if that is known.
    Disconnected(Option<u32>),
}

impl Ending {
    /// Why an object can't appear that the client has begun: names its host and process. `began` is
    /// what the client did, and `until` what it had to outlive.
    pub(crate) fn detail(self, began: &str, until: &str, world: &World) -> String {
        let me = world.me();
        let address = world.members().address(me).map(|address| format!(" ({address})"));
        let node = format!("node {me}{}", address.unwrap_or_default());
        match self {
            Self::Closed => format!("a client of {node} {began} and was closed before {until}"),
            Self::Disconnected(None) => {
                format!("a process on {node} {began} and ended or detached before {until}")
            }
            Self::Disconnected(Some(process)) => {
                format!("process {process} on {node} {began} and ended or detached before {until}")
            }
        }
    }
}

impl Put {
    pub(crate) const fn is_claiming(&self) -> bool {
        matches!(self.phase, PutPhase::Claiming(_))
    }

    /// Whether owners may have an entry for it.
    pub(crate) const fn is_announced(&self) -> bool {
        matches!(self.phase, PutPhase::Claiming(_) | PutPhase::Filling)
    }

    fn claim(&self, instance: Instance, copy: &Copy, now: Instant) -> Message {
        let progress = match &copy.inline {
            Some(bytes) => Progress::Inline(bytes.clone()),
            None => Progress::Partial { source: None },
        };
        let (id, meta, claim) = (self.id.clone(), copy.meta.clone(), true);
        // A small object is complete when its name is confirmed; there is no further announcement
        // to its owner.
        let is_small = copy.inline.is_some();
        let lifetime = copy.terms.clone().map(|mut terms| {
            if is_small {
                terms.begin(now);
            }
            terms.to_lifetime(now)
        });
        let pinned = true;
        Message::Announce(Announce { id, instance, meta, pinned, progress, claim, lifetime })
    }
}

impl Reservation {
    /// Whether the request that began it has no reply yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.state == State::Asked
    }

    fn is_of(&self, client: ClientId) -> bool {
        matches!(self.holder, Holder::Client(holder) if holder == client)
    }
}

/// Puts.
impl Claims {
    /// Begins a put, whose id is that of [`Self::id_for`].
    pub(crate) fn begin_put(
        &mut self,
        instance: Instance,
        client: ClientId,
        request: RequestId,
        id: ObjectId,
    ) {
        let is_reserved = self.is_used(&id, client);
        let (request, phase, is_deleted) = (Some(request), PutPhase::Waiting, false);
        self.puts.insert(instance, Put { client, request, id, is_reserved, phase, is_deleted });
    }

    pub(crate) fn end_put(&mut self, instance: Instance) -> Option<Put> {
        self.puts.remove(&instance)
    }

    pub(crate) fn put(&self, instance: Instance) -> Option<&Put> {
        self.puts.get(&instance)
    }

    /// Whether a put waits for the reply to its claim.
    pub(crate) fn is_claiming(&self, instance: Instance) -> bool {
        self.put(instance).is_some_and(Put::is_claiming)
    }

    /// An instance that will become this object.
    pub(crate) fn put_of(&self, id: &ObjectId) -> Option<Instance> {
        self.puts.iter().find(|(_, put)| put.id == *id).map(|(instance, _)| *instance)
    }

    pub(crate) fn puts_of(&self, client: ClientId) -> Vec<Instance> {
        let its = self.puts.iter().filter(|(_, put)| put.client == client);
        its.map(|(instance, _)| *instance).collect()
    }

    /// The put after another one, or the first.
    pub(crate) fn next_put(&self, after: Option<Instance>) -> Option<Instance> {
        key_after(&self.puts, after.as_ref())
    }

    /// Why a claiming put can't succeed: the node of its slot is gone.
    pub(crate) fn why_without_slot(&self, instance: Instance, world: &World) -> Option<Error> {
        let put = self.put(instance).filter(|put| put.is_claiming() && put.id.is_slot())?;
        world.members().why_unmade(&put.id)
    }

    /// The instances that clients may be filling.
    pub(crate) fn filling(&self) -> impl Iterator<Item = Instance> {
        let filling = self.puts.iter().filter(|(_, put)| put.phase == PutPhase::Filling);
        filling.map(|(instance, _)| *instance)
    }

    /// Claims the name or slot of an object that has capacity and memory. Returns false if it needs
    /// no claim: its client has reserved it, or it has another generated id.
    ///
    /// # Errors
    /// The reason why the object can't be made: the node of its slot is gone.
    pub(crate) fn claim(
        &mut self,
        instance: Instance,
        table: &Table,
        world: &mut World,
    ) -> Result<bool, Error> {
        let (Some(put), Some(copy)) = (self.puts.get(&instance), table.get(instance)) else {
            return Ok(true);
        };
        let is_slot = put.id.is_slot();
        if is_slot && let Some(error) = world.members().why_unmade(&put.id) {
            return Err(error);
        }
        if self.is_used(&put.id, put.client) || put.id.minter().is_some() && !is_slot {
            return Ok(false);
        }
        let owner = send(&put.id, put.claim(instance, copy, world.now()), world);
        if let Some(put) = self.puts.get_mut(&instance) {
            put.phase = PutPhase::Claiming(owner);
        }
        Ok(true)
    }

    /// Repeats a claim that will get no reply, after a membership change: its owner is gone or has
    /// lost the request. A former owner does reply. Its reply counts, because a new owner may not
    /// know its entries yet, and could grant a name that it refuses.
    pub(crate) fn resend_claim(
        &mut self,
        instance: Instance,
        change: &MembershipChange,
        table: &Table,
        world: &mut World,
    ) {
        if let Some(put) = self.puts.get_mut(&instance)
            && let PutPhase::Claiming(owner) = put.phase
            && (!world.members().contains(owner) || change.is_rejoined(owner))
            && let Some(copy) = table.get(instance)
        {
            let claim = put.claim(instance, copy, world.now());
            put.phase = PutPhase::Claiming(send(&put.id, claim, world));
        }
    }

    /// Confirms that the name is granted or not needed: the client may fill the object, or it is
    /// complete. Returns its id and the request to reply to.
    pub(crate) fn confirm(&mut self, instance: Instance) -> Option<(ObjectId, Option<RequestId>)> {
        let put = self.puts.get_mut(&instance)?;
        put.phase = PutPhase::Filling;
        Some((put.id.clone(), put.request.take()))
    }

    /// Records that an object that may still be filled was deleted.
    pub(crate) fn deleted(&mut self, instance: Instance) {
        if let Some(put) = self.puts.get_mut(&instance) {
            put.is_deleted = true;
        }
    }

    /// Ends an object that its client has filled. Returns its id and whether it was deleted
    /// meanwhile; `None` if the client fills no such object.
    pub(crate) fn seal(
        &mut self,
        client: ClientId,
        instance: Instance,
    ) -> Option<(ObjectId, bool)> {
        let is_filling = |put: &&Put| put.phase == PutPhase::Filling && put.client == client;
        self.puts.get(&instance).filter(is_filling)?;
        self.puts.remove(&instance).map(|put| (put.id, put.is_deleted))
    }
}

/// Reservations.
impl Claims {
    /// Reserves a new id for a client.
    pub(crate) fn mint(
        &mut self,
        client: ClientId,
        request: RequestId,
        world: &mut World,
    ) -> ObjectId {
        let id = world.mint();
        self.add(id.clone(), None, State::Granted, request, Holder::Client(client));
        id
    }

    /// Records a slot of a client.
    pub(crate) fn open_slot(
        &mut self,
        id: ObjectId,
        client: ClientId,
        request: RequestId,
        instance: Instance,
    ) {
        self.add(id, Some(instance), State::Granted, request, Holder::Client(client));
    }

    /// Requests a name from its owner. Returns false if this node has reserved or requested it
    /// already.
    pub(crate) fn reserve(
        &mut self,
        id: &ObjectId,
        request: RequestId,
        holder: Holder,
        world: &mut World,
    ) -> bool {
        if self.reservations.contains_key(id) {
            return false;
        }
        let instance = world.next_instance();
        self.add(id.clone(), Some(instance), State::Asked, request, holder);
        send(id, Message::Reserve { id: id.clone(), instance }, world);
        true
    }

    fn add(
        &mut self,
        id: ObjectId,
        instance: Option<Instance>,
        state: State,
        request: RequestId,
        holder: Holder,
    ) {
        self.reservations.insert(id, Reservation { instance, state, request, holder });
    }

    /// Whether the owner of a name has not replied to its reservation yet.
    pub(crate) fn is_asked(&self, id: &ObjectId) -> bool {
        self.reservations.get(id).is_some_and(Reservation::is_asked)
    }

    /// The owner has granted the name. Returns whose it is, and the request to reply to, if it has
    /// no reply yet.
    pub(crate) fn granted(&mut self, id: &ObjectId) -> Option<(Holder, RequestId)> {
        let reservation = self.reservations.get_mut(id).filter(|it| it.is_asked())?;
        reservation.state = State::Granted;
        Some((reservation.holder, reservation.request))
    }

    /// Whether this instance represents the reservation of a name or slot.
    pub(crate) fn is_reserved_by(&self, id: &ObjectId, instance: Instance) -> bool {
        self.reservations.get(id).is_some_and(|it| it.instance == Some(instance))
    }

    /// Whether a client has reserved an id or name and not made its object yet.
    pub(crate) fn has(&self, id: &ObjectId, client: ClientId) -> bool {
        self.is_in(id, client, State::Granted)
    }

    /// Whether a client makes the object of an id or name that it has reserved.
    fn is_used(&self, id: &ObjectId, client: ClientId) -> bool {
        self.is_in(id, client, State::Used)
    }

    fn is_in(&self, id: &ObjectId, client: ClientId, state: State) -> bool {
        self.reservations.get(id).is_some_and(|it| it.is_of(client) && it.state == state)
    }

    /// Returns the id of an object that a client is about to make: a name of its choice, one that
    /// it has reserved, or a new one. Refuses a name that a reduce of this node makes: the owner
    /// may not have its reservation yet.
    pub(crate) fn id_for(
        &mut self,
        client: ClientId,
        id: Option<ObjectId>,
        directory: &Directory,
        world: &mut World,
    ) -> Result<ObjectId, Error> {
        let Some(id) = id else { return Ok(world.mint()) };
        let is_name = id.minter().is_none();
        // A client that has reconnected may have ids of the node before.
        let why_gone = || directory.why_gone(&id).or_else(|| world.members().why_unmade(&id));
        if !is_name && let Some(error) = why_gone() {
            return Err(error);
        }
        let is_free = if is_name { !self.reservations.contains_key(&id) } else { id.is_slot() };
        if is_free {
            return Ok(id);
        }
        if self.has(&id, client) {
            self.set(&id, client, State::Used);
            return Ok(id);
        }
        if is_name {
            return Err(Error::NameTaken { id, holder: world.me() });
        }
        Err(Error::InvalidArgument(format!(
            "{id} is not reserved for this client, or has already been put: put with a name, or \
             with a ref that reserve() returned here"
        )))
    }

    fn set(&mut self, id: &ObjectId, client: ClientId, state: State) {
        let its = self.reservations.get_mut(id).filter(|it| it.is_of(client));
        its.into_iter().for_each(|it| it.state = state);
    }

    /// The object of a reserved id or name was not made: its client may try again, unless it was
    /// deleted and is not reserved any more.
    pub(crate) fn reuse(&mut self, id: &ObjectId, client: ClientId) {
        self.set(id, client, State::Granted);
    }

    /// A client has made the object of an id or name, or can't make it any more. The owners of a
    /// name then end the reservation, if there is one.
    pub(crate) fn object_made(&mut self, id: &ObjectId, client: ClientId, world: &mut World) {
        if self.is_used(id, client) {
            self.forget(id, world);
        }
    }

    /// Passes the reservation of an id or name to a reduce, whose result has it. Returns false if
    /// there is none.
    pub(crate) fn pass_to_reduce(
        &mut self,
        id: &ObjectId,
        client: ClientId,
        key: ReduceId,
        world: &mut World,
    ) -> bool {
        if !self.is_used(id, client) {
            return false;
        }
        if let Some(Reservation { instance: Some(instance), request, .. }) = self.remove(id, world)
        {
            let (id, holder) = (id.clone(), Holder::Reduce(key));
            self.add(id, Some(instance), State::Granted, request, holder);
        }
        true
    }

    /// Ends the reservations of a client that is gone, or that closes while its views live on: no
    /// other client makes the objects.
    pub(crate) fn end_client(&mut self, client: ClientId, ending: Ending, world: &mut World) {
        let its = self.reservations.iter().filter(|(_, it)| it.is_of(client));
        // A client that is closed may still complete an object that it fills; one that is gone
        // fills none.
        let broken = its.filter(|(_, it)| it.state != State::Used);
        for id in broken.map(|(id, _)| id.clone()).collect::<Vec<ObjectId>>() {
            if self.is_asked(&id) {
                self.withdraw(&id, world);
                continue;
            }
            let Some(Reservation { instance: reserved, .. }) = self.remove(&id, world) else {
                continue;
            };
            let detail = ending.detail("reserved it", "the put", world);
            let error = Error::ObjectLost { id: id.clone(), detail };
            let fail = Message::Fail { id: id.clone(), error, reserved };
            if id.is_slot() {
                // Only this node knows whether it is filled.
                world.send(world.me(), fail);
            } else {
                world.send_owners(&id, &fail);
            }
        }
    }

    /// Withdraws the reservation of a name or slot, for which nothing waits any more or which
    /// another node has got.
    pub(crate) fn withdraw(&mut self, id: &ObjectId, world: &mut World) -> Option<Reservation> {
        let instance = self.reservations.get(id)?.instance?;
        world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
        self.remove(id, world)
    }

    /// Forgets a reservation whose id was deleted, or whose object is made or can't be. Returns the
    /// instance that represents it at its owners.
    pub(crate) fn forget(&mut self, id: &ObjectId, world: &mut World) -> Option<Instance> {
        self.remove(id, world)?.instance
    }

    /// Ends a reservation. If it is of a client, its request then holds nothing more.
    fn remove(&mut self, id: &ObjectId, world: &mut World) -> Option<Reservation> {
        let reservation = self.reservations.remove(id)?;
        if let Holder::Client(_) = reservation.holder {
            world.act(Action::WorkEnded { request: reservation.request });
        }
        Some(reservation)
    }

    /// The reserved id or name after another one, or the first.
    pub(crate) fn next_reservation(&self, after: Option<&ObjectId>) -> Option<ObjectId> {
        key_after(&self.reservations, after)
    }

    /// Sends the reservation of a name to its new owners: to the backup owner only if the primary
    /// owner has granted it.
    pub(crate) fn resend_reservation(
        &self,
        id: &ObjectId,
        change: &MembershipChange,
        world: &mut World,
    ) {
        let Some(reservation) = self.reservations.get(id).filter(|_| !id.is_slot()) else { return };
        let Some(instance) = reservation.instance else { return };
        let reserve = || Message::Reserve { id: id.clone(), instance };
        if let Some(first) = change.new_owner(id, world) {
            world.send(first, reserve());
        }
        let second = world.members().owners(id).backup.filter(|_| !reservation.is_asked());
        if let Some(second) = second.filter(|it| change.new_owners(id, world).contains(it)) {
            world.send(second, reserve());
        }
    }
}

impl Claims {
    /// The numbers of puts and reservations.
    pub(crate) fn counts(&self) -> [(&'static str, usize); 2] {
        [("creates", self.puts.len()), ("reservations", self.reservations.len())]
    }

    /// The number of reservations.
    #[cfg(test)]
    pub(crate) fn reservations(&self) -> usize {
        self.reservations.len()
    }

    /// Repeats the claims that a primary owner has not replied to at the backup owners, because it
    /// is unresponsive.
    pub(crate) fn primary_unresponsive(&self, primary: NodeId, table: &Table, world: &mut World) {
        for (instance, put) in &self.puts {
            if put.phase == PutPhase::Claiming(primary)
                && let Some(copy) = table.get(*instance)
            {
                send_to_backup(&put.id, &put.claim(*instance, copy, world.now()), world);
            }
        }
        for (id, reservation) in &self.reservations {
            if reservation.is_asked()
                && world.members().owners(id).primary == primary
                && let Some(instance) = reservation.instance
            {
                send_to_backup(id, &Message::Reserve { id: id.clone(), instance }, world);
            }
        }
    }
}

/// Sends a claim to the primary owner, and to the backup owner too if the primary owner is
/// unresponsive. Returns the primary owner.
fn send(id: &ObjectId, claim: Message, world: &mut World) -> NodeId {
    send_to_backup(id, &claim, world);
    let owner = world.members().owners(id).primary;
    world.send(owner, claim);
    owner
}

fn send_to_backup(id: &ObjectId, claim: &Message, world: &mut World) {
    // Only the node of a slot can grant it.
    if let Some(backup) = world.standby(id).filter(|_| !id.is_slot()) {
        world.send(backup, claim.clone().into_backup_claim());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::Action, meta::Meta, table::State};

    const INSTANCE: Instance = Instance { node: NodeId(1), serial: 1 };

    /// A large object whose name is claimed, and its copy.
    fn asking(id: &str, world: &mut World) -> (Claims, Table) {
        let (mut claims, mut table) = (Claims::default(), Table::new(1 << 20));
        let id: ObjectId = id.parse().expect("it is a name");
        let (meta, state) = (Meta::bytes(1 << 19), State::Filling(ClientId(1)));
        table.insert(INSTANCE, id.clone(), meta, None, state, true);
        claims.begin_put(INSTANCE, ClientId(1), RequestId(1), id);
        assert!(claims.claim(INSTANCE, &table, world).expect("it can be made"));
        (claims, table)
    }

    fn sent(world: &mut World) -> usize {
        let actions = world.taken();
        let is_claim = |action: &&Action| matches!(action, Action::Send { message: Message::Announce(it), .. } if it.claim);
        actions.iter().filter(is_claim).count() + usize::from(world.next_loopback().is_some())
    }

    #[test]
    fn a_claim_is_repeated_if_no_reply_will_come() {
        let mut world = World::of(3);
        let (mut claims, table) = asking("policy/1", &mut world);
        assert_eq!(sent(&mut world), 1);
        let owner = world.members().owners(&"policy/1".parse().expect("a name")).primary;
        let again = |node| MembershipChange::new(World::of(3).members().clone(), node);
        let other = world.others().into_iter().find(|node| *node != owner);
        claims.resend_claim(INSTANCE, &again(other), &table, &mut world);
        assert_eq!(sent(&mut world), 0, "the owner will reply");
        claims.resend_claim(INSTANCE, &again(Some(owner)), &table, &mut world);
        assert_eq!(sent(&mut world), 1, "it has lost the claim");
    }

    #[test]
    fn only_the_client_that_fills_an_object_seals_it_and_once() {
        let mut world = World::of(3);
        let (mut claims, _) = asking("policy/1", &mut world);
        assert_eq!(claims.seal(ClientId(1), INSTANCE), None, "its name is not confirmed");
        assert!(claims.confirm(INSTANCE).is_some_and(|(_, request)| request == Some(RequestId(1))));
        assert!(claims.filling().eq([INSTANCE]));
        assert_eq!(claims.seal(ClientId(2), INSTANCE), None);
        claims.deleted(INSTANCE);
        assert!(claims.seal(ClientId(1), INSTANCE).is_some_and(|(_, is_deleted)| is_deleted));
        assert_eq!((claims.seal(ClientId(1), INSTANCE), claims.puts.len()), (None, 0));
    }

    #[test]
    fn a_reserved_name_is_for_one_object_of_its_client_or_passes_to_its_reduce() {
        let (mut world, mut claims) = (World::of(3), Claims::default());
        let directory = Directory::new(None, world.config().slice, 0);
        let (id, [its, other]) =
            ("policy/1".parse::<ObjectId>().expect("a name"), [1, 2].map(ClientId));
        assert!(claims.reserve(&id, RequestId(1), Holder::Client(its), &mut world));
        assert!(!claims.reserve(&id, RequestId(2), Holder::Client(other), &mut world));
        assert!(claims.granted(&id).is_some_and(|(_, request)| request == RequestId(1)));
        assert!(claims.granted(&id).is_none(), "its request has its reply");
        let mut makes = |claims: &mut Claims, client| {
            claims.id_for(client, Some(id.clone()), &directory, &mut world)
        };
        assert!(makes(&mut claims, other).is_err() && makes(&mut claims, its).is_ok());
        assert!(makes(&mut claims, its).is_err(), "its object is being made");
        let key = ReduceId { node: NodeId(1), serial: 1 };
        assert!(claims.pass_to_reduce(&id, its, key, &mut world));
        claims.end_client(its, Ending::Closed, &mut world);
        assert!(claims.forget(&id, &mut world).is_some(), "it ends with the reduce");
    }
}

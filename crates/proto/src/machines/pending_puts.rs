//! Objects that clients of this node are making: the phase of each, and which owner it claimed its name at.
//!
//! ```text
//!   Capacity --> Name --> Filling --> (complete)  large; a generated id needs no Name
//!   Capacity --> Name --> (complete)              small
//! ```
//! Does not know the copies themselves, nor other reasons for which a name may be taken.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{
    error::Error,
    id::{ClientId, Instance, NodeId, ObjectId, RequestId},
    machines::world::World,
    message::{Announce, Message, Progress},
    table::{Copy, Table},
    time::Instant,
};

#[derive(Debug, Default)]
pub(crate) struct PendingPuts {
    all: BTreeMap<Instance, PendingPut>,
}

/// An object that a client is making.
#[derive(Debug)]
pub(crate) struct PendingPut {
    pub(crate) client: ClientId,
    /// The request, until it has a reply.
    pub(crate) request: Option<RequestId>,
    pub(crate) id: ObjectId,
    /// Whether its id was reserved before.
    pub(crate) is_reserved: bool,
    pub(crate) phase: PutPhase,
    /// The owner at which its name is claimed.
    asked: Option<NodeId>,
    /// Whether it was deleted after its name was confirmed.
    is_deleted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutPhase {
    /// It waits for capacity or memory.
    Capacity,
    Name,
    Filling,
}

impl PendingPut {
    pub(crate) const fn new(
        client: ClientId,
        request: RequestId,
        id: ObjectId,
        is_reserved: bool,
    ) -> Self {
        let (request, phase) = (Some(request), PutPhase::Capacity);
        let (asked, is_deleted) = (None, false);
        Self { client, request, id, is_reserved, phase, asked, is_deleted }
    }

    fn claim(&self, instance: Instance, copy: &Copy, now: Instant) -> Announce {
        let progress = match &copy.inline {
            Some(bytes) => Progress::Inline(bytes.clone()),
            None => Progress::Partial { source: None },
        };
        let (id, meta, claim) = (self.id.clone(), copy.meta.clone(), true);
        // A small object is complete when its name is confirmed; there is no further announcement to its owner.
        let is_small = copy.inline.is_some();
        let lifetime = copy.terms.clone().map(|mut terms| {
            if is_small {
                terms.begin(now);
            }
            terms.to_lifetime(now)
        });
        Announce { id, instance, meta, pinned: true, progress, claim, lifetime }
    }

    /// The owner that may grant its name although the primary owner is unresponsive. Only the node of a slot can grant
    /// that.
    fn standby(&self, world: &World) -> Option<NodeId> {
        world.standby(&self.id).filter(|_| !self.id.is_slot())
    }

    /// Whether owners may have an entry for it.
    pub(crate) fn is_announced(&self) -> bool {
        matches!(self.phase, PutPhase::Name | PutPhase::Filling)
    }
}

impl PendingPuts {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn begin(&mut self, instance: Instance, create: PendingPut) {
        self.all.insert(instance, create);
    }

    pub(crate) fn end(&mut self, instance: Instance) -> Option<PendingPut> {
        self.all.remove(&instance)
    }

    pub(crate) fn contains(&self, instance: Instance) -> bool {
        self.all.contains_key(&instance)
    }

    /// An instance that will become this object.
    pub(crate) fn instance_of(&self, id: &ObjectId) -> Option<Instance> {
        self.all.iter().find(|(_, create)| create.id == *id).map(|(instance, _)| *instance)
    }

    /// The owner at which the name of an object is claimed, if any.
    pub(crate) fn claimed_at(&self, instance: Instance) -> Option<NodeId> {
        self.all.get(&instance)?.asked
    }

    pub(crate) fn phase(&self, instance: Instance) -> Option<PutPhase> {
        self.all.get(&instance).map(|create| create.phase)
    }

    /// What an instance will become, and the client that makes it.
    pub(crate) fn maker(&self, instance: Instance) -> Option<(&ObjectId, ClientId)> {
        self.all.get(&instance).map(|create| (&create.id, create.client))
    }

    /// Whether a client other than `client` makes it.
    pub(crate) fn is_of_another(&self, instance: Instance, client: ClientId) -> bool {
        self.all.get(&instance).is_some_and(|create| create.client != client)
    }

    pub(crate) fn of_client(&self, client: ClientId) -> Vec<Instance> {
        let its = self.all.iter().filter(|(_, create)| create.client == client);
        its.map(|(instance, _)| *instance).collect()
    }

    /// The puts that can't succeed, because the node of their slot is gone.
    pub(crate) fn without_slot(&self, world: &World) -> Vec<(Instance, Error)> {
        let claimed = self.all.iter().filter(|(_, create)| create.phase == PutPhase::Name);
        let slots = claimed.filter(|(_, create)| create.id.is_slot());
        let gone = slots.filter_map(|(instance, create)| {
            Some((*instance, world.members().why_unmade(&create.id)?))
        });
        gone.collect()
    }

    /// The instances that clients may be filling.
    pub(crate) fn filling(&self) -> BTreeSet<Instance> {
        let filling = self.all.iter().filter(|(_, create)| create.phase == PutPhase::Filling);
        filling.map(|(instance, _)| *instance).collect()
    }

    /// Claims the name or slot of an object that has capacity and memory. Returns false if it needs no claim: it has
    /// another generated id.
    pub(crate) fn claim_name(
        &mut self,
        instance: Instance,
        table: &Table,
        world: &mut World,
    ) -> bool {
        let (Some(create), Some(copy)) = (self.all.get_mut(&instance), table.get(instance)) else {
            return true;
        };
        create.phase = PutPhase::Name;
        if create.id.minter().is_some() && !create.id.is_slot() {
            return false;
        }
        let owner = world.members().owners(&create.id).primary;
        create.asked = Some(owner);
        let claim = create.claim(instance, copy, world.now());
        if let Some(backup) = create.standby(world) {
            world.send(backup, Message::ClaimAtBackup(claim.clone()));
        }
        world.send(owner, Message::Announce(claim));
        true
    }

    /// Claims the names at their backup owners too, because the primary owner is unresponsive.
    pub(crate) fn primary_unresponsive(&self, primary: NodeId, table: &Table, world: &mut World) {
        let is_claimed = |create: &PendingPut| create.phase == PutPhase::Name;
        let claimed_there = |create: &PendingPut| create.asked == Some(primary);
        let all = self.all.iter().filter(|(_, it)| is_claimed(it) && claimed_there(it));
        for (instance, create) in all {
            if let Some(copy) = table.get(*instance)
                && let Some(backup) = create.standby(world)
            {
                let claim = create.claim(*instance, copy, world.now());
                world.send(backup, Message::ClaimAtBackup(claim));
            }
        }
    }

    /// Repeats claims that will get no reply, after a membership change: `rejoined` has lost its requests. Former
    /// owners do reply. Their replies count, because a new owner may not know their entries yet, and could grant a
    /// name that they refuse.
    pub(crate) fn resend(&mut self, rejoined: Option<NodeId>, table: &Table, world: &mut World) {
        let will_answer =
            |asked: NodeId| world.members().contains(asked) && rejoined != Some(asked);
        let is_void = |create: &PendingPut| {
            create.phase == PutPhase::Name && !create.asked.is_some_and(will_answer)
        };
        let void = self.all.iter().filter(|(_, create)| is_void(create));
        for instance in void.map(|(instance, _)| *instance).collect::<Vec<_>>() {
            self.claim_name(instance, table, world);
        }
    }

    /// Confirms that the name is granted or not needed: the client may fill the object, or it is complete. Returns its
    /// id and the request to reply to.
    pub(crate) fn confirm(&mut self, instance: Instance) -> Option<(ObjectId, Option<RequestId>)> {
        let create = self.all.get_mut(&instance)?;
        create.phase = PutPhase::Filling;
        Some((create.id.clone(), create.request.take()))
    }

    /// Records that an object that may still be filled was deleted.
    pub(crate) fn deleted(&mut self, instance: Instance) {
        if let Some(create) = self.all.get_mut(&instance) {
            create.is_deleted = true;
        }
    }

    /// Ends an object that its client has filled. Returns its id and whether it was deleted meanwhile; `None` if the
    /// client fills no such object.
    pub(crate) fn seal(
        &mut self,
        client: ClientId,
        instance: Instance,
    ) -> Option<(ObjectId, bool)> {
        let is_filling =
            |create: &&PendingPut| create.phase == PutPhase::Filling && create.client == client;
        self.all.get(&instance).filter(is_filling)?;
        self.all.remove(&instance).map(|create| (create.id, create.is_deleted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::Action, meta::Meta, table::State};

    const INSTANCE: Instance = Instance { node: NodeId(1), serial: 1 };

    /// A large object whose name is claimed, and its copy.
    fn asking(id: &str, world: &mut World) -> (PendingPuts, Table) {
        let (mut puts, mut table) = (PendingPuts::default(), Table::new(1 << 20));
        let id: ObjectId = id.parse().expect("it is a name");
        let (meta, state) = (Meta::bytes(1 << 19), State::Filling(ClientId(1)));
        table.insert(INSTANCE, id.clone(), meta, None, state, true);
        puts.begin(INSTANCE, PendingPut::new(ClientId(1), RequestId(1), id, false));
        assert!(puts.claim_name(INSTANCE, &table, world));
        (puts, table)
    }

    fn claims(world: &mut World) -> usize {
        let actions = world.taken();
        let is_claim = |action: &&Action| matches!(action, Action::Send { message: Message::Announce(it), .. } if it.claim);
        actions.iter().filter(is_claim).count() + usize::from(world.next_loopback().is_some())
    }

    #[test]
    fn a_claim_is_repeated_if_no_reply_will_come() {
        let mut world = World::of(3);
        let (mut puts, table) = asking("policy/1", &mut world);
        assert_eq!(claims(&mut world), 1);
        let owner = world.members().owners(&"policy/1".parse().expect("a name")).primary;
        let other = world.others().into_iter().find(|node| *node != owner);
        puts.resend(other, &table, &mut world);
        assert_eq!(claims(&mut world), 0, "the owner will reply");
        puts.resend(Some(owner), &table, &mut world);
        assert_eq!(claims(&mut world), 1, "it has lost the claim");
    }

    #[test]
    fn only_the_client_that_fills_an_object_seals_it_and_once() {
        let mut world = World::of(3);
        let (mut puts, _) = asking("policy/1", &mut world);
        assert_eq!(puts.seal(ClientId(1), INSTANCE), None, "its name is not confirmed");
        assert!(puts.confirm(INSTANCE).is_some_and(|(_, request)| request == Some(RequestId(1))));
        assert_eq!(puts.filling(), BTreeSet::from([INSTANCE]));
        assert_eq!(puts.seal(ClientId(2), INSTANCE), None);
        puts.deleted(INSTANCE);
        assert!(puts.seal(ClientId(1), INSTANCE).is_some_and(|(_, is_deleted)| is_deleted));
        assert_eq!((puts.seal(ClientId(1), INSTANCE), puts.len()), (None, 0));
    }
}

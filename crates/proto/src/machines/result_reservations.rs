//! Names that are reserved for results of reduces. At the owner of the name, an instance represents the reduce.
//!
//! Does not know what reduces decide.

use alloc::{collections::BTreeMap, vec::Vec};

use crate::{
    id::{Instance, NodeId, ReduceId, RequestId},
    machines::{
        client_reservations::{repeat_reservation, reserve_at_backup},
        coordinator::Coordinator,
        membership_change::MembershipChange,
        world::World,
    },
    reduce::Step,
};

/// The reserved names, by reduce.
#[derive(Debug, Default)]
pub(crate) struct ResultReservations {
    all: BTreeMap<ReduceId, Reservation>,
    by_instance: BTreeMap<Instance, ReduceId>,
}

/// A name that is reserved for a reduce.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// Represents the reduce at the owner of the name. No object ever has this instance.
    pub(crate) instance: Instance,
    /// Until the owner has confirmed: the request to reply to, and the first steps of the reduce.
    pub(crate) begins: Option<(RequestId, Vec<Step>)>,
}

impl ResultReservations {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The reduce for which this instance reserves a name.
    pub(crate) fn reduce_of(&self, instance: Instance) -> Option<ReduceId> {
        self.by_instance.get(&instance).copied()
    }

    pub(crate) fn begin(&mut self, key: ReduceId, reservation: Reservation) {
        self.by_instance.insert(reservation.instance, key);
        self.all.insert(key, reservation);
    }

    /// Ends the reservation of a reduce.
    pub(crate) fn remove(&mut self, key: ReduceId) -> Option<Reservation> {
        let reservation = self.all.remove(&key)?;
        self.by_instance.remove(&reservation.instance);
        Some(reservation)
    }

    pub(crate) fn get_mut(&mut self, key: ReduceId) -> Option<&mut Reservation> {
        self.all.get_mut(&key)
    }

    /// Requests the names at their backup owners too, because the primary owner is unresponsive.
    pub(crate) fn primary_unresponsive(
        &self,
        primary: NodeId,
        coordinator: &Coordinator,
        world: &mut World,
    ) {
        for (key, Reservation { instance, begins }) in &self.all {
            let Some(reduce) = coordinator.get(*key).filter(|_| begins.is_some()) else { continue };
            if world.members().owners(reduce.result()).primary == primary {
                reserve_at_backup(reduce.result(), *instance, world);
            }
        }
    }

    /// Sends confirmed reservations to new owners, and repeats unconfirmed ones.
    pub(crate) fn resend(
        &self,
        coordinator: &Coordinator,
        change: &MembershipChange,
        world: &mut World,
    ) {
        for (key, Reservation { instance, begins }) in &self.all {
            let Some(reduce) = coordinator.get(*key) else { continue };
            repeat_reservation(reduce.result(), *instance, begins.is_none(), change, world);
        }
    }
}

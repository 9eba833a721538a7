//! Leases that clients of this node have taken: of their jobs, and of objects.
//!
//! The owners of a lease record which nodes have such clients ([`crate::directory`]). This node reports it to them
//! when the first client takes the lease, when the last one is gone, and again when the owners have changed. It
//! remembers a released lease for as long as the owners wait, so that a new owner learns of the release too. Does not
//! know objects.

use alloc::{collections::BTreeMap, vec::Vec};

use crate::{
    id::{ClientId, Name},
    lifetime::Lease,
    limits::LEASE_GRACE_NS,
    machines::{membership_change::MembershipChange, world::World},
    message::Message,
    time::Instant,
    timed::{Deadline, Timed},
};

#[derive(Debug, Default)]
pub(crate) struct ClientLeases {
    taken: Timed<Lease, LeaseHolders>,
    jobs: BTreeMap<ClientId, Name>,
}

/// The clients that have taken a lease, and how often each.
#[derive(Debug, Default)]
struct LeaseHolders {
    by: BTreeMap<ClientId, u32>,
    /// When to forget that the last client is gone.
    forgotten_at: Option<Instant>,
}

impl Deadline for LeaseHolders {
    fn deadline(&self) -> Option<Instant> {
        self.forgotten_at
    }
}

impl ClientLeases {
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.taken.deadline()
    }

    /// The number of leases that clients have.
    pub(crate) fn len(&self) -> usize {
        self.taken.values().filter(|taken| !taken.by.is_empty()).count()
    }

    /// The job of a client.
    pub(crate) fn job(&self, client: ClientId) -> Option<Name> {
        self.jobs.get(&client).cloned()
    }

    /// Makes later objects of a client belong to a job.
    pub(crate) fn join(&mut self, client: ClientId, job: Name, world: &mut World) {
        let left = self.jobs.insert(client, job.clone());
        self.acquire(client, Lease::Job(job), world);
        if let Some(left) = left {
            self.release(client, &Lease::Job(left), world);
        }
    }

    pub(crate) fn acquire(&mut self, client: ClientId, lease: Lease, world: &mut World) {
        if !self.taken.contains_key(&lease) {
            self.taken.insert(lease.clone(), LeaseHolders::default());
        }
        let is_first = self.taken.update(&lease, |taken| {
            let is_first = taken.by.is_empty();
            *taken.by.entry(client).or_default() += 1;
            taken.forgotten_at = None;
            is_first
        });
        if is_first == Some(true) {
            tell_owners(&lease, true, world);
        }
    }

    pub(crate) fn release(&mut self, client: ClientId, lease: &Lease, world: &mut World) {
        let is_last = self.taken.update(lease, |taken| {
            let Some(times) = taken.by.get_mut(&client) else { return false };
            *times -= 1;
            if *times == 0 {
                taken.by.remove(&client);
            }
            taken.ends_if_last(world.now())
        });
        if is_last == Some(true) {
            tell_owners(lease, false, world);
        }
    }

    /// Releases all leases of a client that is gone.
    pub(crate) fn client_disconnected(&mut self, client: ClientId, world: &mut World) {
        self.jobs.remove(&client);
        let its = self.taken.iter().filter(|(_, taken)| taken.by.contains_key(&client));
        for lease in its.map(|(lease, _)| lease.clone()).collect::<Vec<Lease>>() {
            let is_last = self.taken.update(&lease, |taken| {
                taken.by.remove(&client);
                taken.ends_if_last(world.now())
            });
            if is_last == Some(true) {
                tell_owners(&lease, false, world);
            }
        }
    }

    /// Reports leases to owners that are new, or need everything again.
    pub(crate) fn reannounce(&self, change: &MembershipChange, world: &mut World) {
        for (lease, taken) in self.taken.iter() {
            let is_held = !taken.by.is_empty();
            for owner in change.new_owners(&lease.place(), world) {
                world.send(owner, Message::LeaseUpdate { lease: lease.clone(), is_held });
            }
        }
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        for lease in self.taken.due(now) {
            self.taken.remove(&lease);
        }
    }
}

impl LeaseHolders {
    /// Schedules that the lease is forgotten, if its last client is gone. Returns whether it is.
    fn ends_if_last(&mut self, now: Instant) -> bool {
        let is_last = self.by.is_empty();
        self.forgotten_at = is_last.then_some(now + LEASE_GRACE_NS);
        is_last
    }
}

fn tell_owners(lease: &Lease, is_held: bool, world: &mut World) {
    world.send_owners(&lease.place(), &Message::LeaseUpdate { lease: lease.clone(), is_held });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Action;

    const LEASE: &str = "run-7";

    fn lease() -> Lease {
        Lease::Job(LEASE.parse().expect("a name"))
    }

    /// The reports to owners; equal reports to both owners count once.
    fn told(world: &mut World) -> Vec<bool> {
        let mut told = Vec::new();
        while world.next_loopback().is_some() {}
        for action in world.taken() {
            if let Action::Send { message: Message::LeaseUpdate { is_held, .. }, .. } = action {
                told.push(is_held);
            }
        }
        told.dedup();
        told
    }

    #[test]
    fn owners_are_notified_of_the_first_taker_and_the_last() {
        let (mut leases, mut world) = (ClientLeases::default(), World::of(3));
        let job: Name = LEASE.parse().expect("a name");
        leases.join(ClientId(1), job.clone(), &mut world);
        assert_eq!(told(&mut world), [true]);
        leases.join(ClientId(2), job.clone(), &mut world);
        leases.acquire(ClientId(2), lease(), &mut world);
        leases.client_disconnected(ClientId(1), &mut world);
        leases.release(ClientId(2), &lease(), &mut world);
        assert_eq!(told(&mut world), [false; 0]);
        assert_eq!((leases.job(ClientId(1)), leases.job(ClientId(2))), (None, Some(job)));
        leases.release(ClientId(2), &lease(), &mut world);
        leases.release(ClientId(2), &lease(), &mut world);
        assert_eq!(told(&mut world), [false]);
        assert_eq!((leases.len(), leases.deadline()), (0, Some(Instant(LEASE_GRACE_NS))));
        leases.expire(Instant(LEASE_GRACE_NS));
        assert_eq!(leases.deadline(), None);
    }

    #[test]
    fn a_client_of_another_job_leaves_its_first_one() {
        let (mut leases, mut world) = (ClientLeases::default(), World::of(3));
        let job = |name: &str| name.parse().expect("a name");
        leases.join(ClientId(1), job(LEASE), &mut world);
        leases.join(ClientId(1), job(LEASE), &mut world);
        assert_eq!(leases.len(), 1);
        leases.join(ClientId(1), job("run-8"), &mut world);
        assert_eq!(leases.len(), 1);
        leases.client_disconnected(ClientId(1), &mut world);
        assert_eq!(leases.len(), 0);
    }
}

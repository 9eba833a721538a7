//! Leases that clients of this node have taken: of their jobs, and of objects.
//!
//! The owners of a lease record which nodes have such clients ([`crate::directory`]). This node
//! reports it to them when the first client takes the lease, when the last one is gone, and again
//! when the owners have changed. It remembers a released lease for as long as the owners wait, so
//! that a new owner learns of the release too. Does not know objects.

use alloc::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use crate::{
    event::Action,
    id::{ClientId, Name, RequestId},
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
    /// The leases of each client.
    by_client: BTreeMap<ClientId, BTreeSet<Lease>>,
    /// Clients that are gone and still have leases, which may be very many.
    ending: BTreeSet<ClientId>,
    /// When to continue with those.
    resumes_at: Instant,
    jobs: BTreeMap<ClientId, Name>,
}

/// The clients that have taken a lease, and how often each.
#[derive(Debug, Default)]
struct LeaseHolders {
    by: BTreeMap<ClientId, LeaseHolder>,
    /// The request of the last client that is gone, which ends when the lease is forgotten or taken
    /// again.
    last: Option<RequestId>,
    /// When to forget that the last client is gone.
    forgotten_at: Option<Instant>,
}

/// A client that has taken a lease.
#[derive(Debug)]
struct LeaseHolder {
    times: u32,
    /// The first request, whose work ends with the lease.
    request: RequestId,
}

impl Deadline for LeaseHolders {
    fn deadline(&self) -> Option<Instant> {
        self.forgotten_at
    }
}

impl ClientLeases {
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next_slice = (!self.ending.is_empty()).then_some(self.resumes_at);
        self.taken.deadline().into_iter().chain(next_slice).min()
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
    pub(crate) fn join(
        &mut self,
        client: ClientId,
        request: RequestId,
        job: Name,
        world: &mut World,
    ) {
        let left = self.jobs.insert(client, job.clone());
        self.acquire(client, request, Lease::Job(job), world);
        if let Some(left) = left {
            self.release(client, &Lease::Job(left), world);
        }
    }

    pub(crate) fn acquire(
        &mut self,
        client: ClientId,
        request: RequestId,
        lease: Lease,
        world: &mut World,
    ) {
        if !self.taken.contains_key(&lease) {
            self.taken.insert(lease.clone(), LeaseHolders::default());
        }
        let is_first = self.taken.update(&lease, |taken| {
            let is_first = taken.by.is_empty();
            taken.forgotten_at = None;
            if let Some(request) = taken.last.take() {
                world.act(Action::WorkEnded { request });
            }
            match taken.by.entry(client) {
                Entry::Vacant(entry) => {
                    self.by_client.entry(client).or_default().insert(lease.clone());
                    entry.insert(LeaseHolder { times: 1, request });
                }
                Entry::Occupied(mut entry) => {
                    entry.get_mut().times += 1;
                    world.act(Action::WorkEnded { request });
                }
            }
            is_first
        });
        if is_first == Some(true) {
            tell_owners(&lease, true, world);
        }
    }

    pub(crate) fn release(&mut self, client: ClientId, lease: &Lease, world: &mut World) {
        let is_over = self.taken.update(lease, |taken| {
            let Some(holder) = taken.by.get_mut(&client) else { return false };
            holder.times -= 1;
            holder.times == 0
        });
        if is_over == Some(true) {
            self.end(client, lease, world);
        }
    }

    /// Releases a lease, however often the client has taken it.
    fn end(&mut self, client: ClientId, lease: &Lease, world: &mut World) {
        if let Some(leases) = self.by_client.get_mut(&client) {
            leases.remove(lease);
        }
        let is_last = self.taken.update(lease, |taken| taken.remove(client, world));
        if is_last == Some(true) {
            tell_owners(lease, false, world);
        }
    }

    /// Releases all leases of a client that is gone: a slice now, and the others later.
    pub(crate) fn client_disconnected(&mut self, client: ClientId, world: &mut World) {
        self.jobs.remove(&client);
        self.ending.insert(client);
        self.end_slice(world);
    }

    fn end_slice(&mut self, world: &mut World) {
        if self.resumes_at > world.now() {
            return;
        }
        let mut left = world.slice();
        while left > 0
            && let Some(client) = self.ending.first().copied()
        {
            let leases = self.by_client.get(&client);
            if let Some(lease) = leases.and_then(BTreeSet::first).cloned() {
                self.end(client, &lease, world);
                left -= 1;
            } else {
                self.by_client.remove(&client);
                self.ending.remove(&client);
            }
        }
        if !self.ending.is_empty() {
            self.resumes_at = world.now() + world.config().slice.pause_ns;
        }
    }

    /// The lease after another one, or the first.
    pub(crate) fn next_after(&self, after: Option<&Lease>) -> Option<Lease> {
        self.taken.next_after(after)
    }

    /// Reports a lease to owners that are new, or need everything again.
    pub(crate) fn reannounce(&self, lease: &Lease, change: &MembershipChange, world: &mut World) {
        let Some(taken) = self.taken.get(lease) else { return };
        let is_held = !taken.by.is_empty();
        for owner in change.new_owners(&lease.place(), world) {
            world.send(owner, Message::LeaseUpdate { lease: lease.clone(), is_held });
        }
    }

    pub(crate) fn expire(&mut self, world: &mut World) {
        self.end_slice(world);
        for lease in self.taken.due(world.now()) {
            let request = self.taken.remove(&lease).and_then(|taken| taken.last);
            if let Some(request) = request {
                world.act(Action::WorkEnded { request });
            }
        }
    }
}

impl LeaseHolders {
    /// Removes a client. Schedules that the lease is forgotten, if that was the last one. Returns
    /// whether it was.
    fn remove(&mut self, client: ClientId, world: &mut World) -> bool {
        let Some(LeaseHolder { request, .. }) = self.by.remove(&client) else { return false };
        let is_last = self.by.is_empty();
        if is_last {
            self.forgotten_at = Some(world.now() + LEASE_GRACE_NS);
            self.last = Some(request);
        } else {
            world.act(Action::WorkEnded { request });
        }
        is_last
    }
}

fn tell_owners(lease: &Lease, is_held: bool, world: &mut World) {
    world.send_owners(&lease.place(), &Message::LeaseUpdate { lease: lease.clone(), is_held });
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

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

    fn expire(leases: &mut ClientLeases, world: &mut World) {
        world.begin(leases.deadline().expect("a released lease"), &mut Vec::new());
        leases.expire(world);
    }

    /// Which requests hold nothing more, in the order of their ends.
    fn ended(world: &mut World) -> Vec<u64> {
        let ended = |action: &Action| match action {
            Action::WorkEnded { request } => Some(request.0),
            _ => None,
        };
        world.taken().iter().filter_map(ended).collect()
    }

    #[test]
    fn each_client_of_a_lease_holds_it_and_the_last_one_until_it_is_forgotten() {
        let (mut leases, mut world) = (ClientLeases::default(), World::of(3));
        let (one, two) = (ClientId(1), ClientId(2));
        for (client, request) in [(one, 1), (one, 2), (two, 3)] {
            leases.acquire(client, RequestId(request), lease(), &mut world);
        }
        assert_eq!(ended(&mut world), [2]);
        leases.release(one, &lease(), &mut world);
        leases.release(two, &lease(), &mut world);
        assert_eq!(ended(&mut world), [3]);
        leases.client_disconnected(one, &mut world);
        assert_eq!(ended(&mut world), [0; 0]);
        leases.acquire(two, RequestId(4), lease(), &mut world);
        assert_eq!(ended(&mut world), [1]);
        leases.release(two, &lease(), &mut world);
        assert_eq!(ended(&mut world), [0; 0]);
        expire(&mut leases, &mut world);
        assert_eq!(ended(&mut world), [4]);
    }

    #[test]
    fn owners_are_notified_of_the_first_taker_and_the_last() {
        let (mut leases, mut world) = (ClientLeases::default(), World::of(3));
        let job: Name = LEASE.parse().expect("a name");
        leases.join(ClientId(1), RequestId(1), job.clone(), &mut world);
        assert_eq!(told(&mut world), [true]);
        leases.join(ClientId(2), RequestId(2), job.clone(), &mut world);
        leases.acquire(ClientId(2), RequestId(3), lease(), &mut world);
        leases.client_disconnected(ClientId(1), &mut world);
        leases.release(ClientId(2), &lease(), &mut world);
        assert_eq!(told(&mut world), [false; 0]);
        assert_eq!((leases.job(ClientId(1)), leases.job(ClientId(2))), (None, Some(job)));
        leases.release(ClientId(2), &lease(), &mut world);
        leases.release(ClientId(2), &lease(), &mut world);
        assert_eq!(told(&mut world), [false]);
        assert_eq!((leases.len(), leases.deadline()), (0, Some(Instant(LEASE_GRACE_NS))));
        expire(&mut leases, &mut world);
        assert_eq!(leases.deadline(), None);
    }

    #[test]
    fn a_client_of_another_job_leaves_its_first_one() {
        let (mut leases, mut world) = (ClientLeases::default(), World::of(3));
        let job = |name: &str| name.parse().expect("a name");
        leases.join(ClientId(1), RequestId(1), job(LEASE), &mut world);
        leases.join(ClientId(1), RequestId(1), job(LEASE), &mut world);
        assert_eq!(leases.len(), 1);
        leases.join(ClientId(1), RequestId(1), job("run-8"), &mut world);
        assert_eq!(leases.len(), 1);
        leases.client_disconnected(ClientId(1), &mut world);
        assert_eq!(leases.len(), 0);
    }
}

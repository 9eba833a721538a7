//! The end of objects that are not deleted by a client: their time is over, or their lease is: of their job, or of the object.
//!
//! The first owner of an object ends it, and tells the second. The owners of a lease know which members have clients that
//! took it; if none has for [`LEASE_GRACE_NS`], the first owner ends the object, or tells those members that own objects of
//! the job. All this is told again when members change, like what is known of copies.
//!
//! ```text
//!   clients --Leased--> owners of the job <--Covers-- owners of its objects
//!                             |                            ^
//!                             +---------- JobEnded --------+  again until they own none any more
//! ```

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::Bound;

use super::{Directory, world::World};
use crate::{
    error::Error,
    id::{Name, NodeId, ObjectId},
    lifetime::{Lease, Terms},
    limits::{LEASE_GRACE_NS, LEASES_MAX, OWNER_PATIENCE_NS},
    message::Message,
    planted::{self, Bug},
    time::Instant,
    timed::{Deadline, Timed},
};

#[derive(Debug, Default)]
pub(super) struct Leases {
    /// Those that this node owns; and for a while those that it does not, as it sees the members.
    all: Timed<Lease, Record>,
    /// Objects of this part of the directory, by the job whose end is theirs. They may be gone since.
    covered: BTreeMap<Name, Covered>,
    /// Jobs that have ended, behind which object the next slice begins, and when it is worked off.
    ending: BTreeMap<Name, Option<ObjectId>>,
    resumed_at: Instant,
}

/// Who has taken a lease, and who owns objects that live as long as it.
#[derive(Debug, Default)]
struct Record {
    takers: BTreeSet<NodeId>,
    coverers: BTreeSet<NodeId>,
    /// When it is looked at: it is over, or others own it.
    look_at: Option<Instant>,
}

impl Deadline for Record {
    fn deadline(&self) -> Option<Instant> {
        self.look_at
    }
}

impl Record {
    /// If no client has it any more, it is over after the grace.
    fn ends_if_untaken(&mut self, now: Instant) {
        if !self.takers.is_empty() {
            self.look_at = None;
        } else if self.look_at.is_none() {
            self.look_at = Some(now + LEASE_GRACE_NS);
        }
    }
}

#[derive(Debug, Default)]
struct Covered {
    ids: BTreeSet<ObjectId>,
    /// How many they were when those that are gone were last sorted out.
    sorted: usize,
}

/// How many objects may be gone before they are sorted out, beside as many as there are.
const GONE_MAX: usize = 1024;

impl Leases {
    pub(super) fn deadline(&self) -> Option<Instant> {
        let resumed = (!self.ending.is_empty()).then_some(self.resumed_at);
        self.all.deadline().into_iter().chain(resumed).min()
    }

    /// False if there are too many already.
    fn change(&mut self, now: Instant, lease: Lease, change: impl FnOnce(&mut Record)) -> bool {
        if !self.all.contains_key(&lease) {
            if self.all.len() >= LEASES_MAX {
                return false;
            }
            self.all.insert(lease.clone(), Record::default());
        }
        self.all.update(&lease, |record| {
            change(record);
            record.ends_if_untaken(now);
        });
        true
    }

    /// Clients of a member have taken a lease, or have it no more; false if there are too many leases already.
    pub(super) fn leased(
        &mut self,
        now: Instant,
        from: NodeId,
        lease: &Lease,
        is_taken: bool,
    ) -> bool {
        self.change(now, lease.clone(), |record| {
            if is_taken {
                record.takers.insert(from);
            } else {
                record.takers.remove(&from);
            }
        })
    }

    /// A member owns objects of a job, or none any more; false if there are too many leases already.
    pub(super) fn covers(&mut self, now: Instant, from: NodeId, job: &Name, covers: bool) -> bool {
        let lease = Lease::Job(job.clone());
        if covers {
            self.change(now, lease, |record| {
                record.coverers.insert(from);
            })
        } else {
            self.all.update(&lease, |record| record.coverers.remove(&from));
            true
        }
    }

    /// A member is gone with its clients and its part of the directory.
    pub(super) fn member_gone(&mut self, now: Instant, node: NodeId) {
        if planted::has(Bug::KeepsLeasesOfTheDead) {
            return;
        }
        for lease in self.all.keys().cloned().collect::<Vec<Lease>>() {
            self.all.update(&lease, |record| {
                record.coverers.remove(&node);
                if record.takers.remove(&node) {
                    record.ends_if_untaken(now);
                }
            });
        }
    }

    /// Leases have other owners: what others own is kept for a while, since they may not all have heard of it. Who owns
    /// objects of jobs tells the owners of those.
    pub(super) fn members_changed(&mut self, world: &mut World<'_>, stray_ns: u64) {
        for lease in self.all.keys().cloned().collect::<Vec<Lease>>() {
            self.keep_for_a_while(world, &lease, stray_ns);
        }
        for job in self.covered.keys() {
            tell_of_objects(job, true, world);
        }
    }

    /// What is told of a lease that others own is kept for a while: this node may not have heard yet that it is its own.
    pub(super) fn keep_for_a_while(&mut self, world: &World<'_>, lease: &Lease, stray_ns: u64) {
        let (now, members) = (world.now, world.members);
        if !members.owners(&lease.place()).contains(members.me()) {
            self.all.update(lease, |record| {
                record.look_at.get_or_insert(now + stray_ns);
            });
        }
    }

    /// An object of a job is known here.
    pub(super) fn cover(&mut self, job: &Name, id: &ObjectId, world: &mut World<'_>) {
        let covered = self.covered.entry(job.clone()).or_default();
        if covered.ids.is_empty() {
            tell_of_objects(job, true, world);
        }
        covered.ids.insert(id.clone());
    }
}

fn tell_of_objects(job: &Name, covers: bool, world: &mut World<'_>) {
    let members = world.members;
    let place = ObjectId::Named(job.clone());
    for owner in members.owners(&place).iter() {
        world.mail.push((owner, Message::Covers { job: job.clone(), covers }));
    }
}

impl Directory {
    /// How long a living object lives is known, or known better.
    pub(super) fn bind(&mut self, world: &mut World<'_>, id: &ObjectId, told: &Terms) {
        let now = world.now;
        let live = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut());
        let Some(live) = live else { return };
        let terms = live.terms.get_or_insert_default();
        terms.join(told);
        if let Some(at) = terms.ends_at {
            // What is told of it when its time is over is no news in this moment.
            self.alarms.insert((at.max(now + 1), id.clone()));
        }
        let Some(job) = terms.lease().cloned() else { return };
        self.leases.cover(&job, id, world);
        let covered = self.leases.covered.get(&job);
        if covered.is_some_and(|covered| covered.ids.len() > 2 * covered.sorted + GONE_MAX) {
            self.sort_out(&job, world);
        }
    }

    /// Ends an object whose time is over. The second owner hears of it, and looks again in case the first can't tell.
    pub(super) fn end_in_time(&mut self, world: &mut World<'_>, id: &ObjectId) {
        let (now, members) = (world.now, world.members);
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        let ends_at = live.and_then(|live| live.terms.as_ref()).and_then(|terms| terms.ends_at);
        if ends_at.is_none_or(|at| at > now) || planted::has(Bug::ForgetsTimes) {
            return;
        }
        let owners = members.owners(id);
        if owners.first == members.me() {
            self.end(world, id);
        } else if owners.contains(members.me()) {
            self.alarms.insert((now + OWNER_PATIENCE_NS, id.clone()));
        }
    }

    /// Deletes what has an id now, and tells the other owner.
    fn end(&mut self, world: &mut World<'_>, id: &ObjectId) {
        let members = world.members;
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        let Some(instance) = live.map(|live| live.instance) else { return };
        let error = Error::ObjectDeleted { id: id.clone() };
        self.bury(world, id, error, Vec::from([instance]));
        let (me, owners) = (members.me(), members.owners(id));
        if let Some(entry) = self.entries.get_mut(id) {
            if let Some(gone) = &mut entry.gone {
                gone.tell(id, owners.iter().filter(|owner| *owner != me), world.mail);
            }
            entry.answer_locators(id, world.mail);
        }
    }

    /// A job has ended: so do its objects that this node is the first owner of, a slice at a time.
    pub(super) fn job_ended(&mut self, world: &mut World<'_>, job: &Name) {
        if !self.leases.covered.contains_key(job) {
            // It was said before that there are none, and the answer is lost.
            return tell_of_objects(job, false, world);
        }
        self.leases.ending.entry(job.clone()).or_default();
        self.end_some(world);
    }

    fn end_some(&mut self, world: &mut World<'_>) {
        let (now, members) = (world.now, world.members);
        let Some((job, after)) = self.leases.ending.pop_first() else { return };
        let begin = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let covered = self.leases.covered.get(&job);
        let ids =
            covered.iter().flat_map(|it| it.ids.range::<ObjectId, _>((begin, Bound::Unbounded)));
        let ids: Vec<ObjectId> = ids.take(self.slice.entries).cloned().collect();
        for id in &ids {
            self.settle(world, id);
            if self.is_of(id, &job) && members.owners(id).first == members.me() {
                self.end(world, id);
            }
        }
        match ids.last().filter(|_| ids.len() == self.slice.entries) {
            Some(last) => drop(self.leases.ending.insert(job, Some(last.clone()))),
            None => self.sort_out(&job, world),
        }
        self.leases.resumed_at = now + self.slice.pause_ns;
    }

    /// Whether an object lives, and as long as a job does.
    fn is_of(&self, id: &ObjectId, job: &Name) -> bool {
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        let terms = live.and_then(|live| live.terms.as_ref());
        terms.and_then(|terms| terms.lease()) == Some(job)
    }

    /// Forgets the objects of a job that are gone.
    fn sort_out(&mut self, job: &Name, world: &mut World<'_>) {
        let Some(mut covered) = self.leases.covered.remove(job) else { return };
        covered.ids.retain(|id| self.is_of(id, job));
        covered.sorted = covered.ids.len();
        if covered.ids.is_empty() {
            tell_of_objects(job, false, world);
        } else {
            self.leases.covered.insert(job.clone(), covered);
        }
    }

    /// Looks at the leases whose time is here.
    pub(super) fn expire_leases(&mut self, world: &mut World<'_>) {
        let now = world.now;
        if !self.leases.ending.is_empty() && self.leases.resumed_at <= now {
            self.end_some(world);
        }
        for lease in self.leases.all.due(now) {
            if !self.is_still_kept(world, &lease) {
                self.leases.all.remove(&lease);
            }
        }
    }

    /// Does what is to be done about a lease; whether it is to be remembered.
    fn is_still_kept(&mut self, world: &mut World<'_>, lease: &Lease) -> bool {
        let (now, members) = (world.now, world.members);
        let owners = members.owners(&lease.place());
        let (is_owner, is_first) = (owners.contains(members.me()), owners.first == members.me());
        let is_taken = self.leases.all.get(lease).is_some_and(|record| !record.takers.is_empty());
        if is_owner && !is_taken {
            match lease {
                Lease::Job(job) => {
                    let record = self.leases.all.get(lease);
                    let coverers = record.iter().flat_map(|record| &record.coverers);
                    let coverers: Vec<NodeId> = coverers.copied().collect();
                    if coverers.is_empty() {
                        return false;
                    }
                    for node in coverers.into_iter().filter(|_| is_first) {
                        world.mail.push((node, Message::JobEnded { job: job.clone() }));
                    }
                }
                Lease::Object(id) => {
                    self.settle(world, id);
                    if is_first {
                        self.end(world, id);
                    }
                    if self.entries.get(id).is_none_or(|entry| entry.live.is_none()) {
                        return false;
                    }
                }
            }
        }
        let look_at = (is_owner && !is_taken).then_some(now + LEASE_GRACE_NS);
        self.leases.all.update(lease, |record| record.look_at = look_at);
        is_owner
    }

    /// How many leases this node keeps as an owner; for checkers.
    pub fn leases(&self) -> usize {
        self.leases.all.len()
    }
}

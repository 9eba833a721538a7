//! The directory: for each object that this node owns, who holds it, who wants it, who watches it.
//!
//! Events are messages of holders and askers, the departure of members, and time; the answers are messages.
//! Everything here can be told again by the nodes that hold the objects, so losing it loses no object.
//! Knows nothing of bytes, connections or clients.
//!
//! The files hold what holders tell ([`copies`]), what is asked ([`asking`], [`names`], [`list`]), deletions ([`deletion`]),
//! what ends by itself ([`leases`]),
//! and what a change of members touches ([`sweep`]).
//!
//! ```text
//!              Announce               no node can complete it, for a grace
//!   unknown ------------> live -----------------------------------------> unknown, askers told ObjectLost
//!      ^                   | Delete, Fail
//!      |  TOMBSTONE_NS     v
//!      +---------------- gone (askers are told why at once)
//! ```

mod accounts;
mod asking;
#[cfg(test)]
mod bounds_tests;
mod copies;
mod deletion;
mod entry;
mod leases;
mod list;
mod live;
mod names;
mod paces;
#[cfg(test)]
mod paces_tests;
mod paths;
mod ranking;
mod reports;
#[cfg(test)]
mod small_tests;
mod speeds;
mod status;
mod sweep;
#[cfg(test)]
mod sweep_tests;
#[cfg(test)]
mod tests;
mod tree;
mod world;

use alloc::{
    boxed::Box,
    collections::{BTreeSet, VecDeque},
    format,
    string::String,
    vec::Vec,
};

use self::{
    accounts::Accounts,
    copies::Parked,
    entry::{Entry, Locator, Waiter},
    leases::Leases,
    names::LatestWaiter,
    speeds::Speeds,
    sweep::Entries,
};
pub use self::{
    names::prefix_owner,
    sweep::Slice,
    world::{Mail, World},
};
use crate::{
    error::Error,
    id::{NodeId, ObjectId},
    lifetime::Lease,
    limits::{ENTRIES_MAX, MERGE_NS, ORPHAN_GRACE_NS, STRAY_NS, TOMBSTONE_NS, limit_name},
    members::Members,
    message::Message,
    planted::{self, Bug},
    time::Instant,
};

/// What a message was to the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is meant for no owner.
    No,
    /// The directory has taken it.
    Yes,
    /// A node asked for a sender of this object.
    SenderAsked(ObjectId),
    /// This object was deleted.
    Deleted(ObjectId),
}

/// The entries this node keeps as first or second owner.
#[derive(Debug)]
pub struct Directory {
    entries: Entries,
    /// Who waits for a newer name under a prefix.
    latest: Vec<LatestWaiter>,
    /// When something has to be looked at again: orphans to give up, entries that others own.
    alarms: BTreeSet<(Instant, ObjectId)>,
    /// Deletions and losses, oldest first, and until when they are remembered.
    remembered: VecDeque<(Instant, ObjectId)>,
    /// How long entries are kept that others own, as this node sees the members.
    stray_ns: u64,
    /// Members had given this node up, and tell it from then, and until then, what happened meanwhile.
    catching_up_since: Instant,
    catching_up_until: Instant,
    /// When members changed last, so that this node may own what its holders have not told it of.
    changed_at: Option<Instant>,
    /// Members were met again, and may not have told everything before then.
    merging_until: Instant,
    /// Announcements of other instances than those that are known here, which wait until then.
    parked: Vec<Parked>,
    /// What the bytes of small objects cost the members that told them.
    accounts: Accounts,
    /// Limits that have turned away what members said since this was last asked.
    limited: Vec<(NodeId, &'static str)>,
    /// How fast nodes are.
    speeds: Speeds,
    /// For which reasons objects live on.
    leases: Leases,
    /// How much of a change of members is worked off in one go, and when the next of it is.
    slice: Slice,
    next_slice_at: Instant,
    /// When the rest of what is due is looked at: after a change of members that may be as much as there is.
    resumed_at: Instant,
}

impl Default for Directory {
    fn default() -> Self {
        Self::new(None, Slice::default(), u64::MAX)
    }
}

impl Directory {
    /// One that knows nothing. `detection_ns`: for how long members may take one for alive whose end others know of.
    /// `small`: how many bytes of small objects of other members there is room for.
    pub fn new(detection_ns: Option<u64>, slice: Slice, small: u64) -> Self {
        let stray_ns = detection_ns.unwrap_or(0).saturating_mul(2).max(STRAY_NS);
        Self {
            entries: Entries::default(),
            slice,
            next_slice_at: Instant::default(),
            resumed_at: Instant::default(),
            latest: Vec::new(),
            alarms: BTreeSet::new(),
            remembered: VecDeque::new(),
            stray_ns,
            changed_at: None,
            catching_up_since: Instant::default(),
            catching_up_until: Instant::default(),
            merging_until: Instant::default(),
            parked: Vec::new(),
            accounts: Accounts::new(small, ENTRIES_MAX),
            limited: Vec::new(),
            speeds: Speeds::default(),
            leases: Leases::default(),
        }
    }

    /// Takes a message, if it is meant for an owner.
    pub fn handle(&mut self, world: &mut World<'_>, from: NodeId, message: &Message) -> Taken {
        let now = world.now;
        self.speeds.heard(from);
        self.settle_for(world, message);
        match message {
            Message::Announce(announce) => {
                let is_awaited = self.announce(world, from, announce);
                self.keep_for_a_while(world, &announce.id);
                if !is_awaited {
                    return Taken::Yes;
                }
            }
            Message::Withdraw { id, instance } => {
                self.withdraw(world, from, id, *instance);
            }
            Message::Locate { id, avoid, not_here, receives, seen } => {
                self.speeds.says(now, from, *receives);
                if let Some((holder, instance)) = not_here
                    && self.is_refusal_news(id, from, *holder)
                {
                    self.doubt_copy(world, *holder, id, *instance);
                }
                let (avoid, yields_until) = (avoid.clone(), None);
                let waiter = Waiter { node: from, avoid, yields_until, seen: *seen };
                self.seek_sender(world, waiter, id);
                return Taken::SenderAsked(id.clone());
            }
            Message::Paced(_) if planted::has(Bug::IgnoresPaces) => {}
            Message::Paced(paced) => self.paced(world, from, paced),
            Message::Unlocate { id } => self.unlocate(from, id),
            Message::Watch { id, seen } => self.watch(world, from, id, *seen),
            Message::Unwatch { id } => {
                if let Some(entry) = self.entries.get_mut(id) {
                    entry.take_back(|asking| {
                        asking.watchers.remove(&from);
                    });
                }
                self.forget_if_empty(id);
            }
            Message::Locations { id, known, request } => {
                self.locations(world, from, id, known.clone(), *request);
            }
            Message::Unlocations { id, request } => {
                if let Some(entry) = self.entries.get_mut(id) {
                    let is_other = |locator: &Locator| !locator.is(from, *request);
                    entry.take_back(|asking| asking.locators.retain(is_other));
                }
                self.forget_if_empty(id);
            }
            Message::Reserve { id, instance } => {
                self.reserve(world, from, id, *instance);
                self.keep_for_a_while(world, id);
            }
            Message::Delete { id, request, pruned } => {
                self.delete(world, from, id, *request, *pruned);
                self.pass_on(id, world);
            }
            Message::Dropped { id, instance } => self.dropped(from, id, *instance, world.mail),
            Message::Fail { id, error, reserved } => {
                let entry = self.entries.get(id);
                let is_over = |entry: &Entry| reserved.is_some_and(|it| entry.is_over(now, &it));
                // A name may be another object's meanwhile.
                let maker = entry.and_then(|entry| entry.maker());
                if entry.is_some_and(is_over) {
                    // The name was deleted meanwhile, and is free.
                } else if id.minter().is_some() || maker.is_none_or(|maker| maker == from) {
                    self.bury(world, id, error.clone(), Vec::new());
                    self.pass_on(id, world);
                } else if let Some(entry) = self.entries.get_mut(id) {
                    entry.reserved.take_if(|reserved| reserved.instance.node == from);
                }
            }
            Message::Abandon { id, instance } => {
                let live = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut());
                if let Some(live) = live.filter(|live| live.instance == *instance)
                    && live.tree.get(from).is_some()
                {
                    live.abandoned_by = Some(Box::new(from));
                }
            }
            Message::Leased { lease, is_taken } => {
                if !self.leases.leased(now, from, lease, *is_taken) {
                    self.limited.push((from, limit_name!(LEASES_MAX)));
                }
                self.leases.keep_for_a_while(world, lease, self.stray_ns);
            }
            Message::Covers { job, covers } => {
                if !self.leases.covers(now, from, job, *covers) {
                    self.limited.push((from, limit_name!(LEASES_MAX)));
                }
                let lease = Lease::Job(job.clone());
                self.leases.keep_for_a_while(world, &lease, self.stray_ns);
            }
            Message::JobEnded { job } => self.job_ended(world, job),
            Message::Remember { id, instances, error: Some(error), pruned } => {
                // Which of those that had the name ended can't be known then.
                let is_clear = id.minter().is_some() || !instances.is_empty();
                // What is repeated is no news: the name may have been deleted since, and the reason with it.
                let gone = self.entries.get(id).and_then(|entry| entry.gone.as_ref());
                let is_known = gone.is_some_and(|gone| {
                    instances.iter().all(|instance| gone.instances.contains(instance))
                });
                if is_clear && !is_known {
                    self.bury(world, id, error.clone(), instances.clone());
                }
                if let Some(gone) = self.entries.get_mut(id).and_then(|entry| entry.gone.as_mut())
                    && !gone.known_to.contains(&from)
                {
                    gone.known_to.push(from);
                    gone.pruned |= *pruned;
                }
            }
            Message::Remember { id, instances, error: None, .. } => {
                self.bury_older(world, id, instances);
            }
            Message::Latest { prefix, after, request } => {
                self.ask_latest(from, prefix, *after, *request, world.mail);
            }
            Message::Unlatest { request } => {
                self.latest.retain(|waiter| (waiter.node, waiter.request) != (from, *request));
            }
            Message::Older { name, keep, request } => {
                let (names, request) = (self.older(name, *keep), *request);
                world.mail.push((from, Message::OlderAre { names, request }));
            }
            Message::List { prefix, after, request } => {
                let (rows, next) = self.list(world, prefix, after.as_ref());
                world.mail.push((from, Message::ListIs { request: *request, rows, next }));
            }
            _ => return Taken::No,
        }
        if let Some(id) = message.object()
            && let Some(entry) = self.entries.get_mut(id)
        {
            entry.answer_locators(id, world.mail);
        }
        match message {
            Message::Delete { id, .. } => Taken::Deleted(id.clone()),
            _ => Taken::Yes,
        }
    }

    /// A member had given this node up. What is known here may be old: names that were deleted and put again. Until the
    /// others have told of that, no instance is refused for another.
    pub fn catch_up(&mut self, now: Instant) {
        if self.catching_up_until <= now {
            self.catching_up_since = now;
        }
        // However many say so one after the other, claims of names are answered some time.
        self.catching_up_until = (now + ORPHAN_GRACE_NS).min(self.catching_up_since + MERGE_NS);
    }

    /// A member that was lost, or is taken for a new one, tells everything again. What others lack until then is not lost.
    pub fn merge(&mut self, now: Instant) {
        self.merging_until = now + MERGE_NS;
    }

    /// When what has no holder since then counts as lost.
    fn lost_at(&self, since: Instant) -> Instant {
        (since + ORPHAN_GRACE_NS).max(self.merging_until.min(since + MERGE_NS))
    }

    /// The node of this directory has measured how fast it receives.
    pub const fn set_usual_rate(&mut self, usual: Option<u64>) {
        self.speeds.usual = usual;
    }

    /// When [`Directory::expire`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let parked = (!self.parked.is_empty()).then_some(self.catching_up_until);
        let alarm = self.alarms.first().map(|(at, _)| (*at).max(self.resumed_at));
        let forgotten = self.remembered.front().map(|(until, _)| (*until).max(self.resumed_at));
        let leases = self.leases.deadline();
        [parked, alarm, forgotten, leases, self.next_slice()].into_iter().flatten().min()
    }

    /// Forgets old deletions; tells those who wait for an object that no node can make any more.
    pub fn expire(&mut self, world: &mut World<'_>) {
        let (now, members) = (world.now, world.members);
        if self.next_slice().is_some_and(|at| at <= now) {
            self.work_off(world);
        }
        if self.catching_up_until <= now {
            for Parked { from, announce, .. } in core::mem::take(&mut self.parked) {
                if members.contains(from) {
                    self.settle(world, &announce.id);
                    self.announce(world, from, &announce);
                }
            }
        }
        self.expire_leases(world);
        if self.resumed_at > now {
            return;
        }
        for _ in 0..self.slice.entries {
            let is_forgotten = self.remembered.front().is_some_and(|(until, _)| *until <= now);
            if is_forgotten {
                self.forget_oldest();
            }
            if self.alarms.first().is_some_and(|(at, _)| *at <= now) {
                let due = self.alarms.pop_first();
                due.iter().for_each(|(_, id)| self.look_again(world, id));
            } else if !is_forgotten {
                return;
            }
        }
        self.resumed_at = now + self.slice.pause_ns;
    }

    /// It is time to look at an entry: for orphans to give up, for stalled receivers, for what others own.
    fn look_again(&mut self, world: &mut World<'_>, id: &ObjectId) {
        let (now, members) = (world.now, world.members);
        self.settle(world, id);
        self.answer_deleters(world, id);
        self.judge_stalls(world, id);
        self.wake_yielded(world, id);
        self.end_in_time(world, id);
        let since = self.entries.get(id).and_then(|entry| entry.orphan_since);
        let lost_at = since.map(|since| self.lost_at(since));
        if let Some(later) = lost_at.filter(|lost_at| *lost_at > now) {
            self.alarms.insert((later, id.clone()));
        }
        let Some(entry) = self.entries.get_mut(id) else { return };
        let is_owner = members.owners(id).contains(members.me());
        if !is_owner && entry.kept_until <= now && !entry.has_deleters() {
            self.entries.remove(id);
            return;
        }
        // Who is no owner any more hears of no holder: those who asked it ask the owners of now.
        if is_owner && lost_at.is_some_and(|lost_at| lost_at <= now) {
            entry.orphan_since = None;
            let lost = entry.live.take_if(|live| !live.is_fed());
            if let Some(lost) = lost.as_ref().filter(|_| id.minter().is_none()) {
                entry.lost = Some(Box::new((lost.instance, now + TOMBSTONE_NS)));
            }
            if let Some(live) = lost.as_ref()
                && let Some(&node) = live.abandoned_by.as_deref()
            {
                let detail = match members.contains(node) {
                    true => format!("node {node} can't read it from its disk, and no other has it"),
                    false => format!("node {node} left, and no other node had room for it"),
                };
                let error = Error::ObjectLost { id: id.clone(), detail };
                live.strand_copies(id, &error, world.mail);
                entry.lost = None;
                self.bury(world, id, error, Vec::from([live.instance]));
                if let Some(entry) = self.entries.get_mut(id) {
                    entry.answer_locators(id, world.mail);
                }
                return;
            }
            // The member that alone can make it may have been met meanwhile.
            let can_come = id.minter().is_some_and(|minter| members.contains(minter));
            if entry.live.is_none() && !can_come {
                let detail = match id.minter() {
                    Some(node) if !members.contains(node) => {
                        format!(
                            "its node {node} is not a member: it has ended, or the ref belongs to another cluster"
                        )
                    }
                    _ => String::from("its only holder is gone"),
                };
                let error = Error::ObjectLost { id: id.clone(), detail };
                entry.tell_gone(id, &error, |_| true, world.mail);
                entry.answer_locators(id, world.mail);
                // Copies that grow from each other and from no other copy never will be complete. Only the first
                // owner knows of all copies.
                if let Some(lost) = &lost
                    && members.owners(id).first == members.me()
                {
                    lost.strand_copies(id, &error, world.mail);
                }
            }
            if lost.is_some() && id.minter().is_none() {
                self.remember(now, id);
            }
        }
        self.forget_if_empty(id);
    }

    /// Starts the grace after which those who wait are told of the loss, if no node is left that could have it.
    fn check_orphan(&mut self, now: Instant, id: &ObjectId, members: &Members) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.check_orphan(now, id, members, &mut self.alarms);
        }
    }

    /// What is told to a node that is no owner was said before a change of members that the sender does not know of
    /// yet, or after one that this node does not know of. The first is told again elsewhere and forgotten here.
    fn keep_for_a_while(&mut self, world: &World<'_>, id: &ObjectId) {
        let (now, members) = (world.now, world.members);
        if !members.owners(id).contains(members.me())
            && let Some(entry) = self.entries.get_mut(id)
        {
            entry.kept_until = now + self.stray_ns;
            self.alarms.insert((entry.kept_until, id.clone()));
        }
    }

    fn forget_if_empty(&mut self, id: &ObjectId) {
        if self.entries.get(id).is_some_and(|entry| entry.is_empty()) {
            self.entries.remove(id);
        }
    }
}

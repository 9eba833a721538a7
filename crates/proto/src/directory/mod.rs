//! The directory: for each object that this node owns, who holds it, who wants it, who watches it.
//!
//! Events are messages of holders and askers, the departure of members, and time; the answers are messages.
//! Everything here can be told again by the nodes that hold the objects, so losing it loses no object.
//! Knows nothing of bytes, connections or clients.
//!
//! ```text
//!              Announce               nobody can complete it, for a grace
//!   unknown ------------> live -----------------------------------------> unknown, askers told ObjectLost
//!      ^                   | Delete, Fail
//!      |  TOMBSTONE_NS     v
//!      +---------------- gone (askers are told why at once)
//! ```

mod entry;
mod feeds;
mod names;
#[cfg(test)]
mod tests;

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

pub use self::names::prefix_owner;
use self::{
    entry::{Asking, Entry, Holder, Live, Locator, Tombstone},
    names::LatestWaiter,
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    limits::{ORPHAN_GRACE_NS, STRAY_NS, TOMBSTONE_NS},
    members::Members,
    message::{Announce, Holding, Message, Progress},
    planted::{self, Bug},
    reduce::cost::Link,
    time::Instant,
};

/// Messages that a directory wants sent.
pub type Mail = Vec<(NodeId, Message)>;

/// The entries this node keeps as first or second owner.
#[derive(Debug)]
pub struct Directory {
    /// Boxed, for a tree has room for twice as many as it holds.
    entries: BTreeMap<ObjectId, Box<Entry>>,
    /// Who waits for a newer name under a prefix.
    latest: Vec<LatestWaiter>,
    /// When something has to be looked at again: tombstones to forget, orphans to give up.
    alarms: BTreeSet<(Instant, ObjectId)>,
    /// How long entries are kept that others own, as this node sees the members.
    stray_ns: u64,
    /// Members had given this node up, and tell it until then what happened meanwhile.
    catching_up_until: Instant,
    /// Announcements of other instances than those that are known here, which wait until then.
    parked: Vec<(NodeId, Announce)>,
}

impl Default for Directory {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Directory {
    /// One that knows nothing. `detection_ns`: for how long members may take one for alive whose end others know of.
    pub fn new(detection_ns: Option<u64>) -> Self {
        let stray_ns = detection_ns.unwrap_or(0).saturating_mul(2).max(STRAY_NS);
        Self {
            entries: BTreeMap::new(),
            latest: Vec::new(),
            alarms: BTreeSet::new(),
            stray_ns,
            catching_up_until: Instant::default(),
            parked: Vec::new(),
        }
    }

    /// Takes a message meant for an owner; says false if it is none.
    pub fn handle(
        &mut self,
        now: Instant,
        from: NodeId,
        message: &Message,
        members: &Members,
        link: Link,
        mail: &mut Mail,
    ) -> bool {
        match message {
            Message::Announce(announce) => {
                self.announce(now, from, announce, members, link, mail);
                self.keep_for_a_while(now, &announce.id, members);
            }
            Message::Withdraw { id, instance } => self.withdraw(now, from, id, *instance, members),
            Message::Locate { id, avoid, not_here } => {
                if let Some((holder, instance)) = not_here
                    && self.is_refusal_news(id, from, *holder)
                {
                    self.withdraw(now, *holder, id, *instance, members);
                }
                self.locate(now, from, id, avoid, members, link, mail);
            }
            Message::Unlocate { id } => self.unlocate(from, id),
            Message::Watch { id } => self.watch(now, from, id, members, mail),
            Message::Unwatch { id } => {
                if let Some(entry) = self.entries.get_mut(id) {
                    entry.take_back(|asking| asking.watchers.retain(|watcher| *watcher != from));
                }
                self.forget_if_empty(id);
            }
            Message::Locations { id, known, request } => {
                self.locations(now, from, id, known.clone(), *request, members, mail);
            }
            Message::Unlocations { id, request } => {
                if let Some(entry) = self.entries.get_mut(id) {
                    let is_other = |locator: &Locator| !locator.is(from, *request);
                    entry.take_back(|asking| asking.locators.retain(is_other));
                }
                self.forget_if_empty(id);
            }
            Message::Reserve { id, instance } => {
                self.reserve(now, from, id, *instance, mail);
                self.keep_for_a_while(now, id, members);
            }
            Message::Delete { id, request } => self.delete(now, from, id, *request, mail),
            Message::Dropped { id, instance } => self.dropped(from, id, *instance, mail),
            Message::Fail { id, error } => {
                // A name may be somebody else's meanwhile.
                let maker = self.entries.get(id).and_then(|entry| entry.maker());
                if id.minter().is_some() || maker.is_none_or(|maker| maker == from) {
                    self.bury(now, id, error.clone(), Vec::new(), mail);
                } else if let Some(entry) = self.entries.get_mut(id) {
                    entry.reserved.take_if(|reserved| reserved.node == from);
                }
            }
            Message::Remember { id, instances, error: Some(error) } => {
                if !self.remembers(id, instances) {
                    self.bury(now, id, error.clone(), instances.clone(), mail);
                }
                if let Some(gone) = self.entries.get_mut(id).and_then(|entry| entry.gone.as_mut())
                    && !gone.known_to.contains(&from)
                {
                    gone.known_to.push(from);
                }
            }
            Message::Remember { id, instances, error: None } => {
                self.bury_older(now, id, instances, mail);
            }
            Message::Latest { prefix, after, request } => {
                self.ask_latest(from, prefix, *after, *request, mail);
            }
            Message::Unlatest { request } => {
                self.latest.retain(|waiter| (waiter.node, waiter.request) != (from, *request));
            }
            Message::Older { name, keep, request } => {
                let (names, request) = (self.older(name, *keep), *request);
                mail.push((from, Message::OlderAre { names, request }));
            }
            _ => return false,
        }
        if let Some(id) = message.object()
            && let Some(entry) = self.entries.get_mut(id)
        {
            entry.answer_locators(mail);
        }
        true
    }

    /// Forgets a member: its copies, its questions.
    pub fn member_gone(&mut self, now: Instant, node: NodeId, members: &Members, mail: &mut Mail) {
        self.latest.retain(|waiter| waiter.node != node);
        self.parked.retain(|(from, _)| *from != node);
        let ids: Vec<ObjectId> = self.entries.keys().cloned().collect();
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.take_back(|asking| {
                asking.waiters.retain(|(asker, _)| *asker != node);
                asking.watchers.remove(&node);
                asking.locators.retain(|locator| locator.node != node);
            });
            if let Some(gone) = &mut entry.gone {
                gone.dropping.retain(|(holder, _)| *holder != node);
                gone.answer(&id, mail);
            }
            let held = !planted::has(Bug::KeepsHoldersThatAreGone)
                && entry.live.as_mut().is_some_and(|live| live.remove_holder(node));
            let reserved = entry.reserved.take_if(|reserved| reserved.node == node).is_some();
            if reserved && entry.live.is_none() {
                // After the grace, so that those who ask the next owner instead of one that died are told too.
                entry.orphan_since = Some(now);
                self.alarms.insert((now + ORPHAN_GRACE_NS, id.clone()));
            }
            if held || reserved || id.minter() == Some(node) {
                self.check_orphan(now, &id, members);
            }
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.answer_locators(mail);
            }
            self.forget_if_empty(&id);
        }
    }

    /// Tells owners of deletions, which no holder could repeat: each once, but `renewed` again, to whom what was said may
    /// be lost. Entries that others own now are kept for a while: the next change may make this node their owner again,
    /// while their holders never took it for anything else.
    pub fn members_changed(
        &mut self,
        now: Instant,
        members: &Members,
        renewed: Option<NodeId>,
        mail: &mut Mail,
    ) {
        let me = members.me();
        for (id, entry) in &mut self.entries {
            let all = members.owners(id);
            if !all.contains(me) {
                entry.kept_until = now + self.stray_ns;
                self.alarms.insert((entry.kept_until, id.clone()));
            }
            let owners = || all.iter().filter(|owner| *owner != me);
            if let Some(gone) = &mut entry.gone {
                gone.known_to.retain(|owner| renewed != Some(*owner));
                for owner in owners() {
                    if !gone.known_to.contains(&owner) {
                        gone.known_to.push(owner);
                        let (instances, error) = (gone.instances.clone(), gone.error.clone());
                        let (id, error) = (id.clone(), Some(error));
                        mail.push((owner, Message::Remember { id, instances, error }));
                    }
                }
            }
            // What a name was before it was put again must not come back either.
            let buried = entry.buried.iter().filter(|(_, until)| **until > now);
            let buried: Vec<Instance> = buried.map(|(instance, _)| *instance).collect();
            if !buried.is_empty() {
                for owner in owners() {
                    let (id, instances) = (id.clone(), buried.clone());
                    mail.push((owner, Message::Remember { id, instances, error: None }));
                }
            }
        }
        self.latest.retain(|waiter| {
            prefix_owner(&waiter.prefix, members).is_some_and(|owner| owner == me)
        });
    }

    /// A member had given this node up. What is known here may be old: names that were deleted and put again. Until the
    /// others have told of that, nobody's instance is refused for another.
    pub fn catch_up(&mut self, now: Instant) {
        self.catching_up_until = now + ORPHAN_GRACE_NS;
    }

    /// When [`Directory::expire`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let parked = (!self.parked.is_empty()).then_some(self.catching_up_until);
        self.alarms.first().map(|(at, _)| *at).into_iter().chain(parked).min()
    }

    /// Forgets old deletions; tells those who wait for an object that nobody can make any more.
    pub fn expire(&mut self, now: Instant, members: &Members, link: Link, mail: &mut Mail) {
        if self.catching_up_until <= now {
            for (from, announce) in core::mem::take(&mut self.parked) {
                if members.contains(from) {
                    self.announce(now, from, &announce, members, link, mail);
                }
            }
        }
        while let Some((at, id)) = self.alarms.first().cloned() {
            if at > now {
                break;
            }
            self.alarms.pop_first();
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let is_owner = members.owners(&id).contains(members.me());
            if !is_owner && entry.kept_until <= now {
                self.entries.remove(&id);
                continue;
            }
            if entry.gone.as_ref().is_some_and(|gone| gone.until <= now) {
                entry.gone = None;
            }
            entry.lost.take_if(|lost| lost.1 <= now);
            entry.buried.retain(|_, until| *until > now);
            // Who is no owner any more hears of no holder: those who asked it ask the owners of now.
            if is_owner && entry.orphan_since.is_some_and(|since| since + ORPHAN_GRACE_NS <= now) {
                entry.orphan_since = None;
                let lost = entry.live.take_if(|live| !live.is_fed());
                if let Some(lost) = lost.as_ref().filter(|_| id.minter().is_none()) {
                    let until = now + TOMBSTONE_NS;
                    entry.lost = Some(Box::new((lost.instance, until)));
                    self.alarms.insert((until, id.clone()));
                }
                // The member that alone can make it may have been met meanwhile.
                let can_come = id.minter().is_some_and(|minter| members.contains(minter));
                if entry.live.is_none() && !can_come {
                    let detail = match id.minter() {
                        Some(node) if !members.contains(node) => {
                            format!("node {node}, which alone can make it, is gone")
                        }
                        _ => String::from("its only holder is gone"),
                    };
                    let error = Error::ObjectLost { id: id.clone(), detail };
                    entry.tell_gone(&id, &error, mail);
                    entry.answer_locators(mail);
                    // Copies that grow from each other and from nobody else never will be complete. Only the first
                    // owner knows of all copies.
                    if let Some(lost) = lost.filter(|_| members.owners(&id).first == members.me()) {
                        lost.strand_copies(&id, &error, mail);
                    }
                }
            }
            self.forget_if_empty(&id);
        }
    }

    /// Whether a node has asked for an object that is not there yet.
    pub fn is_awaited(&self, id: &ObjectId, by: NodeId) -> bool {
        let asking = self.entries.get(id).and_then(|entry| entry.asking());
        asking.is_some_and(|asking| asking.waiters.iter().any(|(asker, _)| *asker == by))
    }

    /// Why an object can't come, if that is remembered.
    pub fn why_gone(&self, id: &ObjectId) -> Option<&Error> {
        Some(&self.entries.get(id)?.gone.as_ref()?.error)
    }

    /// How many objects are known to exist.
    pub fn len(&self) -> usize {
        self.entries.values().filter(|entry| entry.is_alive()).count()
    }

    /// What others wait for or listen to here; for checkers. Questions that came here before a change of members, or while
    /// the members did not agree, may stay where nobody asks any more.
    pub fn questions(&self, members: &Members) -> usize {
        let of = |(id, asking): (&ObjectId, &Asking)| {
            let owners = members.owners(id);
            let is_first = owners.first == members.me();
            let waiting = if is_first { asking.waiters.len() } else { 0 };
            let listening = asking.watchers.len() + asking.locators.len();
            if owners.contains(members.me()) { waiting + listening } else { 0 }
        };
        let is_mine =
            |waiter: &&LatestWaiter| prefix_owner(&waiter.prefix, members) == Some(members.me());
        let latest = self.latest.iter().filter(is_mine).count();
        let asked = self.entries.iter().filter_map(|(id, entry)| Some((id, entry.asking()?)));
        latest + asked.map(of).sum::<usize>()
    }

    /// Names that are kept for reduces; for checkers.
    pub fn reservations(&self) -> usize {
        self.entries.values().filter(|entry| entry.reserved.is_some()).count()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Who holds a living object; for checkers.
    pub fn holders(&self, id: &ObjectId) -> Vec<NodeId> {
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        live.map_or_else(Vec::new, |live| live.holders.keys().copied().collect())
    }

    /// For each partial copy of each object, who feeds it; for checkers.
    pub fn feeds(&self) -> impl Iterator<Item = (&ObjectId, NodeId, NodeId)> {
        self.entries.iter().flat_map(|(id, entry)| {
            let holders = entry.live.iter().flat_map(|live| live.holders.iter());
            holders.filter_map(move |(node, holder)| Some((id, *node, holder.source?)))
        })
    }

    fn announce(
        &mut self,
        now: Instant,
        from: NodeId,
        announce: &Announce,
        members: &Members,
        link: Link,
        mail: &mut Mail,
    ) {
        let Announce { id, instance, meta, origin, progress, claim } = announce;
        let entry = self.entries.entry(id.clone()).or_default();
        let claimed = |taken_by| {
            let (id, instance) = (id.clone(), *instance);
            (from, Message::Claimed { id, instance, taken_by })
        };
        // A put by the node that reserved the name is another object all the same.
        if let Some(reserved) = entry.reserved.filter(|_| *claim) {
            mail.push(claimed(Some(reserved.node)));
            return;
        }
        if let Some(gone) = &mut entry.gone {
            // A result, or the next attempt at it, of which its maker told before it heard of the deletion.
            let is_earlier = |(node, dropped): &(NodeId, Instance)| {
                *node == from && dropped.node == instance.node && dropped.serial < instance.serial
            };
            let is_first = members.owners(id).first == members.me();
            if !*claim && is_first && gone.dropping.iter().any(is_earlier) {
                gone.instances.push(*instance);
                gone.known_to.clear();
                gone.dropping.insert((from, *instance));
            }
            // Whoever deleted a minted id deleted all it will ever be; a name is free for another instance.
            let is_void = id.minter().is_some() || gone.instances.contains(instance);
            if is_void && !planted::has(Bug::ForgetsDeletions) {
                let error = Some(gone.error.clone());
                if *claim {
                    // Deleted before its putter heard that the name was its own.
                    mail.push(claimed(None));
                }
                mail.push((from, Message::Drop { id: id.clone(), instance: *instance, error }));
                return;
            }
            entry.reuse(now, id, mail);
        }
        let is_buried = entry.buried.get(instance).is_some_and(|until| *until > now);
        if is_buried && !planted::has(Bug::ForgetsDeletions) {
            if *claim {
                mail.push(claimed(None));
            }
            let drop = Message::Drop { id: id.clone(), instance: *instance, error: None };
            mail.push((from, drop));
            return;
        }
        let is_other = |reserved: &mut Instance| {
            reserved.node != instance.node || reserved.serial > instance.serial
        };
        if let Some(reserved) = entry.reserved.take_if(is_other) {
            // Two owners who did not know of each other granted the name: it is what exists already.
            let (id, taken_by) = (id.clone(), Some(instance.node));
            mail.push((reserved.node, Message::Claimed { id, instance: reserved, taken_by }));
        }
        // It was no owner's for a while, and may have missed what became of a name.
        let is_doubtful = entry.kept_until != Instant::default();
        let is_same = entry.live.as_ref().is_some_and(|live| live.instance == *instance);
        if is_same && members.owners(id).contains(members.me()) {
            entry.kept_until = Instant::default();
        }
        let is_lost = entry.is_lost() || is_doubtful && !is_same;
        let is_rival = entry.live.as_ref().is_some_and(|live| live.instance.node != instance.node);
        if is_rival && now < self.catching_up_until {
            self.parked.retain(|(node, parked)| (*node, parked.instance) != (from, *instance));
            self.parked.push((from, announce.clone()));
            return;
        }
        entry.lost.take_if(|lost| lost.0 == *instance);
        if let Some(live) = entry.live.take_if(|live| live.instance != *instance) {
            // A later epoch of the same maker replaces what it made before. Of two that were put under one name, while
            // their nodes did not agree on its owner, every owner keeps the lower, or both would be dropped.
            let replaces = if live.instance.node == instance.node {
                live.instance.serial < instance.serial
            } else {
                is_lost || *origin && *instance < live.instance
            };
            if !replaces || *claim && !is_lost {
                if *claim && planted::has(Bug::GrantsNamesTwice) {
                    mail.push(claimed(None));
                } else if *claim {
                    mail.push(claimed(Some(live.instance.node)));
                } else {
                    let (id, instance) = (id.clone(), *instance);
                    mail.push((from, Message::Drop { id, instance, error: None }));
                }
                entry.live = Some(live);
                return;
            }
            for holder in live.holders.keys().filter(|holder| **holder != from) {
                let drop = Message::Drop { id: id.clone(), instance: live.instance, error: None };
                mail.push((*holder, drop));
            }
        }
        let was_complete = entry.live.as_ref().is_some_and(Live::is_complete);
        let is_new = entry.live.is_none() || is_lost;
        let live = entry.live.get_or_insert_with(|| Live::new(*instance, meta.clone()));
        let (complete, source) = match progress {
            Progress::Inline(bytes) => {
                live.inline = Some(bytes.clone());
                (true, None)
            }
            Progress::Complete => (true, None),
            Progress::Partial { source } => (false, *source),
        };
        let before = live.holders.remove(&from).unwrap_or_default();
        let began = before.began.or(source.map(|_| now));
        // One that is to be moved receives from where it did until it is told.
        let is_moving = source.is_some() && before.moving_from == source;
        let (moving_from, source) =
            if is_moving { (before.moving_from, before.source) } else { (None, source) };
        let (origin, told) = (*origin, Some(now));
        let holder = Holder { complete, origin, source, told, began, moving_from, ..before };
        live.holders.insert(from, holder);
        if source.is_some_and(|source| live.depends(source, from)) {
            // Two owners who did not know of each other's answers let copies grow from each other. If both broke the
            // circle, both of its sides might begin anew for ever.
            let is_first = members.owners(id).first == members.me();
            if let Some(holder) = live.holders.get_mut(&from) {
                holder.source = None;
            }
            if is_first {
                let (id, instance) = (id.clone(), *instance);
                mail.push((from, Message::Drop { id, instance, error: None }));
            }
        }
        live.move_receivers(now, from, id, link, mail);
        if live.is_fed() {
            entry.orphan_since = None;
        }
        if *claim {
            mail.push(claimed(None));
        }
        let is_complete = live.is_complete();
        // The result that the name was reserved for is there. A reader may have all of an attempt that its maker gave up.
        let is_made = complete && from == instance.node;
        entry.reserved.take_if(|reserved| is_made && reserved.node == from);
        self.check_orphan(now, id, members);
        self.wake(now, id, is_new || is_complete && !was_complete, members, link, mail);
    }

    /// Answers whom a new or better copy lets answer.
    fn wake(
        &mut self,
        now: Instant,
        id: &ObjectId,
        is_news: bool,
        members: &Members,
        link: Link,
        mail: &mut Mail,
    ) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if is_news && !planted::has(Bug::TellsNoWatchers) {
            let watchers = entry.asking().map(|asking| asking.watchers.clone());
            for watcher in watchers.unwrap_or_default() {
                let found = entry.live.as_ref().and_then(|live| live.found(watcher, members));
                mail.push((watcher, Message::Found { id: id.clone(), found }));
            }
        }
        let mut waiters = Vec::new();
        entry.take_back(|asking| waiters = core::mem::take(&mut asking.waiters));
        if let Some(maker) = entry.maker() {
            // One rack after the other, first that of the object: then nobody has to be told of another sender soon.
            waiters
                .sort_by_key(|(asker, _)| (members.are_apart(maker, *asker), members.rack(*asker)));
        }
        for (asker, avoid) in waiters {
            self.locate(now, asker, id, &avoid, members, link, mail);
        }
        // Whoever still waits has seen the newest of before, so only this name can be its answer.
        if let ObjectId::Named(name) = id
            && let Some(version) = name.version()
        {
            self.answer_latest(&format!("{}/", name.group()), version, name, mail);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn locate(
        &mut self,
        now: Instant,
        asker: NodeId,
        id: &ObjectId,
        avoid: &[NodeId],
        members: &Members,
        link: Link,
        mail: &mut Mail,
    ) {
        let entry = self.entries.entry(id.clone()).or_default();
        if let Some(gone) = &entry.gone {
            mail.push((asker, Message::Gone { id: id.clone(), error: gone.error.clone() }));
            return;
        }
        if let Some(live) = &mut entry.live
            && let Some(source) = live.assign(now, asker, id, avoid, members, link)
        {
            let (instance, meta) = (live.instance, live.meta.clone());
            mail.push((asker, Message::Located { id: id.clone(), instance, meta, source }));
            return;
        }
        // Whoever asks again is fed by nobody, and neither are those behind it.
        let partial = entry.live.as_mut().and_then(|live| live.holders.get_mut(&asker));
        if let Some(holder) = partial.filter(|holder| !holder.complete) {
            (holder.source, holder.moving_from) = (None, None);
        }
        let waiters = &mut entry.asking_mut().waiters;
        waiters.retain(|(waiter, _)| *waiter != asker);
        waiters.push((asker, avoid.to_vec()));
        mail.push((asker, Message::Waiting { id: id.clone() }));
        self.check_orphan(now, id, members);
    }

    fn unlocate(&mut self, from: NodeId, id: &ObjectId) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.take_back(|asking| asking.waiters.retain(|(asker, _)| *asker != from));
            if let Some(live) = &mut entry.live
                && live.holders.get(&from).is_some_and(|holder| !holder.complete && !holder.origin)
            {
                live.remove_holder(from);
            }
        }
        self.forget_if_empty(id);
    }

    fn withdraw(
        &mut self,
        now: Instant,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        members: &Members,
    ) {
        self.parked
            .retain(|(node, parked)| (*node, &parked.id, parked.instance) != (from, id, instance));
        if let Some(entry) = self.entries.get_mut(id) {
            entry.reserved.take_if(|reserved| *reserved == instance);
            let mut live = entry.live.as_mut().filter(|live| live.instance == instance);
            if let Some(live) = live.as_mut().filter(|_| instance.node == from) {
                // Given up by its maker before its name was confirmed.
                live.inline = None;
            }
            if live.is_some_and(|live| live.remove_holder(from)) {
                self.check_orphan(now, id, members);
            }
        }
        self.forget_if_empty(id);
    }

    /// Whether `holder` refused `asker` later than it told of its copy, as far as this owner can know.
    fn is_refusal_news(&self, id: &ObjectId, asker: NodeId, holder: NodeId) -> bool {
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        let of = |node: NodeId| live.and_then(|live| live.holders.get(&node));
        let told = of(holder).and_then(|holder| holder.told);
        let located = of(asker).and_then(|asker| asker.located);
        // If it was older news and the copy is gone all the same, the next to be sent there says so again.
        told.is_none_or(|told| located.is_some_and(|located| told <= located))
    }

    fn watch(
        &mut self,
        now: Instant,
        from: NodeId,
        id: &ObjectId,
        members: &Members,
        mail: &mut Mail,
    ) {
        let entry = self.entries.entry(id.clone()).or_default();
        if let Some(gone) = &entry.gone {
            mail.push((from, Message::Gone { id: id.clone(), error: gone.error.clone() }));
            return;
        }
        entry.asking_mut().watchers.insert(from);
        let found = entry.live.as_ref().and_then(|live| live.found(from, members));
        mail.push((from, Message::Found { id: id.clone(), found }));
        self.check_orphan(now, id, members);
    }

    #[allow(clippy::too_many_arguments)]
    fn locations(
        &mut self,
        now: Instant,
        from: NodeId,
        id: &ObjectId,
        known: Option<Vec<Holding>>,
        request: RequestId,
        members: &Members,
        mail: &mut Mail,
    ) {
        let entry = self.entries.entry(id.clone()).or_default();
        // Asked again after a change of members: the older question is the same one.
        let locators = &mut entry.asking_mut().locators;
        locators.retain(|locator| !locator.is(from, request));
        locators.push(Locator { node: from, request, known });
        entry.answer_locators(mail);
        let is_kept = |asking: &Asking| asking.locators.iter().any(|other| other.is(from, request));
        if entry.asking().is_some_and(is_kept) {
            mail.push((from, Message::NothingYet { request }));
        }
        self.check_orphan(now, id, members);
        self.forget_if_empty(id);
    }

    fn delete(
        &mut self,
        now: Instant,
        from: NodeId,
        id: &ObjectId,
        request: RequestId,
        mail: &mut Mail,
    ) {
        let entry = self.entries.get_mut(id);
        let lost = entry.and_then(|entry| entry.lost.take()).map(|lost| lost.0);
        let entry = self.entries.get(id);
        let is_known = lost.is_some()
            || entry.is_some_and(|entry| entry.live.is_some() || entry.reserved.is_some());
        // A name that nobody has put is free, and deleting it changes nothing.
        if is_known || id.minter().is_some() {
            self.bury(now, id, Error::ObjectDeleted { id: id.clone() }, Vec::new(), mail);
        }
        if let Some(gone) = self.entries.get_mut(id).and_then(|entry| entry.gone.as_mut()) {
            // Its holder may come back with it.
            gone.instances.extend(lost);
            gone.askers.push((from, request));
            gone.answer(id, mail);
        } else {
            mail.push((from, Message::Deleted { id: id.clone(), request }));
        }
    }

    fn dropped(&mut self, from: NodeId, id: &ObjectId, instance: Instance, mail: &mut Mail) {
        if let Some(gone) = self.entries.get_mut(id).and_then(|entry| entry.gone.as_mut()) {
            gone.dropping.remove(&(from, instance));
            gone.answer(id, mail);
        }
    }

    /// Whether nothing is there of these instances, and that is known.
    fn remembers(&self, id: &ObjectId, instances: &[Instance]) -> bool {
        let Some(entry) = self.entries.get(id) else { return false };
        let Some(gone) = &entry.gone else { return false };
        entry.live.is_none()
            && entry.reserved.is_none()
            && entry.asking().is_none()
            && instances.iter().all(|instance| gone.instances.contains(instance))
    }

    /// Ends an object: every holder drops it, everybody who waits is told why, and it is remembered for a while.
    fn bury(
        &mut self,
        now: Instant,
        id: &ObjectId,
        error: Error,
        mut instances: Vec<Instance>,
        mail: &mut Mail,
    ) {
        let entry = self.entries.entry(id.clone()).or_default();
        let is_moved = !instances.is_empty();
        let (mut dropping, mut askers) = (BTreeSet::new(), Vec::new());
        if let Some(live) =
            entry.live.take_if(|live| !is_moved || instances.contains(&live.instance))
        {
            live.drop_copies(id, Some(&error), mail);
            dropping.extend(live.holders.keys().map(|holder| (*holder, live.instance)));
            instances.push(live.instance);
        }
        if entry.live.is_some() {
            return;
        }
        let is_void = |reserved: &mut Instance| !is_moved || instances.contains(reserved);
        if let Some(reserved) = entry.reserved.take_if(is_void) {
            let (id, error) = (id.clone(), Some(error.clone()));
            mail.push((reserved.node, Message::Drop { id, instance: reserved, error }));
            dropping.insert((reserved.node, reserved));
            instances.push(reserved);
        }
        if let Some(before) = entry.gone.take() {
            instances.extend(before.instances);
            instances.sort_unstable();
            instances.dedup();
            dropping.extend(before.dropping);
            askers = before.askers;
        }
        entry.tell_gone(id, &error, mail);
        let until = now + TOMBSTONE_NS;
        let known_to = Vec::new();
        entry.gone =
            Some(Box::new(Tombstone { instances, error, until, dropping, askers, known_to }));
        self.alarms.insert((until, id.clone()));
    }

    /// A name was something that must not come back, and is something else by now.
    fn bury_older(&mut self, now: Instant, id: &ObjectId, instances: &[Instance], mail: &mut Mail) {
        let entry = self.entries.entry(id.clone()).or_default();
        let is_old = |live: &mut Live| instances.contains(&live.instance);
        if let Some(old) = entry.live.take_if(is_old) {
            old.drop_copies(id, None, mail);
        }
        let until = now + TOMBSTONE_NS;
        entry.buried.extend(instances.iter().map(|instance| (*instance, until)));
        self.alarms.insert((until, id.clone()));
    }

    /// Starts the grace after which those who wait are told of the loss, if nobody is left who could have it.
    fn check_orphan(&mut self, now: Instant, id: &ObjectId, members: &Members) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let can_come = match id.minter() {
            // As long as it lives it has the object, makes it, or says that it can't: a reduce may begin again.
            Some(minter) => members.contains(minter),
            // A name that nobody has put yet, or that a reduce will be the result of.
            None => entry.live.is_none() || entry.reserved.is_some(),
        };
        if can_come || entry.gone.is_some() || entry.live.as_ref().is_some_and(Live::is_fed) {
            return;
        }
        if entry.orphan_since.is_none() {
            entry.orphan_since = Some(now);
            self.alarms.insert((now + ORPHAN_GRACE_NS, id.clone()));
        }
    }

    /// What is told to a node that is no owner was said before a change of members that the sender does not know of
    /// yet, or after one that this node does not know of. The first is told again elsewhere and forgotten here.
    fn keep_for_a_while(&mut self, now: Instant, id: &ObjectId, members: &Members) {
        if let Some(entry) = self.entries.get_mut(id)
            && !members.owners(id).contains(members.me())
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

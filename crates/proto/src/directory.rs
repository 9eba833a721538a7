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

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use core::ops::Bound;

use crate::{
    broadcast::{Candidate, choose_source},
    error::Error,
    id::{Instance, Name, NodeId, ObjectId, RequestId},
    inline::Inline,
    limits::{ORPHAN_GRACE_NS, TOMBSTONE_NS},
    members::Members,
    message::{Announce, Found, Message, Progress, Source},
    meta::Meta,
    ranges::Ranges,
    reduce::cost::Link,
    time::Instant,
};

/// Messages that a directory wants sent.
pub type Mail = Vec<(NodeId, Message)>;

/// The entries this node keeps as first or second owner.
#[derive(Debug, Default)]
pub struct Directory {
    entries: BTreeMap<ObjectId, Entry>,
    /// Who waits for a newer name under a prefix.
    latest: Vec<LatestWaiter>,
    /// When something has to be looked at again: tombstones to forget, orphans to give up.
    alarms: BTreeSet<(Instant, ObjectId)>,
}

#[derive(Debug, Default)]
struct Entry {
    live: Option<Live>,
    gone: Option<Tombstone>,
    /// What the name was before it was put again, and until when that is remembered.
    buried: BTreeMap<Instance, Instant>,
    /// Askers without a sender, in order of their questions, with those that failed them.
    waiters: Vec<(NodeId, Vec<NodeId>)>,
    watchers: BTreeSet<NodeId>,
    /// Since when no copy is known that is complete, or will be.
    orphan_since: Option<Instant>,
    /// Until when it is kept although others own it.
    kept_until: Instant,
}

#[derive(Debug)]
struct Live {
    instance: Instance,
    meta: Meta,
    inline: Option<Inline>,
    holders: BTreeMap<NodeId, Holder>,
}

#[derive(Debug)]
struct Holder {
    complete: bool,
    /// Pinned there: put, reduced or adopted.
    origin: bool,
    /// Who feeds it while it is partial.
    source: Option<NodeId>,
    ready: Ranges,
    /// When it last told of itself, and when it was last sent to somebody.
    told: Option<Instant>,
    located: Option<Instant>,
}

#[derive(Debug)]
struct Tombstone {
    instances: Vec<Instance>,
    error: Error,
    until: Instant,
    /// Copies whose holders have not said that they dropped them.
    dropping: BTreeSet<(NodeId, Instance)>,
    /// Who is told when they have.
    askers: Vec<(NodeId, RequestId)>,
}

#[derive(Debug)]
struct LatestWaiter {
    node: NodeId,
    request: RequestId,
    prefix: String,
    after: Option<u64>,
}

impl Directory {
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
                    entry.watchers.remove(&from);
                }
                self.forget_if_empty(id);
            }
            Message::Delete { id, request } => self.delete(now, from, id, *request, mail),
            Message::Dropped { id, instance } => self.dropped(from, id, *instance, mail),
            Message::Fail { id, error } => self.bury(now, id, error.clone(), Vec::new(), mail),
            Message::Remember { id, instances, error } => {
                self.bury(now, id, error.clone(), instances.clone(), mail);
            }
            Message::Latest { prefix, after, request } => {
                let (after, request) = (*after, *request);
                // Asked again after a change of members: the older question is the same one.
                self.latest.retain(|waiter| (waiter.node, waiter.request) != (from, request));
                self.latest.push(LatestWaiter {
                    node: from,
                    request,
                    prefix: prefix.clone(),
                    after,
                });
                if let Some((version, name)) = self.newest(prefix) {
                    self.answer_latest(prefix, version, &name, mail);
                }
            }
            Message::Unlatest { request } => {
                self.latest.retain(|waiter| (waiter.node, waiter.request) != (from, *request));
            }
            _ => return false,
        }
        true
    }

    /// Forgets a member: its copies, its questions.
    pub fn member_gone(&mut self, now: Instant, node: NodeId, members: &Members, mail: &mut Mail) {
        self.latest.retain(|waiter| waiter.node != node);
        let ids: Vec<ObjectId> = self.entries.keys().cloned().collect();
        for id in ids {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.waiters.retain(|(asker, _)| *asker != node);
            entry.watchers.remove(&node);
            if let Some(gone) = &mut entry.gone {
                gone.dropping.retain(|(holder, _)| *holder != node);
                gone.answer(&id, mail);
            }
            let held = entry.live.as_mut().is_some_and(|live| live.remove_holder(node));
            if held || id.minter() == Some(node) {
                self.check_orphan(now, &id, members);
            }
            self.forget_if_empty(&id);
        }
    }

    /// Tells new owners of deletions, which no holder could repeat. Entries that others own now are kept for the grace:
    /// the next change may make this node their owner again, while their holders never took it for anything else.
    pub fn members_changed(&mut self, now: Instant, members: &Members, mail: &mut Mail) {
        let me = members.me();
        for (id, entry) in &mut self.entries {
            if !members.owners(id).contains(me) {
                entry.kept_until = now + ORPHAN_GRACE_NS;
                self.alarms.insert((entry.kept_until, id.clone()));
            }
        }
        for (id, entry) in &self.entries {
            let Some(gone) = &entry.gone else { continue };
            for owner in members.owners(id).iter().filter(|owner| *owner != me) {
                let (instances, error) = (gone.instances.clone(), gone.error.clone());
                mail.push((owner, Message::Remember { id: id.clone(), instances, error }));
            }
        }
        self.latest.retain(|waiter| {
            prefix_owner(&waiter.prefix, members).is_some_and(|owner| owner == me)
        });
    }

    /// When [`Directory::expire`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// Forgets old deletions; tells those who wait for an object that nobody can make any more.
    pub fn expire(&mut self, now: Instant, members: &Members, mail: &mut Mail) {
        while let Some((at, id)) = self.alarms.first().cloned() {
            if at > now {
                break;
            }
            self.alarms.pop_first();
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            if !members.owners(&id).contains(members.me()) && entry.kept_until <= now {
                self.entries.remove(&id);
                continue;
            }
            if entry.gone.as_ref().is_some_and(|gone| gone.until <= now) {
                entry.gone = None;
            }
            if entry.orphan_since.is_some_and(|since| since + ORPHAN_GRACE_NS <= now) {
                entry.orphan_since = None;
                let lost = entry.live.take_if(|live| !live.is_fed());
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
                    // Copies that grow from each other and from nobody else never will be complete. Only the first
                    // owner knows of all copies.
                    if let Some(lost) = lost.filter(|_| members.owners(&id).first == members.me()) {
                        for holder in lost.holders.keys() {
                            let (id, instance) = (id.clone(), lost.instance);
                            let error = Some(error.clone());
                            mail.push((*holder, Message::Drop { id, instance, error }));
                        }
                    }
                }
            }
            self.forget_if_empty(&id);
        }
    }

    /// Why an object can't come, if that is remembered.
    pub fn why_gone(&self, id: &ObjectId) -> Option<&Error> {
        Some(&self.entries.get(id)?.gone.as_ref()?.error)
    }

    /// How many objects are known to exist.
    pub fn len(&self) -> usize {
        self.entries.values().filter(|entry| entry.is_alive()).count()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Who holds a living object, and how many bytes each holder had when it last told; for checkers and listings.
    pub fn holders(&self, id: &ObjectId) -> Vec<(NodeId, u64)> {
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        live.map_or_else(Vec::new, |live| {
            live.holders.iter().map(|(node, holder)| (*node, holder.ready.total())).collect()
        })
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
        if let Some(gone) = &entry.gone {
            // Whoever deleted a minted id deleted all it will ever be; a name is free for another instance.
            if id.minter().is_some() || gone.instances.contains(instance) {
                let error = Some(gone.error.clone());
                if *claim {
                    // Deleted before its putter heard that the name was its own.
                    mail.push(claimed(None));
                }
                mail.push((from, Message::Drop { id: id.clone(), instance: *instance, error }));
                return;
            }
            // The name has a new owner: whoever deleted the old object need not wait for its last copies.
            if let Some(mut gone) = entry.gone.take() {
                gone.dropping.clear();
                gone.answer(id, mail);
                entry.buried.retain(|_, until| *until > now);
                entry.buried.extend(gone.instances.iter().map(|instance| (*instance, gone.until)));
            }
        }
        if entry.buried.get(instance).is_some_and(|until| *until > now) {
            if *claim {
                mail.push(claimed(None));
            }
            let drop = Message::Drop { id: id.clone(), instance: *instance, error: None };
            mail.push((from, drop));
            return;
        }
        let is_lost = entry.orphan_since.is_some();
        if let Some(live) = entry.live.take_if(|live| live.instance != *instance) {
            // A later epoch of the same maker replaces what it made before. Of two that were put under one name, while
            // their nodes did not agree on its owner, every owner keeps the lower, or both would be dropped.
            let replaces = if live.instance.node == instance.node {
                live.instance.serial < instance.serial
            } else {
                *origin && *instance < live.instance
            };
            if !is_lost && (!replaces || *claim) {
                if *claim {
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
        let is_new = entry.live.is_none() || is_lost;
        let live = entry.live.get_or_insert_with(|| Live {
            instance: *instance,
            meta: meta.clone(),
            inline: None,
            holders: BTreeMap::new(),
        });
        let (complete, source, ready) = match progress {
            Progress::Inline(bytes) => {
                live.inline = Some(bytes.clone());
                (true, None, Ranges::full(meta.size))
            }
            Progress::Complete => (true, None, Ranges::full(meta.size)),
            Progress::Partial { source, ready } => (false, *source, ready.clone()),
        };
        let located = live.holders.get(&from).and_then(|holder| holder.located);
        let told = Some(now);
        let holder = Holder { complete, origin: *origin, source, ready, told, located };
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
        if live.is_fed() {
            entry.orphan_since = None;
        }
        if *claim {
            mail.push(claimed(None));
        }
        self.check_orphan(now, id, members);
        self.wake(now, id, is_new, members, link, mail);
    }

    /// Answers whom a new or better copy lets answer.
    fn wake(
        &mut self,
        now: Instant,
        id: &ObjectId,
        is_new: bool,
        members: &Members,
        link: Link,
        mail: &mut Mail,
    ) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if is_new {
            for watcher in entry.watchers.clone() {
                let found = entry.live.as_ref().and_then(|live| live.found(watcher, members));
                mail.push((watcher, Message::Found { id: id.clone(), found }));
            }
        }
        for (asker, avoid) in core::mem::take(&mut entry.waiters) {
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
            && let Some(source) = live.choose(asker, avoid, members, link)
        {
            if let Source::Holder { node, .. } = source {
                let before = live.holders.remove(&asker);
                let told = before.as_ref().and_then(|before| before.told);
                let ready = before.map_or_else(Ranges::new, |before| before.ready);
                let (complete, origin, source, located) = (false, false, Some(node), Some(now));
                let holder = Holder { complete, origin, source, ready, told, located };
                live.holders.insert(asker, holder);
            }
            let (instance, meta) = (live.instance, live.meta.clone());
            mail.push((asker, Message::Located { id: id.clone(), instance, meta, source }));
            return;
        }
        // Whoever asks again is fed by nobody, and neither are those behind it.
        let partial = entry.live.as_mut().and_then(|live| live.holders.get_mut(&asker));
        if let Some(holder) = partial.filter(|holder| !holder.complete) {
            holder.source = None;
        }
        entry.waiters.retain(|(waiter, _)| *waiter != asker);
        entry.waiters.push((asker, avoid.to_vec()));
        mail.push((asker, Message::Waiting { id: id.clone() }));
        self.check_orphan(now, id, members);
    }

    fn unlocate(&mut self, from: NodeId, id: &ObjectId) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.waiters.retain(|(asker, _)| *asker != from);
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
        if let Some(entry) = self.entries.get_mut(id)
            && let Some(live) = entry.live.as_mut().filter(|live| live.instance == instance)
            && live.remove_holder(from)
        {
            self.check_orphan(now, id, members);
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
        entry.watchers.insert(from);
        let found = entry.live.as_ref().and_then(|live| live.found(from, members));
        mail.push((from, Message::Found { id: id.clone(), found }));
        self.check_orphan(now, id, members);
    }

    fn delete(
        &mut self,
        now: Instant,
        from: NodeId,
        id: &ObjectId,
        request: RequestId,
        mail: &mut Mail,
    ) {
        let is_known = self.entries.get(id).is_some_and(|entry| entry.live.is_some());
        // A name that nobody has put is free, and deleting it changes nothing.
        if is_known || id.minter().is_some() {
            self.bury(now, id, Error::ObjectDeleted { id: id.clone() }, Vec::new(), mail);
        }
        if let Some(gone) = self.entries.get_mut(id).and_then(|entry| entry.gone.as_mut()) {
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
            for holder in live.holders.keys() {
                let (id, instance, error) = (id.clone(), live.instance, Some(error.clone()));
                mail.push((*holder, Message::Drop { id, instance, error }));
                dropping.insert((*holder, instance));
            }
            instances.push(live.instance);
        }
        if entry.live.is_some() {
            return;
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
        entry.gone = Some(Tombstone { instances, error, until, dropping, askers });
        self.alarms.insert((until, id.clone()));
    }

    /// Answers those for whom this name, the newest under its prefix, is new.
    fn answer_latest(&mut self, prefix: &str, version: u64, name: &Name, mail: &mut Mail) {
        self.latest.retain(|waiter| {
            let is_answered =
                waiter.prefix == prefix && waiter.after.is_none_or(|after| version > after);
            if is_answered {
                let (name, request) = (name.clone(), waiter.request);
                mail.push((waiter.node, Message::LatestIs { name, request }));
            }
            !is_answered
        });
    }

    /// The living name under `prefix` with the highest number.
    fn newest(&self, prefix: &str) -> Option<(u64, Name)> {
        let from: ObjectId = prefix.parse().ok()?;
        let names = self.entries.range((Bound::Included(from), Bound::Unbounded));
        names
            .map_while(|(id, entry)| match id {
                ObjectId::Named(name) if name.as_str().starts_with(prefix) => Some((name, entry)),
                _ => None,
            })
            .filter(|(name, entry)| entry.is_alive() && name.group().len() + 1 == prefix.len())
            .filter_map(|(name, _)| Some((name.version()?, name.clone())))
            .max_by_key(|(version, _)| *version)
    }

    /// Starts the grace after which those who wait are told of the loss, if nobody is left who could have it.
    fn check_orphan(&mut self, now: Instant, id: &ObjectId, members: &Members) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let can_come = match id.minter() {
            // As long as it lives it has the object, makes it, or says that it can't: a reduce may begin again.
            Some(minter) => members.contains(minter),
            // A name that nobody has put yet.
            None => entry.live.is_none(),
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
            entry.kept_until = now + ORPHAN_GRACE_NS;
            self.alarms.insert((entry.kept_until, id.clone()));
        }
    }

    fn forget_if_empty(&mut self, id: &ObjectId) {
        let is_empty = self.entries.get(id).is_some_and(|entry| {
            entry.live.is_none()
                && entry.gone.is_none()
                && entry.waiters.is_empty()
                && entry.watchers.is_empty()
                && entry.orphan_since.is_none()
        });
        if is_empty {
            self.entries.remove(id);
        }
    }
}

impl Tombstone {
    /// Answers those who deleted the object, when no copy is left that somebody could be given.
    fn answer(&mut self, id: &ObjectId, mail: &mut Mail) {
        if self.dropping.is_empty() {
            for (node, request) in self.askers.drain(..) {
                mail.push((node, Message::Deleted { id: id.clone(), request }));
            }
        }
    }
}

impl Entry {
    /// Whether a copy is known that is complete, or will be.
    fn is_alive(&self) -> bool {
        self.live.is_some() && self.orphan_since.is_none()
    }

    fn tell_gone(&mut self, id: &ObjectId, error: &Error, mail: &mut Mail) {
        let waiters = core::mem::take(&mut self.waiters).into_iter().map(|(asker, _)| asker);
        let mut told: BTreeSet<NodeId> = waiters.collect();
        told.extend(core::mem::take(&mut self.watchers));
        for node in told {
            mail.push((node, Message::Gone { id: id.clone(), error: error.clone() }));
        }
    }
}

impl Live {
    /// Removes a holder and detaches whom it fed; false if it was none.
    fn remove_holder(&mut self, node: NodeId) -> bool {
        let was_holder = self.holders.remove(&node).is_some();
        if was_holder {
            for holder in self.holders.values_mut() {
                holder.source.take_if(|source| *source == node);
            }
        }
        was_holder
    }

    /// Relays between `node` and a copy that needs none; none if it is fed by nobody, or in a circle.
    fn depth(&self, node: NodeId) -> Option<u32> {
        let mut at = node;
        for depth in 0..=self.holders.len() as u32 {
            let holder = self.holders.get(&at)?;
            match holder.source {
                _ if holder.complete => return Some(depth),
                None => return holder.origin.then_some(depth),
                Some(source) => at = source,
            }
        }
        None
    }

    /// Whether some copy is complete, or will be.
    fn is_fed(&self) -> bool {
        self.holders.keys().any(|node| self.depth(*node).is_some())
    }

    /// Whether `node` gets its bytes, directly or not, from `from`.
    fn depends(&self, node: NodeId, from: NodeId) -> bool {
        let mut at = node;
        for _ in 0..=self.holders.len() {
            if at == from {
                return true;
            }
            match self.holders.get(&at) {
                Some(Holder { complete: false, source: Some(source), .. }) => at = *source,
                _ => return false,
            }
        }
        true
    }

    fn load(&self, node: NodeId) -> u32 {
        let fed = |holder: &&Holder| !holder.complete && holder.source == Some(node);
        self.holders.values().filter(fed).count() as u32
    }

    fn choose(
        &self,
        asker: NodeId,
        avoid: &[NodeId],
        members: &Members,
        link: Link,
    ) -> Option<Source> {
        if let Some(inline) = &self.inline {
            return Some(Source::Inline(inline.clone()));
        }
        let candidates: Vec<Candidate> = self
            .holders
            .iter()
            .filter(|(node, _)| **node != asker && members.contains(**node))
            .filter(|(node, _)| !self.depends(**node, asker))
            .filter_map(|(node, holder)| {
                let (node, complete, origin) = (*node, holder.complete, holder.origin);
                let (depth, load) = (self.depth(node)?, self.load(node));
                let avoided = avoid.contains(&node);
                Some(Candidate { node, depth, load, complete, origin, avoided })
            })
            .collect();
        let (node, reason) = choose_source(&candidates, self.meta.size, link)?;
        Some(Source::Holder { node, reason })
    }

    /// What a watcher is told: itself as the holder if it is one, else the best copy to fold at.
    fn found(&self, watcher: NodeId, members: &Members) -> Option<Found> {
        let rank = |(node, holder): &(&NodeId, &Holder)| {
            (**node != watcher, !holder.complete, !holder.origin, self.load(**node), **node)
        };
        let fed = |node: NodeId| members.contains(node) && self.depth(node).is_some();
        let (holder, _) = self.holders.iter().filter(|(node, _)| fed(**node)).min_by_key(rank)?;
        let (instance, meta) = (self.instance, self.meta.clone());
        Some(Found { instance, meta, holder: *holder, inline: self.inline.clone() })
    }
}

/// The owner of all names that begin with `prefix` and a number.
pub fn prefix_owner(prefix: &str, members: &Members) -> Option<NodeId> {
    // Every such name has the same text before its last slash, and with it the same owner.
    let any: ObjectId = format!("{prefix}0").parse().ok()?;
    Some(members.owners(&any).first)
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString, vec};

    use super::*;
    use crate::{members::Member, meta::Meta};

    const SIZE: u64 = 32 << 20;
    const SECOND: u64 = 1_000_000_000;

    /// The directory of node 1 in a cluster of five.
    struct Owner {
        directory: Directory,
        members: Members,
        now: Instant,
    }

    impl Owner {
        fn new() -> Self {
            let member = |id: u64| Member {
                id: NodeId(id),
                address: core::net::SocketAddr::from(([127, 0, 0, 1], id as u16)),
            };
            let mut members = Members::new(member(1));
            (2..=5).for_each(|id| assert!(members.insert(member(id))));
            Self { directory: Directory::default(), members, now: Instant(SECOND) }
        }

        /// What the directory wants sent after `from` has said `message`.
        fn hears(&mut self, from: u64, message: Message) -> Mail {
            self.now = self.now + 1000;
            let mut mail = Vec::new();
            let link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };
            let (members, directory) = (&self.members, &mut self.directory);
            assert!(directory.handle(self.now, NodeId(from), &message, members, link, &mut mail));
            mail
        }

        fn loses(&mut self, node: u64) -> Mail {
            let mut mail = Vec::new();
            self.members.remove(NodeId(node));
            self.directory.member_gone(self.now, NodeId(node), &self.members, &mut mail);
            self.directory.members_changed(self.now, &self.members, &mut mail);
            mail
        }

        fn waits(&mut self, ns: u64) -> Mail {
            let mut mail = Vec::new();
            self.now = self.now + ns;
            self.directory.expire(self.now, &self.members, &mut mail);
            mail
        }

        /// Who is named to `asker` as its sender.
        fn source_of(&mut self, asker: u64, id: &ObjectId) -> Option<u64> {
            let mail = self.hears(asker, locate(id));
            let [(to, Message::Located { source: Source::Holder { node, .. }, .. })] = &mail[..]
            else {
                assert_eq!(mail, [(NodeId(asker), Message::Waiting { id: id.clone() })]);
                return None;
            };
            assert_eq!(*to, NodeId(asker));
            Some(node.0)
        }

        fn holders(&self, id: &ObjectId) -> Vec<u64> {
            self.directory.holders(id).into_iter().map(|(node, _)| node.0).collect()
        }
    }

    /// Minted by node 1, so that node 1 is its first owner.
    fn minted() -> ObjectId {
        ObjectId::Minted { node: NodeId(1), serial: 7 }
    }

    /// A name in a group of its own that node 1 owns first.
    fn named(owner: &Owner, suffix: &str) -> ObjectId {
        let names = (0..).map(|group| format!("group{group}/{suffix}").parse().unwrap());
        let is_mine = |id: &ObjectId| owner.members.owners(id).first == NodeId(1);
        names.into_iter().find(is_mine).unwrap()
    }

    fn instance(node: u64, serial: u64) -> Instance {
        Instance { node: NodeId(node), serial }
    }

    fn told(id: &ObjectId, instance: Instance, origin: bool, progress: Progress) -> Message {
        let (id, meta) = (id.clone(), Meta::bytes(SIZE));
        Message::Announce(Announce { id, instance, meta, origin, progress, claim: false })
    }

    fn claim(id: &ObjectId, instance: Instance) -> Message {
        let progress = Progress::Partial { source: None, ready: Ranges::new() };
        let Message::Announce(announce) = told(id, instance, true, progress) else {
            unreachable!()
        };
        Message::Announce(Announce { claim: true, ..announce })
    }

    fn locate(id: &ObjectId) -> Message {
        Message::Locate { id: id.clone(), avoid: Vec::new(), not_here: None }
    }

    fn fed_by(node: u64) -> Progress {
        Progress::Partial { source: Some(NodeId(node)), ready: Ranges::new() }
    }

    fn delete(id: &ObjectId) -> Message {
        Message::Delete { id: id.clone(), request: RequestId(1) }
    }

    fn deleted(id: &ObjectId, to: u64) -> (NodeId, Message) {
        (NodeId(to), Message::Deleted { id: id.clone(), request: RequestId(1) })
    }

    #[test]
    fn a_question_before_the_object_is_answered_when_it_comes() {
        let mut owner = Owner::new();
        let id = minted();
        assert_eq!(owner.source_of(2, &id), None);
        let mail = owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete));
        let [(NodeId(2), Message::Located { source, .. })] = &mail[..] else { panic!("{mail:?}") };
        assert!(matches!(source, Source::Holder { node: NodeId(3), .. }));
    }

    #[test]
    fn a_question_that_was_taken_back_is_not_answered() {
        let mut owner = Owner::new();
        let id = minted();
        assert_eq!(owner.source_of(2, &id), None);
        assert_eq!(owner.hears(2, Message::Unlocate { id: id.clone() }), []);
        assert_eq!(owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete)), []);
    }

    #[test]
    fn a_small_object_comes_with_the_answer() {
        let mut owner = Owner::new();
        let id = minted();
        let bytes: Inline = vec![1, 2, 3].into();
        owner.hears(3, told(&id, instance(3, 1), true, Progress::Inline(bytes.clone())));
        let mail = owner.hears(2, locate(&id));
        let [(NodeId(2), Message::Located { source, .. })] = &mail[..] else { panic!("{mail:?}") };
        assert_eq!(*source, Source::Inline(bytes));
        assert_eq!(owner.holders(&id), [3], "whoever only reads it holds nothing");
    }

    #[test]
    fn receivers_of_a_large_object_form_a_chain() {
        let mut owner = Owner::new();
        let id = minted();
        owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        let sources: Vec<_> = [3, 4, 5].map(|asker| owner.source_of(asker, &id)).into();
        assert_eq!(sources, [Some(2), Some(3), Some(4)]);
    }

    #[test]
    fn nobody_is_sent_to_a_node_that_it_feeds() {
        let mut owner = Owner::new();
        let id = minted();
        owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        let sources = [3, 4, 5].map(|asker| owner.source_of(asker, &id));
        assert_eq!(sources, [Some(2), Some(3), Some(4)]);
        // The sender of 3 is gone; 4 and 5 are behind 3.
        owner.hears(2, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
        assert_eq!(owner.source_of(3, &id), None);
        let mail = owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        assert!(matches!(mail[..], [(NodeId(3), Message::Located { .. })]));
    }

    #[test]
    fn who_failed_the_asker_is_named_last() {
        let mut owner = Owner::new();
        let id = minted();
        owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        owner.hears(3, told(&id, instance(2, 1), false, Progress::Complete));
        let again = |avoid| Message::Locate { id: id.clone(), avoid, not_here: None };
        let mail = owner.hears(4, again(vec![NodeId(2)]));
        assert!(matches!(
            mail[..],
            [(_, Message::Located { source: Source::Holder { node: NodeId(3), .. }, .. })]
        ));
    }

    #[test]
    fn a_refusal_corrects_a_stale_location() {
        let mut owner = Owner::new();
        let id = minted();
        owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        assert_eq!(owner.source_of(3, &id), Some(2));
        let not_here = Some((NodeId(2), instance(2, 1)));
        let mail = owner.hears(3, Message::Locate { id: id.clone(), avoid: vec![], not_here });
        assert_eq!(mail, [(NodeId(3), Message::Waiting { id: id.clone() })]);
        assert!(!owner.holders(&id).contains(&2));
    }

    #[test]
    fn an_older_refusal_does_not_hide_a_copy_that_came_since() {
        let mut owner = Owner::new();
        let id = minted();
        owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        assert_eq!(owner.source_of(3, &id), Some(2));
        assert_eq!(owner.source_of(4, &id), Some(3));
        owner.hears(3, told(&id, instance(2, 1), false, Progress::Complete));
        let not_here = Some((NodeId(3), instance(2, 1)));
        owner.hears(4, Message::Locate { id: id.clone(), avoid: vec![NodeId(3)], not_here });
        assert!(owner.holders(&id).contains(&3));
    }

    #[test]
    fn a_deletion_is_answered_when_every_holder_has_dropped_its_copy() {
        let mut owner = Owner::new();
        let id = minted();
        owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        owner.hears(3, told(&id, instance(2, 1), false, Progress::Complete));
        let dropped: Vec<NodeId> = owner.hears(5, delete(&id)).iter().map(|(to, _)| *to).collect();
        assert_eq!(dropped, [NodeId(2), NodeId(3)]);
        let done = || Message::Dropped { id: id.clone(), instance: instance(2, 1) };
        assert_eq!(owner.hears(2, done()), []);
        assert_eq!(owner.hears(3, done()), [deleted(&id, 5)]);
        let mail = owner.hears(4, locate(&id));
        assert!(matches!(
            &mail[..],
            [(_, Message::Gone { error: Error::ObjectDeleted { .. }, .. })]
        ));
    }

    #[test]
    fn a_deletion_does_not_wait_for_a_holder_that_is_gone() {
        let mut owner = Owner::new();
        let id = minted();
        owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        owner.hears(5, delete(&id));
        assert!(owner.loses(2).contains(&deleted(&id, 5)));
    }

    #[test]
    fn a_late_announcement_does_not_bring_a_deleted_object_back() {
        let mut owner = Owner::new();
        let id = minted();
        assert_eq!(owner.hears(5, delete(&id)), [deleted(&id, 5)]);
        let mail = owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        let error = Some(Error::ObjectDeleted { id: id.clone() });
        let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error };
        assert_eq!(mail, [(NodeId(2), drop)]);
        owner.waits(TOMBSTONE_NS);
        assert!(owner.directory.entries.is_empty(), "deletions are forgotten in the end");
        assert_eq!(owner.directory.deadline(), None);
    }

    #[test]
    fn a_name_is_taken_while_its_object_lives_and_free_after_its_deletion() {
        let mut owner = Owner::new();
        let id = named(&owner, "x");
        let claimed = |instance, taken_by| Message::Claimed { id: id.clone(), instance, taken_by };
        let mail = owner.hears(2, claim(&id, instance(2, 1)));
        assert_eq!(mail, [(NodeId(2), claimed(instance(2, 1), None))]);
        let mail = owner.hears(3, claim(&id, instance(3, 1)));
        assert_eq!(mail, [(NodeId(3), claimed(instance(3, 1), Some(NodeId(2))))]);
        owner.hears(4, delete(&id));
        let mail = owner.hears(3, claim(&id, instance(3, 2)));
        assert!(mail.contains(&(NodeId(3), claimed(instance(3, 2), None))));
        assert!(mail.contains(&deleted(&id, 4)), "the deleter waits for no old copy");
        // What is left of the old object stays out.
        let mail = owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        assert!(matches!(mail[..], [(NodeId(2), Message::Drop { .. })]));
    }

    #[test]
    fn of_two_objects_under_one_name_every_owner_keeps_the_lower() {
        let (low, high) = ((2, instance(2, 9)), (3, instance(3, 1)));
        for (first, second) in [(low, high), (high, low)] {
            let mut owner = Owner::new();
            let id = named(&owner, "x");
            owner.hears(first.0, told(&id, first.1, true, Progress::Complete));
            let mail = owner.hears(second.0, told(&id, second.1, true, Progress::Complete));
            let drop = Message::Drop { id: id.clone(), instance: high.1, error: None };
            assert_eq!(mail, [(NodeId(high.0), drop)]);
            assert_eq!(owner.holders(&id), [low.0]);
        }
    }

    #[test]
    fn a_later_attempt_of_a_reduce_replaces_the_earlier() {
        let mut owner = Owner::new();
        let id = minted();
        let growing = || Progress::Partial { source: None, ready: Ranges::new() };
        owner.hears(1, told(&id, instance(1, 8), true, growing()));
        assert_eq!(owner.source_of(2, &id), Some(1));
        let mail = owner.hears(1, told(&id, instance(1, 9), true, growing()));
        let drop = Message::Drop { id: id.clone(), instance: instance(1, 8), error: None };
        assert_eq!(mail, [(NodeId(2), drop)]);
        assert_eq!(owner.holders(&id), [1]);
    }

    #[test]
    fn latest_is_the_highest_number_and_waits_for_a_higher_one() {
        let mut owner = Owner::new();
        let ids = ["9", "10", "11", "best"].map(|version| named(&owner, version));
        let prefix = format!("{}/", ids[0].to_string().rsplit_once('/').unwrap().0);
        let question =
            |after| Message::Latest { prefix: prefix.clone(), after, request: RequestId(5) };
        for (serial, id) in (1..).zip([&ids[1], &ids[0], &ids[3]]) {
            owner.hears(2, told(id, instance(2, serial), true, Progress::Complete));
        }
        let answer = |id: &ObjectId| {
            let ObjectId::Named(name) = id.clone() else { unreachable!() };
            (NodeId(4), Message::LatestIs { name, request: RequestId(5) })
        };
        assert_eq!(owner.hears(4, question(None)), [answer(&ids[1])]);
        assert_eq!(owner.hears(4, question(Some(10))), []);
        let mail = owner.hears(2, told(&ids[2], instance(2, 4), true, Progress::Complete));
        assert_eq!(mail, [answer(&ids[2])]);
    }

    #[test]
    fn those_who_wait_are_told_of_a_loss_after_a_grace() {
        let mut owner = Owner::new();
        let id = named(&owner, "x");
        owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        assert_eq!(owner.source_of(3, &id), Some(2));
        owner.loses(2);
        assert_eq!(owner.source_of(3, &id), None);
        assert_eq!(owner.waits(ORPHAN_GRACE_NS / 2), []);
        let mail = owner.waits(ORPHAN_GRACE_NS);
        let is_lost = |message: &Message| {
            matches!(
                message,
                Message::Gone { error: Error::ObjectLost { .. }, .. }
                    | Message::Drop { error: Some(Error::ObjectLost { .. }), .. }
            )
        };
        assert_eq!(mail.len(), 2, "the question is answered and the part of a copy dropped");
        assert!(mail.iter().all(|(to, message)| *to == NodeId(3) && is_lost(message)));
    }

    #[test]
    fn an_object_that_is_told_of_again_within_the_grace_is_not_lost() {
        let mut owner = Owner::new();
        let id = named(&owner, "x");
        owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        owner.loses(2);
        assert_eq!(owner.source_of(3, &id), None);
        let mail = owner.hears(4, told(&id, instance(2, 1), false, Progress::Complete));
        assert!(matches!(mail[..], [(NodeId(3), Message::Located { .. })]));
        assert_eq!(owner.waits(2 * ORPHAN_GRACE_NS), []);
    }

    #[test]
    fn the_result_of_a_reduce_that_begins_again_is_not_lost() {
        let mut owner = Owner::new();
        let id = ObjectId::Minted { node: NodeId(3), serial: 1 };
        let growing = Progress::Partial { source: None, ready: Ranges::new() };
        owner.hears(3, told(&id, instance(3, 2), true, growing));
        assert_eq!(owner.source_of(2, &id), Some(3));
        owner.hears(3, Message::Withdraw { id: id.clone(), instance: instance(3, 2) });
        assert_eq!(owner.source_of(2, &id), None);
        assert_eq!(owner.waits(10 * ORPHAN_GRACE_NS), [], "its caller lives and may still make it");
    }

    #[test]
    fn what_a_minter_that_is_gone_never_made_is_lost() {
        let mut owner = Owner::new();
        let ids = (0..).map(|serial| ObjectId::Minted { node: NodeId(3), serial });
        owner.loses(3);
        let id = ids.into_iter().find(|id| owner.members.owners(id).first == NodeId(1)).unwrap();
        assert_eq!(owner.source_of(2, &id), None);
        let mail = owner.waits(ORPHAN_GRACE_NS);
        assert!(matches!(mail[..], [(NodeId(2), Message::Gone { .. })]), "{mail:?}");
    }

    #[test]
    fn copies_that_grow_from_each_other_begin_anew() {
        let mut owner = Owner::new();
        let id = minted();
        owner.hears(2, told(&id, instance(2, 1), true, Progress::Complete));
        owner.hears(3, told(&id, instance(2, 1), false, fed_by(4)));
        let mail = owner.hears(4, told(&id, instance(2, 1), false, fed_by(3)));
        let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error: None };
        assert_eq!(mail, [(NodeId(4), drop)]);
        assert!(owner.directory.feeds().all(|(_, node, source)| (node.0, source.0) == (3, 4)));
    }

    #[test]
    fn a_new_owner_is_told_of_deletions() {
        let mut owner = Owner::new();
        let id = ObjectId::Minted { node: NodeId(3), serial: 1 };
        owner.hears(4, delete(&id));
        let mut mail = Vec::new();
        owner.directory.members_changed(owner.now, &owner.members, &mut mail);
        let owners: Vec<NodeId> = owner.members.owners(&id).iter().collect();
        for (to, message) in &mail {
            assert!(owners.contains(to));
            assert!(matches!(message, Message::Remember { .. }));
        }
        assert!(!mail.is_empty());
    }

    #[test]
    fn what_is_told_to_a_node_that_is_no_owner_is_kept_for_the_grace_only() {
        let mut owner = Owner::new();
        let strangers = (0..).map(|serial| ObjectId::Minted { node: NodeId(3), serial });
        let is_strange = |id: &ObjectId| !owner.members.owners(id).contains(NodeId(1));
        let id = strangers.into_iter().find(is_strange).unwrap();
        owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete));
        assert_eq!(owner.holders(&id), [3], "this node may be its owner as others see it");
        owner.waits(ORPHAN_GRACE_NS);
        assert_eq!(owner.holders(&id), []);
    }

    #[test]
    fn a_watcher_is_answered_at_once_and_again_when_the_object_comes() {
        let mut owner = Owner::new();
        let id = minted();
        let mail = owner.hears(2, Message::Watch { id: id.clone() });
        assert_eq!(mail, [(NodeId(2), Message::Found { id: id.clone(), found: None })]);
        let mail = owner.hears(3, told(&id, instance(3, 1), true, Progress::Complete));
        let [(NodeId(2), Message::Found { found: Some(found), .. })] = &mail[..] else {
            panic!("{mail:?}")
        };
        assert_eq!(found.holder, NodeId(3));
        let holder_asks = owner.hears(3, Message::Watch { id: id.clone() });
        assert!(matches!(
            &holder_asks[..],
            [(NodeId(3), Message::Found { found: Some(Found { holder: NodeId(3), .. }), .. })]
        ));
    }
}

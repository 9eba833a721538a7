//! Copies: what holders tell of what they have, and of what they have no more.
//!
//! Of two instances under one name every owner keeps the same one, whichever it heard of first: the lower of those that
//! are pinned somewhere. An owner that may have missed the end of what it knows takes the other, and asks the holders.

use alloc::{boxed::Box, format};

use super::{
    accounts::Kept,
    entry::{Entry, Reserved},
    live::Live,
    state::{Directory, Parked},
    world::{Mail, World},
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    lifetime::Terms,
    limits::{ENTRIES_MAX, PARKED_MAX, SHARE_OF_ONE, limit_name},
    message::{Announce, Message, Progress},
    planted::{self, Bug},
    time::Instant,
};

impl Directory {
    /// A node has a copy, or part of one; or claims a name for what it is going to have. False if no node asks for the object.
    pub(super) fn announce(
        &mut self,
        world: &mut World<'_>,
        from: NodeId,
        announce: &Announce,
    ) -> bool {
        let (now, members) = (world.now, world.members);
        let Announce { id, instance, claim, .. } = announce;
        let owners = members.owners(id);
        let (is_owner, is_first) = (owners.contains(members.me()), owners.first == members.me());
        let entry = self.entries.open(id);
        // A put by the node that reserved the name is another object all the same.
        if let Some(reserved) = entry.reserved.as_ref().filter(|_| *claim) {
            world.mail.push((from, announce.claimed(Some(reserved.instance.node))));
            return true;
        }
        // One instance has one length and shape: with another, this owner would send malformed messages itself.
        if entry.live.as_ref().is_some_and(|live| live.contradicts(announce)) {
            world.mail.push((from, announce.refused(None)));
            return true;
        }
        if entry.refuses_what_was_deleted(world, from, announce, is_first) {
            return true;
        }
        // Of a name that was deleted before this owner heard of it.
        if !*claim && entry.has_deleters() {
            self.drop_unheard(world, from, announce);
            return true;
        }
        entry.reuse(world, id);
        let is_other = |reserved: &mut Box<Reserved>| {
            let Instance { node, serial } = reserved.instance;
            node != instance.node || serial > instance.serial
        };
        if let Some(reserved) = entry.reserved.take_if(is_other).map(|other| other.instance) {
            // Two owners who did not know of each other granted the name: it is what exists already.
            let (id, taken_by) = (id.clone(), Some(instance.node));
            world.mail.push((reserved.node, Message::Claimed { id, instance: reserved, taken_by }));
        }
        let is_same = entry.live.as_ref().is_some_and(|live| live.instance == *instance);
        if is_same && is_owner {
            entry.kept_until = Instant::default();
        }
        let is_rival = entry.live.as_ref().is_some_and(|live| live.instance.node != instance.node);
        if is_rival && now < self.catching_up_until {
            self.parked.retain(|parked| !parked.is(from, *instance));
            if self.parked.len() < PARKED_MAX {
                let (announce, charge) = self.accounts.hold(from, announce);
                self.parked.push(Parked::new(from, announce, charge));
                return true;
            }
            self.limited.push((from, limit_name!(PARKED_MAX)));
        }
        entry.lost.take_if(|lost| lost.0 == *instance);
        let was_lost = entry.is_lost();
        if !entry.makes_way(from, announce, world.mail) {
            return true;
        }
        if is_owner {
            entry.kept_until = Instant::default();
        }
        let was_complete = entry.live.as_ref().is_some_and(Live::is_complete);
        let is_new = entry.live.is_none() || was_lost;
        let stays = |live: &mut Live| live.is_at_a_node_that_stays(members);
        let stayed = !members.has_leaving() || entry.live.as_mut().is_some_and(stays);
        let meta = || announce.meta.clone();
        let is_mine = instance.node == members.me();
        let is_granted = entry.reserved.is_some();
        let accounts = &mut self.accounts;
        let charge = (entry.live.is_none() && !is_mine).then(|| match is_granted {
            true => Some(accounts.open_granted(from)),
            false => accounts.open(from),
        });
        if let Some(None) = charge {
            // A copy of which one owner of two knows is found by that one.
            self.limited.push((from, limit_name!(ENTRIES_MAX)));
            if *claim {
                world.mail.push((
                    from,
                    announce.refused(Some(too_many(members.me(), announce.meta.size))),
                ));
            }
            self.forget_if_empty(id);
            return true;
        }
        let new = || Live::new(*instance, meta(), now, charge.flatten());
        let live = entry.live.get_or_insert_with(new);
        live.take(now, from, announce, is_first, world.mail);
        let (mut is_brought, mut has_room) = (false, true);
        if let Progress::Inline(bytes) = &announce.progress
            && live.small.is_none()
        {
            // What this node made is in its store for as long as the entry has it.
            let charge = (!is_mine).then(|| self.accounts.charge(from, bytes.len())).flatten();
            (is_brought, has_room) = (true, is_mine || charge.is_some());
            if !core::mem::take(&mut live.is_asked) && !has_room {
                self.limited.push((from, limit_name!(SMALL_SHARE)));
            }
            live.small = Some(Box::new(Kept::new(bytes.clone(), charge)));
        }
        live.move_receivers(world, from, id);
        if live.is_fed() {
            entry.orphan_since = None;
        }
        if *claim {
            world.mail.push((from, announce.claimed(None)));
        }
        let (is_complete, lacks_bytes) = (live.is_complete(), live.lacks_bytes());
        // Until now it was only at nodes that leave, where no reduce folds it any more.
        let is_better = is_complete && !was_complete || !stayed && stays(live);
        let is_news = is_new || is_brought || is_better;
        // The result that the name was reserved for is there. A reader may have all of an attempt that its maker gave up.
        let is_made = announce.progress.is_complete() && from == instance.node;
        entry.reserved.take_if(|reserved| is_made && reserved.instance.node == from);
        entry.check_orphan(now, id, members, &mut self.alarms);
        // What follows looks the entry up again, and is for few objects.
        let is_awaited = entry.asking().is_some() || !self.latest.is_empty();
        if let Some(told) = &announce.lifetime {
            self.bind(world, id, &Terms::told(told, now));
        }
        if is_awaited {
            self.wake(world, id, is_news);
        }
        if !has_room || lacks_bytes {
            self.keep_bytes(id, *instance, from, has_room, world.mail);
        }
        is_awaited
    }

    /// Those who wait for the bytes of a small object have them. Without room for them they go, and a holder is asked for them
    /// when they are wanted; what went before, or came without them, is asked for when there is room.
    fn keep_bytes(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        from: NodeId,
        has_room: bool,
        mail: &mut Mail,
    ) {
        let live = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut());
        let Some(live) = live.filter(|live| live.instance == instance) else { return };
        let maker = instance.node;
        let teller = if live.tree.get(maker).is_some() { maker } else { from };
        if !has_room {
            live.small = None;
        } else if live.lacks_bytes() && self.accounts.has_room(teller, live.meta.size) {
            live.seek_bytes(id, mail);
        }
    }

    pub(super) fn withdraw(
        &mut self,
        world: &mut World<'_>,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
    ) {
        let (now, members) = (world.now, world.members);
        self.parked.retain(|parked| parked.announce.id != *id || !parked.is(from, instance));
        if let Some(entry) = self.entries.get_mut(id) {
            let is_its = |reserved: &mut Box<Reserved>| reserved.instance == instance;
            entry.reserved.take_if(|reserved| is_its(reserved) && instance.node == from);
            let mut live = entry.live.as_mut().filter(|live| live.instance == instance);
            if let Some(live) = live.as_mut().filter(|_| instance.node == from) {
                // Given up by its maker before its name was confirmed.
                live.small = None;
            }
            if live.is_some_and(|live| live.remove_holder(from)) {
                entry.seek_bytes(id, world.mail);
                self.check_orphan(now, id, members);
            }
        }
        self.forget_if_empty(id);
    }

    /// An asker that was sent to a holder says that it has no such copy. No asker is sent there until the holder, which alone
    /// knows, tells of it again.
    pub(super) fn doubt_copy(
        &mut self,
        world: &mut World<'_>,
        holder: NodeId,
        id: &ObjectId,
        instance: Instance,
    ) {
        let (now, members) = (world.now, world.members);
        let live = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut());
        let live = live.filter(|live| live.instance == instance);
        if live.is_some_and(|live| live.remove_holder(holder)) {
            world.mail.push((holder, Message::Doubted { id: id.clone(), instance }));
            if let Some(entry) = self.entries.get_mut(id) {
                entry.seek_bytes(id, world.mail);
            }
            self.check_orphan(now, id, members);
            self.forget_if_empty(id);
        }
    }

    /// Whether `holder` refused `asker` later than it told of its copy, as far as this owner can know.
    pub(super) fn is_refusal_news(&self, id: &ObjectId, asker: NodeId, holder: NodeId) -> bool {
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        let of = |node: NodeId| live.and_then(|live| live.tree.get(node));
        let told = of(holder).and_then(|holder| holder.told);
        let located = of(asker).and_then(|asker| asker.located);
        // If it was older news and the copy is gone all the same, the next to be sent there says so again.
        told.is_none_or(|told| located.is_some_and(|located| told <= located))
    }
}

/// Why a member gets no further name at this owner, for an object of so many bytes.
pub(super) fn too_many(owner: NodeId, needed: u64) -> Error {
    let detail = format!(
        "node {owner}, which owns the name, keeps {} entries of objects, {} of one node at most: delete objects",
        ENTRIES_MAX,
        ENTRIES_MAX / SHARE_OF_ONE
    );
    Error::NoMemory { needed, detail }
}

impl Announce {
    /// What its sender is told of the name; `taken_by` another, unless it is its own.
    fn claimed(&self, taken_by: Option<NodeId>) -> Message {
        Message::Claimed { id: self.id.clone(), instance: self.instance, taken_by }
    }

    /// What its sender is told if it is to have this no more.
    pub(super) fn refused(&self, error: Option<Error>) -> Message {
        Message::Drop { id: self.id.clone(), instance: self.instance, error }
    }
}

impl Entry {
    /// Whether what is told of was deleted, and its holder hears so.
    fn refuses_what_was_deleted(
        &mut self,
        world: &mut World<'_>,
        from: NodeId,
        announce: &Announce,
        is_first: bool,
    ) -> bool {
        let now = world.now;
        let Announce { id, instance, claim, .. } = announce;
        let mut is_void = self.is_buried(now, instance);
        if let Some(gone) = &mut self.gone {
            // A result, or the next attempt at it, of which its maker told before it heard of the deletion.
            let is_earlier = |(node, dropped): &(NodeId, Instance)| {
                *node == from && dropped.node == instance.node && dropped.serial < instance.serial
            };
            if !*claim && is_first && gone.dropping.iter().any(is_earlier) {
                gone.instances.push(*instance);
                gone.known_to.clear();
                gone.dropping.insert((from, *instance));
            }
            // A client that deleted a minted id deleted all it will ever be; a name is free for another instance.
            is_void |= id.minter().is_some() || gone.instances.contains(instance);
        }
        if !is_void || planted::has(Bug::ForgetsDeletions) {
            return false;
        }
        if *claim {
            // Deleted before its putter heard that the name was its own.
            world.mail.push((from, announce.claimed(None)));
        }
        let error = self.gone.as_ref().map(|gone| gone.error(id));
        if error.is_some() && !*claim {
            // The holder fails the gets of its clients by this error.
            self.drop_waiter(from);
        }
        world.mail.push((from, announce.refused(error)));
        true
    }

    /// Whether what is told of has the name, or gets it from another instance, whose holders drop it then.
    fn makes_way(&mut self, from: NodeId, announce: &Announce, mail: &mut Mail) -> bool {
        let Announce { id, instance, origin, claim, .. } = announce;
        let (is_lost, is_doubtful) = (self.is_lost(), self.is_doubtful());
        let is_other = |live: &mut Live| live.instance != *instance;
        let Some(other) = self.live.take_if(is_other) else { return true };
        // A later epoch of the same maker replaces what it made before. Of two that were put under one name, while
        // their nodes did not agree on its owner, every owner keeps the lower, or both would be dropped.
        let replaces = if other.instance.node == instance.node {
            // What a maker says last is what it has: the owner of before may have granted its name to the earlier one.
            other.instance.serial < instance.serial || from == instance.node && !*claim
        } else {
            // An original goes before copies that outlived theirs: the other owner may know of none of those.
            is_lost || *origin && (*instance < other.instance || !other.has_original())
        };
        let is_sticky = planted::has(Bug::KeepsTheFirstOfTwo) && !is_lost;
        let is_void = replaces && (!*claim || is_lost) && !is_sticky;
        if is_void || is_doubtful {
            for holder in other.tree.nodes().filter(|holder| *holder != from) {
                let (id, instance) = (id.clone(), other.instance);
                // The other owner may keep what this one doubts, and refuse what has come.
                let message = match is_void {
                    true => Message::Drop { id, instance, error: None },
                    false => Message::Doubted { id, instance },
                };
                mail.push((holder, message));
            }
            return true;
        }
        let answer = match claim {
            true if planted::has(Bug::GrantsNamesTwice) => announce.claimed(None),
            true => announce.claimed(Some(other.instance.node)),
            false => announce.refused(None),
        };
        mail.push((from, answer));
        self.live = Some(other);
        false
    }
}

impl Live {
    /// Whether an announcement of the same instance describes another object.
    fn contradicts(&self, announce: &Announce) -> bool {
        self.instance == announce.instance && self.meta != announce.meta
    }

    /// Takes what a holder tells of its copy.
    fn take(
        &mut self,
        now: Instant,
        from: NodeId,
        announce: &Announce,
        is_first: bool,
        mail: &mut Mail,
    ) {
        let (complete, source) = match &announce.progress {
            Progress::Inline(_) | Progress::Complete => (true, None),
            Progress::Partial { source } => (false, *source),
            Progress::Parts => (false, None),
        };
        if from == self.instance.node {
            self.by_parts = announce.progress == Progress::Parts;
        }
        // One that is to be moved receives from where it did until it is told.
        let is_moving = source.is_some() && self.tree.moving_from(from) == source;
        let holder = self.tree.enter(from, complete, announce.origin);
        holder.told = Some(now);
        holder.began = holder.began.or(source.map(|_| now));
        match source {
            _ if is_moving => {}
            None => self.tree.detach(from),
            // Two owners who did not know of each other's answers let copies grow from each other. If both broke the
            // circle, both of its sides might begin anew for ever.
            Some(source) if !self.tree.attach(from, source) && is_first => {
                mail.push((from, announce.refused(None)));
            }
            Some(_) => {}
        }
    }
}

//! Names under a prefix: the newest one, older ones, and reserved names.
//!
//! One owner has all names of a prefix, because a name's owner depends only on the text before its
//! last slash.

use alloc::{boxed::Box, format, vec::Vec};

use super::{
    context::Context,
    copies::too_many,
    entry::{Entry, Reserved, answer},
    live::Live,
    questions::{Asker, Kind, OpenQuestion},
    state::Directory,
    versions::Version,
};
use crate::{
    error::Error,
    id::{Instance, Name, NodeId, ObjectId},
    limits::{LATEST_MAX, limit_name},
    members::{Members, Owners},
    message::Message,
    question::Answer,
    time::Instant,
};

/// Names in one reply: 1024 of the longest names fit several times into a control message.
const OLDER_MAX: usize = 1024;

impl Directory {
    /// Replies with the newest name below a prefix, if it is newer than `after`. Otherwise keeps
    /// the question.
    pub(super) fn watch_latest(
        &mut self,
        context: &mut Context<'_>,
        asker: Asker,
        prefix: &Name,
        after: Option<u64>,
    ) {
        let newest = self.newest(context, prefix.as_str(), None);
        if let Some((_, name)) = newest.filter(|(version, _)| Some(*version) > after) {
            return context.outbox.push(answer(asker, Answer::Latest(name)));
        }
        // An honest member does not get here: it refuses the request itself.
        if self.asked.latest_of(asker.0) >= LATEST_MAX {
            return self.limited.push((asker.0, limit_name!(LATEST_MAX)));
        }
        let id = ObjectId::Named(prefix.clone());
        // A requester that does not wait would take "no such name" for the present state.
        let until = self.unsettled_until(context.now).filter(|_| context.members.len() > 1);
        match until {
            Some(until) => _ = self.alarms.insert((until, id.clone())),
            None => context.outbox.push(answer(asker, Answer::Pending)),
        }
        let question = OpenQuestion { after, until, ..OpenQuestion::default() };
        self.entries.open(&id).ask(&id, Kind::Latest, asker, question, &mut self.asked);
    }

    /// Reports that there is no newer name yet, once all holders have announced theirs.
    pub(super) fn settle_latest(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let until = self.unsettled_until(context.now);
        let Some(entry) = self.entries.get_mut(id) else { return };
        let unsettled = entry.open(Kind::Latest).filter(|(_, question)| question.until.is_some());
        let unsettled: Vec<Asker> = unsettled.map(|(asker, _)| asker).collect();
        if let Some(until) = until.filter(|_| !unsettled.is_empty()) {
            self.alarms.insert((until, id.clone()));
            return;
        }
        for asker in unsettled {
            entry.settle_question(Kind::Latest, asker);
            context.outbox.push(answer(asker, Answer::Pending));
        }
    }

    /// Replies to the questions for which this name, the newest below its prefix, is new.
    pub(super) fn notify_followers(
        &mut self,
        prefix: &str,
        version: u64,
        name: &Name,
        context: &mut Context<'_>,
    ) {
        let Ok(id) = prefix.parse() else { return };
        self.settle_before_use(context, &id);
        if let Some(entry) = self.entries.get_mut(&id) {
            for asker in entry.close_older(version, &mut self.asked) {
                context.outbox.push(answer(asker, Answer::Latest(name.clone())));
            }
        }
        self.forget_if_empty(&id);
    }

    /// Whether a node waits for this version of a name.
    pub(super) fn is_followed(&self, id: &ObjectId) -> bool {
        let ObjectId::Named(name) = id else { return false };
        if !self.asked.has_latest() {
            return false;
        }
        let Some((prefix, version)) = name.prefix_and_version() else { return false };
        let prefix = prefix.parse().ok();
        let entry = prefix.and_then(|prefix: ObjectId| self.entries.get(&prefix));
        entry.is_some_and(|entry| entry.awaits_version(version))
    }

    /// Live names with a lower number than `name`, oldest first, without the newest `retain - 1` of
    /// them.
    pub(super) fn older(
        &mut self,
        context: &mut Context<'_>,
        name: &Name,
        retain: u64,
    ) -> Vec<Name> {
        let Some((prefix, version)) = name.prefix_and_version() else { return Vec::new() };
        let Ok(prefix_name) = prefix.parse() else { return Vec::new() };
        // The names from this one on are retained. The prefix itself sorts before all names of a
        // number.
        let mut first: Version = (version, prefix_name);
        for _ in 1..retain {
            let Some(next) = self.newest(context, prefix, Some(&first)) else { return Vec::new() };
            first = next;
        }
        let (mut older, mut last) = (Vec::new(), None);
        while older.len() < OLDER_MAX
            && let Some(next) = self.versions.after(prefix, last.as_ref())
            && next < first
        {
            if self.is_living(context, &next.1) {
                older.push(next.1.clone());
            }
            last = Some(next);
        }
        older
    }

    /// Whether a newer version is live.
    pub(super) fn has_newer(&mut self, context: &mut Context<'_>, id: &ObjectId) -> bool {
        let ObjectId::Named(name) = id else { return false };
        let Some((prefix, version)) = name.prefix_and_version() else { return false };
        self.newest(context, prefix, None).is_some_and(|(newest, _)| newest > version)
    }

    /// The newest live name below `prefix`, or the newest before another one.
    fn newest(
        &mut self,
        context: &mut Context<'_>,
        prefix: &str,
        before: Option<&Version>,
    ) -> Option<Version> {
        let mut next = self.versions.before(prefix, before);
        while let Some(version) = next {
            if self.is_living(context, &version.1) {
                return Some(version);
            }
            next = self.versions.before(prefix, Some(&version));
        }
        None
    }

    /// Whether a name has a live object. One that has none is looked at once: it is a version again
    /// once it is announced.
    fn is_living(&mut self, context: &mut Context<'_>, name: &Name) -> bool {
        let id = ObjectId::Named(name.clone());
        self.settle_before_use(context, &id);
        let entry = self.entries.get(&id);
        if entry.is_none_or(|entry| entry.live.is_none()) {
            self.versions.remove(&id);
        }
        entry.is_some_and(|entry| entry.is_alive())
    }

    /// Opens a slot of a client of this node: any client may put its object, once.
    pub fn open_slot(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        members: &Members,
    ) -> Result<(), Error> {
        let me = members.me();
        let Some(charge) = self.accounts.open(me) else {
            self.limited.push((me, limit_name!(ENTRIES_MAX)));
            return Err(too_many(me, 0));
        };
        let reserved = Reserved::new(instance, members, Some(charge));
        self.entries.open(id).reserved = Some(Box::new(reserved));
        Ok(())
    }

    /// Reserves a name for an object of a client, or for the result of a reduce: no other client
    /// can put it until the object exists or the reservation has ended.
    pub(super) fn reserve(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
    ) {
        let (now, members) = (context.now, context.members);
        let entry = self.entries.open(id);
        let claimed = |taken_by| {
            let id = id.clone();
            (from, Message::Claimed { id, instance, taken_by })
        };
        let error = entry.reservation_error(now, from, id, instance);
        if error.is_some() {
            // It was deleted before its node received the reply.
            context.outbox.push(claimed(None));
            context.outbox.push((from, Message::Drop { id: id.clone(), instance, error }));
            return;
        }
        entry.reuse(context, &mut self.asked);
        entry.free_if_lost(&instance);
        let is_lost = entry.is_lost();
        let is_other = |live: &mut Live| !is_object_of(live.instance, instance);
        if let Some(lost) = entry.live.take_if(|live| is_lost && is_other(live)) {
            lost.drop_copies(id, None, context.outbox);
        }
        let other = entry.rival_of(instance);
        if other.is_none() && !entry.has_object_of(instance) {
            if entry.reserved.is_none() {
                let charge = (from != members.me()).then(|| self.accounts.open(from));
                if let Some(None) = charge {
                    self.limited.push((from, limit_name!(ENTRIES_MAX)));
                    let error = Some(too_many(members.me(), 0));
                    context.outbox.push((from, Message::Drop { id: id.clone(), instance, error }));
                    return self.forget_if_empty(id);
                }
                entry.reserved = Some(Box::new(Reserved::new(instance, members, charge.flatten())));
            }
            entry.orphan_since = None;
        }
        context.outbox.push(claimed(other.map(|other| other.node)));
        self.forget_if_empty(id);
    }
}

/// Whether an instance is the object of a reservation: a later instance of the same node, which may
/// be announced before its name is reserved here.
fn is_object_of(live: Instance, reserved: Instance) -> bool {
    live.node == reserved.node && live.serial > reserved.serial
}

impl Entry {
    /// Why a reservation ends before its node gets the reply: the name was deleted meanwhile.
    fn reservation_error(
        &mut self,
        now: Instant,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
    ) -> Option<Error> {
        match &mut self.tombstone {
            Some(tombstone) if tombstone.instances.contains(&instance) => {
                // Instances created under it meanwhile are deleted too.
                tombstone.dropping.insert((from, instance));
                Some(tombstone.error(id))
            }
            _ => self.is_buried(now, &instance).then(|| Error::ObjectDeleted { id: id.clone() }),
        }
    }

    /// The object or other reservation that keeps the name from a reservation.
    fn rival_of(&self, instance: Instance) -> Option<Instance> {
        let live = self.live.as_ref().map(|live| live.instance);
        let reserved = self.reserved.as_ref().map(|reserved| reserved.instance);
        let rival = live.filter(|live| !is_object_of(*live, instance));
        rival.or(reserved.filter(|reserved| *reserved != instance))
    }

    /// Whether the object of a reservation is complete.
    fn has_object_of(&self, instance: Instance) -> bool {
        self.live.as_ref().is_some_and(|live| {
            let holder = live.tree.get(instance.node);
            is_object_of(live.instance, instance) && holder.is_some_and(|it| it.complete)
        })
    }
}

/// Returns the owners of all names that begin with `prefix` and end in a number.
pub fn prefix_owners(prefix: &str, members: &Members) -> Option<Owners> {
    // Every such name has the same text before its last slash, and therefore the same owners.
    let any: ObjectId = format!("{prefix}0").parse().ok()?;
    Some(members.owners(&any))
}

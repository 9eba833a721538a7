//! Names under a prefix: the newest one, older ones, and reserved names.
//!
//! One owner has all names of a prefix, because a name's owner depends only on the text before its last slash.

use alloc::{boxed::Box, format, vec::Vec};
use core::cmp::Reverse;

use super::{
    context::{Context, Outbox},
    copies::too_many,
    entry::{Entry, Reserved},
    holder::Holder,
    live::Live,
    state::Directory,
};
use crate::{
    error::Error,
    id::{Instance, Name, NodeId, ObjectId, RequestId},
    limits::{LATEST_MAX, limit_name},
    members::{Members, Owners},
    message::Message,
    time::Instant,
};

/// Names in one reply: 1024 of the longest names fit several times into a control message.
const OLDER_MAX: usize = 1024;

impl Directory {
    pub(super) fn watch_latest(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        prefix: &str,
        after: Option<u64>,
        request: RequestId,
    ) {
        let outbox = &mut *context.outbox;
        // A repeated request after a membership change replaces the earlier one.
        self.latest.remove(from, request);
        let newest = self.living(prefix).max_by_key(|(version, _)| *version);
        if let Some((_, name)) = newest.filter(|(version, _)| Some(*version) > after) {
            return outbox.push((from, Message::LatestReply { name: name.clone(), request }));
        }
        // An honest member does not get here: it refuses the request itself.
        if self.latest.count_of(from) >= LATEST_MAX {
            return self.limited.push((from, limit_name!(LATEST_MAX)));
        }
        // A requester that does not wait would take "no such name" for the present state.
        let settled_at = self.unsettled_until(context.now).filter(|_| context.members.len() > 1);
        self.latest.insert(from, request, prefix, after, settled_at.is_some());
        match settled_at {
            Some(_) => self.latest_due = settled_at,
            None => outbox.push((from, Message::RequestPending { request, id: None })),
        }
    }

    /// Reports that there is no name yet, once all holders have announced theirs.
    pub(super) fn settle_latest(&mut self, context: &mut Context<'_>) {
        if self.latest_due.is_none_or(|due| context.now < due) {
            return;
        }
        self.latest_due = self.unsettled_until(context.now);
        if self.latest_due.is_some() {
            return;
        }
        for (node, request) in self.latest.settle() {
            context.outbox.push((node, Message::RequestPending { request, id: None }));
        }
    }

    /// Replies to the requests for which this name, the newest under its prefix, is new.
    pub(super) fn notify_latest_waiters(
        &mut self,
        prefix: &str,
        version: u64,
        name: &Name,
        outbox: &mut Outbox,
    ) {
        for (node, request) in self.latest.take(prefix, version) {
            let name = name.clone();
            outbox.push((node, Message::LatestReply { name, request }));
        }
    }

    /// Live names with a lower number than `name`, oldest first, without the newest `retain - 1` of them.
    pub(super) fn older(&self, name: &Name, retain: u64) -> Vec<Name> {
        let Some(version) = name.version() else { return Vec::new() };
        let prefix = format!("{}/", name.group());
        let mut older: Vec<(u64, &Name)> =
            self.living(&prefix).filter(|(other, _)| *other < version).collect();
        older.sort_unstable_by_key(|(other, _)| Reverse(*other));
        let kept = usize::try_from(retain.saturating_sub(1)).unwrap_or(usize::MAX);
        older.iter().skip(kept).rev().take(OLDER_MAX).map(|(_, name)| (*name).clone()).collect()
    }

    /// Whether a newer version is live.
    pub(super) fn has_newer(&self, id: &ObjectId) -> bool {
        let ObjectId::Named(name) = id else { return false };
        let Some(version) = name.version() else { return false };
        let prefix = format!("{}/", name.group());
        self.living(&prefix).any(|(other, _)| other > version)
    }

    /// Live names under `prefix` that end in a number, each with its number.
    fn living<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (u64, &'a Name)> {
        let names = self.under(prefix).filter(|(_, entry)| entry.is_alive());
        names.filter_map(|(id, _)| match id {
            ObjectId::Named(name) if name.group().len() + 1 == prefix.len() => {
                Some((name.version()?, name))
            }
            _ => None,
        })
    }

    /// All names that begin with `prefix`.
    pub(super) fn under<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectId, &'a Entry)> {
        let from: Option<ObjectId> = prefix.parse().ok();
        let entries = from.map(|from| self.entries.range(from..));
        entries.into_iter().flatten().take_while(
            move |(id, _)| matches!(id, ObjectId::Named(name) if name.as_str().starts_with(prefix)),
        )
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

    /// Reserves a name for an object of a client, or for the result of a reduce: no other client can put it until the
    /// object exists or the reservation has ended.
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
        entry.reuse(context, id);
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

/// Whether an instance is the object of a reservation: a later instance of the same node, which may be announced before
/// its name is reserved here.
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
            is_object_of(live.instance, instance) && holder.is_some_and(Holder::is_complete)
        })
    }
}

/// Returns the owners of all names that begin with `prefix` and end in a number.
pub fn prefix_owners(prefix: &str, members: &Members) -> Option<Owners> {
    // Every such name has the same text before its last slash, and therefore the same owners.
    let any: ObjectId = format!("{prefix}0").parse().ok()?;
    Some(members.owners(&any))
}

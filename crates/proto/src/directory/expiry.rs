//! Timeouts of the directory: it forgets old deletions, reports losses, and drops entries that
//! other nodes own.
//!
//! Handles at most one slice at a time, so that other requests are handled in between.

use alloc::{boxed::Box, format, vec::Vec};

use super::{
    context::Context,
    live::Live,
    state::{Directory, Parked},
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    limits::TOMBSTONE_NS,
    members::Members,
    time::Instant,
};

impl Directory {
    /// When to call [`Directory::expire`] next.
    pub fn deadline(&self) -> Option<Instant> {
        let parked_until = self.parked_until.max(self.catching_up_until);
        let parked = (!self.parked.is_empty()).then_some(parked_until);
        let alarm = self.alarms.first().map(|(at, _)| (*at).max(self.resumed_at));
        let forgotten = self.remembered.front().map(|(until, _)| (*until).max(self.resumed_at));
        let leases = self.leases.deadline();
        let times = [parked, alarm, forgotten, leases];
        times.into_iter().flatten().min()
    }

    /// Handles everything that is due: forgets old deletions, and reports lost objects to the nodes
    /// that wait for them.
    pub fn expire(&mut self, context: &mut Context<'_>) {
        let (now, members) = (context.now, context.members);
        if self.catching_up_until.max(self.parked_until) <= now {
            for Parked { from, announce, .. } in core::mem::take(&mut self.parked) {
                if members.contains(from) {
                    self.settle(context, &announce.id);
                    self.announce(context, from, &announce);
                }
            }
        }
        self.expire_leases(context);
        if self.resumed_at > now {
            return;
        }
        let (most, before) = (self.slice.of(members), context.outbox.len());
        for _ in 0..most {
            if context.outbox.len() > before + most {
                break;
            }
            let is_forgotten = self.remembered.front().is_some_and(|(until, _)| *until <= now);
            if is_forgotten {
                self.forget_oldest();
            }
            if self.alarms.first().is_some_and(|(at, _)| *at <= now) {
                let due = self.alarms.pop_first();
                due.iter().for_each(|(_, id)| self.expire_entry(context, id));
            } else if !is_forgotten {
                return;
            }
        }
        self.resumed_at = now + self.slice.pause_ns;
    }

    /// Checks an entry whose alarm is due: an orphan, a stalled receiver, or an entry that other
    /// nodes own.
    fn expire_entry(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let (now, members) = (context.now, context.members);
        self.settle(context, id);
        self.answer_delayed(context, id);
        self.handle_stalls(context, id);
        self.wake_yielded(context, id);
        self.end_in_time(context, id);
        let lost_at = self.entries.get(id).and_then(|entry| self.lost_at(id, entry));
        if let Some(later) = lost_at.filter(|lost_at| *lost_at > now) {
            self.alarms.insert((later, id.clone()));
        }
        let Some(entry) = self.entries.get_mut(id) else { return };
        let is_owner = members.owners(id).contains(members.me());
        if !is_owner && entry.stray_until <= now && !entry.has_deleters() {
            return self.remove_entry(id);
        }
        let is_doubtful = entry.is_doubtful() && entry.stray_until <= now;
        // A former owner receives no announcements. Requests that went to it now go to the current
        // owners.
        if is_owner && lost_at.is_some_and(|lost_at| lost_at <= now) {
            self.report_loss(context, id);
        } else if is_owner && is_doubtful {
            self.verify_entry(context, id);
        }
        self.forget_if_empty(id);
    }

    /// Ends what remains of an object whose grace period is over, and reports its loss to the nodes
    /// that wait for it.
    fn report_loss(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let (now, members) = (context.now, context.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        // Only those that have seen the name wait for this object: the others wait for any put.
        let is_unrecorded = entry.is_unrecorded_name(id);
        entry.orphan_since = None;
        if is_unrecorded && !entry.was_seen_at_gone(members) {
            return;
        }
        let sources = entry.live.iter().flat_map(Live::unannounced_sources);
        let sources: Vec<NodeId> = sources.filter(|node| members.contains(*node)).collect();
        if let Some(live) = entry.live.as_ref().filter(|_| !sources.is_empty()) {
            // Others receive from members that have not announced their copies yet.
            live.verify(id, sources, context.outbox);
            return entry.begin_grace(now, id, &mut self.alarms);
        }
        let lost = entry.live.take_if(|live| !live.is_fed());
        if let Some(lost) = lost.as_ref().filter(|_| id.minter().is_none()) {
            entry.lost = Some(Box::new((lost.instance, now + TOMBSTONE_NS)));
        }
        if let Some(live) = &lost
            && let Some(error) = abandoned_error(live, id, members)
        {
            entry.lost = None;
            return self.end_lost(context, id, error, Some(live), Vec::from([live.instance]));
        }
        if let Some(reserved) = entry.reserved.take()
            && entry.live.is_none()
        {
            let error = Error::ObjectLost { id: id.clone(), detail: reserved.lost_detail() };
            return self.end_lost(context, id, error, lost.as_ref(), Vec::new());
        }
        // The minter, the only node that can make the object, may have rejoined meanwhile.
        let can_come = !id.is_slot_of(members.me())
            && id.minter().is_some_and(|minter| members.contains(minter));
        if entry.live.is_none() && !can_come {
            let error = members.why_unmade(id).unwrap_or_else(|| {
                let detail = "no remaining node has a complete copy".into();
                Error::ObjectLost { id: id.clone(), detail }
            });
            let concerns = |seen| seen || !is_unrecorded;
            entry.notify_gone(&error, concerns, &mut self.asked, context.outbox);
            // Partial copies that receive only from each other never complete. Only the primary
            // owner has the full list of copies.
            if let Some(lost) = &lost
                && members.owners(id).primary == members.me()
            {
                lost.drop_partial_copies(id, &error, context.outbox);
            }
        }
        if lost.is_some() && id.minter().is_none() {
            self.remember(now, id);
        }
    }

    /// Ends a lost object or reservation for later requesters too, until a client puts or reserves
    /// the name.
    fn end_lost(
        &mut self,
        context: &mut Context<'_>,
        id: &ObjectId,
        error: Error,
        lost: Option<&Live>,
        instances: Vec<Instance>,
    ) {
        if let Some(lost) = lost {
            lost.drop_partial_copies(id, &error, context.outbox);
        }
        self.bury(context, id, error, instances);
        self.notify_locators(context, id);
    }
}

/// The error of an object whose last holder gave up its pinned copy, if that is why it is lost.
fn abandoned_error(live: &Live, id: &ObjectId, members: &Members) -> Option<Error> {
    let node = *live.abandoned_by.as_deref()?;
    let detail = match members.contains(node) {
        true => format!("node {node} cannot read it from its disk, and no other node has a copy"),
        false => format!("node {node} left, and no other node had capacity for it"),
    };
    Some(Error::ObjectLost { id: id.clone(), detail })
}

//! Lookups: requests for a source, for the existence of an object, and for its holders.
//!
//! A request gets its reply at once, or stays until there is a reply or the requester withdraws it.

use alloc::vec::Vec;

use super::{
    context::Context,
    entry::{LocationsWaiter, Subscribers, Waiter},
    live::Live,
    state::Directory,
};
use crate::{
    id::{NodeId, ObjectId, RequestId},
    limits::INLINE_BYTES_MAX,
    message::{Holding, Message},
    mutants::{self, Mutant},
    reduce::cost::Link,
    time::Instant,
};

/// How long a node that receives slowly yields to others: an eighth of a transfer, at most 100 ms, which costs it
/// little. Meanwhile the others form a chain, and the slow node becomes its last link, on which no other node depends.
fn yields_ns(size: u64, link: Link) -> u64 {
    u64::try_from(link.transfer_ns(size) / 8).unwrap_or(u64::MAX).min(YIELDS_NS_MAX)
}

const YIELDS_NS_MAX: u64 = 100_000_000;

impl Waiter {
    fn is_due(&self, now: Instant) -> bool {
        self.yields_until.is_none_or(|until| until <= now)
    }
}

impl Directory {
    /// Finds a source for a node, at once or after it has yielded to others.
    pub(super) fn assign_source(
        &mut self,
        context: &mut Context<'_>,
        mut waiter: Waiter,
        id: &ObjectId,
    ) {
        let (now, members) = (context.now, context.members);
        let requester = waiter.node;
        if let Some(error) = self.end_for(id, waiter.seen, members) {
            context.outbox.push((requester, Message::Gone { id: id.clone(), error }));
            return;
        }
        let entry = self.entries.open(id);
        // A node that repeats its request has already yielded, or has begun to.
        let before = entry.subscribers().and_then(|subscribers| subscribers.waiter(requester));
        waiter.yields_until = waiter.yields_until.or(before.and_then(|before| before.yields_until));
        let yields = self.speeds.received_slowness(now, requester) > 1
            && waiter.avoid.is_empty()
            && waiter.yields_until.is_none();
        let is_new =
            |live: &&Live| live.meta.size > INLINE_BYTES_MAX && live.tree.get(requester).is_none();
        if let Some(live) = entry.live.as_ref().filter(is_new).filter(|_| yields) {
            let until = now + yields_ns(live.meta.size, context.link);
            waiter.yields_until = Some(until);
            self.alarms.insert((until, id.clone()));
        }
        let is_due = waiter.is_due(now);
        if let Some(live) = &mut entry.live
            && is_due
            && let Some(source) =
                live.assign(context, requester, id, &waiter.avoid, &mut self.speeds)
        {
            let (id, instance, meta) = (id.clone(), live.instance, live.meta.clone());
            let lifetime = live.terms.as_ref().map(|terms| terms.to_lifetime(now));
            context.outbox.push((
                requester,
                Message::Located { id: id.clone(), instance, meta, source, lifetime },
            ));
            // The requester is now a holder.
            return entry.notify_location_waiters(&id, context.outbox);
        }
        // A node that repeats its request receives from no source, and neither do the nodes behind it.
        if let Some(live) = &mut entry.live {
            live.tree.detach(requester);
        }
        let waiters = &mut entry.subscribers_mut().waiters;
        waiters.retain(|waiter| waiter.node != requester);
        waiters.push(waiter);
        context.outbox.push((requester, Message::LocatePending { id: id.clone() }));
        entry.seek_bytes(id, context.outbox);
        self.check_orphan(now, id, members);
    }

    pub(super) fn unlocate(&mut self, from: NodeId, id: &ObjectId) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.drop_waiter(from);
            if let Some(live) = &mut entry.live
                && live.tree.get(from).is_some_and(|it| !it.is_complete() && !it.is_pinned())
            {
                live.remove_holder(from);
            }
        }
        self.forget_if_empty(id);
    }

    pub(super) fn watch(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        id: &ObjectId,
        seen: bool,
    ) {
        let (now, members) = (context.now, context.members);
        if let Some(error) = self.end_for(id, seen, members) {
            context.outbox.push((from, Message::Gone { id: id.clone(), error }));
            return;
        }
        let entry = self.entries.open(id);
        *entry.subscribers_mut().watchers.entry(from).or_default() |= seen;
        // A watcher of a small object gets its notification with the bytes. An earlier reply would state that the
        // object is missing.
        if !entry.live.as_mut().is_some_and(|live| live.seek_bytes(id, context.outbox)) {
            let found = entry.live.as_mut().and_then(|live| live.found(from, members));
            context.outbox.push((from, Message::Found { id: id.clone(), found }));
        }
        self.check_orphan(now, id, members);
    }

    pub(super) fn locations(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        id: &ObjectId,
        known: Option<Vec<Holding>>,
        request: RequestId,
    ) {
        let (now, members) = (context.now, context.members);
        let entry = self.entries.open(id);
        // A repeated request after a membership change replaces the earlier one.
        let locators = &mut entry.subscribers_mut().locators;
        locators.retain(|locator| !locator.is(from, request));
        locators.push(LocationsWaiter { node: from, request, known });
        entry.notify_location_waiters(id, context.outbox);
        let is_kept = |subscribers: &Subscribers| {
            subscribers.locators.iter().any(|other| other.is(from, request))
        };
        if entry.subscribers().is_some_and(is_kept) {
            context.outbox.push((from, Message::RequestPending { request, id: Some(id.clone()) }));
        }
        self.check_orphan(now, id, members);
        self.forget_if_empty(id);
    }

    /// Finds sources for nodes that have yielded long enough.
    pub(super) fn wake_yielded(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let now = context.now;
        let subscribers = self.entries.get(id).and_then(|entry| entry.subscribers());
        let has_yielded = |waiter: &Waiter| waiter.yields_until.is_some_and(|until| until <= now);
        if subscribers.is_some_and(|subscribers| subscribers.waiters.iter().any(has_yielded))
            && !mutants::is_active(Mutant::NeverServesYielding)
        {
            self.wake(context, id, false);
        }
    }

    /// Replies to the requests that a new or better copy can satisfy.
    pub(super) fn wake(&mut self, context: &mut Context<'_>, id: &ObjectId, is_news: bool) {
        let (now, members) = (context.now, context.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        if is_news && !mutants::is_active(Mutant::NeverNotifiesWatchers) {
            let watchers = entry.subscribers().map(|subscribers| subscribers.watchers.clone());
            for watcher in watchers.unwrap_or_default().into_keys() {
                let found = entry.live.as_mut().and_then(|live| live.found(watcher, members));
                context.outbox.push((watcher, Message::Found { id: id.clone(), found }));
            }
        }
        let mut waiters: Vec<Waiter> = Vec::new();
        entry.take_back(|subscribers| waiters = core::mem::take(&mut subscribers.waiters));
        if let Some(maker) = entry.maker() {
            // Serve group by group, the group of the maker first. Then no receiver soon needs a redirect to a nearer
            // source.
            waiters.sort_by_key(|waiter| {
                (members.distance(maker, waiter.node), members.place(waiter.node))
            });
        }
        let (due, later): (Vec<Waiter>, Vec<Waiter>) =
            waiters.into_iter().partition(|waiter| waiter.is_due(now));
        if !later.is_empty() {
            entry.subscribers_mut().waiters = later;
        }
        for waiter in due {
            self.assign_source(context, waiter, id);
        }
        // A client that still waits has already seen all earlier versions, so only this name can be its reply.
        if let ObjectId::Named(name) = id
            && let Some((prefix, version)) = name.prefix_and_version()
        {
            self.notify_latest_waiters(prefix, version, name, context.outbox);
        }
    }
}

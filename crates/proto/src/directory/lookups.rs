//! Lookups: requests for a source, for the existence of an object, and for its holders.
//!
//! A request gets its reply at once, or stays until there is a reply or the requester withdraws it.

use alloc::{boxed::Box, vec::Vec};

use super::{
    context::Context,
    entry::{Entry, answer, is_seen_at_gone},
    live::Live,
    questions::{Asker, Kind, OpenQuestion},
    state::Directory,
};
use crate::{
    id::{NodeId, ObjectId},
    limits::INLINE_BYTES_MAX,
    members::Members,
    message::{Holding, Message},
    mutants::{self, Mutant},
    question::{Answer, Locate, Located},
    reduce::cost::Link,
    time::Instant,
};

/// How long a node that receives slowly yields to others: an eighth of a transfer, at most 100 ms,
/// which costs it little. Meanwhile the others form a chain, and the slow node becomes its last
/// link, on which no other node depends.
fn yields_ns(size: u64, link: Link) -> u64 {
    u64::try_from(link.transfer_ns(size) / 8).unwrap_or(u64::MAX).min(YIELDS_NS_MAX)
}

const YIELDS_NS_MAX: u64 = 100_000_000;

impl OpenQuestion {
    fn is_due(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }
}

impl Directory {
    /// Answers a request for a source, the only one of its node. `before` is the same question, if
    /// it was open.
    pub(super) fn locate(
        &mut self,
        context: &mut Context<'_>,
        asker: Asker,
        locate: &Locate,
        before: Option<OpenQuestion>,
    ) {
        let Locate { id, avoid, not_here, receives, seen_at } = locate;
        let until = before.and_then(|before| before.until);
        self.speeds.rate_reported(context.now, asker.0, *receives);
        if let Some((holder, instance)) = not_here
            && self.is_refusal_news(id, asker.0, *holder)
        {
            self.verify_copy(context, *holder, id, *instance);
        }
        let (avoid, since, seen_at) = (avoid.clone(), context.now, *seen_at);
        let question = OpenQuestion { avoid, since, seen_at, until, ..OpenQuestion::default() };
        self.assign_source(context, asker, question, id);
    }

    /// Finds a source for a node, at once or after it has yielded to others.
    fn assign_source(
        &mut self,
        context: &mut Context<'_>,
        asker: Asker,
        mut question: OpenQuestion,
        id: &ObjectId,
    ) {
        let (now, members, requester) = (context.now, context.members, asker.0);
        let mut may_be_over = id.is_slot();
        if let Some(entry) = self.entries.get_mut(id) {
            may_be_over |= entry.tombstone.is_some();
            // An arrival needs one source. A node that repeats its request has already yielded, or
            // has begun to.
            let mut earlier = entry.open_of(Kind::Source, requester);
            question.until =
                question.until.or_else(|| earlier.find_map(|(_, question)| question.until));
            drop(earlier);
            entry.close_of(Kind::Source, requester, &mut self.asked);
        }
        if may_be_over && let Some(error) = self.end_for(context, id, question.seen_at.is_some()) {
            return context.outbox.push(answer(asker, Answer::Gone(error)));
        }
        let entry = self.entries.open(id);
        let yields = self.speeds.received_slowness(now, requester) > 1
            && question.avoid.is_empty()
            && question.until.is_none();
        let is_new =
            |live: &&Live| live.meta.size > INLINE_BYTES_MAX && live.tree.get(requester).is_none();
        if let Some(live) = entry.live.as_ref().filter(is_new).filter(|_| yields) {
            let until = now + yields_ns(live.meta.size, context.link);
            question.until = Some(until);
            self.alarms.insert((until, id.clone()));
        }
        let is_due = question.is_due(now);
        if let Some(live) = &mut entry.live
            && is_due
            && let Some(source) =
                live.assign(context, requester, id, &question.avoid, &mut self.speeds)
        {
            let (id, instance, meta) = (id.clone(), live.instance, live.meta.clone());
            let lifetime = live.terms.as_ref().map(|terms| terms.to_lifetime(now));
            let located = Located { id: id.clone(), instance, meta, source, lifetime };
            context.outbox.push(answer(asker, Answer::Located(Box::new(located))));
            // The requester is now a holder.
            return entry.notify_locators(&id, &mut self.asked, context.outbox);
        }
        // A node that repeats its request receives from no source, and neither do the nodes behind
        // it.
        if let Some(live) = &mut entry.live {
            live.tree.detach(requester);
        }
        let seen_at = question.seen_at;
        entry.ask(id, Kind::Source, asker, question, &mut self.asked);
        context.outbox.push(answer(asker, Answer::NoSource));
        entry.seek_bytes(id, context.outbox);
        self.check_orphan(now, id, members);
        if is_seen_at_gone(asker, seen_at, members) {
            self.check_unrecorded(now, id, members);
        }
    }

    /// A node receives nothing of an object.
    pub(super) fn declined(&mut self, context: &Context<'_>, from: NodeId, id: &ObjectId) {
        if let Some(live) = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut())
            && live.tree.get(from).is_some_and(|it| !it.complete && !it.pinned)
        {
            live.remove_holder(from);
            self.check_orphan(context.now, id, context.members);
        }
        self.forget_if_empty(id);
    }

    pub(super) fn watch(
        &mut self,
        context: &mut Context<'_>,
        asker: Asker,
        id: &ObjectId,
        seen_at: Option<NodeId>,
    ) {
        let (now, members) = (context.now, context.members);
        if let Some(error) = self.end_for(context, id, seen_at.is_some()) {
            return context.outbox.push(answer(asker, Answer::Gone(error)));
        }
        let entry = self.entries.open(id);
        let question = OpenQuestion { seen_at, ..OpenQuestion::default() };
        entry.ask(id, Kind::Watch, asker, question, &mut self.asked);
        // A watcher of a small object gets its notification with the bytes. An earlier reply would
        // state that the object is missing.
        if !entry.live.as_mut().is_some_and(|live| live.seek_bytes(id, context.outbox)) {
            context.outbox.push(entry.state_for(asker, members));
        }
        self.check_orphan(now, id, members);
        if is_seen_at_gone(asker, seen_at, members) {
            self.check_unrecorded(now, id, members);
        }
    }

    pub(super) fn locations(
        &mut self,
        context: &mut Context<'_>,
        asker: Asker,
        id: &ObjectId,
        known: Option<Vec<Holding>>,
    ) {
        let (now, members) = (context.now, context.members);
        let entry = self.entries.open(id);
        let seen_at = known.as_ref().and_then(|known| Some(known.first()?.node));
        let question = OpenQuestion { seen_at, known, ..OpenQuestion::default() };
        entry.ask(id, Kind::Locations, asker, question, &mut self.asked);
        entry.notify_locators(id, &mut self.asked, context.outbox);
        if self.asked.place(asker).is_some() {
            context.outbox.push(answer(asker, Answer::Pending));
        }
        self.check_orphan(now, id, members);
        self.forget_if_empty(id);
    }

    /// Replies to the nodes that do not know the current holders of an object yet.
    pub(super) fn notify_locators(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let entry = self.entries.get_mut(id).filter(|entry| entry.has_open(Kind::Locations));
        let Some(entry) = entry else { return };
        entry.notify_locators(id, &mut self.asked, context.outbox);
        self.forget_if_empty(id);
    }

    /// Finds sources for nodes that have yielded long enough.
    pub(super) fn wake_yielded(&mut self, context: &mut Context<'_>, id: &ObjectId) {
        let now = context.now;
        let has_yielded =
            |question: &OpenQuestion| question.until.is_some_and(|until| until <= now);
        let entry = self.entries.get(id);
        let mut waiting = entry.into_iter().flat_map(|entry| entry.open(Kind::Source));
        let is_due = waiting.any(|(_, question)| has_yielded(question));
        drop(waiting);
        if is_due && !mutants::is_active(Mutant::NeverServesYielding) {
            self.wake(context, id, false);
        }
    }

    /// Replies to the requests that a new or better copy can satisfy.
    pub(super) fn wake(&mut self, context: &mut Context<'_>, id: &ObjectId, is_news: bool) {
        let (now, members) = (context.now, context.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        if is_news && !mutants::is_active(Mutant::NeverNotifiesWatchers) {
            let watchers: Vec<Asker> = entry.open(Kind::Watch).map(|(asker, _)| asker).collect();
            for watcher in watchers {
                context.outbox.push(entry.state_for(watcher, members));
            }
        }
        let due = entry.open(Kind::Source).filter(|(_, question)| question.is_due(now));
        let mut due: Vec<(Asker, Instant)> =
            due.map(|(asker, question)| (asker, question.since)).collect();
        // Serve group by group, the group of the maker first. Then no receiver soon needs a
        // redirect to a nearer source.
        let maker = entry.maker();
        due.sort_by_key(|((node, _), since)| {
            (maker.map(|maker| (members.distance(maker, *node), members.place(*node))), *since)
        });
        for (asker, _) in due {
            let entry = self.entries.get_mut(id);
            let closed = entry.and_then(|it| it.close(Kind::Source, asker, &mut self.asked));
            if let Some(question) = closed {
                self.assign_source(context, asker, question, id);
            }
        }
        // A client that still waits has already seen all earlier versions, so only this name can be
        // its reply.
        if let ObjectId::Named(name) = id
            && let Some((prefix, version)) = name.prefix_and_version()
        {
            self.notify_followers(prefix, version, name, context);
        }
    }
}

impl Entry {
    /// The state of the object for a node that watches it.
    fn state_for(&mut self, asker: Asker, members: &Members) -> (NodeId, Message) {
        let found = self.live.as_mut().and_then(|live| live.found(asker.0, members));
        answer(asker, found.map_or(Answer::Pending, |found| Answer::Found(Box::new(found))))
    }
}

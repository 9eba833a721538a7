//! Questions for holders: who feeds an asker, who has an object at all, who has it now.
//!
//! A question is answered at once, or kept until there is an answer or it is taken back.

use alloc::{format, vec::Vec};

use super::{
    Directory, Mail,
    entry::{Asking, Locator},
};
use crate::{
    id::{NodeId, ObjectId, RequestId},
    members::Members,
    message::{Holding, Message},
    planted::{self, Bug},
    reduce::cost::Link,
    time::Instant,
};

impl Directory {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn locate(
        &mut self,
        now: Instant,
        asker: NodeId,
        id: &ObjectId,
        avoid: &[NodeId],
        members: &Members,
        link: Link,
        mail: &mut Mail,
    ) {
        let entry = self.entries.open(id);
        if let Some(gone) = &entry.gone {
            mail.push((asker, Message::Gone { id: id.clone(), error: gone.error(id) }));
            return;
        }
        if let Some(live) = &mut entry.live
            && let Some(source) = live.assign(now, asker, id, avoid, members, link, &self.speeds)
        {
            let (id, instance, meta) = (id.clone(), live.instance, live.meta.clone());
            let lifetime = live.terms.as_ref().map(|terms| terms.tell(now));
            mail.push((
                asker,
                Message::Located { id: id.clone(), instance, meta, source, lifetime },
            ));
            // Now it is a holder.
            return entry.answer_locators(&id, mail);
        }
        // A node that asks again is fed by none, and neither are those behind it.
        let partial = entry.live.as_mut().and_then(|live| live.holders.get_mut(&asker));
        if let Some(holder) = partial.filter(|holder| !holder.complete) {
            (holder.source, holder.moving_from) = (None, None);
        }
        let waiters = &mut entry.asking_mut().waiters;
        waiters.retain(|(waiter, _)| *waiter != asker);
        waiters.push((asker, avoid.to_vec()));
        mail.push((asker, Message::Waiting { id: id.clone() }));
        entry.seek_bytes(id, mail);
        self.check_orphan(now, id, members);
    }

    pub(super) fn unlocate(&mut self, from: NodeId, id: &ObjectId) {
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

    pub(super) fn watch(
        &mut self,
        now: Instant,
        from: NodeId,
        id: &ObjectId,
        members: &Members,
        mail: &mut Mail,
    ) {
        let entry = self.entries.open(id);
        if let Some(gone) = &entry.gone {
            mail.push((from, Message::Gone { id: id.clone(), error: gone.error(id) }));
            return;
        }
        entry.asking_mut().watchers.insert(from);
        // Of a small object the watcher hears when its bytes come: until then it would take it for one that is not there.
        if !entry.live.as_mut().is_some_and(|live| live.seek_bytes(id, mail)) {
            let found = entry.live.as_ref().and_then(|live| live.found(from, members));
            mail.push((from, Message::Found { id: id.clone(), found }));
        }
        self.check_orphan(now, id, members);
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn locations(
        &mut self,
        now: Instant,
        from: NodeId,
        id: &ObjectId,
        known: Option<Vec<Holding>>,
        request: RequestId,
        members: &Members,
        mail: &mut Mail,
    ) {
        let entry = self.entries.open(id);
        // Asked again after a change of members: the older question is the same one.
        let locators = &mut entry.asking_mut().locators;
        locators.retain(|locator| !locator.is(from, request));
        locators.push(Locator { node: from, request, known });
        entry.answer_locators(id, mail);
        let is_kept = |asking: &Asking| asking.locators.iter().any(|other| other.is(from, request));
        if entry.asking().is_some_and(is_kept) {
            mail.push((from, Message::NothingYet { request, id: Some(id.clone()) }));
        }
        self.check_orphan(now, id, members);
        self.forget_if_empty(id);
    }

    /// Answers the askers that can be answered by a new or better copy.
    pub(super) fn wake(
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
            // One group after the other, first that of the object: then no receiver has to be told of another sender soon.
            waiters
                .sort_by_key(|(asker, _)| (members.distance(maker, *asker), members.place(*asker)));
        }
        for (asker, avoid) in waiters {
            self.locate(now, asker, id, &avoid, members, link, mail);
        }
        // A client that still waits has seen the newest of before, so only this name can be its answer.
        if let ObjectId::Named(name) = id
            && let Some(version) = name.version()
        {
            self.answer_latest(&format!("{}/", name.group()), version, name, mail);
        }
    }
}

//! Dispatch of messages to the directory.
//!
//! Passes each message to the part that handles it. Does not know time.

use alloc::{boxed::Box, vec::Vec};

use super::{
    entry::{Entry, Locator, Waiter},
    state::Directory,
    world::World,
};
use crate::{
    id::{NodeId, ObjectId},
    lifetime::Lease,
    limits::limit_name,
    message::Message,
    planted::{self, Bug},
};

/// The result of offering a message to the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The message is not for an owner.
    No,
    /// The directory has handled it.
    Yes,
    /// Handled: the sender requested a source of this object.
    SenderAsked(ObjectId),
    /// Handled: this object was deleted.
    Deleted(ObjectId),
}

impl Directory {
    /// Handles a message if it is for an owner.
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
                // The name may belong to another object by now.
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
                // Without instances it is not clear which object of that name has ended.
                let is_clear = id.minter().is_some() || !instances.is_empty();
                // A repetition is ignored: the name may have been deleted since, and the reason with it.
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
}

//! Membership changes, applied to a slice of the entries at a time, so that other requests are handled in between.
//!
//! Each entry has the number of the last change that was applied to it. The directory applies the later ones before it
//! reads or changes an entry for a message. Therefore no reply predates the last change, and no change undoes what a
//! member has announced since.
//!
//! ```text
//!   changes not yet applied everywhere:      4: node 7 is gone   5: other owners
//!   entries, in order of id:                 [5] [5] [3] [5: was requested] [3] [3]
//!                                                    ^ the walk has come so far
//! ```

use alloc::{boxed::Box, format, sync::Arc, vec::Vec};

use super::{
    entries::Change, entry::Reserved, names::prefix_owner, state::Directory, world::World,
};
use crate::{
    id::{Instance, NodeId, ObjectId},
    limits::ORPHAN_GRACE_NS,
    message::{Message, Paced},
    planted::{self, Bug},
    time::Instant,
};

impl Directory {
    /// Removes the copies and requests of a member. The caller then calls [`Directory::members_changed`].
    pub fn member_gone(&mut self, world: &World<'_>, node: NodeId) {
        let (now, members) = (world.now, world.members);
        self.latest.retain(|waiter| waiter.node != node);
        self.parked.retain(|parked| parked.from != node);
        self.accounts.sort_out();
        self.speeds.forget(node);
        self.leases.member_gone(now, node);
        self.entries.note(Change::Gone { node, members: Arc::new(members.clone()) });
    }

    /// Applies new ownership. Sends deletions to new owners, because no holder could repeat them: once to each, but
    /// again to `renewed`, for which earlier messages may be lost. Entries that other nodes own now are kept for a
    /// while: the next change may make this node their owner again, without their holders having noticed any change.
    ///
    /// Handles the first slice; [`Directory::expire`] continues.
    pub fn members_changed(&mut self, world: &mut World<'_>, renewed: Option<NodeId>) {
        let (now, members) = (world.now, world.members);
        self.changed_at = Some(now);
        self.entries.note(Change::Owners { renewed, members: Arc::new(members.clone()) });
        self.leases.members_changed(world, self.stray_ns);
        let me = members.me();
        self.latest.retain(|waiter| {
            prefix_owner(&waiter.prefix, members).is_some_and(|owner| owner == me)
        });
        self.work_off(world);
    }

    /// Sends all that they need to the nodes that are owners after this node has left, at once. `world` has the
    /// members without this node.
    pub fn leave(&mut self, world: &mut World<'_>) {
        self.members_changed(world, None);
        while self.entries.is_walking() {
            self.work_off(world);
        }
    }

    /// When the next slice is due, if one is left.
    pub(super) fn next_slice(&self) -> Option<Instant> {
        self.entries.is_walking().then_some(self.next_slice_at)
    }

    /// Handles one slice.
    pub(super) fn work_off(&mut self, world: &mut World<'_>) {
        let now = world.now;
        let ids = self.entries.next(self.slice.entries);
        for id in &ids {
            self.settle(world, id);
        }
        let is_last = ids.len() < self.slice.entries;
        self.entries.walked(ids.into_iter().next_back().filter(|_| !is_last));
        self.next_slice_at = now + self.slice.pause_ns;
    }

    /// Applies pending membership changes to an entry before it is used.
    pub(super) fn settle(&mut self, world: &mut World<'_>, id: &ObjectId) {
        let (now, members) = (world.now, world.members);
        let (mut others, mut all_renewed, me) = (false, Vec::new(), members.me());
        for change in self.entries.take_news(id) {
            match change {
                Change::Gone { node, members } => {
                    let world = &mut World { members: &members, mail: world.mail, ..*world };
                    self.forget_member(world, id, node);
                }
                Change::Owners { renewed, members } => {
                    others = true;
                    all_renewed.extend(renewed);
                    // Even if this node owns it again by now, it may have missed what happened meanwhile.
                    if let Some(entry) = self.entries.get_mut(id)
                        && !members.owners(id).contains(me)
                    {
                        entry.kept_until = now + self.stray_ns;
                        self.alarms.insert((entry.kept_until, id.clone()));
                    }
                }
            }
        }
        if others {
            self.tell_owners(world, id, &all_renewed);
        }
    }

    /// Applies pending changes to the entries that a message concerns. A listing uses entries as they are.
    pub(super) fn settle_for(&mut self, world: &mut World<'_>, message: &Message) {
        if self.entries.is_settled() || planted::has(Bug::ReadsWhatIsNotSettled) {
            return;
        }
        let prefix = match message {
            Message::Watch { id, .. }
            | Message::Unwatch { id }
            | Message::Paced(Paced { id, .. })
            | Message::Locations { id, .. }
            | Message::Unlocations { id, .. }
            | Message::Dropped { id, .. } => return self.settle(world, id),
            Message::Latest { prefix, .. } => prefix.clone(),
            Message::Older { name, .. } => format!("{}/", name.group()),
            other => {
                let id = other.object();
                return id.into_iter().for_each(|id| self.settle(world, id));
            }
        };
        let names: Vec<ObjectId> = self.under(&prefix).map(|(id, _)| id.clone()).collect();
        for id in names {
            self.settle(world, &id);
        }
    }

    fn forget_member(&mut self, world: &mut World<'_>, id: &ObjectId, node: NodeId) {
        let (now, members) = (world.now, world.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.take_back(|asking| {
            asking.waiters.retain(|waiter| waiter.node != node);
            asking.watchers.remove(&node);
            asking.locators.retain(|locator| locator.node != node);
        });
        if let Some(gone) = &mut entry.gone {
            gone.dropping.retain(|(holder, _)| *holder != node);
            gone.answer(id, world.mail);
        }
        let held = !planted::has(Bug::KeepsHoldersThatAreGone)
            && entry.live.as_mut().is_some_and(|live| live.remove_holder(node));
        let is_its = |reserved: &mut Box<Reserved>| reserved.instance.node == node;
        let reserved = entry.reserved.take_if(is_its).is_some();
        if reserved && entry.live.is_none() {
            // After a grace period, so that nodes that send their request to the new owner after the old one failed
            // get the error too.
            entry.orphan_since = Some(now);
            self.alarms.insert((now + ORPHAN_GRACE_NS, id.clone()));
        }
        if held {
            entry.seek_bytes(id, world.mail);
        }
        if held || reserved || id.minter() == Some(node) {
            self.check_orphan(now, id, members);
        }
        if let Some(entry) = self.entries.get_mut(id) {
            entry.answer_locators(id, world.mail);
        }
        self.forget_if_empty(id);
    }

    fn tell_owners(&mut self, world: &mut World<'_>, id: &ObjectId, renewed: &[NodeId]) {
        let (now, members) = (world.now, world.members);
        let Some(entry) = self.entries.get_mut(id) else { return };
        let (all, me) = (members.owners(id), members.me());
        let owners = || all.iter().filter(|owner| *owner != me);
        if let Some(gone) = &mut entry.gone {
            gone.known_to.retain(|owner| !renewed.contains(owner));
            gone.tell(id, owners(), world.mail);
            if all.contains(me) {
                gone.drop_again(id, world.mail);
            }
        }
        // Earlier instances of a name that was put again must not come back either.
        let buried: Vec<Instance> = entry.buried(now).collect();
        if !buried.is_empty() {
            for owner in owners() {
                let (id, instances) = (id.clone(), buried.clone());
                let (error, pruned) = (None, false);
                world.mail.push((owner, Message::Remember { id, instances, error, pruned }));
            }
        }
    }
}

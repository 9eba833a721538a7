//! Small objects whose holders are gone: only owners have their bytes, and pass them on.
//!
//! No holder can announce them to a new owner. The last one may not have announced them to an owner
//! that joined before its failure was noticed either. So an owner offers them to the other owner
//! after each membership change, and when the last copy goes soon after one. An offer has no bytes:
//! usually the other owner has them. An owner that leaves sends the bytes.
//!
//! ```text
//!   owner --Stored(None)--> other owner: Reannounce, if it lacks them --> owner --Stored(bytes)-->
//! ```

use alloc::vec::Vec;

use super::{context::Context, entry::Entry, live::Live, questions::Kind, state::Directory};
use crate::{
    id::{NodeId, ObjectId},
    members::Members,
    message::{Announce, Message, Progress},
    time::Instant,
};

impl Directory {
    /// The announcement of a small object that is stored here, and of which no node has a copy.
    pub(crate) fn stored(&self, now: Instant, id: &ObjectId) -> Option<Announce> {
        let live = self.entries.get(id)?.live.as_ref().filter(|live| live.tree.is_empty())?;
        let progress = Progress::Stored(Some(live.inline.as_ref()?.bytes.clone()));
        let (id, instance, meta) = (id.clone(), live.instance, live.meta.clone());
        let lifetime = live.terms.as_ref().map(|terms| terms.to_lifetime(now));
        let (pinned, claim) = (false, false);
        Some(Announce { id, instance, meta, pinned, progress, claim, lifetime })
    }

    /// Objects that this node owns and of which no node has a copy; for checkers.
    pub fn without_copies(&self, members: &Members) -> impl Iterator<Item = &ObjectId> {
        let is_bare = |live: &Live| live.inline.is_some() && live.tree.is_empty();
        let bare = self.entries.iter().filter(move |(_, it)| it.live.as_ref().is_some_and(is_bare));
        bare.map(|(id, _)| id).filter(|id| members.owners(id).contains(members.me()))
    }

    /// Whether this node knows of a copy or the bytes of an object; for checkers.
    pub fn is_fed(&self, id: &ObjectId) -> bool {
        let live = self.entries.get(id).and_then(|entry| entry.live.as_ref());
        live.is_some_and(Live::is_fed)
    }

    /// Offers a small object of which no node has a copy to the other owners.
    pub(super) fn offer_stored(&self, context: &mut Context<'_>, id: &ObjectId) {
        let Some(mut offer) = self.stored(context.now, id) else { return };
        offer.progress = Progress::Stored(None);
        send_to_other_owners(context, &offer);
    }

    /// Sends a small object of which no node has a copy to the nodes that are owners after this
    /// node has left. A former owner may have missed its deletion.
    pub(super) fn pass_on_stored(&self, context: &mut Context<'_>, id: &ObjectId) {
        if !self.entries.get(id).is_some_and(Entry::is_doubtful)
            && let Some(stored) = self.stored(context.now, id)
        {
            send_to_other_owners(context, &stored);
        }
    }

    /// Requests the bytes that another owner offers if this owner knows of no such object, and has
    /// room for them or nodes that wait. If the object has ended here, the other owner receives
    /// that.
    pub(super) fn reply_to_offer(&self, context: &mut Context<'_>, from: NodeId, offer: &Announce) {
        let (entry, instance) = (self.entries.get(&offer.id), offer.instance);
        let id = offer.id.clone();
        if let Some(entry) = entry.filter(|it| it.is_over(context.now, &instance)) {
            // The deletion has not reached the other owner.
            let ended = entry.tombstone.as_ref().filter(|it| it.instances.contains(&instance));
            let error = ended.map(|it| it.error(&id));
            let pruned = ended.is_some_and(|it| it.pruned);
            let instances = Vec::from([instance]);
            context.outbox.push((from, Message::Tombstone { id, instances, error, pruned }));
            return;
        }
        let is_known = entry.is_some_and(|it| it.live.as_ref().is_some_and(Live::is_fed));
        let is_awaited =
            entry.is_some_and(|it| it.has_open(Kind::Source) || it.has_open(Kind::Watch));
        let has_room =
            instance.node == context.members.me() || self.accounts.has_room(from, offer.meta.size);
        if !is_known && (has_room || is_awaited) {
            context.outbox.push((from, Message::Reannounce { id, instance }));
        }
    }
}

fn send_to_other_owners(context: &mut Context<'_>, announce: &Announce) {
    for owner in context.members.owners(&announce.id).except(context.members.me()) {
        context.outbox.push((owner, Message::Announce(announce.clone())));
    }
}

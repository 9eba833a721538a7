//! Which messages a node drops before any machine handles them: malformed ones, and those of a stale owner.
//!
//! Members are honest (docs/decisions/029-threat-model-trusted-members.md), but their views of the membership differ for
//! a moment while nodes join and leave. A message that only an owner sends is dropped if this node takes other nodes for
//! the owners: the sender does not know yet who owns the object, or does not own it any more. Nothing is lost, since every
//! node repeats requests and announcements to the owners of now whenever its membership changes.

use super::Node;
use crate::{
    directory::prefix_owner,
    id::{Instance, NodeId, ObjectId},
    machines::requests::Waiting,
    message::Message,
};

impl Node {
    /// Whether a message is valid, and comes from an owner if only an owner sends it.
    pub(super) fn accepts(&self, from: NodeId, message: &Message) -> bool {
        message.is_sound()
            && !message.instances().any(|(id, instance)| self.contradicts(id, instance))
            && (from == self.world.me() || self.is_current(from, message))
    }

    /// Whether this node knows better what an instance is. Handled all the same, one instance would get two copies here.
    fn contradicts(&self, id: &ObjectId, instance: Instance) -> bool {
        self.copies.id_of(instance).is_some_and(|known| known != id)
            || self.world.is_unmade(instance)
    }

    /// Whether the sender of an owner's message is an owner in this node's view of the membership.
    fn is_current(&self, from: NodeId, message: &Message) -> bool {
        let owns = |id: &ObjectId| self.is_owner(from, id);
        match message {
            Message::Waiting { id }
            | Message::Located { id, .. }
            | Message::Redirect { id, .. }
            | Message::Gone { id, .. }
            | Message::Found { id, .. }
            | Message::Deleted { id, .. }
            | Message::Stranded { id, .. } => owns(id),
            // An owner of before waits for this answer. If there is no such copy, it harms nothing to give it.
            Message::Drop { id, instance, error } => {
                owns(id) || error.is_some() && self.lacks(id, *instance)
            }
            Message::JobEnded { job } => owns(&ObjectId::Named(job.clone())),
            Message::Claimed { instance, .. } => {
                self.puts.asked_for_name(*instance).is_none_or(|asked| asked == from)
            }
            Message::LocationsAre { request, .. }
            | Message::NothingYet { request, .. }
            | Message::LatestIs { request, .. }
            | Message::OlderAre { request, .. } => {
                // Of a question that is over the answer says nothing.
                self.requests.kind(*request).is_none_or(|kind| match kind {
                    Waiting::Locations { id, .. } => owns(id),
                    Waiting::Older { name, .. } => owns(&ObjectId::Named(name.clone())),
                    Waiting::Latest { prefix, .. } => {
                        prefix_owner(prefix, self.world.members()) == Some(from)
                    }
                    _ => false,
                })
            }
            _ => true,
        }
    }

    fn is_owner(&self, node: NodeId, id: &ObjectId) -> bool {
        id.minter() == Some(node) || self.world.members().owners(id).contains(node)
    }

    /// Whether nothing is here under an instance.
    fn lacks(&self, id: &ObjectId, instance: Instance) -> bool {
        self.copies.get(instance).is_none()
            && self.pull_without_room(id) != Some(instance)
            && !self.puts.contains(instance)
            && !self.scatters.contains(instance)
            && self.reservations.reduce_of(instance).is_none()
    }
}

//! Validation of messages before a machine handles them: drops malformed messages, and messages of
//! stale owners.
//!
//! Members are honest (docs/decisions/029-threat-model-trusted-members.md), but their membership
//! views differ briefly while nodes join and leave. A message that only an owner sends is dropped
//! if the sender is not an owner in this node's view: either the sender does not have the new
//! owners yet, or it is no longer one. Nothing is lost, since every node repeats its requests and
//! announcements to the new owners when its membership view changes.

use super::Node;
use crate::{
    id::{Instance, NodeId, ObjectId},
    machines::claims::PutPhase,
    message::Message,
    question::Answer,
    validate::can_be,
};

impl Node {
    /// Whether a message is well-formed and, if only owners send it, comes from an owner.
    pub(super) fn accepts(&self, from: NodeId, message: &Message) -> bool {
        message.is_valid()
            && !message.instances().any(|(id, instance)| self.contradicts(id, instance))
            && !self.contradicts_question(message)
            && (from == self.world.me() || self.is_current(from, message))
    }

    /// Whether a message contradicts this node's records of an instance. Handling it would create
    /// two copies of one instance.
    fn contradicts(&self, id: &ObjectId, instance: Instance) -> bool {
        self.copies.id_of(instance).is_some_and(|known| known != id)
            || self.world.is_unmade(instance)
            // No other node knows the copy of a range.
            || self.incoming.copy(instance).is_some_and(|it| it.range().is_some())
    }

    /// Whether a message answers a question about an object with an instance that the object can't
    /// have.
    fn contradicts_question(&self, message: &Message) -> bool {
        let Message::Answer { number, answer: Answer::Found(found) } = message else {
            return false;
        };
        let id = self.questions.subject(*number);
        id.is_some_and(|id| !can_be(&id, found.instance) || self.contradicts(&id, found.instance))
    }

    /// Whether an owner's message comes from an owner in this node's membership view.
    fn is_current(&self, from: NodeId, message: &Message) -> bool {
        let owns = |id: &ObjectId| self.is_owner(from, id);
        match message {
            Message::Redirect { id, .. } | Message::DropPartial { id, .. } => owns(id),
            // A former owner waits for this reply. If there is no such copy, the reply does no
            // harm.
            Message::Drop { id, instance, error } => {
                owns(id) || error.is_some() && self.lacks(id, *instance)
            }
            Message::JobEnded { job } => owns(&ObjectId::Named(job.clone())),
            Message::Claimed { id, instance, .. } => {
                match self.claims.put(*instance).map(|put| put.phase) {
                    Some(PutPhase::Claiming(owner)) => {
                        owner == from || self.world.standby(id) == Some(from)
                    }
                    _ => true,
                }
            }
            // Even a late one has an effect.
            Message::Answer { answer: Answer::Located(located), .. } if !owns(&located.id) => false,
            Message::Answer { number, answer } => {
                self.questions.accepts(from, *number, answer, &self.world)
            }
            _ => true,
        }
    }

    fn is_owner(&self, node: NodeId, id: &ObjectId) -> bool {
        id.minter() == Some(node) || self.world.members().owners(id).contains(node)
    }

    /// Whether nothing on this node has the instance.
    fn lacks(&self, id: &ObjectId, instance: Instance) -> bool {
        self.copies.get(instance).is_none()
            && self.pull_without_capacity(id) != Some(instance)
            && self.claims.put(instance).is_none()
            && !self.claims.is_reserved_by(id, instance)
            && !self.incoming.is_parts(instance)
    }
}

//! Names that end in a number: the latest under a prefix, and the deletion of those before one.

use alloc::{format, string::String, vec::Vec};

use super::{Asked, Pending, Requests, Waiting};
use crate::{
    ask::Answer,
    directory::prefix_owner,
    error::{Error, Quoted},
    id::{Name, NodeId, ObjectId, RequestId},
    machines::world::World,
    message::Message,
};

impl Requests {
    pub(crate) fn latest(
        &mut self,
        asked: &Asked,
        prefix: String,
        after: Option<u64>,
        world: &mut World,
    ) -> Option<Result<Answer, Error>> {
        let owner = prefix_owner(&prefix, world.members()).filter(|_| prefix.ends_with('/'));
        let Some(owner) = owner else {
            let said =
                format!("{} is no prefix of names: write it like \"policy/\"", Quoted(&prefix));
            return Some(Err(Error::InvalidArgument(said)));
        };
        let request = asked.request;
        let is_answered = false;
        self.remember(asked, Waiting::Latest { prefix: prefix.clone(), after, is_answered }, world);
        world.send(owner, Message::Latest { prefix, after, request });
        None
    }

    pub(crate) fn latest_is(
        &mut self,
        from: NodeId,
        name: Name,
        request: RequestId,
        world: &mut World,
    ) {
        let Some(Pending { kind: Waiting::Latest { prefix, .. }, .. }) = self.all.get(&request)
        else {
            return;
        };
        // One that was the owner before may answer first.
        if prefix_owner(prefix, world.members()).is_some_and(|owner| owner != from) {
            self.stop_latest(&prefix.clone(), request, world);
        }
        self.reply(request, Ok(Answer::Latest { name }), world);
    }

    pub(crate) fn stop_latest(&mut self, prefix: &str, request: RequestId, world: &mut World) {
        if let Some(owner) = prefix_owner(prefix, world.members()) {
            world.send(owner, Message::Unlatest { request });
        }
    }

    /// Deletes what is older than a name, but for the newest of it.
    pub(crate) fn prune(
        &mut self,
        asked: &Asked,
        name: Name,
        keep: u64,
        world: &mut World,
    ) -> Option<Result<Answer, Error>> {
        if name.version().is_none() || keep == 0 {
            let said = format!(
                "keep={keep} of {}: keep counts names that end in \"/\" and a number, from 1 on",
                Quoted(name.as_str())
            );
            return Some(Err(Error::InvalidArgument(said)));
        }
        let (owner, request) =
            (world.members().owners(&ObjectId::Named(name.clone())).first, asked.request);
        self.remember(asked, Waiting::Older { name: name.clone(), keep }, world);
        world.send(owner, Message::Older { name, keep, request });
        None
    }

    /// The owner has said what is older. That its holders drop it is not waited for: one that lags must not hold up
    /// a publisher, and what an owner forgets by dying is found at the next prune.
    pub(crate) fn prune_these(&mut self, request: RequestId, ids: &[ObjectId], world: &mut World) {
        if !matches!(self.kind(request), Some(Waiting::Older { .. })) {
            return;
        }
        for id in ids {
            world.send_owners(id, &Message::Delete { id: id.clone(), request, pruned: true });
        }
        self.reply(request, Ok(Answer::Done), world);
    }

    /// Questions about names and holders, to be repeated to new owners.
    pub(crate) fn owner_questions(&self) -> Vec<(ObjectId, Message)> {
        let question = |(request, pending): (&RequestId, &Pending)| {
            let request = *request;
            match &pending.kind {
                Waiting::Latest { prefix, after, .. } => {
                    // Whatever is under the prefix has its owner.
                    let any = format!("{prefix}0").parse().ok()?;
                    let (prefix, after) = (prefix.clone(), *after);
                    Some((any, Message::Latest { prefix, after, request }))
                }
                Waiting::Older { name, keep } => {
                    let (name, keep) = (name.clone(), *keep);
                    Some((ObjectId::Named(name.clone()), Message::Older { name, keep, request }))
                }
                Waiting::Locations { id, known, .. } => {
                    let (id, known) = (id.clone(), known.clone());
                    Some((id.clone(), Message::Locations { id, known, request }))
                }
                _ => None,
            }
        };
        self.all.iter().filter_map(question).collect()
    }
}

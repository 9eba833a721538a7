//! Names that end in a number: the latest under a prefix, and the deletion of older ones.

use alloc::{format, string::String, vec::Vec};

use super::{PendingRequest, RequestContext, RequestKind, Requests};
use crate::{
    directory::prefix_owner,
    error::{Error, Quoted},
    id::{Name, NodeId, ObjectId, RequestId},
    machines::world::World,
    message::Message,
    request::Reply,
};

impl Requests {
    pub(crate) fn latest(
        &mut self,
        context: &RequestContext,
        prefix: String,
        after: Option<u64>,
        world: &mut World,
    ) -> Option<Result<Reply, Error>> {
        let owner = prefix_owner(&prefix, world.members()).filter(|_| prefix.ends_with('/'));
        let Some(owner) = owner else {
            let said = format!(
                "{} is not a prefix of names: end it with \"/\", like \"policy/\"",
                Quoted(&prefix)
            );
            return Some(Err(Error::InvalidArgument(said)));
        };
        let request = context.request;
        let is_answered = false;
        self.remember(
            context,
            RequestKind::Latest { prefix: prefix.clone(), after, is_answered },
            world,
        );
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
        let Some(PendingRequest { kind: RequestKind::Latest { prefix, .. }, .. }) =
            self.all.get(&request)
        else {
            return;
        };
        // A former owner may reply first.
        if prefix_owner(prefix, world.members()).is_some_and(|owner| owner != from) {
            self.stop_latest(&prefix.clone(), request, world);
        }
        self.reply(request, Ok(Reply::Latest { name }), world);
    }

    pub(crate) fn stop_latest(&mut self, prefix: &str, request: RequestId, world: &mut World) {
        if let Some(owner) = prefix_owner(prefix, world.members()) {
            world.send(owner, Message::CancelLatest { request });
        }
    }

    /// Deletes the versions older than a name, except the newest ones: `keep` versions stay, `name` included.
    pub(crate) fn prune(
        &mut self,
        context: &RequestContext,
        name: Name,
        keep: u64,
        world: &mut World,
    ) -> Option<Result<Reply, Error>> {
        if name.version().is_none() || keep == 0 {
            let said = format!(
                "retain={keep} of {}: set at least 1 version to keep, and end the name in \"/\" and a number",
                Quoted(name.as_str())
            );
            return Some(Err(Error::InvalidArgument(said)));
        }
        let (owner, request) =
            (world.members().owners(&ObjectId::Named(name.clone())).primary, context.request);
        self.remember(
            context,
            RequestKind::OlderVersions { name: name.clone(), retain: keep },
            world,
        );
        world.send(owner, Message::OlderVersions { name, retain: keep, request });
        None
    }

    /// Deletes the older names that the owner has listed, and replies at once. Waiting until all holders have dropped
    /// them would let a slow holder delay a publisher. Names that an owner loses by failing are found at the next
    /// prune.
    pub(crate) fn prune_these(&mut self, request: RequestId, ids: &[ObjectId], world: &mut World) {
        if !matches!(self.kind(request), Some(RequestKind::OlderVersions { .. })) {
            return;
        }
        for id in ids {
            world.send_owners(id, &Message::Delete { id: id.clone(), request, pruned: true });
        }
        self.reply(request, Ok(Reply::Done), world);
    }

    /// Requests about names and holders, which are repeated to new owners.
    pub(crate) fn owner_questions(&self) -> Vec<(ObjectId, Message)> {
        let question = |(request, pending): (&RequestId, &PendingRequest)| {
            let request = *request;
            match &pending.kind {
                RequestKind::Latest { prefix, after, .. } => {
                    // All names under the prefix have the same owner.
                    let any = format!("{prefix}0").parse().ok()?;
                    let (prefix, after) = (prefix.clone(), *after);
                    Some((any, Message::Latest { prefix, after, request }))
                }
                RequestKind::OlderVersions { name, retain: keep } => {
                    let (name, keep) = (name.clone(), *keep);
                    Some((
                        ObjectId::Named(name.clone()),
                        Message::OlderVersions { name, retain: keep, request },
                    ))
                }
                RequestKind::Locations { id, known, .. } => {
                    let (id, known) = (id.clone(), known.clone());
                    Some((id.clone(), Message::Locations { id, known, request }))
                }
                _ => None,
            }
        };
        self.all.iter().filter_map(question).collect()
    }
}

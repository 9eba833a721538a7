//! Names that end in a number: the latest under a prefix, and the deletion of older ones.

use alloc::{format, string::String, vec::Vec};

use super::{PendingRequest, RequestContext, RequestKind, Requests};
use crate::{
    directory::prefix_owners,
    error::{Error, Quoted},
    event::LimitSubject,
    id::{Name, NodeId, ObjectId, RequestId},
    limits::{LATEST_MAX, limit_name},
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
        let owners = prefix_owners(&prefix, world.members()).filter(|_| prefix.ends_with('/'));
        let Some(owners) = owners else {
            let said = format!(
                "{} is not a prefix of names: end it with \"/\", like \"policy/\"",
                Quoted(&prefix)
            );
            return Some(Err(Error::InvalidArgument(said)));
        };
        // An owner keeps no more of one member, and would not reply to another one.
        if self.latest >= LATEST_MAX {
            let limit = limit_name!(LATEST_MAX);
            world.limit_reached(LimitSubject::Client(context.client), limit);
            let said = format!(
                "the programs of this node wait for a newer name in {} calls, and the limit is {LATEST_MAX} \
                 ({limit}): end some calls of latest",
                self.latest
            );
            return Some(Err(Error::InvalidArgument(said)));
        }
        let request = context.request;
        let (is_answered, has_standby) = (false, false);
        self.remember(
            context,
            RequestKind::Latest { prefix, after, is_answered, has_standby },
            world,
        );
        self.ask_owners(request, owners.primary, world);
        None
    }

    pub(crate) fn latest_is(
        &mut self,
        from: NodeId,
        name: Name,
        request: RequestId,
        world: &mut World,
    ) {
        let Some(PendingRequest { kind: RequestKind::Latest { prefix, has_standby, .. }, .. }) =
            self.all.get(&request)
        else {
            return;
        };
        // A former owner may reply first, or the backup owner.
        stop_latest(prefix, *has_standby, Some(from), request, world);
        self.reply(request, Ok(Reply::Latest { name }), world);
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
        let owner = world.members().owners(&ObjectId::Named(name.clone())).primary;
        self.remember(context, RequestKind::OlderVersions { name, retain: keep }, world);
        self.ask_owners(context.request, owner, world);
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
    pub(crate) fn owner_questions(&self) -> Vec<(RequestId, ObjectId, Message)> {
        let question = |request: &RequestId| {
            let (id, question) = self.owner_question(*request)?;
            Some((*request, id, question))
        };
        self.all.keys().filter_map(question).collect()
    }

    pub(super) fn owner_question(&self, request: RequestId) -> Option<(ObjectId, Message)> {
        match &self.all.get(&request)?.kind {
            RequestKind::Latest { prefix, after, .. } => {
                // All names under the prefix have the same owners.
                let any = format!("{prefix}0").parse().ok()?;
                let (prefix, after) = (prefix.clone(), *after);
                Some((any, Message::Latest { prefix, after, request }))
            }
            RequestKind::OlderVersions { name, retain: keep } => {
                let (name, keep) = (name.clone(), *keep);
                let id = ObjectId::Named(name.clone());
                Some((id, Message::OlderVersions { name, retain: keep, request }))
            }
            RequestKind::Locations { id, known, .. } => {
                let (id, known) = (id.clone(), known.clone());
                Some((id.clone(), Message::Locations { id, known, request }))
            }
            _ => None,
        }
    }

    /// Sends a request about names or holders to the primary owner, and to the backup owner if the primary is
    /// unresponsive.
    pub(super) fn ask_owners(&mut self, request: RequestId, primary: NodeId, world: &mut World) {
        let Some((id, question)) = self.owner_question(request) else { return };
        world.send(primary, question.clone());
        if let Some(backup) = world.standby(&id) {
            self.ask_backup(request, backup, question, world);
        }
    }

    fn ask_backup(
        &mut self,
        request: RequestId,
        backup: NodeId,
        question: Message,
        world: &mut World,
    ) {
        let kind = self.all.get_mut(&request).map(|pending| &mut pending.kind);
        if let Some(RequestKind::Latest { has_standby, .. }) = kind {
            *has_standby = true;
        }
        world.send(backup, question);
    }

    /// Repeats requests to the backup owner, because the primary owner is unresponsive.
    pub(crate) fn primary_unresponsive(&mut self, primary: NodeId, world: &mut World) {
        for (request, id, question) in self.owner_questions() {
            let owners = world.members().owners(&id);
            if let Some(backup) = owners.backup.filter(|_| owners.primary == primary) {
                self.ask_backup(request, backup, question, world);
            }
        }
    }
}

/// Cancels a request for the latest name at its owners: at the backup owner only if that got it too.
pub(crate) fn stop_latest(
    prefix: &str,
    has_standby: bool,
    answered_by: Option<NodeId>,
    request: RequestId,
    world: &mut World,
) {
    let Some(owners) = prefix_owners(prefix, world.members()) else { return };
    let backup = owners.backup.filter(|_| has_standby);
    for owner in core::iter::once(owners.primary).chain(backup) {
        if Some(owner) != answered_by {
            world.send(owner, Message::CancelLatest { request });
        }
    }
}

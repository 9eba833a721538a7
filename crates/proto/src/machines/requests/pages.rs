//! Listings of the whole cluster: a client requests each member's shard of the directory, page by page.

use alloc::{format, string::String, vec::Vec};

use super::{PendingRequest, RequestContext, RequestKind, Requests, Subject};
use crate::{
    error::Error,
    id::{NodeId, ObjectId, RequestId},
    limits::NAME_BYTES_MAX,
    machines::world::World,
    message::{Listed, Message},
    request::Reply,
};

impl Requests {
    pub(crate) fn list(
        &mut self,
        context: &RequestContext,
        owner: NodeId,
        prefix: String,
        after: Option<ObjectId>,
        world: &mut World,
    ) -> Option<Result<Reply, Error>> {
        if prefix.len() > NAME_BYTES_MAX {
            let said = format!(
                "a prefix of {} bytes is too long: use at most {NAME_BYTES_MAX} bytes",
                prefix.len()
            );
            return Some(Err(Error::InvalidArgument(said)));
        }
        if !world.members().contains(owner) {
            return Some(Err(no_member(owner)));
        }
        let request = context.request;
        self.remember(context, RequestKind::Page { owner }, world);
        world.send(owner, Message::List { prefix, after, request });
        None
    }

    pub(crate) fn list_is(
        &mut self,
        from: NodeId,
        request: RequestId,
        rows: Vec<Listed>,
        next: Option<ObjectId>,
        world: &mut World,
    ) {
        let context = self.all.get(&request).map(|PendingRequest { kind, .. }| kind);
        if matches!(context, Some(RequestKind::Page { owner }) if *owner == from) {
            self.reply(request, Ok(Reply::List { rows, next }), world);
        }
    }

    /// Fails the listings of a node that is lost; other nodes own its objects now.
    pub(crate) fn fail_lists(&mut self, node: NodeId, world: &mut World) {
        for request in self.requesters(Subject::Page(node)) {
            self.reply(request, Err(no_member(node)), world);
        }
    }
}

fn no_member(node: NodeId) -> Error {
    let said =
        format!("node {node} is not a member any more: list the objects again from the start");
    Error::NodeDown(said)
}

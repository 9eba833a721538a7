//! Listings of the whole cluster: a client asks its node for each member's part of the directory, page by page.

use alloc::{format, string::String, vec::Vec};

use super::{Action, Asked, Node, Pending, Waiting, question::Subject};
use crate::{
    ask::Answer,
    error::Error,
    id::{NodeId, ObjectId, RequestId},
    limits::NAME_BYTES_MAX,
    message::{Listed, Message},
};

impl Node {
    pub(super) fn list(
        &mut self,
        asked: &Asked,
        owner: NodeId,
        prefix: String,
        after: Option<ObjectId>,
        out: &mut Vec<Action>,
    ) -> Option<Result<Answer, Error>> {
        if prefix.len() > NAME_BYTES_MAX {
            let said = format!(
                "a prefix of {} bytes: no name has more than {NAME_BYTES_MAX}",
                prefix.len()
            );
            return Some(Err(Error::InvalidArgument(said)));
        }
        if !self.members.contains(owner) {
            return Some(Err(no_member(owner)));
        }
        let request = asked.request;
        self.remember(asked, Waiting::Page { owner });
        self.send(owner, Message::List { prefix, after, request }, out);
        None
    }

    pub(super) fn list_is(
        &mut self,
        from: NodeId,
        request: RequestId,
        rows: Vec<Listed>,
        next: Option<ObjectId>,
        out: &mut Vec<Action>,
    ) {
        let asked = self.requests.get(&request).map(|Pending { kind, .. }| kind);
        if matches!(asked, Some(Waiting::Page { owner }) if *owner == from) {
            self.reply(request, Ok(Answer::List { rows, next }), out);
        }
    }

    /// What a node was asked for it does not answer any more, and others own what it did.
    pub(super) fn lists_without(&mut self, node: NodeId, out: &mut Vec<Action>) {
        for request in self.askers(Subject::Page(node)) {
            self.reply(request, Err(no_member(node)), out);
        }
    }
}

fn no_member(node: NodeId) -> Error {
    let said = format!("node {node} is no member any more: list the objects again, from the first");
    Error::NodeDown(said)
}

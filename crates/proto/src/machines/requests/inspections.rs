//! Reports that clients request from a member about itself. Does not know what is in them.

use alloc::{format, string::String};

use super::{RequestContext, RequestKind, Requests, Subject};
use crate::{
    error::Error,
    id::{NodeId, RequestId},
    inspection::Inspection,
    machines::world::World,
    message::Message,
    request::Reply,
};

impl Requests {
    pub(crate) fn inspect(
        &mut self,
        context: &RequestContext,
        node: Option<NodeId>,
        inspection: Inspection,
        world: &mut World,
    ) -> Option<Result<Reply, Error>> {
        let node = node.unwrap_or(world.me());
        if !world.members().contains(node) {
            return Some(Err(no_member(node)));
        }
        let request = context.request;
        self.remember(context, RequestKind::Inspection { node }, world);
        world.send(node, Message::Inspect { inspection, request });
        None
    }

    pub(crate) fn inspected(
        &mut self,
        from: NodeId,
        request: RequestId,
        report: String,
        world: &mut World,
    ) {
        if matches!(self.kind(request), Some(RequestKind::Inspection { node }) if *node == from) {
            self.reply(request, Ok(Reply::Inspected { report }), world);
        }
    }

    /// Fails the requests to a node that is lost.
    pub(crate) fn fail_inspections(&mut self, node: NodeId, world: &mut World) {
        for request in self.requesters(Subject::Inspection(node)) {
            self.reply(request, Err(no_member(node)), world);
        }
    }
}

fn no_member(node: NodeId) -> Error {
    Error::NodeDown(format!("node {node} is not a member: status() lists the members"))
}

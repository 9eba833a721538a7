//! Requests for the holders of an object, now or at the next change.

use alloc::{format, vec::Vec};

use super::{PendingRequest, RequestContext, RequestKind, Requests};
use crate::{
    error::Error,
    id::{NodeId, ObjectId, RequestId},
    limits::MEMBERS_MAX,
    machines::world::World,
    message::{Holding, Message},
    request::{Location, Reply},
};

impl Requests {
    pub(crate) fn locations(
        &mut self,
        context: &RequestContext,
        id: ObjectId,
        known: Option<Vec<Holding>>,
        world: &mut World,
    ) -> Option<Result<Reply, Error>> {
        if let Some(count) = known.as_ref().map(Vec::len).filter(|count| *count > MEMBERS_MAX) {
            // The owner would take it for a malformed message of this node.
            let said =
                format!("{count} known locations of {id} are more than {MEMBERS_MAX} members");
            return Some(Err(Error::InvalidArgument(said)));
        }
        let (owner, is_answered) = (world.members().owners(&id).primary, false);
        self.remember(context, RequestKind::Locations { id, known, is_answered }, world);
        self.ask_owners(context.request, owner, world);
        None
    }

    pub(crate) fn located_all(
        &mut self,
        from: NodeId,
        request: RequestId,
        holdings: Result<Vec<Holding>, Error>,
        world: &mut World,
    ) {
        let Some(PendingRequest { kind: RequestKind::Locations { id, .. }, .. }) =
            self.all.get(&request)
        else {
            return;
        };
        // A former primary owner may reply first.
        let id = id.clone();
        let others = world.members().owners(&id).iter().filter(|owner| *owner != from);
        for owner in others.collect::<Vec<_>>() {
            world.send(owner, Message::CancelLocations { id: id.clone(), request });
        }
        let location = |holding: &Holding| {
            let member = world.members().iter().find(|member| member.id == holding.node)?;
            Some(Location { member, complete: holding.complete })
        };
        let reply = holdings.map(|all| Reply::Locations(all.iter().filter_map(location).collect()));
        self.reply(request, reply, world);
    }

    pub(crate) fn stop_locating(&mut self, id: &ObjectId, request: RequestId, world: &mut World) {
        world.send_owners(id, &Message::CancelLocations { id: id.clone(), request });
    }
}

//! Requests for the holders of an object, now or at the next change.

use alloc::vec::Vec;

use super::{Asked, Pending, Requests, Waiting};
use crate::{
    ask::{Answer, Location},
    error::Error,
    id::{NodeId, ObjectId, RequestId},
    machines::world::World,
    message::{Holding, Message},
};

impl Requests {
    pub(crate) fn locations(
        &mut self,
        asked: &Asked,
        id: ObjectId,
        known: Option<Vec<Holding>>,
        world: &mut World,
    ) -> Option<Result<Answer, Error>> {
        let (owner, request) = (world.members().owners(&id).first, asked.request);
        let (kept, is_answered) = (known.clone(), false);
        self.remember(
            asked,
            Waiting::Locations { id: id.clone(), known: kept, is_answered },
            world,
        );
        world.send(owner, Message::Locations { id, known, request });
        None
    }

    pub(crate) fn located_all(
        &mut self,
        from: NodeId,
        request: RequestId,
        holdings: Result<Vec<Holding>, Error>,
        world: &mut World,
    ) {
        let Some(Pending { kind: Waiting::Locations { id, .. }, .. }) = self.all.get(&request)
        else {
            return;
        };
        // A former primary owner may reply first.
        let id = id.clone();
        let others = world.members().owners(&id).iter().filter(|owner| *owner != from);
        for owner in others.collect::<Vec<_>>() {
            world.send(owner, Message::Unlocations { id: id.clone(), request });
        }
        let location = |holding: &Holding| {
            let member = world.members().iter().find(|member| member.id == holding.node)?;
            Some(Location { member, complete: holding.complete })
        };
        let answer =
            holdings.map(|all| Answer::Locations(all.iter().filter_map(location).collect()));
        self.reply(request, answer, world);
    }

    pub(crate) fn stop_locating(&mut self, id: &ObjectId, request: RequestId, world: &mut World) {
        world.send_owners(id, &Message::Unlocations { id: id.clone(), request });
    }
}

//! Serve: another node receives a copy from this node.

use super::Node;
use crate::{
    event::Action,
    id::{Instance, ObjectId, ServeId},
    machines::incoming::Arrival,
    mutants::{self, Mutant},
    table::State,
};

impl Node {
    pub(super) fn serve(&mut self, serve: ServeId, id: &ObjectId, instance: Instance) {
        let awaits_memory = self.incoming.object(id).is_some_and(|it| it.awaited().is_some());
        let is_here = self.copies.get(instance).is_some() && !awaits_memory;
        // The owner may have assigned this node as a source before its reply to this node has
        // arrived, or before memory is allocated. A refusal would send the receiver to the original
        // source.
        if is_here || !self.parks(id) {
            self.serve_or_refuse(serve, instance);
        } else {
            self.readers.park(id, serve, instance);
        }
    }

    /// Whether receivers wait here until there is something to send. They do not if the object
    /// waits for capacity, which may never become free.
    fn parks(&self, id: &ObjectId) -> bool {
        self.incoming.of_object(id).is_some() && self.pull_without_capacity(id).is_none()
    }

    /// Serves or refuses the receivers that waited for an object.
    pub(super) fn serve_parked(&mut self, id: &ObjectId) {
        let parked = self.readers.take_parked(id);
        if mutants::is_active(Mutant::LosesParkedReceivers) {
            return;
        }
        for (serve, instance) in parked {
            self.serve_or_refuse(serve, instance);
        }
    }

    pub(super) fn serve_or_refuse(&mut self, serve: ServeId, instance: Instance) {
        // The copy of a range is for one client only.
        let range = self.incoming.copy(instance).and_then(Arrival::range);
        let copy = self.copies.get(instance).filter(|_| range.is_none());
        match copy.filter(|copy| !copy.doomed && copy.inline.is_none()) {
            Some(copy) if copy.is_complete() && !copy.has_memory() => {
                self.park_at_disk(serve, instance);
            }
            Some(copy) => {
                let is_made_here = matches!(copy.state, State::Filling(_) | State::Complete);
                let relayed =
                    !(copy.pinned && is_made_here && self.coordinator.folded(&copy.id).is_none());
                self.copies.add_reader(instance);
                self.readers.begin_serve(serve, instance, self.world.now());
                self.world.act(Action::Serve { serve, instance, relayed });
            }
            None => self.world.act(Action::Refuse { serve }),
        }
    }

    pub(super) fn serve_ended(&mut self, serve: ServeId) {
        let Some(instance) = self.readers.end_serve(serve) else {
            // A parked receiver has disconnected.
            if let Some(id) = self.readers.unpark(serve) {
                self.end_if_unwanted(&id);
            }
            return;
        };
        self.remove_reader(instance);
        if let Some(id) = self.copies.get(instance).map(|copy| copy.id.clone()) {
            // The receiver may have been the only one that still waited for the rest.
            self.end_if_unwanted(&id);
        }
    }
}

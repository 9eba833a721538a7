//! What a node says of itself: to a client that waits too long, to `status`, and to checkers.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use super::{Node, room::SpaceFor};
use crate::{
    ask::{Answer, ObjectRow, Status},
    error::Error,
    id::{Instance, ObjectId},
    members::Member,
    table::{Copy, Place, State},
};

impl Node {
    /// What is under way, in words, none when the node is at rest; for checkers.
    pub fn unfinished(&self) -> impl Iterator<Item = String> {
        let counts = [
            ("creates", self.puts.len()),
            ("promises", self.promises.len()),
            ("that wait for room", self.space.len()),
            ("that wait for memory", self.shortage.len()),
            ("reduces", self.coordinator.len()),
            ("watches", self.watches.len()),
            ("reservations", self.names.len()),
            ("results", self.coordinator.unfinished_results()),
            ("folds", self.worker.len() + self.scatters.len()),
            ("adoptions", self.adoptions.coming()),
            ("that others keep too", self.replicas.len()),
            ("questions of others", self.directory.questions(self.world.members())),
            ("nodes that are gone and remembered", self.directory.strangers(self.world.members())),
            ("members that leave", self.leaving.unseating()),
            ("names that are kept", self.directory.reservations()),
            ("leases", self.leases.len()),
            ("leases of others", self.directory.leases()),
        ];
        let readers = self.readers.counts().into_iter();
        let counts = readers
            .chain(self.spills.counts())
            .chain(counts)
            .filter(|(_, count)| *count > 0)
            .map(|(what, count)| format!("{count} {what}"));
        let pulls = self.pulls.ids().into_iter();
        pulls.map(|id| format!("a pull of {id}")).chain(counts)
    }

    pub(super) fn explain(&self, id: &ObjectId) -> Answer {
        let needed = self.bytes_without_room(id).or_else(|| self.puts.wanted_bytes(id));
        let lacks = needed.map(|needed| (needed, self.table.capacity()));
        Answer::Explained { state: self.state_of(id), lacks }
    }

    /// Bytes of an object that clients wait for and that has no room here: a copy, or the result of a reduce.
    fn bytes_without_room(&self, id: &ObjectId) -> Option<u64> {
        let pulled = self.pulls.awaits_room(id).map(|place| place.meta.size);
        pulled.or_else(|| self.bytes_on_disk_without_room(id)).or_else(|| {
            let waits = |who: SpaceFor| self.space.contains(&who);
            let key = self.coordinator.maker(id)?;
            let result = self.coordinator.instance_of(id);
            let is_waiting = waits(SpaceFor::SmallResult(key))
                || result.is_some_and(|instance| waits(SpaceFor::Result(instance)));
            self.coordinator.get(key).filter(|_| is_waiting)?.meta().map(|meta| meta.size)
        })
    }

    /// The error of an object that has no room or no memory here, if that is what it waits for.
    pub(super) fn without_room(&self, id: &ObjectId) -> Option<Error> {
        let full = self.bytes_without_room(id).map(|needed| self.store_full(needed));
        full.or_else(|| self.object_without_memory(id))
    }

    /// Why an object is not here, in words for a client that waited.
    pub(super) fn state_of(&self, id: &ObjectId) -> String {
        if let Some(full) = self.without_room(id) {
            return full.to_string();
        }
        if let Some(reduce) = self.coordinator.making(id) {
            return format!("it is the result of a reduce; {}", reduce.state());
        }
        if let Some(copy) = self.table.current(id).and_then(|instance| self.table.get(instance)) {
            return match copy.state {
                State::Filling(_) => "a client of this node is still writing it".to_string(),
                State::Flowing(Some(source)) => format!("it is arriving from node {source}"),
                State::Flowing(None) => "its sender was lost and no other is known yet".to_string(),
                State::Folding => "a reduce is still folding it".to_string(),
                State::Complete => match copy.place {
                    Place::Memory => "it is here".to_string(),
                    Place::Disk => "it is on the disk of this node".to_string(),
                    Place::Returning => "it is being read from the disk of this node".to_string(),
                },
            };
        }
        let state = self.pulls.state(id, self.world.members());
        state.unwrap_or_else(|| "no client has put it".to_string())
    }

    /// A member with the place that was measured, if it was told none.
    fn placed(&self, member: Member) -> Member {
        Member { place: self.world.members().place(member.id), ..member }
    }

    pub(super) fn status(&self) -> Status {
        Status {
            me: self.placed(self.world.my_member()),
            members: self.world.members().iter().map(|member| self.placed(member)).collect(),
            survey: self.surveys.state(self.world.members()).into(),
            suspicions: self.membership.suspicions(),
            lost: self.membership.lost(),
            corrupt: self.pulls.corrupt(),
            copies: self.table.len() as u64,
            owned: self.directory.len() as u64,
            small: self.directory.small_bytes(),
            used: self.table.used(),
            capacity: self.table.capacity(),
            spilled: self.table.on_disk(),
            spill_limit: self.spills.limit(),
            waiting: self.requests.len() as u64,
            reduces: self.coordinator.len() as u64,
        }
    }

    pub(super) fn objects(&self) -> Vec<ObjectRow> {
        let name = |copy: &Copy| match copy.state {
            State::Filling(_) => "filling",
            State::Flowing(_) => "flowing",
            State::Folding => "folding",
            State::Complete => match copy.place {
                Place::Memory => "complete",
                Place::Disk => "spilled",
                Place::Returning => "returning",
            },
        };
        let row = |(instance, copy): (Instance, &Copy)| ObjectRow {
            id: copy.id.clone(),
            instance,
            meta: copy.meta.clone(),
            state: name(copy).to_string(),
            origin: copy.origin,
            pins: copy.pins,
            lifetime: copy.lifetime(self.world.now()),
        };
        self.table.iter().map(row).collect()
    }
}

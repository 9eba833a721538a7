//! Leave: this node hands over what only it holds and finishes what it folds, then says good-bye.
//!
//! Clients are told at once that it is closing; but what they are filling in that moment, and others may be reading while
//! it grows, they may still seal.
//!
//! What no other member takes stays on disk, if this node leaves files for the next one: all originals are written while
//! others are asked, and the files of those that were taken go. Else it is lost, if a member stays: the owners are told
//! ([`Message::Abandon`]), and the user of this node.
//!
//! A reduce that folds here would have to begin again, so this node asks every member ([`Message::Leaving`]). From then on
//! the member's reduces take no seat here: an input that only this node holds they take from the node that adopts it. A
//! member answers ([`Message::Unseated`]) when none of its reduces has a seat here any more; orders that it gave before
//! have come by then, since messages of one member keep their order. What this node's own clients reduce fails at once:
//! their result would be lost with this node.
//!
//! ```text
//!   told to leave --> adopted or on disk, unseated, folds over --> good-bye
//!         |                                                ^
//!         +--------------- its time is over ---------------+  what it still folds begins again without it
//! ```

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::{Action, Node, change::Change, requests::Waiting, world::World};
use crate::{
    directory,
    error::Error,
    id::{Instance, NodeId, ObjectId},
    limits::LOST_NAMED_MAX,
    message::Message,
    table::{Copy, Filed, Table},
    time::Instant,
};

/// How long a node that leaves waits for others if it is not said: 60 s.
pub const LEAVE_PATIENCE_NS: u64 = 60 * 1_000_000_000;

/// How long it waits for clients to seal what they are filling: 1 s.
const FILL_PATIENCE_NS: u64 = 1_000_000_000;

/// How far this node is with leaving, and which members wait for it to be ready for theirs.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    stage: Stage,
    /// Members that leave, and wait to hear that no reduce of this node needs them.
    unseating: BTreeSet<NodeId>,
}

/// Originals that were lost with a node that left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The first of them, at most [`LOST_NAMED_MAX`].
    pub ids: Vec<ObjectId>,
    /// How many they are.
    pub count: usize,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Stays,
    Leaves(Work),
    HasLeft,
}

/// What is still to be done before this node may close.
#[derive(Debug)]
struct Work {
    /// Originals, and who was asked to take each so far.
    open: BTreeMap<Instance, BTreeSet<NodeId>>,
    /// Originals that no other node can take.
    homeless: BTreeSet<Instance>,
    /// Originals that were to be written to disk.
    filed: BTreeSet<Instance>,
    /// Originals that clients are filling, and until when they are waited for.
    filling: BTreeSet<Instance>,
    filling_until: Instant,
    /// Members whose reduces may have a seat here.
    seated_by: BTreeSet<NodeId>,
    until: Instant,
}

impl Work {
    fn is_kept(&self) -> bool {
        self.open.is_empty() && self.filling.is_empty()
    }

    /// Asks the next member that was not asked before to keep an original.
    fn hand_over(
        &mut self,
        instance: Instance,
        mut asked: BTreeSet<NodeId>,
        table: &Table,
        world: &mut World,
    ) {
        let Some(copy) = table.get(instance) else { return };
        let now = world.now();
        // By the order of ownership, so that originals spread over all who stay.
        let mut others = world.members().clone();
        others.resign();
        let all: Vec<NodeId> = others.iter().map(|other| other.id).collect();
        let leaving = all.into_iter().filter(|node| world.members().is_leaving(*node));
        for node in asked.iter().copied().chain(leaving) {
            others.remove(node);
        }
        let Some(target) = others.iter().next().map(|_| others.owners(&copy.id).first) else {
            self.open.remove(&instance);
            self.homeless.insert(instance);
            return;
        };
        asked.insert(target);
        self.open.insert(instance, asked);
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        let lifetime = copy.lifetime(now);
        // It may have room later; without it the object is lost.
        let may_wait = true;
        world.send(target, Message::Adopt { id, instance, meta, inline, lifetime, may_wait });
    }

    /// The originals that `node` was asked to take.
    fn asked_of(&self, node: NodeId) -> Vec<(Instance, BTreeSet<NodeId>)> {
        let hit = self.open.iter().filter(|(_, asked)| asked.contains(&node));
        hit.map(|(instance, asked)| (*instance, asked.clone())).collect()
    }
}

impl Leaving {
    /// Whether this node was told to leave.
    pub(super) const fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Stays)
    }

    const fn work(&mut self) -> Option<&mut Work> {
        match &mut self.stage {
            Stage::Leaves(work) => Some(work),
            Stage::Stays | Stage::HasLeft => None,
        }
    }

    /// How many members wait for this node.
    pub(super) fn unseating(&self) -> usize {
        self.unseating.len()
    }

    /// When what it waits for has had its time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let Stage::Leaves(work) = &self.stage else { return None };
        Some(if work.filling.is_empty() { work.until } else { work.filling_until })
    }

    /// This node shall leave; `filling` are the originals that clients are filling.
    fn begin(&mut self, patience_ns: u64, filling: BTreeSet<Instance>, world: &mut World) {
        let until = world.now() + patience_ns;
        let filling_until = until.min(world.now() + FILL_PATIENCE_NS);
        let (open, homeless, seated_by) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let filed = BTreeSet::new();
        let work = Work { open, homeless, filed, filling, filling_until, seated_by, until };
        self.stage = Stage::Leaves(work);
        let me = world.me();
        world.members_mut().begin_to_leave(me);
        for other in world.others() {
            self.tell(other, world);
        }
    }

    fn tell(&mut self, to: NodeId, world: &mut World) {
        if let Some(work) = self.work() {
            work.seated_by.insert(to);
            world.send(to, Message::Leaving);
        }
    }

    /// Members that are new, or have forgotten it, hear that this node leaves.
    pub(super) fn tell_again(&mut self, change: &Change, world: &mut World) {
        for other in change.new_members(world) {
            self.tell(other, world);
        }
    }

    /// No reduce of a member has a seat here, nor will have one.
    pub(super) fn unseated(&mut self, by: NodeId) {
        if let Some(work) = self.work() {
            work.seated_by.remove(&by);
        }
    }

    /// Whether this node leaves, and has finished what `coordinator` ordered.
    pub(super) fn takes_no_orders_of(&self, coordinator: NodeId) -> bool {
        match &self.stage {
            Stage::Stays => false,
            Stage::Leaves(work) => !work.seated_by.contains(&coordinator),
            Stage::HasLeft => true,
        }
    }

    /// A client has filled what it was filling when this node was told to leave.
    pub(super) fn filled(&mut self, instance: Instance, table: &Table, world: &mut World) {
        if let Some(work) = self.work() {
            work.filling.remove(&instance);
            // Also one that was not waited for any more, as long as others are.
            work.hand_over(instance, BTreeSet::new(), table, world);
        }
    }

    /// An original is no more: no member need take it over.
    pub(super) fn forget(&mut self, instance: Instance) {
        if let Some(work) = self.work() {
            work.open.remove(&instance);
            work.homeless.remove(&instance);
            work.filling.remove(&instance);
        }
    }

    /// A member that is there has forgotten what it was asked to take over: it is asked again.
    pub(super) fn ask_anew(&mut self, node: NodeId, table: &Table, world: &mut World) {
        let Some(work) = self.work() else { return };
        for (instance, mut asked) in work.asked_of(node) {
            asked.remove(&node);
            work.hand_over(instance, asked, table, world);
        }
    }

    /// A member is gone, with all that it was asked to take over: others are asked. It need not be told of seats.
    pub(super) fn forget_member(&mut self, node: NodeId, table: &Table, world: &mut World) {
        let Some(work) = self.work() else { return };
        for (instance, asked) in work.asked_of(node) {
            work.hand_over(instance, asked, table, world);
        }
    }

    /// A member is gone, and does not wait for this node.
    pub(super) fn stop_unseating(&mut self, node: NodeId) {
        self.unseating.remove(&node);
    }

    /// A member keeps an original, or can't.
    pub(super) fn adopted(
        &mut self,
        from: NodeId,
        instance: Instance,
        kept: bool,
        table: &Table,
        world: &mut World,
    ) {
        let Some(work) = self.work() else { return };
        let asked = work.open.get(&instance).filter(|asked| asked.contains(&from)).cloned();
        match asked {
            Some(_) if kept => drop(work.open.remove(&instance)),
            Some(asked) => work.hand_over(instance, asked, table, world),
            None => {}
        }
    }

    pub(super) fn expire(&mut self, now: Instant) {
        if let Some(work) = self.work().filter(|work| work.filling_until <= now) {
            work.filling.clear();
        }
    }

    /// Originals that no other node has taken, and that were not to be written to disk so far.
    fn take_unfiled(&mut self) -> Vec<Instance> {
        let Some(work) = self.work() else { return Vec::new() };
        let here = work.homeless.iter().chain(work.open.keys()).copied();
        let new: Vec<Instance> = here.filter(|instance| !work.filed.contains(instance)).collect();
        work.filed.extend(&new);
        new
    }

    /// Whether something is so of each original that no other node can take.
    fn is_so_of_the_homeless(&mut self, is_so: impl Fn(Instance) -> bool) -> bool {
        self.work().is_none_or(|work| work.homeless.iter().all(|instance| is_so(*instance)))
    }

    /// Members that leave hear when no reduce of this node has a seat there.
    fn unseat(&mut self, seats: &BTreeSet<NodeId>, world: &mut World) {
        for node in self.unseating.difference(seats).copied().collect::<Vec<_>>() {
            self.unseating.remove(&node);
            world.send(node, Message::Unseated);
        }
    }

    /// Whether nothing is left to be done, or its time is over; and the originals that no other node has then. Said once.
    fn end(&mut self, has_folded: bool, now: Instant) -> Option<BTreeSet<Instance>> {
        let work = self.work()?;
        let is_over = work.until <= now;
        let is_done = work.is_kept() && has_folded && work.seated_by.is_empty();
        if !is_done && !is_over {
            return None;
        }
        let mut lost = core::mem::take(&mut work.homeless);
        lost.extend(work.open.keys());
        self.stage = Stage::HasLeft;
        Some(lost)
    }
}

impl Node {
    /// This node shall leave: others take over the originals that are here.
    pub(super) fn leave(&mut self, patience_ns: u64) {
        if self.leaving.has_begun() {
            return;
        }
        let filling = self.puts.filling();
        self.leaving.begin(patience_ns, filling, &mut self.world);
        let me = self.world.me();
        for id in self.coordinator.results() {
            let said = alloc::format!("node {me}, which folds {id}, left the cluster");
            self.fail_reduce_of(&id, &Error::NodeDown(said));
        }
        for request in self.requests.numbers() {
            match self.requests.kind(request).cloned() {
                Some(Waiting::Object(id)) => self.stop_waiting(&id, request),
                Some(Waiting::Growth(id)) => self.readers.stop_following(&id, request),
                Some(Waiting::Several(waited)) => {
                    waited.stop(request, &mut self.watches, &mut self.world);
                }
                _ => {}
            }
            let error = Error::NodeDown(alloc::format!("node {me} is closing"));
            self.requests.reply(request, Err(error), &mut self.world);
        }
        // A node that asked this one, and leaves too, asks another one.
        for id in self.adoptions.refuse_all(&mut self.world) {
            self.end_if_unwanted(&id);
        }
        let originals = self
            .copies
            .table()
            .iter()
            .filter(|(_, copy)| copy.origin && copy.is_complete() && !copy.doomed);
        for instance in originals.map(|(instance, _)| instance).collect::<Vec<Instance>>() {
            self.leaving.filled(instance, self.copies.table(), &mut self.world);
        }
    }

    /// A member was told to leave: reduces of this node order it nothing new.
    pub(super) fn member_leaves(&mut self, node: NodeId) {
        self.world.members_mut().begin_to_leave(node);
        self.leaving.unseating.insert(node);
        for key in self.coordinator.keys() {
            self.advise(key, |reduce, _, _, steps| reduce.holder_leaves(node, steps));
        }
    }

    /// Members that leave hear when no reduce of this node has a seat there.
    pub(super) fn unseat(&mut self) {
        if self.leaving.unseating.is_empty() {
            return;
        }
        self.leaving.unseat(&self.coordinator.seats(), &mut self.world);
    }

    /// Says good-bye once nothing is left to be done, or its time is over; after each event, for what came of it is to be
    /// said before.
    pub(super) fn leave_when_empty(&mut self) {
        let has_folded = self.worker.is_done() && self.scatters.len() == 0;
        let has_written = !self.copies.is_keeping() || self.has_filed();
        let is_done = has_folded && has_written;
        let Some(homeless) = self.leaving.end(is_done, self.world.now()) else { return };
        let lost = self.abandon(&homeless);
        if self.copies.is_keeping() {
            self.drop_files_but(&homeless);
        }
        let mut without_me = self.world.members().clone();
        without_me.resign();
        self.tell_directory(|directory, world| {
            directory.leave(&mut directory::World {
                members: &without_me,
                mail: world.mail,
                ..*world
            });
        });
        for other in self.world.others() {
            self.world.send(other, Message::Leave);
        }
        self.world.act(Action::Left { lost });
    }

    /// Has what no other node has taken written to disk, as far as there is room; whether that is done of what none takes.
    fn has_filed(&mut self) -> bool {
        for instance in self.leaving.take_unfiled() {
            self.copies.write_if_room(instance, &mut self.world);
        }
        let Self { leaving, copies, .. } = self;
        leaving.is_so_of_the_homeless(|instance| {
            copies.get(instance).is_none_or(|copy| copy.filed != Filed::Writing)
        })
    }

    /// What other nodes have taken over is not to come back with the next node: it may be deleted by then.
    fn drop_files_but(&mut self, homeless: &BTreeSet<Instance>) {
        let is_filed = |(instance, copy): &(Instance, &Copy)| {
            copy.filed != Filed::No
                && !(copy.filed == Filed::Written && homeless.contains(instance) && !copy.doomed)
        };
        let void = self.copies.table().iter().filter(is_filed).map(|(instance, _)| instance);
        for instance in void.collect::<Vec<Instance>>() {
            self.world.act(Action::DropSpilled { instance });
        }
    }

    /// Tells the owners of originals that no other node has. Where no member stays nothing is lost to one; and the bytes of
    /// a small object are at its owners too. What is on disk for the next node is not lost, and comes back with it.
    fn abandon(&mut self, originals: &BTreeSet<Instance>) -> Lost {
        let mut lost = Lost::default();
        let members = self.world.members();
        let is_last = self.world.others().into_iter().all(|other| members.is_leaving(other));
        if is_last && !self.copies.is_keeping() {
            return lost;
        }
        for instance in originals {
            let copy = self.copies.get(*instance);
            let Some(copy) = copy.filter(|copy| copy.inline.is_none()) else { continue };
            if self.copies.is_keeping() && copy.filed == Filed::Written {
                // It comes back.
                continue;
            }
            let id = copy.id.clone();
            self.world.send_owners(&id, &Message::Abandon { id: id.clone(), instance: *instance });
            lost.count += 1;
            if lost.ids.len() < LOST_NAMED_MAX {
                lost.ids.push(id);
            }
        }
        lost
    }
}

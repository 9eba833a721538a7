//! The copies of one node: what is there, what is held fast, what may go.
//!
//! Accounts bytes against the capacity and chooses what is evicted; the memory itself is the shell's.
//!
//! ```text
//!   growing --------> complete --------> (evicted: unpinned, not an original)
//!      |                  |
//!      +--- doomed -------+   deleted or replaced while it is read: goes with its last pin
//! ```
//! Where the bytes of a complete original are, if the node has a disk for them ([`Place`], [`Filed`]):
//!
//! ```text
//!   in memory --> in memory, being written --> in memory and on disk --> on disk alone --> coming back --+
//!                                                        ^                                                |
//!                                                        +------------------------------------------------+
//! ```

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use core::ops::Bound;

use crate::{
    id::{ClientId, Instance, NodeId, ObjectId},
    inline::Inline,
    lifetime::{Lifetime, Terms},
    meta::Meta,
    planted::{self, Bug},
    time::Instant,
};

/// One copy of one instance.
#[derive(Debug)]
pub struct Copy {
    /// Of which object.
    pub id: ObjectId,
    /// What is known of it.
    pub meta: Meta,
    /// Its bytes if they are few; otherwise the shell has a slot.
    pub inline: Option<Inline>,
    /// How far it is.
    pub state: State,
    /// Pinned until deletion: put here, reduced here or adopted.
    pub origin: bool,
    /// Readers, transfers and folds that use it.
    pub pins: u32,
    /// Folds that will use it and have no room so far: it may go to disk until then, and is there until then.
    pub holds: u32,
    /// Deleted or replaced: nobody new may use it.
    pub doomed: bool,
    /// Where its bytes are.
    pub place: Place,
    /// Whether they are in a file.
    pub filed: Filed,
    /// It was left in a file by a node of before: what was put under its name meanwhile goes before it.
    pub returned: bool,
    /// How long the object lives, if not until it is deleted.
    pub terms: Option<Box<Terms>>,
    /// Grows with each use; the smallest goes first.
    last_use: u64,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A client writes it.
    Filling(ClientId),
    /// It comes from another node, or from nobody for the moment.
    Flowing(Option<NodeId>),
    /// A reduce makes it.
    Folding,
    /// All of it is there and will never change.
    Complete,
}

/// Where the bytes of a copy are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory, or on their way there for the first time.
    Memory,
    /// In a file alone.
    Disk,
    /// In a file, and on their way back into memory, which they take already.
    Returning,
}

/// Whether the bytes of a copy are in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filed {
    /// They are not.
    No,
    /// They are being written.
    Writing,
    /// All of them are. They never change, so the file stays right when they come back.
    Written,
}

/// A copy that was removed; its memory may be freed.
#[derive(Debug, PartialEq, Eq)]
pub struct Removed {
    /// Of which object.
    pub id: ObjectId,
    /// Which instance.
    pub instance: Instance,
    /// Whether the shell has a slot for it.
    pub has_slot: bool,
    /// Whether the shell has a file for it, or writes one.
    pub has_file: bool,
}

/// What went so that others have room.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shed {
    /// Copies that are no more.
    pub evicted: Vec<Removed>,
    /// Originals that are on disk alone from now on.
    pub spilled: Vec<Instance>,
}

impl Shed {
    /// Whether nothing went.
    pub fn is_empty(&self) -> bool {
        self.evicted.is_empty() && self.spilled.is_empty()
    }
}

/// All copies of one node.
#[derive(Debug)]
pub struct Table {
    copies: BTreeMap<Instance, Copy>,
    current: BTreeMap<ObjectId, Instance>,
    used: u64,
    capacity: u64,
    uses: u64,
    /// How many copies were passed over.
    passed: u64,
    /// Bytes of files that are there or being written.
    on_disk: u64,
    evictable: Evictable,
}

/// Which copies may go and which may not, so that neither the next of them nor what they take has to be looked for.
#[derive(Debug, Default)]
struct Evictable {
    /// Copies that are had again elsewhere. No two copies have a last use in common.
    by_last_use: BTreeMap<u64, Instance>,
    /// Originals that are in memory and in a file.
    filed: BTreeMap<u64, Instance>,
    /// Bytes of all of these.
    bytes: u64,
    /// Originals that could be written to a file, and their bytes.
    unfiled: BTreeMap<u64, Instance>,
    unfiled_bytes: u64,
    /// All that may not go now, by what they take.
    held: BTreeSet<(u64, Instance)>,
}

/// From here on uses are counted; what was passed over has lower numbers.
const FIRST_USE: u64 = 1 << 63;

/// Whether a copy may leave memory, and when it goes among those that do so alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Evictable(u64),
    Filed(u64),
    Unfiled(u64),
    Held,
}

/// What a copy costs beside its bytes: entries here and in the directory.
pub const COPY_OVERHEAD_BYTES: u64 = 256;

/// Bytes of the file of a copy of `size` bytes: what it says of the copy is a page or two; of each MiB it has a checksum.
pub const fn file_bytes(size: u64) -> u64 {
    size.saturating_add(8192).saturating_add(size >> 18)
}

/// Before the names of the largest copies, in an error that says what fills a store.
pub(crate) const LARGEST: &str = "the largest are ";

impl Table {
    /// An empty store that may hold `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self {
            copies: BTreeMap::new(),
            current: BTreeMap::new(),
            used: 0,
            capacity,
            uses: FIRST_USE,
            passed: 0,
            on_disk: 0,
            evictable: Evictable::default(),
        }
    }

    /// Bytes the store may hold.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes it holds.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Bytes that can't be evicted.
    pub const fn pinned(&self) -> u64 {
        self.used - self.evictable.bytes
    }

    /// Bytes of files that are there or being written.
    pub const fn on_disk(&self) -> u64 {
        self.on_disk
    }

    /// Bytes in memory of originals that could be written to a file.
    pub const fn unfiled(&self) -> u64 {
        self.evictable.unfiled_bytes
    }

    /// The originals that could be written to a file, the least recently used first.
    pub fn to_file(&self) -> impl Iterator<Item = (Instance, &Copy)> {
        let all = self.evictable.unfiled.values();
        all.filter_map(|instance| Some((*instance, self.copies.get(instance)?)))
    }

    /// How many copies there are.
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// The copy of an instance.
    pub fn get(&self, instance: Instance) -> Option<&Copy> {
        self.copies.get(&instance)
    }

    /// More of a copy is there, or it comes from another node.
    pub fn set_state(&mut self, instance: Instance, state: State) {
        self.change(instance, |copy| copy.state = state);
    }

    /// Where the bytes of a copy are from now on.
    pub fn set_place(&mut self, instance: Instance, place: Place) {
        self.change(instance, |copy| copy.place = place);
    }

    /// Whether the bytes of a copy are in a file from now on.
    pub fn set_filed(&mut self, instance: Instance, filed: Filed) {
        let before = self.get(instance).map_or(0, Copy::file_bytes);
        self.change(instance, |copy| copy.filed = filed);
        self.on_disk += self.get(instance).map_or(0, Copy::file_bytes);
        self.on_disk -= before;
    }

    /// Whether a copy is pinned until deletion from now on; whether it was before, none if there is no such copy.
    pub fn set_origin(&mut self, instance: Instance, origin: bool) -> Option<bool> {
        self.change(instance, |copy| core::mem::replace(&mut copy.origin, origin))
    }

    /// How long the object of a copy lives: also this, beside what is known of it.
    pub fn add_terms(&mut self, instance: Instance, added: &Terms) {
        let Some(copy) = self.copies.get_mut(&instance) else { return };
        match &mut copy.terms {
            Some(terms) => terms.join(added),
            none => *none = Some(Box::new(added.clone())),
        }
    }

    /// If a copy is complete the time of its object runs.
    pub fn begin_time(&mut self, instance: Instance, now: Instant) {
        let complete = self.copies.get_mut(&instance).filter(|copy| copy.is_complete());
        if let Some(terms) = complete.and_then(|copy| copy.terms.as_mut()) {
            terms.begin(now);
        }
    }

    /// The instance that a get of `id` would use now.
    pub fn current(&self, id: &ObjectId) -> Option<Instance> {
        self.current.get(id).copied()
    }

    /// Every copy, in order of instance.
    pub fn iter(&self) -> impl Iterator<Item = (Instance, &Copy)> {
        self.copies.iter().map(|(instance, copy)| (*instance, copy))
    }

    /// The copies after one, or all, in order of instance.
    pub fn following(&self, after: Option<Instance>) -> impl Iterator<Item = Instance> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.copies.range((begin, Bound::Unbounded)).map(|(instance, _)| *instance)
    }

    /// Makes room for `size` more bytes: copies that are had again elsewhere go first, then what is on disk too, of each the
    /// least recently used first. All that went, or none if that would not be enough.
    pub fn make_room(&mut self, size: u64) -> Option<Shed> {
        if self.missing_for(size) > 0 {
            return None;
        }
        let needed = size.saturating_add(COPY_OVERHEAD_BYTES);
        Some(self.shed(self.used.saturating_add(needed).saturating_sub(self.capacity)))
    }

    /// The same for `bytes` or more, if so much may go.
    pub fn shed(&mut self, bytes: u64) -> Shed {
        let enough = self.used.saturating_sub(bytes);
        let mut shed = Shed::default();
        while self.used > enough {
            if let Some(victim) = self.evictable.least_recently_used() {
                shed.evicted.extend(self.remove(victim));
            } else if let Some(victim) = self.evictable.least_recently_used_on_disk() {
                self.set_place(victim, Place::Disk);
                shed.spilled.push(victim);
            } else {
                break;
            }
        }
        shed
    }

    /// Removes a copy that is on disk alone and is no original any more, if it is not read: it is had again elsewhere.
    pub fn evict_from_disk(&mut self, instance: Instance) -> Option<Removed> {
        let copy = self.get(instance)?;
        let is_spare = copy.place == Place::Disk && !copy.origin && !copy.is_used();
        if is_spare { self.remove(instance) } else { None }
    }

    /// The three largest copies that can't be evicted, and what holds them, in words.
    pub fn largest_held(&self) -> String {
        let largest = self.evictable.held.iter().rev().take(3);
        let named: Vec<String> = largest
            .filter_map(|(_, instance)| {
                let Copy { id, meta, state, origin, pins, holds, place, .. } =
                    self.copies.get(instance)?;
                let why = match (state, origin) {
                    (State::Filling(_), _) => "being put".into(),
                    (State::Flowing(_), _) => "arriving".into(),
                    (State::Folding, _) => "being reduced".into(),
                    (State::Complete, _) if *place == Place::Returning => "read from disk".into(),
                    (State::Complete, true) if *pins == 0 => "kept until it is deleted".into(),
                    (State::Complete, _) => format!("read by {}", pins + holds),
                };
                Some(format!("{id} of {} bytes ({why})", meta.size))
            })
            .collect();
        match named[..] {
            [] => "nothing in it is pinned".into(),
            _ => format!("{LARGEST}{}", named.join(", ")),
        }
    }

    /// Bytes of the largest copy that there is room for, if what may go goes; none if there is not even room for an empty
    /// one.
    pub fn room(&self) -> Option<u64> {
        self.room_with(0)
    }

    /// The same if so much else were to go, too.
    pub fn room_with(&self, more: u64) -> Option<u64> {
        let free = self.capacity.saturating_sub(self.pinned()).saturating_add(more);
        free.checked_sub(COPY_OVERHEAD_BYTES)
    }

    /// How many bytes more than can be evicted would have to go for `size` more.
    pub const fn missing_for(&self, size: u64) -> u64 {
        let free = self.capacity.saturating_sub(self.pinned());
        size.saturating_add(COPY_OVERHEAD_BYTES).saturating_sub(free)
    }

    /// How many bytes have to be evicted for `size` more.
    pub const fn missing_to_add(&self, size: u64) -> u64 {
        let free = self.capacity.saturating_sub(self.used);
        size.saturating_add(COPY_OVERHEAD_BYTES).saturating_sub(free)
    }

    /// Whether `size` bytes could ever fit.
    pub const fn could_hold(&self, size: u64) -> bool {
        size.saturating_add(COPY_OVERHEAD_BYTES) <= self.capacity
    }

    /// Adds a copy; a get finds it once it is revealed.
    ///
    /// # Panics
    /// If the instance is there already.
    pub fn insert(
        &mut self,
        instance: Instance,
        id: ObjectId,
        meta: Meta,
        inline: Option<Inline>,
        state: State,
        origin: bool,
    ) {
        self.uses += 1;
        let last_use = self.uses;
        let (pins, holds, doomed, terms) = (0, 0, false, None);
        let (place, filed, returned) = (Place::Memory, Filed::No, false);
        let copy = Copy {
            id,
            meta,
            inline,
            state,
            origin,
            pins,
            holds,
            doomed,
            place,
            filed,
            returned,
            terms,
            last_use,
        };
        self.used += copy.cost();
        self.evictable.insert(instance, &copy);
        let before = self.copies.insert(instance, copy);
        assert!(before.is_none(), "instance {instance} was put into the table twice");
    }

    /// Adds a complete original that a node of before has left in a file.
    ///
    /// # Panics
    /// If the instance is there already.
    pub fn insert_returned(
        &mut self,
        instance: Instance,
        id: ObjectId,
        meta: Meta,
        inline: Option<Inline>,
    ) {
        let place = if inline.is_some() { Place::Memory } else { Place::Disk };
        // Its room is given back before it counts.
        self.insert(instance, id, meta, inline, State::Complete, true);
        self.set_filed(instance, Filed::Written);
        self.set_place(instance, place);
        if let Some(copy) = self.copies.get_mut(&instance) {
            copy.returned = true;
        }
    }

    /// Makes a copy the one that a get of its object uses.
    pub fn reveal(&mut self, instance: Instance) {
        if let Some(copy) = self.copies.get(&instance).filter(|copy| !copy.doomed) {
            self.current.insert(copy.id.clone(), instance);
        }
    }

    /// Holds a copy fast.
    pub fn pin(&mut self, instance: Instance) {
        self.uses += 1;
        let last_use = self.uses;
        self.change(instance, |copy| {
            copy.pins += 1;
            copy.last_use = last_use;
        });
    }

    /// The one that holds a copy fast needs it no more once it lets go: of those that may go it is then behind those that
    /// were passed over before, and before all others. Not so if another holds it too.
    pub fn pass_over(&mut self, instance: Instance) {
        self.passed += 1;
        let passed = self.passed;
        self.change(instance, |copy| {
            if copy.pins == 1 {
                copy.last_use = passed;
            }
        });
    }

    /// Takes a pin away; the copy if it was doomed and this was the last use of it.
    pub fn unpin(&mut self, instance: Instance) -> Option<Removed> {
        let is_over = self.change(instance, |copy| {
            assert!(copy.pins > 0, "instance {instance} was unpinned more often than pinned");
            copy.pins -= 1;
            !copy.is_used() && copy.doomed
        })?;
        if is_over { self.remove(instance) } else { None }
    }

    /// A copy will be pinned later: it is not removed until then.
    pub fn hold(&mut self, instance: Instance) {
        self.change(instance, |copy| copy.holds += 1);
    }

    /// What was to be pinned later is not any more, or is now; the copy if it was doomed and this was the last use of it.
    pub fn unhold(&mut self, instance: Instance) -> Option<Removed> {
        let is_over = self.change(instance, |copy| {
            assert!(copy.holds > 0, "instance {instance} was let go of more often than held");
            copy.holds -= 1;
            !copy.is_used() && copy.doomed
        })?;
        if is_over { self.remove(instance) } else { None }
    }

    /// Takes a copy out of use: at once if nobody uses it, else with its last pin.
    pub fn doom(&mut self, instance: Instance) -> Option<Removed> {
        self.change(instance, |copy| copy.doomed = true)?;
        let copy = self.copies.get(&instance)?;
        if self.current.get(&copy.id) == Some(&instance) {
            self.current.remove(&copy.id);
        }
        if copy.is_used() { None } else { self.remove(instance) }
    }

    fn remove(&mut self, instance: Instance) -> Option<Removed> {
        let copy = self.copies.remove(&instance)?;
        self.used -= copy.cost();
        self.on_disk -= copy.file_bytes();
        self.evictable.remove(instance, copy.turn(), copy.cost());
        if self.current.get(&copy.id) == Some(&instance) {
            self.current.remove(&copy.id);
        }
        let has_slot = copy.inline.is_none() && copy.place != Place::Disk;
        Some(Removed { id: copy.id, instance, has_slot, has_file: copy.filed != Filed::No })
    }

    /// Changes a copy, and with it whether it may go and what it takes.
    fn change<R>(&mut self, instance: Instance, change: impl FnOnce(&mut Copy) -> R) -> Option<R> {
        let copy = self.copies.get_mut(&instance)?;
        let (turn, cost) = (copy.turn(), copy.cost());
        let result = change(copy);
        if (copy.turn(), copy.cost()) != (turn, cost) {
            self.used = self.used - cost + copy.cost();
            self.evictable.remove(instance, turn, cost);
            self.evictable.insert(instance, copy);
        }
        Some(result)
    }
}

impl Evictable {
    fn insert(&mut self, instance: Instance, copy: &Copy) {
        let cost = copy.cost();
        match copy.turn() {
            Turn::Evictable(turn) => {
                self.by_last_use.insert(turn, instance);
                self.bytes += cost;
            }
            Turn::Filed(turn) => {
                self.filed.insert(turn, instance);
                self.bytes += cost;
            }
            Turn::Unfiled(turn) => {
                self.unfiled.insert(turn, instance);
                self.unfiled_bytes += cost;
                self.held.insert((cost, instance));
            }
            Turn::Held => drop(self.held.insert((cost, instance))),
        }
    }

    /// Takes a copy out that was put in when it had this turn.
    fn remove(&mut self, instance: Instance, turn: Turn, cost: u64) {
        match turn {
            Turn::Evictable(turn) => {
                self.by_last_use.remove(&turn);
                self.bytes -= cost;
            }
            Turn::Filed(turn) => {
                self.filed.remove(&turn);
                self.bytes -= cost;
            }
            Turn::Unfiled(turn) => {
                self.unfiled.remove(&turn);
                self.unfiled_bytes -= cost;
                self.held.remove(&(cost, instance));
            }
            Turn::Held => drop(self.held.remove(&(cost, instance))),
        }
    }

    fn least_recently_used(&self) -> Option<Instance> {
        self.by_last_use.first_key_value().map(|(_, instance)| *instance)
    }

    fn least_recently_used_on_disk(&self) -> Option<Instance> {
        self.filed.first_key_value().map(|(_, instance)| *instance)
    }
}

impl Copy {
    /// Whether all of it is there.
    pub fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// What to tell another node of how long the object lives.
    pub fn lifetime(&self, now: Instant) -> Option<Box<Lifetime>> {
        self.terms.as_ref().map(|terms| terms.tell(now))
    }

    /// Whether all of it is there, and in memory.
    pub fn is_readable(&self) -> bool {
        self.is_complete() && self.place == Place::Memory
    }

    /// Whether a reader, a transfer or a fold uses it, or will.
    pub fn is_used(&self) -> bool {
        self.pins > 0 || self.holds > 0
    }

    /// Whether it waits for memory or fills it.
    pub fn is_growing(&self) -> bool {
        !self.is_complete() || self.place == Place::Returning
    }

    /// What it takes of the capacity: nothing if it is on disk alone, where it takes of the limit of the files.
    pub fn cost(&self) -> u64 {
        match self.place {
            Place::Disk => 0,
            Place::Memory | Place::Returning => self.bytes(),
        }
    }

    /// What it takes of the capacity of a node that has it in memory.
    pub fn bytes(&self) -> u64 {
        self.meta.size.saturating_add(COPY_OVERHEAD_BYTES)
    }

    fn file_bytes(&self) -> u64 {
        match self.filed {
            Filed::No => 0,
            Filed::Writing | Filed::Written => file_bytes(self.meta.size),
        }
    }

    /// When it goes among those that may, if it may.
    fn turn(&self) -> Turn {
        let is_read = self.pins > 0 && !planted::has(Bug::EvictsWhatIsRead);
        if !self.is_readable() || is_read {
            return Turn::Held;
        }
        match (self.origin, self.filed) {
            (false, _) if self.holds > 0 => Turn::Held,
            (false, _) => Turn::Evictable(self.last_use),
            // The few bytes of a small one stay.
            (true, _) if self.inline.is_some() || self.doomed => Turn::Held,
            (true, Filed::Written) => Turn::Filed(self.last_use),
            (true, Filed::No) => Turn::Unfiled(self.last_use),
            (true, Filed::Writing) => Turn::Held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(serial: u64) -> Instance {
        Instance { node: NodeId(1), serial }
    }

    fn id(serial: u64) -> ObjectId {
        ObjectId::Minted { node: NodeId(1), serial }
    }

    fn table_with_three_copies() -> Table {
        let mut table = Table::new(4 * (1000 + COPY_OVERHEAD_BYTES));
        for serial in 0..3 {
            let origin = serial == 0;
            let meta = Meta::bytes(1000);
            table.insert(instance(serial), id(serial), meta, None, State::Complete, origin);
            table.reveal(instance(serial));
        }
        table
    }

    #[test]
    fn the_least_recently_used_copy_goes_first_and_an_original_never() {
        let mut table = table_with_three_copies();
        table.pin(instance(1));
        table.unpin(instance(1));
        let evicted = table.make_room(2000).unwrap().evicted;
        assert_eq!(evicted.len(), 1);
        assert_eq!(evicted[0].instance, instance(2));
        assert!(table.make_room(4000).is_none(), "the original stays");
        assert!(table.get(instance(1)).is_some(), "nothing is evicted when it would not be enough");
    }

    #[test]
    fn what_its_only_reader_has_copied_goes_first() {
        let mut table = table_with_three_copies();
        table.insert(instance(3), id(3), Meta::bytes(1000), None, State::Complete, false);
        let copied = |table: &mut Table, serial| {
            table.pass_over(instance(serial));
            table.unpin(instance(serial));
        };
        // Another reads the second too, and the last is read again.
        [2, 2, 3, 1].iter().for_each(|serial| table.pin(instance(*serial)));
        [2, 3, 1].iter().for_each(|serial| copied(&mut table, *serial));
        table.unpin(instance(2));
        table.pin(instance(3));
        table.unpin(instance(3));
        let gone: Vec<_> =
            (0..3).flat_map(|_| table.shed(1).evicted).map(|gone| gone.instance).collect();
        assert_eq!(gone, [1, 2, 3].map(instance));
    }

    #[test]
    fn what_is_shed_is_no_more_than_may_go() {
        let mut table = table_with_three_copies();
        let shed = [1, u64::MAX, 1].map(|bytes| table.shed(bytes).evicted.len());
        assert_eq!(shed, [1, 1, 0], "the original stays");
    }

    #[test]
    fn the_largest_that_can_t_go_are_named_with_what_holds_them() {
        let mut table = Table::new(1 << 30);
        assert_eq!(table.largest_held(), "nothing in it is pinned");
        for serial in 1..6 {
            let meta = Meta::bytes(1000 * serial);
            table.insert(
                instance(serial),
                id(serial),
                meta,
                None,
                State::Complete,
                serial % 2 == 1,
            );
        }
        table.pin(instance(4));
        table.set_state(instance(3), State::Folding);
        let named = [
            format!("{} of 5000 bytes (kept until it is deleted)", id(5)),
            format!("{} of 4000 bytes (read by 1)", id(4)),
            format!("{} of 3000 bytes (being reduced)", id(3)),
        ];
        assert_eq!(table.largest_held(), format!("the largest are {}", named.join(", ")));
    }

    #[test]
    fn a_pinned_copy_outlives_its_deletion_until_the_last_reader_is_gone() {
        let mut table = table_with_three_copies();
        table.pin(instance(0));
        table.pin(instance(0));
        assert_eq!(table.doom(instance(0)), None);
        assert_eq!(table.current(&id(0)), None, "nobody new finds it");
        assert_eq!(table.unpin(instance(0)), None);
        assert_eq!(table.unpin(instance(0)).map(|removed| removed.instance), Some(instance(0)));
    }

    #[test]
    fn what_may_go_is_known_without_a_look_at_every_copy() {
        let capacity = 64 * (1000 + COPY_OVERHEAD_BYTES);
        let mut table = Table::new(capacity);
        // The linear congruential generator of Knuth's MMIX.
        let mut state = 1_u64;
        let mut dice = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % sides
        };
        for serial in 1000..3000 {
            let which = instance(dice(32));
            match dice(8) {
                0 | 1 => {
                    let size = dice(4000);
                    if table.make_room(size).is_some() {
                        let (state, origin) = (State::Folding, dice(3) == 0);
                        let (id, meta) = (id(serial), Meta::bytes(size));
                        if table.get(which).is_none() {
                            table.insert(which, id, meta, None, state, origin);
                        }
                    }
                }
                2 => table.set_state(which, State::Complete),
                3 => drop(table.set_origin(which, dice(2) == 0)),
                4 => table.pin(which),
                5 => {
                    table.pin(which);
                    table.pass_over(which);
                }
                6 if table.get(which).is_some_and(|copy| copy.pins > 0) => {
                    table.unpin(which);
                }
                7 if dice(4) == 0 => drop(table.doom(which)),
                _ => {}
            }
            let may_go = |copy: &&Copy| copy.is_complete() && !copy.origin && copy.pins == 0;
            let (mut bytes, mut first) = (0, None);
            for (instance, copy) in table.iter().filter(|(_, copy)| may_go(copy)) {
                bytes += copy.cost();
                first =
                    first.min(Some((copy.last_use, instance))).or(Some((copy.last_use, instance)));
            }
            let used: u64 = table.iter().map(|(_, copy)| copy.cost()).sum();
            assert_eq!((table.used(), table.pinned()), (used, used - bytes));
            let held: u64 = table.evictable.held.iter().map(|(cost, _)| cost).sum();
            assert_eq!(held, table.pinned());
            assert_eq!(table.evictable.least_recently_used(), first.map(|(_, instance)| instance));
            let free = capacity - used + bytes - COPY_OVERHEAD_BYTES;
            assert_eq!((table.missing_for(free), table.missing_for(free + 1)), (0, 1));
        }
    }

    #[test]
    fn accounting_returns_to_zero() {
        let mut table = table_with_three_copies();
        (0..3).for_each(|serial| assert!(table.doom(instance(serial)).is_some()));
        assert_eq!(table.used(), 0);
    }

    #[test]
    fn a_new_instance_takes_the_id_over() {
        let mut table = table_with_three_copies();
        table.insert(instance(9), id(0), Meta::bytes(1), None, State::Folding, true);
        assert_eq!(table.current(&id(0)), Some(instance(0)), "not before it is revealed");
        table.reveal(instance(9));
        assert_eq!(table.current(&id(0)), Some(instance(9)));
        table.doom(instance(0));
        assert_eq!(table.current(&id(0)), Some(instance(9)), "the old one's end does not touch it");
    }
}

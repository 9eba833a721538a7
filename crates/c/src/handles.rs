//! Tables of what the handles of a program stand for.
//!
//! A handle is a number: the type, the table's shard, and the slot with its version, which changes with each release.
//! A handle that is stale or of another type is therefore found out.

use std::{
    cell::Cell,
    sync::{
        PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use crate::{
    code::Code,
    errors::{Failure, Result},
};

/// Shards of a table. Each thread inserts into its own, so that threads rarely wait for each other.
const SHARDS: usize = 8;

/// A handle is: 32 bits of version, 4 of type, 4 of shard, 24 of slot.
const SLOT_BITS: u32 = 24;
const SHARD_BITS: u32 = 4;
const TYPE_BITS: u32 = 4;

/// The types of handles, by their names in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Node = 1,
    Client,
    View,
    Buffer,
    Lease,
    Refs,
    Locations,
    Text,
    Pending,
    Queue,
}

const TYPES: [(Type, &str); 10] = [
    (Type::Node, "hoplite_node"),
    (Type::Client, "hoplite_client"),
    (Type::View, "hoplite_view"),
    (Type::Buffer, "hoplite_buffer"),
    (Type::Lease, "hoplite_lease"),
    (Type::Refs, "hoplite_refs"),
    (Type::Locations, "hoplite_locations"),
    (Type::Text, "hoplite_text"),
    (Type::Pending, "hoplite_pending"),
    (Type::Queue, "hoplite_queue"),
];

impl Type {
    /// The type of a handle; None if no type has this number.
    pub(crate) fn of(handle: u64) -> Option<Self> {
        let number = handle >> (SLOT_BITS + SHARD_BITS) & ((1 << TYPE_BITS) - 1);
        TYPES.iter().find(|(known, _)| *known as u64 == number).map(|(known, _)| *known)
    }

    pub(crate) fn name(self) -> &'static str {
        TYPES.iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

/// What the handles of one type stand for.
pub(crate) struct Table<T> {
    of: Type,
    shards: [RwLock<Option<SlotMap<DefaultKey, T>>>; SHARDS],
}

/// A locked shard, for a fork.
pub(crate) type Locked<T> = RwLockWriteGuard<'static, Option<SlotMap<DefaultKey, T>>>;

impl<T> Table<T> {
    pub(crate) const fn new(of: Type) -> Self {
        Self { of, shards: [const { RwLock::new(None) }; SHARDS] }
    }

    /// Inserts a value and returns its handle.
    ///
    /// # Errors
    /// [`Code::StoreFull`] for more handles than 24 bits can number.
    pub(crate) fn insert(&self, value: T) -> Result<u64> {
        let shard = own_shard();
        let mut locked = self.shards[shard].write().unwrap_or_else(PoisonError::into_inner);
        let slots = locked.get_or_insert_default();
        if slots.capacity() >= 1 << SLOT_BITS && slots.len() + 1 >= 1 << SLOT_BITS {
            let name = self.of.name();
            let message = format!("{} {name} handles are open: release some", slots.len());
            return Err(Failure::new(Code::StoreFull, message));
        }
        let raw = slots.insert(value).data().as_ffi();
        let (version, slot) = (raw >> 32, raw & 0xffff_ffff);
        Ok(version << 32
            | (self.of as u64) << (SLOT_BITS + SHARD_BITS)
            | (shard as u64) << SLOT_BITS
            | slot)
    }

    /// Returns what `read` makes of a value, for a short time.
    pub(crate) fn get<R>(&self, handle: u64, read: impl FnOnce(&T) -> R) -> Result<R> {
        self.find(handle)
            .and_then(|(shard, key)| {
                let locked = shard.read().unwrap_or_else(PoisonError::into_inner);
                locked.as_ref()?.get(key).map(read)
            })
            .ok_or_else(|| self.invalid(handle))
    }

    /// Removes a value; its handle becomes stale.
    pub(crate) fn remove(&self, handle: u64) -> Result<T> {
        self.find(handle)
            .and_then(|(shard, key)| {
                let mut locked = shard.write().unwrap_or_else(PoisonError::into_inner);
                locked.as_mut()?.remove(key)
            })
            .ok_or_else(|| self.invalid(handle))
    }

    /// Whether a handle is open.
    pub(crate) fn contains(&self, handle: u64) -> bool {
        self.get(handle, |_| ()).is_ok()
    }

    /// Locks the table.
    pub(crate) fn lock(&'static self) -> Vec<Locked<T>> {
        let lock =
            |shard: &'static RwLock<_>| shard.write().unwrap_or_else(PoisonError::into_inner);
        self.shards.iter().map(lock).collect()
    }

    #[expect(clippy::type_complexity, reason = "a shard and a key of it")]
    fn find(&self, handle: u64) -> Option<(&RwLock<Option<SlotMap<DefaultKey, T>>>, DefaultKey)> {
        let number = handle >> (SLOT_BITS + SHARD_BITS) & ((1 << TYPE_BITS) - 1);
        let shard = self.shards.get((handle >> SLOT_BITS & ((1 << SHARD_BITS) - 1)) as usize)?;
        let raw = (handle >> 32) << 32 | handle & ((1 << SLOT_BITS) - 1);
        // The version of an open slot is odd; slotmap would take the even one before for it.
        let is_own = number == self.of as u64 && raw >> 32 & 1 == 1;
        is_own.then(|| (shard, KeyData::from_ffi(raw).into()))
    }

    fn invalid(&self, handle: u64) -> Failure {
        let name = self.of.name();
        let message = match Type::of(handle) {
            _ if handle == 0 => {
                format!("the {name} handle is 0: it was released, or never opened; open one first")
            }
            Some(other) if other == self.of => {
                format!("the {name} handle {handle:#x} is stale: it was released; open another")
            }
            Some(other) => {
                format!("{handle:#x} is a {} handle: pass a {name} handle", other.name())
            }
            None => format!("{handle:#x} is not a handle: pass a {name} handle"),
        };
        Failure::new(Code::InvalidHandle, message)
    }
}

/// The shard of this thread.
fn own_shard() -> usize {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(THREADS.fetch_add(1, Ordering::Relaxed) as usize % SHARDS);
        }
        shard.get()
    })
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    #[test]
    fn a_released_handle_stays_stale_when_its_slot_is_used_again() {
        let table = Table::new(Type::View);
        let first = table.insert("first").unwrap();
        assert_eq!(table.remove(first).unwrap(), "first");
        let second = table.insert("second").unwrap();
        assert_ne!(first, second);
        assert_eq!(table.remove(first).unwrap_err().code, Code::InvalidHandle);
        assert_eq!(table.get(second, |value| *value).unwrap(), "second");
    }

    #[test]
    fn the_message_names_the_types() {
        let (views, leases) = (Table::new(Type::View), Table::new(Type::Lease));
        let (view, lease) = (views.insert(()).unwrap(), leases.insert(()).unwrap());
        let message = |handle| views.remove(handle).unwrap_err().message;
        assert_eq!(
            message(lease),
            format!("{lease:#x} is a hoplite_lease handle: pass a hoplite_view handle")
        );
        views.remove(view).unwrap();
        assert!(message(view).contains("the hoplite_view handle"));
        assert!(message(view).contains("is stale"));
        assert!(message(0).contains("is 0"));
        assert!(message(7).contains("is not a handle"));
    }

    #[test]
    fn every_number_is_a_handle_or_an_error() {
        let table = Table::new(Type::Queue);
        let handle = table.insert(()).unwrap();
        let near = (0..64).map(|bit| handle ^ 1 << bit).chain([u64::MAX, u64::MAX >> 1, 1 << 63]);
        for other in near {
            assert!(!table.contains(other), "{other:#x}");
        }
        assert!(table.contains(handle));
    }

    #[test]
    fn of_several_threads_one_releases_a_handle() {
        let table = Table::new(Type::Text);
        for _ in 0..100 {
            let (handle, barrier) = (table.insert(()).unwrap(), Barrier::new(2));
            let release = || {
                barrier.wait();
                table.remove(handle).is_ok()
            };
            let released = thread::scope(|scope| {
                [scope.spawn(release), scope.spawn(release)].map(|thread| thread.join().unwrap())
            });
            assert_ne!(released[0], released[1]);
        }
    }
}

//! A map of values with deadlines, ordered by deadline.
//!
//! Does not depend on the meaning of a deadline.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::Bound;

use crate::time::Instant;

pub(crate) trait Deadline {
    /// The time at which this value needs attention; `None` for never.
    fn deadline(&self) -> Option<Instant>;
}

#[derive(Debug)]
pub(crate) struct Timed<K, V> {
    all: BTreeMap<K, V>,
    due: BTreeSet<(Instant, K)>,
}

impl<K, V> Default for Timed<K, V> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), due: BTreeSet::new() }
    }
}

impl<K: Clone + Ord, V: Deadline> Timed<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.all.get(key)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.all.contains_key(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.all.iter()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.all.keys()
    }

    /// The key after another one, or the first.
    pub(crate) fn next_after(&self, after: Option<&K>) -> Option<K> {
        key_after(&self.all, after)
    }

    #[cfg(test)]
    pub(crate) fn last_key(&self) -> Option<&K> {
        self.all.last_key_value().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.all.values()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.remove(&key);
        self.due.extend(value.deadline().map(|at| (at, key.clone())));
        self.all.insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let value = self.all.remove(key)?;
        if let Some(at) = value.deadline() {
            self.due.remove(&(at, key.clone()));
        }
        Some(value)
    }

    /// Changes a value and its deadline; `None` if the key is unknown.
    pub(crate) fn update<R>(&mut self, key: &K, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let value = self.all.get_mut(key)?;
        let before = value.deadline();
        let result = change(value);
        let after = value.deadline();
        if before != after {
            if let Some(at) = before {
                self.due.remove(&(at, key.clone()));
            }
            self.due.extend(after.map(|at| (at, key.clone())));
        }
        Some(result)
    }

    /// The earliest deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The key of the value whose deadline passed first.
    pub(crate) fn first_due(&self, now: Instant) -> Option<K> {
        self.due.first().filter(|(at, _)| *at <= now).map(|(_, key)| key.clone())
    }

    /// Keys of the values whose deadline has passed, earliest first.
    pub(crate) fn due(&self, now: Instant) -> Vec<K> {
        self.some_due(now, usize::MAX)
    }

    /// The same, at most `most` keys.
    pub(crate) fn some_due(&self, now: Instant, most: usize) -> Vec<K> {
        let due = self.due.iter().take_while(|(at, _)| *at <= now).take(most);
        due.map(|(_, key)| key.clone()).collect()
    }
}

/// The key after another one, or the first.
pub(crate) fn key_after<K: Clone + Ord, V>(all: &BTreeMap<K, V>, after: Option<&K>) -> Option<K> {
    let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
    all.range::<K, _>((begin, Bound::Unbounded)).next().map(|(key, _)| key.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct At(Option<u64>);

    impl Deadline for At {
        fn deadline(&self) -> Option<Instant> {
            self.0.map(Instant)
        }
    }

    fn timed() -> Timed<u8, At> {
        let mut timed = Timed::default();
        for (key, at) in [(1, Some(30)), (2, None), (3, Some(10))] {
            timed.insert(key, At(at));
        }
        timed
    }

    #[test]
    fn the_first_deadline_follows_every_change() {
        let mut timed = timed();
        assert_eq!(timed.deadline(), Some(Instant(10)));
        timed.update(&2, |value| value.0 = Some(5));
        assert_eq!(timed.deadline(), Some(Instant(5)));
        timed.update(&2, |value| value.0 = None);
        timed.remove(&3);
        assert_eq!(timed.deadline(), Some(Instant(30)));
        timed.insert(1, At(None));
        assert_eq!(timed.deadline(), None);
        assert_eq!(timed.len(), 2);
    }

    #[test]
    fn the_due_come_in_order_of_their_deadlines() {
        let timed = timed();
        assert_eq!(timed.due(Instant(9)), [0u8; 0]);
        assert_eq!(timed.due(Instant(30)), [3, 1]);
    }
}

//! Values with a deadline each, so that the first deadline is known without a look at every value.
//!
//! Does not know what a deadline is for, nor the time.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::time::Instant;

/// Something that may have to be looked at again at a certain time.
pub(super) trait Deadline {
    /// That time, as things are now.
    fn deadline(&self) -> Option<Instant>;
}

/// A map whose values change their deadlines at any time.
#[derive(Debug)]
pub(super) struct Timed<K, V> {
    /// Each with the deadline under which it is in `due`.
    all: BTreeMap<K, (V, Option<Instant>)>,
    due: BTreeSet<(Instant, K)>,
    /// Values that were handed out to be changed since [`Timed::settle`].
    touched: Vec<K>,
}

impl<K: Ord + Clone, V: Deadline> Timed<K, V> {
    pub(super) const fn new() -> Self {
        Self { all: BTreeMap::new(), due: BTreeSet::new(), touched: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn contains_key(&self, key: &K) -> bool {
        self.all.contains_key(key)
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.all.get(key).map(|(value, _)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (value, _) = self.all.get_mut(key)?;
        self.touched.push(key.clone());
        Some(value)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.remove(&key);
        self.touched.push(key.clone());
        self.all.insert(key, (value, None));
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (value, due) = self.all.remove(key)?;
        if let Some(due) = due {
            self.due.remove(&(due, key.clone()));
        }
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.all.iter().map(|(key, (value, _))| (key, value))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.all.keys()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.all.values().map(|(value, _)| value)
    }

    /// Takes note of the deadlines of what was changed.
    pub(super) fn settle(&mut self) {
        while let Some(key) = self.touched.pop() {
            let Some((value, due)) = self.all.get_mut(&key) else { continue };
            let deadline = value.deadline();
            if *due == deadline {
                continue;
            }
            if let Some(before) = core::mem::replace(due, deadline) {
                self.due.remove(&(before, key.clone()));
            }
            if let Some(deadline) = deadline {
                self.due.insert((deadline, key));
            }
        }
        self.touched.shrink_to(TOUCHED_KEPT);
    }

    /// The first deadline of all, as of the last [`Timed::settle`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// What is due now, by its deadline.
    pub(super) fn due(&mut self, now: Instant) -> Vec<K> {
        self.settle();
        self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key.clone()).collect()
    }
}

/// Room for notes that is kept: a change of members touches everything.
const TOUCHED_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct At(Option<u64>);

    impl Deadline for At {
        fn deadline(&self) -> Option<Instant> {
            self.0.map(Instant)
        }
    }

    #[test]
    fn the_first_deadline_follows_every_change() {
        let mut all = Timed::new();
        for (key, at) in [(1, Some(30)), (2, Some(10)), (3, None)] {
            all.insert(key, At(at));
        }
        all.settle();
        assert_eq!(all.deadline(), Some(Instant(10)));
        all.get_mut(&2).unwrap().0 = None;
        all.get_mut(&3).unwrap().0 = Some(20);
        assert_eq!(all.due(Instant(30)), [3, 1], "by deadline");
        all.remove(&3);
        all.insert(1, At(Some(40)));
        all.settle();
        assert_eq!(all.deadline(), Some(Instant(40)));
        assert!(all.due(Instant(39)).is_empty());
        assert_eq!(all.due.len(), 1, "nothing is left of what was");
    }
}

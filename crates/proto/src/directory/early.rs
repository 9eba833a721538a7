//! What others tell of copies before the maker of the object has told of it.
//!
//! What an object is its maker says: which instance, and the bytes of a small one. As long as that is a member it tells every
//! owner; what another holder tells an owner before waits here, so that no holder can give an object out as that of a
//! maker who knows nothing of it. When the maker is gone, the first holder to tell is believed.

use alloc::{collections::BTreeMap, vec::Vec};

use super::accounts::Charge;
use crate::{
    id::{Instance, NodeId, ObjectId},
    limits::EARLY_MAX,
    members::Members,
    message::Announce,
    time::Instant,
};

/// What members have told.
type Told = Vec<(NodeId, Announce)>;

/// An announcement that waits until a time at most, with what its bytes cost the member that told it.
type Waiting = (Instant, Announce, Option<Charge>);

/// Announcements that wait for that of the maker.
#[derive(Debug, Default)]
pub(super) struct Early {
    all: BTreeMap<(Instance, NodeId), Waiting>,
    /// How many each member has told.
    by: BTreeMap<NodeId, usize>,
    /// When they are to be looked at: the first was told too long ago, or a maker is gone.
    due: Option<Instant>,
}

impl Early {
    /// Keeps what a member tells until its maker has told, until `until` at most; false if the member has told too much.
    pub(super) fn keep(
        &mut self,
        until: Instant,
        from: NodeId,
        announce: Announce,
        charge: Option<Charge>,
    ) -> bool {
        let key = (announce.instance, from);
        if let Some(before) = self.all.get_mut(&key) {
            *before = (until, announce, charge);
            return true;
        }
        let count = self.by.entry(from).or_default();
        if *count >= EARLY_MAX {
            return false;
        }
        *count += 1;
        self.all.insert(key, (until, announce, charge));
        self.due = Some(self.due.map_or(until, |due| due.min(until)));
        true
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.due
    }

    fn remove(&mut self, key: (Instance, NodeId)) -> Option<Announce> {
        let removed = self.all.remove(&key)?;
        if let Some(count) = self.by.get_mut(&key.1) {
            *count -= 1;
            if *count == 0 {
                self.by.remove(&key.1);
            }
        }
        Some(removed.1)
    }

    /// The maker has told of its object: who else has.
    pub(super) fn take(&mut self, id: &ObjectId, instance: Instance) -> Told {
        let all = (instance, NodeId(0))..=(instance, NodeId(u64::MAX));
        let its = self.all.range(all).filter(|(_, (_, announce, _))| announce.id == *id);
        let keys: Vec<(Instance, NodeId)> = its.map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| Some((key.1, self.remove(key)?))).collect()
    }

    /// The object was deleted before its maker told of it: who has something of it, of whichever instance.
    pub(super) fn take_all(&mut self, id: &ObjectId) -> Told {
        let its = self.all.iter().filter(|(_, (_, announce, _))| announce.id == *id);
        let keys: Vec<(Instance, NodeId)> = its.map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| Some((key.1, self.remove(key)?))).collect()
    }

    /// A holder has the copy no more.
    pub(super) fn withdraw(&mut self, from: NodeId, instance: Instance) {
        self.remove((instance, from));
    }

    /// What a member told is void.
    pub(super) fn forget_node(&mut self, node: NodeId) {
        let told = self.all.keys().filter(|(_, from)| *from == node);
        for key in told.copied().collect::<Vec<_>>() {
            self.remove(key);
        }
    }

    /// Members came or went: what others told of what those made that went is looked at then.
    pub(super) fn members_changed(&mut self, members: &Members, then: Instant) {
        let is_gone = |(instance, _): &(Instance, NodeId)| !members.contains(instance.node);
        if self.all.keys().any(is_gone) {
            self.due = Some(self.due.map_or(then, |due| due.min(then)));
        }
    }

    /// What others told of that whose makers are gone; and of that of which the makers have not told in all the time they had.
    pub(super) fn expire(&mut self, now: Instant, members: &Members) -> (Told, Told) {
        if self.due.is_none_or(|due| due > now) {
            return (Vec::new(), Vec::new());
        }
        let has_maker = |announce: &Announce| members.contains(announce.instance.node);
        let over = self.all.iter();
        let over = over.filter(|(_, (until, announce, _))| *until <= now || !has_maker(announce));
        let over: Vec<(Instance, NodeId)> = over.map(|(key, _)| *key).collect();
        let over = over.into_iter().filter_map(|key| Some((key.1, self.remove(key)?)));
        let (void, heard) = over.partition(|(_, announce)| has_maker(announce));
        self.due = self.all.values().map(|(until, ..)| *until).min();
        (heard, void)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{members::Member, message::Progress, meta::Meta};

    fn member(number: u64) -> Member {
        Member { id: NodeId(number), address: ([10, 0, 0, 1], 7420).into(), place: None }
    }

    fn announce(maker: u64, serial: u64) -> Announce {
        let (node, meta) = (NodeId(maker), Meta::bytes(1 << 20));
        let (progress, origin, claim) = (Progress::Complete, false, false);
        let id = ObjectId::Minted { node, serial };
        let (instance, lifetime) = (Instance { node, serial }, None);
        Announce { id, instance, meta, origin, progress, claim, lifetime }
    }

    #[test]
    fn it_waits_for_its_maker_or_for_its_end() {
        let mut members = Members::new(member(1));
        (2..=4).for_each(|number| assert!(members.insert(member(number))));
        let (mut early, until) = (Early::default(), Instant(100));
        for serial in 1..=2 {
            assert!(early.keep(until, NodeId(3), announce(2, serial), None));
        }
        let first = announce(2, 1);
        assert_eq!(early.take(&first.id, first.instance), [(NodeId(3), first.clone())]);
        assert_eq!(early.expire(Instant(50), &members), (Vec::new(), Vec::new()));
        members.remove(NodeId(2));
        early.members_changed(&members, Instant(50));
        let heard = Vec::from([(NodeId(3), announce(2, 2))]);
        assert_eq!(early.expire(Instant(50), &members), (heard, Vec::new()));
        assert_eq!(early.deadline(), None);
    }

    #[test]
    fn what_is_never_told_of_is_forgotten_and_one_member_tells_so_much_at_most() {
        let mut members = Members::new(member(1));
        (2..=4).for_each(|number| assert!(members.insert(member(number))));
        let (mut early, until) = (Early::default(), Instant(100));
        let most = EARLY_MAX as u64;
        for serial in 0..=most {
            let is_kept = early.keep(until, NodeId(3), announce(2, serial), None);
            assert_eq!(is_kept, serial < most);
        }
        assert!(early.keep(until, NodeId(4), announce(2, most), None));
        let last = announce(2, most);
        assert_eq!(early.take(&last.id, last.instance).len(), 1, "only of the other member");
        let (heard, void) = early.expire(until, &members);
        assert_eq!((heard.len(), void.len()), (0, EARLY_MAX));
        assert_eq!((early.all.len(), early.by.len(), early.deadline()), (0, 0, None));
    }
}

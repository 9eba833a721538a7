//! Accounts of what an owner stores for other members: directory entries and the bytes of small
//! objects. Also the number of recorded objects.
//!
//! Each member has an account, which is charged for what it announces. Dropping a [`Charge`] or an
//! [`EntryCharge`] refunds it, whether by a deletion, a loss, or another object of the name. Does
//! not know entries.

use alloc::{collections::BTreeMap, sync::Arc};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{
    id::NodeId,
    inline::Inline,
    limits::SHARE_OF_ONE,
    message::{Announce, Progress},
};

/// The accounts of all members at this owner.
#[derive(Debug)]
pub(super) struct Accounts {
    /// Limits for all members together: bytes and entries.
    most: u64,
    entries_most: u64,
    total: Arc<Account>,
    by: BTreeMap<NodeId, Arc<Account>>,
}

/// The account of one member, or the sum of all. Only one thread at a time changes the counts.
#[derive(Debug, Default)]
struct Account {
    bytes: AtomicU64,
    entries: AtomicU64,
    total: Option<Arc<Account>>,
}

impl Account {
    /// The account and, if it is one of a member, the sum.
    fn all(&self) -> impl Iterator<Item = &Self> {
        [Some(self), self.total.as_deref()].into_iter().flatten()
    }
}

/// The number of recorded objects, so that reports need not count the entries.
#[derive(Debug, Default)]
pub(super) struct RecordedObjects(Arc<()>);

/// One recorded object. Dropping it uncounts the object.
#[derive(Debug)]
pub(super) struct RecordedObject {
    _count: Arc<()>,
}

impl RecordedObjects {
    pub(super) fn len(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    pub(super) fn add(&self) -> RecordedObject {
        RecordedObject { _count: self.0.clone() }
    }
}

/// The charge for one entry.
#[derive(Debug)]
pub(super) struct EntryCharge(Arc<Account>);

impl Drop for EntryCharge {
    fn drop(&mut self) {
        self.0.all().for_each(|account| _ = account.entries.fetch_sub(1, Relaxed));
    }
}

/// The charge for the bytes of a small object.
#[derive(Debug)]
pub(super) struct Charge {
    bytes: u64,
    account: Arc<Account>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.all().for_each(|account| _ = account.bytes.fetch_sub(self.bytes, Relaxed));
    }
}

/// The bytes of a small object. Those of this node's own objects are in its store already, and are
/// not charged.
#[derive(Debug)]
pub(super) struct StoredInline {
    pub(super) bytes: Inline,
    _charge: Option<Charge>,
}

impl StoredInline {
    pub(super) const fn new(bytes: Inline, charge: Option<Charge>) -> Self {
        Self { bytes, _charge: charge }
    }
}

impl Accounts {
    /// Creates accounts with a limit of `most` bytes and `entries_most` entries.
    pub(super) fn new(most: u64, entries_most: u64) -> Self {
        Self { most, entries_most, total: Arc::default(), by: BTreeMap::new() }
    }

    /// Bytes in use, and the limit.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.total.bytes.load(Relaxed), self.most)
    }

    /// Whether there is capacity for `bytes` more bytes of a member.
    pub(super) fn has_room(&self, from: NodeId, bytes: u64) -> bool {
        let of_one = self.by.get(&from).map_or(0, |account| account.bytes.load(Relaxed));
        bytes <= (self.most / SHARE_OF_ONE).saturating_sub(of_one)
            && bytes <= self.most.saturating_sub(self.total.bytes.load(Relaxed))
    }

    /// Charges a member for bytes; `None` if there is no capacity for them.
    pub(super) fn charge(&mut self, from: NodeId, bytes: u64) -> Option<Charge> {
        if !self.has_room(from, bytes) {
            return None;
        }
        let account = self.account(from).clone();
        account.all().for_each(|account| _ = account.bytes.fetch_add(bytes, Relaxed));
        Some(Charge { bytes, account })
    }

    /// Charges a member for an entry; `None` if it has too many.
    pub(super) fn open(&mut self, from: NodeId) -> Option<EntryCharge> {
        let (most, all) = (self.entries_most, self.total.entries.load(Relaxed));
        let account = self.account(from);
        if all >= most || account.entries.load(Relaxed) >= most / SHARE_OF_ONE {
            return None;
        }
        Some(self.open_granted(from))
    }

    /// Charges a member for the entry of a name that was granted to a reduce, and therefore is not
    /// refused any more.
    pub(super) fn open_granted(&mut self, from: NodeId) -> EntryCharge {
        let account = self.account(from).clone();
        account.all().for_each(|account| _ = account.entries.fetch_add(1, Relaxed));
        EntryCharge(account)
    }

    fn account(&mut self, from: NodeId) -> &Arc<Account> {
        let total = Some(self.total.clone());
        let new = || Arc::new(Account { total, ..Account::default() });
        self.by.entry(from).or_insert_with(new)
    }

    /// Copies an announcement that is handled later: without its bytes if there is no capacity for
    /// them.
    pub(super) fn hold(&mut self, from: NodeId, announce: &Announce) -> (Announce, Option<Charge>) {
        let mut held = announce.clone();
        let mut charge = None;
        if let Some(bytes) = announce.progress.bytes() {
            charge = self.charge(from, bytes.len());
            if charge.is_none() {
                held.progress = match announce.progress {
                    Progress::Stored(_) => Progress::Stored(None),
                    _ => Progress::Complete,
                };
            }
        }
        (held, charge)
    }

    /// Removes empty accounts.
    pub(super) fn prune(&mut self) {
        self.by.retain(|_, account| Arc::strong_count(account) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no member exceeds its share, all together do not exceed the limit, and drops are
    /// refunded.
    #[test]
    fn a_charge_is_given_back_when_it_is_dropped() {
        let mut accounts = Accounts::new(100, 0);
        let [a, b, c] = [2, 3, 4].map(NodeId);
        let first = accounts.charge(a, 30).unwrap();
        let second = accounts.charge(a, 20).unwrap();
        assert!(accounts.charge(a, 1).is_none(), "one member gets at most half");
        let third = accounts.charge(b, 45).unwrap();
        assert!(accounts.charge(c, 6).is_none(), "only five bytes are left");
        assert!(accounts.charge(a, 0).is_some(), "zero bytes always fit");
        assert_eq!(accounts.bytes(), (95, 100));
        drop(first);
        drop(third);
        assert_eq!(accounts.bytes(), (20, 100));
        accounts.prune();
        assert_eq!(accounts.by.keys().copied().collect::<alloc::vec::Vec<_>>(), [a]);
        assert!(accounts.charge(a, 31).is_none(), "its second charge remains");
        drop(second);
        accounts.prune();
        assert!(accounts.by.is_empty());
        assert!(accounts.charge(c, 50).is_some());
    }

    #[test]
    fn a_member_has_half_of_all_entries() {
        let mut accounts = Accounts::new(0, 6);
        let [a, b, c] = [2, 3, 4].map(NodeId);
        let of = |accounts: &mut Accounts, node| -> alloc::vec::Vec<EntryCharge> {
            (0..9).map_while(|_| accounts.open(node)).collect()
        };
        let (first, second) = (of(&mut accounts, a), of(&mut accounts, b));
        assert_eq!((first.len(), second.len(), of(&mut accounts, c).len()), (3, 3, 0));
        drop(first);
        assert_eq!(of(&mut accounts, c).len(), 3);
        drop(second);
        accounts.prune();
        assert!(accounts.by.is_empty());
    }
}

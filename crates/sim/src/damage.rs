//! Damages bytes. For a while, blocks that a host sends fail their checksums, or all that it sends
//! of some objects has right checksums but another digest. Objects with a digest exist only in
//! clusters with damage.
//!
//! Receivers must never take the damaged bytes, must prefer other sources, and may report an object
//! as corrupt only if every holder sent damaged bytes.

mod checks;

use std::collections::{BTreeMap, BTreeSet};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId},
    meta::Digest,
    time::Instant,
};

use crate::{
    dice::Dice,
    payload::{Content, Tag},
    plan::{Act, Fault, MILLISECOND, Make, Plan, SECOND},
};

/// Content of a block that does not match its checksum.
const CORRUPT: Tag = Tag(u64::MAX - 1);

/// Content of a block that is wrong, but matches its checksum.
const WRONG: Tag = Tag(u64::MAX - 2);

/// Hosts that send damaged bytes, and what followed.
#[derive(Debug)]
pub(crate) struct Damage {
    /// Separate random numbers, so that damage does not change the other events of a seed.
    dice: Dice,
    /// The percentage of blocks that fail their checksums, by sender, and until when.
    blocks: BTreeMap<NodeId, (u64, Instant)>,
    /// The percentage of transfers of an object with a digest that are wrong, by sender, and until
    /// when.
    copies: BTreeMap<NodeId, (u64, Instant)>,
    /// Corrupt blocks that a receiver got from a sender, and when they became too many.
    counted: BTreeMap<(NodeId, NodeId), (u32, Option<Instant>)>,
    /// Receivers and senders of wrong bytes of an object.
    wrong: BTreeSet<(ObjectId, NodeId, NodeId)>,
    /// Transfers that failed: copy, receiver and sender.
    failed: BTreeSet<(Instance, NodeId, NodeId)>,
    /// Since when each copy is complete.
    complete: BTreeMap<(NodeId, Instance), Instant>,
}

impl Damage {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed.rotate_left(16)),
            blocks: BTreeMap::new(),
            copies: BTreeMap::new(),
            counted: BTreeMap::new(),
            wrong: BTreeSet::new(),
            failed: BTreeSet::new(),
            complete: BTreeMap::new(),
        }
    }

    fn is_hit(&mut self, now: Instant, all: impl Fn(&Self) -> Option<(u64, Instant)>) -> bool {
        all(self).is_some_and(|(percent, until)| now < until && self.dice.chance(percent))
    }
}

impl Plan {
    /// Adds damage, and digests of half of the objects.
    pub(crate) fn add_damage(&mut self, dice: &mut Dice) {
        let horizon = self.end.0 / 2;
        for (number, spec) in self.objects.iter_mut().enumerate() {
            if matches!(spec.make, Make::Put { .. }) && dice.chance(50) {
                let mut digest = [0; 32];
                digest[..8].copy_from_slice(&(number as u64).to_le_bytes());
                spec.meta = spec.meta.clone().with_digest(Digest(digest));
            }
        }
        for _ in 0..dice.between(1, 4) {
            let (percent, at) = (dice.pick(&[2, 20, 100]).unwrap_or(100), dice.below(64));
            let blocks = dice.chance(50);
            let fault = if blocks { Fault::Blocks { percent } } else { Fault::Copies { percent } };
            let time_ns = dice.between(50 * MILLISECOND, 5 * SECOND);
            self.add(dice.below(horizon * 3 / 2), Act::Fault { at, fault, time_ns });
        }
        self.is_damaged = true;
        self.acts.sort_by_key(|(at, _)| *at);
    }
}

impl Content {
    /// Whether a receiver drops the block, because it does not match its checksum.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.tags() == [CORRUPT]
    }

    /// Whether only the digest of the whole object reveals that the block is wrong.
    pub(crate) fn is_wrong(&self) -> bool {
        self.tags() == [WRONG]
    }
}

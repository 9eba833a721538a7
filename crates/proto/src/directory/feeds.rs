//! Which holder of one object feeds which: the tree that a broadcast has become.
//!
//! Does not know why a holder was chosen.

use alloc::{collections::BTreeMap, vec::Vec};

use super::{
    live::{Holder, Live},
    world::World,
};
use crate::{
    id::{NodeId, ObjectId},
    members::Members,
    message::Message,
    place::Place,
    reduce::cost::Link,
    time::Instant,
};

/// Where a holder's bytes come from, as a node sees it that wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lineage {
    /// As [`Live::depth`].
    pub(super) depth: Option<u32>,
    /// Whether they come from the asker itself, or go round in a circle.
    pub(super) is_behind: bool,
}

/// The part of a broadcast that a holder belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Branch {
    /// It needs no sender, or has none.
    None,
    /// That which begins with this receiver, next to a complete or growing original copy.
    Of(NodeId),
    /// Its bytes come from a node that has no copy, or go round in a circle.
    Lost,
}

/// Which node a holder feeds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fed {
    /// How many, in thousandths: one that is slow takes less of its sender's link.
    pub(super) thousandths: u64,
    /// The furthest of them that has begun only now, and how far it is.
    pub(super) far: Option<(u8, NodeId)>,
}

impl Holder {
    /// `node` is gone, or will not feed it: the sender for which it was to step in goes on. A receiver of a node that has dropped
    /// its copy keeps it as its sender until it tells of another: it may ask there when there is a new one.
    pub(super) fn lose_source(&mut self, node: NodeId) {
        if (self.moving_from.as_deref() == Some(&node) || self.source == Some(node))
            && let Some(sender) = self.moving_from.take()
        {
            self.source = Some(*sender);
        }
    }
}

impl Live {
    /// `from` has told how it receives. Those who are to be fed by it instead of their senders are told so, or stay.
    pub(super) fn move_receivers(&mut self, world: &mut World<'_>, from: NodeId, id: &ObjectId) {
        let (now, link) = (world.now, world.link);
        let instance = self.instance;
        let (feeds, since) = (self.depth(from).is_some(), self.movable_since(now, link));
        let is_moving = |holder: &Holder| {
            !holder.complete && holder.source == Some(from) && holder.moving_from.is_some()
        };
        for (node, holder) in self.holders.iter_mut().filter(|(_, holder)| is_moving(holder)) {
            if feeds && holder.began.is_none_or(|began| began >= since) {
                (holder.moving_from, holder.located) = (None, Some(now));
                let id = id.clone();
                world.mail.push((*node, Message::Redirect { id, instance, source: from }));
            } else {
                holder.lose_source(from);
            }
        }
    }

    /// No receiver waits any more for `feeder` to begin.
    pub(super) fn cancel_moves(&mut self, feeder: NodeId) {
        for (_, holder) in self.holders.iter_mut() {
            if holder.source == Some(feeder) && holder.moving_from.is_some() {
                holder.lose_source(feeder);
            }
        }
    }

    /// Receivers that began before this, a quarter of a transfer ago, have too much to wait for one who has nothing.
    pub(super) fn movable_since(&self, now: Instant, link: Link) -> Instant {
        let quarter_ns = link.transfer_ns(self.meta.size) / 4;
        now.before(u64::try_from(quarter_ns).unwrap_or(u64::MAX))
    }

    /// Relays between `node` and a copy that needs none; none if no node feeds it, or it is fed in a circle.
    pub(super) fn depth(&self, node: NodeId) -> Option<u32> {
        let mut at = node;
        for depth in 0..=self.holders.len() as u32 {
            let holder = self.holders.get(&at)?;
            match holder.source {
                _ if holder.complete => return Some(depth),
                None => return holder.origin.then_some(depth),
                Some(source) => at = source,
            }
        }
        None
    }

    /// Whether `node` gets its bytes, directly or not, from `from`.
    pub(super) fn depends(&self, node: NodeId, from: NodeId) -> bool {
        let mut at = node;
        for _ in 0..=self.holders.len() {
            if at == from {
                return true;
            }
            match self.holders.get(&at) {
                Some(Holder { complete: false, source: Some(source), .. }) => at = *source,
                _ => return false,
            }
        }
        true
    }

    /// How many `node` feeds.
    pub(super) fn load(&self, node: NodeId) -> u32 {
        let is_fed = |holder: &&Holder| !holder.complete && holder.source == Some(node);
        self.holders.values().filter(is_fed).count() as u32
    }

    /// Which node each holder feeds that feeds another than `asker`, which asks for another sender.
    pub(super) fn fed(
        &self,
        asker: NodeId,
        movable_since: Option<Instant>,
        members: &Members,
        slowness: impl Fn(NodeId, &Holder) -> u64,
    ) -> BTreeMap<NodeId, Fed> {
        let mut all: BTreeMap<NodeId, Fed> = BTreeMap::new();
        let receivers =
            self.holders.iter().filter(|(node, holder)| !holder.complete && **node != asker);
        for (node, holder) in receivers {
            let Some(source) = holder.source else { continue };
            let fed = all.entry(source).or_default();
            fed.thousandths += 1000 / slowness(*node, holder).max(1);
            let is_new =
                movable_since.is_some_and(|since| holder.began.is_none_or(|began| began >= since));
            let distance = members.distance(source, *node);
            if is_new && fed.far.map_or(0, |(furthest, _)| furthest) < distance {
                fed.far = Some((distance, *node));
            }
        }
        all
    }

    /// How many transfers leave each group of places, but for what `asker` receives, which asks for another sender.
    pub(super) fn crossings(&self, asker: NodeId, members: &Members) -> BTreeMap<Place, u64> {
        let mut all = BTreeMap::new();
        if !members.has_places() {
            return all;
        }
        for (node, holder) in self.holders.iter().filter(|(node, _)| **node != asker) {
            let source = holder.source.filter(|_| !holder.complete);
            let from = source.and_then(|source| members.place(source));
            let Some((from, to)) = from.zip(members.place(*node)) else { continue };
            for level in from.parts_at(&to).map_or(0..0, |level| level..from.depth()) {
                *all.entry(from.outer(level)).or_default() += 1;
            }
        }
        all
    }

    /// [`Live::depth`] and [`Live::depends`] of all holders.
    pub(super) fn lineages(&self, asker: NodeId) -> BTreeMap<NodeId, Lineage> {
        const CIRCLE: Lineage = Lineage { depth: None, is_behind: true };
        let root = |holder: Option<&Holder>| {
            let is_root = holder.is_some_and(|holder| holder.complete || holder.origin);
            Lineage { depth: is_root.then_some(0), is_behind: false }
        };
        let fed = |_, sender: Lineage| {
            let depth = sender.depth.map(|depth| depth + 1);
            Lineage { depth, ..sender }
        };
        self.traced(BTreeMap::from([(asker, CIRCLE)]), CIRCLE, root, fed)
    }

    /// The branch of each holder.
    pub(super) fn branches(&self) -> BTreeMap<NodeId, Branch> {
        let root = |holder: Option<&Holder>| holder.map_or(Branch::Lost, |_| Branch::None);
        let fed = |node, sender| match sender {
            Branch::None => Branch::Of(node),
            other => other,
        };
        self.traced(BTreeMap::new(), Branch::Lost, root, fed)
    }

    /// Something of all holders that follows from the same of each one's sender; each is looked at once: a thousand receivers
    /// in a chain would else take a thousand steps for each, at each question.
    ///
    /// `known`: of some. `circle`: of those that are fed in a circle. `root`: of one that no node feeds, or of a sender that is
    /// no holder. `fed`: of a holder, from that of its sender.
    fn traced<T: Copy>(
        &self,
        mut known: BTreeMap<NodeId, T>,
        circle: T,
        root: impl Fn(Option<&Holder>) -> T,
        fed: impl Fn(NodeId, T) -> T,
    ) -> BTreeMap<NodeId, T> {
        let mut path = Vec::new();
        for start in self.holders.keys() {
            let mut at = *start;
            let mut found = loop {
                if let Some(found) = known.get(&at) {
                    break *found;
                }
                // A holder that is met again before it is known lies on a circle.
                known.insert(at, circle);
                match self.holders.get(&at) {
                    Some(Holder { complete: false, source: Some(source), .. }) => {
                        path.push(at);
                        at = *source;
                    }
                    end => {
                        let found = root(end);
                        known.insert(at, found);
                        break found;
                    }
                }
            };
            for node in path.drain(..).rev() {
                found = fed(node, found);
                known.insert(node, found);
            }
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{id::Instance, meta::Meta};

    fn holder((complete, origin, source): (bool, bool, Option<u64>)) -> Holder {
        Holder { complete, origin, source: source.map(NodeId), ..Holder::default() }
    }

    proptest! {
        #[test]
        fn all_at_once_say_what_each_says_alone(
            holders in prop::collection::btree_map(
                0..12u64,
                (prop::bool::weighted(0.1), prop::bool::weighted(0.2), prop::option::weighted(0.8, 0..12u64)),
                0..12,
            ),
            asker in 0..12u64,
        ) {
            let holders = holders.into_iter().map(|(node, facts)| (NodeId(node), holder(facts)));
            let instance = Instance { node: NodeId(0), serial: 1 };
            let mut live = Live::new(instance, Meta::bytes(1 << 20), Instant::default(), None);
            live.holders = holders.collect();
            let asker = NodeId(asker);
            let lineages = live.lineages(asker);
            for node in live.holders.keys().filter(|node| **node != asker) {
                let Lineage { depth, is_behind } = lineages[node];
                prop_assert_eq!(is_behind, live.depends(*node, asker));
                if !is_behind {
                    prop_assert_eq!(depth, live.depth(*node));
                }
            }
        }
    }
}

//! The living instance of an object and its holders.
//!
//! Knows which holder feeds which, and so which may feed an asker; does not know messages or time.

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};

use litemap::LiteMap;

use super::{
    Mail,
    accounts::{EntryCharge, Kept},
    feeds::{Fed, Lineage},
    paces::Reports,
    speeds::Speeds,
};
use crate::{
    broadcast::{Candidate, Choice, choose_source},
    error::Error,
    id::{Instance, NodeId, ObjectId},
    lifetime::Terms,
    limits::INLINE_BYTES_MAX,
    members::Members,
    message::{Found, Holding, Message, Source},
    meta::Meta,
    place::Place,
    planted::{self, Bug},
    reduce::cost::Link,
    time::Instant,
};

#[derive(Debug)]
pub(super) struct Live {
    pub(super) instance: Instance,
    pub(super) meta: Meta,
    /// The bytes of a small object, if there is room for them here.
    pub(super) small: Option<Box<Kept>>,
    /// Holders were asked for the bytes that are not here.
    pub(super) is_asked: bool,
    /// Whether others than its maker, who do not tell of it, may have all of an attempt that comes to nothing.
    pub(super) by_parts: bool,
    pub(super) holders: LiteMap<NodeId, Holder>,
    /// How long it lives, if not until it is deleted.
    pub(super) terms: Option<Box<Terms>>,
    /// What it counts for at this owner; none if this node made it.
    _entry: Option<EntryCharge>,
    /// When this owner first heard of it.
    pub(super) since: Instant,
    /// The last node that left without another one for its original.
    pub(super) abandoned_by: Option<Box<NodeId>>,
}

#[derive(Debug, Default)]
pub(super) struct Holder {
    pub(super) complete: bool,
    /// Pinned there: put, reduced or adopted.
    pub(super) origin: bool,
    /// Who feeds it while it is partial.
    pub(super) source: Option<NodeId>,
    /// When it last told of itself, and when this owner last sent it to a sender.
    pub(super) told: Option<Instant>,
    pub(super) located: Option<Instant>,
    /// When it first told that it receives.
    pub(super) began: Option<Instant>,
    /// Who feeds it until `source` has begun to receive; then it is told.
    pub(super) moving_from: Option<Box<NodeId>>,
    /// How fast it last reported to receive.
    pub(super) reports: Option<Box<Reports>>,
}

impl Live {
    /// An object that no node holds yet.
    pub(super) fn new(
        instance: Instance,
        meta: Meta,
        since: Instant,
        entry: Option<EntryCharge>,
    ) -> Self {
        // Most objects have one holder for all their lives.
        let holders = LiteMap::with_capacity(1);
        Self {
            instance,
            meta,
            small: None,
            is_asked: false,
            by_parts: false,
            holders,
            terms: None,
            _entry: entry,
            since,
            abandoned_by: None,
        }
    }

    /// Removes a holder; no receiver waits for it to step in any more. False if it was none.
    pub(super) fn remove_holder(&mut self, node: NodeId) -> bool {
        let was_holder = self.holders.remove(&node).is_some();
        if was_holder {
            // Of a small object it alone may have been asked for the bytes.
            self.is_asked &= node != self.instance.node;
            for (_, holder) in self.holders.iter_mut() {
                holder.lose_source(node);
            }
        }
        was_holder
    }

    /// Every holder is to drop it; readers who wait are told why, or wait on if there is no error.
    pub(super) fn drop_copies(&self, id: &ObjectId, error: Option<&Error>, mail: &mut Mail) {
        self.tell_holders(mail, || {
            let (id, instance, error) = (id.clone(), self.instance, error.cloned());
            Message::Drop { id, instance, error }
        });
    }

    /// Tells every holder of a part to drop it: no node has the rest.
    pub(super) fn strand_copies(&self, id: &ObjectId, error: &Error, mail: &mut Mail) {
        self.tell_holders(mail, || {
            let (id, instance, error) = (id.clone(), self.instance, error.clone());
            Message::Stranded { id, instance, error }
        });
    }

    fn tell_holders(&self, mail: &mut Mail, message: impl Fn() -> Message) {
        mail.extend(self.holders.keys().map(|holder| (*holder, message())));
    }

    /// All holders, by node.
    pub(super) fn holdings(&self) -> Vec<Holding> {
        let holding =
            |(node, holder): (&NodeId, &Holder)| Holding { node: *node, complete: holder.complete };
        self.holders.iter().map(holding).collect()
    }

    /// Whether this is a small object of which only the holders have the bytes.
    pub(super) const fn lacks_bytes(&self) -> bool {
        self.small.is_none() && self.meta.size <= INLINE_BYTES_MAX
    }

    /// Asks for the bytes of a small object that are not here, unless that was done: its maker, or if that has none, all that
    /// hold it. What they tell answers those who wait. Returns whether the bytes are to come.
    pub(super) fn seek_bytes(&mut self, id: &ObjectId, mail: &mut Mail) -> bool {
        if !self.lacks_bytes() || self.is_asked {
            return self.is_asked;
        }
        let maker = self.instance.node;
        let whole = self.holders.iter().filter(|(_, holder)| holder.complete);
        let mut asked: Vec<NodeId> = whole.map(|(node, _)| *node).collect();
        if asked.contains(&maker) {
            asked = Vec::from([maker]);
        }
        self.is_asked = !asked.is_empty();
        let doubted = || Message::Doubted { id: id.clone(), instance: self.instance };
        mail.extend(asked.into_iter().map(|holder| (holder, doubted())));
        self.is_asked
    }

    /// Whether a copy is known that is pinned where it is.
    pub(super) fn has_original(&self) -> bool {
        self.holders.values().any(|holder| holder.origin)
    }

    /// Whether all bytes are somewhere.
    pub(super) fn is_complete(&self) -> bool {
        self.small.is_some() || self.holders.values().any(|holder| holder.complete)
    }

    /// Whether some copy is complete, or will be; the bytes of a small object are here, also when its other holders are gone.
    pub(super) fn is_fed(&self) -> bool {
        self.small.is_some() || self.holders.keys().any(|node| self.depth(*node).is_some())
    }

    /// Whether what a holder has is given to others: not if it makes a part itself.
    fn is_readable(&self, holder: &Holder) -> bool {
        !self.by_parts || holder.told.is_some()
    }

    /// `movable_since`: see [`Live::movable_since`]; none moves no receiver.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn choose(
        &self,
        now: Instant,
        asker: NodeId,
        bytes: u64,
        avoid: &[NodeId],
        movable_since: Option<Instant>,
        members: &Members,
        link: Link,
        speeds: &Speeds,
    ) -> Option<Choice> {
        let others = self.other_branches(now);
        let pace = |node: NodeId, holder: &Holder| {
            self.pace_of(now, (node, holder), asker, others, speeds)
        };
        let slowness = |node: NodeId, holder: &Holder| {
            if speeds.is_stalled(now, node) {
                // What is sent to a host that is silent takes nothing of its sender's link.
                return u64::MAX;
            }
            self.received_slowness(now, (node, holder), asker, others, speeds)
        };
        let lineages = self.lineages(asker);
        let fed = self.fed(asker, movable_since, members, slowness);
        let crossings = self.crossings(asker, members);
        let candidates: Vec<Candidate> = self
            .holders
            .iter()
            .filter(|(node, holder)| {
                **node != asker && members.contains(**node) && self.is_readable(holder)
            })
            .filter_map(|(node, holder)| {
                let lineage = *lineages.get(node)?;
                let Lineage { depth, is_behind: false } = as_planted(lineage) else { return None };
                let Fed { thousandths, far: feeds_far } =
                    fed.get(node).copied().unwrap_or_default();
                let (node, pace) = (*node, pace(*node, holder));
                let (depth, complete, origin) = (depth?, holder.complete, holder.origin);
                let (avoided, distance) = (avoid.contains(&node), members.distance(node, asker));
                let feeds_far = feeds_far.filter(|(far, _)| *far > distance).map(|(_, node)| node);
                let load =
                    ((thousandths + 500) / 1000).max(crowd(&crossings, node, asker, members));
                let load = u32::try_from(load).unwrap_or(u32::MAX);
                Some(Candidate {
                    node,
                    depth,
                    load,
                    complete,
                    origin,
                    avoided,
                    distance,
                    feeds_far,
                    pace,
                    busy_until: speeds.busy_until(node),
                })
            })
            .collect();
        choose_source(&candidates, bytes, link)
    }

    /// Where an asker takes the object from; notes which holder feeds which from then on.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn assign(
        &mut self,
        now: Instant,
        asker: NodeId,
        id: &ObjectId,
        avoid: &[NodeId],
        members: &Members,
        link: Link,
        speeds: &mut Speeds,
    ) -> Option<Source> {
        if let Some(Kept { bytes, .. }) = self.small.as_deref() {
            return Some(Source::Inline(bytes.clone()));
        }
        if self.lacks_bytes() {
            return None;
        }
        // An asker that asks again may be sent to another sender than the receivers that were to follow it.
        self.cancel_moves(asker);
        // Only the first owner knows which holder feeds which at present; and a holder that feeds one already would feed two.
        // A receiver is moved to one that stands nearer to its sender: not where all stand side by side.
        let is_feeding = || self.holders.values().any(|holder| holder.source == Some(asker));
        let can_move =
            members.has_places() && !is_feeding() && members.owners(id).first == members.me();
        let link = speeds.link_of(asker, link);
        let since = can_move.then(|| self.movable_since(now, link));
        let size = self.meta.size;
        let Choice { node, reason, takes_over, .. } =
            self.choose(now, asker, size, avoid, since, members, link, speeds)?;
        speeds.assigned(now, node, u64::try_from(link.transfer_ns(size)).unwrap_or(u64::MAX));
        let before = Holder { reports: None, ..self.holders.remove(&asker).unwrap_or_default() };
        let (complete, origin, source, located) = (false, false, Some(node), Some(now));
        let moving_from = None;
        let holder = Holder { complete, origin, source, located, moving_from, ..before };
        self.holders.insert(asker, holder);
        if let Some(moved) = takes_over.and_then(|receiver| self.holders.get_mut(&receiver)) {
            let before = moved.source.map(Box::new);
            moved.moving_from = moved.moving_from.take().or(before);
            moved.source = Some(asker);
        }
        Some(Source::Holder { node, reason })
    }

    /// What a watcher is told: itself as the holder if it is one, else the best copy to fold at.
    /// Of a small object nothing before its bytes are here.
    pub(super) fn found(&self, watcher: NodeId, members: &Members) -> Option<Found> {
        if self.lacks_bytes() {
            return None;
        }
        let rank = |(node, holder): &(&NodeId, &Holder)| {
            let is_leaving = members.is_leaving(**node);
            let (is_other, is_partial) = (**node != watcher, !holder.complete);
            (is_leaving, is_other, is_partial, !holder.origin, self.load(**node), **node)
        };
        let fed =
            |(node, holder): &(&NodeId, &Holder)| self.is_foldable_at(**node, holder, members);
        let best = self.holders.iter().filter(fed).min_by_key(rank);
        // Small bytes come with the answer, whichever nodes hold them besides.
        let inline = self.small.as_ref().map(|small| small.bytes.clone());
        let holder = best.map(|(node, _)| *node).or(inline.as_ref().map(|_| watcher))?;
        let (instance, meta) = (self.instance, self.meta.clone());
        let complete = self.is_complete();
        Some(Found { instance, meta, holder, inline, complete })
    }

    /// Whether a member that stays holds it, so that a reduce can be told to fold it there.
    pub(super) fn is_at_a_node_that_stays(&self, members: &Members) -> bool {
        let stays = |(node, holder): (&NodeId, &Holder)| {
            !members.is_leaving(*node) && self.is_foldable_at(*node, holder, members)
        };
        self.holders.iter().any(stays)
    }

    fn is_foldable_at(&self, node: NodeId, holder: &Holder, members: &Members) -> bool {
        members.contains(node) && self.depth(node).is_some() && self.is_readable(holder)
    }
}

/// How many transfers already share each of the links that lead from a holder's groups to an asker, for each that such a
/// link carries at full rate: the most crowded of them counts.
fn crowd(
    crossings: &BTreeMap<Place, u64>,
    holder: NodeId,
    asker: NodeId,
    members: &Members,
) -> u64 {
    let places = members.place(holder).zip(members.place(asker));
    let Some((from, to)) = places.filter(|_| !crossings.is_empty()) else { return 0 };
    let left = from.parts_at(&to).map_or(0..0, |level| level..from.depth());
    let shared = left.map(|level| {
        crossings.get(&from.outer(level)).map_or(0, |count| count / from.carries(level))
    });
    shared.max().unwrap_or(0)
}

/// Where a holder's bytes come from, unless it is a mistake that a test wants.
fn as_planted(lineage: Lineage) -> Lineage {
    if planted::has(Bug::NamesDescendants) {
        Lineage { depth: lineage.depth.or(Some(0)), is_behind: false }
    } else {
        lineage
    }
}

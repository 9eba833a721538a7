//! What the directory knows of one object: the living instance and its holders, or why it is gone; who waits.
//!
//! Knows who feeds whom, and so who may feed an asker; does not know messages in or time.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use litemap::LiteMap;

use super::{
    Mail,
    feeds::{Fed, Lineage},
    paces::{Reports, Speeds},
};
use crate::{
    broadcast::{Candidate, Choice, Pace, choose_source},
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    inline::Inline,
    lifetime::Terms,
    limits::{BURIED_MAX, REMEMBERED_WORDS_BYTES},
    members::Members,
    message::{Found, Holding, Message, Source},
    meta::Meta,
    planted::{self, Bug},
    reduce::cost::Link,
    time::Instant,
};

/// One of perhaps millions, most of which are there and asked for by nobody: what few have is boxed.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) live: Option<Live>,
    pub(super) gone: Option<Box<Tombstone>>,
    /// What the name was before it was put again, and until when that is remembered.
    buried: Option<Box<Buried>>,
    asking: Option<Box<Asking>>,
    /// What the name was when its last copy was lost, and until when that is remembered: its holder may come back, and is
    /// to hear of a deletion meanwhile.
    pub(super) lost: Option<Box<(Instance, Instant)>>,
    /// The reduce that the name is kept for.
    pub(super) reserved: Option<Instance>,
    /// Since when no copy is known that is complete, or will be.
    pub(super) orphan_since: Option<Instant>,
    /// Until when it is kept although others own it.
    pub(super) kept_until: Instant,
    /// The number of the last change of members that it knows.
    pub(super) knows: u32,
}

/// By instance, until when it is remembered.
#[derive(Debug, Default)]
struct Buried(BTreeMap<Instance, Instant>);

/// Who is to hear of an object.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// Askers without a sender, in order of their questions, with those that failed them.
    pub(super) waiters: Vec<(NodeId, Vec<NodeId>)>,
    pub(super) watchers: BTreeSet<NodeId>,
    /// Who wants to know of the next change of holders.
    pub(super) locators: Vec<Locator>,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) instance: Instance,
    pub(super) meta: Meta,
    pub(super) inline: Option<Inline>,
    /// Whether others than its maker, who do not tell of it, may have all of an attempt that comes to nothing.
    pub(super) by_parts: bool,
    pub(super) holders: LiteMap<NodeId, Holder>,
    /// How long it lives, if not until it is deleted.
    pub(super) terms: Option<Box<Terms>>,
    /// When this owner first heard of it.
    pub(super) since: Instant,
    /// The last node that left without another one for its original.
    pub(super) abandoned_by: Option<NodeId>,
}

#[derive(Debug, Default)]
pub(super) struct Holder {
    pub(super) complete: bool,
    /// Pinned there: put, reduced or adopted.
    pub(super) origin: bool,
    /// Who feeds it while it is partial.
    pub(super) source: Option<NodeId>,
    /// When it last told of itself, and when it was last sent to somebody.
    pub(super) told: Option<Instant>,
    pub(super) located: Option<Instant>,
    /// When it first told that it receives.
    pub(super) began: Option<Instant>,
    /// Who feeds it until `source` has begun to receive; then it is told.
    pub(super) moving_from: Option<NodeId>,
    /// How fast it last reported to receive.
    pub(super) reports: Option<Box<Reports>>,
}

/// One of as many as are remembered: what few have is boxed.
#[derive(Debug)]
pub(super) struct Tombstone {
    pub(super) instances: Vec<Instance>,
    /// Why it is gone; none if it was deleted itself.
    reason: Option<Box<Error>>,
    pub(super) until: Instant,
    /// Copies whose holders have not said that they dropped them.
    pub(super) dropping: BTreeSet<(NodeId, Instance)>,
    /// Who is told when they have.
    pub(super) askers: Vec<(NodeId, RequestId)>,
    /// Owners who know of it from here, or told of it.
    pub(super) known_to: Vec<NodeId>,
}

/// A question for all holders.
#[derive(Debug)]
pub(super) struct Locator {
    pub(super) node: NodeId,
    pub(super) request: RequestId,
    /// What the asker knows already; none if it is to be answered at once.
    pub(super) known: Option<Vec<Holding>>,
}

impl Locator {
    pub(super) fn is(&self, node: NodeId, request: RequestId) -> bool {
        (self.node, self.request) == (node, request)
    }
}

impl Tombstone {
    /// Of instances that are gone for a reason, until when that is remembered.
    pub(super) fn new(
        id: &ObjectId,
        mut instances: Vec<Instance>,
        error: Error,
        until: Instant,
    ) -> Self {
        instances.sort_unstable();
        instances.dedup();
        if instances.len() > BURIED_MAX {
            // The numbers of a maker only grow.
            instances.sort_unstable_by_key(|instance| (instance.serial, instance.node));
            instances.drain(..instances.len() - BURIED_MAX);
        }
        instances.shrink_to_fit();
        // A result ends with the deletion of an input, which is to be named.
        let is_deleted = matches!(&error, Error::ObjectDeleted { id: deleted } if deleted == id);
        let reason = (!is_deleted).then(|| Box::new(error.shortened(REMEMBERED_WORDS_BYTES)));
        let (dropping, askers, known_to) = (BTreeSet::new(), Vec::new(), Vec::new());
        Self { instances, reason, until, dropping, askers, known_to }
    }

    /// Why `id`, which this is of, is gone.
    pub(super) fn error(&self, id: &ObjectId) -> Error {
        let reason = self.reason.as_deref();
        reason.cloned().unwrap_or_else(|| Error::ObjectDeleted { id: id.clone() })
    }

    /// Tells those owners that have not heard of it from here, and did not tell of it.
    pub(super) fn tell(
        &mut self,
        id: &ObjectId,
        owners: impl Iterator<Item = NodeId>,
        mail: &mut Mail,
    ) {
        // Without an instance it would be taken for the end of whatever has the name there.
        let is_clear = id.minter().is_some() || !self.instances.is_empty();
        for owner in owners.filter(|_| is_clear) {
            if !self.known_to.contains(&owner) {
                self.known_to.push(owner);
                let last = self.instances.len().saturating_sub(BURIED_MAX);
                let (instances, error) = (self.instances[last..].to_vec(), Some(self.error(id)));
                mail.push((owner, Message::Remember { id: id.clone(), instances, error }));
            }
        }
    }

    /// Repeats what is to be dropped: a holder that did not take this node for an owner has not listened.
    pub(super) fn drop_again(&self, id: &ObjectId, mail: &mut Mail) {
        for (holder, instance) in &self.dropping {
            let (id, instance, error) = (id.clone(), *instance, Some(self.error(id)));
            mail.push((*holder, Message::Drop { id, instance, error }));
        }
    }

    /// Whether every holder has dropped it, or is gone.
    pub(super) fn is_settled(&self) -> bool {
        self.dropping.is_empty()
    }

    /// Answers those who deleted the object, when no copy is left that somebody could be given.
    pub(super) fn answer(&mut self, id: &ObjectId, mail: &mut Mail) {
        if self.is_settled() {
            // A tree that has become empty keeps its root.
            self.dropping = BTreeSet::new();
            for (node, request) in core::mem::take(&mut self.askers) {
                mail.push((node, Message::Deleted { id: id.clone(), request }));
            }
        }
    }
}

impl Entry {
    /// One of which nothing is known but the changes of members so far.
    pub(super) fn new(knows: u32) -> Self {
        Self { knows, ..Self::default() }
    }

    /// Whether a copy is known that is complete, or will be.
    pub(super) fn is_alive(&self) -> bool {
        self.live.is_some() && !self.is_lost()
    }

    /// Whether what it was can't be completed any more, so that another instance may take its place.
    pub(super) fn is_lost(&self) -> bool {
        // A name that is kept for a reduce is no orphan, though nobody has what it was before.
        let is_void = |live: &Live| live.inline.is_none() && live.holders.is_empty();
        self.orphan_since.is_some() || self.live.as_ref().is_some_and(is_void)
    }

    /// Whether this node did not own it for a while, and may have missed what became of its name.
    pub(super) fn is_doubtful(&self) -> bool {
        self.kept_until != Instant::default()
    }

    /// The node that made the object, or said that it will.
    pub(super) fn maker(&self) -> Option<NodeId> {
        self.live.as_ref().map(|live| live.instance).or(self.reserved).map(|instance| instance.node)
    }

    /// Makes a name that was deleted free for another instance.
    pub(super) fn reuse(&mut self, now: Instant, id: &ObjectId, mail: &mut Mail) {
        let Some(mut gone) = self.gone.take() else { return };
        // The name has a new owner: whoever deleted the old object need not wait for its last copies.
        gone.dropping.clear();
        gone.answer(id, mail);
        self.bury(now, &gone.instances, gone.until);
    }

    /// Remembers what the name was before; what is over by `now` is forgotten.
    pub(super) fn bury(&mut self, now: Instant, instances: &[Instance], until: Instant) {
        let mut buried = self.buried.take().unwrap_or_default();
        buried.0.retain(|_, until| *until > now);
        buried.0.extend(instances.iter().map(|instance| (*instance, until)));
        while buried.0.len() > BURIED_MAX {
            let first = buried.0.iter().min_by_key(|(_, until)| **until).map(|(first, _)| *first);
            let Some(first) = first else { break };
            buried.0.remove(&first);
        }
        self.buried = Some(buried).filter(|buried| !buried.0.is_empty());
    }

    /// Whether the name was this before, and is to be remembered for it.
    pub(super) fn is_buried(&self, now: Instant, instance: &Instance) -> bool {
        let until = self.buried.as_ref().and_then(|buried| buried.0.get(instance));
        until.is_some_and(|until| *until > now)
    }

    /// What the name was before, as far as it is to be remembered.
    pub(super) fn buried(&self, now: Instant) -> impl Iterator<Item = Instance> {
        let all = self.buried.iter().flat_map(|buried| buried.0.iter());
        all.filter(move |(_, until)| **until > now).map(|(instance, _)| *instance)
    }

    /// Forgets what was to be remembered until `then`.
    pub(super) fn forget(&mut self, then: Instant) {
        self.gone.take_if(|gone| gone.until <= then);
        self.lost.take_if(|lost| lost.1 <= then);
        self.bury(then, &[], then);
    }

    /// Whether nothing is known of it and nobody asks.
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_none()
            && self.gone.is_none()
            && self.asking.is_none()
            && self.lost.is_none()
            && self.buried.is_none()
            && self.reserved.is_none()
            && self.orphan_since.is_none()
    }

    /// Whether nothing is known of it, and it is there because a node asks.
    pub(super) fn is_only_asked_for_by(&self, node: NodeId) -> bool {
        let asks = |asking: &Asking| {
            asking.watchers.contains(&node)
                || asking.waiters.iter().any(|(asker, _)| *asker == node)
                || asking.locators.iter().any(|locator| locator.node == node)
        };
        let is_known = self.live.is_some() || self.gone.is_some() || self.reserved.is_some();
        !is_known && self.asking().is_some_and(asks)
    }

    /// Who asks, if anybody does or did.
    pub(super) fn asking(&self) -> Option<&Asking> {
        self.asking.as_deref()
    }

    /// Who asks; there may be nobody.
    pub(super) fn asking_mut(&mut self) -> &mut Asking {
        self.asking.get_or_insert_default()
    }

    /// Takes back questions; the memory of the last goes too.
    pub(super) fn take_back(&mut self, forget: impl FnOnce(&mut Asking)) {
        if let Some(asking) = &mut self.asking {
            forget(asking);
        }
        self.asking.take_if(|asking| asking.is_empty());
    }

    /// Answers those to whom the holders are news.
    pub(super) fn answer_locators(&mut self, id: &ObjectId, mail: &mut Mail) {
        let Some(asking) = &mut self.asking else { return };
        let holdings = match &self.gone {
            Some(gone) => Err(gone.error(id)),
            None => Ok(self.live.as_ref().map_or_else(Vec::new, Live::holdings)),
        };
        asking.locators.retain(|locator| {
            let is_known =
                locator.known.as_ref().is_some_and(|known| Ok(known) == holdings.as_ref());
            if !is_known {
                let (request, holdings) = (locator.request, holdings.clone());
                mail.push((locator.node, Message::LocationsAre { request, holdings }));
            }
            is_known
        });
        self.asking.take_if(|asking| asking.is_empty());
    }

    pub(super) fn tell_gone(&mut self, id: &ObjectId, error: &Error, mail: &mut Mail) {
        let Some(asking) = self.asking.take() else { return };
        if planted::has(Bug::TellsNobodyOfLosses) {
            return;
        }
        let mut told = asking.watchers;
        told.extend(asking.waiters.into_iter().map(|(asker, _)| asker));
        for node in told {
            mail.push((node, Message::Gone { id: id.clone(), error: error.clone() }));
        }
        // Whoever watches the holders of what is lost would watch for ever.
        for Locator { node, request, .. } in asking.locators {
            mail.push((node, Message::LocationsAre { request, holdings: Err(error.clone()) }));
        }
    }
}

impl Asking {
    fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.watchers.is_empty() && self.locators.is_empty()
    }
}

impl Live {
    /// Nobody has it yet.
    pub(super) fn new(instance: Instance, meta: Meta, since: Instant) -> Self {
        // Most objects have one holder for all their lives.
        let holders = LiteMap::with_capacity(1);
        let (inline, by_parts, terms, abandoned_by) = (None, false, None, None);
        Self { instance, meta, inline, by_parts, holders, terms, since, abandoned_by }
    }

    /// Removes a holder, whom nobody waits for to step in any more; false if it was none.
    pub(super) fn remove_holder(&mut self, node: NodeId) -> bool {
        let was_holder = self.holders.remove(&node).is_some();
        if was_holder {
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

    /// Every holder of a part is to drop it, for nobody has the rest.
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
    fn holdings(&self) -> Vec<Holding> {
        let holding =
            |(node, holder): (&NodeId, &Holder)| Holding { node: *node, complete: holder.complete };
        self.holders.iter().map(holding).collect()
    }

    /// Whether a copy is known that is pinned where it is.
    pub(super) fn has_original(&self) -> bool {
        self.holders.values().any(|holder| holder.origin)
    }

    /// Whether all bytes are somewhere.
    pub(super) fn is_complete(&self) -> bool {
        self.inline.is_some() || self.holders.values().any(|holder| holder.complete)
    }

    /// Whether some copy is complete, or will be; the bytes of a small object are here, whoever else is gone.
    pub(super) fn is_fed(&self) -> bool {
        self.inline.is_some() || self.holders.keys().any(|node| self.depth(*node).is_some())
    }

    /// Whether what a holder has is given to others: not if it makes a part itself.
    fn is_readable(&self, holder: &Holder) -> bool {
        !self.by_parts || holder.told.is_some()
    }

    /// `movable_since`: see [`Live::movable_since`]; none lets nobody be moved.
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
            let Pace { slowness, is_stalled } = pace(node, holder);
            // What is sent to a host that is silent takes nothing of its sender's link.
            if is_stalled { u64::MAX } else { slowness }
        };
        let lineages = self.lineages(asker);
        let fed = self.fed(asker, movable_since, members, slowness);
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
                let (load, pace) = (((thousandths + 500) / 1000) as u32, pace(*node, holder));
                let (node, depth, complete, origin) =
                    (*node, depth?, holder.complete, holder.origin);
                let (avoided, far) = (avoid.contains(&node), members.are_apart(node, asker));
                Some(Candidate {
                    node,
                    depth,
                    load,
                    complete,
                    origin,
                    avoided,
                    far,
                    feeds_far,
                    pace,
                })
            })
            .collect();
        choose_source(&candidates, bytes, link)
    }

    /// Where an asker takes the object from, and who is fed by whom from then on.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn assign(
        &mut self,
        now: Instant,
        asker: NodeId,
        id: &ObjectId,
        avoid: &[NodeId],
        members: &Members,
        link: Link,
        speeds: &Speeds,
    ) -> Option<Source> {
        if let Some(inline) = &self.inline {
            return Some(Source::Inline(inline.clone()));
        }
        // Whoever asks again may be sent to another sender than that of those who were to follow it.
        self.cancel_moves(asker);
        // Only the first owner knows who feeds whom at present; and who feeds somebody already would feed two.
        let is_feeding = self.holders.values().any(|holder| holder.source == Some(asker));
        let can_move = members.owners(id).first == members.me() && !is_feeding;
        let link = speeds.link_of(asker, link);
        let since = can_move.then(|| self.movable_since(now, link));
        let size = self.meta.size;
        let Choice { node, reason, takes_over, .. } =
            self.choose(now, asker, size, avoid, since, members, link, speeds)?;
        let before = Holder { reports: None, ..self.holders.remove(&asker).unwrap_or_default() };
        let (complete, origin, source, located) = (false, false, Some(node), Some(now));
        let moving_from = None;
        let holder = Holder { complete, origin, source, located, moving_from, ..before };
        self.holders.insert(asker, holder);
        if let Some(moved) = takes_over.and_then(|receiver| self.holders.get_mut(&receiver)) {
            moved.moving_from = moved.moving_from.or(moved.source);
            moved.source = Some(asker);
        }
        Some(Source::Holder { node, reason })
    }

    /// What a watcher is told: itself as the holder if it is one, else the best copy to fold at.
    pub(super) fn found(&self, watcher: NodeId, members: &Members) -> Option<Found> {
        let rank = |(node, holder): &(&NodeId, &Holder)| {
            let is_leaving = members.is_leaving(**node);
            let (is_other, is_partial) = (**node != watcher, !holder.complete);
            (is_leaving, is_other, is_partial, !holder.origin, self.load(**node), **node)
        };
        let fed =
            |(node, holder): &(&NodeId, &Holder)| self.is_foldable_at(**node, holder, members);
        let best = self.holders.iter().filter(fed).min_by_key(rank);
        // Small bytes come with the answer, whoever holds them besides.
        let holder = best.map(|(node, _)| *node).or(self.inline.as_ref().map(|_| watcher))?;
        let (instance, meta) = (self.instance, self.meta.clone());
        let complete = self.is_complete();
        Some(Found { instance, meta, holder, inline: self.inline.clone(), complete })
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

/// Where a holder's bytes come from, unless it is a mistake that a test wants.
fn as_planted(lineage: Lineage) -> Lineage {
    if planted::has(Bug::NamesDescendants) {
        Lineage { depth: lineage.depth.or(Some(0)), is_behind: false }
    } else {
        lineage
    }
}

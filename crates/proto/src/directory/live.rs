//! The live instance of an object: its metadata and holders, and the choice of a source for a
//! reader.
//!
//! Knows what each holder would cost as a source; does not know who requests one, or why.

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};

use super::{
    accounts::{EntryCharge, RecordedObject, StoredInline},
    context::{Context, Outbox},
    holder::{Holder, WHOLE},
    probe::Probe,
    ranking::groups_left,
    speeds::Speeds,
    tree::{Lineage, Tree},
};
use crate::{
    broadcast::{Candidate, Choice, SourceSpeed, choose_source, predicted_ns},
    error::Error,
    id::{Instance, NodeId, ObjectId, mix},
    lifetime::Terms,
    limits::INLINE_BYTES_MAX,
    members::Members,
    message::{Found, Holding, Message, Source},
    meta::Meta,
    mutants::{self, Mutant},
    place::Place,
    reduce::cost::Link,
    time::Instant,
};

/// With more than [`super::tree::FEW`] holders, at most this many of each place and load are
/// considered for one reply.
pub(super) const LOOKED_AT: usize = 16;

#[derive(Debug)]
pub(super) struct Live {
    pub(super) instance: Instance,
    pub(super) meta: Meta,
    /// The bytes of a small object, if this owner has capacity for them.
    pub(super) inline: Option<Box<StoredInline>>,
    /// Whether holders were requested to send the missing bytes.
    pub(super) bytes_requested: bool,
    /// Whether a ring reduce makes it in parts. Then other nodes that have not announced it may
    /// hold a complete copy from an aborted attempt.
    pub(super) by_parts: bool,
    /// Whether this owner has known a copy that is complete or will be, since it owns the object.
    pub(super) was_fed: bool,
    /// The nodes that hold or receive it.
    pub(super) tree: Tree,
    /// The last comparison of two receivers, while no rate is known.
    pub(super) probe: Option<Box<Probe>>,
    /// Its lifetime; `None` if it lives until it is deleted.
    pub(super) terms: Option<Box<Terms>>,
    /// The charge for this entry; `None` if this node made the object.
    _entry: Option<EntryCharge>,
    /// Counts the object.
    _recorded: RecordedObject,
    /// When this owner first received an announcement of it.
    pub(super) since: Instant,
    /// The last node that gave up its pinned copy without another node taking it.
    pub(super) abandoned_by: Option<Box<NodeId>>,
}

/// A request for a source.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceRequest<'a> {
    pub(super) node: NodeId,
    /// Bytes that the requester lacks.
    pub(super) bytes: u64,
    /// Sources that failed it.
    pub(super) avoid: &'a [NodeId],
    pub(super) link: Link,
    /// See [`Live::movable_since`]; `None` if no receiver may be moved.
    pub(super) movable_since: Option<Instant>,
}

impl Live {
    /// Creates an object without holders.
    pub(super) fn new(
        instance: Instance,
        meta: Meta,
        since: Instant,
        entry: Option<EntryCharge>,
        recorded: RecordedObject,
    ) -> Self {
        Self {
            instance,
            meta,
            inline: None,
            bytes_requested: false,
            by_parts: false,
            was_fed: false,
            tree: Tree::default(),
            probe: None,
            terms: None,
            _entry: entry,
            _recorded: recorded,
            since,
            abandoned_by: None,
        }
    }

    /// A node has no copy. Returns false if it was not a holder.
    pub(super) fn withdraw(&mut self, node: NodeId) -> bool {
        let was_holder = self.remove_holder(node);
        if !self.was_fed {
            // It is not awaited as a source.
            let receivers: Vec<NodeId> = self.tree.receivers(node).map(|(it, _)| it).collect();
            receivers.into_iter().for_each(|receiver| self.tree.detach(receiver));
        }
        was_holder
    }

    /// Removes a holder and cancels pending moves to and from it. Returns false if it was not a
    /// holder.
    pub(super) fn remove_holder(&mut self, node: NodeId) -> bool {
        let was_holder = self.tree.remove(node);
        // The bytes of a small object may have been requested from this holder alone.
        self.bytes_requested &= !was_holder || node != self.instance.node;
        was_holder
    }

    /// Makes every holder drop its copy. Waiting readers get the error; without an error they
    /// continue to wait.
    pub(super) fn drop_copies(&self, id: &ObjectId, error: Option<&Error>, outbox: &mut Outbox) {
        self.send_to_holders(outbox, || {
            let (id, instance, error) = (id.clone(), self.instance, error.cloned());
            Message::Drop { id, instance, error }
        });
    }

    /// Makes every holder of a partial copy drop it, because no node has the rest.
    pub(super) fn drop_partial_copies(&self, id: &ObjectId, error: &Error, outbox: &mut Outbox) {
        self.send_to_holders(outbox, || {
            let (id, instance, error) = (id.clone(), self.instance, error.clone());
            Message::DropPartial { id, instance, error }
        });
    }

    fn send_to_holders(&self, outbox: &mut Outbox, message: impl Fn() -> Message) {
        outbox.extend(self.tree.nodes().map(|holder| (holder, message())));
    }

    /// All holders, ordered by node.
    pub(super) fn holdings(&self) -> Vec<Holding> {
        let holding =
            |(node, holder): (NodeId, &Holder)| Holding { node, complete: holder.complete };
        self.tree.iter().map(holding).collect()
    }

    /// Whether this is a small object whose bytes are only at its holders.
    pub(super) const fn lacks_bytes(&self) -> bool {
        self.inline.is_none() && self.meta.size <= INLINE_BYTES_MAX
    }

    /// Requests the missing bytes of a small object, unless that was done: from its maker, or from
    /// all complete holders if the maker has no copy. Their announcements let the owner reply to
    /// waiting nodes. Returns whether the bytes will come.
    pub(super) fn seek_bytes(&mut self, id: &ObjectId, outbox: &mut Outbox) -> bool {
        if !self.lacks_bytes() || self.bytes_requested {
            return self.bytes_requested;
        }
        let maker = self.instance.node;
        let whole = self.tree.iter().filter(|(_, holder)| holder.complete);
        let mut asked: Vec<NodeId> = whole.map(|(node, _)| node).collect();
        if asked.contains(&maker) {
            asked = Vec::from([maker]);
        }
        self.bytes_requested = !asked.is_empty();
        self.verify(id, asked, outbox);
        self.bytes_requested
    }

    /// Requests that nodes announce their copies again, or withdraw them.
    pub(super) fn verify(
        &self,
        id: &ObjectId,
        nodes: impl IntoIterator<Item = NodeId>,
        outbox: &mut Outbox,
    ) {
        let message = || Message::Reannounce { id: id.clone(), instance: self.instance };
        outbox.extend(nodes.into_iter().map(|node| (node, message())));
    }

    /// Whether a pinned copy exists.
    pub(super) fn has_pinned(&self) -> bool {
        self.tree.iter().any(|(_, holder)| holder.pinned)
    }

    /// Whether a complete copy exists.
    pub(super) fn is_complete(&self) -> bool {
        self.inline.is_some() || self.tree.is_complete()
    }

    /// Whether some copy is complete or will be. The bytes of a small object may be stored here
    /// after its holders are gone.
    pub(super) fn is_fed(&self) -> bool {
        self.inline.is_some() || self.tree.roots().next().is_some()
    }

    /// Nodes from which others receive, and which have not announced their copies here since this
    /// node owns the object.
    pub(super) fn unannounced_sources(&self) -> impl Iterator<Item = NodeId> {
        let tree = (!self.was_fed).then_some(&self.tree);
        tree.into_iter().flat_map(Tree::unrecorded_sources)
    }

    /// Receivers that began earlier than this, a quarter of a transfer ago, would wait too long for
    /// a node that has nothing yet.
    fn movable_since(&self, now: Instant, link: Link) -> Instant {
        let quarter_ns = link.transfer_ns(self.meta.size) / 4;
        now.before(u64::try_from(quarter_ns).unwrap_or(u64::MAX))
    }

    /// Executes the pending moves to `from`, which has announced how it receives: each receiver
    /// gets a redirect, or stays.
    pub(super) fn move_receivers(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        id: &ObjectId,
    ) {
        let (now, instance) = (context.now, self.instance);
        let since = self.movable_since(now, context.link);
        for (node, sender) in self.tree.take_moves(|source, _| source == from) {
            let is_fed = self.tree.is_fed(from);
            let holder = self.tree.get_mut(node).filter(|_| is_fed);
            match holder.filter(|holder| is_movable(holder, since)) {
                Some(holder) => {
                    holder.located = Some(now);
                    let id = id.clone();
                    context.outbox.push((node, Message::Redirect { id, instance, source: from }));
                }
                None => _ = self.tree.attach(node, sender),
            }
        }
    }

    /// Chooses a source for a request, if there is one.
    pub(super) fn choose(
        &mut self,
        context: &Context<'_>,
        request: &SourceRequest<'_>,
        speeds: &Speeds,
    ) -> Option<Choice> {
        let mut candidates = self.candidates(context, request, speeds);
        if let Some(choice) = self.choose_fed(&mut candidates, request) {
            return Some(choice);
        }
        let roots: Vec<NodeId> = self.tree.roots().collect();
        let candidate = |root| self.candidate(context, request, None, (root, Some(0)), speeds);
        let roots = roots.into_iter().filter_map(candidate).take(LOOKED_AT).collect::<Vec<_>>();
        choose_source(&roots, request.bytes, request.link)
    }

    /// Chooses the best candidate that gets its bytes from a root. The depth that the tree has
    /// stored may be outdated: the choice is repeated with the real one.
    fn choose_fed(
        &mut self,
        candidates: &mut Vec<Candidate>,
        request: &SourceRequest<'_>,
    ) -> Option<Choice> {
        loop {
            let choice = choose_source(candidates, request.bytes, request.link)?;
            let at = candidates.iter().position(|candidate| candidate.node == choice.node)?;
            match self.depth_for(choice.node, request.node) {
                Some(depth) if depth == candidates[at].depth => return Some(choice),
                Some(depth) => {
                    candidates[at].depth = depth;
                    self.tree.update_depth(choice.node, depth);
                }
                None => _ = candidates.swap_remove(at),
            }
        }
    }

    /// How many relays are between a holder and its root; `None` if it gets no bytes, or gets them
    /// through the requester.
    fn depth_for(&self, node: NodeId, requester: NodeId) -> Option<u32> {
        let Lineage { root, depth, .. } = self.tree.lineage(node)?;
        match mutants::is_active(Mutant::AssignsDescendants) {
            true => depth.or(Some(0)),
            false => depth.filter(|_| root != requester),
        }
    }

    /// The holders that could serve a request. Of many, those that are likely to deliver soonest.
    pub(super) fn candidates(
        &mut self,
        context: &Context<'_>,
        request: &SourceRequest<'_>,
        speeds: &Speeds,
    ) -> Vec<Candidate> {
        let salt = mix(self.instance.node.0 ^ self.instance.serial);
        let asker_at = context.members.place(request.node);
        let places =
            self.tree.ranking(context.members, salt).map(|ranking| ranking.around(asker_at));
        if let Some(places) = places {
            return self.best_ranked(context, request, places, speeds);
        }
        let nodes: Vec<NodeId> = self.tree.nodes().collect();
        let crossings = Some(self.crossings(context.members));
        let candidate =
            |node| self.candidate(context, request, crossings.as_ref(), (node, None), speeds);
        nodes.into_iter().filter_map(candidate).collect()
    }

    /// The number of transfers that leave each group of places.
    fn crossings(&self, members: &Members) -> BTreeMap<Place, u64> {
        let mut all = BTreeMap::new();
        if members.has_places() {
            let edges = self.tree.nodes().filter_map(|node| Some((self.tree.source(node)?, node)));
            for group in edges.flat_map(|(from, to)| groups_left(from, to, members)) {
                *all.entry(group).or_default() += 1;
            }
        }
        all
    }

    /// Candidates among many holders: for each of `places` the least loaded ones nearest to a root,
    /// until they are predicted to be worse than the best.
    fn best_ranked(
        &mut self,
        context: &Context<'_>,
        request: &SourceRequest<'_>,
        places: Vec<(u8, Option<Place>)>,
        speeds: &Speeds,
    ) -> Vec<Candidate> {
        let cost = |load, depth| {
            let serves_remote = request.movable_since.map(|_| request.node);
            let ideal = Candidate { load, depth, serves_remote, ..Candidate::idle(request.node) };
            predicted_ns(&ideal, request.bytes, request.link)
        };
        // The holders behind the requester can't serve it: only then their paths matter here.
        let is_feeding = self.tree.receivers(request.node).next().is_some();
        let (mut found, mut best) = (Vec::new(), (u8::MAX, u64::MAX));
        for (distance, place) in places {
            if distance > best.0 {
                break;
            }
            let (mut after, mut looked_at) = (None, 0);
            while let Some(rank) = self.tree.next_ranked(&place, after) {
                let is_worse = (distance, cost(rank.load, rank.depth)) > best;
                if is_worse && (distance, cost(rank.load, 0)) > best {
                    break;
                }
                if is_worse || looked_at == LOOKED_AT {
                    (after, looked_at) = (Some(rank.behind()), 0);
                    continue;
                }
                (after, looked_at) = (Some(rank), looked_at + 1);
                let holder = (self.tree.node_at(rank.at), (!is_feeding).then_some(rank.depth));
                let Some(candidate) = self.candidate(context, request, None, holder, speeds) else {
                    continue;
                };
                if !candidate.avoided && candidate.speed == SourceSpeed::default() {
                    let ns = predicted_ns(&candidate, request.bytes, request.link);
                    best = best.min((candidate.distance, ns));
                }
                found.push(candidate);
            }
        }
        found
    }

    /// Describes a holder as a source for a request; `None` if it cannot serve. `crossings`:
    /// transfers between groups, if the tree does not count them. `depth`: the stored one, if that
    /// suffices.
    fn candidate(
        &mut self,
        context: &Context<'_>,
        request: &SourceRequest<'_>,
        crossings: Option<&BTreeMap<Place, u64>>,
        (node, depth): (NodeId, Option<u32>),
        speeds: &Speeds,
    ) -> Option<Candidate> {
        let (now, members, requester) = (context.now, context.members, request.node);
        if node == requester || !members.contains(node) || !self.is_readable(node) {
            return None;
        }
        let depth = depth.or_else(|| self.depth_for(node, requester))?;
        let distance = members.distance(node, requester);
        let serves_remote = request.movable_since.and_then(|since| {
            let near = self.tree.receivers(node).take(LOOKED_AT);
            let near = near.filter(|(_, holder)| is_movable(holder, since));
            let far = near.map(|(receiver, _)| (members.distance(node, receiver), receiver));
            far.filter(|(far, _)| *far > distance)
                .max_by_key(|(far, node)| (*far, core::cmp::Reverse(*node)))
        });
        let crossings = crossings.or_else(|| self.tree.crossings());
        let crowd = crossings.map_or(0, |crossings| crowd(crossings, node, requester, members));
        let load = self.tree.load(node).max(u32::try_from(crowd).unwrap_or(u32::MAX));
        let speed = self.speed_of(now, node, requester, speeds);
        let holder = self.tree.get(node)?;
        Some(Candidate {
            node,
            depth,
            load,
            complete: holder.complete,
            pinned: holder.pinned,
            avoided: request.avoid.contains(&node),
            distance,
            serves_remote: serves_remote.map(|(_, receiver)| receiver),
            speed,
            busy_until: speeds.busy_until(node),
        })
    }

    /// Whether a holder can serve others. Not if it makes a part of the object itself.
    fn is_readable(&self, node: NodeId) -> bool {
        !self.by_parts || self.tree.get(node).is_some_and(|holder| holder.announced_at.is_some())
    }

    /// Assigns a source to a requester, and records it in the tree.
    pub(super) fn assign(
        &mut self,
        context: &Context<'_>,
        requester: NodeId,
        id: &ObjectId,
        avoid: &[NodeId],
        speeds: &mut Speeds,
    ) -> Option<Source> {
        let Context { now, members, .. } = *context;
        if let Some(StoredInline { bytes, .. }) = self.inline.as_deref() {
            return Some(Source::Inline(bytes.clone()));
        }
        if self.lacks_bytes() {
            return None;
        }
        // The requester may get another source this time, so cancel the pending moves to it.
        for (receiver, sender) in self.tree.take_moves(|source, _| source == requester) {
            self.tree.attach(receiver, sender);
        }
        self.tree.detach(requester);
        // Only the primary owner has records of all transfers. A holder that already has a receiver
        // would get a second one. A receiver is moved only to a node nearer to its source, so only
        // if places are known.
        let is_feeding = self.tree.receivers(requester).next().is_some();
        let can_move =
            members.has_places() && !is_feeding && members.owners(id).primary == members.me();
        let (bytes, link) = (self.meta.size, speeds.link_of(requester, context.link));
        let movable_since = can_move.then(|| self.movable_since(now, link));
        let request = SourceRequest { node: requester, bytes, avoid, link, movable_since };
        let Choice { node, reason, insert_before, .. } = self.choose(context, &request, speeds)?;
        speeds.assigned(now, node, u64::try_from(link.transfer_ns(bytes)).unwrap_or(u64::MAX));
        let holder = self.tree.enter(requester, false, false);
        (holder.reports, holder.located) = (None, Some(now));
        self.tree.weigh(requester, self.weight(now, requester, None, speeds));
        self.tree.attach(requester, node);
        if speeds.usual_of(requester).is_none() {
            self.begin_probe(now, requester, node, speeds);
        }
        if let Some(receiver) = insert_before {
            self.tree.move_soon(receiver, requester);
        }
        Some(Source::Holder { node, reason })
    }

    /// The reply to a watcher: the watcher itself if it is a holder, else the best copy to fold at.
    /// `None` for a small object until its bytes are here.
    pub(super) fn found(&mut self, watcher: NodeId, members: &Members) -> Option<Found> {
        if self.lacks_bytes() {
            return None;
        }
        let is_better_there = |node: &NodeId| !members.is_leaving(*node);
        let near: Vec<NodeId> =
            [watcher].into_iter().chain(self.tree.roots().take(LOOKED_AT)).collect();
        let best = self.best_to_fold_at(near, watcher, members);
        let best = best.filter(is_better_there).or_else(|| {
            let all = self.tree.nodes().collect();
            self.best_to_fold_at(all, watcher, members)
        });
        // The bytes of small objects are part of the reply, whichever nodes hold copies.
        let inline = self.inline.as_ref().map(|inline| inline.bytes.clone());
        let holder = best.or(inline.as_ref().map(|_| watcher))?;
        let (instance, meta) = (self.instance, self.meta.clone());
        let complete = self.is_complete();
        Some(Found { instance, meta, holder, inline, complete })
    }

    fn best_to_fold_at(
        &mut self,
        mut nodes: Vec<NodeId>,
        watcher: NodeId,
        members: &Members,
    ) -> Option<NodeId> {
        nodes.retain(|node| self.is_foldable_at(*node, members));
        nodes.into_iter().min_by_key(|node| {
            let holder = self.tree.get(*node);
            let (is_complete, is_pinned) =
                holder.map_or((false, false), |it| (it.complete, it.pinned));
            let (is_leaving, is_other) = (members.is_leaving(*node), *node != watcher);
            (is_leaving, is_other, !is_complete, !is_pinned, self.tree.load(*node), *node)
        })
    }

    /// Whether a member that is not leaving holds it, so that a reduce can fold it there.
    pub(super) fn is_at_staying_node(&mut self, members: &Members) -> bool {
        let nodes: Vec<NodeId> = self.tree.roots().chain(self.tree.nodes()).collect();
        let stays = |node: NodeId| !members.is_leaving(node) && self.is_foldable_at(node, members);
        nodes.into_iter().any(stays)
    }

    fn is_foldable_at(&mut self, node: NodeId, members: &Members) -> bool {
        // What arrives there may be wrong until the digest is compared.
        let is_verified = self.meta.digest.is_none() || self.tree.source(node).is_none();
        members.contains(node) && self.is_readable(node) && is_verified && self.tree.is_fed(node)
    }

    /// The share that a receiver takes of its source's link: less if it was found to be slow.
    pub(super) fn weight(
        &self,
        now: Instant,
        node: NodeId,
        reported: Option<u64>,
        speeds: &Speeds,
    ) -> u32 {
        // A transfer to an unresponsive host uses nothing of its source's link.
        let slowness = match speeds.is_stalled(now, node) {
            true => u64::MAX,
            false => reported.unwrap_or_else(|| speeds.received_slowness(now, node)),
        };
        (u64::from(WHOLE) / slowness.max(1)) as u32
    }
}

/// Whether a receiver has so little that it may be moved to a nearer source.
fn is_movable(holder: &Holder, since: Instant) -> bool {
    holder.began.is_none_or(|began| began >= since)
}

/// The load of the most crowded link from a holder's groups to a requester: transfers that share
/// the link, divided by the number that it carries at full rate.
fn crowd(
    crossings: &BTreeMap<Place, u64>,
    holder: NodeId,
    requester: NodeId,
    members: &Members,
) -> u64 {
    let places = members.place(holder).zip(members.place(requester));
    let Some((from, to)) = places.filter(|_| !crossings.is_empty()) else { return 0 };
    let left = from.parts_at(&to).map_or(0..0, |level| level..from.depth());
    let shared = left.map(|level| {
        crossings.get(&from.outer(level)).map_or(0, |count| count / from.carries(level))
    });
    shared.max().unwrap_or(0)
}

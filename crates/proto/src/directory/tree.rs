//! The broadcast tree of one object: which nodes hold or receive a copy, and which of them receives from which.
//!
//! A holder without a source that is complete, or grows where it is made, is a root. Depth and root of a holder, and
//! how much of its link its receivers take, are kept while the tree changes: no question walks along a chain. A source may
//! be a node that holds nothing, if receivers report so; what is behind it has no root until it does.
//!
//! Invariants: there is no circle; a complete copy has no source. Does not know why a source was chosen.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::{
    paths::{NONE, Paths},
    ranking::{Rank, Ranking},
    reports::{Branches, Left, Report, Reports},
};
use crate::{id::NodeId, members::Members, place::Place, time::Instant};

/// What a receiver takes of the link of its source, unless it is slow, in thousandths.
pub(super) const WHOLE: u32 = 1000;

#[derive(Debug, Default)]
pub(super) struct Tree {
    /// In no order. Most objects have one holder for all their lives.
    spots: Vec<Spot>,
    /// What there is to know of more than one.
    web: Option<Box<Web>>,
}

/// A node that holds or receives a copy.
#[derive(Debug, Default)]
pub(super) struct Holder {
    complete: bool,
    /// Pinned there: put, reduced or adopted.
    origin: bool,
    /// When it last told of itself, and when this owner last sent it to a sender.
    pub(super) told: Option<Instant>,
    pub(super) located: Option<Instant>,
    /// When it first told that it receives.
    pub(super) began: Option<Instant>,
    /// How fast it last reported to receive.
    pub(super) reports: Option<Box<Reports>>,
}

/// Where a holder's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lineage {
    pub(super) root: NodeId,
    /// The first receiver on the way from the root; none for the root itself.
    pub(super) branch: Option<NodeId>,
    /// Relays between the holder and a copy that needs none; none if no node feeds its root.
    pub(super) depth: Option<u32>,
    /// Whether the root has all bytes.
    pub(super) is_complete: bool,
    /// When a receiver on the way was last moved to another source.
    pub(super) moved: Instant,
}

/// A holder, or a source that holds nothing, with its receivers as a list.
#[derive(Debug)]
struct Spot {
    node: NodeId,
    holder: Option<Holder>,
    source: u32,
    receivers: u32,
    next: u32,
    previous: u32,
    /// What it takes of its source's link, and its receivers of its own, in thousandths.
    weight: u32,
    load: u32,
}

impl Spot {
    const fn new(node: NodeId) -> Self {
        let (source, receivers, next, previous) = (NONE, NONE, NONE, NONE);
        Self { node, holder: None, source, receivers, next, previous, weight: WHOLE, load: 0 }
    }

    fn is_root(&self) -> bool {
        let is_root = |it: &Holder| it.complete || it.origin && self.source == NONE;
        self.holder.as_ref().is_some_and(is_root)
    }

    /// Its key among the roots: complete originals are first.
    fn as_root(&self) -> Option<(bool, bool, NodeId)> {
        let holder = self.holder.as_ref().filter(|_| self.is_root())?;
        Some((!holder.complete, !holder.origin, self.node))
    }
}

#[derive(Debug, Default)]
struct Web {
    /// The spots, by node.
    by_node: BTreeMap<NodeId, u32>,
    free: Vec<u32>,
    paths: Paths,
    roots: BTreeSet<(bool, bool, NodeId)>,
    holders: usize,
    complete: usize,
    /// Receivers that are to be moved to their source when that begins to receive, and who feeds them until then.
    moves: BTreeMap<NodeId, NodeId>,
    branches: Branches,
    /// Receivers that have reported to be stalled, and when.
    stalled: BTreeSet<(Instant, NodeId)>,
    ranking: Option<Ranking>,
}

impl Tree {
    /// How many nodes hold or receive a copy.
    pub(super) fn len(&self) -> usize {
        self.web.as_ref().map_or_else(|| self.iter().count(), |web| web.holders)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many nodes hold all of it.
    pub(super) fn complete(&self) -> usize {
        let count = || self.iter().filter(|(_, holder)| holder.complete).count();
        self.web.as_ref().map_or_else(count, |web| web.complete)
    }

    /// All holders, by node.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Holder)> {
        let many = self.web.iter().flat_map(|web| web.by_node.values());
        let many = many.map(|at| &self.spots[*at as usize]);
        let one = self.spots.iter().filter(|_| self.web.is_none());
        one.chain(many).filter_map(|spot| Some((spot.node, spot.holder.as_ref()?)))
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.iter().map(|(node, _)| node)
    }

    /// Those that need no source: complete originals first, then other complete copies, then growing originals.
    pub(super) fn roots(&self) -> impl Iterator<Item = NodeId> {
        let many = self.web.iter().flat_map(|web| &web.roots).map(|(.., node)| *node);
        let one = self.spots.iter().filter(|spot| self.web.is_none() && spot.is_root());
        one.map(|spot| spot.node).chain(many)
    }

    pub(super) fn get(&self, node: NodeId) -> Option<&Holder> {
        self.spot(node)?.holder.as_ref()
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut Holder> {
        let at = self.at(node)?;
        self.spots[at as usize].holder.as_mut()
    }

    /// Which node an incomplete copy is received from.
    pub(super) fn source(&self, node: NodeId) -> Option<NodeId> {
        let source = self.spot(node)?.source;
        (source != NONE).then(|| self.spots[source as usize].node)
    }

    /// The nodes that receive from `node`, the last one to begin first.
    pub(super) fn receivers(&self, node: NodeId) -> impl Iterator<Item = (NodeId, &Holder)> {
        let spot_at = |at: u32| self.spots.get(at as usize);
        let first = self.spot(node).and_then(|spot| spot_at(spot.receivers));
        let spots = core::iter::successors(first, move |spot| spot_at(spot.next));
        spots.filter_map(|spot| Some((spot.node, spot.holder.as_ref()?)))
    }

    /// How many receivers a node feeds; those that are slow count for less.
    pub(super) fn load(&self, node: NodeId) -> u32 {
        self.spot(node).map_or(0, |spot| rounded(spot.load))
    }

    /// Where a holder's bytes come from.
    pub(super) fn lineage(&mut self, node: NodeId) -> Option<Lineage> {
        let at = self.at(node)?;
        let moved = Instant::default();
        let Some(web) = &mut self.web else {
            let spot = &self.spots[at as usize];
            let is_complete = spot.holder.as_ref()?.complete;
            let depth = spot.is_root().then_some(0);
            return Some(Lineage { root: node, branch: None, depth, is_complete, moved });
        };
        let way = web.paths.way(at);
        let root = &self.spots[way.root as usize];
        Some(Lineage {
            root: root.node,
            branch: self.spots.get(way.branch as usize).map(|spot| spot.node),
            depth: root.is_root().then_some(way.depth),
            is_complete: root.holder.as_ref().is_some_and(|root| root.complete),
            moved: way.stamp,
        })
    }

    /// Whether a holder has all bytes, or gets them.
    pub(super) fn is_fed(&mut self, node: NodeId) -> bool {
        self.get(node).is_some() && self.lineage(node).is_some_and(|it| it.depth.is_some())
    }

    /// A node holds or receives a copy, or has more of it than before.
    pub(super) fn enter(&mut self, node: NodeId, complete: bool, origin: bool) -> &mut Holder {
        let at = self.open(node);
        if complete {
            self.detach(node);
            self.stamp(at, Instant::default());
        }
        self.change(at, |spot| {
            let holder = spot.holder.get_or_insert_default();
            (holder.complete, holder.origin) = (complete, origin);
        });
        let holder = self.spots[at as usize].holder.get_or_insert_default();
        if complete {
            holder.reports = None;
        }
        holder
    }

    /// Removes a holder; its receivers keep it as their source, until they tell of another. False if it was none.
    pub(super) fn remove(&mut self, node: NodeId) -> bool {
        let Some(at) = self.at(node).filter(|_| self.get(node).is_some()) else { return false };
        self.detach(node);
        self.change(at, |spot| spot.holder = None);
        self.tidy(at);
        for (receiver, sender) in self.take_moves(|source, sender| source == node || sender == node)
        {
            self.attach(receiver, sender);
        }
        true
    }

    /// A holder receives from `source` from now on, unless that receives from it: false then, and it has no source.
    pub(super) fn attach(&mut self, node: NodeId, source: NodeId) -> bool {
        let is_its = self.source(node) == Some(source);
        if is_its && !self.is_moving(node) {
            return true;
        }
        self.detach(node);
        let (from, at) = (self.open(source), self.open(node));
        let web = self.web();
        if web.paths.way(from).root == at {
            self.tidy(from);
            return false;
        }
        web.paths.link(at, from);
        let weight = self.spots[at as usize].weight;
        let next = core::mem::replace(&mut self.spots[from as usize].receivers, at);
        if let Some(next) = self.spots.get_mut(next as usize) {
            next.previous = at;
        }
        self.change(at, |spot| (spot.source, spot.next) = (from, next));
        self.change(from, |spot| spot.load += weight);
        if let Some(ranking) = &mut self.web().ranking {
            ranking.place_later(at);
        }
        true
    }

    /// A holder receives from no node any more.
    pub(super) fn detach(&mut self, node: NodeId) {
        if self.set_aside(node).is_some() {
            let web = self.web();
            web.moves.remove(&node);
            web.branches.forget(node);
        }
    }

    /// Takes a holder from below its source until it is attached again; from which source.
    pub(super) fn set_aside(&mut self, node: NodeId) -> Option<NodeId> {
        let source = self.source(node)?;
        let at = self.at(node)?;
        let Spot { source: from, next, previous, weight, .. } = self.spots[at as usize];
        if let Some(next) = self.spots.get_mut(next as usize) {
            next.previous = previous;
        }
        match self.spots.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => self.spots[from as usize].receivers = next,
        }
        let web = self.web();
        web.paths.cut(at);
        if let Some(ranking) = &mut web.ranking {
            ranking.stop_crossing(at);
        }
        self.change(at, |spot| (spot.source, spot.next, spot.previous) = (NONE, NONE, NONE));
        self.change(from, |spot| spot.load -= weight);
        self.tidy(from);
        Some(source)
    }

    /// A receiver is to be moved from its source to `to`, when that has begun to receive.
    pub(super) fn move_soon(&mut self, node: NodeId, to: NodeId) {
        let moves = &self.web().moves;
        let Some(sender) = moves.get(&node).copied().or_else(|| self.source(node)) else { return };
        if self.attach(node, to) {
            self.web().moves.insert(node, sender);
        }
    }

    /// The node that feeds a receiver that is to be moved to its source.
    pub(super) fn moving_from(&self, node: NodeId) -> Option<NodeId> {
        self.web.as_ref()?.moves.get(&node).copied()
    }

    pub(super) fn is_moving(&self, node: NodeId) -> bool {
        self.moving_from(node).is_some()
    }

    /// Forgets what receivers wait for that are to be moved, by their source of then and their present one; each receiver
    /// with the present one.
    pub(super) fn take_moves(
        &mut self,
        is_meant: impl Fn(NodeId, NodeId) -> bool,
    ) -> Vec<(NodeId, NodeId)> {
        let Some(web) = &mut self.web else { return Vec::new() };
        let (spots, by_node) = (&self.spots, &web.by_node);
        let source = |node: &NodeId| {
            let at = spots.get(*by_node.get(node)? as usize)?.source;
            Some(spots.get(at as usize)?.node)
        };
        let mut taken = Vec::new();
        web.moves.retain(|node, sender| {
            let is_taken = source(node).is_none_or(|source| is_meant(source, *sender));
            if is_taken {
                taken.push((*node, *sender));
            }
            !is_taken
        });
        taken
    }

    /// A receiver takes so many thousandths of its source's link.
    pub(super) fn weigh(&mut self, node: NodeId, weight: u32) {
        let Some(at) = self.at(node) else { return };
        let Spot { source, weight: before, .. } = self.spots[at as usize];
        self.spots[at as usize].weight = weight;
        if source != NONE {
            self.change(source, |spot| spot.load = spot.load - before + weight);
        }
    }

    /// A receiver has reported how fast the object comes.
    pub(super) fn report(&mut self, node: NodeId, report: Report) {
        let Some(Lineage { branch, depth, .. }) = self.lineage(node) else { return };
        if let Some(holder) = self.get_mut(node) {
            holder.reports.get_or_insert_default().last = Some(report);
        }
        if let Some(branch) = branch.filter(|_| depth.is_some()) {
            self.web().branches.note(branch, node, report);
        }
        if report.is_stalled() {
            self.web().stalled.insert((report.at, node));
        }
    }

    /// Receivers that have reported by then to be stalled, and nothing since: each once.
    pub(super) fn take_stalled(&mut self, until: Instant) -> Vec<NodeId> {
        let Some(web) = &mut self.web else { return Vec::new() };
        let later = web.stalled.split_off(&(until + 1, NodeId(0)));
        let due = core::mem::replace(&mut web.stalled, later);
        let is_last = |at: Instant, holder: &Holder| holder.last().is_some_and(|it| it.at == at);
        let is_due = |(at, node): &(Instant, NodeId)| {
            self.get(*node).is_some_and(|holder| is_last(*at, holder)) && !self.is_moving(*node)
        };
        due.into_iter().filter(is_due).map(|(_, node)| node).collect()
    }

    /// What the best of at least two branches has reported.
    pub(super) fn best_rate(&self, now: Instant) -> Option<u64> {
        self.web.as_ref()?.branches.best(now)
    }

    /// A receiver is moved to another source at once, and keeps what it has. False if that receives from it.
    pub(super) fn move_now(&mut self, now: Instant, node: NodeId, to: NodeId) -> bool {
        let Some((at, from)) = self.at(node).zip(self.source(node)) else { return false };
        let is_moved = self.attach(node, to);
        let Some(holder) = self.get_mut(node) else { return false };
        holder.located = Some(now);
        if let Some(reports) = &mut holder.reports
            && let Some(report) = reports.last.take()
        {
            reports.left.push(Left { node: from, report });
        }
        if !holder.left().is_empty() {
            self.stamp(at, now);
        }
        is_moved
    }

    /// The index of a tree of many holders, up to date with where its members are.
    pub(super) fn ranking(&mut self, members: &Members, salt: u64) -> &Ranking {
        let web = self.web();
        let is_new = web.ranking.as_ref().is_none_or(|it| it.places != members.places_version());
        if is_new {
            let mut ranking = Ranking::new(members.places_version(), salt);
            let all = 0..self.spots.len() as u32;
            all.clone().for_each(|at| ranking.place_later(at));
            self.web().ranking = Some(ranking);
            all.for_each(|at| self.rank(at));
        }
        let mut ranking = self.web().ranking.take().unwrap_or_default();
        for at in ranking.take_later() {
            let spot = &self.spots[at as usize];
            let source = self.spots.get(spot.source as usize).map(|source| source.node);
            ranking.place(at, spot.node, source, members);
        }
        self.web().ranking.insert(ranking)
    }

    /// How many transfers leave each group of places, if that is counted.
    pub(super) fn crossings(&self) -> Option<&BTreeMap<Place, u64>> {
        Some(self.web.as_ref()?.ranking.as_ref()?.crossings())
    }

    /// The node of a rank.
    pub(super) fn node_at(&self, at: u32) -> NodeId {
        self.spots[at as usize].node
    }

    /// Puts a holder in its place in the index again.
    pub(super) fn rank(&mut self, at: u32) {
        let Some(web) = &mut self.web else { return };
        let Some(ranking) = &mut web.ranking else { return };
        let spot = &self.spots[at as usize];
        let rank = spot.holder.as_ref().map(|holder| Rank {
            load: rounded(spot.load),
            depth: web.paths.way(at).depth,
            partial: !holder.complete,
            origin: holder.origin,
            tie: ranking.tie(spot.node),
            at,
        });
        ranking.set(at, rank);
    }

    fn stamp(&mut self, at: u32, stamp: Instant) {
        if let Some(web) = &mut self.web {
            web.paths.stamp(at, stamp);
        }
    }

    fn spot(&self, node: NodeId) -> Option<&Spot> {
        self.at(node).map(|at| &self.spots[at as usize])
    }

    fn at(&self, node: NodeId) -> Option<u32> {
        match &self.web {
            Some(web) => web.by_node.get(&node).copied(),
            None => self.spots.first().filter(|spot| spot.node == node).map(|_| 0),
        }
    }

    /// What there is to know of more than one holder.
    fn web(&mut self) -> &mut Web {
        let spots = &self.spots;
        self.web.get_or_insert_with(|| {
            let mut web = Web::default();
            for (at, spot) in (0..).zip(spots) {
                web.by_node.insert(spot.node, at);
                web.paths.add(at);
                web.count(spot, true);
            }
            Box::new(web)
        })
    }

    /// The spot of a node, a new one if there is none.
    fn open(&mut self, node: NodeId) -> u32 {
        if let Some(at) = self.at(node) {
            return at;
        }
        if self.spots.is_empty() && self.web.is_none() {
            self.spots = Vec::with_capacity(1);
            self.spots.push(Spot::new(node));
            return 0;
        }
        let web = self.web();
        let free = web.free.pop();
        let at = free.unwrap_or(self.spots.len() as u32);
        match free {
            Some(at) => self.spots[at as usize] = Spot::new(node),
            None => self.spots.push(Spot::new(node)),
        }
        let web = self.web();
        web.by_node.insert(node, at);
        web.paths.add(at);
        if let Some(ranking) = &mut web.ranking {
            ranking.place_later(at);
        }
        at
    }

    /// Forgets a node that neither holds a copy nor is a source.
    fn tidy(&mut self, at: u32) {
        let Spot { node, receivers, source, .. } = self.spots[at as usize];
        if receivers != NONE || source != NONE || self.spots[at as usize].holder.is_some() {
            return;
        }
        match &mut self.web {
            Some(web) => {
                web.by_node.remove(&node);
                web.free.push(at);
                if let Some(ranking) = &mut web.ranking {
                    ranking.forget(at);
                }
            }
            None => self.spots.clear(),
        }
    }

    /// Changes a spot, and what follows from it of all.
    fn change(&mut self, at: u32, change: impl FnOnce(&mut Spot)) {
        let spot = &mut self.spots[at as usize];
        if let Some(web) = &mut self.web {
            web.count(spot, false);
        }
        change(spot);
        if let Some(web) = &mut self.web {
            web.count(spot, true);
        }
        self.rank(at);
    }
}

impl Web {
    /// Adds what a spot counts for, or takes it away.
    fn count(&mut self, spot: &Spot, is_there: bool) {
        let (holders, complete) = (
            usize::from(spot.holder.is_some()),
            usize::from(spot.holder.as_ref().is_some_and(|holder| holder.complete)),
        );
        if is_there {
            self.roots.extend(spot.as_root());
            (self.holders, self.complete) = (self.holders + holders, self.complete + complete);
        } else {
            spot.as_root().map(|root| self.roots.remove(&root));
            (self.holders, self.complete) = (self.holders - holders, self.complete - complete);
        }
    }
}

impl Holder {
    /// Whether all bytes are there.
    pub(super) const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether it is pinned there: put, reduced or adopted.
    pub(super) const fn is_origin(&self) -> bool {
        self.origin
    }

    /// Its last report of its present sender.
    pub(super) fn last(&self) -> Option<Report> {
        self.reports.as_ref()?.last
    }

    /// The same, if it says something of the present.
    pub(super) fn fresh(&self, now: Instant) -> Option<Report> {
        self.last().filter(|report| report.is_fresh(now))
    }

    /// Senders that it was moved away from.
    pub(super) fn left(&self) -> &[Left] {
        self.reports.as_ref().map_or(&[][..], |reports| &reports.left)
    }
}

const fn rounded(thousandths: u32) -> u32 {
    (thousandths + WHOLE / 2) / WHOLE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a holder's source is, and whether it is complete or grows where it is made.
    type Facts = BTreeMap<NodeId, (Option<NodeId>, bool, bool)>;

    /// The root and the depth of a holder, by walking.
    fn walk(facts: &Facts, node: NodeId) -> (NodeId, u32) {
        let (mut at, mut depth) = (node, 0);
        while let Some((Some(source), ..)) = facts.get(&at) {
            (at, depth) = (*source, depth + 1);
        }
        (at, depth)
    }

    fn check(tree: &mut Tree, facts: &Facts) {
        let is_root =
            |node: &NodeId| facts.get(node).is_some_and(|it| it.1 || it.2 && it.0.is_none());
        assert!(tree.nodes().eq(facts.keys().copied()));
        assert_eq!(
            (tree.len(), tree.complete()),
            (facts.len(), facts.values().filter(|it| it.1).count())
        );
        let roots: BTreeSet<NodeId> = tree.roots().collect();
        assert!(roots.iter().eq(facts.keys().filter(|node| is_root(node))));
        for (node, (source, ..)) in facts {
            assert_eq!(tree.source(*node), *source);
            let (root, depth) = walk(facts, *node);
            let lineage = tree.lineage(*node).unwrap();
            assert_eq!((lineage.root, lineage.depth), (root, is_root(&root).then_some(depth)));
            let fed = facts.iter().filter(|(_, it)| it.0 == Some(*node));
            let receivers: BTreeSet<NodeId> = tree.receivers(*node).map(|(it, _)| it).collect();
            assert!(fed.clone().map(|(it, _)| it).eq(&receivers));
            assert_eq!(tree.load(*node), fed.count() as u32);
        }
    }

    proptest! {
        /// Goal: after any changes the tree says what a walk through all holders finds, in a ranking of them too.
        #[test]
        fn a_tree_is_what_a_walk_finds(
            steps in prop::collection::vec((0..8u8, 0..10u64, 0..10u64), 0..120),
            ranked in 0..60usize,
        ) {
            let (mut tree, mut facts) = (Tree::default(), Facts::new());
            let address = ([127, 0, 0, 1], 1).into();
            let members = Members::new(crate::members::Member { id: NodeId(0), address, place: None });
            for (step, (kind, node, source)) in steps.into_iter().enumerate() {
                let (node, source) = (NodeId(node), NodeId(source));
                match kind {
                    0 | 1 => {
                        tree.enter(node, kind == 1, kind == 1);
                        let before = facts.get(&node).and_then(|it| it.0).filter(|_| kind == 0);
                        facts.insert(node, (before, kind == 1, kind == 1));
                    }
                    2 => prop_assert_eq!(tree.remove(node), facts.remove(&node).is_some()),
                    3 => {
                        tree.detach(node);
                        facts.entry(node).and_modify(|it| it.0 = None);
                    }
                    _ if facts.get(&node).is_some_and(|it| !it.1) => {
                        facts.entry(node).and_modify(|it| it.0 = None);
                        let is_free = walk(&facts, source).0 != node;
                        prop_assert_eq!(tree.attach(node, source), is_free);
                        facts.entry(node).and_modify(|it| it.0 = is_free.then_some(source));
                    }
                    _ => {}
                }
                check(&mut tree, &facts);
                if step >= ranked {
                    let ranking = tree.ranking(&members, 7);
                    let next = |rank: &Option<Rank>| ranking.next(&None, *rank).map(Some);
                    let ranks = core::iter::successors(next(&None), next).flatten();
                    let ranks: Vec<Rank> = ranks.collect();
                    prop_assert!(ranks.is_sorted());
                    let nodes: BTreeSet<NodeId> = ranks.iter().map(|it| tree.node_at(it.at)).collect();
                    prop_assert!(nodes.iter().eq(facts.keys()) && nodes.len() == ranks.len());
                    prop_assert!(ranks.iter().all(|it| it.load == tree.load(tree.node_at(it.at))));
                }
            }
        }
    }
}

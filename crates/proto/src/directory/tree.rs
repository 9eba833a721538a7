//! The broadcast tree of one object: which nodes hold or receive a copy, and which of them receives
//! from which.
//!
//! A root is a holder without a source whose copy is complete, or grows where it is made. A source
//! may be a node without a copy, if receivers report so; until that node announces a copy, the
//! nodes behind it have no root.
//!
//! Up to 16 holders are scanned, because most objects never have more than one. For more holders,
//! the tree maintains roots and an index, so that no query scans all holders. A query about the
//! path of one holder walks to its root.
//!
//! Invariants: there is no circle; a complete copy has no source. Does not know why a source was
//! chosen.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::{
    holder::{Holder, NONE, TreeNode},
    ranking::{Rank, Ranking},
    reports::{Branches, FormerSource, Report},
    speeds::Speeds,
};
use crate::{id::NodeId, members::Members, place::Place, time::Instant};

/// Up to how many holders are scanned.
pub(super) const FEW: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Tree {
    /// In no order. Idle spots are reused.
    spots: Vec<TreeNode>,
    /// Pending moves and reports of transfers.
    traffic: Option<Box<Traffic>>,
    /// Index for more than [`FEW`] holders.
    index: Option<Box<TreeIndex>>,
}

/// The path of a holder's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lineage {
    pub(super) root: NodeId,
    /// The first receiver on the path from the root; `None` for the root itself.
    pub(super) branch: Option<NodeId>,
    /// Relays between the holder and its root; `None` if the last node of the path is not a root,
    /// so that no bytes come.
    pub(super) depth: Option<u32>,
    /// Whether the root has all bytes.
    pub(super) is_complete: bool,
    /// When a receiver on the path was last moved to another source.
    pub(super) moved: Instant,
}

/// The path from a root to a holder.
#[derive(Clone, Copy, Debug)]
struct RootPath {
    root: u32,
    /// The spot below the root; [`NONE`] if the path ends at the root.
    branch: u32,
    depth: u32,
    /// When a receiver on it was last moved.
    moved: Instant,
}

#[derive(Debug, Default)]
struct Traffic {
    /// Receivers with a pending move, each with its current source. They move to their planned
    /// source when that begins to receive.
    moves: BTreeMap<NodeId, NodeId>,
    branches: Branches,
    /// When receivers have reported a stall.
    stalled: BTreeSet<(Instant, NodeId)>,
}

#[derive(Debug, Default)]
struct TreeIndex {
    /// The spots that are not idle, by node.
    by_node: BTreeMap<NodeId, u32>,
    idle: Vec<u32>,
    /// The depth of each spot when it was attached. Changes above it do not update it.
    depths: Vec<u32>,
    /// Pairs of a source and one of its receivers.
    edges: BTreeSet<(u32, u32)>,
    roots: BTreeSet<(bool, bool, NodeId)>,
    ranking: Option<Ranking>,
}

impl Tree {
    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Whether a node holds a complete copy.
    pub(super) fn is_complete(&self) -> bool {
        let first = self.roots().next().and_then(|root| self.get(root));
        first.is_some_and(|holder| holder.complete)
    }

    /// All holders, ordered by node.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Holder)> {
        let many = self.index.iter().flat_map(|index| index.by_node.values());
        let many = many.map(|at| &self.spots[*at as usize]);
        let few = || self.spots.iter().filter(|_| self.index.is_none());
        let next = move |last: Option<&TreeNode>| {
            few().filter(|spot| last.is_none_or(|it| it.node < spot.node)).min_by_key(|it| it.node)
        };
        let few = core::iter::successors(next(None), move |last| next(Some(last)));
        few.chain(many).filter_map(|spot| Some((spot.node, spot.holder.as_ref()?)))
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.iter().map(|(node, _)| node)
    }

    /// The roots: complete pinned copies first, then other complete copies, then growing pinned
    /// copies.
    pub(super) fn roots(&self) -> impl Iterator<Item = NodeId> {
        let mut few: Vec<_> = match self.index {
            Some(_) => Vec::new(),
            None => self.spots.iter().filter_map(TreeNode::as_root).collect(),
        };
        few.sort_unstable();
        let many = self.index.iter().flat_map(|index| index.roots.iter().copied());
        few.into_iter().chain(many).map(|(.., node)| node)
    }

    pub(super) fn get(&self, node: NodeId) -> Option<&Holder> {
        self.spot(node)?.holder.as_ref()
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut Holder> {
        let at = self.at(node)?;
        self.spots[at as usize].holder.as_mut()
    }

    /// Nodes from which others receive although no copy of them is recorded.
    pub(super) fn unrecorded_sources(&self) -> impl Iterator<Item = NodeId> {
        let without = self.spots.iter().filter(|spot| spot.holder.is_none() && spot.receivers > 0);
        without.map(|spot| spot.node)
    }

    /// The source of an incomplete copy.
    pub(super) fn source(&self, node: NodeId) -> Option<NodeId> {
        let source = self.spot(node)?.source;
        (source != NONE).then(|| self.spots[source as usize].node)
    }

    /// The nodes that receive from `node`.
    pub(super) fn receivers(&self, node: NodeId) -> impl Iterator<Item = (NodeId, &Holder)> {
        let at = self.at(node).unwrap_or(NONE);
        let edges =
            self.index.iter().flat_map(move |index| index.edges.range((at, 0)..=(at, u32::MAX)));
        let many = edges.map(|(_, receiver)| &self.spots[*receiver as usize]);
        let few = self.spots.iter().filter(move |it| self.index.is_none() && it.source == at);
        let few = few.filter(move |_| at != NONE);
        few.chain(many).filter_map(|spot| Some((spot.node, spot.holder.as_ref()?)))
    }

    /// How many receivers a node sends to; slow ones count for less.
    pub(super) fn load(&self, node: NodeId) -> u32 {
        self.spot(node).map_or(0, |spot| spot.receivers_fed())
    }

    /// The path of a holder's bytes.
    pub(super) fn lineage(&self, node: NodeId) -> Option<Lineage> {
        let at = self.at(node)?;
        let path = self.path(at);
        let root = &self.spots[path.root as usize];
        Some(Lineage {
            root: root.node,
            branch: self.spots.get(path.branch as usize).map(|spot| spot.node),
            depth: root.is_root().then_some(path.depth),
            is_complete: root.holder.as_ref().is_some_and(|root| root.complete),
            moved: path.moved,
        })
    }

    fn path(&self, to: u32) -> RootPath {
        let spot = |at: u32| &self.spots[at as usize];
        let mut path = RootPath { root: to, branch: NONE, depth: 0, moved: spot(to).moved };
        while spot(path.root).source != NONE {
            (path.branch, path.root) = (path.root, spot(path.root).source);
            (path.depth, path.moved) = (path.depth + 1, path.moved.max(spot(path.root).moved));
        }
        path
    }

    /// Whether a holder has all bytes or receives them.
    pub(super) fn is_fed(&self, node: NodeId) -> bool {
        self.get(node).is_some() && self.lineage(node).is_some_and(|it| it.depth.is_some())
    }

    /// Records that a node holds or receives a copy, or that its copy has changed.
    pub(super) fn enter(&mut self, node: NodeId, complete: bool, pinned: bool) -> &mut Holder {
        let at = self.open(node);
        if complete {
            self.detach(node);
            self.spots[at as usize].moved = Instant::default();
        }
        self.change(at, |spot| {
            let holder = spot.holder.get_or_insert_default();
            (holder.complete, holder.pinned) = (complete, pinned);
        });
        let holder = self.spots[at as usize].holder.get_or_insert_default();
        if complete {
            holder.reports = None;
        }
        holder
    }

    /// Removes a holder. Its receivers keep it as their source until they announce another one.
    /// Returns false if it was not a holder.
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

    /// Sets the source of a holder. If that would be a circle, the holder has no source, and this
    /// returns false.
    pub(super) fn attach(&mut self, node: NodeId, source: NodeId) -> bool {
        if self.source(node) == Some(source) && self.moving_from(node).is_none() {
            return true;
        }
        self.detach(node);
        let (from, at) = (self.open(source), self.open(node));
        // No path leads through a node without receivers.
        if source == node || self.spots[at as usize].receivers > 0 && self.path(from).root == at {
            self.tidy(from);
            return false;
        }
        if let Some(index) = &mut self.index {
            index.link(at, from);
        }
        let weight = self.spots[at as usize].weight;
        self.change(at, |spot| spot.source = from);
        self.change(from, |spot| {
            (spot.load, spot.receivers) = (spot.load + weight, spot.receivers + 1)
        });
        true
    }

    /// Removes the source of a holder.
    pub(super) fn detach(&mut self, node: NodeId) {
        if self.set_aside(node).is_some()
            && let Some(traffic) = &mut self.traffic
        {
            traffic.moves.remove(&node);
            traffic.branches.forget(node);
        }
    }

    /// Detaches a holder from its source until it is attached again; returns the source. Pending
    /// moves and reports are kept.
    pub(super) fn set_aside(&mut self, node: NodeId) -> Option<NodeId> {
        let source = self.source(node)?;
        let at = self.at(node)?;
        let TreeNode { source: from, weight, .. } = self.spots[at as usize];
        if let Some(index) = &mut self.index {
            index.cut(at, from);
        }
        self.change(at, |spot| spot.source = NONE);
        self.change(from, |spot| {
            (spot.load, spot.receivers) = (spot.load - weight, spot.receivers - 1)
        });
        self.tidy(from);
        Some(source)
    }

    /// Plans to move a receiver to `to`, once that has begun to receive.
    pub(super) fn move_soon(&mut self, node: NodeId, to: NodeId) {
        let sender = self.moving_from(node).or_else(|| self.source(node));
        if let Some(sender) = sender
            && self.attach(node, to)
        {
            self.traffic.get_or_insert_default().moves.insert(node, sender);
        }
    }

    /// The current source of a receiver with a pending move.
    pub(super) fn moving_from(&self, node: NodeId) -> Option<NodeId> {
        self.traffic.as_ref()?.moves.get(&node).copied()
    }

    /// Removes the pending moves for which `is_meant(planned source, current source)` is true, and
    /// those without a planned source. Returns each receiver with its current source.
    pub(super) fn take_moves(
        &mut self,
        is_meant: impl Fn(NodeId, NodeId) -> bool,
    ) -> Vec<(NodeId, NodeId)> {
        let Some(traffic) = &mut self.traffic else { return Vec::new() };
        let moves = core::mem::take(&mut traffic.moves);
        let is_held = |node: &NodeId, sender: &NodeId| {
            self.source(*node).is_none_or(|source| is_meant(source, *sender))
        };
        let (taken, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            moves.into_iter().partition(|(node, sender)| is_held(node, sender));
        self.traffic.get_or_insert_default().moves = kept;
        taken.into_iter().collect()
    }

    /// Sets the share that a receiver takes of its source's link, in thousandths.
    pub(super) fn weigh(&mut self, node: NodeId, weight: u32) {
        let Some(at) = self.at(node) else { return };
        let TreeNode { source, weight: before, .. } = self.spots[at as usize];
        self.spots[at as usize].weight = weight;
        if source != NONE {
            self.change(source, |spot| spot.load = spot.load - before + weight);
        }
    }

    /// Records a rate report of a receiver.
    pub(super) fn report(&mut self, node: NodeId, report: Report) {
        let Some(Lineage { branch, depth, .. }) = self.lineage(node) else { return };
        if let Some(holder) = self.get_mut(node) {
            holder.reports.get_or_insert_default().last = Some(report);
        }
        if let Some(branch) = branch.filter(|_| depth.is_some()) {
            self.traffic.get_or_insert_default().branches.note(branch, node, report);
        }
        if report.is_stalled() {
            self.traffic.get_or_insert_default().stalled.insert((report.at, node));
        }
    }

    /// Removes and returns the receivers that reported a stall no later than `until` and nothing
    /// since.
    pub(super) fn take_stalled(&mut self, until: Instant) -> Vec<NodeId> {
        let Some(traffic) = &mut self.traffic else { return Vec::new() };
        let later = traffic.stalled.split_off(&(until + 1, NodeId(0)));
        let due = core::mem::replace(&mut traffic.stalled, later);
        let is_last = |at: Instant, holder: &Holder| holder.last().is_some_and(|it| it.at == at);
        let is_due = |(at, node): &(Instant, NodeId)| {
            self.get(*node).is_some_and(|holder| is_last(*at, holder))
                && self.moving_from(*node).is_none()
        };
        due.into_iter().filter(is_due).map(|(_, node)| node).collect()
    }

    /// The best reported rate, if at least two branches have reported, and not only slow ones.
    pub(super) fn best_rate(&self, now: Instant, speeds: &Speeds) -> Option<u64> {
        let is_slow = |node| speeds.received_slowness(now, node) > 1;
        self.traffic.as_ref()?.branches.best(now, is_slow)
    }

    /// Moves a receiver to another source at once; it keeps its blocks. Returns false if that would
    /// be a circle.
    pub(super) fn move_now(&mut self, now: Instant, node: NodeId, to: NodeId) -> bool {
        let Some((at, from)) = self.at(node).zip(self.source(node)) else { return false };
        let is_moved = self.attach(node, to);
        let Some(holder) = self.get_mut(node) else { return false };
        holder.located = Some(now);
        if let Some(reports) = &mut holder.reports
            && let Some(report) = reports.last.take()
        {
            reports.left.push(FormerSource { node: from, report });
        }
        if !holder.left().is_empty() {
            self.spots[at as usize].moved = now;
        }
        is_moved
    }

    /// The index for more than [`FEW`] holders, updated to the current places of members.
    pub(super) fn ranking(&mut self, members: &Members, salt: u64) -> Option<&Ranking> {
        let (index, places) = (self.index.as_mut()?, members.places_version());
        if index.ranking.as_ref().is_none_or(|ranking| ranking.places != places) {
            let ranking = index.ranking.insert(Ranking::new(places, salt));
            let all = 0..self.spots.len() as u32;
            all.clone().for_each(|at| ranking.place_later(at));
            all.for_each(|at| self.rank(at));
        }
        let ranking = self.index.as_mut()?.ranking.as_mut()?;
        for at in ranking.take_later() {
            let spot = &self.spots[at as usize];
            let source = self.spots.get(spot.source as usize).map(|source| source.node);
            ranking.place(at, spot.node, source, members);
        }
        Some(ranking)
    }

    /// The next holder of a place in the index.
    pub(super) fn next_ranked(&self, place: &Option<Place>, after: Option<Rank>) -> Option<Rank> {
        self.index.as_ref()?.ranking.as_ref()?.next(place, after)
    }

    /// The number of transfers that leave each group of places, if the index has it.
    pub(super) fn crossings(&self) -> Option<&BTreeMap<Place, u64>> {
        Some(self.index.as_ref()?.ranking.as_ref()?.crossings())
    }

    /// The node at a position of a rank.
    pub(super) fn node_at(&self, at: u32) -> NodeId {
        self.spots[at as usize].node
    }

    /// Updates the rank of a holder in the index.
    pub(super) fn rank(&mut self, at: u32) {
        let Some(index) = &mut self.index else { return };
        let Some(ranking) = &mut index.ranking else { return };
        let spot = &self.spots[at as usize];
        let rank = spot.holder.as_ref().map(|holder| Rank {
            load: spot.receivers_fed(),
            depth: index.depths[at as usize],
            partial: !holder.complete,
            pinned: holder.pinned,
            tie: ranking.tie(spot.node),
            at,
        });
        ranking.set(at, rank);
    }

    /// Updates the stored depth of a holder.
    pub(super) fn update_depth(&mut self, node: NodeId, depth: u32) {
        let Some((at, index)) = self.at(node).zip(self.index.as_mut()) else { return };
        index.depths[at as usize] = depth;
        self.rank(at);
    }

    fn spot(&self, node: NodeId) -> Option<&TreeNode> {
        self.at(node).map(|at| &self.spots[at as usize])
    }

    fn at(&self, node: NodeId) -> Option<u32> {
        match &self.index {
            Some(index) => index.by_node.get(&node).copied(),
            None => (0..).zip(&self.spots).find(|(_, spot)| spot.node == node).map(|(at, _)| at),
        }
    }

    /// Returns the spot of a node; creates one if it is missing.
    fn open(&mut self, node: NodeId) -> u32 {
        if let Some(at) = self.at(node) {
            return at;
        }
        let idle = match &mut self.index {
            Some(index) => index.idle.pop(),
            None => (0..).zip(&self.spots).find(|(_, spot)| spot.is_idle()).map(|(at, _)| at),
        };
        if idle.is_none() && self.spots.len() == FEW && self.index.is_none() {
            let mut index = TreeIndex::default();
            for (at, spot) in (0..).zip(&self.spots) {
                index.open(at, spot);
            }
            let edges = (0..).zip(&self.spots).filter(|(_, spot)| spot.source != NONE);
            edges.for_each(|(at, spot)| index.link(at, spot.source));
            index.depths = (0..).zip(&self.spots).map(|(at, _)| self.path(at).depth).collect();
            self.index = Some(Box::new(index));
        }
        let (at, spot) = (idle.unwrap_or(self.spots.len() as u32), TreeNode::new(node));
        if let Some(index) = &mut self.index {
            index.open(at, &spot);
        }
        match self.spots.get_mut(at as usize) {
            Some(idle) => *idle = spot,
            None => {
                // `push` alone would reserve memory for four.
                self.spots.reserve_exact(usize::from(self.spots.is_empty()));
                self.spots.push(spot);
            }
        }
        at
    }

    /// Frees the spot of a node that is neither a holder nor a source.
    fn tidy(&mut self, at: u32) {
        let spot = &mut self.spots[at as usize];
        if !spot.is_idle() {
            return;
        }
        *spot = TreeNode::new(spot.node);
        if let Some(index) = &mut self.index {
            index.by_node.remove(&spot.node);
            index.idle.push(at);
            if let Some(ranking) = &mut index.ranking {
                ranking.forget(at);
            }
        }
    }

    /// Changes a spot, and updates the roots and the index.
    fn change(&mut self, at: u32, change: impl FnOnce(&mut TreeNode)) {
        let spot = &mut self.spots[at as usize];
        let before = spot.as_root();
        change(spot);
        let after = spot.as_root();
        if let Some(index) = &mut self.index
            && before != after
        {
            before.map(|root| index.roots.remove(&root));
            index.roots.extend(after);
        }
        self.rank(at);
    }
}

impl TreeIndex {
    fn open(&mut self, at: u32, spot: &TreeNode) {
        let spots = self.depths.len().max(at as usize + 1);
        self.depths.resize(spots, 0);
        self.depths[at as usize] = 0;
        self.by_node.insert(spot.node, at);
        self.roots.extend(spot.as_root());
        if let Some(ranking) = &mut self.ranking {
            ranking.place_later(at);
        }
    }

    fn link(&mut self, at: u32, source: u32) {
        self.edges.insert((source, at));
        self.depths[at as usize] = self.depths[source as usize] + 1;
        if let Some(ranking) = &mut self.ranking {
            ranking.place_later(at);
        }
    }

    fn cut(&mut self, at: u32, source: u32) {
        self.edges.remove(&(source, at));
        self.depths[at as usize] = 0;
        if let Some(ranking) = &mut self.ranking {
            ranking.stop_crossing(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// For each holder its source, whether it is complete, and whether it grows where it is made.
    type Facts = BTreeMap<NodeId, (Option<NodeId>, bool, bool)>;

    /// Finds the root and the depth of a holder by walking.
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
        assert_eq!(tree.is_complete(), facts.values().any(|it| it.1));
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
        /// Goal: after any changes the tree and its ranking agree with a walk through all holders.
        #[test]
        fn a_tree_is_what_a_walk_finds(
            steps in prop::collection::vec((0..8u8, 0..24u64, 0..24u64), 0..200),
            ranked in 0..150usize,
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
                    let is_ranked = tree.ranking(&members, 7).is_some();
                    let next = |rank: &Option<Rank>| tree.next_ranked(&None, *rank).map(Some);
                    let ranks = core::iter::successors(next(&None), next).flatten();
                    let ranks: Vec<Rank> = ranks.collect();
                    prop_assert!(ranks.is_sorted());
                    let nodes: BTreeSet<NodeId> = ranks.iter().map(|it| tree.node_at(it.at)).collect();
                    prop_assert!(!is_ranked || nodes.iter().eq(facts.keys()) && nodes.len() == ranks.len());
                    prop_assert!(ranks.iter().all(|it| it.load == tree.load(tree.node_at(it.at))));
                }
            }
        }
    }
}

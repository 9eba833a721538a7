//! The members of the cluster, and the owners of each object.
//!
//! Records members by id, address and place. Connections and failure detection are elsewhere.

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    format, vec,
    vec::Vec,
};
use core::{net::SocketAddr, ops::Bound};

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    id::{NodeId, ObjectId, mix},
    limits::DEPARTED_MAX,
    place::Place,
};

/// A node in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// Its id, valid while its process runs.
    pub id: NodeId,
    /// Its address for other nodes.
    pub address: SocketAddr,
    /// Its configured place, if any.
    pub place: Option<Place>,
}

/// The two nodes that store an object's directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owners {
    /// The primary owner: replies to requests, and alone assigns sources.
    pub primary: NodeId,
    /// The backup owner; `None` in a cluster of one.
    pub backup: Option<NodeId>,
}

impl Owners {
    /// Both owners, primary first.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        core::iter::once(self.primary).chain(self.backup)
    }

    /// The owners other than `node`.
    pub(crate) fn except(self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.iter().filter(move |owner| *owner != node)
    }

    /// Whether `node` is one of the owners.
    pub fn contains(self, node: NodeId) -> bool {
        self.iter().any(|owner| owner == node)
    }
}

/// This node's membership view. It always includes this node.
#[derive(Clone, Debug)]
pub struct Members {
    me: NodeId,
    all: BTreeMap<NodeId, Member>,
    /// The same members, which every search for owners reads, each with the hash of its id.
    hashed: Vec<(NodeId, u64)>,
    /// Former members. Reports about them may be outdated.
    departed: Departed,
    /// Leaving members, which remain until their work is finished.
    leaving: BTreeSet<NodeId>,
    /// Measured places of members that have no configured place.
    measured: BTreeMap<NodeId, Place>,
    /// Changes when the place of a member changes. It is 0 until any place is known, so that
    /// lookups of places can be skipped.
    places_version: u64,
}

/// Former members, up to a limit; beyond it the earliest is forgotten.
#[derive(Clone, Debug, Default)]
struct Departed {
    all: BTreeSet<NodeId>,
    /// In order of departure.
    order: VecDeque<NodeId>,
}

impl Departed {
    fn insert(&mut self, node: NodeId, most: usize) {
        self.remove(node);
        self.all.insert(node);
        self.order.push_back(node);
        if self.order.len() > most
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }

    fn remove(&mut self, node: NodeId) {
        if self.all.remove(&node) {
            self.order.retain(|other| *other != node);
        }
    }
}

impl Members {
    /// A cluster of one node.
    pub fn new(me: Member) -> Self {
        let all = BTreeMap::from([(me.id, me)]);
        let (departed, leaving, measured) = (Departed::default(), BTreeSet::new(), BTreeMap::new());
        let places_version = u64::from(me.place.is_some());
        let hashed = vec![(me.id, mix(me.id.0))];
        Self { me: me.id, all, hashed, departed, leaving, measured, places_version }
    }

    /// Adds a member. Returns false if it is already known in this form.
    pub fn insert(&mut self, member: Member) -> bool {
        self.departed.remove(member.id);
        let before = self.all.insert(member.id, member);
        if before.is_none() {
            self.hashed.push((member.id, mix(member.id.0)));
        }
        if before.is_some_and(|before| before.place != member.place) {
            self.places_version += 1;
        }
        self.places_version = self.places_version.max(u64::from(member.place.is_some()));
        before != Some(member)
    }

    /// Removes a member. Returns false if it is unknown. This node never removes itself.
    pub fn remove(&mut self, node: NodeId) -> bool {
        let is_removed = node != self.me && self.all.remove(&node).is_some();
        if is_removed {
            self.hashed.retain(|(other, _)| *other != node);
            self.departed.insert(node, DEPARTED_MAX);
            self.leaving.remove(&node);
        }
        is_removed
    }

    /// Marks a member, or this node, as leaving.
    pub fn begin_to_leave(&mut self, node: NodeId) {
        if self.contains(node) {
            self.leaving.insert(node);
        }
    }

    /// Whether `node` is a leaving member.
    pub fn is_leaving(&self, node: NodeId) -> bool {
        self.leaving.contains(&node)
    }

    /// Whether this node has begun to leave.
    pub fn self_is_leaving(&self) -> bool {
        self.is_leaving(self.me)
    }

    /// Number of members that are not leaving, this node included.
    pub fn staying(&self) -> usize {
        self.all.len() - self.leaving.len()
    }

    /// Whether any member is leaving.
    pub fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether `node` is a former member.
    pub fn is_departed(&self, node: NodeId) -> bool {
        self.departed.all.contains(&node)
    }

    /// The error of an id that a node generated which is not a member: no other node can make its
    /// object.
    pub fn why_unmade(&self, id: &ObjectId) -> Option<Error> {
        let node = id.minter().filter(|node| !self.contains(*node))?;
        let detail = format!(
            "its node {node} is not a member: it has left or failed, or the ref belongs to \
             another cluster"
        );
        Some(Error::ObjectLost { id: id.clone(), detail })
    }

    /// This node.
    pub const fn me(&self) -> NodeId {
        self.me
    }

    /// Removes this node, to compute the owners after it has left.
    pub fn resign(&mut self) {
        self.all.remove(&self.me);
        self.hashed.retain(|(node, _)| *node != self.me);
    }

    /// Number of members, including this node.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Always false, since this node is a member.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether `node` is a member.
    pub fn contains(&self, node: NodeId) -> bool {
        self.all.contains_key(&node)
    }

    /// Address of `node`.
    pub fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.all.get(&node).map(|member| member.address)
    }

    /// Configured place of `node`, or else its measured place.
    pub fn place(&self, node: NodeId) -> Option<Place> {
        self.known_place(node).copied()
    }

    fn known_place(&self, node: NodeId) -> Option<&Place> {
        let member = self.all.get(&node).filter(|_| self.has_places())?;
        member.place.as_ref().or_else(|| self.measured.get(&node))
    }

    /// Whether the place of any member is known.
    pub const fn has_places(&self) -> bool {
        self.places_version > 0
    }

    /// A number that changes when the place of a member changes; 0 while no place is known.
    pub const fn places_version(&self) -> u64 {
        self.places_version
    }

    /// Sets the measured places. Configured places take precedence.
    pub fn set_measured(&mut self, measured: BTreeMap<NodeId, Place>) {
        if self.measured != measured {
            self.places_version += 1;
            self.measured = measured;
        }
    }

    /// Distance of two nodes, as [`Place::distance`]. A node without a known place is near to all
    /// others.
    pub fn distance(&self, one: NodeId, other: NodeId) -> u8 {
        let places = self.known_place(one).zip(self.known_place(other));
        places.map_or(0, |(one, other)| one.distance(other))
    }

    /// All members including this node, sorted by id.
    pub fn iter(&self) -> impl Iterator<Item = Member> {
        self.all.values().copied()
    }

    /// All other members, sorted by id.
    pub fn others(&self) -> impl Iterator<Item = Member> {
        self.iter().filter(|member| member.id != self.me)
    }

    /// All other members, in a ring that begins after this node.
    pub fn ring(&self) -> impl Iterator<Item = NodeId> {
        let after = (Bound::Excluded(self.me), Bound::Unbounded);
        self.all.range(after).chain(self.all.range(..self.me)).map(|(node, _)| *node)
    }

    /// The owners of an object: the first two nodes by rendezvous hashing. For a generated id the
    /// node that generated it comes first, while it is a member.
    ///
    /// A membership change moves only the objects whose owners joined or left.
    pub fn owners(&self, id: &ObjectId) -> Owners {
        let minter = id.minter().filter(|node| self.contains(*node));
        let (best, next) = self.best_two(id.owner_hash(), minter);
        match minter {
            Some(minter) => Owners { primary: minter, backup: best },
            None => Owners { primary: best.unwrap_or(self.me), backup: next },
        }
    }

    /// The members with the highest and the second highest score for `hash`, except `skip`. The
    /// score of a member is a hash of both hashes. No two members have the same one: [`mix`] maps
    /// different numbers to different ones.
    fn best_two(&self, hash: u64, skip: Option<NodeId>) -> (Option<NodeId>, Option<NodeId>) {
        let (mut best, mut next) = ((0, None), (0, None));
        for &(node, node_hash) in &self.hashed {
            let score = mix(hash ^ node_hash);
            if score < next.0 || Some(node) == skip {
                continue;
            }
            if score < best.0 {
                next = (score, Some(node));
            } else {
                (best, next) = ((score, Some(node)), best);
            }
        }
        (best.1, next.1)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn member(id: u64) -> Member {
        let address = SocketAddr::from(([127, 0, 0, 1], id as u16));
        Member { id: NodeId(id), address, place: None }
    }

    fn cluster(size: u64) -> Members {
        let mut members = Members::new(member(1));
        (2..=size).for_each(|id| assert!(members.insert(member(id))));
        members
    }

    #[test]
    fn a_minted_id_is_owned_by_its_minter_while_that_lives() {
        let mut members = cluster(5);
        let id = ObjectId::Minted { node: NodeId(3), serial: 9 };
        let before = members.owners(&id);
        assert_eq!(before.primary, NodeId(3));
        members.remove(NodeId(3));
        assert_eq!(Some(members.owners(&id).primary), before.backup, "the second takes over");
    }

    #[test]
    fn the_ring_begins_after_this_node() {
        let mut members = Members::new(member(3));
        [1, 2, 4, 5].into_iter().for_each(|id| assert!(members.insert(member(id))));
        assert!(members.ring().eq([4, 5, 1, 2].map(NodeId)));
    }

    #[test]
    fn a_departure_moves_only_what_the_departed_owned() {
        let mut members = cluster(8);
        let ids: Vec<ObjectId> =
            (0..200).map(|n| alloc::format!("group{n}/1").parse().unwrap()).collect();
        let before: Vec<_> = ids.iter().map(|id| members.owners(id)).collect();
        members.remove(NodeId(4));
        for (id, before) in ids.iter().zip(before) {
            let after = members.owners(id);
            if before.contains(NodeId(4)) {
                let survivor = before.iter().find(|node| *node != NodeId(4)).unwrap();
                assert_eq!(after.primary, survivor);
            } else {
                assert_eq!(after, before);
            }
        }
    }

    /// Goal: the owners are the members with the highest scores, whoever joined and left before.
    #[test]
    fn the_owners_have_the_highest_scores_of_all_members() {
        let mut members = Members::new(member(9));
        for id in (1..=40).chain([7, 12, 9]) {
            members.insert(member(id));
        }
        (10..=30).for_each(|id| assert!(members.remove(NodeId(id))));
        members.insert(member(20));
        for resigned in [false, true] {
            if resigned {
                members.resign();
            }
            for id in (0..200).map(|n| alloc::format!("group{n}/1").parse::<ObjectId>().unwrap()) {
                let score = |node: NodeId| mix(id.owner_hash() ^ mix(node.0));
                let mut all: Vec<NodeId> = members.iter().map(|member| member.id).collect();
                all.sort_unstable_by_key(|node| core::cmp::Reverse(score(*node)));
                let owners = members.owners(&id);
                assert_eq!((owners.primary, owners.backup), (all[0], Some(all[1])), "{id}");
            }
        }
    }

    #[test]
    fn of_many_that_departed_the_last_are_remembered() {
        let mut departed = Departed::default();
        (1..=5).for_each(|id| departed.insert(NodeId(id), 3));
        departed.insert(NodeId(3), 3);
        departed.insert(NodeId(6), 3);
        assert_eq!(departed.all, BTreeSet::from([3, 5, 6].map(NodeId)));
        departed.remove(NodeId(5));
        assert_eq!(departed.order, [3, 6].map(NodeId));
    }

    #[test]
    fn only_nodes_of_two_racks_are_apart() {
        let at = |rack: &str| rack.parse().ok();
        let mut members = Members::new(Member { place: at("a"), ..member(1) });
        for (id, place) in [(2, at("a")), (3, at("b")), (4, None)] {
            members.insert(Member { place, ..member(id) });
        }
        let apart = |one, other| members.distance(NodeId(one), NodeId(other)) > 0;
        assert!(apart(1, 3) && apart(3, 2));
        assert!(!apart(1, 2) && !apart(1, 4) && !apart(4, 3) && !apart(1, 5));
        let found = [1, 4].map(|id| (NodeId(id), at("b").unwrap()));
        members.set_measured(BTreeMap::from(found));
        assert_eq!(members.place(NodeId(1)), at("a"), "a configured place takes precedence");
        assert!(members.distance(NodeId(1), NodeId(4)) > 0);
    }

    #[test]
    fn alone_one_owns_everything_without_a_second() {
        let members = cluster(1);
        let owners = members.owners(&"x".parse().unwrap());
        assert_eq!(owners, Owners { primary: NodeId(1), backup: None });
    }
}

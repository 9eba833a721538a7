//! Who is in the cluster, and therefore who owns which object.
//!
//! Knows members by id and address; does not know how they are reached or whether they answer.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{
    id::{NodeId, ObjectId, mix},
    limits::DEPARTED_MAX,
    place::Place,
};

/// A node that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// Its identity for as long as its process runs.
    pub id: NodeId,
    /// Where others reach it.
    pub address: SocketAddr,
    /// Where it stands, if it was told.
    pub place: Option<Place>,
}

/// The two nodes that keep the directory entry of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owners {
    /// Answers first, and alone assigns senders.
    pub first: NodeId,
    /// Takes over; none in a cluster of one.
    pub second: Option<NodeId>,
}

impl Owners {
    /// Both, first the owner.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        core::iter::once(self.first).chain(self.second)
    }

    /// Whether `node` is one of the two.
    pub fn contains(self, node: NodeId) -> bool {
        self.iter().any(|owner| owner == node)
    }
}

/// The cluster as this node sees it; always holds this node itself.
#[derive(Clone, Debug)]
pub struct Members {
    me: NodeId,
    all: BTreeMap<NodeId, Member>,
    /// Those that were members and are none any more. What others tell of them may be old.
    departed: Departed,
    /// Members that were told to leave, and are here until they have finished what they do.
    leaving: BTreeSet<NodeId>,
    /// Where members stand that were not told, as was measured.
    found: BTreeMap<NodeId, Place>,
    /// Changes whenever a member is found to be elsewhere. 0 until a place is known: no question about places looks anything
    /// up then.
    places_version: u64,
}

/// Those that were members, up to a number: of more, the one that departed first is forgotten.
#[derive(Clone, Debug, Default)]
struct Departed {
    all: BTreeSet<NodeId>,
    /// In the order in which they went.
    order: VecDeque<NodeId>,
}

impl Departed {
    fn insert(&mut self, node: NodeId, most: usize) {
        self.remove(node);
        self.all.insert(node);
        self.order.push_back(node);
        if self.order.len() > most
            && let Some(first) = self.order.pop_front()
        {
            self.all.remove(&first);
        }
    }

    fn remove(&mut self, node: NodeId) {
        if self.all.remove(&node) {
            self.order.retain(|other| *other != node);
        }
    }
}

impl Members {
    /// A cluster of one.
    pub fn new(me: Member) -> Self {
        let all = BTreeMap::from([(me.id, me)]);
        let (departed, leaving, found) = (Departed::default(), BTreeSet::new(), BTreeMap::new());
        let places_version = u64::from(me.place.is_some());
        Self { me: me.id, all, departed, leaving, found, places_version }
    }

    /// Adds a member; false if it was known as this.
    pub fn insert(&mut self, member: Member) -> bool {
        self.departed.remove(member.id);
        let before = self.all.insert(member.id, member);
        if before.is_some_and(|before| before.place != member.place) {
            self.places_version += 1;
        }
        self.places_version = self.places_version.max(u64::from(member.place.is_some()));
        before != Some(member)
    }

    /// Removes a member; false if it was unknown. This node never removes itself.
    pub fn remove(&mut self, node: NodeId) -> bool {
        let is_removed = node != self.me && self.all.remove(&node).is_some();
        if is_removed {
            self.departed.insert(node, DEPARTED_MAX);
            self.leaving.remove(&node);
        }
        is_removed
    }

    /// A member, or this node, was told to leave.
    pub fn begin_to_leave(&mut self, node: NodeId) {
        if self.contains(node) {
            self.leaving.insert(node);
        }
    }

    /// Whether `node` is a member that was told to leave.
    pub fn is_leaving(&self, node: NodeId) -> bool {
        self.leaving.contains(&node)
    }

    /// Whether any member was told to leave.
    pub fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether `node` was a member and is none any more.
    pub fn is_departed(&self, node: NodeId) -> bool {
        self.departed.all.contains(&node)
    }

    /// This node itself.
    pub const fn me(&self) -> NodeId {
        self.me
    }

    /// Removes this node itself, to see who owns what when it has left.
    pub fn resign(&mut self) {
        self.all.remove(&self.me);
    }

    /// How many take part, this node too.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether none does: never, for this node takes part.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether `node` takes part.
    pub fn contains(&self, node: NodeId) -> bool {
        self.all.contains_key(&node)
    }

    /// Where `node` is reached.
    pub fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.all.get(&node).map(|member| member.address)
    }

    /// Where `node` stands, if that was told, or else measured.
    pub fn place(&self, node: NodeId) -> Option<Place> {
        self.known_place(node).copied()
    }

    fn known_place(&self, node: NodeId) -> Option<&Place> {
        let member = self.all.get(&node).filter(|_| self.has_places())?;
        member.place.as_ref().or_else(|| self.found.get(&node))
    }

    /// Whether it is known where any member stands.
    pub const fn has_places(&self) -> bool {
        self.places_version > 0
    }

    /// A number that changes whenever a member is found to be elsewhere; 0 while no place is known.
    pub const fn places_version(&self) -> u64 {
        self.places_version
    }

    /// Where members stand, as was measured. Those that were told know better.
    pub fn find(&mut self, found: BTreeMap<NodeId, Place>) {
        if self.found != found {
            self.places_version += 1;
            self.found = found;
        }
    }

    /// What was measured of where members stand.
    pub const fn found(&self) -> &BTreeMap<NodeId, Place> {
        &self.found
    }

    /// How far apart two nodes are, as [`Place::distance`]. Nodes of which no place is known are near to all others.
    pub fn distance(&self, one: NodeId, other: NodeId) -> u8 {
        let places = self.known_place(one).zip(self.known_place(other));
        places.map_or(0, |(one, other)| one.distance(other))
    }

    /// Whether what one of two nodes sends the other goes from group to group.
    pub fn are_apart(&self, one: NodeId, other: NodeId) -> bool {
        self.distance(one, other) > 0
    }

    /// Everybody, this node too, in order of id.
    pub fn iter(&self) -> impl Iterator<Item = Member> {
        self.all.values().copied()
    }

    /// Everybody else, in order of id.
    pub fn others(&self) -> impl Iterator<Item = Member> {
        self.iter().filter(|member| member.id != self.me)
    }

    /// The first two in the order of rendezvous hashing; a minted id has its minter in front while that lives.
    ///
    /// When a member comes or goes only the objects that it owns change owners.
    pub fn owners(&self, id: &ObjectId) -> Owners {
        let minter = id.minter().filter(|node| self.contains(*node));
        let (best, next) = self.best_two(id.owner_hash(), minter);
        match minter {
            Some(minter) => Owners { first: minter, second: best },
            None => Owners { first: best.unwrap_or(self.me), second: next },
        }
    }

    /// The members with the highest and the second highest score for `hash`, without `skip`.
    fn best_two(&self, hash: u64, skip: Option<NodeId>) -> (Option<NodeId>, Option<NodeId>) {
        let (mut best, mut next) = (None, None);
        for node in self.all.keys().copied().filter(|node| Some(*node) != skip) {
            let scored = Some((mix(hash ^ mix(node.0)), node));
            if scored > best {
                (best, next) = (scored, best);
            } else if scored > next {
                next = scored;
            }
        }
        (best.map(|(_, node)| node), next.map(|(_, node)| node))
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
        assert_eq!(before.first, NodeId(3));
        members.remove(NodeId(3));
        assert_eq!(Some(members.owners(&id).first), before.second, "the second takes over");
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
                assert_eq!(after.first, survivor);
            } else {
                assert_eq!(after, before);
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
        let apart = |one, other| members.are_apart(NodeId(one), NodeId(other));
        assert!(apart(1, 3) && apart(3, 2));
        assert!(!apart(1, 2) && !apart(1, 4) && !apart(4, 3) && !apart(1, 5));
        let found = [1, 4].map(|id| (NodeId(id), at("b").unwrap()));
        members.find(BTreeMap::from(found));
        assert_eq!(members.place(NodeId(1)), at("a"), "what a node was told comes before");
        assert!(members.are_apart(NodeId(1), NodeId(4)));
    }

    #[test]
    fn alone_one_owns_everything_without_a_second() {
        let members = cluster(1);
        let owners = members.owners(&"x".parse().unwrap());
        assert_eq!(owners, Owners { first: NodeId(1), second: None });
    }
}

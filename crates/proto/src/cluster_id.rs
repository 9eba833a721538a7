//! The identity of a cluster: whether two nodes that meet belong to one cluster, and which id they
//! have afterwards.
//!
//! Each node starts with a random number, which the shell generates. Clusters that meet while they
//! start take the lowest number. Once a node has lost a member, another process can have the
//! address of that member. From then on the id is final: the node joins no other cluster, and no
//! other cluster changes its id.

use core::fmt;

use serde::{Deserialize, Serialize};

/// The id of a cluster, in the view of one node. Members have the same id once they have met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterId {
    /// A random number.
    pub number: u64,
    /// Whether the cluster has lost a member. A cluster that has lost none can still become part of
    /// another one.
    pub is_final: bool,
}

/// How an initiator came to know the acceptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Introduction {
    /// By its address only, which is configured. Any process can listen there by now.
    Address,
    /// By its node id: the nodes have met, or a member has introduced them.
    Member,
}

impl ClusterId {
    /// The id of both nodes after `initiator` has connected to `acceptor`. Returns `None` if they
    /// must not connect: a node of a cluster with a final id has found another cluster at a
    /// configured address.
    pub fn meet(initiator: Self, acceptor: Self, introduction: Introduction) -> Option<Self> {
        let is_same = initiator.number == acceptor.number;
        if introduction == Introduction::Address && initiator.is_final && !is_same {
            return None;
        }
        let order = |id: &Self| (!id.is_final, id.number);
        Some(if order(&initiator) <= order(&acceptor) { initiator } else { acceptor })
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::{Introduction::*, *};

    const fn starting(number: u64) -> ClusterId {
        ClusterId { number, is_final: false }
    }

    const fn fixed(number: u64) -> ClusterId {
        ClusterId { number, is_final: true }
    }

    #[test]
    fn clusters_that_start_take_the_lowest_number() {
        for (one, two) in [(3, 5), (5, 3)] {
            for introduction in [Address, Member] {
                let met = ClusterId::meet(starting(one), starting(two), introduction);
                assert_eq!(met, Some(starting(3)));
            }
        }
    }

    #[test]
    fn a_starting_node_takes_the_id_of_the_cluster_that_it_joins() {
        assert_eq!(ClusterId::meet(starting(3), fixed(5), Address), Some(fixed(5)));
    }

    #[test]
    fn a_cluster_that_has_lost_a_member_joins_no_other_at_a_configured_address() {
        for other in [starting(3), fixed(3), starting(7), fixed(7)] {
            assert_eq!(ClusterId::meet(fixed(5), other, Address), None, "{other:?}");
        }
    }

    #[test]
    fn parts_of_one_cluster_meet_again_whether_they_have_lost_members_or_not() {
        for introduction in [Address, Member] {
            for one in [starting(5), fixed(5)] {
                let met = ClusterId::meet(one, fixed(5), introduction);
                assert_eq!(met, Some(fixed(5)));
            }
            assert_eq!(
                ClusterId::meet(fixed(5), starting(5), introduction),
                Some(fixed(5)),
                "the part that has lost no member learns that the id is final"
            );
        }
    }

    proptest! {
        /// Goal: the members of a cluster agree, in whichever order they connect to each other.
        #[test]
        fn members_agree_in_any_order(
            numbers in prop::collection::vec((0_u64..4, any::<bool>()), 3),
            order in Just([(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]).prop_shuffle(),
        ) {
            let mut ids: Vec<_> = numbers
                .iter()
                .map(|(number, is_final)| ClusterId { number: *number, is_final: *is_final })
                .collect();
            for (one, two) in order {
                let met = ClusterId::meet(ids[one], ids[two], Member);
                (ids[one], ids[two]) = (met.unwrap(), met.unwrap());
            }
            prop_assert!(ids.iter().all(|id| *id == ids[0]));
        }
    }
}

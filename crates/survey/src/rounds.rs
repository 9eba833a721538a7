//! Pairs of nodes that exchange bursts in a round: drawn at random, within groups, or across them. Knows only nodes.

use alloc::vec::Vec;

use hoplite_proto::id::{NodeId, mix};

/// Draws pairs: in each tournament every node meets every other once, one in each round. The next tournament uses a
/// new random order.
pub(crate) fn drawn(nodes: &[NodeId], round: usize) -> Vec<(NodeId, NodeId)> {
    let rounds = rounds_of(nodes.len());
    meet(&shuffled(nodes, round / rounds), round % rounds)
}

/// Pairs each node with one of its own group, another one each time.
pub(crate) fn within(groups: &[Vec<NodeId>], turn: usize) -> Vec<(NodeId, NodeId)> {
    let of_group = |group: &Vec<NodeId>| drawn(group, turn);
    groups.iter().filter(|group| group.len() > 1).flat_map(of_group).collect()
}

/// Pairs as many nodes as possible with one of another group.
pub(crate) fn across(groups: &[Vec<NodeId>], turn: usize) -> Vec<(NodeId, NodeId)> {
    let mut groups: Vec<Vec<NodeId>> = groups.iter().map(|group| shuffled(group, turn)).collect();
    let mut pairs = Vec::new();
    loop {
        // The two groups with the most nodes left.
        groups.sort_by_key(|group| group.len());
        let [.., one, other] = &mut groups[..] else { return pairs };
        let Some(pair) = one.pop().zip(other.pop()) else { return pairs };
        pairs.push(pair);
    }
}

const fn rounds_of(nodes: usize) -> usize {
    if nodes < 2 { 1 } else { (nodes + nodes % 2) - 1 }
}

/// The circle method: the first node stays in place and all others move on by one. With an odd count, one node rests.
fn meet(nodes: &[NodeId], round: usize) -> Vec<(NodeId, NodeId)> {
    let rounds = rounds_of(nodes.len());
    let seat = |number: usize| match number {
        0 => nodes.first(),
        _ => nodes.get(1 + (number - 1 + round) % rounds),
    };
    let count = rounds + 1;
    let pairs = (0..count / 2).filter_map(|number| seat(number).zip(seat(count - 1 - number)));
    pairs.map(|(one, other)| (*one, *other)).collect()
}

fn shuffled(nodes: &[NodeId], turn: usize) -> Vec<NodeId> {
    let mut nodes = nodes.to_vec();
    nodes.sort_by_key(|node| mix(node.0 ^ mix(turn as u64 + 1)));
    nodes
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_meet_once_in_a_tournament_and_no_node_twice_in_a_round() {
        for count in 2..12u64 {
            let nodes: Vec<NodeId> = (0..count).map(NodeId).collect();
            let mut met = BTreeSet::new();
            for round in 0..rounds_of(nodes.len()) {
                let pairs = drawn(&nodes, round);
                let busy: BTreeSet<NodeId> = pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
                assert_eq!(busy.len(), 2 * pairs.len());
                met.extend(pairs.into_iter().map(|(a, b)| (a.min(b), a.max(b))));
            }
            assert_eq!(met.len() as u64, count * (count - 1) / 2, "{count}");
        }
    }

    #[test]
    fn pairs_are_within_groups_or_across() {
        let groups = [&[1, 2, 3, 4][..], &[5, 6, 7], &[8]]
            .map(|ids| ids.iter().copied().map(NodeId).collect::<Vec<_>>());
        for turn in 0..6 {
            let group = |node: NodeId| groups.iter().position(|group| group.contains(&node));
            assert_eq!(within(&groups, turn).len(), 3);
            assert!(within(&groups, turn).iter().all(|(a, b)| group(*a) == group(*b)));
            assert_eq!(across(&groups, turn).len(), 4);
            assert!(across(&groups, turn).iter().all(|(a, b)| group(*a) != group(*b)));
        }
    }
}

//! Initial orders: clusters next to each other, cut so that blocks of powers of the base stay whole.
//!
//! Ranks exchange with ranks at distances of powers of the base. For base 2, a cluster of 13 is cut into 8, 4 and 1.
//! The largest pieces come first, so each piece begins at a multiple of its size.

use crate::{clusters, matrix::Matrix};

/// Orders machines by cluster, with near clusters next to each other.
pub fn side_by_side(rtt: &Matrix) -> Vec<u32> {
    // Single linkage where each group is an order: groups are joined at their nearest ends.
    let mut groups: Vec<Vec<u32>> = (0..rtt.len() as u32).map(|machine| vec![machine]).collect();
    let mut sets = clusters::Sets::new(rtt.len());
    for (_, a, b) in clusters::joins(rtt) {
        let (root_a, root_b) = (sets.root(a), sets.root(b));
        let mut first = std::mem::take(&mut groups[root_a as usize]);
        let mut second = std::mem::take(&mut groups[root_b as usize]);
        let end = |group: &[u32], is_last: bool| group[if is_last { group.len() - 1 } else { 0 }];
        let gap = |is_last: bool, is_other_last: bool| {
            rtt.at(end(&first, is_last) as usize, end(&second, is_other_last) as usize)
        };
        let ways = [(false, false), (false, true), (true, false), (true, true)];
        let way = ways.into_iter().min_by(|a, b| gap(a.0, a.1).total_cmp(&gap(b.0, b.1)));
        let (is_last, is_other_last) = way.unwrap_or((true, false));
        if !is_last {
            first.reverse();
        }
        if is_other_last {
            second.reverse();
        }
        first.append(&mut second);
        sets.join(a, b);
        groups[sets.root(a) as usize] = first;
    }
    groups.into_iter().find(|group| !group.is_empty()).unwrap_or_default()
}

/// Rearranges an order: pieces of clusters begin at multiples of their sizes, the largest first.
pub fn aligned(order: &[u32], cluster: &[u32], base: usize) -> Vec<u32> {
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); clusters::count(cluster)];
    let mut firsts = Vec::new();
    for &machine in order {
        let group = cluster[machine as usize] as usize;
        if members[group].is_empty() {
            firsts.push(group);
        }
        members[group].push(machine);
    }
    let mut pieces: Vec<Vec<u32>> = Vec::new();
    for group in firsts {
        let mut rest = members[group].as_slice();
        while !rest.is_empty() {
            let mut size = 1;
            while size * base <= rest.len() {
                size *= base;
            }
            let (piece, others) = rest.split_at(size);
            pieces.push(piece.to_vec());
            rest = others;
        }
    }
    // The sort is stable: pieces of one size keep the order of their clusters, so near ones stay adjacent.
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.len()));
    pieces.concat()
}

/// Chooses `count` machines: the nearest ones around a center. Prefers whole clusters to parts of distant ones.
pub fn choose(rtt: &Matrix, count: usize) -> Vec<u32> {
    let around = |machine: usize| {
        let mut others: Vec<u32> = (0..rtt.len() as u32).collect();
        others.sort_by(|&a, &b| {
            rtt.at(machine, a as usize).total_cmp(&rtt.at(machine, b as usize)).then(a.cmp(&b))
        });
        others.truncate(count);
        others
    };
    let spread = |machines: &[u32]| {
        clusters::joins(&rtt.part(machines)).iter().map(|join| join.0).sum::<f64>()
    };
    // Trying every machine as center costs the cube of their number: with many machines, only some are tried.
    let step = (rtt.len() * count * count / 20_000_000).max(1);
    (0..rtt.len())
        .step_by(step)
        .map(around)
        .min_by(|a, b| spread(a).total_cmp(&spread(b)))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stand_at_multiples_of_their_sizes() {
        let cluster: Vec<u32> =
            (0..16).map(|machine| u32::from(machine >= 5) + u32::from(machine >= 11)).collect();
        let rtt = Matrix::of(16, |a, b| if cluster[a] == cluster[b] { 10.0 } else { 50.0 });
        let order = side_by_side(&rtt);
        let groups: Vec<u32> = order.iter().map(|&machine| cluster[machine as usize]).collect();
        assert_eq!(groups.windows(2).filter(|pair| pair[0] != pair[1]).count(), 2);
        let packed = aligned(&order, &cluster, 2);
        let mut sorted = packed.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..16));
        // 5 is 4 and 1, 6 is 4 and 2, 5 is 4 and 1: three whole blocks of four.
        for block in packed.chunks(4).take(3) {
            assert!(block.iter().all(|&it| cluster[it as usize] == cluster[block[0] as usize]));
        }
    }

    #[test]
    fn the_machines_of_one_rack_are_chosen() {
        let rtt = Matrix::of(9, |a, b| if a % 3 == b % 3 { 10.0 } else { 50.0 });
        let mut chosen = choose(&rtt, 3);
        chosen.sort_unstable();
        assert!(chosen.iter().all(|machine| machine % 3 == chosen[0] % 3), "{chosen:?}");
    }
}

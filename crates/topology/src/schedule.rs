//! Schedules of allreduce algorithms: which rank sends what to which rank in each round.
//!
//! A schedule is a list of rounds, and a round is a list of transfers that start together. The array is cut into equal
//! parts. A transfer carries consecutive parts, and its receiver adds them to its own or replaces its own.
//! [`Schedule::is_allreduce`] executes the rounds and checks that every rank ends with the sum of all.

/// An allreduce algorithm, as libraries implement it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Parts travel around a ring, from each rank to the next.
    Ring,
    /// Ranks exchange halves with ranks at distances of powers of two.
    HalvingDoubling(Halving),
    /// NCCL's two binary trees, each for half of the bytes.
    DoubleTree,
    /// Ranks are numbers in this base; in each round a rank exchanges with all ranks that differ in one digit.
    BCube {
        /// The base, at least 2.
        base: usize,
    },
}

/// Variants of halving-doubling: what is exchanged first, and what happens if the number of ranks is not a power of
/// two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halving {
    /// MPICH and Open MPI: neighbors exchange the largest part. Excess ranks: the first ranks pair up before and after.
    Mpi,
    /// Gloo: neighbors exchange the largest part. Other numbers of ranks: blocks of powers of two, the largest first.
    Gloo,
    /// LightGBM: the farthest ranks exchange the largest part. Excess ranks: the last ranks pair up before and after.
    LightGbm,
}

/// Reason why an algorithm has no schedule for a number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The base is below 2.
    #[error("BCube base {0} is too small: set at least 2")]
    Base(usize),
    /// The number of ranks is not a power of the base, times a smaller number.
    #[error(
        "{ranks} ranks do not fit a BCube of base {base}, which needs a power of {base}, optionally times a smaller \
         number: use {below} or {above} ranks"
    )]
    Cube {
        /// The base.
        base: usize,
        /// Number of ranks.
        ranks: usize,
        /// The next lower valid number of ranks.
        below: usize,
        /// The next higher valid number of ranks.
        above: usize,
    },
}

/// Consecutive parts that one rank sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The sending rank.
    pub source: u32,
    /// The receiving rank.
    pub destination: u32,
    /// The first part.
    pub begin: u32,
    /// The part after the last one.
    pub end: u32,
    /// Whether the receiver adds the parts to its own instead of replacing them.
    pub adds: bool,
}

/// The rounds of an algorithm for a number of ranks.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of equal parts of the array.
    pub parts: usize,
    /// Transfers of each round.
    pub rounds: Vec<Vec<Transfer>>,
}

impl Schedule {
    /// Creates the schedule of an algorithm.
    ///
    /// # Errors
    /// The algorithm has no schedule for this number of ranks.
    pub fn new(algorithm: Algorithm, ranks: usize) -> Result<Self, Error> {
        match algorithm {
            Algorithm::Ring => Ok(ring(ranks)),
            Algorithm::HalvingDoubling(halving) => Ok(halving_doubling(ranks, halving)),
            Algorithm::DoubleTree => Ok(double_tree(ranks)),
            Algorithm::BCube { base } => bcube(ranks, base),
        }
    }

    /// Size of a transfer in bytes, for an array of `bytes`.
    pub fn bytes(&self, transfer: &Transfer, bytes: f64) -> f64 {
        bytes * f64::from(transfer.end - transfer.begin) / self.parts as f64
    }

    /// Whether every rank ends with each rank's parts, each added exactly once.
    ///
    /// Transfers of a round carry what their senders had before it.
    pub fn is_allreduce(&self) -> bool {
        // How often each rank's contribution is included, by rank and part.
        let mut held = vec![vec![vec![0u16; self.ranks]; self.parts]; self.ranks];
        for (rank, parts) in held.iter_mut().enumerate() {
            parts.iter_mut().for_each(|part| part[rank] = 1);
        }
        for round in &self.rounds {
            let sent: Vec<Vec<Vec<u16>>> = round
                .iter()
                .map(|it| held[it.source as usize][it.begin as usize..it.end as usize].to_vec())
                .collect();
            for (it, parts) in round.iter().zip(sent) {
                let own = &mut held[it.destination as usize][it.begin as usize..it.end as usize];
                for (own, part) in own.iter_mut().zip(parts) {
                    match it.adds {
                        true => own.iter_mut().zip(part).for_each(|(own, part)| *own += part),
                        false => *own = part,
                    }
                }
            }
        }
        held.iter().flatten().flatten().all(|&times| times == 1)
    }

    /// Appends the rounds in reverse, with directions reversed and values replaced: an allgather after a
    /// reduce-scatter.
    fn mirrored(mut self) -> Self {
        for at in (0..self.rounds.len()).rev() {
            let back = |it: &Transfer| Transfer {
                source: it.destination,
                destination: it.source,
                adds: false,
                ..*it
            };
            self.rounds.push(self.rounds[at].iter().map(back).collect());
        }
        self
    }
}

fn transfer(source: usize, destination: usize, parts: (usize, usize)) -> Transfer {
    let [source, destination, begin, end] =
        [source, destination, parts.0, parts.1].map(|number| number as u32);
    Transfer { source, destination, begin, end, adds: true }
}

fn ring(ranks: usize) -> Schedule {
    let mut rounds = Vec::new();
    for step in 0..2 * ranks.saturating_sub(1) {
        let send = |rank: usize| {
            let part = (rank + 2 * ranks - step) % ranks;
            let adds = step + 1 < ranks;
            Transfer { adds, ..transfer(rank, (rank + 1) % ranks, (part, part + 1)) }
        };
        rounds.push((0..ranks).map(send).collect());
    }
    Schedule { ranks, parts: ranks.max(1), rounds }
}

/// Rounds of recursive halving among a power of two of ranks, and the parts that each of them has at the end.
///
/// `real` maps each of them to its rank.
fn halvings(
    real: &[usize],
    parts: usize,
    is_far_first: bool,
) -> (Vec<Vec<Transfer>>, Vec<(usize, usize)>) {
    let steps = real.len().ilog2();
    let mut kept = vec![(0, parts); real.len()];
    let mut rounds = Vec::new();
    for step in 0..steps {
        let bit = 1 << if is_far_first { steps - 1 - step } else { step };
        let mut round = Vec::new();
        let split = |(begin, end): (usize, usize)| begin + (end - begin) / 2;
        for rank in 0..real.len() {
            let (begin, end) = kept[rank];
            let middle = split(kept[rank]);
            let sent = if rank & bit == 0 { (middle, end) } else { (begin, middle) };
            round.push(transfer(real[rank], real[rank ^ bit], sent));
        }
        for (rank, range) in kept.iter_mut().enumerate() {
            let middle = split(*range);
            if rank & bit == 0 { range.1 = middle } else { range.0 = middle }
        }
        rounds.push(round);
    }
    (rounds, kept)
}

fn halving_doubling(ranks: usize, halving: Halving) -> Schedule {
    let parts = if ranks == 0 { 1 } else { 1 << ranks.ilog2() };
    if ranks < 2 {
        return Schedule { ranks, parts, rounds: Vec::new() };
    }
    let rest = ranks - parts;
    let mut rounds = Vec::new();
    match halving {
        Halving::Gloo => {
            rounds = blocks(ranks, parts);
        }
        Halving::Mpi | Halving::LightGbm => {
            // One rank of each pair takes part. Which one, and where the pairs are, depends on the library.
            let is_mpi = halving == Halving::Mpi;
            let pairs: Vec<(usize, usize)> = (0..rest)
                .map(|pair| match is_mpi {
                    true => (2 * pair, 2 * pair + 1),
                    false => (ranks - 2 * rest + 2 * pair + 1, ranks - 2 * rest + 2 * pair),
                })
                .collect();
            if rest > 0 {
                let send = |&(source, destination): &(usize, usize)| {
                    transfer(source, destination, (0, parts))
                };
                rounds.push(pairs.iter().map(send).collect());
            }
            let idle: Vec<usize> = pairs.iter().map(|pair| pair.0).collect();
            let real: Vec<usize> = (0..ranks).filter(|rank| !idle.contains(rank)).collect();
            rounds.extend(halvings(&real, parts, !is_mpi).0);
        }
    }
    Schedule { ranks, parts, rounds }.mirrored()
}

/// Gloo's binary blocks: each block halves by itself, then sends its sums to the next larger block, starting with the
/// smallest.
fn blocks(ranks: usize, parts: usize) -> Vec<Vec<Transfer>> {
    let mut begin = 0;
    let mut rounds: Vec<Vec<Transfer>> = Vec::new();
    let mut kept: Vec<(usize, Vec<(usize, usize)>)> = Vec::new();
    for size in (0..usize::BITS).rev().map(|bit| 1usize << bit).filter(|size| ranks & size != 0) {
        let real: Vec<usize> = (begin..begin + size).collect();
        let (own, parts) = halvings(&real, parts, false);
        for (at, round) in own.into_iter().enumerate() {
            if rounds.len() <= at {
                rounds.push(Vec::new());
            }
            rounds[at].extend(round);
        }
        kept.push((begin, parts));
        begin += size;
    }
    for pair in kept.windows(2).rev() {
        let [(large, theirs), (small, ours)] = pair else { continue };
        let mut round = Vec::new();
        for (source, ours) in ours.iter().enumerate() {
            for (destination, theirs) in theirs.iter().enumerate() {
                if ours.0 <= theirs.0 && theirs.1 <= ours.1 {
                    round.push(transfer(small + source, large + destination, *theirs));
                }
            }
        }
        rounds.push(round);
    }
    rounds
}

/// The parent of each rank in NCCL's two trees; `None` for a root.
pub fn double_tree_parents(ranks: usize) -> [Vec<Option<usize>>; 2] {
    let parent = |rank: usize| {
        if rank == 0 {
            return None;
        }
        let bit = rank & rank.wrapping_neg();
        let up = (rank ^ bit) | (bit << 1);
        Some(if up >= ranks { rank ^ bit } else { up })
    };
    let first: Vec<_> = (0..ranks).map(parent).collect();
    let second = match ranks % 2 {
        // For an even number the second tree is mirrored: leaves of one tree are inner nodes of the other.
        0 => (0..ranks).map(|rank| parent(ranks - 1 - rank).map(|up| ranks - 1 - up)).collect(),
        // For an odd number it is shifted by one rank.
        _ => (0..ranks)
            .map(|rank| parent((rank + ranks - 1) % ranks).map(|up| (up + 1) % ranks))
            .collect(),
    };
    [first, second]
}

/// Depth of each rank below the root of its tree.
pub fn depths(parents: &[Option<usize>]) -> Vec<usize> {
    let depth = |mut rank: usize| {
        let mut depth = 0;
        while let Some(up) = parents[rank] {
            rank = up;
            depth += 1;
        }
        depth
    };
    (0..parents.len()).map(depth).collect()
}

fn double_tree(ranks: usize) -> Schedule {
    let mut rounds: Vec<Vec<Transfer>> = Vec::new();
    for (tree, parents) in double_tree_parents(ranks).iter().enumerate() {
        let depths = depths(parents);
        let deepest = depths.iter().copied().max().unwrap_or(0);
        rounds.resize(rounds.len().max(deepest), Vec::new());
        for (rank, parent) in parents.iter().enumerate() {
            if let Some(up) = parent {
                // The deepest ranks send first.
                rounds[deepest - depths[rank]].push(transfer(rank, *up, (tree, tree + 1)));
            }
        }
    }
    Schedule { ranks, parts: 2, rounds }.mirrored()
}

/// Sides of a BCube: the base as often as possible, then the remaining factor.
///
/// # Errors
/// The base is below 2, or the number of ranks does not fit.
pub fn bcube_sides(ranks: usize, base: usize) -> Result<Vec<usize>, Error> {
    if base < 2 {
        return Err(Error::Base(base));
    }
    let sides = |mut ranks: usize| {
        let mut sides = Vec::new();
        while ranks >= base && ranks.is_multiple_of(base) {
            sides.push(base);
            ranks /= base;
        }
        if ranks > 1 {
            sides.push(ranks);
        }
        (ranks < base).then_some(sides)
    };
    sides(ranks).ok_or_else(|| Error::Cube {
        base,
        ranks,
        below: (1..ranks).rev().find(|&count| sides(count).is_some()).unwrap_or(1),
        above: (ranks..).find(|&count| sides(count).is_some()).unwrap_or(ranks),
    })
}

fn bcube(ranks: usize, base: usize) -> Result<Schedule, Error> {
    let parts = ranks.max(1);
    let mut kept = vec![(0, parts); ranks];
    let mut rounds = Vec::new();
    let mut stride = 1;
    for side in bcube_sides(ranks, base)? {
        let mut round = Vec::new();
        let share = |(begin, end): (usize, usize), digit: usize| {
            let size = (end - begin) / side;
            (begin + digit * size, begin + (digit + 1) * size)
        };
        let digit = |rank: usize| rank / stride % side;
        for (rank, &parts) in kept.iter().enumerate() {
            for other in (0..side).filter(|&other| other != digit(rank)) {
                let peer = rank - digit(rank) * stride + other * stride;
                round.push(transfer(rank, peer, share(parts, other)));
            }
        }
        for (rank, range) in kept.iter_mut().enumerate() {
            *range = share(*range, digit(rank));
        }
        rounds.push(round);
        stride *= side;
    }
    Ok(Schedule { ranks, parts, rounds }.mirrored())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_ends_with_the_sum() {
        for ranks in 1..=33 {
            for algorithm in [
                Algorithm::Ring,
                Algorithm::HalvingDoubling(Halving::Mpi),
                Algorithm::HalvingDoubling(Halving::Gloo),
                Algorithm::HalvingDoubling(Halving::LightGbm),
                Algorithm::DoubleTree,
                Algorithm::BCube { base: 2 },
                Algorithm::BCube { base: 3 },
                Algorithm::BCube { base: 4 },
            ] {
                match Schedule::new(algorithm, ranks) {
                    Ok(schedule) => assert!(schedule.is_allreduce(), "{algorithm:?} of {ranks}"),
                    Err(error) => assert!(matches!(error, Error::Cube { .. }), "{error}"),
                }
            }
        }
    }

    #[test]
    fn a_lost_transfer_and_one_too_many_are_noticed() {
        let schedule = Schedule::new(Algorithm::Ring, 4).unwrap();
        let mut less = schedule.clone();
        less.rounds[1].pop();
        assert!(!less.is_allreduce());
        let mut more = schedule;
        let again = more.rounds[0][0];
        more.rounds[0].push(again);
        assert!(!more.is_allreduce());
    }

    #[test]
    fn the_largest_part_goes_to_the_nearest_or_to_the_farthest_rank() {
        let first = |halving| {
            let schedule = Schedule::new(Algorithm::HalvingDoubling(halving), 8).unwrap();
            let it = schedule.rounds[0][0];
            (it.destination, schedule.bytes(&it, 8e6))
        };
        assert_eq!(first(Halving::Mpi), (1, 4e6));
        assert_eq!(first(Halving::Gloo), (1, 4e6));
        assert_eq!(first(Halving::LightGbm), (4, 4e6));
    }

    #[test]
    fn the_trees_are_those_of_nccl() {
        let [first, second] = double_tree_parents(8);
        let parents = |tree: Vec<Option<usize>>| -> Vec<i64> {
            tree.into_iter().map(|up| up.map_or(-1, |up| up as i64)).collect()
        };
        assert_eq!(parents(first), [-1, 2, 4, 2, 0, 6, 4, 6]);
        assert_eq!(parents(second), [1, 3, 1, 7, 5, 3, 5, -1]);
        assert_eq!(parents(double_tree_parents(3)[1].clone()), [1, -1, 0]);
    }

    #[test]
    fn an_invalid_number_of_ranks_reports_valid_ones() {
        let error = bcube_sides(13, 4).unwrap_err();
        assert_eq!(error, Error::Cube { base: 4, ranks: 13, below: 12, above: 16 });
        assert_eq!(bcube_sides(512, 4), Ok(vec![4, 4, 4, 4, 2]));
        assert_eq!(bcube_sides(512, 8), Ok(vec![8, 8, 8]));
        assert_eq!(bcube_sides(8, 1), Err(Error::Base(1)));
    }
}

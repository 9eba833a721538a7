//! Explains for people why one order is better than another.

use crate::{
    clusters,
    schedule::{self, Algorithm, Error, Schedule},
};

/// Numbers of pairs of ranks that exchange data: in total, and across clusters in two orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossings {
    /// Pairs of ranks that exchange data.
    pub pairs: usize,
    /// Pairs across clusters in the first order.
    pub before: usize,
    /// Pairs across clusters in the second order.
    pub after: usize,
}

/// Counts the pairs across clusters in two orders.
///
/// # Errors
/// The algorithm has no schedule for this number of ranks.
pub fn crossings(
    algorithm: Algorithm,
    cluster: &[u32],
    before: &[u32],
    after: &[u32],
) -> Result<Crossings, Error> {
    let ranks = after.len();
    let mut pairs: Vec<(u32, u32)> = match algorithm {
        Algorithm::Ring => {
            (0..ranks as u32).map(|rank| (rank, (rank + 1) % ranks as u32)).collect()
        }
        Algorithm::DoubleTree => schedule::double_tree_parents(ranks)
            .iter()
            .flat_map(|tree| tree.iter().enumerate())
            .filter_map(|(rank, up)| up.map(|up| (rank as u32, up as u32)))
            .collect(),
        _ => {
            let schedule = Schedule::new(algorithm, ranks)?;
            schedule.rounds.iter().flatten().map(|it| (it.source, it.destination)).collect()
        }
    };
    pairs.iter_mut().for_each(|pair| *pair = (pair.0.min(pair.1), pair.0.max(pair.1)));
    pairs.retain(|pair| pair.0 != pair.1);
    pairs.sort_unstable();
    pairs.dedup();
    let across = |order: &[u32]| {
        let of = |rank: u32| cluster[order[rank as usize] as usize];
        pairs.iter().filter(|pair| of(pair.0) != of(pair.1)).count()
    };
    Ok(Crossings { pairs: pairs.len(), before: across(before), after: across(after) })
}

/// Explains how the clusters affect the cost.
pub fn reason(cluster: &[u32], crossings: Crossings) -> String {
    let sizes = clusters::sizes(cluster);
    let [least, most] = [sizes.iter().min(), sizes.iter().max()].map(|it| it.copied().unwrap_or(0));
    if sizes.len() < 2 {
        return "the times show no clusters of machines, so the order only avoids individual slow pairs"
            .into();
    }
    let Crossings { pairs, before, after } = crossings;
    let size = if least == most { format!("{least}") } else { format!("{least} to {most}") };
    format!(
        "the machines form {} clusters of {size}; of {pairs} pairs of ranks that exchange data, {before} cross \
         clusters in the given order, and {after} in the new order",
        sizes.len(),
    )
}

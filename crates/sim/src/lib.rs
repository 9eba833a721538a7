//! Simulates a whole Hoplite cluster in one thread, from one seed; for tests only.
//!
//! The real state machines of `hoplite-proto` run with a virtual clock, network, memory and clients. Payload carries
//! its provenance instead of bytes, so a wrong copy or result is detected. After every event, the checkers of
//! `check.rs` examine the node of the event. At the end of the plan, the cluster must settle and every existing object
//! must be available everywhere. After all objects are deleted, nothing may remain.
//!
//! The same seed gives the same simulation, event by event:
//!
//! ```text
//! make sim SEED=42                                              the verdict
//! cargo run --release -p hoplite-sim -- --seed 42 --trace       also every event and action of every node
//! cargo run --release -p hoplite-sim -- --seed 42 --shrink      a minimized case with the same failure, in target/sim
//! ```

mod case;
mod check;
mod damage;
mod delays;
mod deletions;
mod dice;
mod disk;
mod faults;
mod fold;
mod forks;
pub mod leaving;
mod lifetimes;
mod net;
mod partitions;
mod payload;
mod plan;
mod programs;
mod queries;
mod replicas;
mod reuse;
mod revoked;
pub mod scale;
mod shell;
mod shrink;
pub mod steady;
#[cfg(test)]
mod surveys;
mod trace;
mod users;
mod verdict;
mod wire;
mod world;

pub use crate::{
    case::Case,
    delays::disturb_hosts,
    deletions::delete_during_changes,
    reuse::put_names_again,
    shrink::shrink,
    verdict::{Mutation, Record, Verdict},
};

/// Simulates the cluster of `seed`.
pub fn run(seed: u64, record: Record, sabotage: Option<Mutation>) -> Verdict {
    Case::new(seed).run(record, sabotage)
}

/// Seeds per test. `make test-sim` runs thousands more in a release build.
#[cfg(test)]
const TESTED: u64 = if cfg!(debug_assertions) { 40 } else { 300 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_pass_all_checks() {
        for seed in 0..TESTED {
            assert_eq!(run(seed, Record::Nothing, None).failure, None, "seed {seed}");
        }
    }

    /// Compares all events and actions of two runs: a failure must be reproducible.
    #[test]
    fn the_same_seed_gives_the_same_trace() {
        let hashes = |seeds: std::ops::Range<u64>| -> Vec<u64> {
            seeds.map(|seed| run(seed, Record::Hash, None).hash).collect()
        };
        let (once, again) = (hashes(0..10), hashes(0..10));
        assert_eq!(once, again);
        assert!(
            once.windows(2).all(|pair| pair[0] != pair[1]),
            "different seeds give different traces"
        );
    }

    /// Returns the failures of clusters with a sabotaged shell, seed by seed.
    fn complaints(sabotage: Mutation) -> Vec<String> {
        (0..60).filter_map(|seed| run(seed, Record::Nothing, Some(sabotage)).failure).collect()
    }

    #[test]
    fn wrong_bytes_are_detected() {
        let complaints = complaints(Mutation::ServesOtherBytes);
        assert!(complaints.len() > 20, "{complaints:#?}");
        assert!(complaints.iter().any(|text| text.contains("holds [t18446744073709551615]")));
    }

    #[test]
    fn lost_replies_are_detected() {
        let complaints = complaints(Mutation::LosesMessage);
        assert!(complaints.len() > 20, "{complaints:#?}");
        assert!(complaints.iter().any(|text| text.contains("waits for")));
    }

    #[test]
    fn an_omitted_input_is_detected() {
        let complaints = complaints(Mutation::FoldsLess);
        assert!(complaints.len() > 2, "{complaints:#?}");
        assert!(complaints.iter().any(|text| text.contains("which is not a fold of")));
    }
}

//! Minimizes a failing simulation: removes everything that the failure does not need.
//!
//! Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 2002, section 3.
//! Complements are omitted, because this already tries to remove pieces from large to small.

use crate::{
    case::Case,
    verdict::{Mutation, Record},
};

/// Seeds tried per candidate: removing one act changes all later random decisions.
const CHANCES: u64 = 4;

/// Returns a small case with the same failure as `case`, or `case` itself if it does not fail.
pub fn shrink(case: Case, sabotage: Option<Mutation>) -> Case {
    let Some(failure) = case.run(Record::Nothing, sabotage).failure else { return case };
    let wanted = kind(&failure);
    // Runs a candidate with the seed of the case and with others.
    let failing = |case: &Case| -> Option<Case> {
        (0..CHANCES).map(|more| Case { seed: case.seed + more, plan: case.plan.clone() }).find(
            |case| {
                let failure = case.run(Record::Nothing, sabotage).failure;
                failure.is_some_and(|failure| kind(&failure) == wanted)
            },
        )
    };
    let mut case = case;
    loop {
        let before = case.size();
        case = without_acts(case, &failing);
        case = simpler(case, &failing);
        if case.size() == before {
            return case;
        }
    }
}

/// Removes halves of the acts, then quarters, and so on.
fn without_acts(mut case: Case, failing: &impl Fn(&Case) -> Option<Case>) -> Case {
    let mut size = case.plan.acts.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < case.plan.acts.len() {
            let mut smaller = case.clone();
            let end = (at + size).min(smaller.plan.acts.len());
            smaller.plan.acts.drain(at..end);
            match failing(&smaller) {
                Some(smaller) => case = smaller,
                None => at += size,
            }
        }
        size /= 2;
    }
    case
}

/// Tries fewer nodes, fewer objects and unlimited capacity.
fn simpler(mut case: Case, failing: &impl Fn(&Case) -> Option<Case>) -> Case {
    let simpler: [fn(&mut Case); 6] = [
        Case::forget_unused_objects,
        |case| case.plan.config.capacity = 1 << 34,
        |case| case.plan.config.inline_capacity = None,
        |case| case.plan.slot_failures = 0,
        |case| case.plan.nodes = 1 + case.plan.nodes / 2,
        |case| case.plan.nodes = (case.plan.nodes - 1).max(1),
    ];
    for change in simpler {
        let mut changed = case.clone();
        change(&mut changed);
        case = failing(&changed).unwrap_or(case);
    }
    case
}

/// Returns the kind of a failure: its first words, without those that contain digits.
fn kind(failure: &str) -> String {
    let is_name = |word: &&str| word.chars().any(|letter| letter.is_ascii_digit());
    let words: Vec<&str> = failure.split_whitespace().filter(|word| !is_name(word)).collect();
    words[..words.len().min(5)].join(" ")
}

#[cfg(test)]
mod tests {
    use hoplite_proto::mutants::Mutant;

    use super::*;

    #[test]
    fn a_minimized_failure_is_small_and_still_fails() {
        let sabotage = Some(Mutation::Node(Mutant::RepliesTooEarly));
        let fails = |case: &Case| case.run(Record::Nothing, sabotage).failure;
        let case = (0..200).map(Case::new).find(|case| fails(case).is_some()).unwrap();
        let (acts, ..) = case.size();
        let (failure, small) = (fails(&case).unwrap(), shrink(case, sabotage));
        assert_eq!(kind(&fails(&small).unwrap()), kind(&failure));
        assert!(small.size().0 <= 4, "{acts} acts became {small:?}");
        assert_eq!(small.run(Record::Nothing, None).failure, None, "without the mutation");
    }

    #[test]
    fn names_and_numbers_do_not_matter() {
        let [one, other] =
            ["at 0.5s: n3 frees n1:5, which c2 reads", "at 7s: n1 frees n2:2, which c1 reads"]
                .map(kind);
        assert_eq!(one, other);
        assert_ne!(one, kind("at 7s: n1 waits for itself"));
    }
}

//! A simulation that can be stored: everything decided before its first event, and the seed of the random decisions
//! after it.
//!
//! When the generation of plans changes, a seed means a different simulation; a stored case does not change. The cases
//! in `cases/` failed once, and the tests run them.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
};

use hoplite_proto::mutants;
use serde::{Deserialize, Serialize};

use crate::{
    dice::Dice,
    plan::{Make, Plan},
    trace::Trace,
    verdict::{Mutation, Record, Verdict},
    world::World,
};

/// A simulation before it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
}

impl Case {
    /// Generates the simulation of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut plan = Plan::new(&mut Dice::new(seed));
        // Separate random numbers, so that these faults do not change the plans of other seeds.
        let mut dice = Dice::new(seed ^ u64::MAX >> 1);
        if dice.chance(20) {
            plan.add_damage(&mut dice);
        }
        if dice.chance(8) {
            plan.add_revocations(&mut dice);
        }
        if dice.chance(15) {
            plan.add_forks(&mut dice);
        }
        Self { seed, plan }
    }

    /// Runs the simulation to its end and checks the final state.
    pub fn run(&self, record: Record, sabotage: Option<Mutation>) -> Verdict {
        let mut world = World::new(self.seed, self.plan.clone(), Trace::of(record), sabotage);
        mutants::activate(sabotage.and_then(Mutation::node_mutant));
        let ended = catch_unwind(AssertUnwindSafe(|| world.check_end()));
        mutants::activate(None);
        if let Err(panic) = ended {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            world.fail(format!("panic: {}", text.unwrap_or_default()));
        }
        Verdict { hash: world.trace.hash(), events: world.events, failure: world.failure }
    }

    /// Size of the case: numbers of acts, objects and nodes.
    pub fn size(&self) -> (usize, usize, u64) {
        (self.plan.acts.len(), self.plan.objects.len(), self.plan.nodes)
    }

    /// Serializes the case as text for [`Case::from_json`].
    ///
    /// # Errors
    /// Cannot fail for a case that can run.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }

    /// Reads the text that [`Case::to_json`] wrote.
    ///
    /// # Errors
    /// The text is not a case, or an act names an object that does not exist.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let case: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let count = case.plan.objects.len();
        let unknown = case.plan.named().into_iter().find(|object| *object >= count);
        match unknown {
            Some(object) => {
                Err(format!("the case names object {object}, but has only {count} objects"))
            }
            None => Ok(case),
        }
    }

    /// Removes objects that no act uses.
    pub(crate) fn forget_unused_objects(&mut self) {
        let plan = &mut self.plan;
        let mut used: BTreeSet<usize> =
            plan.acts.iter_mut().flat_map(|(_, act)| act.objects_mut()).map(|at| *at).collect();
        let mut new: Vec<usize> = used.iter().copied().collect();
        while let Some(object) = new.pop() {
            if let Make::Reduce { inputs, .. } = &plan.objects[object].make {
                new.extend(inputs.iter().copied().filter(|input| used.insert(*input)));
            }
        }
        let numbers: BTreeMap<usize, usize> =
            used.iter().enumerate().map(|(number, object)| (*object, number)).collect();
        let acts = plan.acts.iter_mut().flat_map(|(_, act)| act.objects_mut());
        let renumbered = acts.chain(plan.objects.iter_mut().enumerate().flat_map(|(at, spec)| {
            match &mut spec.make {
                Make::Reduce { inputs, .. } if used.contains(&at) => inputs.iter_mut().collect(),
                _ => Vec::new(),
            }
        }));
        renumbered.for_each(|object| *object = numbers[object]);
        let mut at = 0;
        plan.objects.retain(|_| {
            at += 1;
            used.contains(&(at - 1))
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn stored_cases_pass() {
        let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
        let files = fs::read_dir(cases).unwrap().map(|file| file.unwrap().path());
        let mut count = 0;
        for file in files.filter(|file| file.extension().is_some_and(|kind| kind == "json")) {
            let case = Case::from_json(&fs::read_to_string(&file).unwrap()).unwrap();
            assert_eq!(case.run(Record::Nothing, None).failure, None, "{}", file.display());
            count += 1;
        }
        assert!(count > 0, "no case was found");
    }

    #[test]
    fn a_stored_case_equals_its_seed() {
        for seed in 0..5 {
            let read = Case::from_json(&Case::new(seed).to_json().unwrap()).unwrap();
            let (once, again) =
                (Case::new(seed).run(Record::Hash, None), read.run(Record::Hash, None));
            assert_eq!(once, again);
        }
    }

    #[test]
    fn invalid_cases_are_refused() {
        assert!(Case::from_json("{}").unwrap_err().contains("missing field"));
        let mut case = Case::new(1);
        case.plan.objects.clear();
        let text = case.to_json().unwrap();
        assert!(Case::from_json(&text).unwrap_err().contains("has only 0 objects"));
    }
}

//! Command line of the simulator: runs clusters by seed, replays stored cases, tests mutants, and measures how
//! collectives scale.

use std::{fs, path::PathBuf, process::ExitCode, time::Instant};

use hoplite_proto::mutants::Mutant;
use hoplite_sim::{
    Case, Mutation, Record, delete_during_changes, disturb_hosts, put_names_again, run,
    scale::{Collective, Growth, LINKS, SIZES, grow},
    shrink,
    steady::{Pattern, Run, Trouble, median},
};
use lexopt::{Arg, Parser, ValueExt};

const USAGE: &str = "usage: hoplite-sim --seeds COUNT [--from SEED]
       hoplite-sim --seed N [--trace] [--shrink]
       hoplite-sim --case FILE [--trace]
       hoplite-sim --late SEED [--trace]
       hoplite-sim --deletions --seeds COUNT [--from SEED]
       hoplite-sim --deletions --seed N [--trace]
       hoplite-sim --mutants [--seeds COUNT]
       hoplite-sim --scale NODES
       hoplite-sim --steady STEPS [--seed N] [--only WORD] [--trace]

--seeds      simulate COUNT clusters, starting at seed 0 or SEED; minimize failures and store them in target/sim
--seed       simulate one cluster and print the verdict
--case       simulate a stored case
--trace      also print every event and action of every node
--shrink     on failure, minimize the case and store it in target/sim
--late       disturb one host of a cluster and check that the others are not late
--deletions  let nodes join, leave and fail around deletions; check that deleted objects stay deleted; then put
             deleted names again
--mutants    test mutants one at a time and print which of COUNT clusters finds each first
--scale      print tables of collectives of 8, 64, ... up to NODES nodes
--steady     run every pattern with every fault for STEPS steps and check that step times recover
--only       run only combinations whose pattern and fault contain WORD, such as 'Pending Cut'";

/// Folder of stored failures.
const KEPT: &str = "target/sim";

/// At most this many failures per run are minimized: more usually have the same few causes.
const SHRUNK_MAX: u64 = 3;

fn main() -> ExitCode {
    match parse(Parser::from_env()) {
        Ok(Task::Help) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Ok(Task::One { name, case, record, is_shrunk }) => one(&name, *case, record, is_shrunk),
        Ok(Task::Many { from, count }) => many(from, count),
        Ok(Task::Delays { seed, record }) => one_delay(seed, record),
        Ok(Task::Deletions { from, count, record }) => many_deletions(from, count, record),
        Ok(Task::Mutants { count }) => run_mutants(count),
        Ok(Task::Scale { nodes }) => scale(nodes),
        Ok(Task::Steady { steps, seed, only, record }) => steady(steps, seed, &only, record),
        Err(why) => {
            eprintln!("{why}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

enum Task {
    Help,
    One { name: String, case: Box<Case>, record: Record, is_shrunk: bool },
    Many { from: u64, count: u64 },
    Delays { seed: u64, record: Record },
    Deletions { from: u64, count: u64, record: Record },
    Mutants { count: u64 },
    Scale { nodes: u64 },
    Steady { steps: u64, seed: u64, only: String, record: Record },
}

/// Default number of seeds for `--run_mutants`. Objects that a forgotten deletion brings back are mostly dropped again, so
/// that mutant shows in only one of 2000 clusters.
const PLANTED_SEEDS: u64 = 10_000;

/// One of this many clusters also checks how late a disturbed host makes the others.
const LATE_EVERY: u64 = 20;

/// Number of such checks per mutant.
const LATE_PLANTED: u64 = 10;

/// Number of clusters with deletions during membership changes per mutant.
const DELETIONS_PLANTED: u64 = 400;

fn number(arguments: &mut Parser) -> Result<u64, String> {
    let number = arguments.value().and_then(|text| text.parse());
    number.map_err(|error| error.to_string())
}

fn parse(mut arguments: Parser) -> Result<Task, String> {
    let (mut seed, mut seeds, mut from, mut file, mut nodes) = (None, None, None, None, None);
    let (mut steady_steps, mut only) = (None, String::new());
    let (mut delays_seed, mut is_deletions) = (None, false);
    let (mut record, mut is_shrunk, mut is_mutants) = (Record::Nothing, false, false);
    let said = |error: lexopt::Error| error.to_string();
    while let Some(argument) = arguments.next().map_err(said)? {
        match argument {
            Arg::Long("seed") => seed = Some(number(&mut arguments)?),
            Arg::Long("seeds") => seeds = Some(number(&mut arguments)?),
            Arg::Long("from") => from = Some(number(&mut arguments)?),
            Arg::Long("late") => delays_seed = Some(number(&mut arguments)?),
            Arg::Long("steady") => steady_steps = Some(number(&mut arguments)?),
            Arg::Long("only") => {
                only = arguments.value().and_then(|text| text.string()).map_err(said)?;
            }
            Arg::Long("scale") => nodes = Some(number(&mut arguments)?),
            Arg::Long("case") => file = Some(PathBuf::from(arguments.value().map_err(said)?)),
            Arg::Long("trace") => record = Record::Print,
            Arg::Long("shrink") => is_shrunk = true,
            Arg::Long("deletions") => is_deletions = true,
            Arg::Long("mutants") => is_mutants = true,
            Arg::Long("help") | Arg::Short('h') => return Ok(Task::Help),
            _ => return Err(said(argument.unexpected())),
        }
    }
    if let Some(steps) = steady_steps {
        let seed = seed.unwrap_or(0);
        return Ok(Task::Steady { steps, seed, only, record });
    }
    if let Some(seed) = delays_seed {
        return Ok(Task::Delays { seed, record });
    }
    if is_deletions {
        let (from, count) = match (seed, seeds) {
            (Some(from), None) => (from, 1),
            (None, Some(count)) => (from.unwrap_or(0), count),
            _ => return Err("--deletions needs a seed: add --seed or --seeds".into()),
        };
        return Ok(Task::Deletions { from, count, record });
    }
    let is_plain = record == Record::Nothing && !is_shrunk;
    match (seed, file, seeds, nodes, is_mutants) {
        (Some(seed), None, None, None, false) if from.is_none() => {
            let (name, case) = (format!("seed {seed}"), Box::new(Case::new(seed)));
            Ok(Task::One { name, case, record, is_shrunk })
        }
        (None, Some(file), None, None, false) if from.is_none() => {
            let name = file.display().to_string();
            let text = fs::read_to_string(&file).map_err(|error| format!("{name}: {error}"))?;
            let case = Case::from_json(&text).map_err(|error| format!("{name}: {error}"))?;
            Ok(Task::One { name, case: Box::new(case), record, is_shrunk })
        }
        (None, None, Some(count), None, false) if is_plain => {
            Ok(Task::Many { from: from.unwrap_or(0), count })
        }
        (None, None, count, None, true) if is_plain && from.is_none() => {
            Ok(Task::Mutants { count: count.unwrap_or(PLANTED_SEEDS) })
        }
        (None, None, None, Some(nodes), false) if is_plain && from.is_none() => {
            if nodes < 2 {
                Err("--scale needs at least 2 nodes".into())
            } else {
                Ok(Task::Scale { nodes })
            }
        }
        (None, None, None, None, false) => {
            let options =
                "--seed, --seeds, --case, --late, --deletions, --mutants, --scale or --steady";
            Err(format!("nothing to run: pass {options}"))
        }
        _ => Err("these arguments cannot be combined".into()),
    }
}

fn one(name: &str, case: Case, record: Record, is_shrunk: bool) -> ExitCode {
    let verdict = case.run(record, None);
    let Some(failure) = verdict.failure else {
        println!("{name}: passed, {} events", verdict.events);
        return ExitCode::SUCCESS;
    };
    println!("{name}: failed {failure}");
    if is_shrunk {
        keep_small(name, case);
    }
    ExitCode::FAILURE
}

fn one_delay(seed: u64, record: Record) -> ExitCode {
    match disturb_hosts(seed, record, None) {
        Ok(()) => {
            println!("seed {seed}: passed");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("seed {seed}: others are late: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn many_deletions(from: u64, count: u64, record: Record) -> ExitCode {
    let mut failed = 0;
    for seed in from..from + count {
        let again = || put_names_again(seed, record, None);
        if let Err(failure) = delete_during_changes(seed, record, None).and_then(|()| again()) {
            failed += 1;
            println!("seed {seed}: failed {failure}\n  repeat with --deletions --seed {seed}");
        }
    }
    println!("simulated clusters with deletions: {} right, {failed} wrong", count - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn many(from: u64, count: u64) -> ExitCode {
    let begin = Instant::now();
    let (mut failed, mut events) = (0, 0);
    for seed in from..from + count {
        let verdict = run(seed, Record::Nothing, None);
        events += verdict.events;
        if let Some(failure) = verdict.failure {
            failed += 1;
            println!("seed {seed}: failed {failure}\n  repeat with: make sim SEED={seed}");
            if failed <= SHRUNK_MAX {
                keep_small(&format!("seed {seed}"), Case::new(seed));
            }
        }
        if seed.is_multiple_of(LATE_EVERY)
            && let Err(failure) = disturb_hosts(seed, Record::Nothing, None)
        {
            failed += 1;
            println!("seed {seed}: others are late: {failure}\n  repeat with --late {seed}");
        }
        let done = seed - from + 1;
        if done.is_multiple_of(1000) && done < count {
            println!("{done} clusters, {failed} failed, {:.0} s", begin.elapsed().as_secs_f64());
        }
    }
    println!("{events} events in {:.1} s", begin.elapsed().as_secs_f64());
    println!("simulated clusters: {} right, {failed} wrong", count - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Minimizes a failure and writes it to a file, which can become a test.
fn keep_small(name: &str, case: Case) {
    let (before, case) = (case.size(), shrink(case, None));
    let after = case.size();
    let file = PathBuf::from(KEPT).join(format!("{}.json", name.replace([' ', '/'], "-")));
    let written = case.to_json().map_err(std::io::Error::from).and_then(|text| {
        fs::create_dir_all(KEPT)?;
        fs::write(&file, text + "\n")
    });
    match written {
        Ok(()) => println!(
            "  minimized to {} acts, {} objects, {} nodes (from {}, {}, {}): --case {}",
            after.0,
            after.1,
            after.2,
            before.0,
            before.1,
            before.2,
            file.display()
        ),
        Err(error) => println!("  cannot write {}: {error}", file.display()),
    }
}

/// Runs each mutant until a checker finds it. Prints a Markdown table.
fn run_mutants(count: u64) -> ExitCode {
    let mut missed = 0;
    println!("| mutant | first found by | failure |\n|---|---|---|");
    for &bug in Mutant::ALL {
        let sabotage = Some(Mutation::Node(bug));
        let found = (0..count).find_map(|seed| {
            let delays = || disturb_hosts(seed, Record::Nothing, sabotage).err();
            let amid_changes = || delete_during_changes(seed, Record::Nothing, sabotage).err();
            let failure = run(seed, Record::Nothing, sabotage)
                .failure
                .or_else(|| (seed < LATE_PLANTED).then(delays)?)
                .or_else(|| (seed < DELETIONS_PLANTED).then(amid_changes)?)?;
            Some((seed, failure))
        });
        match found {
            Some((seed, failure)) => {
                let words: String = failure.chars().take(100).collect();
                println!("| {bug:?} | seed {seed} | {} |", words.replace('|', "/"));
            }
            None => {
                missed += 1;
                println!("| {bug:?} | none of {count} | |");
            }
        }
    }
    println!("mutants: {} found, {missed} missed", Mutant::ALL.len() - missed);
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints Markdown tables for docs/benchmarks.
fn scale(most: u64) -> ExitCode {
    let counts: Vec<u64> = std::iter::successors(Some(8), |nodes| Some(nodes * 8))
        .take_while(|nodes| *nodes < most)
        .chain([most])
        .collect();
    for what in Collective::ALL {
        println!("\n## {what:?}\n\nEach cell: milliseconds, multiple of the bound.\n");
        let heads: Vec<String> = counts.iter().map(|nodes| format!(" {nodes} nodes |")).collect();
        println!("| link | bytes |{}\n|---|---|{}", heads.concat(), "---|".repeat(counts.len()));
        let mut heard = Vec::new();
        for (rate, link) in LINKS {
            for (size, bytes) in SIZES {
                print!("| {rate} | {size} |");
                heard.clear();
                for nodes in &counts {
                    match grow(what, *nodes, bytes, link) {
                        Ok(growth) => {
                            let (ms, ratio) = (growth.seconds * 1e3, growth.seconds / growth.bound);
                            print!(" {ms:.2}, {ratio:.2} |");
                            heard.push(growth);
                        }
                        Err(failure) => {
                            println!("\n{what:?} of {size} between {nodes} nodes failed {failure}");
                            return ExitCode::FAILURE;
                        }
                    }
                }
                println!();
            }
        }
        let messages = |of: fn(&Growth) -> String| -> String {
            heard.iter().map(|growth| format!(" {} |", of(growth))).collect()
        };
        println!(
            "| | messages per node, last row |{}",
            messages(|growth| format!("{:.1}", growth.messages))
        );
        println!(
            "| | messages of the busiest node, last row |{}",
            messages(|growth| growth.busiest.to_string())
        );
    }
    ExitCode::SUCCESS
}

/// Runs every pattern with every fault for many steps. Prints the median of each tenth of the steps, as a multiple of
/// the bound.
fn steady(steps: u64, seed: u64, only: &str, record: Record) -> ExitCode {
    let mut failed = 0;
    println!(
        "| pattern | fault | median of each tenth, times the bound | worst |\n|---|---|---|---|"
    );
    for (pattern, trouble) in Pattern::ALL.iter().flat_map(|p| Trouble::ALL.map(|t| (*p, t))) {
        if !format!("{pattern:?} {trouble:?}").contains(only) {
            continue;
        }
        let run = Run::new(pattern, trouble, steps, seed);
        let bound = run.bound_ns() as f64;
        match run.go(record) {
            Ok(steps) => {
                let tenths = steps.chunks((steps.len() / 10).max(1));
                let tenths = tenths.map(|tenth| format!("{:.2}", median(tenth) as f64 / bound));
                let tenths: Vec<String> = tenths.collect();
                let longest = steps.iter().map(|step| step.took_ns).max().unwrap_or_default();
                let (worst, checked) = (longest as f64 / bound, run.check(&steps));
                failed += u64::from(checked.is_err());
                let verdict = checked.err().unwrap_or_else(|| "steady".into());
                println!(
                    "| {pattern:?} | {trouble:?} | {} | {worst:.2} | {verdict} |",
                    tenths.join(" ")
                );
            }
            Err(failure) => {
                failed += 1;
                println!("| {pattern:?} | {trouble:?} | | | failed {failure} |");
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! `hoplite-sim --seed N`: one simulated cluster, event by event. `hoplite-sim --seeds N [--from S]`: many of them.
//! `hoplite-sim --scale NODES`: how collectives grow with their number of nodes.

use std::{process::ExitCode, time::Instant};

use hoplite_sim::{
    Record, run,
    scale::{Collective, Growth, LINKS, SIZES, grow},
};

const USAGE: &str = "usage: hoplite-sim --seed N [--trace]
       hoplite-sim --seeds COUNT [--from SEED]
       hoplite-sim --scale NODES

--seed    simulates one cluster and prints the verdict
--trace   prints every event and order of every node before
--seeds   simulates COUNT clusters, from seed 0 or SEED on
--scale   prints tables of collectives of 8, 64, ... up to NODES nodes";

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Task::One { seed, record }) => one(seed, record),
        Ok(Task::Many { from, count }) => many(from, count),
        Ok(Task::Scale { nodes }) => scale(nodes),
        Err(why) => {
            eprintln!("{why}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

enum Task {
    One { seed: u64, record: Record },
    Many { from: u64, count: u64 },
    Scale { nodes: u64 },
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Task, String> {
    let (mut seed, mut count, mut from, mut record) = (None, None, None, Record::Nothing);
    let mut nodes = None;
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let text = arguments.next().ok_or_else(|| format!("{argument} needs a number"))?;
            text.parse::<u64>().map_err(|_| format!("{argument} needs a number, not {text:?}"))
        };
        match argument.as_str() {
            "--seed" => seed = Some(number()?),
            "--seeds" => count = Some(number()?),
            "--from" => from = Some(number()?),
            "--scale" => nodes = Some(number()?),
            "--trace" => record = Record::Print,
            _ => return Err(format!("unknown argument {argument:?}")),
        }
    }
    if let (Some(nodes), None, None, None, Record::Nothing) = (nodes, seed, count, from, record) {
        return if nodes < 2 {
            Err("one node has nobody to send to".into())
        } else {
            Ok(Task::Scale { nodes })
        };
    }
    match (seed, count, from, record) {
        (Some(seed), None, None, record) => Ok(Task::One { seed, record }),
        (None, Some(count), from, Record::Nothing) => {
            Ok(Task::Many { from: from.unwrap_or(0), count })
        }
        (None, None, ..) if nodes.is_none() => Err("say --seed, --seeds or --scale".into()),
        _ => Err("these arguments do not go together".into()),
    }
}

fn one(seed: u64, record: Record) -> ExitCode {
    let verdict = run(seed, record, None);
    match verdict.failure {
        None => {
            println!("seed {seed}: passed, {} events", verdict.events);
            ExitCode::SUCCESS
        }
        Some(failure) => {
            println!("seed {seed}: failed {failure}");
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, count: u64) -> ExitCode {
    let begin = Instant::now();
    let (mut failed, mut events) = (0, 0);
    for seed in from..from + count {
        let verdict = run(seed, Record::Nothing, None);
        events += verdict.events;
        if let Some(failure) = verdict.failure {
            failed += 1;
            println!("seed {seed}: failed {failure}\n  repeat it with: make sim SEED={seed}");
        }
        let done = seed - from + 1;
        if done.is_multiple_of(1000) && done < count {
            println!("{done} clusters, {failed} failed, {:.0} s", begin.elapsed().as_secs_f64());
        }
    }
    println!("{events} events in {:.1} s", begin.elapsed().as_secs_f64());
    println!("{} passed, {failed} failed", count - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Tables in Markdown, for docs/benchmarks.
fn scale(most: u64) -> ExitCode {
    let counts: Vec<u64> = std::iter::successors(Some(8), |nodes| Some(nodes * 8))
        .take_while(|nodes| *nodes < most)
        .chain([most])
        .collect();
    for what in Collective::ALL {
        println!("\n## {what:?}\n\nMilliseconds, and times the bound.\n");
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
            "| | messages per node, last line |{}",
            messages(|growth| format!("{:.1}", growth.messages))
        );
        println!(
            "| | of the busiest, last line |{}",
            messages(|growth| growth.busiest.to_string())
        );
    }
    ExitCode::SUCCESS
}

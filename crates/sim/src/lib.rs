//! A whole Hoplite cluster in one thread, from one seed: test only.
//!
//! The real deciders of `hoplite-proto` run against a virtual clock, network, memory and clients. Payload is
//! provenance instead of bytes, so a copy or a result that is not exactly what it must be shows. After every event
//! the checkers of `check.rs` look at the node that it happened to; when the plan is over, everything must
//! come to rest, every object there is must be had everywhere, and after its deletion nothing may be left.
//!
//! The same seed gives the same simulation, event by event:
//!
//! ```text
//! make sim SEED=42                                              the verdict
//! cargo run --release -p hoplite-sim -- --seed 42 --trace       every event and order of every node before
//! ```

mod check;
mod dice;
mod fold;
mod net;
mod payload;
mod plan;
mod shell;
mod trace;
mod users;
mod world;

use std::{
    hash::DefaultHasher,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{trace::Trace, world::World};

/// What is to be done with the events and orders of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Nothing, which is fastest.
    Nothing,
    /// Printed, one line each.
    Print,
    /// Hashed, to compare two runs.
    Hash,
}

/// Something that a shell does wrong, to see that the checkers notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The second block of every transfer is another object's.
    ServesOtherBytes,
    /// The answers of directories get lost.
    LosesMessage,
    /// Folds leave out an input.
    FoldsLess,
}

/// How a simulation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What a checker found, if one did.
    pub failure: Option<String>,
    /// How much happened.
    pub events: u64,
    /// Of everything that happened, if it was recorded so.
    pub hash: u64,
}

/// Simulates what follows from `seed`.
pub fn run(seed: u64, record: Record, sabotage: Option<Sabotage>) -> Verdict {
    let trace = match record {
        Record::Nothing => Trace::Off,
        Record::Print => Trace::Print,
        Record::Hash => Trace::Hash(DefaultHasher::new()),
    };
    let mut world = World::new(seed, trace, sabotage);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let end = world.plan.end;
        world.run_until(end);
        world.check_end();
    }));
    if let Err(panic) = ended {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        world.fail(format!("panic: {}", text.unwrap_or_default()));
    }
    Verdict { hash: world.trace.hash(), events: world.events, failure: world.failure }
}

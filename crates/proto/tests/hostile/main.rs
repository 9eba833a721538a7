//! A hostile member: no sequence of decodable messages makes a node panic, reply twice to a request, exceed its
//! capacity, or fold inputs of different lengths.
//!
//! Node 1 is real. Node 2 sends it messages about few objects, instances and requests, so that they often refer to
//! existing ones. Node 3 is a silent member. A shell without a clock executes the actions of node 1, at once or later.
//! Each case is a string of bytes from which every choice is read.

use std::path::Path;

use hoplite_proto::wire;
use proptest::{prelude::*, test_runner::RngSeed};

mod choices;
mod shell;

use choices::Choices;
use shell::{play, play_messages};

/// A number from the environment, for runs longer than the default.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: u32::try_from(setting(
            "HOSTILE_CASES",
            if cfg!(debug_assertions) { 8_000 } else { 20_000 },
        ))
        .unwrap(),
        rng_seed: RngSeed::Fixed(setting("HOSTILE_SEED", 1)),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_hostile_member_does_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        play(&bytes);
    }
}

/// Plays the seeds, and the cases that fuzzing found: the files of `fuzz/corpus`. Writes the seeds to the folder in
/// `FUZZ_SEEDS`, to build a new corpus.
fn replay(target: &str, play: fn(&[u8]), seeds: &[Vec<u8>]) {
    for (number, seed) in seeds.iter().enumerate() {
        if let Some(folder) = std::env::var_os("FUZZ_SEEDS") {
            let folder = Path::new(&folder).join(target);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(format!("seed-{number}")), seed).unwrap();
        }
        play(seed);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut count = 0;
    for file in files {
        play(&std::fs::read(file.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "{folder:?} is empty");
}

/// Bytes without a pattern, the same each time.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Several encoded messages, each preceded by its length.
fn messages(seed: u64) -> Vec<u8> {
    let bytes = noise(seed, 4000);
    let mut choices = Choices { bytes: &bytes, told: Vec::new(), reduces: Vec::new() };
    let said = (0..8).map(|_| wire::encode(&choices.message())).filter(|said| said.len() < 1000);
    said.flat_map(|said| [&(said.len() as u16).to_le_bytes()[..], &said].concat()).collect()
}

#[test]
fn the_fuzzing_corpus_of_choices_does_no_harm() {
    let seeds: Vec<_> = (0..20).map(|seed| noise(seed, 300)).collect();
    replay("member", play, &seeds);
}

#[test]
fn the_fuzzing_corpus_of_messages_does_no_harm() {
    let seeds: Vec<_> = (0..100).map(messages).collect();
    replay("messages", play_messages, &seeds);
}

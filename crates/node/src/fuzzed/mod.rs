//! What the targets of `fuzz/` call with bytes of their making, and tests with those that are kept in `fuzz/corpus`: each
//! function takes the part of an attacker, and panics if the attack does what it must not. Not part of a build for users.

mod frames;
mod handshake;
mod local;
mod pieces;

pub use self::{frames::frames, handshake::handshake, local::local};

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Calls a target with cases to begin with, and with each file of its corpus. Keeps the former in the folder that
    /// `FUZZ_SEEDS` names, for a corpus that is made anew.
    fn replay(target: &str, function: fn(&[u8]), seeds: &[Vec<u8>]) {
        for (number, seed) in seeds.iter().enumerate() {
            if let Some(folder) = std::env::var_os("FUZZ_SEEDS") {
                let folder = Path::new(&folder).join(target);
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join(format!("seed-{number}")), seed).unwrap();
            }
            function(seed);
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let files =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        let mut count = 0;
        for file in files {
            function(&std::fs::read(file.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 0, "{folder:?} is empty");
    }

    #[test]
    fn what_fuzzing_has_kept_of_frames_does_no_harm() {
        replay("frames", super::frames, &super::frames::seeds());
    }

    #[test]
    fn what_fuzzing_has_kept_of_handshakes_lets_no_stranger_in() {
        replay("handshake", super::handshake, &super::handshake::seeds());
    }

    #[test]
    fn what_fuzzing_has_kept_of_programs_does_no_harm() {
        replay("local", super::local, &super::local::seeds());
    }
}

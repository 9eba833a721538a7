//! Entry points of the fuzz targets in `fuzz/`, and of tests that replay `fuzz/corpus`. Each
//! function plays an attacker, and panics if the attack succeeds. Not part of a release build.

mod frames;
mod handshake;
mod local;
mod pieces;

pub use self::{frames::frames, handshake::handshake, local::local};

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Calls a target with its seeds and each file of its corpus. Writes the seeds to the folder in
    /// `FUZZ_SEEDS`, to create a new corpus.
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
    fn corpus_of_frames_is_harmless() {
        replay("frames", super::frames, &super::frames::seeds());
    }

    #[test]
    fn corpus_of_handshakes_admits_no_stranger() {
        replay("handshake", super::handshake, &super::handshake::seeds());
    }

    #[test]
    fn corpus_of_local_messages_is_harmless() {
        replay("local", super::local, &super::local::seeds());
    }
}

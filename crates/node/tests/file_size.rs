//! A host program whose file size limit (`ulimit -f`) is small gets errors. SIGXFSZ, which would end it, is not raised.

use std::{env, fs, path::PathBuf, process::Command, time::Duration};

use hoplite_node::{Error, Node, NodeConfig, SpillConfig, Value};
use rustix::process::{Resource, Rlimit, setrlimit};

const LIMIT: u64 = 1 << 20;

/// The bit of SIGXFSZ in the masks of `/proc/self/status`.
const XFSZ: u64 = 1 << 24;

/// The folder for spilled files, set in the child process.
const CHILD: &str = "HOPLITE_TEST_FILE_SIZE";

#[test]
fn small_file_size_limit_gives_errors_and_no_signal() {
    if let Some(folder) = env::var_os(CHILD) {
        return host_program(folder.into());
    }
    let folder = env::temp_dir().join(format!("hoplite-file-size-{}", std::process::id()));
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "small_file_size_limit_gives_errors_and_no_signal"])
        .env(CHILD, &folder)
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(&folder);
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{}: {said}", child.status);
}

/// Runs in the child process, whose file size limit it lowers.
fn host_program(folder: PathBuf) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).unwrap() & XFSZ, 0, "SIGXFSZ has no effect");
    setrlimit(Resource::Fsize, Rlimit { current: Some(LIMIT), maximum: None }).unwrap();
    let spill = SpillConfig { folder, limit: None, persistent: false };
    let node = Node::start(NodeConfig {
        listen: None,
        capacity: Some(8 << 20),
        spill: Some(spill),
        ..NodeConfig::default()
    })
    .unwrap();
    let client = node.client();
    let put = |bytes: u64| {
        let bytes = vec![7; bytes as usize];
        client.put(None, Value::bytes(&bytes), Some(Duration::from_secs(2)))
    };
    assert_contains(
        &put(2 * LIMIT).unwrap_err(),
        "the file size limit of this process (ulimit -f)",
    );
    // Its memory fits, with one page for its progress. Its file also has checksums.
    let refused = (0..9).find_map(|_| put(LIMIT - 4096).err());
    assert_contains(&refused.unwrap(), "File too large");
    assert!(put(1000).is_ok());
}

fn assert_contains(error: &Error, part: &str) {
    let said = error.to_string();
    assert!(said.contains(part), "{said}");
}

//! How much memory the system would still give, so that asking for too much is an error and not the end of a process.
//!
//! The kernel commits pages of a memfd one by one and kills a process when it runs out; it refuses nothing up front.
//! So the host's estimate and the limits of the control groups above this process are read first. What cannot be read
//! does not limit.

use std::fs;
use std::path::{Path, PathBuf};

/// Left for what is not objects: page tables (2 MiB for each GiB that a process maps), buffers of connections, stacks, the
/// interpreter around a node. Without it the next small thing after a large object would end the process.
const RESERVED_BYTES: u64 = 32 << 20;

/// Returns the bytes that could be committed now without swapping or a kill; a huge number where nothing is known.
pub(crate) fn available_bytes() -> u64 {
    let host = read("/proc/meminfo").and_then(|text| host_available(&text)).unwrap_or(u64::MAX);
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    least(host, groups.lines().filter_map(group_available))
}

fn least(host: u64, groups: impl Iterator<Item = u64>) -> u64 {
    groups.fold(host, u64::min).saturating_sub(RESERVED_BYTES)
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// `MemAvailable` of /proc/meminfo in bytes.
fn host_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Files of a control group: (limit, usage, name in `memory.stat` of what the kernel can drop).
const VERSION_2: (&str, &str, &str) = ("memory.max", "memory.current", "inactive_file");
const VERSION_1: (&str, &str, &str) =
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");

/// The least that a group named in a line of /proc/self/cgroup and the groups above it still allow.
fn group_available(line: &str) -> Option<u64> {
    // "0::/a/b" is version 2; "4:memory:/a/b" is version 1.
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let (root, files) = match controllers {
        "" => ("/sys/fs/cgroup", VERSION_2),
        list if list.split(',').any(|name| name == "memory") => {
            ("/sys/fs/cgroup/memory", VERSION_1)
        }
        _ => return None,
    };
    let root = PathBuf::from(root);
    // Inside a container the path may be the host's and absent here; the root is then the container's own group.
    let own = root.join(path.trim_start_matches('/'));
    own.ancestors()
        .take_while(|dir| dir.starts_with(&root))
        .filter_map(|dir| {
            let text = |name| read(dir.join(name));
            room(
                &text(files.0)?,
                &text(files.1)?,
                &text("memory.stat").unwrap_or_default(),
                files.2,
            )
        })
        .min()
}

/// Limit less usage, counting as free the file pages that the kernel drops first. None without a limit.
fn room(limit: &str, usage: &str, stat: &str, droppable: &str) -> Option<u64> {
    // "max" does not parse: no limit.
    let limit: u64 = limit.trim().parse().ok()?;
    let usage: u64 = usage.trim().parse().ok()?;
    let dropped = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == droppable)
        .and_then(|(_, bytes)| bytes.trim().parse().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(usage.saturating_sub(dropped)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_counts_in_kib() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(host_available(text), Some(23_000_000 * 1024));
        assert_eq!(host_available("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn a_group_gives_its_limit_less_what_cannot_be_dropped() {
        let stat = "anon 5\ninactive_file 300\n";
        assert_eq!(room("1000\n", "700\n", stat, "inactive_file"), Some(600));
        assert_eq!(room("1000\n", "2000\n", "", "inactive_file"), Some(0));
        assert_eq!(room("max\n", "700\n", stat, "inactive_file"), None);
    }

    #[test]
    fn lines_of_other_controllers_do_not_limit() {
        assert_eq!(group_available("7:blkio:/"), None);
        assert_eq!(group_available("nonsense"), None);
    }

    #[test]
    fn the_tightest_limit_counts_and_something_is_left_for_the_process() {
        const MIB: u64 = 1 << 20;
        assert_eq!(
            least(500 * MIB, [300 * MIB, 400 * MIB].into_iter()),
            300 * MIB - RESERVED_BYTES
        );
        assert_eq!(least(500 * MIB, [RESERVED_BYTES / 2].into_iter()), 0);
        assert!(least(u64::MAX, std::iter::empty()) > u64::MAX / 2);
    }

    #[test]
    fn this_host_has_some_memory() {
        assert!(available_bytes() > 1 << 20);
    }
}

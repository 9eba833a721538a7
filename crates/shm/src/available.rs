//! Estimates how much memory the system can still provide, so that requesting too much is an error instead of a killed
//! process.
//!
//! The kernel commits pages of a memfd one by one and kills a process when memory runs out; it rejects nothing in
//! advance. So this module reads the host's estimate and the limits of the control groups of this process. A limit that
//! cannot be read does not apply.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::units::PAGE_BYTES;

/// Reserve for everything except objects: page tables (2 MiB per GiB that a process maps), connection buffers, stacks,
/// the interpreter of a node. Without it, the next small allocation after a large object would kill the process.
const RESERVED_BYTES: u64 = 32 << 20;

/// A reading is valid for 10 ms if there are [`PLENTY_BYTES`] beyond the request. A reading takes 30 us, as long as
/// creating an extent of 40 KiB.
const READING_KEPT: Duration = Duration::from_millis(10);

/// More than all processes of a host allocate between two readings: 70 processors that each commit 1.4 GiB of pages per
/// second.
const PLENTY_BYTES: u64 = 1 << 30;

/// The limit that a memory request exceeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The bound of the arena.
    Bound,
    /// The memory of the host.
    Host,
    /// The control group with this path, which contains this process.
    Group(String),
    /// The address space of this process: `ulimit -v`, or the number of mappings that the kernel allows.
    AddressSpace,
    /// The maximum file size of this process: `ulimit -f`. The memory of an extent is a file.
    FileSize,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bound => f.write_str("the store"),
            Self::Host => f.write_str("this host"),
            Self::Group(path) => write!(f, "the control group {path}"),
            Self::AddressSpace => {
                f.write_str("the address space of this process (ulimit -v, vm.max_map_count)")
            }
            Self::FileSize => f.write_str("the file size limit of this process (ulimit -f)"),
        }
    }
}

/// The memory that the system has left, read again when necessary.
#[derive(Debug, Default)]
pub(crate) struct Available {
    last: Mutex<Option<Reading>>,
}

#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    /// Bytes left at that time, minus those taken since.
    bytes: u64,
}

impl Available {
    /// Takes `bytes` if they are available. Otherwise returns how many are available, and the limit.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), (u64, Limit)> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(reading) = last.as_mut()
            && reading.has_plenty_beyond(bytes, now)
        {
            reading.bytes -= bytes;
            return Ok(());
        }
        let (left, limit) = available_bytes();
        let Some(rest) = left.checked_sub(bytes) else {
            *last = None;
            return Err((left, limit));
        };
        *last = Some(Reading { at: now, bytes: rest });
        Ok(())
    }
}

impl Reading {
    fn has_plenty_beyond(&self, bytes: u64, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < READING_KEPT
            && self.bytes >= bytes.saturating_add(PLENTY_BYTES)
    }
}

/// Returns the bytes that can be committed now without swapping or a killed process, and the limit. The number is huge
/// if nothing is known.
pub(crate) fn available_bytes() -> (u64, Limit) {
    let host = read("/proc/meminfo").and_then(|text| host_bytes(&text, "MemAvailable:"));
    let (bytes, limit) = least(host, groups(group_room));
    (bytes.saturating_sub(RESERVED_BYTES), limit)
}

/// Returns the maximum bytes for this process and those with the same limit, and the limit: the memory of the host, a
/// control group of this process or one above it, or the address space.
pub fn memory_limit() -> (u64, Limit) {
    let host = read("/proc/meminfo").and_then(|text| host_bytes(&text, "MemTotal:"));
    let mapped = getrlimit(Resource::As).current.map(|bytes| (bytes, Limit::AddressSpace));
    least(host, groups(|dir, files| limit_of(&read(dir.join(files.0))?)).into_iter().chain(mapped))
}

/// Returns the maximum bytes of an extent of this process: `ulimit -f` limits shared memory too.
pub fn file_size_limit() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

fn least(host: Option<u64>, others: impl IntoIterator<Item = (u64, Limit)>) -> (u64, Limit) {
    let host = (host.unwrap_or(u64::MAX), Limit::Host);
    others.into_iter().fold(host, |least, other| if other.0 < least.0 { other } else { least })
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Returns a value of /proc/meminfo in bytes.
fn host_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Files of a control group: (limit, usage, name in `memory.stat` of the pages that the kernel can drop).
type Files = (&'static str, &'static str, &'static str);
const VERSION_2: Files = ("memory.max", "memory.current", "inactive_file");
const VERSION_1: Files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");

/// Calls `bytes` with the directory of each control group of this process, and of those above.
fn groups(bytes: impl Fn(&Path, Files) -> Option<u64>) -> Vec<(u64, Limit)> {
    let lines = read("/proc/self/cgroup").unwrap_or_default();
    let mut found = Vec::new();
    for (root, path, files) in lines.lines().filter_map(group_of) {
        let root = Path::new(root);
        // Inside a container, the path may be that of the host and missing here. The root is then the container's own
        // group.
        let own = root.join(path.trim_start_matches('/'));
        for dir in own.ancestors().take_while(|dir| dir.starts_with(root)) {
            let name = || format!("/{}", dir.strip_prefix(root).unwrap_or(dir).display());
            found.extend(bytes(dir, files).map(|bytes| (bytes, Limit::Group(name()))));
        }
    }
    found
}

/// Returns the memory controller's root and files for a line of /proc/self/cgroup.
fn group_of(line: &str) -> Option<(&'static str, &str, Files)> {
    // "0::/a/b" is version 2; "4:memory:/a/b" is version 1.
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    match controllers {
        "" => Some(("/sys/fs/cgroup", path, VERSION_2)),
        list if list.split(',').any(|name| name == "memory") => {
            Some(("/sys/fs/cgroup/memory", path, VERSION_1))
        }
        _ => None,
    }
}

/// Bytes that a group still allows.
fn group_room(dir: &Path, files: Files) -> Option<u64> {
    let text = |name| read(dir.join(name));
    room(&text(files.0)?, &text(files.1)?, &text("memory.stat").unwrap_or_default(), files.2)
}

/// The limit of a group. "max" does not parse: no limit. Version 1 represents no limit by the largest number of whole
/// pages.
fn limit_of(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| *limit < i64::MAX as u64 / PAGE_BYTES * PAGE_BYTES)
}

/// Limit minus usage. File pages that the kernel drops first count as free. `None` without a limit.
fn room(limit: &str, usage: &str, stat: &str, droppable: &str) -> Option<u64> {
    let limit = limit_of(limit)?;
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
        assert_eq!(host_bytes(text, "MemAvailable:"), Some(23_000_000 * 1024));
        assert_eq!(host_bytes(text, "MemTotal:"), Some(24_000_000 * 1024));
        assert_eq!(host_bytes("MemTotal: 1 kB\n", "MemAvailable:"), None);
    }

    #[test]
    fn a_group_gives_its_limit_less_what_cannot_be_dropped() {
        let stat = "anon 5\ninactive_file 300\n";
        assert_eq!(room("1000\n", "700\n", stat, "inactive_file"), Some(600));
        assert_eq!(room("1000\n", "2000\n", "", "inactive_file"), Some(0));
        assert_eq!(room("max\n", "700\n", stat, "inactive_file"), None);
    }

    #[test]
    fn a_group_without_a_limit_does_not_limit() {
        assert_eq!(limit_of("max\n"), None);
        assert_eq!(limit_of("9223372036854771712\n"), None);
        assert_eq!(limit_of("419430400\n"), Some(400 << 20));
    }

    #[test]
    fn a_line_names_a_group_if_its_controller_limits_memory() {
        assert_eq!(group_of("7:blkio:/"), None);
        assert_eq!(group_of("nonsense"), None);
        assert_eq!(group_of("0::/a/b"), Some(("/sys/fs/cgroup", "/a/b", VERSION_2)));
        let version_1 = Some(("/sys/fs/cgroup/memory", "/a", VERSION_1));
        assert_eq!(group_of("4:cpu,memory:/a"), version_1);
    }

    #[test]
    fn the_tightest_limit_counts() {
        let groups = [(300, Limit::Group("/a".into())), (400, Limit::AddressSpace)];
        assert_eq!(least(Some(500), groups.clone()), (300, Limit::Group("/a".into())));
        assert_eq!(least(Some(200), groups), (200, Limit::Host));
        assert_eq!(least(None, []), (u64::MAX, Limit::Host));
    }

    #[test]
    fn a_reading_is_reused_while_there_is_plenty() {
        let at = Instant::now();
        let reading = |bytes| Reading { at, bytes };
        let plenty = PLENTY_BYTES + 5;
        assert!(reading(plenty).has_plenty_beyond(5, at + READING_KEPT / 2));
        assert!(!reading(plenty).has_plenty_beyond(6, at));
        assert!(!reading(plenty).has_plenty_beyond(5, at + READING_KEPT));
        assert!(!reading(plenty).has_plenty_beyond(u64::MAX, at));
    }

    #[test]
    fn taken_memory_counts_until_the_next_reading() {
        let available = Available::default();
        let refused = available.take(u64::MAX).unwrap_err().0;
        assert!(refused < u64::MAX, "{refused}");
        let at = Instant::now();
        *available.last.lock().unwrap() = Some(Reading { at, bytes: PLENTY_BYTES * 3 });
        assert_eq!(available.take(PLENTY_BYTES), Ok(()));
        let left = available.last.lock().unwrap().clone().unwrap();
        assert!(left.at > at || left.bytes == PLENTY_BYTES * 2, "{left:?}");
    }

    #[test]
    fn this_host_has_some_memory() {
        let (available, _) = available_bytes();
        assert!(available > 1 << 20 && available <= memory_limit().0);
    }
}

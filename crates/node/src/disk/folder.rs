//! The spill folder of a node: checks that it is usable and unshared, and reads files that an
//! earlier node left in it.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use hoplite_proto::{id::Instance, node::SpilledCopy};
use rustix::{
    fs::{FlockOperation, flock, fstatfs, statvfs},
    process::geteuid,
};
use tracing::{info, warn};

use super::file::SpillFile;
use crate::{config::SpillConfig, error::Error, fork_safe};

/// Suffix of the names of files that hold objects. Other files are left alone.
const ENDING: &str = "spill";

/// The file that a node keeps locked while it uses the folder.
const LOCK: &str = "hoplite.lock";

/// Percentage of the free space of the file system that a node may fill by default.
const FREE_PERCENT: u64 = 80;

/// File systems in memory: spilling there frees none. From linux/magic.h.
const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// A folder that no other node uses.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    is_kept: bool,
    lock: File,
}

/// Files that an earlier node left.
pub(crate) type RecoveredFiles = Vec<(SpilledCopy, SpillFile)>;

impl Folder {
    /// Locks a folder, creating it if it is missing, and reads the files that an earlier node left
    /// for this one. Removes all other files of objects.
    ///
    /// # Errors
    /// [`Error::Spill`] with the reason why the folder can't be used.
    pub(crate) fn take(config: &SpillConfig) -> Result<(Self, RecoveredFiles), Error> {
        let folder = &config.folder;
        let refused =
            |said: &str| Error::Spill(format!("can't spill to {}: {said}", folder.display()));
        let failed = |error: std::io::Error| refused(&error.to_string());
        let is_trusted = |user| user == 0 || user == geteuid().as_raw();
        if let Some(link) = link_of_another(folder, is_trusted).map_err(failed)? {
            let said = format!(
                "{} is a symbolic link of another user: use the path of the folder itself",
                link.display()
            );
            return Err(refused(&said));
        }
        let is_new = !folder.exists();
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
            match fs::metadata(folder) {
                Ok(metadata) if !metadata.is_dir() => refused("not a folder"),
                _ => failed(error),
            }
        })?;
        // Resolve symbolic links, whose targets may change later.
        let path = folder.canonicalize().map_err(failed)?;
        let metadata = fs::metadata(&path).map_err(failed)?;
        if metadata.uid() != geteuid().as_raw() {
            let said =
                format!("it belongs to user {}, not to the user of this node", metadata.uid());
            return Err(refused(&said));
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(refused("other users can write there: run chmod go-w on it"));
        }
        let opened = File::open(&path).map_err(failed)?;
        let kind = fstatfs(&opened).map_err(|error| failed(error.into()))?.f_type as i64;
        if [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(kind & 0xffff_ffff)) {
            if is_new {
                let _ = fs::remove_dir(&path);
            }
            return Err(refused(
                "it is in memory (tmpfs), where spilling frees nothing: use a folder on a disk",
            ));
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(path.join(LOCK)).map_err(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(refused("another node spills there: use one folder for each node"));
        }
        fork_safe::note(&lock);
        let this = Self { path, is_kept: config.persistent, lock };
        let left = this.sweep().map_err(failed)?;
        Ok((this, left))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its files are kept for the next node.
    pub(crate) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Default limit of bytes of files, in addition to those already there.
    pub(crate) fn usual_limit(&self) -> u64 {
        let metadata = statvfs(&self.path).ok();
        let free =
            metadata.map_or(0, |metadata| metadata.f_bavail.saturating_mul(metadata.f_frsize));
        free / 100 * FREE_PERCENT
    }

    /// Unlocks the folder for another node. A child of this process may still hold the lock
    /// otherwise.
    pub(crate) fn unlock(&self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }

    /// The path of a copy's file, unique by its serial number.
    pub(crate) fn file_of(&self, instance: Instance, serial: u64) -> PathBuf {
        let pid = std::process::id();
        self.path.join(format!("{:x}-{}.{pid}-{serial}.{ENDING}", instance.node.0, instance.serial))
    }

    /// Reads files left for this node, oldest first; removes unusable files.
    fn sweep(&self) -> std::io::Result<RecoveredFiles> {
        let mut left = Vec::new();
        let mut removed = 0;
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_none_or(|ending| ending != ENDING) {
                continue;
            }
            if self.is_kept {
                let written = fs::symlink_metadata(&path).and_then(|metadata| {
                    let at = (metadata.mtime(), metadata.mtime_nsec());
                    Ok((at, SpillFile::open(&path)?))
                });
                match written {
                    Ok((at, (file, copy))) => {
                        left.push((at, copy, file));
                        continue;
                    }
                    Err(error) => {
                        warn!(path = %path.display(), %error, "a spilled file can't be used");
                    }
                }
            }
            fs::remove_file(&path)?;
            removed += 1;
        }
        if removed > 0 {
            info!(
                folder = %self.path.display(), removed,
                "removed files that an earlier node spilled"
            );
        }
        left.sort_by_key(|(at, ..)| *at);
        Ok(left.into_iter().map(|(_, copy, file)| (copy, file)).collect())
    }
}

/// Limit of symbolic links on the path to a folder, as in the kernel.
const LINKS_MAX: usize = 40;

/// Finds a symbolic link on the path whose owner is not trusted: that user would choose the folder,
/// and so which files are removed.
fn link_of_another(
    path: &Path,
    is_trusted: impl Fn(u32) -> bool,
) -> std::io::Result<Option<PathBuf>> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS_MAX {
        let mut from_root: Vec<&Path> = path.ancestors().collect();
        from_root.reverse();
        let link = from_root.into_iter().find_map(|at| {
            // This process creates the missing parts.
            let metadata = fs::symlink_metadata(at).ok()?;
            metadata.is_symlink().then_some((at, metadata.uid()))
        });
        let Some((link, owner)) = link else { return Ok(None) };
        if !is_trusted(owner) {
            return Ok(Some(link.to_path_buf()));
        }
        let behind = path.strip_prefix(link).map_err(std::io::Error::other)?;
        let target = link.parent().unwrap_or(link).join(fs::read_link(link)?);
        path = if behind.as_os_str().is_empty() { target } else { target.join(behind) };
    }
    Err(rustix::io::Errno::LOOP.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn symbolic_link_on_the_path_is_found() {
        let root = std::env::temp_dir().canonicalize().unwrap();
        let root = root.join(format!("hoplite-links-{}", std::process::id()));
        fs::create_dir_all(root.join("real/spill")).unwrap();
        symlink("real", root.join("relative")).unwrap();
        symlink(root.join("relative/spill"), root.join("chain")).unwrap();
        let own = geteuid().as_raw();
        for (path, link) in [
            ("relative/spill", "relative"),
            ("relative/../real/spill", "relative"),
            ("chain/not/there", "chain"),
        ] {
            let found = link_of_another(&root.join(path), |_| false).unwrap();
            assert_eq!(found, Some(root.join(link)), "{path}");
        }
        for path in ["relative/spill", "chain", "real/spill", "not/there"] {
            assert_eq!(link_of_another(&root.join(path), |user| user == own).unwrap(), None);
        }
        // A link after a trusted one.
        let asked = std::cell::Cell::new(0);
        let is_first = |_| asked.replace(1) == 0;
        let found = link_of_another(&root.join("chain"), is_first).unwrap();
        assert_eq!(found, Some(root.join("relative")));
        symlink("again", root.join("again")).unwrap();
        assert!(link_of_another(&root.join("again"), |_| true).is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}

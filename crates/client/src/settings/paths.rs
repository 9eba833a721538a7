//! Paths in settings.

use std::{
    env,
    path::{Path, PathBuf},
};

/// Replaces `~` at the start of a path by the home directory.
pub(crate) fn expanded(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), env::var_os("HOME")) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.into(),
    }
}

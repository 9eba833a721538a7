//! Where a Unix socket comes to listen, in place of a dead node's but never of a living one's.

use std::{
    io,
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use tokio::net::UnixListener;

use crate::{descriptors, error::Error};

/// Listens at `path`, in place of a dead node's socket if there is one.
///
/// # Errors
/// [`Error::AddressInUse`] if a node answers there; [`Error::Listen`].
pub(crate) fn bind(path: &Path) -> Result<UnixListener, Error> {
    let address = path.display().to_string();
    let refused =
        |error: io::Error| Error::Listen { address: address.clone(), detail: error.to_string() };
    // A socket that was bound a moment ago and does not listen yet looks like a dead node's.
    let _lock = FolderLock::take(path.parent().unwrap_or(Path::new("/"))).map_err(refused)?;
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        let detail = "a running node serves that socket".into();
        return Err(Error::AddressInUse { address, detail });
    }
    let bound = std::fs::symlink_metadata(path).map_or_else(
        |_| Ok(()),
        |found| {
            use std::os::unix::fs::FileTypeExt;
            // Only ever a socket that nobody serves; anything else there is somebody's.
            if found.file_type().is_socket() {
                std::fs::remove_file(path)
            } else {
                Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "a file that is no socket is there",
                ))
            }
        },
    );
    let listener = bound.and_then(|()| UnixListener::bind(path)).and_then(|listener| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        descriptors::note(&listener);
        Ok(listener)
    });
    listener.map_err(refused)
}

/// How long a node that starts waits for another one that is about to listen in the same folder.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(5);

/// The right to make and remove sockets in a folder: a lock on the folder itself, which leaves no file behind.
#[derive(Debug)]
struct FolderLock(OwnedFd);

impl FolderLock {
    fn take(folder: &Path) -> io::Result<Self> {
        // A path without a folder is in the current one.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(folder, flags, Mode::empty())?;
        let until = Instant::now() + LOCK_PATIENCE;
        loop {
            match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(opened)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    thread::sleep(LOCK_POLL);
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!(
                            "another process has held the lock of {} for {LOCK_PATIENCE:?}",
                            folder.display()
                        ),
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the descriptor too, and closing ours alone would leave it locked.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

//! Where a Unix socket comes to listen, in place of a dead node's but never of a living one's; and which users may meet there.

use std::{
    fs::DirBuilder,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use hoplite_shm::refuse_descriptors;
use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

use crate::{error::Error, fork_safe, sync::lock};

/// The socket at which a node serves the processes of its host.
#[derive(Debug)]
pub(crate) struct ServedSocket {
    path: PathBuf,
    /// Device and inode of the file that this node made at the path; none once the node has removed it.
    file: Mutex<Option<(u64, u64)>>,
}

impl ServedSocket {
    /// Listens at `path`; see [`bind`].
    ///
    /// # Errors
    /// Those of [`bind`].
    pub(crate) fn bind(path: &Path) -> Result<(Self, UnixListener), Error> {
        let listener = bind(path)?;
        Ok((Self { path: path.into(), file: Mutex::new(file_at(path)) }, listener))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether nothing but this node has removed or replaced the file. A path that is not absolute counts as there: it leads
    /// elsewhere when the process changes its folder.
    pub(crate) fn is_there(&self) -> bool {
        let file = lock(&self.file);
        file.is_none() || self.path.is_relative() || *file == file_at(&self.path)
    }

    /// Listens anew at the path, and makes its folder again if that is gone too.
    ///
    /// # Errors
    /// Those of [`bind`]; the folder can't be made, or the node has removed the file itself.
    pub(crate) fn bind_again(&self) -> Result<UnixListener, Error> {
        let mut file = lock(&self.file);
        let refused = |detail| Error::Listen { address: self.path.display().to_string(), detail };
        if file.is_none() {
            return Err(refused("the node leaves".into()));
        }
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(|error| refused(format!("can't make {}: {error}", folder.display())))?;
        }
        let listener = bind(&self.path)?;
        *file = file_at(&self.path);
        Ok(listener)
    }

    /// Removes the file, unless another process has put its own in that place.
    pub(crate) fn remove(&self) {
        let mut file = lock(&self.file);
        if file.is_some() && *file == file_at(&self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
        *file = None;
    }
}

/// Device and inode of the file at a path, if there is one.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Listens at `path`, in place of a dead node's socket if there is one.
///
/// # Errors
/// [`Error::AddressInUse`] if a node answers there; [`Error::Listen`].
fn bind(path: &Path) -> Result<UnixListener, Error> {
    let address = path.display().to_string();
    let refused =
        |error: io::Error| Error::Listen { address: address.clone(), detail: error.to_string() };
    let folder = path.parent().unwrap_or(Path::new("/"));
    // A socket that was bound a moment ago and does not listen yet looks like a dead node's.
    let _lock = FolderLock::take(folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            let detail = format!("there is no folder {}; make it first", folder.display());
            Error::Listen { address: address.clone(), detail }
        }
        _ => refused(error),
    })?;
    if is_served(path).map_err(refused)? {
        let detail = "a running node serves that socket".into();
        return Err(Error::AddressInUse { address, detail });
    }
    let bound = std::fs::symlink_metadata(path).map_or_else(
        |_| Ok(()),
        |found| {
            use std::os::unix::fs::FileTypeExt;
            // Only ever a socket that no process serves; any other file stays.
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
    let listener = bound.and_then(|()| listen(path)).and_then(UnixListener::from_std);
    listener.inspect(fork_safe::note).map_err(refused)
}

/// Processes that may wait to be accepted.
const BACKLOG: i32 = 1024;

fn listen(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = bind_privately(path)?;
    // The sockets that it accepts do so too. A kernel that is too old delivers them: see [`super::arriving`].
    let _ = refuse_descriptors(socket.as_fd());
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(OwnedFd::from(socket).into())
}

/// Makes the socket at `path`, which no other user can open from its first moment on.
fn bind_privately(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The file gets the mode that the socket has. A mask would be that of all threads of the process.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    Ok(socket)
}

/// Whether this process shares no memory with those of user `uid`: it does with those of its own user alone, root's
/// included, since values that root reads could run code of another user.
pub(crate) fn is_stranger(uid: u32) -> bool {
    uid != own_user()
}

/// The user of this process.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a process listens at a path, also if it is too busy to accept.
fn is_served(path: &Path) -> io::Result<bool> {
    let caller = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // No other node may come to listen in this folder until there is an answer.
    caller.set_nonblocking(true)?;
    match caller.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(true),
        Err(error) => Ok(error.kind() == io::ErrorKind::WouldBlock),
    }
}

/// How long a node that starts waits for another one that is about to listen in the same folder, and how often it looks:
/// `flock` has no timeout, and a thread that waited in it might never end.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(5);

/// The right to make and remove sockets in a folder: a lock on the folder itself, which leaves no file behind. In a folder
/// that other users own or can read it is only tried for: they could hold it for ever.
#[derive(Debug)]
struct FolderLock(OwnedFd);

const READ_BY_OTHERS: u32 = 0o044;

impl FolderLock {
    fn take(folder: &Path) -> io::Result<Self> {
        // A path without a folder is in the current one.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(folder, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&opened)?;
        let is_shared = found.st_uid != own_user() || found.st_mode & READ_BY_OTHERS != 0;
        let until = Instant::now() + LOCK_PATIENCE;
        loop {
            match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(opened)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    thread::sleep(LOCK_POLL);
                }
                // Any user may lock a folder that it can read.
                Err(Errno::WOULDBLOCK) if is_shared => return Ok(Self(opened)),
                Err(Errno::WOULDBLOCK) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!(
                            "another process has held the lock of {} for {} s",
                            folder.display(),
                            LOCK_PATIENCE.as_secs()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_user_can_open_the_socket_from_the_moment_it_is_there() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("hoplite-mode-{}", std::process::id()));
        let _socket = bind_privately(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_processes_of_this_user_are_no_strangers() {
        assert!(!is_stranger(own_user()));
        assert!(is_stranger(own_user() + 1));
    }

    #[test]
    fn a_node_that_is_too_busy_to_accept_keeps_its_socket() {
        let folder = std::env::temp_dir().join(format!("hoplite-socket-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("node.sock");
        assert!(!is_served(&path).unwrap());
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        assert!(!is_served(&path).unwrap());
        listener.listen(0).unwrap();
        assert!(is_served(&path).unwrap());
        // Its queue is full of the first caller: another one would wait.
        assert!(is_served(&path).unwrap());
        drop(listener);
        assert!(!is_served(&path).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

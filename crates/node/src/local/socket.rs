//! Binds Unix sockets: replaces the socket of a dead node, but never that of a live one. Defines
//! which users may connect.

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

/// The socket on which a node serves processes of its host.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    path: PathBuf,
    /// Device and inode of the socket's file that this node created; None once the node has removed
    /// it.
    file: Mutex<Option<(u64, u64)>>,
}

impl ListeningSocket {
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

    /// Whether the file is still the socket that this node created, or the node has removed it
    /// itself. A relative path counts as unchanged: it refers to another file if the process
    /// changes its folder.
    pub(crate) fn is_there(&self) -> bool {
        let file = lock(&self.file);
        file.is_none() || self.path.is_relative() || *file == file_at(&self.path)
    }

    /// Listens again at the path. Creates its folder if that is missing too.
    ///
    /// # Errors
    /// Those of [`bind`]; the folder can't be created, or the node has removed the file itself.
    pub(crate) fn bind_again(&self) -> Result<UnixListener, Error> {
        let mut file = lock(&self.file);
        let refused = |detail| Error::Listen { address: self.path.display().to_string(), detail };
        if file.is_none() {
            return Err(refused("the node is stopping".into()));
        }
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
                refused(format!("can't create the folder {}: {error}", folder.display()))
            })?;
        }
        let listener = bind(&self.path)?;
        *file = file_at(&self.path);
        Ok(listener)
    }

    /// Removes the file, unless another process has replaced it.
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
/// [`Error::AddressInUse`] if a node serves the path; [`Error::Listen`].
fn bind(path: &Path) -> Result<UnixListener, Error> {
    let address = path.display().to_string();
    let refused =
        |error: io::Error| Error::Listen { address: address.clone(), detail: error.to_string() };
    let folder = path.parent().unwrap_or(Path::new("/"));
    // A socket that is bound but does not listen yet looks like a dead node's.
    let _lock = FolderLock::take(folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            let detail = format!("there is no folder {}: create it first", folder.display());
            Error::Listen { address: address.clone(), detail }
        }
        _ => refused(error),
    })?;
    if is_served(path).map_err(refused)? {
        let detail = "a running node serves it".into();
        return Err(Error::AddressInUse { address, detail });
    }
    let bound = std::fs::symlink_metadata(path).map_or_else(
        |_| Ok(()),
        |found| {
            use std::os::unix::fs::FileTypeExt;
            // Remove only a socket that no process serves; keep any other file.
            if found.file_type().is_socket() {
                std::fs::remove_file(path)
            } else {
                Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there is not a socket"))
            }
        },
    );
    let listener = bound.and_then(|()| listen(path)).and_then(UnixListener::from_std);
    listener.inspect(fork_safe::note).map_err(refused)
}

/// Length of the listen queue.
const BACKLOG: i32 = 1024;

fn listen(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = bind_privately(path)?;
    // Accepted sockets inherit this. An older kernel delivers descriptors: see
    // [`super::request_reader`].
    let _ = refuse_descriptors(socket.as_fd());
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(OwnedFd::from(socket).into())
}

/// Creates the socket at `path` so that no other user can ever open it.
fn bind_privately(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The file gets the mode of the socket. A umask would affect all threads of the process.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    Ok(socket)
}

/// Whether a user may not share memory with this process. Only its own user may, not even root:
/// values that root reads could run code of another user.
pub(crate) fn is_stranger(uid: u32) -> bool {
    uid != own_user()
}

/// The user of this process.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a process listens at a path, even if it is too busy to accept.
fn is_served(path: &Path) -> io::Result<bool> {
    let caller = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // No other node may listen in this folder until the result is known.
    caller.set_nonblocking(true)?;
    match caller.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(true),
        Err(error) => Ok(error.kind() == io::ErrorKind::WouldBlock),
    }
}

/// Timeout and interval of attempts to lock the folder while another node is about to listen in it.
/// `flock` has no timeout, and a thread in it might block forever.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(5);

/// Lock on a folder that allows creating and removing sockets in it. It leaves no file behind. If
/// other users own or can read the folder, failing to lock it is ignored: they could hold the lock
/// forever.
#[derive(Debug)]
struct FolderLock(OwnedFd);

const READ_BY_OTHERS: u32 = 0o044;

impl FolderLock {
    fn take(folder: &Path) -> io::Result<Self> {
        // A path without a folder refers to the current one.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(folder, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&opened)?;
        let is_shared = found.st_uid != own_user() || found.st_mode & READ_BY_OTHERS != 0;
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(opened)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    thread::sleep(LOCK_POLL);
                }
                // Any user can lock a folder that it can read.
                Err(Errno::WOULDBLOCK) if is_shared => return Ok(Self(opened)),
                Err(Errno::WOULDBLOCK) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!(
                            "another process has locked {} for more than {} s",
                            folder.display(),
                            LOCK_TIMEOUT.as_secs()
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
        // A child forked meanwhile has the descriptor too: closing only this one would leave the
        // folder locked.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_never_accessible_to_other_users() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("hoplite-mode-{}", std::process::id()));
        let _socket = bind_privately(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_processes_of_this_user_may_connect() {
        assert!(!is_stranger(own_user()));
        assert!(is_stranger(own_user() + 1));
    }

    #[test]
    fn busy_node_keeps_its_socket() {
        let folder = std::env::temp_dir().join(format!("hoplite-socket-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("node.sock");
        assert!(!is_served(&path).unwrap());
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        assert!(!is_served(&path).unwrap());
        listener.listen(0).unwrap();
        assert!(is_served(&path).unwrap());
        // The first client fills its queue: another one would wait.
        assert!(is_served(&path).unwrap());
        drop(listener);
        assert!(!is_served(&path).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

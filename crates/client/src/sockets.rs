//! The Unix sockets of this user's nodes: their paths, and which of them a running node serves. Python has the same.

use std::{
    env, fs,
    fs::{DirBuilder, File},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Access, FlockOperation, OFlags, access, flock},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt},
    process::{Resource, getrlimit, getuid},
};

use crate::error::{Error, ErrorKind, Result};

/// Size of `sun_path` in `sockaddr_un`, less the terminating zero.
const PATH_BYTES_MAX: usize = 107;

/// Name of the socket of this user's node.
const USER_SOCKET: &str = "node.sock";

/// Set by Slurm in the processes of a job, which has sockets of its own.
const JOB_VARIABLE: &str = "SLURM_JOB_ID";

/// Limit of a command line in a message.
const COMMAND_CHARS_MAX: usize = 80;

/// Intervals between two checks for a node that is starting, and for a lock.
const START_POLL: Duration = Duration::from_millis(20);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// The directory of this user's sockets; creates it if it is missing, closed to other users. It is in XDG_RUNTIME_DIR,
/// or in /tmp if that is not set, missing or not writable.
///
/// # Errors
/// `HostError` if another user owns the directory or can access it.
pub(crate) fn runtime_dir() -> Result<PathBuf> {
    let base = env::var_os("XDG_RUNTIME_DIR").filter(|base| !base.is_empty());
    let preferred = base.and_then(|base| made(Path::new(&base).join("hoplite")));
    let folder = match preferred {
        Some(folder) => folder,
        None => {
            let wanted = PathBuf::from(format!("/tmp/hoplite-{}", getuid().as_raw()));
            let advice = "set XDG_RUNTIME_DIR to a directory of this user";
            let failed = || host_error(format!("{} is not writable: {advice}", wanted.display()));
            made(wanted.clone()).ok_or_else(failed)?
        }
    };
    // In /tmp, another user could have created it first, to serve a socket of its own.
    let mine = fs::symlink_metadata(&folder)
        .ok()
        .filter(|metadata| metadata.is_dir() && metadata.uid() == getuid().as_raw());
    let is_open = mine.as_ref().is_some_and(|metadata| metadata.mode() & 0o077 != 0);
    if mine.is_some() && !is_open {
        return Ok(folder);
    }
    let folder = folder.display();
    Err(host_error(if is_open {
        format!(
            "other users can access {folder}, the directory of this user's sockets: run chmod 700 {folder}"
        )
    } else {
        format!(
            "{folder} is not a directory of this user: remove it, or set XDG_RUNTIME_DIR to a directory of this user"
        )
    }))
}

/// The default socket of this host's node: this user's, or in a Slurm job, the job's.
///
/// # Errors
/// As [`runtime_dir`].
pub(crate) fn default_socket() -> Result<PathBuf> {
    let job = env::var(JOB_VARIABLE).unwrap_or_default();
    let is_number = !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit());
    let name = if is_number { format!("node-slurm{job}.sock") } else { USER_SOCKET.into() };
    Ok(runtime_dir()?.join(name))
}

/// The socket of a node that `init` starts. It differs from that of this host's node, so that `hoplite node` can still
/// start.
///
/// # Errors
/// As [`runtime_dir`].
pub(crate) fn embedded_socket(wanted: Option<&Path>) -> Result<PathBuf> {
    let of_host = wanted.map_or_else(default_socket, |path| Ok(path.to_owned()))?;
    let part =
        |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let stem = part(of_host.file_stem());
    let name = match of_host.extension() {
        Some(extension) => format!("{stem}-embedded.{}", part(Some(extension))),
        None => format!("{stem}-embedded"),
    };
    Ok(of_host.with_file_name(name))
}

/// The sockets at which this host's node may serve this process, in order of preference.
///
/// # Errors
/// As [`runtime_dir`].
pub(crate) fn host_sockets(wanted: Option<&Path>) -> Result<Vec<PathBuf>> {
    if let Some(wanted) = wanted {
        return Ok(vec![wanted.into()]);
    }
    // Without a node of its own, a job uses this user's node.
    let mut paths = vec![default_socket()?, runtime_dir()?.join(USER_SOCKET)];
    paths.dedup();
    Ok(paths)
}

/// The socket of a running node for this process: this host's node, else an embedded one.
///
/// # Errors
/// As [`is_served`].
pub(crate) fn find(wanted: Option<&Path>) -> Result<Option<PathBuf>> {
    let mut paths = host_sockets(wanted)?;
    paths.push(embedded_socket(wanted)?);
    served(&paths)
}

/// Waits until a node serves one of several sockets, and returns its path.
///
/// # Errors
/// `ConnectError` if no node serves one in time.
pub(crate) fn wait_for(paths: &[PathBuf], timeout: Option<Duration>) -> Result<PathBuf> {
    let begun = Instant::now();
    loop {
        if let Some(path) = served(paths)? {
            return Ok(path);
        }
        if let Some(timeout) = timeout
            && begun.elapsed() >= timeout
        {
            let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            let message = format!(
                "no node served {} within {} s: start one with hoplite node, or set a longer timeout",
                paths.join(" or "),
                timeout.as_secs_f64()
            );
            return Err(Error::new(ErrorKind::ConnectError, message));
        }
        thread::sleep(START_POLL);
    }
}

fn served(paths: &[PathBuf]) -> Result<Option<PathBuf>> {
    for path in paths {
        if is_served(path)? {
            return Ok(Some(path.clone()));
        }
    }
    Ok(None)
}

/// Whether a running process listens on a socket; false if the socket is missing or a dead process left it.
///
/// # Errors
/// `InvalidArgument` if the path is too long; `HostError` if this process can't open a socket.
pub(crate) fn is_served(path: &Path) -> Result<bool> {
    check_length(path)?;
    match probe(path) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => Ok(false),
        // The backlog is full, or the socket belongs to another user: a process listens.
        Err(Errno::AGAIN | Errno::ACCESS | Errno::PERM) => Ok(true),
        Err(Errno::MFILE) => {
            let limit = getrlimit(Resource::Nofile).current.unwrap_or_default();
            Err(host_error(format!(
                "can't look for a node at {}: this process has reached its limit of {limit} open files. Close some, \
                 or raise the limit with ulimit -n",
                path.display()
            )))
        }
        Err(error) => Err(host_error(format!("can't connect to {}: {error}", path.display()))),
    }
}

fn probe(path: &Path) -> std::result::Result<std::os::fd::OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&probe, &SocketAddrUnix::new(path)?)?;
    Ok(probe)
}

/// Describes the process that serves a socket, such as "process 4711 (python train.py)".
fn server_of(path: &Path) -> String {
    let pid = probe(path).and_then(sockopt::socket_peercred).map(|peer| peer.pid.as_raw_nonzero());
    let command =
        pid.ok().and_then(|pid| Some((pid, fs::read(format!("/proc/{pid}/cmdline")).ok()?)));
    // The process has ended, or is in another PID namespace.
    let Some((pid, command)) = command else { return "another process".into() };
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let letters = command.trim().chars().filter(|letter| !letter.is_control());
    let mut shown: String = letters.clone().take(COMMAND_CHARS_MAX).collect();
    if letters.count() > COMMAND_CHARS_MAX {
        shown.push_str("...");
    }
    format!("process {pid} ({shown})")
}

fn check_length(path: &Path) -> Result<()> {
    if path.as_os_str().as_bytes().len() <= PATH_BYTES_MAX {
        return Ok(());
    }
    Err(Error::argument(format!(
        "the socket path {} is longer than {PATH_BYTES_MAX} bytes: choose a shorter path, or set XDG_RUNTIME_DIR to a \
         directory with a short path",
        path.display()
    )))
}

/// Rejects a path on which no node can listen. A node that listens replaces the socket of a dead one.
///
/// # Errors
/// `AddressInUse` if a running process serves the path or the file there is not a socket; `InvalidArgument` if its
/// directory does not exist or it is too long.
pub(crate) fn check_free(path: &Path) -> Result<()> {
    check_folder(path)?;
    if is_served(path)? {
        let message = format!(
            "{} already serves the socket {}: use its node, stop that process, or choose another socket",
            server_of(path),
            path.display()
        );
        return Err(Error::new(ErrorKind::AddressInUse, message));
    }
    check_kind(path)
}

/// Chooses the socket path of a node whose settings have none, and removes the sockets of dead nodes: `usual`, or a new
/// path if a running node serves it.
///
/// # Errors
/// As [`check_free`].
pub(crate) fn free_path(usual: &Path) -> Result<PathBuf> {
    check_folder(usual)?;
    let folder = runtime_dir()?;
    // A node that starts to listen takes this lock too: a socket that does not listen yet looks like a dead node's.
    let _locked = lock(&folder, None)?;
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_node = name.starts_with("node-") && name.ends_with(".sock");
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_node && is_socket && !is_served(&entry.path())? {
            // Another process may have removed it.
            let _ = fs::remove_file(entry.path());
        }
    }
    let (mut path, mut number) = (usual.to_owned(), 0);
    while is_served(&path)? {
        number += 1;
        path = folder.join(format!("node-{}-{number}.sock", std::process::id()));
    }
    check_kind(&path)?;
    Ok(path)
}

/// Takes the lock for starting this user's node on this host: of several processes, one starts it.
///
/// # Errors
/// `ConnectError` if another process held the lock for the whole time.
pub(crate) fn one_at_a_time(timeout: Option<Duration>) -> Result<Lock> {
    lock(&runtime_dir()?.join("init.lock"), timeout)
}

/// A locked directory or file.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // A child forked meanwhile has the descriptor too: closing it only here would leave the file locked.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

fn lock(path: &Path, timeout: Option<Duration>) -> Result<Lock> {
    let is_folder = path.is_dir();
    let flags = if is_folder { OFlags::DIRECTORY } else { OFlags::empty() };
    let opened = File::options()
        .read(true)
        .write(!is_folder)
        .create(!is_folder)
        .mode(0o600)
        .custom_flags((flags | OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32)
        .open(path);
    let file = opened.map_err(|error| {
        host_error(format!("can't open {} ({error}): remove it", path.display()))
    })?;
    let begun = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Lock(file)),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => {
                return Err(host_error(format!("can't lock {}: {error}", path.display())));
            }
        }
        if let Some(timeout) = timeout
            && begun.elapsed() >= timeout
        {
            let message = format!(
                "another process of this user has held the lock {} for {} s while it starts this host's node: wait, \
                 or end that process",
                path.display(),
                timeout.as_secs_f64()
            );
            return Err(Error::new(ErrorKind::ConnectError, message));
        }
        thread::sleep(LOCK_POLL);
    }
}

/// Creates a directory unless it exists; None if it can't be created or is not writable.
fn made(folder: PathBuf) -> Option<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&folder) {
        // The caller rejects a file or a broken link.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return None,
        Err(_) if !folder.is_dir() => return Some(folder),
        _ => {}
    }
    access(&folder, Access::WRITE_OK | Access::EXEC_OK).is_ok().then_some(folder)
}

fn check_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if folder.is_dir() {
        return Ok(());
    }
    let (folder, path) = (folder.display(), path.display());
    Err(Error::argument(format!(
        "the directory {folder} of the socket {path} does not exist: create it (mkdir -p {folder}) or choose another \
         path"
    )))
}

fn check_kind(path: &Path) -> Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.file_type().is_socket()) {
        let message =
            format!("{} exists and is not a socket: choose another socket path", path.display());
        return Err(Error::new(ErrorKind::AddressInUse, message));
    }
    Ok(())
}

fn host_error(message: String) -> Error {
    Error::new(ErrorKind::HostError, message)
}

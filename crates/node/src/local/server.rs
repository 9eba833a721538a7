//! The Unix socket of a node: the other processes of its host attach here. Knows how an attachment begins and ends, not what
//! is said in it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use hoplite_shm::{WriterId, peer_process, send_with_fds};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::MissedTickBehavior,
};
use tracing::{error, info, warn};

use super::{
    arriving::process_number,
    limits,
    programs::Programs,
    protocol::{FromNode, frame},
    session::Session,
    socket::{self, ServedSocket},
};
use crate::{engine::task::Task, fork_safe, limited::Whose};

/// Between two looks whether the socket's file is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Accepts for ever, and makes the socket's file again when something removed it: the folder of a user's sockets is removed
/// when the user logs out.
pub(crate) async fn accept(
    programs: Arc<Programs>,
    mut listener: UnixListener,
    socket: Arc<ServedSocket>,
) {
    let places = Places::new();
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut has_failed = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = look.tick() => {
                if socket.is_there() {
                    has_failed = false;
                } else {
                    match bind_again(&programs, &socket).await {
                        Ok(again) => listener = again,
                        // Once: the next look fails in the same way.
                        Err(_) if has_failed => {}
                        Err(said) => {
                            error!(
                                "the file of this node's socket was removed, and no process can attach until it is \
                                 there again: {said}"
                            );
                            has_failed = true;
                        }
                    }
                }
                continue;
            }
        };
        match accepted {
            Ok((stream, _)) => {
                fork_safe::note(&stream);
                let admitted = admit(programs.clone(), stream, places.clone());
                programs.network.tasks.spawn(Task::Session, admitted);
            }
            Err(error) => {
                info!(%error, "could not accept a process");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn bind_again(
    programs: &Programs,
    socket: &Arc<ServedSocket>,
) -> Result<UnixListener, String> {
    let of_thread = socket.clone();
    // It may wait for another node that is about to listen in the folder.
    let binding =
        programs.network.tasks.spawn_blocking(Task::Attach, move || of_thread.bind_again());
    match binding.await {
        Ok(Some(Ok(listener))) => {
            warn!(socket = %socket.path().display(), "the file of this node's socket was removed; it was made again");
            Ok(listener)
        }
        Ok(Some(Err(error))) => Err(error.to_string()),
        Ok(None) | Err(_) => Err("the node ends".into()),
    }
}

/// How many processes may be attached, and how many may wait for one of them to leave.
#[derive(Clone)]
struct Places {
    most: usize,
    free: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Places {
    fn new() -> Self {
        let most = limits::attached_max();
        let waiting = Arc::new(Semaphore::new(limits::WAITING_MAX));
        Self { most, free: Arc::new(Semaphore::new(most)), waiting }
    }

    /// A place for a process, or why it gets none. A process that has just left may have its place for a moment more, so
    /// that a few wait for one.
    async fn take(&self) -> Result<OwnedSemaphorePermit, String> {
        if let Ok(place) = self.free.clone().try_acquire_owned() {
            return Ok(place);
        }
        if let Ok(_waits) = self.waiting.try_acquire() {
            let place = self.free.clone().acquire_owned();
            if let Ok(Ok(place)) = tokio::time::timeout(limits::PLACE_WAIT_MAX, place).await {
                return Ok(place);
            }
        }
        Err(format!(
            "this node serves {} processes already, as many as it may; each takes two of its descriptors, so that \
             ulimit -n may allow more, up to {}",
            self.most,
            limits::ATTACHED_MAX
        ))
    }
}

/// Attends to a process of this user that gets a place, and tells any other why it is sent away.
async fn admit(programs: Arc<Programs>, stream: UnixStream, places: Places) {
    let place = match check_user(&stream) {
        Ok(()) => places.take().await.inspect_err(|_| {
            let process = Whose::Process(process_number(&stream));
            programs.network.limited.note(process, "ATTACHED_MAX");
        }),
        Err(said) => Err(said),
    };
    match place {
        Ok(place) => attend(programs, stream, place).await,
        Err(said) => {
            programs.network.counters.strangers.add(1);
            info!(%said, "a process was not let in");
            // It fits a socket that nothing was written to.
            let _ = send_with_fds(&stream, &frame(&FromNode::Refused { said }), &[]);
        }
    }
}

fn check_user(stream: &UnixStream) -> Result<(), String> {
    let user = stream.peer_cred().map_err(|error| error.to_string())?.uid();
    if socket::is_stranger(user) {
        return Err(format!(
            "user {user} may not attach: this node serves processes of its own user, {}",
            socket::own_user()
        ));
    }
    Ok(())
}

async fn attend(programs: Arc<Programs>, stream: UnixStream, _place: OwnedSemaphorePermit) {
    let process = process_of(&stream);
    let stream = Arc::new(stream);
    let (session, answers) = Session::begin(programs.clone(), stream.clone());
    let client = session.client();
    let of_writing = answers.clone();
    let writing = async move { of_writing.write().await };
    let writing = programs.network.tasks.spawn(Task::Answers, writing);
    let result = session.attend(&stream).await;
    let has_memory = session.has_memory();
    drop(session);
    // What is queued, a refusal perhaps, still goes out.
    answers.close();
    let abort = writing.abort_handle();
    let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
    abort.abort();
    // Questions without an answer hold the session for a moment: the process is told before.
    let _ = rustix::net::shutdown(&*stream, rustix::net::Shutdown::Both);
    drop((stream, answers));
    if let Err(error) = result {
        programs.network.counters.strangers.add(1);
        info!(%error, "an attached process broke off");
        // It did not say what it still reads: its views stay valid for as long as it can look at them. One that never
        // got any memory has none, and must not cost a descriptor until it ends.
        while has_memory && process.as_ref().is_some_and(|process| !has_ended(process)) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    programs.gone(client);
    programs.store.arena.retire(WriterId(client.0));
    programs.forget_gone();
}

/// The process at the other end, if it lives and this one may open it.
fn process_of(stream: &UnixStream) -> Option<OwnedFd> {
    match peer_process(stream.as_fd()) {
        // By its number, which another process may have by now.
        Err(error) if is_unknown(&error) => {
            let pid = Pid::from_raw(stream.peer_cred().ok()?.pid()?)?;
            pidfd_open(pid, PidfdFlags::empty()).ok()
        }
        process => process.ok(),
    }
}

/// Whether the kernel is too old for the option.
fn is_unknown(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOPROTOOPT.raw_os_error())
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

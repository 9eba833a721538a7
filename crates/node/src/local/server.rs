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
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::{UnixListener, UnixStream},
    time::MissedTickBehavior,
};
use tracing::{error, info, warn};

use super::{
    arriving::{hang_up, process_number},
    limits,
    programs::Programs,
    protocol::{FromNode, frame},
    session::Session,
    shares::{Share, Shares, Taker},
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

/// The places of attached processes, and those of processes that wait until one leaves.
#[derive(Clone)]
struct Places {
    all: Shares,
    waiting: Shares,
}

impl Places {
    fn new() -> Self {
        Self { all: Shares::new(limits::attached_max()), waiting: Shares::new(limits::WAITING_MAX) }
    }

    /// A place for a process, or why it gets none. A process that has just left may have its place for a moment more, so
    /// that a few wait for one.
    async fn take(&self, process: Taker) -> Result<Share, String> {
        let takers = [process];
        let excess = match self.all.take(&takers, 1) {
            Ok(place) => return Ok(place),
            Err(excess) => excess,
        };
        if let Ok(_waits) = self.waiting.take(&takers, 1) {
            let place = self.all.wait(&takers, 1);
            if let Ok(place) = tokio::time::timeout(limits::PLACE_WAIT_MAX, place).await {
                return Ok(place);
            }
        }
        Err(limits::no_place("this process", excess))
    }
}

/// Attends to a process of this user that gets a place, and tells any other why it is sent away.
async fn admit(programs: Arc<Programs>, stream: UnixStream, places: Places) {
    let place = match check_user(&stream) {
        Ok(()) => places.take(Taker::of(&stream)).await.inspect_err(|_| {
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
            hang_up(&stream);
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

async fn attend(programs: Arc<Programs>, stream: UnixStream, mut place: Share) {
    let process = process_of(&stream);
    let stream = Arc::new(stream);
    let (session, answers) = Session::begin(programs.clone(), stream.clone());
    let client = session.client();
    let of_writing = answers.clone();
    let writing = async move { of_writing.write().await };
    let writing = programs.network.tasks.spawn(Task::Answers, writing);
    let result = session.attend(&stream, &mut place).await;
    let (has_memory, copies) = (session.has_memory(), session.copies());
    drop(session);
    // What is queued, a refusal perhaps, still goes out.
    answers.close();
    let abort = writing.abort_handle();
    let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
    abort.abort();
    // Questions without an answer hold the session for a moment: the process is told before.
    hang_up(&stream);
    drop((stream, answers));
    if let Err(error) = result {
        programs.network.counters.strangers.add(1);
        info!(%error, "an attached process broke off");
        // It did not say what it still reads: its views stay valid for as long as it can look at them. One that never
        // got any memory has none, and must not cost a descriptor until it ends.
        if let Some(process) = process.filter(|_| has_memory) {
            ended(process).await;
        }
    }
    drop(copies);
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

/// Ends when a process does, or at once if that can't be waited for.
#[allow(deprecated)] // What is to take its place is unsafe code, and needless for an `OwnedFd`.
async fn ended(process: OwnedFd) {
    if let Ok(process) = AsyncFd::with_interest(process, Interest::READABLE) {
        let _ = process.readable().await;
    }
}

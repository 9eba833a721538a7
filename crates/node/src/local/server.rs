//! The Unix socket of a node, to which processes of its host attach. Knows how an attachment starts
//! and ends, not its messages.

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
use tracing::{error, warn};

use super::{
    limits,
    programs::Programs,
    protocol::{FromNode, frame},
    quota::{Quota, QuotaHolder, QuotaPermit},
    request_reader::{hang_up, process_number},
    session::Session,
    socket::{self, ListeningSocket},
};
use crate::{engine::tasks::Task, fork_safe, limited::LimitKey, repeats::log_once};

/// Interval between checks that the socket's file still exists.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Accepts processes until the node ends. Creates the socket's file again if it was removed: a
/// logout removes the folder of a user's sockets.
pub(crate) async fn accept(
    programs: Arc<Programs>,
    mut listener: UnixListener,
    socket: Arc<ListeningSocket>,
) {
    let permits = AttachPermits::new();
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
                        // Logged once: the next check fails in the same way.
                        Err(_) if has_failed => {}
                        Err(said) => {
                            error!(
                                "the file of this node's socket was removed, and no process can \
                                 attach until it is created again: {said}"
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
                let admitted = admit(programs.clone(), stream, permits.clone());
                programs.network.tasks.spawn(Task::Session, admitted);
            }
            Err(error) => {
                log_once!(info, error.kind(), %error, "could not accept a connection of a process");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn bind_again(
    programs: &Programs,
    socket: &Arc<ListeningSocket>,
) -> Result<UnixListener, String> {
    let of_thread = socket.clone();
    // This may wait for another node that is about to listen in the folder.
    let binding =
        programs.network.tasks.spawn_blocking(Task::Attach, move || of_thread.bind_again());
    match binding.await {
        Ok(Some(Ok(listener))) => {
            warn!(
                socket = %socket.path().display(),
                "the file of this node's socket was removed; created it again"
            );
            Ok(listener)
        }
        Ok(Some(Err(error))) => Err(error.to_string()),
        Ok(None) | Err(_) => Err("the node is stopping".into()),
    }
}

/// Places of attached processes, and of processes that wait for one.
#[derive(Clone)]
struct AttachPermits {
    all: Quota,
    waiting: Quota,
}

impl AttachPermits {
    fn new() -> Self {
        Self { all: Quota::new(limits::attached_max()), waiting: Quota::new(limits::WAITING_MAX) }
    }

    /// Takes a place for the peer process, or returns why none is free. A process that has just
    /// left may still occupy its place for a moment, so a few others wait, unless they give up.
    async fn take(&self, stream: &UnixStream) -> Result<QuotaPermit, String> {
        let takers = [QuotaHolder::of(stream)];
        let excess = match self.all.take(&takers, 1) {
            Ok(permit) => return Ok(permit),
            Err(excess) => excess,
        };
        if let Ok(_waits) = self.waiting.take(&takers, 1) {
            tokio::select! {
                permit = self.all.wait(&takers, 1) => return Ok(permit),
                () = tokio::time::sleep(limits::ATTACH_WAIT_MAX) => {}
                () = closed_by_peer(stream) => {}
            }
        }
        Err(limits::no_place(excess))
    }
}

/// Serves a process of this user if a place is free; sends any other process the reason of the
/// refusal.
async fn admit(programs: Arc<Programs>, stream: UnixStream, permits: AttachPermits) {
    let user = check_user(&stream);
    let is_user = user.is_ok();
    let permit = match user {
        Ok(()) => permits.take(&stream).await.inspect_err(|_| {
            let process = LimitKey::Process(process_number(&stream));
            programs.network.limited.note(process, "ATTACHED_MAX");
        }),
        Err(said) => Err(said),
    };
    match permit {
        Ok(permit) => attend(programs, stream, permit).await,
        Err(said) => {
            programs.network.counters.strangers.add(1);
            let cause = if is_user { "limit" } else { "user" };
            log_once!(info, cause, %said, "refused a process");
            // The socket is empty, so this fits.
            let _ = send_with_fds(&stream, &frame(&FromNode::Refused { said }), &[]);
            hang_up(&stream);
        }
    }
}

/// Completes when the peer has closed the connection or its sending half, and leaves what it has
/// sent unread.
#[allow(deprecated)] // As of `ended`.
async fn closed_by_peer(stream: &UnixStream) {
    // The runtime registers a descriptor once: this is another one of the same socket.
    if let Ok(watched) = rustix::io::fcntl_dupfd_cloexec(stream, 0) {
        fork_safe::note(&watched);
        if let Ok(watched) = AsyncFd::with_interest(watched, Interest::READABLE) {
            while let Ok(mut guard) = watched.readable().await {
                if guard.ready().is_read_closed() {
                    return;
                }
                // Unread data.
                guard.clear_ready();
            }
        }
    }
    // Without a descriptor the wait ends by its timeout.
    std::future::pending().await
}

fn check_user(stream: &UnixStream) -> Result<(), String> {
    let user = stream.peer_cred().map_err(|error| error.to_string())?.uid();
    if socket::is_stranger(user) {
        return Err(format!(
            "user {user} may not attach: this node serves only processes of its own user, {}",
            socket::own_user()
        ));
    }
    Ok(())
}

async fn attend(programs: Arc<Programs>, stream: UnixStream, mut permit: QuotaPermit) {
    let process = process_of(&stream);
    let stream = Arc::new(stream);
    let (session, replies) = Session::begin(programs.clone(), stream.clone());
    let client = session.client();
    let of_writing = replies.clone();
    let writing = async move { of_writing.write().await };
    let writing = programs.network.tasks.spawn(Task::ReplyWriter, writing);
    let result = session.attend(&stream, &mut permit).await;
    let (has_memory, copies) = (session.has_memory(), session.copies());
    let number = session.process();
    drop(session);
    // Queued frames, such as a refusal, are still sent.
    replies.close();
    let abort = writing.abort_handle();
    let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
    abort.abort();
    // Open requests keep the session alive for a moment: the process is disconnected before.
    hang_up(&stream);
    drop((stream, replies));
    if let Err(error) = result {
        programs.network.counters.strangers.add(1);
        log_once!(info, error.kind(), %error, "the attachment of a process broke");
        // The process did not release its views: they stay valid until it ends. A process that
        // never got memory has no views, and must not occupy a descriptor until then.
        if let Some(process) = process.filter(|_| has_memory) {
            ended(process).await;
        }
    }
    drop(copies);
    programs.gone(client, number);
    programs.store.arena.retire(WriterId(client.0));
    programs.forget_gone();
}

/// A descriptor of the peer process, if it is alive and this process may open it.
fn process_of(stream: &UnixStream) -> Option<OwnedFd> {
    match peer_process(stream.as_fd()) {
        // On an older kernel, find it by process id, which another process may have by now.
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

/// Completes when a process ends, or at once if that can't be waited for.
#[allow(deprecated)] // What is to take its place is unsafe code, and needless for an `OwnedFd`.
async fn ended(process: OwnedFd) {
    if let Ok(watched) = AsyncFd::with_interest(process, Interest::READABLE) {
        let _ = watched.readable().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_connection_is_detected_behind_unread_data() {
        let (near, far) = UnixStream::pair().unwrap();
        assert_eq!(far.try_write(b"hello").unwrap(), 5);
        let mut closed = std::pin::pin!(closed_by_peer(&near));
        tokio::select! {
            biased;
            () = &mut closed => panic!("the peer is connected"),
            () = tokio::task::yield_now() => {}
        }
        drop(far);
        closed.await;
        let mut received = [0; 16];
        assert_eq!(near.try_read(&mut received).unwrap(), 5);
    }
}

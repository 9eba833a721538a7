//! Parses the bytes from one attached process into messages. Does not interpret them.
//!
//! A process must not send descriptors. Since Linux 6.16 the kernel refuses them
//! ([`hoplite_shm::refuse_descriptors`]). Older kernels deliver them. The last close of one may
//! take as long as the sender chooses, such as a TCP socket with `SO_LINGER` and unread bytes. A
//! separate thread therefore closes them, and the attachment ends.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{OnceLock, mpsc},
    thread,
};

use hoplite_shm::recv_all_fds;
use tokio::{io::Interest, net::UnixStream};

use super::protocol::{ToNode, take_message};

/// The peer's process id. None if the peer is in a PID namespace invisible to this process: the
/// kernel then reports 0.
pub(super) fn process_number(stream: &UnixStream) -> Option<u32> {
    u32::try_from(stream.peer_cred().ok()?.pid()?).ok().filter(|pid| *pid != 0)
}

/// Capacity for received bytes that is kept: many short messages.
const KEPT_BYTES: usize = 64 << 10;

/// Bytes received from the process and not parsed yet.
#[derive(Default)]
pub(super) struct RequestReader {
    bytes: Vec<u8>,
    buffer: Vec<u8>,
}

impl RequestReader {
    /// Reads the next message and the length of its frame; None once the process has closed the
    /// connection.
    pub(super) async fn next(
        &mut self,
        stream: &UnixStream,
    ) -> io::Result<Option<(ToNode, usize)>> {
        self.buffer.resize(16 * 1024, 0);
        loop {
            if let Some(taken) = take_message(&mut self.bytes)? {
                // Free the memory of a message of megabytes.
                self.bytes.shrink_to(KEPT_BYTES);
                return Ok(Some(taken));
            }
            let mut descriptors = Vec::new();
            let received = stream.async_io(Interest::READABLE, || {
                recv_all_fds(stream, &mut self.buffer, &mut descriptors)
            });
            let received = received.await;
            if !descriptors.is_empty() {
                close_aside(descriptors);
                let said = "the process sent file descriptors, which a node does not accept";
                return Err(io::Error::new(io::ErrorKind::InvalidData, said));
            }
            match received? {
                0 => return Ok(None),
                count => self.bytes.extend_from_slice(&self.buffer[..count]),
            }
        }
    }
}

/// Shuts a connection down and reads the rest, so that closing the socket closes no descriptor in
/// its buffer.
pub(super) fn hang_up(stream: &UnixStream) {
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
    let (mut buffer, mut descriptors) = ([0; 4096], Vec::new());
    while recv_all_fds(stream, &mut buffer, &mut descriptors).is_ok_and(|count| count > 0) {}
    if !descriptors.is_empty() {
        close_aside(descriptors);
    }
}

/// Closes received descriptors on a dedicated thread.
fn close_aside(descriptors: Vec<OwnedFd>) {
    static CLOSER: OnceLock<mpsc::Sender<Vec<OwnedFd>>> = OnceLock::new();
    let closer = CLOSER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Vec<OwnedFd>>();
        let closing = thread::Builder::new().name("hoplite-close".into());
        // If the thread can't start, the sender closes them.
        drop(closing.spawn(move || receiver.into_iter().for_each(drop)));
        sender
    });
    let _ = closer.send(descriptors);
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
        time::Duration,
    };

    use hoplite_shm::send_with_fds;

    use super::{super::tests::hostile::lingering, *};

    #[test]
    fn descriptor_with_blocking_close_blocks_no_task() {
        // A plain socket pair: a node's sockets refuse descriptors on newer kernels.
        const BLOCKS: Duration = Duration::from_secs(60);
        for is_read in [true, false] {
            let (told, done) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(hang_up_after(lingering(BLOCKS), is_read));
                told.send(()).unwrap();
            });
            done.recv_timeout(BLOCKS / 2)
                .expect("the task continues while the descriptor is closed");
        }
    }

    async fn hang_up_after((_listener, descriptor): (TcpListener, TcpStream), is_read: bool) {
        let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = UnixStream::from_std(ours).unwrap();
        send_with_fds(&theirs, &[0], &[descriptor.as_fd()]).unwrap();
        drop(descriptor);
        if is_read {
            let error = RequestReader::default().next(&ours).await.unwrap_err();
            assert!(error.to_string().contains("a node does not accept"), "{error}");
        }
        hang_up(&ours);
        drop(ours);
    }
}

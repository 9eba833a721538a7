//! What comes from one attached process: bytes to messages. Knows no meaning of them.
//!
//! A process sends no descriptors. The kernel refuses them since Linux 6.16 ([`hoplite_shm::refuse_descriptors`]). An older
//! one delivers them, and the last close of one may take as long as its sender chose: of a TCP socket with `SO_LINGER` and
//! bytes that nobody reads. So they are closed on a thread of their own, and the attachment ends.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{OnceLock, mpsc},
    thread,
};

use hoplite_shm::recv_all_fds;
use tokio::{io::Interest, net::UnixStream};

use super::protocol::{ToNode, take_message};

/// The number of the process at the other end, if it has one here: a process of a PID namespace that this one can't see
/// into has none, and the kernel reports 0.
pub(super) fn process_number(stream: &UnixStream) -> Option<u32> {
    u32::try_from(stream.peer_cred().ok()?.pid()?).ok().filter(|pid| *pid != 0)
}

/// What has come from the process and was not taken yet.
#[derive(Default)]
pub(super) struct Arriving {
    bytes: Vec<u8>,
    buffer: Vec<u8>,
}

impl Arriving {
    /// The next message and the bytes of its frame; none when the process has closed the connection.
    pub(super) async fn next(
        &mut self,
        stream: &UnixStream,
    ) -> io::Result<Option<(ToNode, usize)>> {
        self.buffer.resize(16 * 1024, 0);
        loop {
            if let Some(taken) = take_message(&mut self.bytes)? {
                return Ok(Some(taken));
            }
            let mut descriptors = Vec::new();
            let received = stream.async_io(Interest::READABLE, || {
                recv_all_fds(stream, &mut self.buffer, &mut descriptors)
            });
            let received = received.await;
            if !descriptors.is_empty() {
                close_aside(descriptors);
                let said = "it sent descriptors, and a node takes none";
                return Err(io::Error::new(io::ErrorKind::InvalidData, said));
            }
            match received? {
                0 => return Ok(None),
                count => self.bytes.extend_from_slice(&self.buffer[..count]),
            }
        }
    }
}

/// Ends a connection: the process can send no more, and what it sent is taken out, so that the close of the socket closes no
/// descriptor.
pub(super) fn hang_up(stream: &UnixStream) {
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
    let (mut buffer, mut descriptors) = ([0; 4096], Vec::new());
    while recv_all_fds(stream, &mut buffer, &mut descriptors).is_ok_and(|count| count > 0) {}
    if !descriptors.is_empty() {
        close_aside(descriptors);
    }
}

/// Closes descriptors of processes on the one thread of this process that does so.
fn close_aside(descriptors: Vec<OwnedFd>) {
    static CLOSER: OnceLock<mpsc::Sender<Vec<OwnedFd>>> = OnceLock::new();
    let closer = CLOSER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Vec<OwnedFd>>();
        let closing = thread::Builder::new().name("hoplite-close".into());
        // Without a thread they are closed where they are sent.
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
    fn a_descriptor_that_blocks_its_close_blocks_no_task() {
        // Not sockets of a node: those refuse descriptors where the kernel knows how.
        const BLOCKS: Duration = Duration::from_secs(60);
        for is_read in [true, false] {
            let (told, done) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(hang_up_after(lingering(BLOCKS), is_read));
                told.send(()).unwrap();
            });
            done.recv_timeout(BLOCKS / 2).expect("the task goes on while the descriptor is closed");
        }
    }

    async fn hang_up_after((_listener, descriptor): (TcpListener, TcpStream), is_read: bool) {
        let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = UnixStream::from_std(ours).unwrap();
        send_with_fds(&theirs, &[0], &[descriptor.as_fd()]).unwrap();
        drop(descriptor);
        if is_read {
            let error = Arriving::default().next(&ours).await.unwrap_err();
            assert!(error.to_string().contains("a node takes none"), "{error}");
        }
        hang_up(&ours);
        drop(ours);
    }
}

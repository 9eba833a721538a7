//! Congestion control of payload connections.
//!
//! BBR measures the path by sending almost nothing for 200 ms, every ten seconds of use and per connection. That is little
//! on a path whose round trip takes as long, and the time of a whole transfer on a local network, where every node behind
//! a relay waits with it. On short paths nodes therefore do without BBR, and leave every other choice of the host alone.
//!
//! A connection that has used BBR paces its packets ever after, so the listener does without it, and a connection that
//! turns out to be long takes it up. The node that accepts a payload connection is the one that sends.
//!
//! Source: PROBE_RTT in Cardwell et al., BBR: Congestion-Based Congestion Control, ACM Queue 2016.

use std::os::fd::AsFd;

use hoplite_shm::path_info;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

/// Round trips from here on, in microseconds, are those of a long path.
const LONG_US: u32 = 2_000;

/// What replaces BBR: the first that the kernel permits. Every process may use Reno.
const REPLACEMENTS: [&str; 2] = ["cubic", "reno"];

const BBR: &[u8] = b"bbr";

/// Has accepted connections begin without BBR, if the kernel permits.
pub(crate) fn begin_without_bbr(listener: &TcpListener) {
    let socket = SockRef::from(listener);
    if uses_bbr(&socket) {
        let _ = REPLACEMENTS.iter().find(|name| socket.set_tcp_congestion(name.as_bytes()).is_ok());
    }
}

/// Has a connection use BBR after all if its path is long and the host prefers it. The shortest round trip counts, so this is
/// for a connection that has carried a transfer.
pub(super) fn suit_path(stream: &TcpStream) {
    let round_trip_us = path_info(stream.as_fd()).ok().and_then(|path| path.round_trip_us);
    if round_trip_us.is_some_and(|us| us >= LONG_US) && host_prefers_bbr() {
        let _ = SockRef::from(stream).set_tcp_congestion(BBR);
    }
}

fn host_prefers_bbr() -> bool {
    let new = Socket::new(Domain::IPV4, Type::STREAM, None);
    new.is_ok_and(|new| uses_bbr(&SockRef::from(&new)))
}

fn uses_bbr(socket: &SockRef<'_>) -> bool {
    socket.tcp_congestion().is_ok_and(|name| name.starts_with(BBR))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn name(socket: &SockRef<'_>) -> String {
        let name = socket.tcp_congestion().unwrap();
        String::from_utf8(name).unwrap().trim_end_matches('\0').to_owned()
    }

    /// A connection to a listener that had this congestion control before.
    async fn accepted(chosen: &str) -> Option<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        SockRef::from(&listener).set_tcp_congestion(chosen.as_bytes()).ok()?;
        begin_without_bbr(&listener);
        let (near, far) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (mut near, (mut far, _)) = (near.unwrap(), far.unwrap());
        far.write_all(&[1]).await.unwrap();
        near.read_exact(&mut [0]).await.unwrap();
        near.write_all(&[1]).await.unwrap();
        far.read_exact(&mut [0]).await.unwrap();
        Some(far)
    }

    #[tokio::test]
    async fn on_a_short_path_bbr_is_replaced_and_nothing_else() {
        let far = accepted("reno").await.expect("every process may use it");
        suit_path(&far);
        assert_eq!(name(&SockRef::from(&far)), "reno");
        // A kernel without BBR has nothing to replace.
        if let Some(far) = accepted("bbr").await {
            suit_path(&far);
            let name = name(&SockRef::from(&far));
            assert!(REPLACEMENTS.contains(&name.as_str()), "{name}");
        }
    }
}

//! Congestion control of payload connections, and what the kernel buffers for them.
//!
//! BBR measures the path by sending almost nothing for 200 ms, every ten seconds of use, per
//! connection. On a path whose round trip takes that long, this costs little. On a local network it
//! takes as long as a whole transfer, and every node after a relay waits too. On short paths, nodes
//! therefore replace BBR. They keep every other choice of the host.
//!
//! A connection that has used BBR paces its packets from then on. The listener therefore starts
//! without BBR, and a connection whose path turns out to be long switches to it. The node that
//! accepts a payload connection is the sender.
//!
//! Source: PROBE_RTT in Cardwell et al., BBR: Congestion-Based Congestion Control, ACM Queue 2016.

use std::os::fd::AsFd;

use hoplite_shm::path_info;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

/// Round trips of at least this many microseconds are those of a long path.
const LONG_US: u32 = 2_000;

/// Replacements of BBR; the first that the kernel permits is used. Every process may use Reno.
const REPLACEMENTS: [&str; 2] = ["cubic", "reno"];

const BBR: &[u8] = b"bbr";

/// Bytes that the kernel holds unsent for a connection whose transfer takes turns with others, so
/// that [`super::turns`] decides what is sent next. Otherwise it holds several MiB, which it also
/// sends while this process is stopped.
const UNSENT_BYTES: u32 = 512 * 1024;

/// The kernel's own limit.
const UNLIMITED: u32 = 0;

/// Limits what the kernel holds unsent, or ends the limit.
pub(super) fn limit_unsent(stream: &TcpStream, is_limited: bool) {
    let bytes = if is_limited { UNSENT_BYTES } else { UNLIMITED };
    // Without it, transfers share the link equally.
    let _ = SockRef::from(stream).set_tcp_notsent_lowat(bytes);
}

/// Makes accepted connections start without BBR, if the kernel permits.
pub(crate) fn begin_without_bbr(listener: &TcpListener) {
    let socket = SockRef::from(listener);
    if uses_bbr(&socket) {
        let _ = REPLACEMENTS.iter().find(|name| socket.set_tcp_congestion(name.as_bytes()).is_ok());
    }
}

/// Switches a connection to BBR if its path is long and the host prefers BBR. This uses the
/// shortest round trip, so call it after a transfer.
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

    /// A connection to a listener that had the given congestion control before.
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
    async fn bbr_alone_is_replaced_on_short_paths() {
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

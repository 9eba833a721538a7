//! The handshake at the start of every connection between nodes: protocol version, keys or certificates, cluster name,
//! token.
//!
//! ```text
//!   initiator                              acceptor
//!     a header of kind Secure, TLS 1.3 ------>
//!     <-------------------------------------- the same
//!     Hello { id, address, role, proofs of the token } ->
//!     <------------------------------ Welcome { id, proof of the token }
//! ```
//! The token never crosses the wire. The initiator proves first that it has the token; the acceptor reveals nothing
//! about itself before. Each proof is valid for this TLS connection only ([`super::proofs`]). The id of each node is
//! derived from its key ([`super::tls`]). With certificates, TLS proves both identities. Then the body of Secure is the
//! node's start number, and the acceptor presents its certificate first. It reveals nothing more before it has verified
//! the initiator's certificate. The frames that follow are encrypted with keys of this connection ([`crate::sealing`]).
//!
//! A control connection leaves a [`Session`]. With it, the initiator's payload connections to the same node skip the
//! handshake. Each transfer would otherwise start two round trips later:
//! ```text
//!   initiator                              acceptor
//!     Resume { nonce n, pass }, and its request, encrypted with keys of n -->
//!     <-------------------------- Resumed, and the reply, encrypted likewise
//! ```
//! A nonce is accepted once, so that an eavesdropper can't replay it.
//!
//! This module is the initiator's side; [`called`] is the acceptor's side.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hoplite_proto::{
    id::NodeId,
    members::Member,
    wire::{FrameKind, Greeting, Hello, MacBytes, Resume, Role},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, timeout},
};

use self::greeting::{hear, hear_secure, refuse, say, secure, unexpected, unlike};
use super::{
    places::Place,
    proofs::{Claim, Session, Side, Token, nonce},
    tls::NodeKey,
};
use crate::{channel::Channel, error::LinkError, fork_safe, frame};

pub(crate) mod called;
mod greeting;

/// What a node presents in a handshake: its member record, key, cluster name and tokens.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) member: Member,
    pub(crate) key: NodeKey,
    pub(crate) cluster: String,
    /// This node proves the first, and accepts each of them from peers.
    pub(crate) tokens: Vec<Token>,
    /// Description of how nodes are admitted, for the status.
    pub(crate) admission: String,
    /// Whether frames are sent without encryption; both sides must agree.
    pub(crate) is_plain: bool,
    /// TCP user timeout of control connections: a connection breaks when nothing is acknowledged for this time.
    /// Unresponsive members are declared dead before that, unless the detection timeout exceeds [`SILENCE_MAX`].
    pub(crate) silence: Duration,
    /// Number of handshakes that this node has initiated.
    pub(crate) turns: Arc<AtomicU64>,
}

/// Timeout of a handshake. A live node replies within a round trip, and a silent stranger must not occupy a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Timeout of a TCP connect: allows one retransmission of a lost SYN.
const CONNECT_PATIENCE: Duration = Duration::from_millis(1500);

/// Placeholder for the address of a node that does not listen.
pub(crate) const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The address of a member; None if it does not listen, as only this node itself can.
pub fn address_of(member: &Member) -> Option<SocketAddr> {
    Some(member.address).filter(|address| *address != NO_ADDRESS)
}

impl Identity {
    /// Whether every peer must prove its membership and no other process can change the traffic. True for a node that
    /// does not listen, as it has no peers.
    pub(crate) fn is_authenticated(&self) -> bool {
        let is_proved = !self.tokens.is_empty() || self.key.trust().is_some();
        address_of(&self.member).is_none() || is_proved && !self.is_plain
    }

    fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }
}

/// Longest TCP retransmission interval: 1 s, so that a link that was down for 2 s is used again within 1 s.
const RETRANSMISSION_MAX: Duration = Duration::from_secs(1);

/// Default TCP user timeout: a connection breaks when nothing is acknowledged for this time.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// An authenticated connection.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) channel: Channel,
    pub(crate) member: Member,
    pub(crate) role: Role,
    /// From the initiator's greeting: see [`Hello::turn`].
    pub(crate) turn: u64,
    /// Measured by the initiator of a control connection; otherwise None.
    pub(crate) round_trip: Option<Duration>,
    /// For later connections of the initiator.
    pub(crate) session: Session,
    /// At the acceptor, for a payload or relayed connection.
    pub(crate) place: Option<Place>,
}

/// Resumes a session with a node that admitted this one, and sends a request at once: `first` is an unencrypted frame.
///
/// # Errors
/// The connection failed; [`LinkError::Refused`] if the node requires a handshake.
pub(crate) async fn resume(
    me: &Identity,
    mut stream: TcpStream,
    callee: NodeId,
    session: &Session,
    first: &[u8],
) -> Result<Channel, LinkError> {
    let meeting = async {
        let nonce = nonce()?;
        let pass = session.prove(Side::Caller, &nonce);
        let resume = Resume { caller: me.member.id, callee, nonce, pass };
        let mut bytes = frame::frame(FrameKind::Greeting, 0, &Greeting::Resume(resume));
        let (mut seal, open) = session.keys(Side::Caller, Some(&nonce), me.is_plain);
        let begin = bytes.len();
        bytes.extend_from_slice(first);
        seal.seal_whole(&mut bytes[begin..]);
        stream.write_all(&bytes).await?;
        match hear(&mut stream).await? {
            Greeting::Resumed(proof) if session.is_proof(Side::Called, &nonce, &proof) => {
                Ok(Channel { stream, seal, open })
            }
            Greeting::Resumed(_) => Err(LinkError::Stranger),
            other => Err(unexpected(other)),
        }
    };
    in_time(PATIENCE, meeting).await
}

/// Opens a TCP connection, whose peer is not authenticated yet.
///
/// # Errors
/// The connection failed.
pub(crate) async fn connect(address: SocketAddr) -> Result<TcpStream, LinkError> {
    let connecting = async { Ok(TcpStream::connect(address).await?) };
    let stream = in_time(CONNECT_PATIENCE, connecting).await?;
    prepare(&stream)?;
    Ok(stream)
}

/// Connects to a node and performs the handshake.
///
/// # Errors
/// The connection failed; [`LinkError::Replaced`] if another node than `callee` replies.
pub(crate) async fn call(
    me: &Identity,
    address: SocketAddr,
    role: Role,
    callee: Option<NodeId>,
) -> Result<Met, LinkError> {
    call_over(me, connect(address).await?, role, callee).await
}

/// Performs the handshake on an open connection.
///
/// # Errors
/// The handshake failed; [`LinkError::Replaced`] if the peer is not `callee`.
pub(crate) async fn call_over(
    me: &Identity,
    stream: TcpStream,
    role: Role,
    callee: Option<NodeId>,
) -> Result<Met, LinkError> {
    let meeting = timeout(PATIENCE, introduce(me, stream, role, callee));
    meeting.await.unwrap_or(Err(LinkError::Mute(PATIENCE.as_secs_f32())))
}

async fn introduce(
    me: &Identity,
    mut stream: TcpStream,
    role: Role,
    callee: Option<NodeId>,
) -> Result<Met, LinkError> {
    stream.write_all(&secure(&me.key)).await?;
    let start = hear_secure(&mut stream).await?;
    if let Some(said) = unlike(&me.key, start.as_ref()) {
        return Err(LinkError::Refused(said));
    }
    let mut secured = me.key.call(stream, start.as_ref()).await?;
    if let Some(callee) = callee.filter(|callee| *callee != secured.peer) {
        let replaced = LinkError::Replaced { node: callee, by: secured.peer };
        refuse(&mut secured.stream, replaced.to_string()).await;
        return Err(replaced);
    }
    let (called, binding, cluster) = (secured.peer, secured.binding, me.cluster.clone());
    let claim = Claim { binding: &binding, caller: me.member.id, called, role, cluster: &cluster };
    let proofs = me.tokens.iter().map(|token| claim.prove(token, Side::Caller)).collect();
    let (member, is_plain, turn) = (me.member, me.is_plain, me.next_turn());
    let hello = Hello { cluster: cluster.clone(), member, role, callee, turn, is_plain, proofs };
    say(&mut secured.stream, &Greeting::Hello(hello)).await?;
    // In TLS 1.3 the initiator learns here that the acceptor rejects its certificate.
    let heard = hear(&mut secured.stream).await.map_err(|error| me.key.explain(error));
    let welcome = match heard? {
        Greeting::Welcome(welcome) => welcome,
        other => return Err(unexpected(other)),
    };
    let is_proof =
        |proof: MacBytes| me.tokens.iter().any(|token| claim.is_proof(token, Side::Called, &proof));
    if !me.tokens.is_empty() && !welcome.proof.is_some_and(is_proof) {
        return Err(LinkError::Refused(
            "the node at that address did not prove this cluster's token".into(),
        ));
    }
    if welcome.member.id != secured.peer {
        return Err(LinkError::Stranger);
    }
    let session = Session::new(secured.secret, secured.shown.clone());
    let (seal, open) = session.keys(Side::Caller, None, is_plain);
    let mut channel = Channel { stream: secured.into_inner(), seal, open };
    let round_trip = match role {
        Role::Control | Role::ControlAgain => Some(time_round_trip(&mut channel).await?),
        _ => None,
    };
    Ok(Met { channel, member: welcome.member, role, turn, round_trip, session, place: None })
}

async fn time_round_trip(channel: &mut Channel) -> Result<Duration, LinkError> {
    let begun = Instant::now();
    channel.say(FrameKind::Greeting, &Greeting::Ping).await?;
    match channel.hear(FrameKind::Greeting).await? {
        Greeting::Pong => Ok(begun.elapsed()),
        other => Err(unexpected(other)),
    }
}

/// Requests that a relay forward this connection to a member.
///
/// # Errors
/// [`LinkError::Refused`] if it can't reach the member.
pub(crate) async fn ask_to_pass_on(
    mut channel: Channel,
    to: NodeId,
) -> Result<TcpStream, LinkError> {
    let asking = async {
        channel.say(FrameKind::Greeting, &Greeting::PassOn(to)).await?;
        match channel.hear(FrameKind::Greeting).await? {
            Greeting::Admitted => Ok(channel.stream),
            other => Err(unexpected(other)),
        }
    };
    in_time(PATIENCE, asking).await
}

async fn in_time<T>(
    patience: Duration,
    what: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    timeout(patience, what).await.unwrap_or(Err(LinkError::Silent(patience.as_secs_f32())))
}

/// Whether the expected process is not at that address: no process listens, another node replied, or one side rejects
/// the other.
pub(crate) fn is_elsewhere(error: &LinkError) -> bool {
    use LinkError::{Certificate, Refused, Replaced, Revoked, Stranger};
    is_refused(error)
        || matches!(error, Stranger | Refused(_) | Replaced { .. } | Revoked(_) | Certificate(_))
}

/// Whether the host is up, but no process listens on the port.
pub(crate) fn is_refused(error: &LinkError) -> bool {
    matches!(error, LinkError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Whether the node did not reply: its host is down, it is unresponsive, or the path to it or back is broken.
pub(crate) fn is_unreachable(error: &LinkError) -> bool {
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    match error {
        LinkError::Silent(_) | LinkError::Mute(_) => true,
        LinkError::Io(error) => {
            matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable)
        }
        _ => false,
    }
}

fn prepare(stream: &TcpStream) -> Result<(), LinkError> {
    fork_safe::note(stream);
    // Control messages are small and awaited; blocks are written whole. Nagle's algorithm would only delay them.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    // A host that loses power sends no FIN: only these probes detect it.
    let probes = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(1))
        .with_retries(5);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(SILENCE_MAX))?;
    // An older kernel retransmits less often, but works.
    let _ = hoplite_shm::limit_retransmission(stream.as_fd(), RETRANSMISSION_MAX);
    Ok(())
}

/// Sets the TCP user timeout: the connection breaks when nothing is acknowledged for this time.
pub(crate) fn expect_answers(stream: &TcpStream, silence: Duration) -> Result<(), LinkError> {
    Ok(SockRef::from(stream).set_tcp_user_timeout(Some(silence))?)
}

#[cfg(test)]
mod tests;

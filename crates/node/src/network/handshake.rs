//! The handshake at the start of every connection between nodes: protocol version, keys or
//! certificates, cluster name, token.
//!
//! ```text
//!   initiator                              acceptor
//!     a header of kind Secure, TLS 1.3 ------>
//!     <-------------------------------------- the same
//!     Hello { id, address, cluster id, role, proofs of the token } ->
//!     <------------------ Welcome { id, cluster id, proof of the token }
//! ```
//! The token never crosses the wire. The initiator proves first that it has the token; the acceptor
//! reveals nothing about itself before. Each proof is valid for this TLS connection only
//! ([`super::proofs`]). The id of each node is derived from its key ([`super::tls`]). With
//! certificates, TLS proves both identities. Then the body of Secure is the node's start number,
//! and the acceptor presents its certificate first. It reveals nothing more before it has verified
//! the initiator's certificate. The frames that follow are encrypted with keys of this connection
//! ([`crate::sealing`]).
//!
//! A control connection leaves a [`SharedSecret`]. With it, the initiator's payload connections to
//! the same node skip the handshake. Each transfer would otherwise start two round trips later:
//! ```text
//!   initiator                              acceptor
//!     Resume { nonce n, pass }, and its request, encrypted with keys of n -->
//!     <-------------------------- Resumed, and the reply, encrypted likewise
//! ```
//! A nonce is accepted once, so that an eavesdropper can't replay it.
//!
//! This module is the initiator's side; [`acceptor`] is the acceptor's side.

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
    cluster_id::Introduction,
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

use self::greeting::{
    receive_greeting, receive_secure, refuse_with, secure, send_greeting, unexpected, unlike,
};
use super::{
    connection_limit::ConnectionPermit,
    own_cluster::{Met, OwnCluster},
    proofs::{ProofContext, SharedSecret, Side, Token, nonce},
    tls::{NodeKey, Secured},
};
use crate::{channel::Channel, error::LinkError, fork_safe, frame};

pub(crate) mod acceptor;
mod greeting;

/// What a node presents in a handshake: its member record, key, cluster name and id, and tokens.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) member: Member,
    pub(crate) key: NodeKey,
    pub(crate) cluster: String,
    pub(crate) own_cluster: Arc<OwnCluster>,
    /// This node proves the first, and accepts each of them from peers.
    pub(crate) tokens: Vec<Token>,
    /// Description of how nodes are admitted, for the status.
    pub(crate) admission: String,
    /// Whether frames are sent without encryption; both sides must agree.
    pub(crate) no_encryption: bool,
    /// TCP user timeout of control connections: a connection breaks when nothing is acknowledged
    /// for this time. Unresponsive members are declared dead before that, unless the detection
    /// timeout exceeds [`SILENCE_MAX`].
    pub(crate) silence: Duration,
    /// Number of handshakes that this node has initiated.
    pub(crate) turns: Arc<AtomicU64>,
}

/// Timeout of a handshake. A live node replies within a round trip, and a silent stranger must not
/// occupy a connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a TCP connect: allows one retransmission of a lost SYN.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Placeholder for the address of a node that does not listen.
pub(crate) const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The address of a member; None if it does not listen, as only this node itself can.
pub fn address_of(member: &Member) -> Option<SocketAddr> {
    Some(member.address).filter(|address| *address != NO_ADDRESS)
}

impl Identity {
    /// Whether every peer must prove its membership and no other process can change the traffic.
    /// True for a node that does not listen, as it has no peers.
    pub(crate) fn is_authenticated(&self) -> bool {
        let is_proved = !self.tokens.is_empty() || self.key.trust().is_some();
        address_of(&self.member).is_none() || is_proved && !self.no_encryption
    }

    fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }
}

/// Longest TCP retransmission interval: 1 s, so that a link that was down for 2 s is used again
/// within 1 s.
const RETRANSMISSION_MAX: Duration = Duration::from_secs(1);

/// Default TCP user timeout: a connection breaks when nothing is acknowledged for this time.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// An authenticated connection.
#[derive(Debug)]
pub(crate) struct PeerConnection {
    pub(crate) channel: Channel,
    pub(crate) member: Member,
    pub(crate) role: Role,
    /// From the initiator's greeting: see [`Hello::turn`].
    pub(crate) turn: u64,
    /// Measured by the initiator of a control connection; otherwise None.
    pub(crate) round_trip: Option<Duration>,
    /// For later connections of the initiator.
    pub(crate) session: SharedSecret,
    /// At the acceptor, for a payload or relayed connection.
    pub(crate) permit: Option<ConnectionPermit>,
}

/// Resumes a session with a node that admitted this one, and sends a request at once: `first` is an
/// unencrypted frame.
///
/// # Errors
/// The connection failed; [`LinkError::Refused`] if the node requires a handshake.
pub(crate) async fn resume(
    me: &Identity,
    mut stream: TcpStream,
    target: NodeId,
    session: &SharedSecret,
    first: &[u8],
) -> Result<Channel, LinkError> {
    let meeting = async {
        let nonce = nonce()?;
        let pass = session.prove(Side::Initiator, &nonce);
        let resume = Resume { initiator: me.member.id, target, nonce, pass };
        let mut bytes = frame::frame(FrameKind::Greeting, 0, &Greeting::Resume(resume));
        let (mut seal, open) = session.keys(Side::Initiator, Some(&nonce), me.no_encryption);
        let begin = bytes.len();
        bytes.extend_from_slice(first);
        seal.seal_whole(&mut bytes[begin..]);
        stream.write_all(&bytes).await?;
        match receive_greeting(&mut stream).await? {
            Greeting::Resumed(proof) if session.is_proof(Side::Acceptor, &nonce, &proof) => {
                Ok(Channel { stream, seal, open })
            }
            Greeting::Resumed(_) => Err(LinkError::Stranger),
            other => Err(unexpected(other)),
        }
    };
    in_time(TIMEOUT, meeting).await
}

/// Opens a TCP connection, whose peer is not authenticated yet.
///
/// # Errors
/// The connection failed.
pub(crate) async fn connect(address: SocketAddr) -> Result<TcpStream, LinkError> {
    let connecting = async { Ok(TcpStream::connect(address).await?) };
    let stream = in_time(CONNECT_TIMEOUT, connecting).await?;
    prepare(&stream)?;
    Ok(stream)
}

/// Connects to a node and performs the handshake.
///
/// # Errors
/// The connection failed; [`LinkError::Replaced`] if another node than `target` replies.
pub(crate) async fn initiate(
    me: &Identity,
    address: SocketAddr,
    role: Role,
    target: Option<NodeId>,
) -> Result<PeerConnection, LinkError> {
    initiate_over(me, connect(address).await?, role, target).await
}

/// Performs the handshake on an open connection.
///
/// # Errors
/// The handshake failed; [`LinkError::Replaced`] if the peer is not `target`.
pub(crate) async fn initiate_over(
    me: &Identity,
    stream: TcpStream,
    role: Role,
    target: Option<NodeId>,
) -> Result<PeerConnection, LinkError> {
    let meeting = timeout(TIMEOUT, introduce(me, stream, role, target));
    meeting.await.unwrap_or(Err(LinkError::NoGreeting(TIMEOUT.as_secs_f32())))
}

async fn introduce(
    me: &Identity,
    stream: TcpStream,
    role: Role,
    target: Option<NodeId>,
) -> Result<PeerConnection, LinkError> {
    let address = stream.peer_addr()?;
    let turn = me.next_turn();
    let mut secured = secure_stream(me, stream, target).await?;
    let node = secured.peer;
    let other_cluster = |theirs, ours| LinkError::OtherCluster { node, address, theirs, ours };
    let welcome = match present(me, &mut secured, role, target, turn).await? {
        Greeting::Welcome(welcome) => welcome,
        Greeting::OtherCluster(theirs) => return Err(other_cluster(theirs, me.own_cluster.id())),
        other => return Err(unexpected(other)),
    };
    if welcome.member.id != node {
        return Err(LinkError::Stranger);
    }
    let theirs = welcome.cluster_id;
    me.own_cluster
        .meet(Met::Acceptor, theirs, introduction(target))
        .map_err(|ours| other_cluster(theirs, ours))?;
    let session = SharedSecret::new(secured.secret, secured.shown.clone());
    let (seal, open) = session.keys(Side::Initiator, None, me.no_encryption);
    let mut channel = Channel { stream: secured.into_inner(), seal, open };
    let round_trip = match role {
        Role::Control | Role::ControlReconnect => Some(time_round_trip(&mut channel).await?),
        _ => None,
    };
    let member = welcome.member;
    Ok(PeerConnection { channel, member, role, turn, round_trip, session, permit: None })
}

/// Secures a connection to a node, which must be `target` if that is known.
async fn secure_stream(
    me: &Identity,
    mut stream: TcpStream,
    target: Option<NodeId>,
) -> Result<Secured, LinkError> {
    stream.write_all(&secure(&me.key)).await?;
    let start = receive_secure(&mut stream).await?;
    if let Some(said) = unlike(&me.key, start.as_ref()) {
        return Err(LinkError::Refused(said));
    }
    let mut secured = me.key.initiate(stream, start.as_ref()).await?;
    if let Some(target) = target.filter(|target| *target != secured.peer) {
        let replaced = LinkError::Replaced { node: target, by: secured.peer };
        return Err(refuse_with(&mut secured.stream, replaced).await);
    }
    Ok(secured)
}

/// Presents this node to an acceptor. Returns its greeting; that of one that admits this node has
/// proved the token.
async fn present(
    me: &Identity,
    secured: &mut Secured,
    role: Role,
    target: Option<NodeId>,
    turn: u64,
) -> Result<Greeting, LinkError> {
    let (initiator, acceptor, binding) = (me.member.id, secured.peer, secured.binding);
    let claim = ProofContext { binding: &binding, initiator, acceptor, role, cluster: &me.cluster };
    let hello = Hello {
        cluster: me.cluster.clone(),
        cluster_id: me.own_cluster.id(),
        member: me.member,
        role,
        target,
        turn,
        no_encryption: me.no_encryption,
        proofs: me.tokens.iter().map(|token| claim.prove(token, Side::Initiator)).collect(),
    };
    send_greeting(&mut secured.stream, &Greeting::Hello(hello)).await?;
    // In TLS 1.3 the initiator learns here that the acceptor rejects its certificate.
    let heard =
        receive_greeting(&mut secured.stream).await.map_err(|error| me.key.explain(error))?;
    if let Greeting::Welcome(welcome) = &heard {
        let is_proof = |proof: MacBytes| {
            me.tokens.iter().any(|token| claim.is_proof(token, Side::Acceptor, &proof))
        };
        if !me.tokens.is_empty() && !welcome.proof.is_some_and(is_proof) {
            return Err(LinkError::Refused(
                "the node at that address did not prove this cluster's token: set the same token \
                 on all nodes"
                    .into(),
            ));
        }
    }
    Ok(heard)
}

/// An initiator that expects no certain node knows only an address, from its configuration.
fn introduction(target: Option<NodeId>) -> Introduction {
    if target.is_some() { Introduction::Member } else { Introduction::Address }
}

async fn time_round_trip(channel: &mut Channel) -> Result<Duration, LinkError> {
    let begun = Instant::now();
    channel.send_body(FrameKind::Greeting, &Greeting::Ping).await?;
    match channel.receive_body(FrameKind::Greeting).await? {
        Greeting::Pong => Ok(begun.elapsed()),
        other => Err(unexpected(other)),
    }
}

/// Requests that a relay forward this connection to a member.
///
/// # Errors
/// [`LinkError::Refused`] if it can't reach the member.
pub(crate) async fn request_relay(
    mut channel: Channel,
    to: NodeId,
) -> Result<TcpStream, LinkError> {
    let asking = async {
        channel.send_body(FrameKind::Greeting, &Greeting::Relay(to)).await?;
        match channel.receive_body(FrameKind::Greeting).await? {
            Greeting::Admitted => Ok(channel.stream),
            other => Err(unexpected(other)),
        }
    };
    in_time(TIMEOUT, asking).await
}

async fn in_time<T>(
    limit: Duration,
    what: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    timeout(limit, what).await.unwrap_or(Err(LinkError::NoHandshake(limit.as_secs_f32())))
}

/// Whether the expected process is not at that address: no process listens, another node replied,
/// or one side rejects the other.
pub(crate) fn is_elsewhere(error: &LinkError) -> bool {
    use LinkError::{Certificate, OtherCluster, Refused, Replaced, Revoked, Stranger};
    is_refused(error)
        || matches!(
            error,
            Stranger
                | Refused(_)
                | Replaced { .. }
                | OtherCluster { .. }
                | Revoked(_)
                | Certificate(_)
        )
}

/// Whether the host is up, but no process listens on the port.
pub(crate) fn is_refused(error: &LinkError) -> bool {
    matches!(error, LinkError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Whether the node did not reply: its host is down, it is unresponsive, or the path to it or back
/// is broken.
pub(crate) fn is_unreachable(error: &LinkError) -> bool {
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    match error {
        LinkError::NoHandshake(_) | LinkError::NoGreeting(_) => true,
        LinkError::Io(error) => {
            matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable)
        }
        _ => false,
    }
}

fn prepare(stream: &TcpStream) -> Result<(), LinkError> {
    fork_safe::note(stream);
    // Control messages are small and awaited; blocks are written whole. Nagle's algorithm would
    // only delay them.
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

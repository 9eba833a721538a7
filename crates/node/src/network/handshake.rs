//! The handshake at the beginning of every connection between nodes: protocol version, keys or certificates, cluster, token.
//!
//! ```text
//!   caller                                   called
//!     a header of kind Secure, TLS 1.3 ------>
//!     <-------------------------------------- the same
//!     Hello { who, where, what for, proofs of the token } ->
//!     <------------------------------ Welcome { who, proof of the token }
//! ```
//! The token never crosses the wire. The caller proves first that it knows it, and the called says nothing of itself before.
//! The proofs hold for this TLS connection alone ([`super::proofs`]), and the id of each node is that of its key
//! ([`super::tls`]). With certificates both are proved in TLS: the body of Secure is the number of a node's start, the called
//! shows its certificate first, and says no more of itself before it has looked at that of the caller. What follows are frames
//! that are sealed with keys of this connection ([`crate::sealing`]).
//!
//! A control connection leaves a [`Session`]. Its caller need not wait on its payload connections to the same node, on each
//! of which a transfer would begin two round trips later:
//! ```text
//!   caller                                   called
//!     Resume { nonce n, pass }, and what it wants, sealed with keys of n -->
//!     <-------------------------- Resumed, and what is wanted, sealed likewise
//! ```
//! A nonce passes once, so that a listener does not get in by saying the same again.
//!
//! Here is the side of the caller; that of the called is in [`called`].

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

/// What a node says of itself, and shows that it knows.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) member: Member,
    pub(crate) key: NodeKey,
    pub(crate) cluster: String,
    /// The first is proved to others; of others each is accepted.
    pub(crate) tokens: Vec<Token>,
    /// How nodes are admitted, in words.
    pub(crate) admission: String,
    /// Whether frames are not sealed, which both sides have to want.
    pub(crate) is_plain: bool,
    /// After how long a control connection is broken whose other side acknowledges nothing. Where that is not very long,
    /// silent members count as dead before that.
    pub(crate) silence: Duration,
    /// How often it has introduced itself.
    pub(crate) turns: Arc<AtomicU64>,
}

/// How long a handshake may take. A node that is alive answers within a round trip; a stranger that says
/// nothing must not keep a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the kernels of two hosts may take to connect: as long as it takes to say it twice, if the first is lost.
const CONNECT_PATIENCE: Duration = Duration::from_millis(1500);

/// In place of the address of a node that listens nowhere.
pub(crate) const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Where a member is reached; none if it listens nowhere, as only this node itself can.
pub fn address_of(member: &Member) -> Option<SocketAddr> {
    Some(member.address).filter(|address| *address != NO_ADDRESS)
}

impl Identity {
    /// Whether every node that this one meets has proved that it may, and no other process can change what they say to each
    /// other. A node that listens nowhere meets none.
    pub(crate) fn is_authenticated(&self) -> bool {
        let is_proved = !self.tokens.is_empty() || self.key.trust().is_some();
        address_of(&self.member).is_none() || is_proved && !self.is_plain
    }

    fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }
}

/// How often TCP sends again what is not acknowledged: one second, so that a link that was out for two is used within one.
const RETRANSMISSION_MAX: Duration = Duration::from_secs(1);

/// After how long a connection is broken whose other side acknowledges nothing.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A connection whose other side is known.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) channel: Channel,
    pub(crate) member: Member,
    pub(crate) role: Role,
    /// What the caller said of it: see [`Hello::turn`].
    pub(crate) turn: u64,
    /// From question to answer; none on the side of the called, and where the connection carries no messages.
    pub(crate) round_trip: Option<Duration>,
    /// For the caller's further connections.
    pub(crate) session: Session,
    /// At the called, of a connection for payload or by way of it.
    pub(crate) place: Option<Place>,
}

/// Calls a node that has admitted this one, and says at once what it wants of it: `first` is a frame that is not sealed.
///
/// # Errors
/// Why there is no connection; [`LinkError::Refused`] if the node wants a handshake.
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

/// Connects to an address; who is there is not known yet.
///
/// # Errors
/// Why there is no connection.
pub(crate) async fn connect(address: SocketAddr) -> Result<TcpStream, LinkError> {
    let connecting = async { Ok(TcpStream::connect(address).await?) };
    let stream = in_time(CONNECT_PATIENCE, connecting).await?;
    prepare(&stream)?;
    Ok(stream)
}

/// Calls a node and shakes hands.
///
/// # Errors
/// Why there is no connection; [`LinkError::Stranger`] if another node than `callee` answers.
pub(crate) async fn call(
    me: &Identity,
    address: SocketAddr,
    role: Role,
    callee: Option<NodeId>,
) -> Result<Met, LinkError> {
    call_over(me, connect(address).await?, role, callee).await
}

/// Shakes hands with the process at the other end of a connection.
///
/// # Errors
/// Why it does not take part; [`LinkError::Stranger`] if it is not `callee`.
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
    // Of a certificate that the called does not take the caller hears now.
    let heard = hear(&mut secured.stream).await.map_err(|error| me.key.explain(error));
    let welcome = match heard? {
        Greeting::Welcome(welcome) => welcome,
        other => return Err(unexpected(other)),
    };
    let is_proof =
        |proof: MacBytes| me.tokens.iter().any(|token| claim.is_proof(token, Side::Called, &proof));
    if !me.tokens.is_empty() && !welcome.proof.is_some_and(is_proof) {
        return Err(LinkError::Refused("the node does not know this cluster's token".into()));
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

/// Has a node that has admitted this one pass on what is said to a member, and what that answers.
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

/// Whether the process that was called is not there: its host says that no process listens, another node answers, or one of
/// them does not take the other for a member.
pub(crate) fn is_elsewhere(error: &LinkError) -> bool {
    use LinkError::{Certificate, Refused, Replaced, Revoked, Stranger};
    is_refused(error)
        || matches!(error, Stranger | Refused(_) | Replaced { .. } | Revoked(_) | Certificate(_))
}

/// Whether the host is there, but no process listens at the port.
pub(crate) fn is_refused(error: &LinkError) -> bool {
    matches!(error, LinkError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Whether nothing was heard of it: its host is off, it stands still, or nothing gets through to it or back.
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
    // Control messages are small and awaited; blocks are written whole. Neither wants to wait for company.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    // A host that loses its power says nothing: without these its silence would never end.
    let probes = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(1))
        .with_retries(5);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(SILENCE_MAX))?;
    // An older kernel waits longer, and works all the same.
    let _ = hoplite_shm::limit_retransmission(stream.as_fd(), RETRANSMISSION_MAX);
    Ok(())
}

/// Breaks a connection whose other side acknowledges nothing for so long.
pub(crate) fn expect_answers(stream: &TcpStream, silence: Duration) -> Result<(), LinkError> {
    Ok(SockRef::from(stream).set_tcp_user_timeout(Some(silence))?)
}

#[cfg(test)]
mod tests;

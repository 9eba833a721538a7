//! The introduction at the beginning of every connection between nodes: protocol version, cluster, token.
//!
//! ```text
//!   caller                                   called
//!     Hello { cluster, nonce c } ------------>
//!     <------------ Welcome { nonce s, HMAC(token, "called", c, s) }
//!     Proof { HMAC(token, "caller", s, c) } ->
//!     <------------ Admitted
//! ```
//! The token never crosses the wire, and each side shows that it knows it before the other says more.

use std::{net::SocketAddr, time::Duration};

use hmac::{Hmac, KeyInit, Mac};
use hoplite_proto::{
    id::NodeId,
    members::Member,
    wire::{FrameKind, Greeting, Hello, Proof, Role, Welcome, WireError},
};
use sha2::Sha256;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{descriptors, error::LinkError, frame};

/// What a node says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) member: Member,
    pub(crate) cluster: String,
    pub(crate) token: Option<String>,
}

/// How long an introduction may take. A node that is alive answers within a round trip; a stranger that says
/// nothing must not keep a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection whose other side is known.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) stream: TcpStream,
    pub(crate) member: Member,
    pub(crate) role: Role,
    /// From question to answer; none on the side of the called.
    pub(crate) round_trip: Option<Duration>,
}

/// Calls a node and introduces oneself.
///
/// # Errors
/// Why there is no connection; [`LinkError::Stranger`] if another node than `callee` answers.
pub(crate) async fn call(
    me: &Identity,
    address: SocketAddr,
    role: Role,
    callee: Option<NodeId>,
) -> Result<Met, LinkError> {
    let meeting = async {
        let mut stream = TcpStream::connect(address).await?;
        prepare(&stream)?;
        introduce(me, &mut stream, role, callee).await.map(|(member, round_trip)| Met {
            stream,
            member,
            role,
            round_trip: Some(round_trip),
        })
    };
    timeout(PATIENCE, meeting).await.unwrap_or(Err(LinkError::Silent(PATIENCE.as_secs())))
}

async fn introduce(
    me: &Identity,
    stream: &mut TcpStream,
    role: Role,
    callee: Option<NodeId>,
) -> Result<(Member, Duration), LinkError> {
    let nonce = nonce()?;
    let (cluster, member) = (me.cluster.clone(), me.member);
    let begun = Instant::now();
    say(stream, &Greeting::Hello(Hello { cluster, member, role, callee, nonce })).await?;
    let welcome = match hear(stream).await? {
        Greeting::Welcome(welcome) => welcome,
        other => return Err(unexpected(other)),
    };
    let round_trip = begun.elapsed();
    if callee.is_some_and(|callee| callee != welcome.member.id) {
        return Err(LinkError::Stranger);
    }
    if !knows_token(me, b"called", &nonce, &welcome.nonce, welcome.proof.as_ref()) {
        let said = "the node does not know this cluster's token".to_string();
        let _ = say(stream, &Greeting::Refused(said.clone())).await;
        return Err(LinkError::Refused(said));
    }
    let proof = proof(me, b"caller", &welcome.nonce, &nonce);
    say(stream, &Greeting::Proof(Proof { proof })).await?;
    match hear(stream).await? {
        Greeting::Admitted => Ok((welcome.member, round_trip)),
        other => Err(unexpected(other)),
    }
}

/// Answers whoever called.
///
/// # Errors
/// Why the caller was not let in; it was told.
pub(crate) async fn answer(me: &Identity, mut stream: TcpStream) -> Result<Met, LinkError> {
    prepare(&stream)?;
    let meeting = async {
        let hello = match hear(&mut stream).await {
            Ok(Greeting::Hello(hello)) => hello,
            Ok(other) => return Err(unexpected(other)),
            Err(error @ LinkError::Wire(WireError::OtherVersion { .. })) => {
                return Err(refuse(&mut stream, error.to_string()).await);
            }
            Err(error) => return Err(error),
        };
        if hello.cluster != me.cluster {
            let said = format!("this is cluster {:?}, not {:?}", me.cluster, hello.cluster);
            return Err(refuse(&mut stream, said).await);
        }
        if hello.callee.is_some_and(|callee| callee != me.member.id) {
            let said = format!("this is node {}, not {:?}", me.member.id, hello.callee);
            return Err(refuse(&mut stream, said).await);
        }
        let nonce = nonce()?;
        let proof = proof(me, b"called", &hello.nonce, &nonce);
        say(&mut stream, &Greeting::Welcome(Welcome { member: me.member, nonce, proof })).await?;
        let theirs = match hear(&mut stream).await? {
            Greeting::Proof(Proof { proof }) => proof,
            other => return Err(unexpected(other)),
        };
        if !knows_token(me, b"caller", &nonce, &hello.nonce, theirs.as_ref()) {
            let said = "the cluster has a token, and the caller does not know it".to_string();
            return Err(refuse(&mut stream, said).await);
        }
        say(&mut stream, &Greeting::Admitted).await?;
        Ok((hello.member, hello.role))
    };
    let met = timeout(PATIENCE, meeting).await;
    let (member, role) = met.unwrap_or(Err(LinkError::Silent(PATIENCE.as_secs())))?;
    Ok(Met { stream, member, role, round_trip: None })
}

fn prepare(stream: &TcpStream) -> Result<(), LinkError> {
    descriptors::note(stream);
    // Control messages are small and awaited; blocks are written whole. Neither wants to wait for company.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    // A host that loses its power says nothing: without these its silence would never end.
    let probes = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(1))
        .with_retries(5);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(Duration::from_secs(10)))?;
    Ok(())
}

async fn say(stream: &mut TcpStream, greeting: &Greeting) -> Result<(), LinkError> {
    Ok(stream.write_all(&frame::frame(FrameKind::Greeting, 0, greeting)).await?)
}

async fn hear(stream: &mut TcpStream) -> Result<Greeting, LinkError> {
    frame::read_frame(stream, FrameKind::Greeting).await
}

async fn refuse(stream: &mut TcpStream, said: String) -> LinkError {
    // It may be gone already; that it was refused is what matters here.
    let _ = say(stream, &Greeting::Refused(said.clone())).await;
    LinkError::Refused(said)
}

fn unexpected(greeting: Greeting) -> LinkError {
    match greeting {
        Greeting::Refused(said) => LinkError::Refused(said),
        other => WireError::Unexpected(format!("{other:?}")).into(),
    }
}

fn nonce() -> Result<[u8; 16], LinkError> {
    let mut bytes = [0; 16];
    entropy(&mut bytes)?;
    Ok(bytes)
}

/// Fills `bytes` from the system's source of entropy.
pub(crate) fn entropy(bytes: &mut [u8]) -> std::io::Result<()> {
    let filled = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled == bytes.len() { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}

fn mac(token: &str, side: &[u8], first: &[u8], second: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).ok()?;
    mac.update(b"hoplite 1 ");
    mac.update(side);
    mac.update(first);
    mac.update(second);
    Some(mac)
}

fn proof(me: &Identity, side: &[u8], first: &[u8], second: &[u8]) -> Option<[u8; 32]> {
    let mac = mac(me.token.as_deref()?, side, first, second)?;
    Some(mac.finalize().into_bytes().into())
}

fn knows_token(
    me: &Identity,
    side: &[u8],
    first: &[u8],
    second: &[u8],
    proof: Option<&[u8; 32]>,
) -> bool {
    match (me.token.as_deref(), proof) {
        (None, _) => true,
        (Some(_), None) => false,
        // Compared in constant time by the library.
        (Some(token), Some(proof)) => {
            mac(token, side, first, second).is_some_and(|mac| mac.verify_slice(proof).is_ok())
        }
    }
}

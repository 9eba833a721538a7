//! The acceptor's side of the handshake: whom it admits, and the reasons of refusals.

use hoplite_proto::{
    error::Quoted,
    id::NodeId,
    wire::{FrameKind, Greeting, Hello, MacBytes, Resume, Role, Welcome, WireError},
};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{
    Identity, PeerConnection, TIMEOUT,
    greeting::{
        read_plain, read_start, receive_greeting, refuse, refuse_with, secure, send_greeting,
        unexpected, unlike,
    },
    in_time, introduction, prepare,
};
use crate::{
    channel::{self, Channel},
    error::LinkError,
    network::{
        connection_limit::ConnectionPermit,
        own_cluster::Met,
        proofs::{ProofContext, SharedSecret, Side},
        tls::Secured,
    },
};

/// An accepted connection.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// After a handshake.
    Handshake(PeerConnection),
    /// A payload connection that resumes a session.
    Resumed(NodeId, Channel, SharedSecret, ConnectionPermit),
}

/// Accepts a connection. `admit` verifies the nonce and proof of a resumed session and returns the
/// session. `permit` reserves a place for a payload or relayed connection.
///
/// # Errors
/// The reason of the refusal, which was also sent to the initiator.
pub(crate) async fn accept(
    me: &Identity,
    mut stream: TcpStream,
    admit: impl Fn(NodeId, &[u8; 16], &MacBytes) -> Option<SharedSecret>,
    permit: impl Fn(NodeId) -> Result<ConnectionPermit, LinkError>,
) -> Result<Accepted, LinkError> {
    prepare(&stream)?;
    let meeting = async {
        let header = match channel::expect_header(&mut stream).await {
            Ok(header) => header,
            Err(error @ LinkError::Wire(WireError::OtherVersion { .. })) => {
                // Its header has this node's version, so the initiator knows both, too.
                return Err(refuse_with(&mut stream, error).await);
            }
            Err(error) => return Err(error),
        };
        match header.kind {
            FrameKind::Secure => {
                let start = read_start(&mut stream, header).await?;
                if let Some(said) = unlike(&me.key, start.as_ref()) {
                    return Err(refuse(&mut stream, said).await);
                }
                stream.write_all(&secure(&me.key)).await?;
                let secured = me.key.accept(stream, start.as_ref()).await?;
                admit_caller(me, secured, permit).await.map(Accepted::Handshake)
            }
            FrameKind::Greeting => match read_plain(&mut stream, header).await? {
                Greeting::Resume(resume) => admit_resumed(me, stream, &resume, admit, permit).await,
                other => Err(unexpected(other)),
            },
            other => Err(WireError::Unexpected(other.to_string()).into()),
        }
    };
    in_time(TIMEOUT, meeting).await
}

/// Admits or refuses a node after its greeting inside TLS.
async fn admit_caller(
    me: &Identity,
    mut secured: Secured,
    permit: impl Fn(NodeId) -> Result<ConnectionPermit, LinkError>,
) -> Result<PeerConnection, LinkError> {
    let hello = match receive_greeting(&mut secured.stream).await? {
        Greeting::Hello(hello) => hello,
        Greeting::Refused(said) => return Err(LinkError::Declined(said)),
        other => return Err(unexpected(other)),
    };
    let (initiator, role, binding) = (secured.peer, hello.role, secured.binding);
    let (acceptor, cluster) = (me.member.id, hello.cluster.as_str());
    let claim = ProofContext { binding: &binding, initiator, acceptor, role, cluster };
    let known = me.tokens.iter().find(|token| {
        let mut proofs = hello.proofs.iter().take(hoplite_proto::wire::TOKENS_MAX);
        proofs.any(|proof| claim.is_proof(token, Side::Initiator, proof))
    });
    if let Some(said) = refusal(me, &hello, initiator, known.is_some()) {
        return Err(refuse(&mut secured.stream, said).await);
    }
    let permit = matches!(role, Role::Payload | Role::Relay).then(|| permit(initiator)).transpose();
    let permit = match permit {
        Ok(permit) => permit,
        Err(error) => return Err(refuse_with(&mut secured.stream, error).await),
    };
    let theirs = hello.cluster_id;
    let agreed = me.own_cluster.meet(Met::Initiator, theirs, introduction(hello.target));
    let cluster_id = match agreed {
        Ok(cluster_id) => cluster_id,
        Err(ours) => {
            // The peer may be gone already; only the refusal matters here.
            let _ = send_greeting(&mut secured.stream, &Greeting::OtherCluster(ours)).await;
            let (node, address) = (initiator, hello.member.address);
            return Err(LinkError::OtherCluster { node, address, theirs, ours });
        }
    };
    let proof = known.map(|token| claim.prove(token, Side::Acceptor));
    let welcome = Welcome { member: me.member, cluster_id, proof };
    send_greeting(&mut secured.stream, &Greeting::Welcome(welcome)).await?;
    let session = SharedSecret::new(secured.secret, secured.shown.clone());
    let (seal, open) = session.keys(Side::Acceptor, None, me.no_encryption);
    let mut channel = Channel { stream: secured.into_inner(), seal, open };
    if matches!(role, Role::Control | Role::ControlReconnect) {
        match channel.receive_body(FrameKind::Greeting).await? {
            Greeting::Ping => channel.send_body(FrameKind::Greeting, &Greeting::Pong).await?,
            other => return Err(unexpected(other)),
        }
    }
    let Hello { member, role, turn, .. } = hello;
    Ok(PeerConnection { channel, member, role, turn, round_trip: None, session, permit })
}

/// Why a node is not admitted, if so. `has_token` if it has proved a token of this node.
fn refusal(me: &Identity, hello: &Hello, initiator: NodeId, has_token: bool) -> Option<String> {
    let me_id = me.member.id;
    if !has_token && !me.tokens.is_empty() {
        let said =
            "the initiator did not prove this cluster's token: set the same token on all nodes";
        return Some(said.into());
    }
    if me.tokens.is_empty() && !hello.proofs.is_empty() {
        let said = "the initiator proved a token, but the acceptor has none: set the same token on \
                    all nodes";
        return Some(said.into());
    }
    if hello.cluster != me.cluster {
        let (ours, theirs) = (Quoted(&me.cluster), Quoted(&hello.cluster));
        return Some(format!(
            "this is a node of cluster {ours}, not {theirs}: set the same cluster name on both"
        ));
    }
    if let Some(target) = hello.target.filter(|target| *target != me_id) {
        return Some(format!("node {me_id} has replaced node {target} at this address"));
    }
    if hello.member.id != initiator {
        let claimed = hello.member.id;
        return Some(format!(
            "the initiator claims to be node {claimed}, but its key belongs to {initiator}"
        ));
    }
    if hello.no_encryption != me.no_encryption {
        let [plain, sealed] = ["sends without encryption (--no-encryption)", "encrypts"];
        let (ours, theirs) = if me.no_encryption { (plain, sealed) } else { (sealed, plain) };
        return Some(format!(
            "the acceptor {ours}, but the initiator {theirs}: use the same setting on all nodes"
        ));
    }
    None
}

/// Resumes the session of a node, or refuses it.
async fn admit_resumed(
    me: &Identity,
    mut stream: TcpStream,
    resume: &Resume,
    admit: impl Fn(NodeId, &[u8; 16], &MacBytes) -> Option<SharedSecret>,
    permit: impl Fn(NodeId) -> Result<ConnectionPermit, LinkError>,
) -> Result<Accepted, LinkError> {
    let Resume { initiator, target, nonce, pass } = resume;
    if *target != me.member.id {
        let replaced = LinkError::Replaced { node: *target, by: me.member.id };
        return Err(refuse_with(&mut stream, replaced).await);
    }
    let Some(session) = admit(*initiator, nonce, pass) else {
        let said = "unknown session: repeat the handshake".to_string();
        return Err(refuse(&mut stream, said).await);
    };
    let permit = match permit(*initiator) {
        Ok(permit) => permit,
        Err(error) => return Err(refuse_with(&mut stream, error).await),
    };
    send_greeting(&mut stream, &Greeting::Resumed(session.prove(Side::Acceptor, nonce))).await?;
    let (seal, open) = session.keys(Side::Acceptor, Some(nonce), me.no_encryption);
    Ok(Accepted::Resumed(*initiator, Channel { stream, seal, open }, session, permit))
}

/// Reads to which member an admitted node wants to be relayed.
///
/// # Errors
/// The node did not name a member.
pub(crate) async fn read_relay_request(channel: &mut Channel) -> Result<NodeId, LinkError> {
    let hearing = async {
        match channel.receive_body(FrameKind::Greeting).await? {
            Greeting::Relay(to) => Ok(to),
            other => Err(unexpected(other)),
        }
    };
    in_time(TIMEOUT, hearing).await
}

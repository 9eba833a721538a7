//! The acceptor's side of the handshake: whom it admits, and the reasons of refusals.

use hoplite_proto::{
    error::Quoted,
    id::NodeId,
    wire::{FrameKind, Greeting, Hello, MacBytes, Resume, Role, Welcome, WireError},
};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{
    Identity, Met, PATIENCE,
    greeting::{hear, read_start, refuse, say, secure, unexpected, unlike},
    in_time, prepare,
};
use crate::{
    channel::{self, Channel},
    error::LinkError,
    network::{
        places::Place,
        proofs::{Claim, Session, Side},
        tls::Secured,
    },
    sealing::Open,
};

/// An accepted connection.
#[derive(Debug)]
pub(crate) enum Answered {
    /// After a handshake.
    Met(Met),
    /// A payload connection that resumes a session.
    Resumed(NodeId, Channel, Session, Place),
}

/// Accepts a connection. `admit` verifies the nonce and proof of a resumed session and returns the session. `place`
/// reserves a place for a payload or relayed connection.
///
/// # Errors
/// The reason of the refusal, which was also sent to the initiator.
pub(crate) async fn answer(
    me: &Identity,
    mut stream: TcpStream,
    admit: impl Fn(NodeId, &[u8; 16], &MacBytes) -> Option<Session>,
    place: impl Fn(NodeId) -> Result<Place, LinkError>,
) -> Result<Answered, LinkError> {
    prepare(&stream)?;
    let meeting = async {
        let header = match channel::read_header(&mut stream).await {
            Ok(header) => {
                header.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))?
            }
            Err(error @ LinkError::Wire(WireError::OtherVersion { .. })) => {
                return Err(refuse(&mut stream, error.to_string()).await);
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
                let secured = me.key.answer(stream, start.as_ref()).await?;
                admit_caller(me, secured, place).await.map(Answered::Met)
            }
            FrameKind::Greeting => {
                let mut header = header;
                let body =
                    channel::read_body(&mut stream, &mut Open::new(None), &mut header).await?;
                match hoplite_proto::wire::decode(&body)? {
                    Greeting::Resume(resume) => {
                        admit_again(me, stream, &resume, admit, place).await
                    }
                    other => Err(unexpected(other)),
                }
            }
            other => Err(WireError::Unexpected(other.to_string()).into()),
        }
    };
    in_time(PATIENCE, meeting).await
}

/// Admits or refuses a node after its greeting inside TLS.
async fn admit_caller(
    me: &Identity,
    mut secured: Secured,
    place: impl Fn(NodeId) -> Result<Place, LinkError>,
) -> Result<Met, LinkError> {
    let hello = match hear(&mut secured.stream).await? {
        Greeting::Hello(hello) => hello,
        Greeting::Refused(said) => return Err(LinkError::Declined(said)),
        other => return Err(unexpected(other)),
    };
    let (caller, role, cluster) = (secured.peer, hello.role, hello.cluster.as_str());
    let binding = secured.binding;
    let claim = Claim { binding: &binding, caller, called: me.member.id, role, cluster };
    let known = me.tokens.iter().find(|token| {
        let mut proofs = hello.proofs.iter().take(hoplite_proto::wire::TOKENS_MAX);
        proofs.any(|proof| claim.is_proof(token, Side::Caller, proof))
    });
    let refusal = if known.is_none() && !me.tokens.is_empty() {
        Some("the initiator did not prove this cluster's token".to_string())
    } else if me.tokens.is_empty() && !hello.proofs.is_empty() {
        Some("the initiator proved a token, but the acceptor has none".to_string())
    } else if hello.cluster != me.cluster {
        let (ours, theirs) = (Quoted(&me.cluster), Quoted(&hello.cluster));
        Some(format!("this is a node of cluster {ours}, not {theirs}"))
    } else if let Some(callee) = hello.callee.filter(|callee| *callee != me.member.id) {
        Some(format!("node {} has replaced node {callee} at this address", me.member.id))
    } else if hello.member.id != caller {
        Some(format!(
            "the initiator claims to be node {}, but its key belongs to {caller}",
            hello.member.id
        ))
    } else if hello.is_plain != me.is_plain {
        let [plain, sealed] = ["sends without encryption (--no-encryption)", "encrypts"];
        let (ours, theirs) = if me.is_plain { (plain, sealed) } else { (sealed, plain) };
        Some(format!(
            "the acceptor {ours}, but the initiator {theirs}: use the same setting on all nodes"
        ))
    } else {
        None
    };
    if let Some(said) = refusal {
        return Err(refuse(&mut secured.stream, said).await);
    }
    let place = matches!(role, Role::Payload | Role::Detour).then(|| place(caller)).transpose();
    let place = match place {
        Ok(place) => place,
        Err(error) => {
            refuse(&mut secured.stream, error.to_string()).await;
            return Err(error);
        }
    };
    let proof = known.map(|token| claim.prove(token, Side::Called));
    let welcome = Welcome { member: me.member, proof };
    say(&mut secured.stream, &Greeting::Welcome(welcome)).await?;
    let session = Session::new(secured.secret, secured.shown.clone());
    let (seal, open) = session.keys(Side::Called, None, me.is_plain);
    let mut channel = Channel { stream: secured.into_inner(), seal, open };
    if matches!(role, Role::Control | Role::ControlAgain) {
        match channel.hear(FrameKind::Greeting).await? {
            Greeting::Ping => channel.say(FrameKind::Greeting, &Greeting::Pong).await?,
            other => return Err(unexpected(other)),
        }
    }
    let Hello { member, role, turn, .. } = hello;
    Ok(Met { channel, member, role, turn, round_trip: None, session, place })
}

/// Resumes the session of a node, or refuses it.
async fn admit_again(
    me: &Identity,
    mut stream: TcpStream,
    resume: &Resume,
    admit: impl Fn(NodeId, &[u8; 16], &MacBytes) -> Option<Session>,
    place: impl Fn(NodeId) -> Result<Place, LinkError>,
) -> Result<Answered, LinkError> {
    let Resume { caller, callee, nonce, pass } = resume;
    if *callee != me.member.id {
        let replaced = LinkError::Replaced { node: *callee, by: me.member.id };
        refuse(&mut stream, replaced.to_string()).await;
        return Err(replaced);
    }
    let Some(session) = admit(*caller, nonce, pass) else {
        let said = "unknown session: repeat the handshake".to_string();
        return Err(refuse(&mut stream, said).await);
    };
    let place = match place(*caller) {
        Ok(place) => place,
        Err(error) => {
            refuse(&mut stream, error.to_string()).await;
            return Err(error);
        }
    };
    say(&mut stream, &Greeting::Resumed(session.prove(Side::Called, nonce))).await?;
    let (seal, open) = session.keys(Side::Called, Some(nonce), me.is_plain);
    Ok(Answered::Resumed(*caller, Channel { stream, seal, open }, session, place))
}

/// Reads to which member an admitted node wants to be relayed.
///
/// # Errors
/// The node did not name a member.
pub(crate) async fn asked_to_pass_on(channel: &mut Channel) -> Result<NodeId, LinkError> {
    let hearing = async {
        match channel.hear(FrameKind::Greeting).await? {
            Greeting::PassOn(to) => Ok(to),
            other => Err(unexpected(other)),
        }
    };
    in_time(PATIENCE, hearing).await
}

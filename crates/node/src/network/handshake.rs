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
//!
//! Out of both nonces of a control connection comes a [`Session`]. Who called then need not wait on its payload
//! connections: a transfer would begin two round trips later on each that is new.
//! ```text
//!   caller                                   called
//!     Hello { nonce n, pass: HMAC(session, "caller", n) }, and what it wants
//!     <------------ Welcome { HMAC(session, "called", n) }, and what is wanted
//! ```
//! A nonce passes once, so that a listener does not get in by saying the same again.

use std::{
    net::SocketAddr,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hoplite_proto::{
    error::Quoted,
    id::NodeId,
    members::Member,
    wire::{FrameKind, Greeting, Hello, Proof, Role, Welcome, WireError},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, timeout},
};

use super::proofs::{Session, knows_token, nonce, proof};
use crate::{error::LinkError, fork_safe, frame};

/// What a node says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) member: Member,
    pub(crate) cluster: String,
    pub(crate) token: Option<String>,
    /// After how long a control connection is broken whose other side acknowledges nothing. Where that is not very long,
    /// silent members count as dead before that.
    pub(crate) silence: Duration,
    /// How often it has introduced itself.
    pub(crate) turns: Arc<AtomicU64>,
}

/// How long an introduction may take. A node that is alive answers within a round trip; a stranger that says
/// nothing must not keep a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the kernels of two hosts may take to connect: as long as it takes to say it twice, if the first is lost.
const CONNECT_PATIENCE: Duration = Duration::from_millis(1500);

impl Identity {
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
    pub(crate) stream: TcpStream,
    pub(crate) member: Member,
    pub(crate) role: Role,
    /// What the caller said of it: see [`Hello::turn`].
    pub(crate) turn: u64,
    /// From question to answer; none on the side of the called.
    pub(crate) round_trip: Option<Duration>,
    /// For the caller's further connections; none where this is one of these.
    pub(crate) session: Option<Session>,
}

/// Calls a node that has admitted this one, and says at once what it wants of it.
///
/// # Errors
/// Why there is no connection; [`LinkError::Refused`] if the node wants an introduction.
pub(crate) async fn call_again(
    me: &Identity,
    mut stream: TcpStream,
    callee: NodeId,
    session: &Session,
    first: &[u8],
) -> Result<TcpStream, LinkError> {
    let meeting = async {
        let (nonce, cluster, member) = (nonce()?, me.cluster.clone(), me.member);
        let (role, callee_said) = (Role::Payload, Some(callee));
        let (pass, turn) = (session.prove(b"caller", &nonce), me.next_turn());
        let hello = Hello { cluster, member, role, callee: callee_said, turn, nonce, pass };
        let mut bytes = frame::frame(FrameKind::Greeting, 0, &Greeting::Hello(hello));
        bytes.extend_from_slice(first);
        stream.write_all(&bytes).await?;
        let welcome = match hear(&mut stream).await? {
            Greeting::Welcome(welcome) => welcome,
            other => return Err(unexpected(other)),
        };
        let is_proof = |proof: &[u8; 32]| session.is_proof(b"called", &nonce, proof);
        if welcome.member.id != callee || !welcome.proof.as_ref().is_some_and(is_proof) {
            return Err(LinkError::Stranger);
        }
        Ok(stream)
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
    call_over(me, connect(address).await?, role, callee).await
}

/// Introduces this node to the process at the other end of a connection.
///
/// # Errors
/// Why it does not take part; [`LinkError::Stranger`] if it is not `callee`.
pub(crate) async fn call_over(
    me: &Identity,
    mut stream: TcpStream,
    role: Role,
    callee: Option<NodeId>,
) -> Result<Met, LinkError> {
    let meeting = async {
        let turn = me.next_turn();
        let (member, round_trip, session) = introduce(me, &mut stream, role, turn, callee).await?;
        Ok(Met { stream, member, role, turn, round_trip: Some(round_trip), session })
    };
    in_time(PATIENCE, meeting).await
}

/// Has a node that has admitted this one pass on what is said to a member, and what that answers.
///
/// # Errors
/// [`LinkError::Refused`] if it can't reach the member.
pub(crate) async fn ask_to_pass_on(
    mut stream: TcpStream,
    to: NodeId,
) -> Result<TcpStream, LinkError> {
    let asking = async {
        say(&mut stream, &Greeting::PassOn(to)).await?;
        match hear(&mut stream).await? {
            Greeting::Admitted => Ok(stream),
            other => Err(unexpected(other)),
        }
    };
    in_time(PATIENCE, asking).await
}

/// To whom a node that this one has admitted wants to be passed on.
///
/// # Errors
/// It did not say.
pub(crate) async fn asked_to_pass_on(stream: &mut TcpStream) -> Result<NodeId, LinkError> {
    let hearing = async {
        match hear(stream).await? {
            Greeting::PassOn(to) => Ok(to),
            other => Err(unexpected(other)),
        }
    };
    in_time(PATIENCE, hearing).await
}

async fn in_time<T>(
    patience: Duration,
    what: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    timeout(patience, what).await.unwrap_or(Err(LinkError::Silent(patience.as_secs_f32())))
}

async fn introduce(
    me: &Identity,
    stream: &mut TcpStream,
    role: Role,
    turn: u64,
    callee: Option<NodeId>,
) -> Result<(Member, Duration, Option<Session>), LinkError> {
    let nonce = nonce()?;
    let (cluster, member) = (me.cluster.clone(), me.member);
    let begun = Instant::now();
    let hello = Hello { cluster, member, role, callee, turn, nonce, pass: None };
    say(stream, &Greeting::Hello(hello)).await?;
    let welcome = match hear(stream).await? {
        Greeting::Welcome(welcome) => welcome,
        other => return Err(unexpected(other)),
    };
    let round_trip = begun.elapsed();
    if callee.is_some_and(|callee| callee != welcome.member.id) {
        return Err(LinkError::Stranger);
    }
    if !knows_token(me.token.as_deref(), b"called", &nonce, &welcome.nonce, welcome.proof.as_ref())
    {
        let said = "the node does not know this cluster's token".to_string();
        let _ = say(stream, &Greeting::Refused(said.clone())).await;
        return Err(LinkError::Refused(said));
    }
    let proof = proof(me.token.as_deref(), b"caller", &welcome.nonce, &nonce);
    say(stream, &Greeting::Proof(Proof { proof })).await?;
    match hear(stream).await? {
        Greeting::Admitted => {
            let session = Session::new(me.token.as_deref(), &nonce, &welcome.nonce);
            Ok((welcome.member, round_trip, session))
        }
        other => Err(unexpected(other)),
    }
}

/// Answers a caller. `admit` looks at the nonce and the pass of a node that called before, and proves that this is
/// the node it is for.
///
/// # Errors
/// Why the caller was not let in; it was told.
pub(crate) async fn answer(
    me: &Identity,
    mut stream: TcpStream,
    admit: impl Fn(NodeId, &[u8; 16], &[u8; 32]) -> Option<[u8; 32]>,
) -> Result<Met, LinkError> {
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
            let said = format!(
                "this is a node of cluster {}, not {}",
                Quoted(&me.cluster),
                Quoted(&hello.cluster)
            );
            return Err(refuse(&mut stream, said).await);
        }
        if let Some(callee) = hello.callee.filter(|callee| *callee != me.member.id) {
            let said =
                format!("this is node {}, not {callee}, whose place it has taken", me.member.id);
            return Err(refuse(&mut stream, said).await);
        }
        if let Some(pass) = &hello.pass {
            let proof = admit(hello.member.id, &hello.nonce, pass);
            let Some(proof) = proof.filter(|_| hello.role == Role::Payload) else {
                let said = "the pass is not known here: introduce yourself".to_string();
                return Err(refuse(&mut stream, said).await);
            };
            let welcome = Welcome { member: me.member, nonce: hello.nonce, proof: Some(proof) };
            say(&mut stream, &Greeting::Welcome(welcome)).await?;
            return Ok((hello.member, hello.role, hello.turn, None));
        }
        let nonce = nonce()?;
        let proof = proof(me.token.as_deref(), b"called", &hello.nonce, &nonce);
        say(&mut stream, &Greeting::Welcome(Welcome { member: me.member, nonce, proof })).await?;
        let theirs = match hear(&mut stream).await? {
            Greeting::Proof(Proof { proof }) => proof,
            other => return Err(unexpected(other)),
        };
        if !knows_token(me.token.as_deref(), b"caller", &nonce, &hello.nonce, theirs.as_ref()) {
            let said = "the cluster has a token, and the caller does not know it".to_string();
            return Err(refuse(&mut stream, said).await);
        }
        say(&mut stream, &Greeting::Admitted).await?;
        let session = Session::new(me.token.as_deref(), &hello.nonce, &nonce);
        Ok((hello.member, hello.role, hello.turn, session))
    };
    let (member, role, turn, session) = in_time(PATIENCE, meeting).await?;
    Ok(Met { stream, member, role, turn, round_trip: None, session })
}

/// Whether the process that was called is not there: its host says that no process listens, or another node answers.
pub(crate) fn is_elsewhere(error: &LinkError) -> bool {
    is_refused(error) || matches!(error, LinkError::Stranger | LinkError::Refused(_))
}

/// Whether the host is there, but no process listens at the port.
pub(crate) fn is_refused(error: &LinkError) -> bool {
    matches!(error, LinkError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Whether nothing was heard of it: its host is off, it stands still, or nothing gets through to it or back.
pub(crate) fn is_unreachable(error: &LinkError) -> bool {
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    match error {
        LinkError::Silent(_) => true,
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

pub(crate) async fn say(stream: &mut TcpStream, greeting: &Greeting) -> Result<(), LinkError> {
    Ok(stream.write_all(&frame::frame(FrameKind::Greeting, 0, greeting)).await?)
}

/// Breaks a connection whose other side acknowledges nothing for so long.
pub(crate) fn expect_answers(stream: &TcpStream, silence: Duration) -> Result<(), LinkError> {
    Ok(SockRef::from(stream).set_tcp_user_timeout(Some(silence))?)
}

async fn hear(stream: &mut TcpStream) -> Result<Greeting, LinkError> {
    frame::read_frame(stream, FrameKind::Greeting).await
}

pub(crate) async fn refuse(stream: &mut TcpStream, said: String) -> LinkError {
    // It may be gone already; that it was refused is what matters here.
    let _ = say(stream, &Greeting::Refused(said.clone())).await;
    LinkError::Refused(said)
}

fn unexpected(greeting: Greeting) -> LinkError {
    match greeting {
        Greeting::Refused(said) => LinkError::Refused(said),
        Greeting::Hello(_) => WireError::Unexpected("a caller's greeting".into()).into(),
        Greeting::Welcome(_) => WireError::Unexpected("a welcome".into()).into(),
        Greeting::Proof(_) => WireError::Unexpected("a proof of the token".into()).into(),
        Greeting::Admitted => WireError::Unexpected("an admission".into()).into(),
        Greeting::PassOn(_) => WireError::Unexpected("a request to pass on".into()).into(),
    }
}

#[cfg(test)]
mod tests {
    use hoplite_proto::wire::{Fetch, What};
    use tokio::net::TcpListener;

    use super::*;
    use crate::network::proofs::Admitted;

    fn identity(node: u64, token: Option<&str>) -> Identity {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let (member, cluster) = (Member { id: NodeId(node), address, rack: None }, "test".into());
        Identity {
            member,
            cluster,
            token: token.map(String::from),
            silence: SILENCE_MAX,
            turns: Arc::default(),
        }
    }

    /// Both ends' sessions of a control connection between node 1, which calls, and node 2.
    async fn met(token: Option<&str>) -> (Session, Session) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (one, two) = (identity(1, token), identity(2, token));
        let called = async {
            let (stream, _) = listener.accept().await.unwrap();
            answer(&two, stream, |_, _, _| None).await.unwrap().session.unwrap()
        };
        let calling = call(&one, address, Role::Control, Some(NodeId(2)));
        let (met, called) = tokio::join!(calling, called);
        (met.unwrap().session.unwrap(), called)
    }

    #[tokio::test]
    async fn who_was_admitted_says_at_once_what_it_wants() {
        for token in [None, Some("secret")] {
            let (session, of_called) = met(token).await;
            let admitted = std::sync::Mutex::new(Admitted::new(of_called));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (one, two) = (identity(1, token), identity(2, token));
            let ask = Fetch {
                what: What::Copy {
                    id: "x".parse().unwrap(),
                    instance: hoplite_proto::id::Instance { node: NodeId(2), serial: 1 },
                    ranges: Vec::new(),
                    ordered: false,
                },
                credit: 1,
                frame: 16_384,
            };
            let first = frame::frame(FrameKind::Fetch, 5, &ask);
            let called = async {
                let (stream, _) = listener.accept().await.unwrap();
                let admit = |node, nonce: &[u8; 16], pass: &[u8; 32]| {
                    assert_eq!(node, NodeId(1));
                    admitted.lock().unwrap().admit(nonce, pass)
                };
                let mut met = answer(&two, stream, admit).await.unwrap();
                assert_eq!((met.member.id, met.role), (NodeId(1), Role::Payload));
                frame::read_frame::<_, Fetch>(&mut met.stream, FrameKind::Fetch).await.unwrap()
            };
            let calling =
                call_again(&one, connect(address).await.unwrap(), NodeId(2), &session, &first);
            let (stream, asked) = tokio::join!(calling, called);
            stream.unwrap();
            assert_eq!(asked, ask);
        }
    }

    #[tokio::test]
    async fn who_calls_another_cluster_or_a_node_that_was_replaced_is_told_in_words() {
        let mut of_another = identity(1, None);
        of_another.cluster = "say \"two\"".into();
        let cases = [
            (of_another, None, "this is a node of cluster \"c\", not \"say \\\"two\\\"\""),
            (
                identity(1, None),
                Some(NodeId(3)),
                "this is node 0000000000000002, not 0000000000000003, whose place it has taken",
            ),
        ];
        for (one, callee, told) in cases {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let two = Identity { cluster: "c".into(), ..identity(2, None) };
            let one = if callee.is_some() { Identity { cluster: "c".into(), ..one } } else { one };
            let called = async {
                let (stream, _) = listener.accept().await.unwrap();
                answer(&two, stream, |_, _, _| None).await
            };
            let calling = call(&one, address, Role::Control, callee);
            let (caller, called) = tokio::join!(calling, called);
            let refused = format!("the peer refused: {told}");
            assert_eq!(called.unwrap_err().to_string(), refused);
            assert_eq!(caller.unwrap_err().to_string(), refused);
        }
    }

    #[tokio::test]
    async fn who_is_not_known_is_refused_and_a_stranger_is_found_out() {
        let (session, _) = met(None).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (one, two) = (identity(1, None), identity(2, None));
        let called = async {
            let (stream, _) = listener.accept().await.unwrap();
            answer(&two, stream, |_, _, _| None).await
        };
        let calling = call_again(&one, connect(address).await.unwrap(), NodeId(2), &session, &[]);
        let (stream, called) = tokio::join!(calling, called);
        assert!(matches!(stream, Err(LinkError::Refused(_))) && called.is_err());
        let called = async {
            let (stream, _) = listener.accept().await.unwrap();
            answer(&two, stream, |_, _, _| Some([1; 32])).await
        };
        let calling = call_again(&one, connect(address).await.unwrap(), NodeId(2), &session, &[]);
        let (stream, _) = tokio::join!(calling, called);
        assert!(matches!(stream, Err(LinkError::Stranger)));
    }
}

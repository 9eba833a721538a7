//! Fuzzes handshakes with a process without the token, as initiator and acceptor: it must never be
//! admitted.

use std::{
    cell::Cell,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use hoplite_proto::{
    cluster_id::ClusterId,
    id::NodeId,
    members::Member,
    wire::{self, FrameKind, Greeting, Header, Hello, Role, Welcome},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{frames::run, pieces::Pieces};
use crate::{
    frame,
    network::{
        connection_limit::ConnectionLimit,
        handshake::{self, Identity, SILENCE_MAX, acceptor},
        own_cluster::OwnCluster,
        proofs::Token,
        tls::NodeKey,
    },
};

/// Of the stranger. It has lost no member, so a node without a token admits it.
const CLUSTER_ID: ClusterId = ClusterId { number: 7, is_final: false };

/// How far the stranger follows the protocol.
#[derive(Clone, Copy)]
enum Depth {
    /// It sends its raw bytes.
    Nothing,
    /// It announces TLS, and then sends its bytes.
    Secure,
    /// It performs the TLS handshake, and sends greetings inside.
    Tls,
    /// It sends greetings without TLS, such as a resumption.
    Greetings,
}

struct Nodes {
    node: Identity,
    open: Identity,
    stranger: NodeKey,
}

impl Nodes {
    fn new() -> Self {
        let node = identity(vec![Token::from("of the cluster".to_string())]);
        Self { node, open: identity(Vec::new()), stranger: NodeKey::new().unwrap() }
    }
}

fn identity(tokens: Vec<Token>) -> Identity {
    let key = NodeKey::new().unwrap();
    Identity {
        member: member(key.id()),
        key,
        cluster: "default".into(),
        own_cluster: Arc::new(OwnCluster::new().unwrap()),
        tokens,
        admission: String::new(),
        no_encryption: false,
        silence: SILENCE_MAX,
        turns: Arc::default(),
    }
}

/// Fuzzes the bytes of a stranger. The lowest bits of the first byte select the initiator, how far
/// the stranger follows the protocol, and whether the node has a token. A node without a token
/// admits strangers, and must only not fail.
pub fn handshake(bytes: &[u8]) {
    assert!(!(is_let_in(bytes) && has_token(bytes)), "a stranger was admitted");
}

fn has_token(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|how| how & 8 == 0)
}

fn is_let_in(bytes: &[u8]) -> bool {
    thread_local! {
        static NODES: Nodes = Nodes::new();
    }
    let Some((how, rest)) = bytes.split_first() else { return false };
    let depth =
        [Depth::Nothing, Depth::Secure, Depth::Tls, Depth::Greetings][usize::from(how >> 1 & 3)];
    let is_called = how & 1 == 0;
    NODES.with(|nodes| {
        let node = if has_token(bytes) { &nodes.node } else { &nodes.open };
        run(async {
            let listener = TcpListener::bind((next_address(), 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            let calling = async { TcpStream::connect(address).await.unwrap() };
            let (near, (far, _)) =
                tokio::join!(calling, async { listener.accept().await.unwrap() });
            let node = async {
                if is_called {
                    // There is no session to resume.
                    let place = |node| Arc::<ConnectionLimit>::default().take(node, 1);
                    acceptor::accept(node, far, |_, _, _| None, place).await.is_ok()
                } else {
                    handshake::initiate_over(node, far, Role::Join, None).await.is_ok()
                }
            };
            tokio::join!(node, attack(&nodes.stranger, near, is_called, depth, rest)).0
        })
    })
}

/// Returns a different loopback address each time: used ports are not free at once.
fn next_address() -> Ipv4Addr {
    thread_local! {
        static NEXT: Cell<u16> = const { Cell::new(0) };
    }
    let number = NEXT.with(|next| next.replace(next.get().wrapping_add(1)));
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

async fn attack(key: &NodeKey, mut stream: TcpStream, is_caller: bool, depth: Depth, bytes: &[u8]) {
    let secure = frame::bare(FrameKind::Secure, 0, 0);
    match depth {
        Depth::Nothing => say_all(stream, bytes).await,
        Depth::Greetings => say_all(stream, &greetings(key.id(), bytes)).await,
        Depth::Secure => say_all(stream, &[&secure, bytes].concat()).await,
        Depth::Tls => {
            let _ = stream.write_all(&secure).await;
            let mut heard = vec![0; secure.len()];
            if stream.read_exact(&mut heard).await.is_err() {
                return;
            }
            let secured = if is_caller {
                key.initiate(stream, None).await
            } else {
                key.accept(stream, None).await
            };
            if let Ok(secured) = secured {
                say_all(secured.stream, &greetings(key.id(), bytes)).await;
            }
        }
    }
}

/// Encodes greetings in frames with valid checksums: the raw bytes of each piece, or a greeting of
/// the node `own` that is valid except for what the piece selects.
fn greetings(own: NodeId, bytes: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    for (what, body) in Pieces(bytes) {
        let kind = if what & 15 == 15 { FrameKind::Control } else { FrameKind::Greeting };
        let body = match what >> 4 & 3 {
            1 => wire::encode(&Greeting::Hello(hello(own, body))),
            2 => wire::encode(&Greeting::Welcome(welcome(own, body))),
            _ => body.to_vec(),
        };
        let header = Header::new(kind, body.len() as u32, frame::crc(&body));
        stream.extend(header.encode());
        stream.extend(body);
    }
    stream
}

fn member(id: NodeId) -> Member {
    Member { id, address: SocketAddr::from(([127, 0, 0, 1], 1)), place: None }
}

fn hello(own: NodeId, bytes: &[u8]) -> Hello {
    let roles = [Role::Join, Role::Control, Role::Payload, Role::Relay, Role::ControlReconnect];
    let (how, proofs) = bytes.split_first().unwrap_or((&0, &[]));
    Hello {
        cluster: "default".into(),
        cluster_id: CLUSTER_ID,
        member: member(own),
        role: roles[usize::from(how & 7) % roles.len()],
        target: (how & 8 > 0).then_some(own),
        turn: u64::from(how >> 4),
        no_encryption: how & 128 > 0,
        proofs: proofs.chunks_exact(32).map(|proof| proof.try_into().unwrap()).collect(),
    }
}

fn welcome(own: NodeId, bytes: &[u8]) -> Welcome {
    Welcome { member: member(own), cluster_id: CLUSTER_ID, proof: bytes.first_chunk().copied() }
}

/// Sends all bytes, and reads replies until the node closes the connection.
async fn say_all<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, bytes: &[u8]) {
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut heard = [0; 4096];
    while stream.read(&mut heard).await.is_ok_and(|count| count > 0) {}
}

/// Seeds: greetings of all kinds in all situations.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    use hoplite_proto::wire::Resume;
    let own = NodeId(7);
    let resume = Resume { initiator: NodeId(1), target: own, nonce: [2; 16], pass: [3; 32] };
    let said = [
        Greeting::Hello(hello(own, &[1; 65])),
        Greeting::Welcome(welcome(own, &[4; 32])),
        Greeting::Resume(resume),
        Greeting::Resumed([5; 32]),
        Greeting::Admitted,
        Greeting::Relay(own),
        Greeting::Ping,
        Greeting::Pong,
        Greeting::Refused("go away".into()),
        Greeting::OtherCluster(CLUSTER_ID),
    ];
    let piece =
        |what: u8, body: &[u8]| [&[what][..], &(body.len() as u16).to_le_bytes(), body].concat();
    let mut seeds =
        vec![b"\0GET / HTTP/1.1\r\n\r\n".to_vec(), b"\x02\x16\x03\x01\x00\x05\x01".to_vec()];
    for how in [4_u8, 5, 6, 7, 12, 13] {
        let pieces = said.iter().map(|greeting| piece(0, &wire::encode(greeting)));
        let right = [piece(16, &[0]), piece(16, &[1; 65]), piece(32, &[4; 32]), piece(32, &[])];
        seeds.extend(pieces.chain(right).map(|piece| [&[how][..], &piece].concat()));
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verifies that a stranger is refused because it has no token, and not for another error.
    #[test]
    fn stranger_is_admitted_by_node_without_token() {
        for (is_caller, greeting) in [(0, [16, 1, 0, 0]), (1, [32, 0, 0, 0])] {
            let with = |token: u8| [&[is_caller | 4 | token][..], &greeting].concat();
            assert!(is_let_in(&with(8)));
            assert!(!is_let_in(&with(0)));
        }
    }
}

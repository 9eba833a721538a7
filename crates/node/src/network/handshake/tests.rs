//! Tests of handshakes over real sockets, between nodes that may and may not connect.

use std::sync::Mutex;

use hoplite_proto::{
    id::Instance,
    wire::{Fetch, FetchTarget, HEADER_BYTES, VERSION, WireError},
};
use tokio::{io::AsyncReadExt, net::TcpListener};

use super::{
    acceptor::{Accepted, accept},
    *,
};
use crate::network::{connection_limit::ConnectionLimit, join, proofs::Admitted};

mod certified;

fn identity(token: Option<&str>) -> Identity {
    let key = NodeKey::new().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    Identity {
        member: Member { id: key.id(), address, place: None },
        key,
        cluster: "test".into(),
        own_cluster: Arc::new(OwnCluster::new().unwrap()),
        tokens: token.into_iter().map(|token| Token::from(token.to_string())).collect(),
        admission: String::new(),
        no_encryption: false,
        silence: SILENCE_MAX,
        turns: Arc::default(),
    }
}

/// Places without a limit across connections.
fn place(node: NodeId) -> Result<ConnectionPermit, LinkError> {
    Arc::<ConnectionLimit>::default().take(node, 1)
}

/// The results of a handshake on both sides.
async fn meet(
    one: &Identity,
    two: &Identity,
    role: Role,
    target: Option<NodeId>,
) -> (Result<PeerConnection, LinkError>, Result<Accepted, LinkError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = async {
        let (stream, _) = listener.accept().await.unwrap();
        accept(two, stream, |_, _, _| None, place).await
    };
    tokio::join!(initiate(one, address, role, target), acceptor)
}

/// Both ends of a connection after a successful handshake.
async fn met(one: &Identity, two: &Identity, role: Role) -> (PeerConnection, PeerConnection) {
    let (calling, acceptor) = meet(one, two, role, Some(two.member.id)).await;
    let Accepted::Handshake(acceptor) = acceptor.unwrap() else {
        panic!("a handshake, not a resumption")
    };
    (calling.unwrap(), acceptor)
}

fn refusal<T: std::fmt::Debug>(result: Result<T, LinkError>) -> String {
    match result.unwrap_err() {
        LinkError::Refused(said) | LinkError::Revoked(said) => said,
        replaced @ LinkError::Replaced { .. } => replaced.to_string(),
        other => panic!("{other}"),
    }
}

/// Resumes a session with a request; returns the results of both sides.
async fn again(
    one: &Identity,
    two: &Identity,
    session: &SharedSecret,
    admit: impl Fn(NodeId, &[u8; 16], &MacBytes) -> Option<SharedSecret>,
) -> (Result<Channel, LinkError>, Result<Accepted, LinkError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let first = frame::frame(FrameKind::Fetch, 5, &question());
    let acceptor = async {
        let (stream, _) = listener.accept().await.unwrap();
        accept(two, stream, admit, place).await
    };
    let stream = connect(address).await.unwrap();
    tokio::join!(resume(one, stream, two.member.id, session, &first), acceptor)
}

fn question() -> Fetch {
    let instance = Instance { node: NodeId(2), serial: 1 };
    let (id, ranges) = ("x".parse().unwrap(), Vec::new());
    Fetch {
        what: FetchTarget::Copy { id, instance, ranges, ordered: false },
        credit: 1,
        frame: 16_384,
        more: false,
    }
}

#[tokio::test]
async fn handshake_succeeds_with_and_without_encryption() {
    for no_encryption in [false, true] {
        let [one, two] = [1, 2].map(|_| Identity { no_encryption, ..identity(Some("secret")) });
        let (mut calling, mut acceptor) = met(&one, &two, Role::Control).await;
        assert_eq!((calling.member, acceptor.member), (two.member, one.member));
        assert!(calling.round_trip.is_some());
        calling.channel.send_body(FrameKind::Control, &7_u32).await.unwrap();
        assert_eq!(acceptor.channel.receive_body::<u32>(FrameKind::Control).await.unwrap(), 7);
        assert_eq!(calling.channel.seal.is_disabled(), no_encryption);
    }
}

/// A node whose cluster has lost a member.
fn bereaved() -> Identity {
    let me = identity(None);
    me.own_cluster.member_lost();
    me
}

#[tokio::test]
async fn nodes_of_starting_clusters_agree_on_one_cluster_id() {
    let nodes = [1, 2, 3].map(|_| identity(None));
    let lowest = nodes.iter().map(|node| node.own_cluster.id().number).min().unwrap();
    for (one, two, target) in [(0, 1, None), (1, 2, None), (2, 0, Some(nodes[0].member.id))] {
        let (near, far) = meet(&nodes[one], &nodes[two], Role::Join, target).await;
        assert!(near.is_ok() && far.is_ok());
        assert_eq!(nodes[one].own_cluster.id(), nodes[two].own_cluster.id());
    }
    assert_eq!(nodes[0].own_cluster.id().number, lowest);
}

#[tokio::test]
async fn node_whose_cluster_lost_a_member_is_refused_by_another_cluster_at_a_configured_address() {
    let one = bereaved();
    for two in [identity(None), bereaved()] {
        let before = [&one, &two].map(|node| node.own_cluster.id());
        let (near, far) = meet(&one, &two, Role::Join, None).await;
        let text = near.unwrap_err().to_string();
        for said in [two.member.id.to_string(), before[0].to_string(), before[1].to_string()] {
            assert!(text.contains(&said), "{text}");
        }
        let LinkError::OtherCluster { node, address, theirs, ours } = far.unwrap_err() else {
            panic!("another error")
        };
        assert_eq!((node, address), (one.member.id, one.member.address));
        assert_eq!([theirs, ours], before);
        assert_eq!([&one, &two].map(|node| node.own_cluster.id()), before);
    }
}

#[tokio::test]
async fn fresh_node_joins_a_cluster_that_lost_a_member_and_then_no_other() {
    let (fresh, one, two) = (identity(None), bereaved(), bereaved());
    assert!(meet(&fresh, &one, Role::Join, None).await.0.is_ok());
    assert_eq!(fresh.own_cluster.id(), one.own_cluster.id());
    let refused = meet(&fresh, &two, Role::Join, None).await.0.unwrap_err();
    assert!(matches!(refused, LinkError::OtherCluster { .. }), "{refused}");
}

#[tokio::test]
async fn parts_of_one_cluster_meet_again_after_both_lost_members() {
    let (one, two) = (identity(None), identity(None));
    for target in [None, None, Some(two.member.id)] {
        assert!(meet(&one, &two, Role::Join, target).await.0.is_ok());
        one.own_cluster.member_lost();
        two.own_cluster.member_lost();
    }
    // A member can have missed that the id has changed: its node id is known.
    let three = bereaved();
    assert!(meet(&one, &three, Role::Control, Some(three.member.id)).await.0.is_ok());
    assert_eq!(one.own_cluster.id(), three.own_cluster.id());
}

#[tokio::test]
async fn resumed_session_carries_the_request() {
    for token in [None, Some("secret")] {
        let (one, two) = (identity(token), identity(token));
        let (calling, acceptor) = met(&one, &two, Role::Control).await;
        let admitted = Mutex::new(Admitted::new(acceptor.session));
        let admit = |node, nonce: &[u8; 16], pass: &MacBytes| {
            assert_eq!(node, one.member.id);
            admitted.lock().unwrap().admit(nonce, pass)
        };
        let (near, far) = again(&one, &two, &calling.session, admit).await;
        near.unwrap();
        let Ok(Accepted::Resumed(node, mut channel, ..)) = far else { panic!("{far:?}") };
        assert_eq!(node, one.member.id);
        assert_eq!(channel.receive_body::<Fetch>(FrameKind::Fetch).await.unwrap(), question());
    }
}

/// Goal: a member at its limit of connections is refused with the reason, after a handshake and
/// after a resumption.
#[tokio::test]
async fn connection_beyond_the_limit_is_refused_with_reason() {
    let (one, two) = (identity(Some("secret")), identity(Some("secret")));
    let (calling, acceptor) = met(&one, &two, Role::Control).await;
    let admitted = Mutex::new(Admitted::new(acceptor.session));
    let admit = |_, nonce: &[u8; 16], pass: &MacBytes| admitted.lock().unwrap().admit(nonce, pass);
    let places = Arc::<ConnectionLimit>::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let first = frame::frame(FrameKind::Fetch, 5, &question());
    let mut held = Vec::new();
    for is_full in [false, true] {
        for is_resumed in [false, true] {
            let near = async {
                if is_resumed {
                    let stream = connect(address).await.unwrap();
                    resume(&one, stream, two.member.id, &calling.session, &first).await.map(drop)
                } else {
                    initiate(&one, address, Role::Payload, None).await.map(drop)
                }
            };
            let far = async {
                let (stream, _) = listener.accept().await.unwrap();
                accept(&two, stream, admit, |node| places.take(node, 2)).await
            };
            let (near, far) = tokio::join!(near, far);
            if is_full {
                assert!(refusal(near).contains("the limit per member"));
                assert!(matches!(far, Err(LinkError::Full(node, 2)) if node == one.member.id));
            } else {
                near.unwrap();
                held.push(far.unwrap());
            }
        }
    }
    held.clear();
    assert!(places.take(one.member.id, 1).is_ok(), "each connection that ends frees its place");
    let (met, _) = met(&one, &two, Role::Control).await;
    assert!(met.permit.is_none(), "control connections take no place");
}

#[tokio::test]
async fn unknown_session_is_refused_and_wrong_peer_detected() {
    let (one, two) = (identity(None), identity(None));
    let (calling, _called) = met(&one, &two, Role::Control).await;
    let (near, far) = again(&one, &two, &calling.session, |_, _, _| None).await;
    assert_eq!(refusal(near), "unknown session: repeat the handshake");
    assert!(far.is_err());
    let wrong = |_, _: &[u8; 16], _: &MacBytes| Some(SharedSecret::new([1; 32], None));
    let (near, _) = again(&one, &two, &calling.session, wrong).await;
    assert!(matches!(near, Err(LinkError::Stranger)));
}

#[tokio::test]
async fn wrong_cluster_or_replaced_node_is_reported() {
    let two = Identity { cluster: "c".into(), ..identity(None) };
    let of_another = Identity { cluster: "say \"two\"".into(), ..identity(None) };
    let (calling, acceptor) = meet(&of_another, &two, Role::Control, None).await;
    let told = "this is a node of cluster \"c\", not \"say \\\"two\\\"\": set the same cluster \
                name on both";
    assert_eq!([refusal(calling), refusal(acceptor)], [told, told]);
    let one = Identity { cluster: "c".into(), ..identity(None) };
    let (calling, acceptor) = meet(&one, &two, Role::Control, Some(NodeId(3))).await;
    let told = format!("node {} has replaced node 0000000000000003 at this address", two.member.id);
    assert_eq!(refusal(calling), told);
    // This does not count as a stranger: the initiator looked for another node.
    assert!(matches!(acceptor, Err(LinkError::Declined(said)) if said == told));
}

#[tokio::test]
async fn wrong_or_missing_token_is_refused_on_both_sides() {
    let told = "the initiator did not prove this cluster's token: set the same token on all nodes";
    for (ours, theirs) in [(Some("right"), None), (Some("right"), Some("wrong"))] {
        let (calling, acceptor) = meet(&identity(theirs), &identity(ours), Role::Join, None).await;
        assert_eq!([refusal(calling), refusal(acceptor)], [told, told]);
    }
    let (calling, acceptor) =
        meet(&identity(Some("right")), &identity(None), Role::Join, None).await;
    assert!(refusal(calling).contains("the acceptor has none"));
    assert!(acceptor.is_err());
}

#[tokio::test]
async fn token_rotation_works_with_two_tokens() {
    let with = |tokens: &[&str]| Identity {
        tokens: tokens.iter().map(|token| Token::from(token.to_string())).collect(),
        ..identity(None)
    };
    let all = [with(&["old"]), with(&["old", "new"]), with(&["new", "old"]), with(&["new"])];
    for (at, one) in all.iter().enumerate() {
        for (other, two) in all.iter().enumerate() {
            let (calling, acceptor) = meet(one, two, Role::Join, None).await;
            let may = at.abs_diff(other) < 3;
            assert_eq!((calling.is_ok(), acceptor.is_ok()), (may, may), "{at} calls {other}");
        }
    }
}

#[tokio::test]
async fn id_that_does_not_match_the_key_is_refused() {
    let (victim, two) = (identity(Some("secret")), identity(Some("secret")));
    let liar = Identity { member: victim.member, ..identity(Some("secret")) };
    // Its proof covers the claimed id, as if it had the victim's key, and not the id of its own
    // key.
    let (calling, acceptor) = meet(&liar, &two, Role::Control, Some(two.member.id)).await;
    assert!(calling.is_err() && acceptor.is_err());
    let open = identity(None);
    let liar = Identity { tokens: Vec::new(), ..liar };
    let (calling, _) = meet(&liar, &open, Role::Control, None).await;
    assert!(refusal(calling).contains("its key belongs to"));
}

#[tokio::test]
async fn mismatched_encryption_is_refused_with_reason() {
    let plain = Identity { no_encryption: true, ..identity(None) };
    let (calling, _) = meet(&identity(None), &plain, Role::Join, None).await;
    assert!(refusal(calling).contains("the acceptor sends without encryption (--no-encryption)"));
}

/// Goal: a listener can't use the proofs of a node that connects to it to be admitted elsewhere.
/// Method: it takes the node's greeting and proofs out of the TLS connection, and sends them to the
/// node itself and to another node, under the node's id and under its own.
#[tokio::test]
async fn proofs_can_be_neither_reflected_nor_relayed() {
    let (victim, other) = (identity(Some("secret")), identity(Some("secret")));
    let attacker = identity(None);
    let heard = async |stream| {
        let mut secured = attacker.key.accept(stream, None).await.unwrap();
        let Greeting::Hello(hello) = receive_greeting(&mut secured.stream).await.unwrap() else {
            panic!()
        };
        hello
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let lured = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        receive_secure(&mut stream).await.unwrap();
        stream.write_all(&frame::bare(FrameKind::Secure, 0, 0)).await.unwrap();
        heard(stream).await
    };
    let (_, hello) = tokio::join!(initiate(&victim, address, Role::Join, None), lured);
    for target in [&victim, &other] {
        for member in [victim.member, attacker.member] {
            let said = Hello { member, target: None, ..hello.clone() };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let calling = async {
                let mut stream = connect(address).await.unwrap();
                stream.write_all(&frame::bare(FrameKind::Secure, 0, 0)).await.unwrap();
                receive_secure(&mut stream).await.unwrap();
                let mut secured = attacker.key.initiate(stream, None).await.unwrap();
                send_greeting(&mut secured.stream, &Greeting::Hello(said)).await.unwrap();
                receive_greeting(&mut secured.stream).await.unwrap()
            };
            let acceptor = async {
                let (stream, _) = listener.accept().await.unwrap();
                accept(target, stream, |_, _, _| None, place).await
            };
            let (told, result) = tokio::join!(calling, acceptor);
            assert!(matches!(told, Greeting::Refused(_)), "nothing but the refusal is sent");
            assert!(refusal(result).contains("did not prove this cluster's token"));
        }
    }
}

#[tokio::test]
async fn other_protocols_and_versions_are_named() {
    for (accept, told) in [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec(), "begins with \"HTTP\""),
        (
            {
                let mut bytes = frame::bare(FrameKind::Secure, 0, 0);
                bytes[4] = VERSION + 1;
                bytes
            },
            "install the same release on both",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let one = identity(None);
        let answering = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; HEADER_BYTES]).await.unwrap();
            stream.write_all(&accept).await.unwrap();
        };
        let (calling, ()) = tokio::join!(initiate(&one, address, Role::Join, None), answering);
        let error = calling.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[tokio::test]
async fn both_sides_report_both_versions() {
    let (both, other) = (identity(None), VERSION + 1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = async {
        let (stream, _) = listener.accept().await.unwrap();
        accept(&both, stream, |_, _, _| None, place).await
    };
    let initiating = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut bytes = frame::bare(FrameKind::Secure, 0, 0);
        bytes[4] = other;
        stream.write_all(&bytes).await.unwrap();
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).await.unwrap();
        header
    };
    let (accepted, header) = tokio::join!(accepting, initiating);
    let error = accepted.unwrap_err();
    assert!(matches!(error, LinkError::Wire(WireError::OtherVersion { .. })), "{error}");
    assert!(error.to_string().contains(&format!("version {other}, but this node uses {VERSION}")));
    assert_eq!(header[4], VERSION, "the initiator reads this node's version");
}

#[tokio::test]
async fn a_check_of_a_peer_changes_neither_cluster() {
    let visitor = Identity { own_cluster: Arc::new(OwnCluster::visitor()), ..identity(Some("a")) };
    for (peer, reason) in [
        (identity(Some("a")), None),
        (identity(Some("b")), Some("did not prove this cluster's token")),
        (
            Identity { cluster: "c".into(), ..identity(Some("a")) },
            Some("this is a node of cluster"),
        ),
    ] {
        let before = peer.own_cluster.id();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepting = async {
            let (stream, _) = listener.accept().await.unwrap();
            accept(&peer, stream, |_, _, _| None, place).await
        };
        let (accepted, checked) = tokio::join!(accepting, join::check(&visitor, &address));
        match reason {
            None => assert_eq!(checked, Ok(peer.member.id)),
            Some(reason) => assert!(checked.unwrap_err().contains(reason)),
        }
        assert_eq!(accepted.is_ok(), reason.is_none());
        assert_eq!(peer.own_cluster.id(), before);
    }
}

//! Tests of handshakes between nodes with certificates.

use super::*;
use crate::{
    config::CertificateFiles,
    network::{
        certificates::read_all,
        tests::own_ca::{Ca, hours},
    },
};

/// The identity of a node started with these files.
fn certified(files: &CertificateFiles) -> Identity {
    let (own, trust) = read_all(files).unwrap();
    let key = NodeKey::certified(own, trust).unwrap();
    let member = Member { id: key.id(), ..identity(None).member };
    Identity { member, key, ..identity(None) }
}

#[tokio::test]
async fn nodes_of_one_ca_connect_and_resume() {
    let ca = Ca::new();
    let [one, two] = [(); 2].map(|()| ca.node(hours(-1, 1)).0);
    for no_encryption in [false, true] {
        let [one, two] = [&one, &two].map(|it| Identity { no_encryption, ..certified(it) });
        let (mut calling, mut acceptor) = met(&one, &two, Role::Control).await;
        assert_eq!((calling.member, acceptor.member), (two.member, one.member));
        calling.channel.send_body(FrameKind::Control, &7_u32).await.unwrap();
        assert_eq!(acceptor.channel.receive_body::<u32>(FrameKind::Control).await.unwrap(), 7);
        assert!(calling.session.shown.is_some() && acceptor.session.shown.is_some());
        let admitted = Mutex::new(Admitted::new(acceptor.session));
        let admit =
            |_, nonce: &[u8; 16], pass: &MacBytes| admitted.lock().unwrap().admit(nonce, pass);
        let (near, far) = again(&one, &two, &calling.session, admit).await;
        near.unwrap();
        let Ok(Accepted::Resumed(node, _, session, _)) = far else { panic!("{far:?}") };
        assert_eq!(node, one.member.id);
        assert!(session.shown.is_some(), "later connections have the certificate too");
    }
}

#[tokio::test]
async fn each_start_has_its_own_unforgeable_id() {
    let ca = Ca::new();
    let (files, _) = ca.node(hours(-1, 1));
    let [one, again] = [(); 2].map(|()| certified(&files));
    assert_ne!(one.member.id, again.member.id);
    met(&one, &again, Role::Control).await;
    let liar = certified(&ca.node(hours(-1, 1)).0);
    let liar = Identity { member: one.member, ..liar };
    let (calling, acceptor) = meet(&liar, &again, Role::Control, None).await;
    assert!(refusal(calling).contains("its key belongs to") && acceptor.is_err());
    let (calling, _) = meet(&again, &liar, Role::Control, Some(one.member.id)).await;
    assert!(refusal(calling).contains("has replaced node"), "the id that it claims is not its own");
}

/// Goal: both the rejecting side and the rejected side report what is wrong with a certificate.
/// Method: an initiator, then an acceptor, presents each.
#[tokio::test]
async fn invalid_certificate_is_reported_on_both_sides() {
    let (ca, foreign) = (Ca::new(), Ca::new());
    let (good, _) = ca.node(hours(-1, 1));
    let (revoked, serial) = ca.node(hours(-1, 1));
    let good = CertificateFiles { crl: Some(ca.write("crl.pem", &ca.list(&[serial]))), ..good };
    let (of_another, _) = foreign.node(hours(-1, 1));
    let of_another = CertificateFiles { ca: good.ca.clone(), ..of_another };
    for (bad, said, told) in [
        (ca.node(hours(-2, -1)).0, "has expired", "by the peer's clock it has expired"),
        (
            ca.node(hours(1, 2)).0,
            "is not valid yet",
            "by the peer's clock it has expired or is not valid yet",
        ),
        (of_another, "was not issued by a CA in", "no CA that the peer trusts issued it"),
        (revoked, "is revoked by", "the peer's revocation list contains it"),
        (ca.client(), "is not for both", "it is not for both"),
    ] {
        let told = format!("the certificate {}: {told}", bad.certificate.display());
        let (bad, good) = (certified(&bad), certified(&good));
        let says = |error: LinkError| {
            assert!(is_elsewhere(&error), "the error does not cause retries");
            let LinkError::Certificate(error) = error else { panic!("{error:?}") };
            assert!(error.starts_with(said), "{error}");
        };
        let tells = |said: String| assert!(said.contains(&told), "{said}");
        let (calling, acceptor) = meet(&bad, &good, Role::Control, None).await;
        tells(refusal(calling));
        says(acceptor.unwrap_err());
        let (calling, acceptor) = meet(&good, &bad, Role::Control, None).await;
        says(calling.unwrap_err());
        tells(refusal(acceptor));
    }
}

#[tokio::test]
async fn nodes_with_and_without_certificates_refuse_each_other() {
    let ca = Ca::new();
    let (with, without) = (certified(&ca.node(hours(-1, 1)).0), identity(Some("secret")));
    let (calling, acceptor) = meet(&without, &with, Role::Join, None).await;
    for said in [refusal(calling), refusal(acceptor)] {
        assert!(
            said.contains("has none: start that node with --certificate, --key and --ca"),
            "{said}"
        );
    }
    let (calling, acceptor) = meet(&with, &without, Role::Join, None).await;
    for said in [refusal(calling), refusal(acceptor)] {
        assert!(said.contains("configure certificates, or one token, on all nodes"), "{said}");
    }
}

#[tokio::test]
async fn other_cluster_of_same_ca_is_refused() {
    let ca = Ca::new();
    let one = Identity { cluster: "one".into(), ..certified(&ca.node(hours(-1, 1)).0) };
    let (calling, _) = meet(&one, &certified(&ca.node(hours(-1, 1)).0), Role::Join, None).await;
    assert!(refusal(calling).starts_with("this is a node of cluster \"test\", not \"one\":"));
}

/// Goal: an initiator without a certificate gets no further than TLS, whatever it claims.
#[tokio::test]
async fn initiator_without_certificate_is_refused() {
    let ca = Ca::new();
    let two = certified(&ca.node(hours(-1, 1)).0);
    let one = certified(&ca.node(hours(-1, 1)).0);
    let stranger = Identity { key: one.key.without_certificate(), ..one };
    let (calling, acceptor) = meet(&stranger, &two, Role::Control, None).await;
    assert!(calling.is_err());
    let LinkError::Certificate(said) = acceptor.unwrap_err() else { panic!("it was admitted") };
    assert!(said.starts_with("is missing"), "{said}");
}

//! Tests of certificate files that are accepted or rejected, and of changing revocation lists.

use std::{fs, os::unix::fs::PermissionsExt};

use super::*;
use crate::network::tests::own_ca::{Ca, hours};

fn refused(files: &CertificateFiles) -> String {
    match load(files).unwrap_err() {
        Error::Certificates(said) => said,
        other => panic!("{other}"),
    }
}

#[test]
fn errors_name_the_file_the_problem_and_the_fix() {
    let (ca, foreign) = (Ca::new(), Ca::new());
    let (good, serial) = ca.node(hours(-1, 1));
    load(&good).unwrap();
    let (other, _) = ca.node(hours(-1, 1));
    let garbage = ca.write("garbage", "not a PEM file");
    let damaged = ca.write("damaged", "-----BEGIN CERTIFICATE-----\n???\n");
    let encrypted = ca.write(
        "encrypted",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let revoked = ca.write("crl.pem", &ca.list(&[serial]));
    let of_another = ca.write("other.pem", &foreign.list(&[]));
    let open = ca.write("open.key", &fs::read_to_string(&good.key).unwrap());
    fs::set_permissions(&open, PermissionsExt::from_mode(0o644)).unwrap();
    let writable = |name: &str, text: &str| {
        let path = ca.write(name, text);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        path
    };
    let open_ca = writable("open.crt", &fs::read_to_string(&good.ca).unwrap());
    let open_list = writable("open.pem", &ca.list(&[]));
    let missing = ca.folder.join("missing");
    let with = |change: &dyn Fn(&mut CertificateFiles)| {
        let mut files = good.clone();
        change(&mut files);
        refused(&files)
    };
    let expired = ca.node(hours(-2, -1)).0;
    let future = ca.node(hours(1, 2)).0;
    for (said, file, what) in [
        (with(&|files| files.certificate = missing.clone()), &missing, "the certificate"),
        (with(&|files| files.key = missing.clone()), &missing, "the key"),
        (with(&|files| files.ca = missing.clone()), &missing, "the CA"),
        (with(&|files| files.crl = Some(missing.clone())), &missing, "the revocation list"),
        (with(&|files| files.ca = ca.folder.clone()), &ca.folder, "not a regular file"),
        (with(&|files| files.ca = garbage.clone()), &garbage, "contains no certificate"),
        (with(&|files| files.ca = damaged.clone()), &damaged, "is corrupt"),
        (with(&|files| files.certificate = garbage.clone()), &garbage, "contains no certificate"),
        (with(&|files| files.key = garbage.clone()), &garbage, "contains no private key"),
        (with(&|files| files.key = encrypted.clone()), &encrypted, "decrypt it"),
        (with(&|files| files.crl = Some(garbage.clone())), &garbage, "contains no list"),
        (
            with(&|files| files.key = other.key.clone()),
            &other.key,
            "does not match the certificate",
        ),
        (with(&|files| files.key = open.clone()), &open, "chmod 600"),
        (with(&|files| files.ca = open_ca.clone()), &open_ca, "every user can write the CA"),
        (with(&|files| files.crl = Some(open_list.clone())), &open_list, "chmod o-w"),
        (
            with(&|files| files.ca = foreign.folder.join("ca.crt")),
            &good.certificate,
            "not issued by a CA in",
        ),
        (with(&|files| files.crl = Some(revoked.clone())), &good.certificate, "is revoked by"),
        (
            with(&|files| files.crl = Some(of_another.clone())),
            &of_another,
            "can't be checked against",
        ),
        (refused(&expired), &expired.certificate, "has expired"),
        (refused(&future), &future.certificate, "is not valid yet"),
        (refused(&ca.client()), &ca.folder, "not for both serverAuth and clientAuth"),
    ] {
        assert!(said.contains(what) && said.contains(&file.display().to_string()), "{said}");
    }
}

#[test]
fn valid_list_comes_into_force_and_invalid_one_does_not() {
    let (ca, foreign) = (Ca::new(), Ca::new());
    let (mine, _) = ca.node(hours(-1, 1));
    let (theirs, serial) = ca.node(hours(-1, 1));
    let crl = ca.write("crl.pem", &ca.list(&[]));
    let (_, trust) = load(&CertificateFiles { crl: Some(crl), ..mine }).unwrap();
    let shown = PeerCertificate::new(&certificates("certificate", &theirs.certificate).unwrap(), 0);
    assert!(!trust.revokes(&shown));
    trust.read_again();
    assert_eq!((trust.list_number(), trust.revokes(&shown)), (0, false), "it is the same list");
    for no_list in ["", "garbage", &foreign.list(&[serial])] {
        ca.write("crl.pem", no_list);
        trust.read_again();
        assert_eq!((trust.list_number(), trust.revokes(&shown)), (0, false));
        assert!(trust.list().unwrap().1.is_some(), "the problem is reported");
    }
    ca.write("crl.pem", &ca.list(&[serial]));
    trust.read_again();
    assert_eq!((trust.list_number(), trust.revokes(&shown)), (1, true));
    assert_eq!(trust.list().unwrap().1, None);
    fs::remove_file(ca.folder.join("crl.pem")).unwrap();
    trust.read_again();
    assert!(trust.check(&shown.chain[0], &[], UnixTime::now()).is_err(), "the list stays in force");
    assert!(trust.list().unwrap().1.unwrap().contains("can't be read"));
}

/// Goal: a copy of an old file readmits no revoked node. Method: lists with several numbers, in and
/// out of order.
#[test]
fn older_list_does_not_come_into_force() {
    let ca = Ca::new();
    let (mine, _) = ca.node(hours(-1, 1));
    let (theirs, serial) = ca.node(hours(-1, 1));
    let first = ca.numbered_list(9, &[]);
    let crl = ca.write("crl.pem", &first);
    let (_, trust) = load(&CertificateFiles { crl: Some(crl), ..mine }).unwrap();
    let shown = PeerCertificate::new(&certificates("certificate", &theirs.certificate).unwrap(), 0);
    ca.write("crl.pem", &ca.numbered_list(256, &[serial]));
    trust.read_again();
    assert_eq!((trust.list_number(), trust.revokes(&shown)), (1, true));
    for older in [first, ca.numbered_list(255, &[])] {
        ca.write("crl.pem", &older);
        trust.read_again();
        assert_eq!((trust.list_number(), trust.revokes(&shown)), (1, true));
        let problem = trust.list().unwrap().1.unwrap();
        assert!(problem.contains("is older (CRL number 0x"), "{problem}");
        assert!(problem.contains("than the previous list (CRL number 0x0100 of"), "{problem}");
    }
    // A certificate on hold may be removed from the list by a newer list.
    ca.write("crl.pem", &ca.numbered_list(257, &[]));
    trust.read_again();
    assert_eq!((trust.list_number(), trust.list().unwrap().1), (2, None));
}

/// Goal: a connection ends when its peer is revoked, even if the peer is not a member.
#[tokio::test]
async fn revocation_completes_waits() {
    let ca = Ca::new();
    let (mine, _) = ca.node(hours(-1, 1));
    let (theirs, serial) = ca.node(hours(-1, 1));
    let crl = ca.write("crl.pem", &ca.list(&[]));
    let (_, trust) = load(&CertificateFiles { crl: Some(crl), ..mine }).unwrap();
    let shown = PeerCertificate::new(&certificates("certificate", &theirs.certificate).unwrap(), 0);
    let wait_until_revoked = trust.wait_until_revoked(&shown);
    tokio::pin!(wait_until_revoked);
    assert!(at_once(&mut wait_until_revoked).await.is_none());
    for (revoked, is_revoked) in [(99, false), (serial, true)] {
        ca.write("crl.pem", &ca.list(&[revoked]));
        trust.read_again();
        assert_eq!(at_once(&mut wait_until_revoked).await.is_some(), is_revoked);
    }
}

/// Polls a future once.
async fn at_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// Goal: expiry alone does not end a connection; revocation after expiry does.
#[test]
fn certificate_is_verified_as_of_its_handshake() {
    let ca = Ca::new();
    let (mine, _) = ca.node(hours(-1, 1));
    let (theirs, serial) = ca.node(hours(-2, -1));
    let crl = ca.write("crl.pem", &ca.list(&[]));
    let (_, trust) = load(&CertificateFiles { crl: Some(crl), ..mine }).unwrap();
    let chain = certificates("certificate", &theirs.certificate).unwrap();
    let hour_and_half = std::time::Duration::from_secs(5400);
    let then = UnixTime::since_unix_epoch(
        std::time::Duration::from_secs(UnixTime::now().as_secs()) - hour_and_half,
    );
    let shown = PeerCertificate { at: then, ..PeerCertificate::new(&chain, 0) };
    for (revoked, is_revoked) in [(vec![99], false), (vec![99, serial], true)] {
        ca.write("crl.pem", &ca.list(&revoked));
        trust.read_again();
        assert_eq!(trust.revokes(&shown), is_revoked);
    }
}

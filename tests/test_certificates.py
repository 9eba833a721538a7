"""Certificates instead of a token: which nodes they admit, and revocation."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from commands import run
from hoplite import Node, _native, testing
from hoplite.tools import certificates
from support import SOON, Later, bounded, eventually, same

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hoplite import Client
    from hoplite.node_status import RevocationStatus

HOUR = 3600

# The bound that the page on security documents, in seconds.
REVOKED_WITHIN = 5.0

REVOKED = pytest.mark.faults("a member is revoked, and keeps connecting")


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    """The folder of a CA."""
    folder = tmp_path / "ca"
    certificates.make_ca(folder)
    return folder


def credentials(ca: Path, name: str, *, crl: bool = True) -> dict[str, Any]:
    """Returns the arguments of a node with a certificate, which is created if it is missing."""
    if not (ca / f"{name}.crt").exists():
        certificates.make_certificate(ca, name)
    files = {"certificate": ca / f"{name}.crt", "key": ca / f"{name}.key", "ca": ca / "ca.crt"}
    return {**files, "crl": ca / "crl.pem"} if crl else files


def revocations(client: Client) -> RevocationStatus:
    """Returns what a node reports about its revocation list."""
    found = client.status()["revocations"]
    assert found is not None
    return found


@pytest.fixture
def three(ca: Path) -> Iterator[list[Node]]:
    """Three nodes of one CA."""
    with ExitStack() as stack:
        nodes: list[Node] = []
        for number in range(3):
            node = Node(join=[node.address for node in nodes[:1]], **credentials(ca, f"host{number}"))
            stack.callback(node.close, 0)
            nodes.append(node)
        testing.wait_for_members(nodes, 3)
        yield nodes


def test_nodes_of_one_ca_broadcast_reduce_and_report_the_admission(three: list[Node], ca: Path) -> None:
    clients = [node.client() for node in three]
    value = np.random.default_rng(1).standard_normal(4 << 20).astype(np.float64)
    ref = clients[0].put(value, name="weights/1")
    gets = [Later(client.get, ref, timeout=SOON) for client in clients[1:]]
    for get in gets:
        same(get.result(), value)
    parts = [client.put(np.full(1 << 20, number, np.float32)) for number, client in enumerate(clients)]
    same(clients[1].get(clients[2].reduce(parts), timeout=SOON), np.full(1 << 20, 3, np.float32))
    facts = clients[0].status()
    assert facts["admission"] == f"certificates of {ca / 'ca.crt'}"
    assert facts["revocations"] == {"file": str(ca / "crl.pem"), "renewed": 0, "problem": None}


def test_status_reports_every_kind_of_admission(ca: Path) -> None:
    for options, text in (
        ({}, "none: no other node can reach this one"),
        ({"listen": "127.0.0.1:0"}, "the secret of this user on this host"),
        ({"token": hoplite.new_token()}, "a token"),
        ({"no_auth": True}, "none: every node that can reach this one may join"),
        (credentials(ca, "one", crl=False), f"certificates of {ca / 'ca.crt'}"),
        (credentials(ca, "one"), f"certificates of {ca / 'ca.crt'}; revocation list {ca / 'crl.pem'}"),
    ):
        with Node(**options) as node:
            assert f"auth     {text}\n" in run("status", "--socket", node.socket).stdout


def test_certificates_can_be_set_by_options_and_by_variables(ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = credentials(ca, "one")
    options = ("--certificate", files["certificate"], "--key", files["key"], "--ca", files["ca"], "--crl", files["crl"])
    with testing.node_process(*map(str, options)) as process:
        for name, file in credentials(ca, "two").items():
            monkeypatch.setenv(f"HOPLITE_{name.upper()}", str(file))
        with Node(join=[process.address]) as node, node.client() as near, process.client() as far:
            testing.wait_for_members([node], 2)
            assert far.get(near.put(b"x" * 100_000), timeout=SOON) == b"x" * 100_000


def test_two_nodes_with_one_certificate_have_different_ids(ca: Path) -> None:
    files = credentials(ca, "one")
    with Node(**files) as first, Node(join=[first.address], **files) as second:
        testing.wait_for_members([first, second], 2)
        assert first.id != second.id


@pytest.mark.faults("nodes of different clusters connect")
def test_a_node_of_another_ca_cluster_or_kind_is_rejected_with_the_reason(ca: Path, tmp_path: Path) -> None:
    certificates.make_ca(tmp_path / "foreign")
    # It trusts this CA but was issued by another: a member of another cluster, or an attacker with valid files of its
    # own.
    both = tmp_path / "both.crt"
    both.write_text((ca / "ca.crt").read_text() + (tmp_path / "foreign" / "ca.crt").read_text())
    foreign = {**credentials(tmp_path / "foreign", "other", crl=False), "ca": both}
    with Node(**credentials(ca, "one")) as node, node.client() as client:
        for options, problem in (
            (foreign, rf"rejects the certificate {foreign['certificate']}: no CA that the peer trusts issued it"),
            (
                credentials(tmp_path / "foreign", "other", crl=False),
                f"was not issued by a CA in {tmp_path}/foreign/ca.crt",
            ),
            ({**credentials(ca, "two"), "cluster": "other"}, "this is a node of cluster"),
            ({"token": hoplite.new_token()}, "start that node with --certificate, --key and --ca"),
            ({}, "start that node with --certificate, --key and --ca"),
        ):
            with pytest.raises(hoplite.JoinError, match=problem):
                Node(join=[node.address], **options)
        assert len(client.status()["members"]) == 1
    with (
        Node(no_auth=True) as node,
        pytest.raises(hoplite.JoinError, match="configure certificates, or one token, on all nodes"),
    ):
        Node(join=[node.address], **credentials(ca, "two"))


@REVOKED
def test_a_node_with_a_revoked_certificate_can_not_join(ca: Path) -> None:
    with Node(**credentials(ca, "one")) as node, node.client() as client:
        revoked = credentials(ca, "two", crl=False)
        certificates.revoke(ca, "two")
        eventually(lambda: revocations(client)["renewed"] == 1)
        with pytest.raises(
            hoplite.JoinError,
            match=rf"the certificate {revoked['certificate']}: the peer's revocation list contains it",
        ):
            Node(join=[node.address], **revoked)
        with pytest.raises(hoplite.InvalidArgument, match=rf"{revoked['certificate']}: it is revoked by {ca}/crl.pem"):
            Node(**credentials(ca, "two"))


@REVOKED
@bounded(REVOKED_WITHIN)
def test_a_revoked_member_is_removed_within_the_documented_time(three: list[Node], ca: Path, within: float) -> None:
    """The member keeps sending requests. It gets no later object, nor the rest of an object in transfer."""
    first, second, third = three
    with first.client() as client, second.client() as other, third.client() as revoked:
        growing = client.create(64 << 20, name="growing")
        late = Later(revoked.get, "growing", timeout=SOON)
        eventually(lambda: bool(revoked.objects()))
        certificates.revoke(ca, "host2")
        since = time.monotonic()
        for one in (client, other):
            eventually(lambda one=one: len(one.status()["members"]) == 2)  # type: ignore[misc]
        assert time.monotonic() - since < within
        assert [lost["reason"] for lost in client.status()["lost"]] == ["its certificate is revoked"]
        growing.discard()
        client.put(b"y" * 100_000, name="late")
        assert other.get("late", timeout=SOON) == b"y" * 100_000
        with pytest.raises(hoplite.HopliteError):
            revoked.get("late", timeout=1)
        with pytest.raises(hoplite.HopliteError):
            late.result()
        assert len(client.status()["members"]) == 2


@pytest.mark.faults("the revocation list is corrupt")
def test_a_corrupt_list_is_reported_and_the_previous_one_stays_in_force(ca: Path) -> None:
    with Node(**credentials(ca, "one")) as node, node.client() as client:
        (ca / "crl.pem").write_text("garbage")
        eventually(lambda: revocations(client)["problem"] is not None)
        assert "contains no list" in str(revocations(client)["problem"])
        assert " is not current: " in run("status", "--socket", node.socket).stdout
        credentials(ca, "two")
        certificates.revoke(ca, "two")
        eventually(lambda: revocations(client)["problem"] is None)
        assert client.status()["barred"] is None


@REVOKED
def test_a_node_revoked_by_its_own_list_reports_it_and_stops(ca: Path) -> None:
    with Node(**credentials(ca, "one")) as node, node.client() as client:
        waiting = Later(client.get, "none", timeout=SOON)
        certificates.revoke(ca, "one")
        eventually(lambda: client.status()["barred"] is not None)
        text = f"certificate revoked: {ca}/crl.pem lists {ca}/one.crt, the certificate of this node"
        assert text in str(client.status()["barred"])
        assert f"barred   {text}" in run("status", "--socket", node.socket).stdout
        with pytest.raises(hoplite.NodeDown, match="certificate revoked"):
            waiting.result()
        assert node.failure is not None
        assert text in node.failure


@REVOKED
def test_a_revoked_node_without_a_list_is_informed_by_the_others(ca: Path) -> None:
    with (
        Node(**credentials(ca, "one")) as node,
        Node(join=[node.address], **credentials(ca, "two", crl=False)) as revoked,
    ):
        testing.wait_for_members([node, revoked], 2)
        with revoked.client() as client:
            certificates.revoke(ca, "two")
            eventually(lambda: client.status()["barred"] is not None)
            barred = str(client.status()["barred"])
            assert f"certificate revoked: node {node.id} reports" in barred
            assert str(ca / "two.crt") in barred
            # That member's list may be wrong, so objects on this node stay usable.
            client.put(b"x", name="here")
            assert client.get("here", timeout=SOON) == b"x"


def issued(ca: Path, odd: str, begin: int, end: int) -> dict[str, Any]:
    """Creates the files of a node whose certificate is valid in the given period, relative to now."""
    name = next(line for line in (ca / "index.txt").read_text().splitlines()).rpartition("/CN=")[2]
    now = int(time.time())
    certificate, key = _native.issue_certificate(
        (name, (ca / "ca.key").read_text()), odd, b"\x42", now + begin, now + end
    )
    (ca / f"{odd}.crt").write_text(certificate)
    (ca / f"{odd}.key").write_text(key)
    (ca / f"{odd}.key").chmod(0o600)
    return credentials(ca, odd)


def test_invalid_certificate_files_are_reported_at_the_start(ca: Path) -> None:
    good, other = credentials(ca, "one"), credentials(ca, "two")
    (ca / "open.key").write_text(good["key"].read_text())
    (ca / "open.key").chmod(0o644)
    for options, text in (
        ({**good, "key": other["key"]}, f"the key {other['key']} does not match the certificate {good['certificate']}"),
        ({**good, "key": ca / "open.key"}, f"other users can read or write the key {ca}/open.key: run chmod 600"),
        ({**good, "ca": ca / "none"}, f"the CA {ca}/none can't be read: No such file"),
        ({**good, "ca": ca / "index.txt"}, f"the CA {ca}/index.txt contains no certificate"),
        ({"certificate": good["certificate"]}, r"certificate \(argument\) is set without key and ca"),
        ({"crl": good["crl"]}, r"crl \(argument\) is set without certificate and key and ca"),
        (
            {**good, "token": hoplite.new_token()},
            r"certificate \(argument\) and token \(argument\) are mutually exclusive",
        ),
        ({**good, "no_auth": True}, r"certificate \(argument\) and no_auth \(argument\) are mutually exclusive"),
        (issued(ca, "old", -2 * HOUR, -HOUR), f"{ca}/old.crt: it has expired: create another"),
        (issued(ca, "new", HOUR, 2 * HOUR), f"{ca}/new.crt: it is not valid yet: set the clocks"),
    ):
        with pytest.raises(hoplite.InvalidArgument, match=text):
            Node(**options)


def test_a_node_with_a_certificate_may_listen_on_all_interfaces(ca: Path) -> None:
    with Node(listen="0.0.0.0:0", advertise="127.0.0.1", **credentials(ca, "one")) as node:
        assert node.address.startswith("127.0.0.1:")


OPENSSL_CONFIG = """
[ca]
default_ca = own
[own]
database = index.txt
serial = serial
crlnumber = crlnumber
new_certs_dir = .
certificate = ca.crt
private_key = ca.key
default_md = sha256
default_days = 7
default_crl_days = 7
policy = any
x509_extensions = node
crl_extensions = list
[any]
commonName = supplied
[node]
basicConstraints = CA:FALSE
extendedKeyUsage = serverAuth,clientAuth
[list]
authorityKeyIdentifier = keyid:always
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[req]
distinguished_name = name
[name]
"""


@REVOKED
def test_a_ca_of_openssl_with_rsa_keys_works(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=SOON)

    (tmp_path / "config").write_text(OPENSSL_CONFIG)
    (tmp_path / "index.txt").touch()
    for file in ("serial", "crlnumber"):
        (tmp_path / file).write_text("01\n")
    new = ("req", "-config", "config", "-newkey", "rsa:2048", "-nodes")
    openssl(*new, "-x509", "-subj", "/CN=own", "-extensions", "authority", "-keyout", "ca.key", "-out", "ca.crt")
    for name in ("one", "two"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl("ca", "-config", "config", "-batch", "-in", f"{name}.csr", "-out", f"{name}.crt")
        (tmp_path / f"{name}.key").chmod(0o600)
    openssl("ca", "-config", "config", "-gencrl", "-out", "crl.pem")
    with (
        Node(**credentials(tmp_path, "one")) as node,
        Node(join=[node.address], **credentials(tmp_path, "two", crl=False)) as other,
        node.client() as client,
        other.client() as far,
    ):
        testing.wait_for_members([node, other], 2)
        assert client.get(far.put(b"z" * 100_000), timeout=SOON) == b"z" * 100_000
        openssl("ca", "-config", "config", "-revoke", "two.crt")
        openssl("ca", "-config", "config", "-gencrl", "-out", "crl.pem")
        eventually(lambda: len(client.status()["members"]) == 1)

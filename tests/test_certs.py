"""`hoplite certs`: a CA in a folder, its certificates and revocations."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import hoplite
from commands import run
from hoplite.tools import certificates

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    """The folder of a CA."""
    folder = tmp_path / "ca"
    certificates.make_ca(folder)
    return folder


def test_an_invalid_number_of_days_is_rejected(tmp_path: Path) -> None:
    for days in (0, -1, 1.5, 10**7):
        with pytest.raises(hoplite.InvalidArgument, match="days"):
            certificates.make_ca(tmp_path / "none", days=days)  # type: ignore[arg-type]
    assert not (tmp_path / "none").exists()


def test_a_certificate_ends_no_later_than_its_ca(tmp_path: Path) -> None:
    certificates.make_ca(tmp_path, days=7)
    certificates.make_certificate(tmp_path, "one")
    index = tmp_path / "index.txt"
    ends = {line.split("\t")[1] for line in index.read_text().splitlines()}
    assert len(ends) == 1
    index.write_text(index.read_text().replace(ends.pop(), "200101000000Z"))
    with pytest.raises(hoplite.InvalidArgument, match="has expired"):
        certificates.make_certificate(tmp_path, "two")
    assert [entry.state for entry in certificates.certificates(tmp_path)] == ["expired"]


def test_the_files_of_a_ca_are_private_and_never_overwritten(ca: Path) -> None:
    certificates.make_certificate(ca, "one")
    assert {file.name for file in ca.iterdir() if file.stat().st_mode & 0o077 == 0} >= {"ca.key", "one.key"}
    before = {file: file.read_text() for file in ca.iterdir()}
    assert "exists" in run("certs", "ca", ca, code=1).stderr
    assert "exists" in run("certs", "node", ca, "one", code=1).stderr
    assert {file: file.read_text() for file in ca.iterdir()} == before
    for name in ("ca", "../one", "", ".hidden", "a b", "x" * 65):
        assert run("certs", "node", ca, name, code=1).stderr.startswith("error: ")


def test_the_commands_create_revoke_and_list(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "ca"
    assert "next: hoplite certs node" in run("certs", "ca", folder).stdout
    for name in ("one", "two"):
        output = run("certs", "node", folder, name, "--days", "7").stdout
        assert (
            f"hoplite node --certificate {folder}/{name}.crt --key {folder}/{name}.key --ca {folder}/ca.crt" in output
        )
    assert "copy" in run("certs", "revoke", folder, "one").stdout
    rows = json.loads(run("certs", "list", folder, "--json").stdout)
    assert [(row["name"], row["state"]) for row in rows] == [("one", "revoked"), ("two", "valid")]
    run("certs", "revoke", folder, rows[1]["serial"].lower())
    assert [line.split()[:2] for line in run("certs", "list", folder).stdout.splitlines()] == [
        ["name", "state"],
        ["one", "revoked"],
        ["two", "revoked"],
    ]
    for which, problem in (("one", "is already revoked"), ("three", "it has issued: one, two")):
        assert problem in run("certs", "revoke", folder, which, code=1).stderr
    assert "hoplite certs ca" in run("certs", "list", tmp_path / "none", code=1).stderr


def test_no_other_user_can_block_a_revocation(ca: Path) -> None:
    """A user that can read the folder can lock it, so the lock is on a file that only its owner can open."""
    ca.chmod(0o755)
    certificates.make_certificate(ca, "one")
    descriptor = os.open(ca, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert [entry.name for entry in certificates.revoke(ca, "one")] == ["one"]
    finally:
        os.close(descriptor)
    readable = {file.name for file in ca.iterdir() if file.stat().st_mode & 0o077}
    assert readable == {"ca.crt", "crl.pem", "one.crt"}


def test_a_lock_held_by_another_process_is_an_error(ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOCK_TIMEOUT_S", 0.1)
    with (ca / certificates.LOCK).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(
            hoplite.HopliteError, match=rf"another process has been using the CA in {ca} for 0.1 s: end"
        ):
            certificates.make_certificate(ca, "one")
        # A listing only reads.
        assert certificates.certificates(ca) == []
    (ca / certificates.LOCK).unlink()
    certificates.certificates(ca)
    assert not (ca / certificates.LOCK).exists()


@pytest.mark.parametrize(
    ("name", "mode", "problem"),
    [
        (".", 0o777, "its group or every user can write {path}: run chmod go-w"),
        (".", 0o770, "its group or every user can write {path}: run chmod go-w"),
        ("ca.key", 0o666, "{path} contains the key of a CA, and other users can read or write it: run chmod 600"),
        ("ca.key", 0o604, "{path} contains the key of a CA, and other users can read or write it: run chmod 600"),
        ("index.txt", 0o666, "every user can write {path}: run chmod o-w"),
        (
            certificates.LOCK,
            0o666,
            "{path} contains the lock of a CA, and other users can read or write it: run chmod 600",
        ),
    ],
)
def test_files_that_other_users_can_write_are_rejected(ca: Path, name: str, mode: int, problem: str) -> None:
    path = ca / name
    path.chmod(mode)
    before = (ca / "crl.pem").read_bytes()
    with pytest.raises(hoplite.InvalidArgument, match=problem.format(path=path)):
        certificates.make_certificate(ca, "one")
    assert not (ca / "one.key").exists()
    assert (ca / "crl.pem").read_bytes() == before


def test_no_ca_is_created_in_a_folder_that_others_can_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "chmod go-w" in run("certs", "ca", tmp_path, code=1).stderr
    assert list(tmp_path.iterdir()) == []


def test_openssl_accepts_the_files(ca: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    for name in ("one", "two"):
        certificates.make_certificate(ca, name)
    certificates.revoke(ca, "two")
    verify = ["openssl", "verify", "-CAfile", "ca.crt", "-CRLfile", "crl.pem", "-crl_check"]
    for name, is_good in (("one", True), ("two", False)):
        for purpose in ("sslserver", "sslclient"):
            done = subprocess.run(
                [*verify, "-purpose", purpose, f"{name}.crt"], cwd=ca, check=False, capture_output=True
            )
            assert (done.returncode == 0) == is_good, done.stderr
    assert (ca / "ca.key").stat().st_mode & 0o777 == 0o600

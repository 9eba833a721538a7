"""A CA of one's own in a folder: its certificate and key, those of nodes, and the list of those that are revoked.

The folder has an `index.txt` as `openssl ca` writes one. Knows no node and no setting; what is in the files is made by
the native half.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hoplite import _native
from hoplite.errors import HopliteError, InvalidArgument
from hoplite.files import check_private, check_trusted, take_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

# What has these names in the folder is not of a node.
CA = "ca"
INDEX = "index.txt"
CRL = "crl.pem"
LOCK = ".lock"

# Longer than the other process can need: a list of a million certificates takes seconds.
LOCK_TIMEOUT_S = 30.0

CA_DAYS = 3650
NODE_DAYS = 365

# A host whose clock is late by less takes a new certificate at once.
CLOCKS_APART_S = 3600

# Two are never the same, and none can be guessed: the first bit is zero, since the number is not negative.
SERIAL_BYTES = 16

# As long as a common name may be. It is the name of two files, and goes into the certificate as that of a host.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")

SERIAL = re.compile(r"[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2})*")

# Where the second half of the century begins, as certificates write times.
LAST_SHORT_YEAR = 2049


class Entry(NamedTuple):
    """A certificate that the CA has issued.

    Attributes:
        name: of the node.
        serial: its serial number, in hex.
        expires: when it ceases to be valid.
        revoked: when it was revoked, if it was.
    """

    name: str
    serial: str
    expires: datetime
    revoked: datetime | None

    @property
    def state(self) -> str:
        """One of "valid", "expired" and "revoked"."""
        if self.revoked is not None:
            return "revoked"
        return "valid" if self.expires > datetime.now(UTC) else "expired"


def make_ca(folder: str | os.PathLike[str], *, days: int = CA_DAYS) -> Path:
    """Makes a CA in a folder, which is made if there is none: ca.crt, ca.key, and crl.pem, which revokes nothing yet.

    Args:
        folder: where; no other user can read what is made of it.
        days: how long the CA is valid, and so all that it issues.

    Returns:
        The path of its certificate.

    Raises:
        HopliteError: a file can't be written.
        InvalidArgument: the folder has a CA, or other users can write it, or the days are not a positive number.
    """
    where = Path(folder).expanduser()
    begin, end = _times(days)
    serial = _serial()
    name = f"Hoplite CA {serial[:4].hex()}"
    with _told(where):
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(where):
            for taken in (f"{CA}.key", f"{CA}.crt", CRL, INDEX):
                if (where / taken).exists():
                    raise InvalidArgument(
                        f"{where / taken} exists, and certificates may depend on it: choose another folder"
                    )
            certificate, key = _native.make_authority(name, serial, begin, end)
            _write(where / f"{CA}.key", key, 0o600)
            _write(where / f"{CA}.crt", certificate, 0o644)
            _write(where / INDEX, _line("V", end, None, serial.hex(), f"{CA}.crt", name), 0o600)
            _write_list(where)
    return where / f"{CA}.crt"


def make_certificate(folder: str | os.PathLike[str], name: str, *, days: int = NODE_DAYS) -> tuple[Path, Path]:
    """Makes the certificate of a node, NAME.crt, and its key, NAME.key.

    Args:
        folder: of the CA.
        name: of the node, as that of its host; it is not compared with any address.
        days: how long it is valid; not longer than the CA.

    Returns:
        The paths of both.

    Raises:
        HopliteError: a file can't be read or written.
        InvalidArgument: the folder has no CA or one that has expired, the name is none or has a certificate there, or
            the days are not a positive number.
    """
    where = Path(folder).expanduser()
    if not NAME.fullmatch(name) or name == CA:
        raise InvalidArgument(
            f"{name!r} is no name of a node: up to 64 letters, digits, '.', '-' and '_', and not {CA!r}"
        )
    begin, end = _times(days)
    with _told(where), _alone(where):
        authority, until = _authority(where)
        paths = where / f"{name}.crt", where / f"{name}.key"
        for path in paths:
            if path.exists():
                raise InvalidArgument(
                    f"{path} exists, and a node may use it: choose another name, or remove {name}.crt and {name}.key "
                    "first"
                )
        serial = _serial()
        end = min(end, until)
        certificate, key = _native.issue_certificate(authority, name, serial, begin, end)
        # First, so that no certificate exists that could not be revoked.
        with (where / INDEX).open("a") as index:
            index.write(_line("V", end, None, serial.hex(), paths[0].name, name))
        _write(paths[1], key, 0o600)
        _write(paths[0], certificate, 0o644)
    return paths


def revoke(folder: str | os.PathLike[str], which: str) -> list[Entry]:
    """Revokes certificates, and writes crl.pem anew.

    Args:
        folder: of the CA.
        which: the name of a node, all of whose certificates are revoked, or the serial number of one.

    Returns:
        Those that were revoked.

    Raises:
        HopliteError: a file can't be read or written.
        InvalidArgument: the CA has issued no such certificate, or has revoked it already.
    """
    where = Path(folder).expanduser()
    serial = which.replace(":", "").upper() if SERIAL.fullmatch(which) else None
    with _told(where), _alone(where):
        _authority(where)
        rows = _rows(where)
        found = [row for row in rows[1:] if _name(row) == which] or [row for row in rows[1:] if row[3] == serial]
        if not found:
            names = ", ".join(sorted({_name(row) for row in rows[1:]})) or "none"
            raise InvalidArgument(f"{where} has issued no certificate {which!r}; it has issued: {names}")
        found = [row for row in found if row[0] != "R"]
        if not found:
            raise InvalidArgument(f"{which!r} is revoked already")
        for row in found:
            row[0], row[2] = "R", _written(int(time.time()))
        _replace(where / INDEX, "".join("\t".join(row) + "\n" for row in rows), 0o600)
        _write_list(where)
    return [_entry(row) for row in found]


def certificates(folder: str | os.PathLike[str]) -> list[Entry]:
    """The certificates that the CA of a folder has issued, the first one first.

    Raises:
        HopliteError: a file can't be read.
        InvalidArgument: the folder has no CA.
    """
    where = Path(folder).expanduser()
    # Whoever changes the list puts another file in its place.
    with _told(where):
        return [_entry(row) for row in _rows(where)[1:]]


def _times(days: int) -> tuple[int, int]:
    try:
        whole = operator.index(days)
    except TypeError:
        whole = 0
    if whole < 1:
        raise InvalidArgument(f"days is {days!r}; it is a whole number from 1 up")
    now = int(time.time())
    end = now + whole * 86_400
    if end >= datetime(9999, 1, 1, tzinfo=UTC).timestamp():
        raise InvalidArgument(f"{days} days are too many: no certificate is valid after the year 9998")
    return now - CLOCKS_APART_S, end


def _serial() -> bytes:
    first, *rest = os.urandom(SERIAL_BYTES)
    # Neither negative nor with a zero before it, which would be written shorter.
    return bytes([first & 0x3F | 0x40, *rest])


def _authority(where: Path) -> tuple[tuple[str, str], int]:
    """The name and the key of the CA, and until when it is valid, in seconds since 1970."""
    ca = _rows(where)[0]
    until = int(_read_time(ca[1]).timestamp())
    if until <= time.time():
        raise InvalidArgument(f"the CA in {where} has expired: make another in another folder (hoplite certs ca)")
    with (where / f"{CA}.key").open() as key:
        check_private(Path(key.name), os.fstat(key.fileno()), "the key of a CA")
        return (_name(ca), key.read()), until


def _write_list(where: Path) -> None:
    authority, until = _authority(where)
    revoked = [(bytes.fromhex(row[3]), int(_read_time(row[2]).timestamp())) for row in _rows(where) if row[0] == "R"]
    now = time.time()
    # A list's number only has to grow.
    text = _native.revoke_certificates(authority, int(now * 1000), revoked, int(now), until)
    _replace(where / CRL, text, 0o644)


def _rows(where: Path) -> list[list[str]]:
    """The lines of the index: state, end, revocation, serial number, file, subject. The first is the CA's own."""
    index = where / INDEX
    if not index.exists():
        raise InvalidArgument(f"{where} has no CA: make one with: hoplite certs ca {where}")
    with index.open() as file:
        check_trusted(index, os.fstat(file.fileno()))
        rows = [line.split("\t") for line in file.read().splitlines()]
    if not rows or any(len(row) != 6 for row in rows) or rows[0][4] != f"{CA}.crt":
        raise InvalidArgument(f"{index} is not as hoplite certs has written it")
    return rows


def _line(state: str, end: int, revoked: int | None, serial: str, file: str, name: str) -> str:
    fields = state, _written(end), "" if revoked is None else _written(revoked), serial.upper(), file, f"/CN={name}"
    return "\t".join(fields) + "\n"


def _name(row: list[str]) -> str:
    return row[5].removeprefix("/CN=")


def _entry(row: list[str]) -> Entry:
    return Entry(_name(row), row[3], _read_time(row[1]), _read_time(row[2]) if row[2] else None)


def _written(seconds: int) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return at.strftime("%y%m%d%H%M%SZ" if at.year <= LAST_SHORT_YEAR else "%Y%m%d%H%M%SZ")


def _read_time(text: str) -> datetime:
    # Of the years with two digits, those of this century.
    whole = text if len(text) > len("yymmddHHMMSSZ") else f"20{text}"
    return datetime.strptime(whole, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _write(path: Path, text: str, mode: int) -> None:
    """Writes a file that does not exist, made with its mode."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _replace(path: Path, text: str, mode: int) -> None:
    """Writes a file, or another in its place: a reader sees the whole of either."""
    made = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    try:
        _write(made, text, mode)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(where: Path) -> Iterator[None]:
    """Keeps other processes of this user from changing the folder; checks that no other user can.

    The lock is on a file that other users can't open. On the folder, any user who can read it could hold the lock.
    """
    check_trusted(where, where.stat(), is_shared=False)
    lock = where / LOCK
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        facts = os.fstat(descriptor)
        check_private(lock, facts, "the lock of a CA")
        owner = where.stat()
        if facts.st_uid == 0 != owner.st_uid:
            # Root, by sudo for instance, has to leave the CA to its owner.
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        if not take_lock(descriptor, LOCK_TIMEOUT_S):
            raise HopliteError(
                f"another process has been using the CA in {where} for {LOCK_TIMEOUT_S:g} s: end it, or try again"
            )
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _told(where: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"{error.filename or where} does not exist: make a CA with: hoplite certs ca {where}"
        ) from None
    except OSError as error:
        raise HopliteError(f"{error.filename or where} can't be used: {error.strerror or error}") from None

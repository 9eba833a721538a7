"""A private CA in a directory: its certificate and key, those of nodes, and the certificate revocation list (CRL).

The directory contains an `index.txt` in the format of `openssl ca`. The native extension creates the certificates, keys
and lists. This module has no access to nodes or settings.
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

# File names that belong to the CA itself, not to a node.
CA = "ca"
INDEX = "index.txt"
CRL = "crl.pem"
LOCK = ".lock"

# Longer than any operation of another process: writing a CRL of a million certificates takes seconds.
LOCK_TIMEOUT_S = 30.0

CA_DAYS = 3650
NODE_DAYS = 365

# New certificates are valid from this long ago, so that a host whose clock is behind accepts them immediately.
CLOCKS_APART_S = 3600

# Random: unique and not guessable. The first bit is zero because a serial number must be positive.
SERIAL_BYTES = 16

# 64 characters is the limit of a common name. The name is also used for two files, and as the host name in the
# certificate.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")

SERIAL = re.compile(r"[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2})*")

# Certificates write years up to this one with two digits, later years with four.
LAST_SHORT_YEAR = 2049


class Entry(NamedTuple):
    """A certificate that the CA has issued.

    Attributes:
        name: name of the node.
        serial: serial number, in hexadecimal.
        expires: end of its validity.
        revoked: time of its revocation; None if it is not revoked.
    """

    name: str
    serial: str
    expires: datetime
    revoked: datetime | None

    @property
    def state(self) -> str:
        """State of the certificate: "valid", "expired" or "revoked"."""
        if self.revoked is not None:
            return "revoked"
        return "valid" if self.expires > datetime.now(UTC) else "expired"


def make_ca(folder: str | os.PathLike[str], *, days: int = CA_DAYS) -> Path:
    """Creates a CA: ca.crt, ca.key, and crl.pem, an empty revocation list.

    Args:
        folder: the directory, created with mode 0700 if it does not exist.
        days: validity of the CA. Certificates that it issues expire no later than the CA.

    Returns:
        The path of its certificate.

    Raises:
        HopliteError: a file can't be written.
        InvalidArgument: the directory already contains a CA, other users can write to it, or `days` is not a positive
            whole number.
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
                        f"{where / taken} exists, and certificates may depend on it: choose another directory"
                    )
            certificate, key = _native.make_authority(name, serial, begin, end)
            _write(where / f"{CA}.key", key, 0o600)
            _write(where / f"{CA}.crt", certificate, 0o644)
            _write(where / INDEX, _line("V", end, None, serial.hex(), f"{CA}.crt", name), 0o600)
            _write_list(where)
    return where / f"{CA}.crt"


def make_certificate(folder: str | os.PathLike[str], name: str, *, days: int = NODE_DAYS) -> tuple[Path, Path]:
    """Creates the certificate of a node, NAME.crt, and its key, NAME.key.

    Args:
        folder: the directory of the CA.
        name: name of the node, for example its host name. Nodes do not compare it with an address.
        days: validity of the certificate. It expires no later than the CA.

    Returns:
        The paths of the certificate and the key.

    Raises:
        HopliteError: a file can't be read or written.
        InvalidArgument: the directory contains no CA, the CA has expired, the name is not valid or already has a
            certificate there, or `days` is not a positive whole number.
    """
    where = Path(folder).expanduser()
    if not NAME.fullmatch(name) or name == CA:
        raise InvalidArgument(
            f"{name!r} is not a valid node name: use up to 64 letters, digits, '.', '-' and '_', start with a letter, "
            f"a digit or '_', and do not use {CA!r}"
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
        # Write the index first: a certificate that is not in the index could not be revoked.
        with (where / INDEX).open("a") as index:
            index.write(_line("V", end, None, serial.hex(), paths[0].name, name))
        _write(paths[1], key, 0o600)
        _write(paths[0], certificate, 0o644)
    return paths


def revoke(folder: str | os.PathLike[str], which: str) -> list[Entry]:
    """Revokes certificates and rewrites crl.pem.

    Args:
        folder: the directory of the CA.
        which: the name of a node, to revoke all of its certificates, or the serial number of one certificate.

    Returns:
        The certificates that this call revoked.

    Raises:
        HopliteError: a file can't be read or written.
        InvalidArgument: the CA has issued no such certificate, or has already revoked it.
    """
    where = Path(folder).expanduser()
    serial = which.replace(":", "").upper() if SERIAL.fullmatch(which) else None
    with _told(where), _alone(where):
        _authority(where)
        rows = _rows(where)
        found = [row for row in rows[1:] if _name(row) == which] or [row for row in rows[1:] if row[3] == serial]
        if not found:
            names = ", ".join(sorted({_name(row) for row in rows[1:]})) or "none"
            raise InvalidArgument(f"the CA in {where} has issued no certificate {which!r}; it has issued: {names}")
        found = [row for row in found if row[0] != "R"]
        if not found:
            raise InvalidArgument(f"{which!r} is already revoked")
        for row in found:
            row[0], row[2] = "R", _written(int(time.time()))
        _replace(where / INDEX, "".join("\t".join(row) + "\n" for row in rows), 0o600)
        _write_list(where)
    return [_entry(row) for row in found]


def certificates(folder: str | os.PathLike[str]) -> list[Entry]:
    """Lists the certificates that the CA in a directory has issued, oldest first.

    Raises:
        HopliteError: a file can't be read.
        InvalidArgument: the directory contains no CA.
    """
    where = Path(folder).expanduser()
    # Without a lock: writers replace the index, or append one line in one write.
    with _told(where):
        return [_entry(row) for row in _rows(where)[1:]]


def _times(days: int) -> tuple[int, int]:
    try:
        whole = operator.index(days)
    except TypeError:
        whole = 0
    if whole < 1:
        raise InvalidArgument(f"days is {days!r}: set a whole number of at least 1")
    now = int(time.time())
    end = now + whole * 86_400
    if end >= datetime(9999, 1, 1, tzinfo=UTC).timestamp():
        raise InvalidArgument(f"{days} days is too long: a certificate must expire before the year 9999")
    return now - CLOCKS_APART_S, end


def _serial() -> bytes:
    first, *rest = os.urandom(SERIAL_BYTES)
    # Start with the bits 01: the number is positive, and has no leading zero byte, which its encoding would drop.
    return bytes([first & 0x3F | 0x40, *rest])


def _authority(where: Path) -> tuple[tuple[str, str], int]:
    """Reads the name and key of the CA, and the end of its validity in seconds since 1970."""
    ca = _rows(where)[0]
    until = int(_read_time(ca[1]).timestamp())
    if until <= time.time():
        raise InvalidArgument(
            f"the CA in {where} has expired: create another one in a new directory (hoplite certs ca DIR)"
        )
    with (where / f"{CA}.key").open() as key:
        check_private(Path(key.name), os.fstat(key.fileno()), "the key of a CA")
        return (_name(ca), key.read()), until


def _write_list(where: Path) -> None:
    authority, until = _authority(where)
    revoked = [(bytes.fromhex(row[3]), int(_read_time(row[2]).timestamp())) for row in _rows(where) if row[0] == "R"]
    now = time.time()
    # The number of a CRL only has to increase.
    text = _native.revoke_certificates(authority, int(now * 1000), revoked, int(now), until)
    _replace(where / CRL, text, 0o644)


def _rows(where: Path) -> list[list[str]]:
    """Reads the lines of the index: state, end, revocation, serial number, file, subject. The CA itself comes first."""
    index = where / INDEX
    if not index.exists():
        raise InvalidArgument(f"{where} contains no CA: create one with: hoplite certs ca {where}")
    with index.open() as file:
        check_trusted(index, os.fstat(file.fileno()))
        rows = [line.split("\t") for line in file.read().splitlines()]
    if not rows or any(len(row) != 6 for row in rows) or rows[0][4] != f"{CA}.crt":
        raise InvalidArgument(f"{index} is corrupt: restore it from a backup")
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
    # Years with two digits are in this century.
    whole = text if len(text) > len("yymmddHHMMSSZ") else f"20{text}"
    return datetime.strptime(whole, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _write(path: Path, text: str, mode: int) -> None:
    """Creates a file with a mode; fails if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _replace(path: Path, text: str, mode: int) -> None:
    """Creates or replaces a file atomically: a reader sees the old content or the new content, never a part."""
    made = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    try:
        _write(made, text, mode)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(where: Path) -> Iterator[None]:
    """Locks the directory against this user's other processes; checks that other users can't write to it.

    The lock is on a file that other users can't open. Any user who can read the directory could lock the directory
    itself.
    """
    check_trusted(where, where.stat(), is_shared=False)
    lock = where / LOCK
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        facts = os.fstat(descriptor)
        check_private(lock, facts, "the lock of a CA")
        owner = where.stat()
        if facts.st_uid == 0 != owner.st_uid:
            # Run by root, for example through sudo: the owner of the CA must still be able to open the lock.
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        if not take_lock(descriptor, LOCK_TIMEOUT_S):
            raise HopliteError(
                f"another process has been using the CA in {where} for {LOCK_TIMEOUT_S:g} s: end that process, or try "
                "again"
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
            f"{error.filename or where} does not exist: create a CA with: hoplite certs ca {where}"
        ) from None
    except OSError as error:
        raise HopliteError(f"{error.filename or where} can't be used: {error.strerror or error}") from None

"""`hoplite put` and `hoplite get`: files to objects and back.

A file with the suffix .npy is an array; every other file is bytes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shlex
import stat
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from hoplite.errors import UnsupportedDtype
from hoplite.extras import install
from hoplite.tools.cli.attach import attach, complete_ref
from hoplite.tools.cli.options import duration_option, json_option, seconds_option, socket_option
from hoplite.tools.cli.output import fail_with, print_json
from hoplite.tools.progress import BYTES, Progress, waiting_for
from hoplite.tools.quantities import write_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client

ARRAY_SUFFIX = ".npy"
STANDARD = "-"

PIECE_BYTES = 2**23

# `dtype.isbuiltin` of a dtype that a package has added to NumPy, such as bfloat16 and float8.
_OF_A_PACKAGE = 2


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--name", metavar="NAME", help="Name of the object, such as policy/17.  [default: a new id]")
@click.option(
    "--retain",
    type=click.IntRange(min=1),
    metavar="K",
    help="Delete all but the newest K versions with the same prefix; needs a --name that ends in a number.",
)
@click.option("--exist-ok", is_flag=True, help="If the name is taken, print the existing ref.")
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Number of nodes that keep a copy; the object survives the failure of all but one.  [default: 1]",
)
@click.option("--digest", is_flag=True, help="Announce the SHA-256 of the object; nodes that receive it verify it.")
@duration_option("--ttl", "Delete the object after this time: 90 (seconds), 60s, 5m, 2h or 1d.  [default: never]")
@seconds_option("--timeout", "Time limit to get memory in the store and to create the replicas.  [default: no limit]")
@socket_option
@json_option("Print a JSON object with the ref and the number of replicas.")
def put(
    file: str,
    name: str | None,
    retain: int | None,
    exist_ok: bool,
    replicas: int,
    digest: bool,
    ttl: float | None,
    timeout: float | None,
    socket: str | None,
    as_json: bool,
) -> None:
    """Put a file into the store of this host and print its ref.

    A .npy file becomes an array, any other file bytes. If FILE is -, the command reads the standard input.

    \b
    Examples:
      hoplite put weights.npy --name policy/17 --replicas 2
      hoplite put batch.npy --ttl 5m
      tar c data | hoplite put -
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    value = _read(file)
    nbytes: int = value.nbytes if hasattr(value, "nbytes") else len(value)
    with attach(socket, digest=digest) as client, Progress(f"putting {write_size(nbytes)} of {file}"):
        try:
            ref = client.put(
                value,
                name=name,
                replicas=replicas,
                retain=retain,
                ttl=ttl,
                exist_ok=exist_ok,
                timeout=timeout,
            )
        except UnsupportedDtype:
            # The advice in the error does not apply to a command.
            fail_with(
                f"{file} is an array of {value.dtype}, which needs a pickle, and commands do not put pickles",
                f"hoplite put - <{shlex.quote(file)} to put its bytes; in Python: hoplite.init().put(array)",
            )
    if as_json:
        print_json({"ref": str(ref), "bytes": nbytes, "replicas": ref.replicas})
    else:
        click.echo(str(ref))
    if ref.replicas is not None and ref.replicas < replicas:
        click.echo(f"{ref} has {ref.replicas} of {replicas} replicas: the cluster has no more nodes", err=True)


@click.command()
@click.argument("ref", metavar="REF", shell_complete=complete_ref)
@click.option(
    "-o", "--output", metavar="FILE", help="File to write; with the suffix .npy, in NumPy format.  [default: stdout]"
)
@seconds_option("--timeout", "Time limit; 0 gets the object only if it is on this host.  [default: no limit]")
@socket_option
@json_option("Print a JSON object with the ref and FILE; needs -o.")
def get(ref: str, output: str | None, timeout: float | None, socket: str | None, as_json: bool) -> None:
    """Get an object and write it to a file or standard output.

    Waits until the object exists. An array is written in NumPy format if FILE ends in .npy, otherwise as bytes without
    shape and dtype. FILE is replaced atomically: it is never partly written.

    \b
    Examples:
      hoplite get policy/17 -o weights.npy --timeout 60
      hoplite get data/1 | tar t
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    target = None if output in (None, STANDARD) else Path(str(output))
    if target is None and as_json:
        raise click.UsageError("--json needs a file to write: add -o FILE")
    if target is None and sys.stdout.isatty():
        fail_with(
            f"{ref} is binary data, and the standard output is a terminal",
            f"hoplite get {ref} -o FILE, or pipe the output into a command",
        )
    if target is not None:
        check_target(target)
    with attach(socket) as client:
        with waiting_for(ref, lambda progress: _show_transfer(client, ref, progress)):
            value = client.get(ref, timeout=timeout)
        size = getattr(value, "nbytes", None)
        with Progress(f"writing {target or 'the standard output'}", size, BYTES) as progress:
            if target is None:
                _write_raw(_Pieces(sys.stdout.buffer, progress), value, ref)
                sys.stdout.buffer.flush()
                return
            with replaced(target) as opened:
                pieces = _Pieces(opened, progress)
                if target.suffix == ARRAY_SUFFIX:
                    _write_array(pieces, value, ref, target)
                else:
                    _write_raw(pieces, value, ref)
        if as_json:
            print_json({"ref": ref, "file": str(target), "bytes": value.nbytes})


def _show_transfer(client: Client, ref: str, progress: Progress) -> None:
    """Shows how much of an object this host's node has received."""
    for row in client.inspect("activity", limit=1, timeout=1.0)["transfers"]:
        if row["ref"] == ref:
            progress.update(row["received"], row["bytes"])


def _read(file: str) -> Any:  # noqa: ANN401 - an array or bytes, depending on the suffix
    if file == STANDARD:
        if sys.stdin.isatty():
            fail_with("the standard input is a terminal", "hoplite put FILE, or pipe the bytes into hoplite put -")
        return _read_stream(sys.stdin.buffer)
    path = Path(file)
    try:
        if path.suffix == ARRAY_SUFFIX:
            return _read_array(path)
        with path.open("rb") as opened:
            facts = os.fstat(opened.fileno())
            # A pipe or an empty file can't be mapped.
            if not stat.S_ISREG(facts.st_mode) or facts.st_size == 0:
                return _read_stream(opened)
            return memoryview(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ))
    except OSError as error:
        fail_with(
            f"{file} can't be read: {error.strerror or error}", "choose another FILE, or - for the standard input"
        )


def _read_stream(opened: IO[bytes]) -> bytearray:
    content = bytearray()
    with Progress(f"reading {opened.name}", unit=BYTES) as progress:
        while piece := opened.read(PIECE_BYTES):
            content += piece
            progress.advance(len(piece))
    return content


def _read_array(path: Path) -> Any:  # noqa: ANN401 - NumPy is imported only here
    np = _numpy(f"{path} is an array")
    if path.is_dir():
        raise IsADirectoryError(None, "Is a directory")
    try:
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:
            # An empty file can't be mapped. A corrupt one raises the same error again.
            return np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        fail_with(f"{path} is not a readable array: {error}", "rename it without .npy to put its bytes unchanged")


def check_target(target: Path, option: str = "-o") -> None:
    """Rejects a target that can't be written, before any wait.

    Args:
        target: the file to write.
        option: the option that names it, for the error.
    """
    folder = target.parent
    if target.is_dir():
        fail_with(f"{target} is a directory", f"{option} {target / 'FILE'}")
    if not folder.is_dir():
        fail_with(f"{folder} is not a directory", f"mkdir -p {folder}")


class _Pieces:
    """Writes to a file piece by piece, so that Ctrl-C and the display of progress never wait for the whole."""

    def __init__(self, opened: IO[bytes], progress: Progress) -> None:
        self._opened = opened
        self._progress = progress

    def write(self, content: memoryview | bytes) -> int:
        rest = memoryview(content)
        # An unbuffered standard output (PYTHONUNBUFFERED) writes a part at a time.
        while rest.nbytes:
            written = self._opened.write(rest[:PIECE_BYTES])
            rest = rest[written:]
            self._progress.advance(written)
        return len(content)


def _write_raw(opened: _Pieces, value: Any, ref: str) -> None:  # noqa: ANN401 - whatever get returned
    if isinstance(value, memoryview):
        rest = value
    elif _is_array(value):
        # As bytes: the buffer protocol has no format for bfloat16 and float8.
        np = _numpy(f"{ref} is an array")
        rest = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    else:
        _refuse(value, ref)
    opened.write(rest)


def _write_array(opened: _Pieces, value: Any, ref: str, target: Path) -> None:  # noqa: ANN401 - whatever get returned
    if isinstance(value, memoryview):
        fail_with(f"{ref} is bytes, not an array", f"hoplite get {ref} -o {target.with_suffix('.bin')}")
    if not _is_array(value):
        _refuse(value, ref)
    if value.dtype.isbuiltin == _OF_A_PACKAGE:
        fail_with(
            f"{ref} is an array of {value.dtype}, which {ARRAY_SUFFIX} files do not support",
            f"hoplite get {ref} -o {target.with_suffix('.bin')} to write its bytes",
        )
    _numpy(f"{ref} is an array").save(opened, value, allow_pickle=False)


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _refuse(value: object, ref: str) -> NoReturn:
    fail_with(
        f"{ref} is a {type(value).__qualname__}, and only bytes and arrays can be written to files",
        f"in Python: hoplite.init().get({ref!r})",
    )


def _numpy(why: str) -> Any:  # noqa: ANN401 - the module
    try:
        import numpy as np
    except ModuleNotFoundError:
        fail_with(f"{why}, and NumPy is not installed", install("numpy"))
    return np


@contextlib.contextmanager
def replaced(target: Path, option: str = "-o") -> Iterator[IO[bytes]]:
    """Opens a temporary file that replaces the target after a successful write; opens a device or pipe directly."""
    # Replace the target of a link, not the link.
    path = target.resolve()
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as opened:
                yield opened
            return
        with _temporary(path) as opened:
            yield opened
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        fail_with(f"{target} can't be written: {error.strerror or error}", f"choose another FILE with {option}")


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[IO[bytes]]:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            yield opened
            os.fchmod(opened.fileno(), _mode(path))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    """Returns the mode of the file that is replaced, or the mode of a new file."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask

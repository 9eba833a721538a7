"""`hoplite token`: secrets for clusters, and capabilities for those who use one."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoplite import capabilities, settings
from hoplite.tokens import new_token, read_tokens
from hoplite.tools.cli.options import DurationType, json_option
from hoplite.tools.cli.output import fail_with, print_json, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    Option = Callable[[Callable[..., None]], Callable[..., None]]

FILE = click.Path(dir_okay=False, path_type=Path)


def out_option(what: str) -> Option:
    """`--out`, the file to make."""
    text = f"A file to make, which only this user can read.  [default: print the {what}]"
    return click.option("--out", metavar="FILE", type=FILE, help=text)


def prefix_option(text: str, *, required: bool) -> Option:
    """`--prefix`."""
    return click.option("--prefix", metavar="PREFIX", required=required, help=text)


def verbs_option(text: str) -> Option:
    """`--verbs`, with commas."""
    return click.option("--verbs", metavar="VERBS", help=text)


def for_option(text: str) -> Option:
    """`--for`, the command's argument `seconds`."""
    return click.option("--for", "seconds", metavar="TIME", type=DurationType(), help=text)


@click.group()
def token() -> None:
    """Make a token, the secret that lets nodes into a cluster, and capabilities of it.

    A capability lets a client do some verbs with the objects below a prefix, for a time.

    \b
    Example:
      hoplite token new --out hoplite.token
      hoplite node --token-file hoplite.token --listen 10.0.0.1:7420
      hoplite token grant --token-file hoplite.token --prefix team-a/ --for 12h --out team-a.capability
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines


@token.command()
@out_option("token")
def new(out: Path | None) -> None:
    """Make a token of 256 random bits.

    Give it to every node of a cluster: by a file, HOPLITE_TOKEN_FILE or HOPLITE_TOKEN.

    \b
    Examples:
      hoplite token new --out hoplite.token
      export HOPLITE_TOKEN=$(hoplite token new)
    """  # noqa: D301 - as above
    _write(out, "token", new_token)


@token.command()
@click.option(
    "--token-file",
    metavar="FILE",
    type=FILE,
    help="The cluster's token, of whose first line it is made.  [default: HOPLITE_TOKEN_FILE, or HOPLITE_TOKEN]",
)
@prefix_option("What the names of objects begin with, with a slash at the end; '' takes every object.", required=True)
@verbs_option("Of put, get, delete, reduce and list, with commas.  [default: all]")
@for_option("For how long it is good: 12h, 7d.  [default: for ever]")
@out_option("capability")
def grant(token_file: Path | None, prefix: str, verbs: str | None, seconds: float | None, out: Path | None) -> None:
    """Make a capability, which lets a client do some verbs below a prefix.

    Give it to a client by connect(capability=FILE), init(capability=FILE) or HOPLITE_CAPABILITY. A node that is
    started with --require-capability takes no client without one.

    \b
    Example:
      hoplite token grant --token-file hoplite.token --prefix team-a/ --verbs get,put --for 12h --out team-a.capability
    """  # noqa: D301 - as above
    values = settings.load(token=None, token_file=token_file)
    secret = read_tokens(values["token_file"])[0] if values["token_file"] is not None else values["token"]
    if secret is None:
        fail_with("a capability is made of the cluster's token, and there is none", "--token-file FILE")
    _write(out, "capability", lambda: capabilities.grant(secret, prefix, verbs=_split(verbs), seconds=seconds))


@token.command()
@click.option("--in", "file", metavar="FILE", type=FILE, required=True, help="The capability that allows more.")
@prefix_option("A longer prefix.  [default: as it is]", required=False)
@verbs_option("Some of its verbs, with commas.  [default: as they are]")
@for_option("For how long it is good, but no longer than before.  [default: as it is]")
@out_option("capability")
def narrow(file: Path, prefix: str | None, verbs: str | None, seconds: float | None, out: Path | None) -> None:
    """Make a capability that allows less of one that allows more; needs no token.

    \b
    Example:
      hoplite token narrow --in team-a.capability --verbs get --out reader.capability
    """  # noqa: D301 - as above
    text = capabilities.text_of(file)
    _write(
        out,
        "capability",
        lambda: capabilities.narrow(text, prefix=prefix, verbs=_split(verbs), seconds=seconds),
    )


@token.command()
@click.argument("file", metavar="FILE", type=FILE)
@json_option("Print it as JSON.")
def show(file: Path, as_json: bool) -> None:
    """Tell what a capability says that it allows; whether the cluster made it is for a node to say.

    \b
    Example:
      hoplite token show team-a.capability
    """  # noqa: D301 - as above
    said = capabilities.read(capabilities.text_of(file))
    if as_json:
        print_json(said._asdict())
        return
    click.echo(f"prefix   {visible(said.prefix)}")
    click.echo(f"verbs    {','.join(said.verbs)}")
    click.echo(f"expires  {_end(said.until)}")


def _end(until: int | None) -> str:
    if until is None:
        return "never"
    try:
        date = f"{datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError):
        return "never: beyond the calendar"
    return f"{date} (expired)" if until <= time.time() else date


def _split(verbs: str | None) -> list[str] | None:
    return None if verbs is None else [verb.strip() for verb in verbs.split(",")]


def _write(out: Path | None, what: str, make: Callable[[], str]) -> None:
    """Makes a secret and prints it, or writes it to a file that does not exist yet."""
    secret = make()
    if out is None:
        click.echo(secret)
        return
    try:
        # Made with its mode, for a file that is closed to others later may have been opened before.
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        fail_with(f"{out} exists, and the {what} in it may be in use", "another --out, or remove the file first")
    except OSError as error:
        fail_with(f"{out} can't be made: {error.strerror or error}", "another --out")
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secret}\n")

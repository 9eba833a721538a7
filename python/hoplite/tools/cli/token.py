"""`hoplite token`: cluster tokens and capabilities."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoplite import capabilities, settings, viewers
from hoplite.errors import InvalidArgument
from hoplite.tokens import new_token, read_tokens
from hoplite.tools.cli.options import DurationType, json_option
from hoplite.tools.cli.output import fail_with, print_json, stepping
from hoplite.tools.quantities import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    Option = Callable[[Callable[..., None]], Callable[..., None]]

FILE = click.Path(dir_okay=False, path_type=Path)


def out_option(what: str) -> Option:
    """`--out`, the file to create."""
    text = f"File to create, with mode 0600.  [default: print the {what}]"
    return click.option("--out", metavar="FILE", type=FILE, help=text)


def token_file_option(default: str) -> Option:
    """`--token-file`."""
    text = f"File whose first line is the cluster token.  [default: {default}]"
    return click.option("--token-file", metavar="FILE", type=FILE, help=text)


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
    """Create a cluster token, and capabilities and the key for viewers from it.

    A token admits nodes to the cluster. A capability limits what a client may do (verbs), with which names (a prefix),
    and for how long.

    \b
    Example:
      hoplite token new --out hoplite.token
      hoplite node --token-file hoplite.token --listen 10.0.0.1:7420
      hoplite token grant --token-file hoplite.token --prefix team-a/ --for 12h --out team-a.capability
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines


@token.command()
@out_option("token")
def new(out: Path | None) -> None:
    """Create a cluster token of 256 random bits.

    Set it on every node of a cluster: --token-file, HOPLITE_TOKEN_FILE or HOPLITE_TOKEN.

    \b
    Examples:
      hoplite token new --out hoplite.token
      export HOPLITE_TOKEN=$(hoplite token new)
    """  # noqa: D301 - as above
    _write(out, "token", new_token)


@token.command()
@token_file_option("HOPLITE_TOKEN_FILE, HOPLITE_TOKEN, or the secret of this user on this host")
@out_option("key")
def viewer(token_file: Path | None, out: Path | None) -> None:
    """Print the key with which viewers open the live page and read the metrics.

    It is derived from the token, which it does not reveal. It permits nothing else.

    \b
    Example:
      hoplite token viewer --token-file hoplite.token
    """  # noqa: D301 - as above
    values = settings.load(token=None, token_file=token_file, http_key_file=None, no_auth=None)
    keys = viewers.viewer_keys(values.replaced({"no_auth": False}))
    _write(out, "key", lambda: keys[0])


@token.command()
@token_file_option("HOPLITE_TOKEN_FILE, or HOPLITE_TOKEN")
@prefix_option("Prefix of the permitted names, ending in a slash; '' permits all objects.", required=True)
@verbs_option("Permitted verbs, comma-separated: put, get, delete, reduce, list.  [default: all]")
@for_option("Lifetime, such as 12h or 7d.  [default: no limit]")
@out_option("capability")
def grant(token_file: Path | None, prefix: str, verbs: str | None, seconds: float | None, out: Path | None) -> None:
    """Create a capability, which limits the rights of a client.

    Pass it to a client by init(capability=FILE), connect(capability=FILE) or HOPLITE_CAPABILITY. A node that runs with
    --require-capability rejects clients without a capability.

    \b
    Example:
      hoplite token grant --token-file hoplite.token --prefix team-a/ --verbs get,put --for 12h --out team-a.capability
    """  # noqa: D301 - as above
    values = settings.load(token=None, token_file=token_file)
    secret = read_tokens(values["token_file"])[0] if values["token_file"] is not None else values["token"]
    if secret is None:
        fail_with("a capability needs the cluster token, and none is set", "add --token-file FILE")
    _write(out, "capability", lambda: capabilities.grant(secret, prefix, verbs=_split(verbs), seconds=seconds))


@token.command()
@click.option("--in", "file", metavar="FILE", type=FILE, required=True, help="File of the capability to restrict.")
@prefix_option("New prefix, which extends the current one.  [default: unchanged]", required=False)
@verbs_option("New verbs, comma-separated: a subset of the current ones.  [default: unchanged]")
@for_option("New lifetime; it must end before the current one.  [default: unchanged]")
@out_option("capability")
def narrow(file: Path, prefix: str | None, verbs: str | None, seconds: float | None, out: Path | None) -> None:
    """Restrict a capability further, without the token.

    \b
    Example:
      hoplite token narrow --in team-a.capability --verbs get --out reader.capability
    """  # noqa: D301 - as above
    with stepping({InvalidArgument: "show the current rights: hoplite token show FILE"}):
        text = capabilities.narrow(_read(file), prefix=prefix, verbs=_split(verbs), seconds=seconds)
    _write(out, "capability", lambda: text)


@token.command()
@click.argument("file", metavar="FILE", type=FILE)
@json_option("Print the rights as JSON.")
def show(file: Path, as_json: bool) -> None:
    """Show the rights in a capability.

    The command does not verify the capability: only a node can do that.

    \b
    Example:
      hoplite token show team-a.capability
    """  # noqa: D301 - as above
    rights = capabilities.read(_read(file))
    if as_json:
        print_json(rights._asdict())
        return
    click.echo(f"prefix   {visible(rights.prefix)}")
    click.echo(f"verbs    {','.join(rights.verbs)}")
    click.echo(f"expires  {_end(rights.until)}")


def _read(file: Path) -> str:
    with stepping({InvalidArgument: "choose another FILE, or create a capability: hoplite token grant --help"}):
        return capabilities.text_of(file)


def _end(until: int | None) -> str:
    if until is None:
        return "never"
    try:
        date = f"{datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError):
        return "never: after the year 9999"
    return f"{date} (expired)" if until <= time.time() else date


def _split(verbs: str | None) -> list[str] | None:
    return None if verbs is None else [verb.strip() for verb in verbs.split(",")]


def _write(out: Path | None, what: str, make: Callable[[], str]) -> None:
    """Creates a secret and prints it, or writes it to a new file."""
    secret = make()
    if out is None:
        click.echo(secret)
        return
    try:
        # Create it with its mode: another user could open the file before a later chmod.
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        fail_with(f"{out} exists, and the {what} in it may be in use", "choose another --out, or remove the file")
    except OSError as error:
        fail_with(f"{out} can't be created: {error.strerror or error}", "choose another --out")
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secret}\n")

"""`hoplite token`: secrets for clusters."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hoplite.tokens import new_token
from hoplite.tools.cli.output import fail_with


@click.group()
def token() -> None:
    """Make a token, the secret that lets nodes into a cluster.

    \b
    Example:
      hoplite token new --out hoplite.token
      hoplite node --token-file hoplite.token --listen 10.0.0.1:7420
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines


@token.command()
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file to make, which only this user can read.  [default: print the token]",
)
def new(out: Path | None) -> None:
    """Make a token of 256 random bits.

    Give it to every node of a cluster: by a file, HOPLITE_TOKEN_FILE or HOPLITE_TOKEN.

    \b
    Examples:
      hoplite token new --out hoplite.token
      export HOPLITE_TOKEN=$(hoplite token new)
    """  # noqa: D301 - as above
    if out is None:
        click.echo(new_token())
        return
    try:
        # Made with its mode, for a file that is closed to others later may have been opened before.
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        fail_with(f"{out} exists, and the token in it may be in use", "another --out, or remove the file first")
    except OSError as error:
        fail_with(f"{out} can't be made: {error.strerror or error}", "another --out")
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{new_token()}\n")

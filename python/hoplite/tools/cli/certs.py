"""`hoplite certs`: a private CA and node certificates, used instead of a token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoplite.errors import InvalidArgument
from hoplite.tools import certificates
from hoplite.tools.cli.options import Command, json_option
from hoplite.tools.cli.output import print_json, print_table, stepping

if TYPE_CHECKING:
    from collections.abc import Callable

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))


def _days_option(default: int) -> Callable[[Command], Command]:
    days = click.IntRange(min=1)
    return click.option("--days", type=days, default=default, show_default=True, help="Days of validity.")


@click.group()
def certs() -> None:
    """Create a CA and node certificates, used instead of a token.

    \b
    Example:
      hoplite certs ca DIR
      hoplite certs node DIR host1
      hoplite node --certificate DIR/host1.crt --key DIR/host1.key --ca DIR/ca.crt --crl DIR/crl.pem
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines


@certs.command()
@folder_argument
@_days_option(certificates.CA_DAYS)
def ca(folder: Path, days: int) -> None:
    """Create a CA and an empty revocation list.

    Creates ca.crt, ca.key and crl.pem in DIR.

    \b
    Example:
      hoplite certs ca ~/ca
    """  # noqa: D301
    with stepping(
        {InvalidArgument: "choose another DIR, or list the certificates of this one: hoplite certs list DIR"}
    ):
        made = certificates.make_ca(folder, days=days)
    click.echo(f"created {made}, {made.with_suffix('.key')} and {made.with_name(certificates.CRL)}")
    click.echo(f"next: hoplite certs node {folder} NAME, once per node; keep {made.with_suffix('.key')} off the nodes")


@certs.command()
@folder_argument
@click.argument("name")
@_days_option(certificates.NODE_DAYS)
def node(folder: Path, name: str, days: int) -> None:
    """Create the certificate and key of a node.

    Creates NAME.crt and NAME.key in DIR.

    \b
    Example:
      hoplite certs node ~/ca gpu-17
    """  # noqa: D301
    with stepping({InvalidArgument: "choose another NAME, or list the existing ones: hoplite certs list DIR"}):
        made, key = certificates.make_certificate(folder, name, days=days)
    authority, revoked = made.with_name(f"{certificates.CA}.crt"), made.with_name(certificates.CRL)
    until = next(entry.expires for entry in reversed(certificates.certificates(folder)) if entry.name == name)
    click.echo(f"created {made}, valid until {until:%Y-%m-%d}, and {key}")
    click.echo(f"next: copy both, together with {authority} and {revoked}, to the node, and start it with")
    click.echo(f"      hoplite node --certificate {made} --key {key} --ca {authority} --crl {revoked}")


@certs.command()
@folder_argument
@click.argument("which", metavar="NAME|SERIAL")
def revoke(folder: Path, which: str) -> None:
    """Revoke all certificates of a node, or one by serial number.

    Writes the new revocation list to DIR/crl.pem.

    \b
    Example:
      hoplite certs revoke ~/ca gpu-17
    """  # noqa: D301
    with stepping({InvalidArgument: "list the certificates: hoplite certs list DIR"}):
        revoked = certificates.revoke(folder, which)
    for entry in revoked:
        click.echo(f"revoked {entry.name}, serial number {entry.serial}")
    click.echo(f"next: copy {folder / certificates.CRL} to every node; it takes effect there within 5 s")


@certs.command(name="list")
@folder_argument
@json_option("Print a JSON list.")
def list_(folder: Path, as_json: bool) -> None:
    """List the certificates that the CA in DIR has issued.

    \b
    Example:
      hoplite certs list ~/ca
    """  # noqa: D301
    with stepping({InvalidArgument: "create a CA: hoplite certs ca DIR"}):
        all_ = certificates.certificates(folder)
    if as_json:
        print_json(
            [
                {
                    "name": entry.name,
                    "state": entry.state,
                    "expires": entry.expires.isoformat(),
                    "revoked": entry.revoked.isoformat() if entry.revoked else None,
                    "serial": entry.serial,
                }
                for entry in all_
            ]
        )
        return
    rows = [[entry.name, entry.state, f"{entry.expires:%Y-%m-%d}", entry.serial] for entry in all_]
    print_table(["name", "state", "expires", "serial"], rows, whole=2)

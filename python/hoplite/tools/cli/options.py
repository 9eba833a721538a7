"""The options that many commands have, each written once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., Any]")

socket_option = click.option(
    "--socket",
    metavar="PATH",
    help="Unix socket of the node.  [default: HOPLITE_ADDRESS, HOPLITE_SOCKET, or this user's node]",
)


def json_option(text: str) -> Callable[[Command], Command]:
    """`--json`, the command's argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def seconds_option(
    name: str, text: str, *, default: float | None = None, least: float = 0
) -> Callable[[Command], Command]:
    """An option that takes seconds; without a default the text says what holds if it is not given."""
    kind = click.FloatRange(min=least)
    return click.option(
        name, type=kind, default=default, show_default=default is not None, metavar="SECONDS", help=text
    )


timeout_option = seconds_option("--timeout", "How long to wait; 0 takes only what is there.  [default: no limit]")

"""Options that several commands share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

# Longest time of an option in seconds, over thirty years.
SECONDS_MAX = 1e9
# Seconds per unit of time.
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

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
    """An option that takes seconds. If it has no default, the help text states what applies without the option."""
    return click.option(
        name, type=Seconds(min=least), default=default, show_default=default is not None, metavar="SECONDS", help=text
    )


class Seconds(click.FloatRange):
    """Parses seconds. NaN is within every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Parses the text of the option; an invalid text is a usage error."""
        seconds: float = super().convert(value, param, ctx)
        if not seconds <= SECONDS_MAX:
            self.fail(f"{value} is not a time: write seconds, at most {SECONDS_MAX:.0e}", param, ctx)
        return seconds


class DurationType(click.ParamType):  # type: ignore[type-arg] # generic in the stubs of late releases only
    """Parses seconds, or a number with a unit: 90, 60s, 5m, 2h, 1d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Parses the text of the option; an invalid text is a usage error."""
        text = str(value).strip()
        unit = UNITS_S.get(text[-1:], 1.0)
        number = text[:-1] if text[-1:] in UNITS_S else text
        try:
            seconds = float(number) * unit
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is not a time above 0: write 90 (seconds), 60s, 5m, 2h or 1d", param, ctx)
        return seconds


def duration_option(name: str, text: str) -> Callable[[Command], Command]:
    """An option that takes a time with or without a unit."""
    return click.option(name, type=DurationType(), metavar="TIME", help=text)


def said(context: click.Context, name: str) -> bool:
    """Whether an option was given."""
    source: Any = context.get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT


timeout_option = seconds_option("--timeout", "Time limit; with 0 the command does not wait.  [default: no limit]")

"""Options and error handling that the bench commands share: comma-separated lists, output files, the end of a run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoplite.errors import HopliteError, InvalidArgument
from hoplite.sizes import check_size
from hoplite.tools.cli.ending import ending_in_order
from hoplite.tools.cli.options import said
from hoplite.tools.cli.output import Failure, fail_with, stepping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def words(_context: click.Context, _option: click.Parameter, value: str) -> list[str]:
    """Parses a list of words and removes duplicates."""
    found = [word.strip() for word in value.split(",") if word.strip()]
    if not found:
        raise click.BadParameter("the list is empty; name one or more, separated by commas, or omit the option")
    return list(dict.fromkeys(found))


def sizes(context: click.Context, option: click.Parameter, value: str) -> list[int]:
    """Parses a list of sizes in bytes."""
    found = []
    for text in words(context, option, value):
        try:
            found.append(check_size("size", text))
        except HopliteError as error:
            raise click.BadParameter(f"{text!r} is not a size: set one such as 1KiB or 4096") from error
    return list(dict.fromkeys(found))


def seconds(context: click.Context, option: click.Parameter, value: str) -> list[float]:
    """Parses a list of times in seconds."""
    try:
        return list(dict.fromkeys(float(text) for text in words(context, option, value)))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of seconds: set one such as 0,0.1") from None


def counts(context: click.Context, option: click.Parameter, value: str) -> list[int]:
    """Parses a list of integers."""
    try:
        return list(dict.fromkeys(int(text) for text in words(context, option, value)))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers: set one such as 1,2") from None


def flow_cap(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the option that limits each connection of a lab."""
    text = "Maximum rate at which a host sends on one TCP connection, such as 500mbit.  [default: no limit]"
    return click.option("--flow-cap", metavar="RATE", help=text)(command)


def rows_file(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of the output file."""
    for option in (
        click.option("--resume", is_flag=True, help="Keep the rows of --out and measure only what is missing."),
        click.option(
            "--out",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write the rows to this file, one JSON object per line.",
        ),
    ):
        command = option(command)
    return command


def check_resume(out: Path | None, *, resume: bool) -> None:
    """Refuses to resume without a file."""
    if resume and out is None:
        raise click.UsageError("--resume continues the file of --out: add --out FILE")


def warn(text: str) -> None:
    """Prints a warning to stderr."""
    click.echo(f"warning: {text}", err=True)


@contextlib.contextmanager
def running(out: Path | None) -> Iterator[None]:
    """A long run: SIGTERM and a lost terminal end it like Ctrl-C, and errors name the next step.

    First every process that was started is ended, then the command. The exit status is 130 after Ctrl-C, else 128 plus
    the number of the signal.
    """
    from hoplite_bench.hosts import AgentFailed
    from hoplite_bench.lab import LabError
    from hoplite_bench.row import BadRow
    from hoplite_bench.systems.base import Unavailable

    steps: dict[type[HopliteError], str] = {
        BadRow: "delete that line, or write to another file with --out",
        AgentFailed: "check that `ssh HOST true` works, and install hoplite at the same path on all hosts",
        Unavailable: "remove it from --systems",
        LabError: "run as root; without root, measure real hosts (--hosts FILE) or one host (hoplite bench local)",
    }
    try:
        with ending_in_order(), stepping(steps):
            yield
    except (InvalidArgument, Failure):
        raise
    except HopliteError as error:
        fail_with(str(error), "repeat the command with --resume" if out else "hoplite bench --help")
    except (KeyboardInterrupt, SystemExit):
        if out is not None:
            click.echo(f"stopped; finished rows are in {out}; to continue, repeat the command with --resume", err=True)
        raise


def refuse_debug_build() -> None:
    """Ends the command if the extension was built without optimization."""
    from hoplite_bench import machine

    try:
        machine.refuse_debug_build()
    except HopliteError as error:
        fail_with(str(error), "run make build")


def refuse_before(context: click.Context) -> None:
    """Refuses options of the group that precede a subcommand, because the subcommand would ignore them."""
    if given := [option.opts[0] for option in context.command.params if said(context, option.name or "")]:
        command = f"{context.command_path} {context.invoked_subcommand}"
        raise click.UsageError(
            f"{' and '.join(given)} can't precede {context.invoked_subcommand}: see {command} --help"
        )

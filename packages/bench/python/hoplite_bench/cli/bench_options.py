"""What the commands of the bench share: lists with commas between, where rows go, how a run ends, what to try next."""

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
    """Reads words, each once."""
    found = [word.strip() for word in value.split(",") if word.strip()]
    if not found:
        raise click.BadParameter("says nothing; leave the option out, or name one or more, with commas between them")
    return list(dict.fromkeys(found))


def sizes(context: click.Context, option: click.Parameter, value: str) -> list[int]:
    """Reads numbers of bytes."""
    found = []
    for text in words(context, option, value):
        try:
            found.append(check_size("size", text))
        except HopliteError as error:
            raise click.BadParameter(f"{text!r} is no size such as 1KiB or 4096") from error
    return list(dict.fromkeys(found))


def seconds(context: click.Context, option: click.Parameter, value: str) -> list[float]:
    """Reads times."""
    try:
        return list(dict.fromkeys(float(text) for text in words(context, option, value)))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of seconds, such as 0,0.1") from None


def counts(context: click.Context, option: click.Parameter, value: str) -> list[int]:
    """Reads numbers."""
    try:
        return list(dict.fromkeys(int(text) for text in words(context, option, value)))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers, such as 1,2") from None


def rows_file(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say where rows go."""
    for option in (
        click.option("--resume", is_flag=True, help="Go on with --out: keep its rows, measure what is missing."),
        click.option(
            "--out",
            type=click.Path(dir_okay=False, path_type=Path),
            help="A file for the rows, one JSON object a line.",
        ),
    ):
        command = option(command)
    return command


def check_resume(out: Path | None, *, resume: bool) -> None:
    """Refuses to go on with nothing."""
    if resume and out is None:
        raise click.UsageError("--resume goes on with a file; say which: --out FILE")


def warn(text: str) -> None:
    """Says what people should know."""
    click.echo(f"warning: {text}", err=True)


@contextlib.contextmanager
def running(out: Path | None) -> Iterator[None]:
    """A run that takes long: SIGTERM and a lost terminal end it as Ctrl-C does, and errors say what to try.

    Everything that was started is ended, then the command: by 130 after Ctrl-C, else by 128 and the signal's number.
    """
    from hoplite_bench.hosts import AgentFailed
    from hoplite_bench.lab import LabError
    from hoplite_bench.row import BadRow
    from hoplite_bench.systems.base import Unavailable

    steps: dict[type[HopliteError], str] = {
        BadRow: "take that line out, or write to another file with --out",
        AgentFailed: "look whether each host answers and has hoplite where it is here: ssh HOST true",
        Unavailable: "leave it out of --systems",
        LabError: "sudo; without root, real hosts by --hosts FILE, or what one host does alone: hoplite bench local",
    }
    try:
        with ending_in_order(), stepping(steps):
            yield
    except (InvalidArgument, Failure):
        raise
    except HopliteError as error:
        fail_with(str(error), "the same command with --resume" if out else "hoplite bench --help")
    except (KeyboardInterrupt, SystemExit):
        if out is not None:
            click.echo(f"ended; what is done is in {out}: go on by the same command with --resume", err=True)
        raise


def refuse_debug_build() -> None:
    """Ends the command if the extension was built without optimisation."""
    from hoplite_bench import machine

    try:
        machine.refuse_debug_build()
    except HopliteError as error:
        fail_with(str(error), "make build, or a wheel: pip install hoplite-collectives")


def refuse_before(context: click.Context) -> None:
    """Refuses options of a group that stand before one of its commands, which would not see them."""
    if given := [option.opts[0] for option in context.command.params if said(context, option.name or "")]:
        command = f"{context.command_path} {context.invoked_subcommand}"
        raise click.UsageError(f"{command} takes no {' or '.join(given)} before its name; see {command} --help")

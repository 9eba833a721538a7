"""The `hoplite` command: results on stdout, logs on stderr, `--json` for every list.

Exit codes: 0 success; 1 failure, with the reason and a next step on stderr; 2 invalid use of the command.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

import click

from hoplite import __version__
from hoplite.errors import HopliteError
from hoplite.settings import SettingsWarning, closest
from hoplite.tools.cli import (
    certs,
    completion,
    demo,
    doctor,
    files,
    node,
    objects,
    packages,
    status,
    story,
    token,
    top,
    trace,
    verbs,
    web,
)
from hoplite.tools.cli.output import Failure, fail

if TYPE_CHECKING:
    from typing import TextIO

FAILED = 1
WRONG_USE = 2
# Exit code that shells use for a command that Ctrl-C ended.
INTERRUPTED = 130

# Errors of a file or device that accepts no more data.
OUTPUT_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# Later releases of click raise this for a group without a command. Earlier ones print the help.
NO_COMMAND: type | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())


class Group(click.Group):
    """A group of commands that suggests the closest one if a command does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command with a name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command '{args[0]}'{closest(args[0], self.list_commands(ctx))}.")
        return super().resolve_command(ctx, args)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="hoplite")
def hoplite() -> None:
    """Share, broadcast and reduce large objects between processes and hosts.

    Start with: hoplite demo.  Then, on every host: hoplite node.

    \b
    Exit codes:
      0    success
      1    failure; stderr shows the reason and a next step
      2    invalid use of the command
      130  ended by Ctrl-C
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines


for _command in (
    node.node,
    token.token,
    web.page,
    certs.certs,
    status.status,
    top.top,
    objects.objects,
    objects.locations,
    files.put,
    files.get,
    verbs.latest,
    verbs.wait,
    verbs.reduce,
    objects.delete,
    story.story,
    trace.trace,
    doctor.doctor,
    demo.demo,
    *packages.COMMANDS,
    completion.completion,
):
    hoplite.add_command(_command)


def main() -> None:
    """Runs the command line of this process."""
    _fill_standard_descriptors()
    warnings.showwarning = _warn
    try:
        code = hoplite.main(prog_name="hoplite", complete_var=completion.VARIABLE, standalone_mode=False)
        # A command returns its exit code, or None for success.
        code = code if isinstance(code, int) else 0
        sys.stdout.flush()
    except click.UsageError as error:
        code = _wrong_use(error)
    except (HopliteError, Failure) as error:
        code = fail(error)
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:
        code = FAILED
        # The reader of the output is gone: drop the buffer, also at exit.
        _drop_output()
    except OSError as error:
        if error.errno not in OUTPUT_FULL or error.filename is not None:
            raise
        # Drop the buffer first: stderr may be on the same full device.
        _drop_output()
        code = fail(Failure(f"the output can't be written: {error.strerror}", "write it to a device with free space"))
    sys.exit(code)


def _fill_standard_descriptors() -> None:
    """Opens the null device for closed descriptors 0, 1 and 2, before a file or socket gets one of these numbers."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lower ones are open, so this gets the number.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            # Python has no stream for a descriptor that was closed at its start.
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - for the whole process


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _wrong_use(error: click.UsageError) -> int:
    if isinstance(error, NO_COMMAND):
        # Its message is the complete help text.
        click.echo(error.format_message(), err=True)
        return WRONG_USE
    path = error.ctx.command_path if error.ctx is not None else "hoplite"
    if error.ctx is not None:
        click.echo(error.ctx.get_usage(), err=True)
    step = error.step if isinstance(error, packages.Unusable) else f"{path} --help"
    click.echo(f"error: {error.format_message()}", err=True)
    click.echo(f"try: {step}", err=True)
    return WRONG_USE


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001 - as in warnings
    line: Any = None,  # noqa: ANN401 - as in warnings
) -> None:
    if issubclass(category, SettingsWarning):
        click.echo(f"warning: {message}", err=True)
    else:
        click.echo(warnings.formatwarning(message, category, filename, lineno, line), err=True, nl=False)

"""The `hoplite` command: results on stdout, logs on stderr, `--json` wherever something is listed.

Exit codes: 0 done; 1 failed, with the reason and what to try next on stderr; 2 a wrong use of the command.
"""

from __future__ import annotations

import sys

import click

from hoplite import __version__
from hoplite.cli import bench, demo, node, objects, status
from hoplite.cli.output import fail
from hoplite.errors import HopliteError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="hoplite")
def hoplite() -> None:
    """Immutable objects in shared memory on every host; broadcast and reduce computed while they appear.

    First: hoplite demo.  Then, on every host: hoplite node.
    """


hoplite.add_command(node.node)
hoplite.add_command(status.status)
hoplite.add_command(objects.objects)
hoplite.add_command(demo.demo)
hoplite.add_command(bench.bench)


def main() -> None:
    """Runs the command line of this process."""
    try:
        hoplite()
    except HopliteError as error:
        sys.exit(fail(error))

"""`hoplite bench report`: rows of a measurement to tables and pictures."""

from __future__ import annotations

from pathlib import Path

import click

from hoplite.errors import HopliteError
from hoplite.tools.cli.output import fail_with


@click.command()
@click.argument(
    "files", metavar="ROWS...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the report; made if it is not there.",
)
@click.option("--no-plots", is_flag=True, help="Write no pictures, which need Matplotlib.")
def report(files: tuple[Path, ...], out: Path, no_plots: bool) -> None:
    """Write tables and pictures of what hoplite bench has measured.

    ROWS are files of one or several runs. Rows that are not verified or of a debug build are refused.

    \b
    Example:
      hoplite bench report results.jsonl --out report
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_bench import report as job
    from hoplite_bench import row, tables

    try:
        written = job.write(row.read(files), out, pictures=not no_plots)
    except row.BadRow as error:
        fail_with(str(error), "give files that hoplite bench --out has written, or take this line out")
    except tables.Unreportable as error:
        fail_with(str(error), "measure these again with hoplite bench --out")
    except HopliteError as error:
        fail_with(str(error), "leave the pictures out with --no-plots")
    except OSError as error:
        fail_with(f"can't write the report: {error}", "another folder with --out")
    click.echo(str(written[0]))

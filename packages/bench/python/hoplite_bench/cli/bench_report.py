"""`hoplite bench report`: turns measured rows into tables and figures."""

from __future__ import annotations

from pathlib import Path

import click

from hoplite.errors import HopliteError
from hoplite.tools.cli.output import fail_with
from hoplite.tools.progress import Progress


@click.command()
@click.argument(
    "files", metavar="ROWS...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the report; created if it does not exist.",
)
@click.option("--no-plots", is_flag=True, help="Write no figures; figures require Matplotlib.")
def report(files: tuple[Path, ...], out: Path, no_plots: bool) -> None:
    """Write a report with tables and figures of measured rows.

    ROWS are output files of one or more runs. Refuses rows without a verified result, and rows of a debug build.

    \b
    Example:
      hoplite bench report results.jsonl --out report
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_bench import report as job
    from hoplite_bench import row, tables

    try:
        with Progress("writing the report"):
            written = job.write(row.read(files), out, pictures=not no_plots)
    except row.BadRow as error:
        fail_with(str(error), "pass files that hoplite bench --out wrote, or delete this line")
    except tables.Unreportable as error:
        fail_with(str(error), "measure the cases again with hoplite bench --out")
    except HopliteError as error:
        fail_with(str(error), "add --no-plots to write no figures")
    except OSError as error:
        fail_with(f"can't write the report: {error}", "set another folder with --out")
    click.echo(str(written[0]))

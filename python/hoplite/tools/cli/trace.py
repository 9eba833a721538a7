"""`hoplite trace`: transfers, folds and waits of all nodes as a trace for Perfetto or OpenTelemetry."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hoplite.errors import HopliteError
from hoplite.extras import install
from hoplite.tools.cli.attach import attach
from hoplite.tools.cli.files import check_target, replaced
from hoplite.tools.cli.options import seconds_option, socket_option
from hoplite.tools.cli.output import fail_with, stepping
from hoplite.tools.observe.words import seconds as write_seconds
from hoplite.tools.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite.tools.trace.record import Recording
    from hoplite.tools.trace.spans import Span

STANDARD = "-"


@click.command()
@click.option("--out", metavar="FILE", help="File to write; - for stdout. Open it at https://ui.perfetto.dev.")
@seconds_option("--seconds", "How long to record; Ctrl-C ends it earlier.  [default: 10]", least=0.1)
@seconds_option("--last", "Instead of recording: what the nodes still have of this time.", least=0.1)
@click.option("--otlp", metavar="URL", help="Send spans to an OpenTelemetry receiver, such as http://127.0.0.1:4318.")
@socket_option
def trace(out: str | None, seconds: float | None, last: float | None, otlp: str | None, socket: str | None) -> None:
    """Record transfers, folds, waits and repairs of all nodes.

    The clocks of the nodes are aligned.

    \b
    Examples:
      hoplite trace --out trace.json
      hoplite trace --last 60 --out - | gzip > trace.json.gz
      hoplite trace --seconds 30 --otlp http://127.0.0.1:4318
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite.tools.trace import record
    from hoplite.tools.trace.spans import spans

    if out is None and otlp is None:
        raise click.UsageError("add --out FILE or --otlp URL")
    if seconds is not None and last is not None:
        raise click.UsageError("--last does not work with --seconds")
    target = Path(out) if out not in (None, STANDARD) else None
    if target is not None:
        check_target(target, "--out")
    if otlp is not None:
        _check_otlp(otlp)
    with attach(socket) as client:
        if last is not None:
            recording = record.past(client, last)
        else:
            length = 10.0 if seconds is None else seconds
            with Progress("recording; press Ctrl-C to end", length, "seconds") as progress:
                recording = record.record(client, length, progress.update)
    found = spans(recording.events, recording.reports, recording.ended)
    if target is not None:
        with replaced(target, "--out") as opened:
            for part in _parts(recording, found):
                opened.write(part.encode())
    elif out == STANDARD:
        for part in _parts(recording, found):
            click.echo(part, nl=False)
    if otlp is not None:
        from hoplite.tools.trace.otlp import send

        step: dict[type[HopliteError], str] = {HopliteError: f"check that an OTLP receiver listens at {otlp}"}
        with stepping(step), Progress("sending spans", len(found), "spans") as progress:
            send(found, recording.names, otlp, progress.update)
    _summarize(recording, found, [*([str(target)] if target is not None else []), *([otlp] if otlp else [])])


def _parts(recording: Recording, found: list[Span]) -> Iterator[str]:
    from hoplite.tools.trace.chrome import chrome
    from hoplite.tools.trace.spans import instants

    about = {"clock_error_s": recording.error, "notes": recording.notes}
    return chrome(found, instants(recording.events, recording.names), recording.names, about)


def _check_otlp(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--otlp {url!r} is not a URL: write http://HOST:PORT")
    try:
        import hoplite.tools.trace.otlp  # noqa: F401 - fail before the recording
    except ModuleNotFoundError as error:
        fail_with(f"--otlp needs {error.name}, which is not installed", install("otel"))


def _summarize(recording: Recording, found: list[Span], places: list[str]) -> None:
    """Prints to stderr what was recorded: stdout may be the trace."""
    length = write_seconds(recording.ended - recording.begun)
    where = f" to {' and '.join(places)}" if places else ""
    error = f"; clocks aligned to {write_seconds(recording.error)}" if len(recording.names) > 1 else ""
    click.echo(f"wrote {len(found)} spans of {len(recording.names)} nodes in {length}{where}{error}", err=True)
    for note in recording.notes:
        click.echo(f"note: {note}", err=True)
    sys.stderr.flush()

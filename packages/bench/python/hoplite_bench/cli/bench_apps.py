"""`hoplite bench apps`: compares applications on plain Ray and on Ray with Hoplite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hoplite.tools.cli.options import json_option
from hoplite.tools.cli.output import print_json, print_table
from hoplite.tools.progress import Progress
from hoplite_bench.cli import bench_options

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ("sync", "async", "samples", "gradients", "serving", "one-to-all")
# Applications that wait for the first results only; they continue when a worker is killed.
FAIL = ("async", "serving")


@click.command()
@click.option("--lab", "hosts", type=click.IntRange(3, 64), default=8, show_default=True, help="Number of hosts.")
@click.option("--rate", default="1gbit", show_default=True, help="Rate of each host's link.")
@bench_options.flow_cap
@click.option("--app", "apps", type=click.Choice(NAMES), multiple=True, help="Application; repeatable.  [default: all]")
@click.option("--model", help="resnet50, alexnet, vgg16 or a size.  [default: depends on the application]")
@click.option("--slow", is_flag=True, help="Limit the last host to a tenth of the rate.")
@click.option("--fail", is_flag=True, help="Kill a worker in each run; only for async and serving.")
@click.option(
    "--workers-per-host",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Workers on each host except the first.",
)
@click.option(
    "--compute",
    default="0",
    show_default=True,
    help='Compute time of each worker call in seconds, or "wire": the time of one transfer.',
)
@click.option(
    "--turns",
    type=click.IntRange(1, 100),
    default=2,
    show_default=True,
    help="Number of runs with Hoplite, and of runs without.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the results to this file as JSON.")
@click.option("--no-install", is_flag=True, help="Use Ray only if it is already installed.")
@json_option("Print one JSON object instead of the table.")
def apps(**options: Any) -> None:  # noqa: ANN401 - the type that click passes
    """Compare Ray applications with and without Hoplite.

    Runs of both kinds alternate on one cluster, and every result is verified. The applications are in examples/ray_apps
    of a checkout. Requires root, for a lab of network namespaces, and installs Ray from PyPI.

    \b
    Example:
      hoplite bench apps --lab 8 --rate 1gbit --app async --model resnet50
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_bench import apps as job
    from hoplite_bench.environments import Environments
    from hoplite_bench.lab import Lab

    bench_options.refuse_debug_build()
    settings = job.Settings(
        apps=list(dict.fromkeys(options["apps"])) or list(FAIL if options["fail"] else NAMES),
        model=job.model_bytes(options["model"]) if options["model"] else None,
        per_host=options["workers_per_host"],
        compute=_compute(options["compute"]),
        turns=options["turns"],
        slow=options["slow"],
        fail=options["fail"],
    )
    if settings.fail and (others := [name for name in settings.apps if name not in FAIL]):
        flags = " --app ".join(FAIL)
        raise click.UsageError(f"--fail kills a worker, but {others[0]} waits for every worker: set --app {flags}")
    with (
        bench_options.running(None),
        Progress("creating the lab") as progress,
        Lab(hosts=options["hosts"], rate=options["rate"], flow_cap=options["flow_cap"]) as lab,
    ):
        environments = Environments(install=not options["no_install"])
        found = job.measure(lab, environments, settings, progress.notify)
    if options["out"]:
        options["out"].write_text(json.dumps(found, indent=1) + "\n")
    if options["as_json"]:
        print_json(found)
    else:
        _print(found)


def _compute(text: str) -> float | None:
    if text == "wire":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise click.BadParameter(
            f'{text!r} is not a number of seconds: set one such as 0.5, or "wire"', param_hint="--compute"
        )
    return seconds


def _print(found: Mapping[str, Any]) -> None:
    """Prints one line per application."""
    lines = []
    for row in found["apps"]:
        of, lines_of_plain = row["changed"]
        lines.append(
            [
                row["app"],
                f"{row['bytes'] / 2**20:.3g} MiB",
                f"{row['count']} of {row['workers']}",
                *(f"{row[way]['median']:.2f} s" for way in ("plain", "with_hoplite")),
                f"{row['faster']:.2f}×",
                f"{row['bound']:.3g}×",
                f"{of} of {lines_of_plain}",
            ]
        )
    head = ("app", "size", "waits for", "plain Ray", "with Hoplite", "faster", "at most", "changed lines")
    print_table(head, lines, whole=2)
    if found["settings"]["fail"]:
        click.echo("")
        _print_failures(found)


def _print_failures(found: Mapping[str, Any]) -> None:
    """Prints the step times before a worker was killed and until it was back."""
    from hoplite_bench.apps import failures

    lines = [
        [
            row["app"],
            words,
            *(f"{seconds:.2f} s" for seconds in (one["before"], one["while_gone"], one["longest"], one["back_s"])),
        ]
        for row in found["apps"]
        for way, words in (("plain", "plain Ray"), ("with_hoplite", "with Hoplite"))
        for one in [failures(row, way)]
    ]
    print_table(("app", "", "step before", "mean step while down", "longest step", "recovered after"), lines, whole=2)

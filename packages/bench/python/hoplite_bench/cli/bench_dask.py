"""`hoplite bench dask`: compares scatter of Dask with scatter of `hoplite.dask`."""

from __future__ import annotations

import click

from hoplite.sizes import check_size
from hoplite.tools.cli.options import json_option
from hoplite.tools.cli.output import print_json
from hoplite.tools.progress import Progress
from hoplite_bench.cli import bench_options


@click.command()
@click.option("--lab", "hosts", type=click.IntRange(2, 64), default=8, show_default=True, help="Number of hosts.")
@click.option("--rate", default="1gbit", show_default=True, help="Rate of each host's link.")
@bench_options.flow_cap
@click.option("--size", default="64MiB", show_default=True, help="Size of the array.")
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of rounds per system."
)
@click.option("--no-install", is_flag=True, help="Use Dask only if it is already installed.")
@json_option("Print one JSON object.")
def dask(hosts: int, rate: str, flow_cap: str | None, size: str, repeats: int, no_install: bool, as_json: bool) -> None:
    """Compare Dask's scatter with that of hoplite.dask.

    Both run on one Dask cluster, and every worker's copy is verified. Requires root, for a lab of network namespaces,
    and installs Dask from PyPI. Dask's active memory manager is stopped, because it would delete the copies.

    \b
    Example:
      hoplite bench dask --lab 8 --size 64MiB
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_bench import dask_scatter as job
    from hoplite_bench.environments import Environments
    from hoplite_bench.lab import Lab

    bench_options.refuse_debug_build()
    nbytes = check_size("size", size)
    with (
        bench_options.running(None),
        Progress("measuring both scatters"),
        Lab(hosts=hosts, rate=rate, flow_cap=flow_cap) as lab,
    ):
        found = job.measure(lab, Environments(install=not no_install), nbytes=nbytes, repeats=repeats)
    if as_json:
        print_json(found)
    else:
        click.echo(job.summary(found))

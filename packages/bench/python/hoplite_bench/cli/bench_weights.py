"""`hoplite bench weights`: measures the delivery of model weights with `hoplite.torch`."""

from __future__ import annotations

from typing import Any

import click

from hoplite.errors import InvalidArgument
from hoplite.sizes import check_size
from hoplite.tools.cli.options import json_option
from hoplite.tools.cli.output import print_json
from hoplite.tools.progress import Progress
from hoplite_bench.cli import bench_options


@click.command()
@click.option(
    "--receivers", type=click.IntRange(2, 63), default=8, show_default=True, help="Number of hosts that receive."
)
@click.option(
    "--trainers", type=click.IntRange(1, 32), default=1, show_default=True, help="Hosts that publish, as ranks of FSDP."
)
@click.option(
    "--parts",
    type=click.IntRange(1, 32),
    default=1,
    show_default=True,
    help="Ranks of tensor parallelism among the receivers, which bring their part.",
)
@click.option("--rate", default="1gbit", show_default=True, help="Rate of each host's link.")
@bench_options.flow_cap
@click.option("--size", default="256MiB", show_default=True, help="Size of the module.")
@click.option("--bucket", help="Publish objects of at most this size.  [default: 8 MiB, as publish]")
@click.option("--capacity", help="Capacity of the store on each receiver.  [default: three versions]")
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of rounds per step."
)
@click.option("--no-install", is_flag=True, help="Use PyTorch only if it is already installed.")
@json_option("Print one JSON object.")
def weights(**options: Any) -> None:  # noqa: ANN401 - the type that click passes
    """Measure how fast published weights reach the modules of receivers.

    Compares the time from the publication to the last update with one plain TCP stream of what a receiver brings, and
    the switch to a staged version with a copy in memory. Also measures a receiver that joins midway, and receivers'
    memory. Every module is verified. Requires root, for a lab of network namespaces, and installs PyTorch from PyPI (6
    GB).

    \b
    Example:
      hoplite bench weights --receivers 8 --size 256MiB
      hoplite bench weights --trainers 4 --receivers 8 --parts 4
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    from hoplite_bench import weights as job
    from hoplite_bench.environments import Environments
    from hoplite_bench.lab import Lab

    bench_options.refuse_debug_build()
    nbytes = check_size("size", options["size"])
    if nbytes < 4 or nbytes % 4:
        raise InvalidArgument(f"{nbytes} bytes are not a module of float32: set --size to a multiple of 4")
    if nbytes < 4 * options["parts"]:
        raise InvalidArgument(f"{nbytes} bytes are fewer than {options['parts']} float32: set a larger --size")
    with (
        bench_options.running(None),
        Progress("creating the lab") as progress,
        Lab(
            hosts=options["receivers"] + options["trainers"], rate=options["rate"], flow_cap=options["flow_cap"]
        ) as lab,
    ):
        found = job.measure(
            lab,
            Environments(install=not options["no_install"]),
            nbytes=nbytes,
            repeats=options["repeats"],
            trainers=options["trainers"],
            parts=options["parts"],
            **{name: options[name] and check_size(name, options[name]) for name in ("bucket", "capacity")},
            notify=progress.notify,
        )
    if options["as_json"]:
        print_json(found)
    else:
        click.echo(job.summary(found))

"""Compares `scatter` of Dask and of `hoplite.dask` on a Dask cluster in a lab: the time until all workers have a copy.

Starts the cluster like `systems/dask.py`; `ranks/dask_scatter.py` does the timing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError
from hoplite_bench import machine
from hoplite_bench.places import python_path
from hoplite_bench.systems.base import RANKS
from hoplite_bench.systems.dask import PORT, SETTINGS, Dask

if TYPE_CHECKING:
    from hoplite_bench.environments import Environments
    from hoplite_bench.lab import Lab

# Timeout of the whole run.
TIMEOUT_S = 900.0


def measure(lab: Lab, environments: Environments, *, nbytes: int, repeats: int) -> dict[str, Any]:
    """Measures both systems.

    Args:
        lab: the hosts; each gets a worker, the first also the scheduler and the client.
        environments: where Dask is installed.
        nbytes: size of the array.
        repeats: rounds of each system.

    Returns:
        "machine" and "settings"; "dask" and "hoplite", each with "seconds" (until `scatter` returned, for each round),
        their "median", and "used", the median until a task on every worker had used the array; "faster", the speedup by
        Hoplite.

    Raises:
        HopliteError: a worker got wrong data, or a program failed; includes its output.
        Unavailable: Dask can't be installed.
    """
    python = environments.python("dask", Dask.requirements)
    head = lab.hosts[0]
    scheduler = f"tcp://{head.address}:{PORT}"
    environment = {**_environment(), **SETTINGS, "PYTHONPATH": f"{RANKS}:{python_path()}"}
    with tempfile.TemporaryDirectory(prefix="hoplite-") as folder:
        commands = [
            (head, ["scheduler", "--host", head.address, "--port", str(PORT)]),
            *(
                (
                    host,
                    [
                        *("worker", scheduler, "--host", host.address, "--nthreads", "1", "--no-nanny"),
                        *("--memory-limit", "0", "--local-directory", f"{folder}/{host.number}"),
                    ],
                )
                for host in lab.hosts
            ),
        ]
        log = Path(folder) / "log"
        with log.open("w") as output:
            for host, (what, *command) in commands:
                command += ["--no-dashboard", "--dashboard-address", f"{host.address}:0"]
                host.popen(
                    [python, "-m", f"distributed.cli.dask_{what}", *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            done = head.run(
                [
                    *(python, RANKS / "dask_scatter.py", "--scheduler", scheduler, "--workers", str(len(lab.hosts))),
                    *("--nbytes", str(nbytes), "--repeats", str(repeats)),
                ],
                env=environment,
                timeout=TIMEOUT_S,
            )
        if done.returncode:
            said = done.stderr[-2000:] + log.read_text()[-2000:]
            raise HopliteError(f"the Dask client exited with status {done.returncode}: {said}")
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    if wrong := [f"{row['system']}: {row['wrong']}" for row in rounds if row["wrong"]]:
        raise HopliteError(f"a worker received wrong data: {wrong[0]}")
    found: dict[str, Any] = {
        "machine": machine.facts(),
        "settings": {
            "hosts": len(lab.hosts),
            "bytes": nbytes,
            "repeats": repeats,
            **{name: lab.facts()[name] for name in ("rate", "flow_cap")},
        },
    }
    for system in ("dask", "hoplite"):
        seconds = [row["seconds"] for row in rounds if row["system"] == system]
        used = [row["used"] for row in rounds if row["system"] == system]
        found[system] = {
            "seconds": seconds,
            "median": statistics.median(seconds),
            "used": statistics.median(used),
        }
    found["faster"] = found["dask"]["median"] / found["hoplite"]["median"]
    return found


def _environment() -> dict[str, str]:
    """The environment variables of this process that programs on a host inherit."""
    return {name: text for name, text in os.environ.items() if not name.startswith(("HOPLITE_", "PYTHON"))}


def summary(found: dict[str, Any]) -> str:
    """Formats the results for people."""
    settings = found["settings"]
    what = f"scatter of {settings['bytes'] / 2**20:g} MiB to {settings['hosts']} workers, one per host"
    lines = [f"{what}, {settings['repeats']} interleaved rounds each, every worker's copy verified:"]
    for system, name in (("dask", "Dask, scatter(broadcast=True)"), ("hoplite", "hoplite.dask.scatter")):
        row = found[system]
        lines.append(
            f"{name:30} {row['median']:.3f} s ({min(row['seconds']):.3f} to {max(row['seconds']):.3f}), "
            f"{row['used']:.3f} s until every worker had used it"
        )
    lines.append(f"hoplite.dask.scatter is {found['faster']:.1f} times as fast as Dask")
    return "\n".join(lines)

"""`scatter` of Dask and of `hoplite.dask` on one Dask cluster, on hosts of a lab: how long until every worker has it.

Starts the cluster as `systems/dask.py` does; what is timed is in `ranks/dask_scatter.py`.
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

# Of the whole run.
TIMEOUT_S = 900.0


def measure(lab: Lab, environments: Environments, *, nbytes: int, repeats: int) -> dict[str, Any]:
    """Measures both.

    Args:
        lab: whose hosts get a worker each; the first also has the scheduler and the client.
        environments: where Dask is installed.
        nbytes: of the array.
        repeats: rounds of each.

    Returns:
        "machine" and "settings"; "dask" and "hoplite", each with "seconds" (until `scatter` returned, of each round),
        their "median" and "used", the median until a task on every worker had used the array; "faster", how many times
        Hoplite is as fast.

    Raises:
        HopliteError: a worker got something else, or a program failed; with what it said.
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
            raise HopliteError(f"the client ended with {done.returncode}: {said}")
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    if wrong := [f"{row['system']}: {row['wrong']}" for row in rounds if row["wrong"]]:
        raise HopliteError(f"a worker got something else: {wrong[0]}")
    found: dict[str, Any] = {
        "machine": machine.facts(),
        "settings": {"hosts": len(lab.hosts), "bytes": nbytes, "repeats": repeats, "rate": lab.facts()["rate"]},
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
    """What programs on a host need of this process's environment."""
    return {name: text for name, text in os.environ.items() if not name.startswith(("HOPLITE_", "PYTHON"))}


def summary(found: dict[str, Any]) -> str:
    """The figures in words."""
    settings = found["settings"]
    what = f"scatter of {settings['bytes'] / 2**20:g} MiB to {settings['hosts']} workers on as many hosts"
    lines = [f"{what}, {settings['repeats']} rounds each by turns, every worker's copy compared:"]
    for system, name in (("dask", "Dask, scatter(broadcast=True)"), ("hoplite", "hoplite.dask.scatter")):
        row = found[system]
        lines.append(
            f"{name:30} {row['median']:.3f} s ({min(row['seconds']):.3f} to {max(row['seconds']):.3f}), "
            f"{row['used']:.3f} s until every worker had used it"
        )
    lines.append(f"{found['faster']:.1f} times as fast")
    return "\n".join(lines)

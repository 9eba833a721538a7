"""Systems with made-up times and failures, which selections measure as they measure libraries."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hoplite_bench.systems import Launch, System, Unavailable, Variant
from hoplite_bench.systems.base import RANKS, this_python

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite_bench.environments import Environments

PROGRAM = """
import os, sys, time
sys.path.insert(0, {ranks!r})
from rank import Rank, arguments, serve

class Stub(Rank):
    def prepare(self, task):
        self.task = task
        return ""
    def run(self, task, tokens, at):
        last = task.rank == task.ranks - 1
        if task.variant != "forced" and last:
            if options.behavior == "crash":
                print("out of luck", flush=True)
                os._exit(3)
            if options.behavior == "hang":
                time.sleep(3600)
            if options.behavior == "raise":
                raise OSError("no route")
        time.sleep(options.latency + task.nbytes * options.slope)
    def check(self, task):
        return "element 3 is off" if options.behavior == "wrong" else ""

parser = arguments()
parser.add_argument("behavior")
parser.add_argument("latency", type=float)
parser.add_argument("slope", type=float)
options = parser.parse_args()
if options.behavior == "late":
    time.sleep(3600)
serve(Stub(), control=options.control, number=options.rank, ranks=options.ranks, version="1.0")
"""


@dataclasses.dataclass
class Stub(System):
    """A system whose operations take a latency and a time per byte.

    Attributes:
        name: its name; that of a real system if a default is needed.
        program: its rank program, as `written` creates it.
        latency: seconds.
        slope: seconds per byte.
        behavior: good, or what goes wrong: crash, hang, raise, wrong, late, missing, unavailable.
        forced: whether it has a second variant, which never fails.
    """

    name: str
    program: Path
    latency: float = 0.002
    slope: float = 0.0
    behavior: str = "good"
    forced: bool = False

    def prepare(self, environments: Environments) -> None:  # noqa: ARG002
        if self.behavior == "unavailable":
            raise Unavailable("there is no wheel for this machine")

    def variants(self, op: str) -> list[Variant]:  # noqa: ARG002
        return [Variant(), Variant("forced", "forced")] if self.forced else [Variant()]

    def memory(self, op: str, hosts: int, nbytes: int) -> int:  # noqa: ARG002
        return hosts * nbytes

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002
        command = [*this_python(), self.program] if self.behavior != "missing" else ["/nonexistent/mpirun"]
        for host in launch.hosts:
            own = [self.behavior, str(self.latency), str(self.slope)]
            launch.spawn(host, [*command, *own, *launch.rank_options(host)])


def written(folder: Path) -> Path:
    """Writes the rank program of all stubs."""
    path = folder / "stub.py"
    path.write_text(PROGRAM.format(ranks=str(RANKS)))
    return path

"""The server and the workers of one job on a cluster, and what is known of its run."""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

from hoplite.tools.bench.steady import figures
from hoplite.tools.bench.steady.job import Job
from hoplite.tools.bench.steady.patterns import PATTERNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite.tools.bench.steady.cluster import Cluster, Process
    from hoplite.tools.lab import Host
    from hoplite.tools.lab.hosts import Moved


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run measures.

    Attributes:
        pattern: a name in `PATTERNS`.
        nbytes: of each object.
        steps: of the run.
        fault: a name in `FAULTS`, or "none".
        per_host: workers on each host but the server's.
        survey: whether nodes survey which hosts share a rack.
    """

    pattern: str
    nbytes: int
    steps: int
    fault: str = "none"
    per_host: int = 1
    survey: bool = True

    @property
    def variant(self) -> str:
        """What differs from the default, for the row."""
        parts = [self.fault] if self.fault != "none" else []
        parts += [f"{self.per_host} workers a host"] if self.per_host > 1 else []
        parts += [] if self.survey else ["no survey"]
        return ", ".join(parts) or "default"


@dataclasses.dataclass
class Sample:
    """The links and the source at one moment of a run.

    Attributes:
        step: steps that were done.
        at: the machine's monotonic clock.
        moved: bytes that each host has sent and received, headers too.
        direct: payload bytes that the server's node has sent of its own clients' objects.
    """

    step: int
    at: float
    moved: list[Moved]
    direct: int


class Team:
    """The server and the workers of one job.

    Args:
        cluster: the nodes.
        settings: what runs.
        server: the number of the server's host.
    """

    def __init__(self, cluster: Cluster, settings: Settings, server: int = 0) -> None:
        hosts = cluster.lab.hosts
        self.settings = settings
        self.home = hosts[server]
        self._cluster = cluster
        self._places = [host for host in hosts if host is not self.home for _ in range(settings.per_host)]
        workers = len(self._places)
        self.job = Job(
            pattern=settings.pattern,
            prefix=f"job{server}/",
            socket=str(cluster.socket(self.home)),
            nbytes=settings.nbytes,
            workers=workers,
            count=PATTERNS[settings.pattern].answers(workers),
            steps=settings.steps,
        )
        self.workers = {number: self._worker(number) for number in range(workers)}
        self.server = cluster.start(self.home, "server", self.job)
        self.ends: list[float] = []
        self.retries = 0
        self.samples: list[Sample] = []
        # Where the run is divided, and where it is sampled.
        self._edges = figures.edges(settings.steps)

    @property
    def processes(self) -> list[Process]:
        """All of them."""
        return [self.server, *self.workers.values()]

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return len(self.ends) > self.settings.steps

    def kill(self, host: Host) -> Callable[[], None]:
        """Kills the first worker of a host; returns what starts it again."""
        number = self._places.index(host)
        self.workers.pop(number).close()

        def restart() -> None:
            self.workers[number] = self._worker(number)

        return restart

    def take(self, line: dict[str, Any], report: Callable[[str], None]) -> None:
        """Takes a line of the server: the beginning of the run, or the end of a step.

        Args:
            line: what it wrote.
            report: takes a line on the progress, after each tenth.
        """
        self.ends.append(line["at"])
        self.retries = line.get("retries", 0)
        done = len(self.ends) - 1
        if done not in self._edges:
            return
        self.sample()
        if done:
            own = figures.steps_of(self.ends)[self._edges[self._edges.index(done) - 1] :]
            report(f"{self.job.pattern}: step {done} of {self.job.steps}, median {statistics.median(own):.3f} s")

    def check(self) -> None:
        """Raises HopliteError if a worker has ended."""
        for worker in self.workers.values():
            worker.check()

    def sample(self) -> None:
        """Samples the links and the source."""
        client = self._cluster.clients[self.home.number]
        self.samples.append(
            Sample(
                len(self.ends) - 1,
                time.monotonic(),
                [host.moved() for host in self._cluster.lab.hosts],
                client.status()["counters"]["bytes_direct"],
            )
        )

    def _worker(self, number: int) -> Process:
        host = self._places[number]
        job = dataclasses.replace(self.job, socket=str(self._cluster.socket(host)), worker=number)
        return self._cluster.start(host, "worker", job)

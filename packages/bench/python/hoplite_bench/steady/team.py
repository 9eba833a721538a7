"""The server and the workers of one job on a cluster, and the measurements of its run."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from hoplite_bench.steady import figures
from hoplite_bench.steady.job import Job
from hoplite_bench.steady.patterns import PATTERNS, READERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite_bench.lab import Host
    from hoplite_bench.lab.hosts import Moved
    from hoplite_bench.steady.cluster import Cluster, Process


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes:
        pattern: a name in `PATTERNS`.
        nbytes: size of each object.
        steps: number of steps.
        fault: a name in `FAULTS`, or "none".
        per_host: workers on each host except the server's.
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
        """The deviations from the defaults, for the row."""
        parts = [self.fault] if self.fault != "none" else []
        parts += [f"{self.per_host} workers per host"] if self.per_host > 1 else []
        parts += [] if self.survey else ["no survey"]
        return ", ".join(parts) or "default"


@dataclasses.dataclass
class Sample:
    """The state of the links and the source at one moment of a run.

    Attributes:
        step: number of finished steps.
        at: monotonic clock of the machine.
        moved: bytes that each host has sent and received, including headers.
        direct: payload bytes that the server's node has sent of its own clients' objects.
    """

    step: int
    at: float
    moved: list[Moved]
    direct: int


class Team:
    """The running processes of one job.

    Args:
        cluster: the nodes.
        settings: settings of the run.
        server: number of the server's host.
    """

    def __init__(self, cluster: Cluster, settings: Settings, server: int = 0) -> None:
        self.settings = settings
        self.pattern = PATTERNS[settings.pattern]
        self._cluster = cluster
        self._home = cluster.lab.hosts[server]
        others = [host for host in cluster.lab.hosts if host is not self._home]
        chosen = others[:READERS] if self.pattern.alone else others
        self._places = [host for host in chosen for _ in range(settings.per_host)]
        workers = len(self._places)
        self.job = Job(
            pattern=settings.pattern,
            prefix=f"job{server}/",
            socket=str(cluster.socket(self._home)),
            nbytes=settings.nbytes,
            workers=workers,
            count=self.pattern.answers(workers),
            steps=settings.steps,
            reports=not self.pattern.alone,
        )
        self._server = cluster.start(self._home, self.job, "server")
        self._workers = {number: self._worker(number) for number in range(workers)}
        cluster.wait_ready([self._server, *self._workers.values()])
        # Times at which the run began and each step ended: for each process that reports, and for all of them.
        self._reports: dict[Process, list[float]] = {process: [] for process in self.reporters}
        self.ends: list[float] = []
        self.retries = 0
        self.samples: list[Sample] = []
        self._edges = figures.edges(settings.steps)

    @property
    def reporters(self) -> list[Process]:
        """The processes that wait for the start of the run and report each step."""
        return list(self._workers.values()) if self.pattern.alone else [self._server]

    @property
    def steps(self) -> int:
        """The number of finished steps."""
        return max(0, len(self.ends) - 1)

    @property
    def done(self) -> bool:
        """Whether all steps are finished."""
        return self.steps == self.settings.steps

    def has_ended(self, process: Process) -> bool:
        """Whether a process has reported all of its steps, and may end."""
        return len(self._reports[process]) > self.settings.steps

    def kill(self, host: Host) -> Callable[[], None]:
        """Kills the first worker of a host; returns a function that starts it again."""
        number = self._places.index(host)
        self._workers.pop(number).close()

        def restart() -> None:
            self._workers[number] = self._worker(number)

        return restart

    def take(self, process: Process, line: dict[str, Any]) -> None:
        """Records a report of a process: the beginning of the run, or the end of a step."""
        self._reports[process].append(line["at"])
        self.retries = max(self.retries, line.get("retries", 0))
        before = len(self.ends)
        if before < min(map(len, self._reports.values())):
            self.ends.append(max(ends[before] for ends in self._reports.values()))
            if self.steps in self._edges:
                self._sample()

    def finish(self) -> None:
        """Samples the end of a run that was cut short."""
        if self.samples[-1].step < self.steps:
            self._sample()

    def check(self) -> None:
        """Raises HopliteError if a process has ended too early."""
        for process in (*self._workers.values(), self._server):
            if process not in self.reporters:
                process.check()

    def _sample(self) -> None:
        client = self._cluster.clients[self._home.number]
        moved = [host.moved() for host in self._cluster.lab.hosts]
        direct = client.status()["counters"]["bytes_direct"]
        self.samples.append(Sample(self.steps, time.monotonic(), moved, direct))

    def _worker(self, number: int) -> Process:
        host = self._places[number]
        socket = str(self._cluster.socket(host))
        job = dataclasses.replace(self.job, socket=socket, worker=number, reports=self.pattern.alone)
        return self._cluster.start(host, job, f"worker {number}")

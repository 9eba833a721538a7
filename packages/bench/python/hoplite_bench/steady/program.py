"""The entry point of a process on a host: `python -m hoplite_bench.steady.program JOB`."""

from __future__ import annotations

import sys
from typing import Protocol

import hoplite
from hoplite_bench.steady import eviction, server, serving, worker
from hoplite_bench.steady.job import Job, report


class Role(Protocol):
    """The work of a process."""

    def __init__(self, job: Job, client: hoplite.Client) -> None: ...

    def run(self) -> None:
        """Works until the steps are done, or until the process is killed."""


# The roles of server and worker in each pattern.
ROLES: dict[str, tuple[type[Role], type[Role]]] = {
    "async": (server.Server, worker.Worker),
    "sync": (server.Server, worker.Worker),
    "samples": (server.SampleServer, worker.Worker),
    "gradients": (server.Server, worker.Worker),
    "serving": (serving.Frontend, serving.Model),
    "eviction": (eviction.Holder, eviction.Reader),
}


def main() -> None:
    """Attaches to the node of the host and takes part in one job."""
    job = Job.from_command_line()
    with hoplite.init(f"unix:{job.socket}") as client:
        role = ROLES[job.pattern][job.worker >= 0](job, client)
        report(ready=True)
        if job.reports:
            sys.stdin.readline()
        role.run()


if __name__ == "__main__":
    main()

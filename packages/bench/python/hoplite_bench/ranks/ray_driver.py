"""Represents all ranks of Ray: calls an actor on each host; Ray transfers arguments and results.

It is what a user of Ray would write. Except in a round trip, actors put arrays before the clock runs, and the driver
passes the refs to the actors that need them. One actor that takes all arrays computes a sum.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import ray

from content import DTYPE, fill, wrong_at
from rank import Rank, Task, arguments, serve, sleep_until

# Starting sixteen nodes takes half a minute on two cores.
START_TIMEOUT_S = 300.0
# Timeout of one call; the timeout of the bench is shorter.
CALL_TIMEOUT_S = 900.0


class Holder:
    """The arrays of a host: its own, and those that it received."""

    def __init__(self) -> None:
        self.own = np.empty(0, DTYPE)
        self.came: list[np.ndarray] = []

    def make(self, nbytes: int, rank: int, seed: int) -> None:
        """Creates this host's array."""
        self.own = np.empty(nbytes // DTYPE.itemsize, DTYPE)
        fill(self.own, rank=rank, seed=seed)

    def put(self) -> list[ray.ObjectRef]:
        """Puts this host's array into its store; returns the ref in a list, because Ray would resolve a bare ref."""
        return [ray.put(self.own)]

    def give(self) -> np.ndarray:
        """Returns this host's array, so that Ray puts it."""
        return self.own

    def take(self, *arrays: np.ndarray) -> int:
        """Stores arrays that Ray has transferred, and returns the time at which they were available."""
        self.came.extend(arrays)
        return time.monotonic_ns()

    def take_and_return(self, array: np.ndarray) -> np.ndarray:
        """Stores an array and returns it, so that Ray puts it again."""
        self.came.append(array)
        return array

    def add(self, *arrays: np.ndarray) -> int:
        """Adds arrays to the sum of those that arrived before; returns the time at which it was done."""
        for array in arrays:
            if self.came:
                np.add(self.came[0], array, out=self.came[0])
            else:
                self.came.append(array.copy())
        return time.monotonic_ns()

    def total(self) -> np.ndarray:
        """Returns the sum, so that Ray puts it."""
        return self.came[0]

    def compare(self, task: Task, rank: int) -> str:
        """Compares the received arrays with the expected ones, and drops them."""
        came, self.came, self.own = self.came, [], np.empty(0, DTYPE)
        return wrong_at(came, op=task.op, nbytes=task.nbytes, rank=rank, ranks=task.ranks, seed=task.seed)


class RayDriver(Rank):
    """The program that a user of Ray runs."""

    def __init__(self, *, ranks: int, shared_clock: bool) -> None:
        self.shared_clock = shared_clock
        holder: Any = ray.remote(Holder)
        self.holders = [holder.options(resources={f"rank{rank}": 1}).remote() for rank in range(ranks)]
        self.refs: list[ray.ObjectRef] = []

    def prepare(self, task: Task) -> str:
        """Makes the hosts create and put their arrays; for a round trip, they are put once the clock runs."""
        self.refs = []
        owners = self.holders[:1] if task.op in ("rtt", "broadcast") else self.holders
        get([holder.make.remote(task.nbytes, rank, task.seed) for rank, holder in enumerate(owners)])
        if task.op != "rtt":
            self.refs = [ref for (ref,) in get([holder.put.remote() for holder in owners])]
        return ""

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int]:  # noqa: ARG002
        """Starts the operation, and waits until the last participant has its result."""
        sleep_until(at)
        called = time.monotonic_ns()
        ends = get(self.call(task, called))
        end = max(ends) if self.shared_clock else time.monotonic_ns()
        last = 1 if task.op == "rtt" else task.ranks - 1
        return called + last * task.arrival_ns, end

    def call(self, task: Task, called: int) -> list[ray.ObjectRef]:
        """Makes the calls of an operation, rank by rank as they arrive; returns refs of the times of completion."""
        root, *others = self.holders
        if task.op == "rtt":
            sleep_until(called + task.arrival_ns)
            return [root.take.remote(others[0].take_and_return.remote(root.give.remote()))]
        if task.op == "broadcast":
            ends = []
            for rank, holder in enumerate(others, 1):
                sleep_until(called + rank * task.arrival_ns)
                ends.append(holder.take.remote(*self.refs))
            return ends
        take = root.take if task.op == "gather" else root.add
        if task.arrival_ns:
            ends = []
            for rank, ref in enumerate(self.refs):
                sleep_until(called + rank * task.arrival_ns)
                ends.append(take.remote(ref))
        else:
            ends = [take.remote(*self.refs)]
        if task.op == "allreduce":
            total = root.total.remote()
            ends += [holder.take.remote(total) for holder in others]
        return ends

    def check(self, task: Task) -> str:
        """Makes every host compare its received arrays; drops all refs."""
        self.refs = []
        said = get([holder.compare.remote(task, rank) for rank, holder in enumerate(self.holders)])
        return "; ".join(f"rank {rank}: {why}" for rank, why in enumerate(said) if why)


def get(refs: list[ray.ObjectRef]) -> list[Any]:
    """Gets the values of some results."""
    values: list[Any] = ray.get(refs, timeout=CALL_TIMEOUT_S)
    return values


def connect(address: str, host: str, ranks: int) -> None:
    """Connects to a cluster that is starting, and waits for all of its nodes."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            ray.init(address=address, _node_ip_address=host, log_to_driver=False)
            break
        except (ConnectionError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    while (alive := sum(node["Alive"] for node in ray.nodes())) < ranks:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {alive} of {ranks} Ray nodes were alive after {START_TIMEOUT_S:g} s")
        time.sleep(0.1)


def main() -> None:
    """Takes part until the bench disconnects."""
    parser = arguments()
    parser.add_argument("--address", required=True, help="host:port of the head of the cluster")
    parser.add_argument("--host", required=True, help="address of this host")
    parser.add_argument("--shared-clock", action="store_true", help="all hosts share one monotonic clock")
    options = parser.parse_args()
    connect(options.address, options.host, options.ranks)
    driver = RayDriver(ranks=options.ranks, shared_clock=options.shared_clock)
    # Actors start in the background. The first call waits for them, so that no round has to.
    get([holder.make.remote(0, 0, 0) for holder in driver.holders])
    serve(driver, control=options.control, number=-1, ranks=options.ranks, version=ray.__version__)


if __name__ == "__main__":
    main()

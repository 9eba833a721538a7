"""Represents all ranks of Dask: submits tasks to the worker of each host; Dask transfers their arguments.

It is what a user of Dask would write. Arrays are results of tasks and stay on the worker that created them. Their
futures are arguments of tasks on other hosts. One task that takes all arrays computes a sum.
"""

from __future__ import annotations

import time
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from distributed import Client, Future, Worker, __version__, get_worker, wait

from content import DTYPE, fill, wrong_at
from rank import Rank, Task, arguments, serve, sleep_until

if TYPE_CHECKING:
    from collections.abc import Callable

# Starting sixteen workers takes half a minute on two cores.
START_TIMEOUT_S = 300.0
# Timeout of one task; the timeout of the bench is shorter.
TASK_TIMEOUT_S = 900.0
REPLICATE = "replicate"


def make(nbytes: int, rank: int, seed: int) -> np.ndarray:
    """Creates a host's array."""
    own = np.empty(nbytes // DTYPE.itemsize, DTYPE)
    fill(own, rank=rank, seed=seed)
    return own


def take(first: int, *arrays: np.ndarray) -> None:
    """Stores arrays that Dask has transferred, with the rank of each, and records the time of the last.

    Args:
        first: rank of the first array; the others belong to the ranks after it. Tasks of one worker end in any order,
            so only the rank identifies an array.
        arrays: received arrays.
    """
    worker = get_worker()
    worker.came = [*getattr(worker, "came", []), *enumerate(arrays, first)]
    worker.ended = time.monotonic_ns()


def take_and_return(array: np.ndarray) -> np.ndarray:
    """Stores an array of rank 0, and returns it, which creates a future of it."""
    take(0, array)
    return array


def give(array: np.ndarray) -> np.ndarray:
    """Returns an array, which creates another future of it."""
    return array


def add(*arrays: np.ndarray) -> np.ndarray:
    """Adds arrays, and stores only the sum."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        np.add(total, array, out=total)
    get_worker().came = []
    take(0, total)
    return total


def ended(dask_worker: Worker) -> int:
    """The time at which a worker received its last array; runs outside tasks, where Dask passes the worker by name."""
    at: int = getattr(dask_worker, "ended", 0)
    return at


def compare(task: Task, rank: int) -> str:
    """Compares the received arrays with the expected ones, and drops them."""
    worker = get_worker()
    came, worker.came = getattr(worker, "came", []), []
    arrays = [array for _, array in sorted(came, key=itemgetter(0))]
    return wrong_at(arrays, op=task.op, nbytes=task.nbytes, rank=rank, ranks=task.ranks, seed=task.seed)


class DaskDriver(Rank):
    """The program that a user of Dask runs."""

    def __init__(self, client: Client, *, ranks: int, shared_clock: bool) -> None:
        self.client = client
        self.shared_clock = shared_clock
        workers = client.scheduler_info(n_workers=-1)["workers"]
        addresses = {worker["name"]: address for address, worker in workers.items()}
        self.workers = [addresses[f"rank{rank}"] for rank in range(ranks)]
        self.arrays: list[Future] = []

    def prepare(self, task: Task) -> str:
        """Makes the workers create their arrays."""
        self.arrays = []
        owners = 1 if task.op in ("rtt", "broadcast") else task.ranks
        self.arrays = [self.submit(make, task.nbytes, rank, task.seed, rank=rank) for rank in range(owners)]
        settle(self.arrays)
        return ""

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int]:  # noqa: ARG002
        """Submits the tasks of an operation, and waits until the last participant has its result."""
        sleep_until(at)
        called = time.monotonic_ns()
        last = called + (1 if task.op == "rtt" else task.ranks - 1) * task.arrival_ns
        if task.variant == REPLICATE:
            # One call makes all copies, so it waits for the last participant.
            sleep_until(last)
            return last, self.replicate()
        settle(self.call(task, called))
        end = time.monotonic_ns()
        if self.shared_clock:
            end = max(self.client.run(ended).values())
        return last, end

    def call(self, task: Task, called: int) -> list[Future]:
        """Submits the tasks of an operation, rank by rank as they arrive."""
        others = range(1, task.ranks)
        if task.op == "rtt":
            sleep_until(called + task.arrival_ns)
            there = self.submit(take_and_return, self.submit(give, *self.arrays, rank=0), rank=1)
            return [self.submit(take, 0, there, rank=0)]
        if task.op == "broadcast":
            takes = []
            for rank in others:
                sleep_until(called + rank * task.arrival_ns)
                takes.append(self.submit(take, 0, *self.arrays, rank=rank))
            return takes
        # All arrays in one task, or one task per arriving array.
        batches = [[array] for array in self.arrays] if task.arrival_ns else [self.arrays]
        done = []
        for number, arrays in enumerate(batches):
            sleep_until(called + number * task.arrival_ns)
            if task.op == "gather":
                done.append(self.submit(take, number, *arrays, rank=0))
            else:
                done = [self.submit(add, *done, *arrays, rank=0)]
        if task.op == "allreduce":
            done += [self.submit(take, 0, *done, rank=rank) for rank in others]
        return done

    def replicate(self) -> int:
        """Copies the array to all workers; they store it after the clock has stopped."""
        self.client.replicate(self.arrays, workers=self.workers)
        end = time.monotonic_ns()
        settle([self.submit(take, 0, *self.arrays, rank=rank) for rank in range(1, len(self.workers))])
        return end

    def check(self, task: Task) -> str:
        """Makes every worker compare its received arrays; drops all futures."""
        self.arrays = []
        compared = [self.submit(compare, task, rank, rank=rank) for rank in range(task.ranks)]
        said = self.client.gather(compared)
        return "; ".join(f"rank {rank}: {why}" for rank, why in enumerate(said) if why)

    def submit(self, function: Callable[..., object], *values: object, rank: int) -> Future:
        """Runs a function once, only on the worker of a rank."""
        return self.client.submit(
            function, *values, workers=[self.workers[rank]], allow_other_workers=False, pure=False
        )


def settle(futures: list[Future]) -> None:
    """Waits until all tasks are done; raises the exception of a failed one."""
    wait(futures, timeout=TASK_TIMEOUT_S)
    for future in futures:
        if future.status != "finished":
            future.result(timeout=TASK_TIMEOUT_S)


def main() -> None:
    """Takes part until the bench disconnects."""
    parser = arguments()
    parser.add_argument("--scheduler", required=True, help="tcp://host:port")
    parser.add_argument("--shared-clock", action="store_true", help="all hosts share one monotonic clock")
    options = parser.parse_args()
    with Client(options.scheduler, timeout=START_TIMEOUT_S) as client:
        client.wait_for_workers(options.ranks, timeout=START_TIMEOUT_S)
        driver = DaskDriver(client, ranks=options.ranks, shared_clock=options.shared_clock)
        serve(driver, control=options.control, number=-1, ranks=options.ranks, version=__version__)


if __name__ == "__main__":
    main()

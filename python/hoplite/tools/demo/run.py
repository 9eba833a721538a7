"""The trainer of the demo, and the cluster around it: four nodes in this process, eight worker processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hoplite.errors import HopliteError
from hoplite.testing import cluster
from hoplite.tools import demo, peace
from hoplite.tools.demo import network
from hoplite.tools.demo.display import Display, Progress
from hoplite.tools.quantities import write_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client

NODES = 4
WORKERS = 8

# Gradients in a sum. One worker is late, one leaves and one is slow: five of the eight can always arrive.
COUNT = 5

# Accuracy no longer grows after some 120.
STEPS = 160
LEARNING_RATE = 0.05
MOMENTUM = 0.8

TEST_IMAGES = 360
ACCURACY_MIN = 0.95

SLOW_WORKER, SLOW_PAUSE_S = 2, 0.5
LEAVING_WORKER = 5
LATE_WORKER = 7

# Accuracy is measured so often; each measurement costs as much as two gradients.
EVALUATE_EVERY = 5

# Longer than any step takes on a busy machine.
PATIENCE_S = 60.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        accuracy: share of test images named right at the end, 0 to 1.
        steps: how many sums were applied.
        seconds: how long the training took, from the start of the nodes.
        bytes_direct: payload sent from objects that clients of the sender had put.
        bytes_relayed: payload sent on from copies and from results that grew.
        bytes_folded_remote: payload folded at nodes that are not the trainer's.
        bytes_folded_local: payload folded at the trainer's node.
        contributions: gradients of each worker that went into a sum.
        disturbances: what had to begin again, failed or was refused at a node, though nothing was broken.
    """

    accuracy: float
    steps: int
    seconds: float
    bytes_direct: int
    bytes_relayed: int
    bytes_folded_remote: int
    bytes_folded_local: int
    contributions: list[int]
    disturbances: list[str]

    def as_json(self) -> dict[str, Any]:
        """What `hoplite demo --json` prints."""
        facts = dataclasses.asdict(self)
        del facts["bytes_folded_local"]
        return facts

    def complaints(self) -> list[str]:
        """Why the run failed, in sentences; empty if it did what it should show."""
        complaints = []
        if self.accuracy <= ACCURACY_MIN:
            complaints.append(f"accuracy is {self.accuracy:.1%}, not above {ACCURACY_MIN:.0%}")
        if self.bytes_relayed == 0:
            complaints.append("no byte was relayed: every copy came from where the object was put")
        if self.bytes_folded_remote == 0:
            complaints.append("no sum was folded away from the trainer's node")
        return complaints


def main(*, steps: int = STEPS, show: bool = True) -> Outcome:
    """Runs the whole job.

    Args:
        steps: how many sums to train with.
        show: draw a live display on the terminal.

    Raises:
        HopliteError: a worker failed, or too few gradients came.
    """
    train_images, train_labels, test_images, test_labels = _digits()
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(cluster(NODES))
        clients = [stack.enter_context(node.client()) for node in nodes]
        hp = clients[0]
        workers = stack.enter_context(_workers([node.socket for node in nodes], steps))
        progress = Progress(steps=steps, count=COUNT, nodes=NODES, workers=WORKERS)
        progress.traits.update({SLOW_WORKER: "slow", LEAVING_WORKER: "leaves half way", LATE_WORKER: "joins late"})
        display = stack.enter_context(Display(progress, show=show))

        hp.put(train_images, name=demo.IMAGES)
        hp.put(train_labels, name=demo.LABELS)
        weights = network.initial(seed=0)
        velocity = np.zeros_like(weights)
        _publish(hp, 0, weights, progress.contributions, done=False)
        for worker in range(WORKERS):
            if worker != LATE_WORKER:
                workers.start(worker)

        for step in range(1, steps + 1):
            if step == 1 + steps // 3:
                workers.start(LATE_WORKER)
            names = [demo.gradient(worker, number) for worker, number in enumerate(progress.contributions)]
            total = hp.reduce(names, op="sum", count=COUNT)
            velocity *= MOMENTUM
            velocity += _get(hp, total, workers) / COUNT
            weights -= LEARNING_RATE * velocity

            folded = total.inputs(timeout=PATIENCE_S)
            progress.last = {int(str(ref).split("/")[1]) for ref in folded}
            for worker in progress.last:
                progress.contributions[worker] += 1
            _publish(hp, step, weights, progress.contributions, done=step == steps)
            hp.delete([total, *folded])
            if step >= 2:
                hp.delete([demo.policy(step - 2), demo.plan(step - 2)])

            if step % EVALUATE_EVERY == 0 or step == steps:
                progress.accuracy = network.accuracy(weights, test_images, test_labels)
            progress.step = step
            progress.seconds = time.monotonic() - start
            progress.counters = [client.status()["counters"] for client in clients]
            progress.running = workers.running()
            display.update()
        workers.finish()
        # Workers read until the very end, so the last counters come after them.
        progress.counters = [client.status()["counters"] for client in clients]
        seconds = time.monotonic() - start

    def moved(counter: str) -> int:
        return sum(counters[counter] for counters in progress.counters)

    return Outcome(
        accuracy=progress.accuracy,
        steps=steps,
        seconds=round(seconds, 1),
        bytes_direct=moved("bytes_direct"),
        bytes_relayed=moved("bytes_relayed"),
        bytes_folded_remote=moved("bytes_folded_remote"),
        bytes_folded_local=moved("bytes_folded_local"),
        contributions=progress.contributions,
        disturbances=[
            f"node {number} counted {said}"
            for number, counters in enumerate(progress.counters)
            for said in peace.disturbances(counters)
        ],
    )


def summary(outcome: Outcome) -> str:
    """What `hoplite demo` says at the end."""
    folded = outcome.bytes_folded_remote + outcome.bytes_folded_local
    away = outcome.bytes_folded_remote / folded if folded else 0.0
    return f"""\
test accuracy {outcome.accuracy:.1%} after {outcome.steps} sums of {COUNT} gradients of {WORKERS}, {outcome.seconds} s
gradients used, by worker: {" ".join(map(str, outcome.contributions))}
sent {write_size(outcome.bytes_direct)} from where it was put, relayed {write_size(outcome.bytes_relayed)} from copies
folded {write_size(folded)}, {away:.0%} of it away from the trainer's node
restarted, failed or refused, though nothing was broken: {", ".join(outcome.disturbances) or "nothing"}

next: run a node on this host with `hoplite node`, look at it with `hoplite status`,
      and use it from Python: import hoplite; hp = hoplite.init()"""


def _digits() -> tuple[network.Floats, network.Labels, network.Floats, network.Labels]:
    """The 1797 digits of scikit-learn, shuffled: images and labels to train with, then those to test with."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    return images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES]


def _publish(hp: Client, step: int, weights: network.Floats, taken: list[int], *, done: bool) -> None:
    # The plan first: who sees the weights finds it.
    hp.put(json.dumps({"taken": taken, "done": done}).encode(), name=demo.plan(step))
    hp.put(weights, name=demo.policy(step))


def _get(hp: Client, total: Any, workers: _Workers) -> network.Floats:  # noqa: ANN401
    try:
        value: network.Floats = hp.get(total, timeout=PATIENCE_S)
    except HopliteError:
        # A worker that failed says more than the sum that is missing because of it.
        workers.check()
        raise
    return value


class _Workers:
    """The worker processes, two on each node."""

    def __init__(self, sockets: list[str], steps: int) -> None:
        self._sockets = sockets
        self._steps = steps
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, worker: int) -> None:
        """Starts one worker."""
        socket = self._sockets[worker * len(self._sockets) // WORKERS]
        command = [sys.executable, "-m", "hoplite.tools.demo.worker"]
        command += ["--socket", socket, "--worker", str(worker)]
        if worker == SLOW_WORKER:
            command += ["--pause", str(SLOW_PAUSE_S)]
        if worker == LEAVING_WORKER:
            command += ["--leave-after", str(self._steps // 2)]
        self._processes[worker] = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def running(self) -> set[int]:
        """The workers whose processes run."""
        return {worker for worker, process in self._processes.items() if process.poll() is None}

    def check(self) -> None:
        """Raises if a worker has failed."""
        for worker, process in self._processes.items():
            if process.poll():
                raise HopliteError(f"worker {worker} failed with exit code {process.returncode}")

    def finish(self) -> None:
        """Waits until all have left by themselves; raises if one failed."""
        for process in self._processes.values():
            process.wait(PATIENCE_S)
        self.check()

    def kill(self) -> None:
        """Ends those that still run."""
        for process in self._processes.values():
            process.kill()
            process.wait()


@contextlib.contextmanager
def _workers(sockets: list[str], steps: int) -> Iterator[_Workers]:
    workers = _Workers(sockets, steps)
    try:
        yield workers
    finally:
        workers.kill()

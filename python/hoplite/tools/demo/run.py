"""The trainer of the demo. It starts four nodes in this process and eight worker processes."""

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

# Number of gradients in a sum. One worker joins late, one leaves and one is slow: five of the eight can always arrive.
COUNT = 5

# Accuracy stops increasing after about 120 steps.
STEPS = 160
LEARNING_RATE = 0.05
MOMENTUM = 0.8

TEST_IMAGES = 360
ACCURACY_MIN = 0.95

SLOW_WORKER, SLOW_PAUSE_S = 2, 0.5
LEAVING_WORKER = 5
LATE_WORKER = 7

# Steps between measurements of accuracy. One measurement costs as much as two gradients.
EVALUATE_EVERY = 5

# Longer than any step takes on a busy machine.
PATIENCE_S = 60.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes:
        accuracy: share of test images classified correctly at the end, 0 to 1.
        steps: number of training steps.
        seconds: duration of the training, including the start of the nodes.
        bytes_direct: bytes sent of objects that the sender's own clients put.
        bytes_relayed: bytes sent of copies that the sender received, and of results of reduces on the sender.
        bytes_folded_remote: bytes of inputs folded on nodes other than the trainer's.
        bytes_folded_local: bytes of inputs folded on the trainer's node.
        contributions: number of gradients that were used, by worker.
        disturbances: counters of restarts, failures and rejections that increased, although there was no fault.
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
        """Returns the output of `hoplite demo --json`."""
        facts = dataclasses.asdict(self)
        del facts["bytes_folded_local"]
        return facts

    def complaints(self) -> list[str]:
        """Lists the reasons why the run failed; empty if it succeeded."""
        complaints = []
        if self.accuracy <= ACCURACY_MIN:
            complaints.append(f"test accuracy is {self.accuracy:.1%}, and must be above {ACCURACY_MIN:.0%}")
        if self.bytes_relayed == 0:
            complaints.append("no bytes were relayed: every copy came from the node on which the object was put")
        if self.bytes_folded_remote == 0:
            complaints.append("no inputs were folded on nodes other than the trainer's")
        return complaints


def main(*, steps: int = STEPS, show: bool = True) -> Outcome:
    """Runs the demo.

    Args:
        steps: number of training steps.
        show: whether to draw the progress.

    Raises:
        HopliteError: a worker failed, or too few gradients arrived in time.
    """
    train_images, train_labels, test_images, test_labels = _digits()
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(cluster(NODES))
        clients = [stack.enter_context(node.client()) for node in nodes]
        hp = clients[0]
        workers = stack.enter_context(_workers([node.socket for node in nodes], steps))
        progress = Progress(steps=steps, count=COUNT, nodes=NODES, workers=WORKERS)
        progress.traits.update({SLOW_WORKER: "slow", LEAVING_WORKER: "leaves halfway", LATE_WORKER: "joins late"})
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
        # Workers receive objects until they exit, so read the final counters after that.
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
            f"node {number} counted {increase}"
            for number, counters in enumerate(progress.counters)
            for increase in peace.disturbances(counters)
        ],
    )


def summary(outcome: Outcome) -> str:
    """Returns the final output of `hoplite demo`."""
    folded = outcome.bytes_folded_remote + outcome.bytes_folded_local
    away = outcome.bytes_folded_remote / folded if folded else 0.0
    return f"""\
test accuracy {outcome.accuracy:.1%} after {outcome.steps} steps in {outcome.seconds} s; \
each step summed the first {COUNT} of {WORKERS} gradients
gradients used, by worker: {" ".join(map(str, outcome.contributions))}
sent {write_size(outcome.bytes_direct)} from the nodes on which objects were put, \
relayed {write_size(outcome.bytes_relayed)} from received copies
folded {write_size(folded)}, {away:.0%} of it on nodes other than the trainer's
unexpected restarts, failures and rejections: {", ".join(outcome.disturbances) or "none"}

next: start a node on this host:  hoplite node
      show its state:             hoplite status
      use it in Python:           import hoplite; hp = hoplite.init()"""


def _digits() -> tuple[network.Floats, network.Labels, network.Floats, network.Labels]:
    """Returns the 1797 digits of scikit-learn, shuffled: training images and labels, then test images and labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    return images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES]


def _publish(hp: Client, step: int, weights: network.Floats, taken: list[int], *, done: bool) -> None:
    # Put the plan first, so that a worker that has the weights finds it.
    hp.put(json.dumps({"taken": taken, "done": done}).encode(), name=demo.plan(step))
    hp.put(weights, name=demo.policy(step))


def _get(hp: Client, total: Any, workers: _Workers) -> network.Floats:  # noqa: ANN401
    try:
        value: network.Floats = hp.get(total, timeout=PATIENCE_S)
    except HopliteError:
        # If a worker failed, its error explains more than the sum that is missing because of it.
        workers.check()
        raise
    return value


class _Workers:
    """The worker processes, two per node."""

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
        # In a process group of its own: Ctrl-C ends the trainer, which ends the workers.
        self._processes[worker] = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)

    def running(self) -> set[int]:
        """Returns the workers whose processes run."""
        return {worker for worker, process in self._processes.items() if process.poll() is None}

    def check(self) -> None:
        """Raises an error if a worker has failed."""
        for worker, process in self._processes.items():
            if process.poll():
                raise HopliteError(f"worker {worker} failed with exit code {process.returncode}")

    def finish(self) -> None:
        """Waits until all workers have exited; raises an error if one failed."""
        for process in self._processes.values():
            process.wait(PATIENCE_S)
        self.check()

    def kill(self) -> None:
        """Kills the workers that still run."""
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

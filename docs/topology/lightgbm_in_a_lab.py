"""Trains LightGBM on eight hosts of a lab of two racks, in the order of the planner and in another order.

As root: `python docs/topology/lightgbm_in_a_lab.py`. LightGBM is installed from PyPI into its own environment. Its
farthest ranks exchange the largest part. The other order has the bits of its ranks reversed. It is the best order for
libraries whose neighbors exchange the largest part, such as MPICH. The rows of a rank do not depend on its host, so
both orders must give the same model.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hoplite_bench.lab import Host, Lab

REQUIREMENTS = ("lightgbm==4.7.0", "numpy==2.4.6")
RACKS = [4, 4]
RATE, BITS = "200mbit", 200e6
# Each exchange of histograms is FEATURES * 256 bins * 16 bytes: 1.6 MB.
FEATURES, ROWS, ROUNDS = 400, 1000, 5
SETTINGS = {
    "objective": "regression",
    "num_leaves": 8,
    "tree_learner": "data",
    "pre_partition": True,
    "num_threads": 1,
    # Otherwise LightGBM chooses the faster way, and another choice sums in another order.
    "force_col_wise": True,
    "deterministic": True,
    "seed": 1,
    "verbosity": -1,
}
PORT = 12400
TURNS = 3
PATIENCE_S = 120
# LightGBM also logs its connections to stdout.
MARK = "answer "


@dataclass(frozen=True)
class Trained:
    """The measurements of one training.

    Attributes:
        seconds: duration of each iteration on rank 0.
        uplink_bytes: bytes that both uplinks carried out of the racks.
        host_bytes: bytes that all hosts sent.
        models: the model of each rank, as text.
    """

    seconds: list[float]
    uplink_bytes: int
    host_bytes: int
    models: list[str]


def planned(lab: Lab) -> list[Host]:
    """Returns the hosts in the order that the planner writes for LightGBM. Its input has them in random order."""
    shuffled = random.Random(1).sample(lab.hosts, len(lab.hosts))
    topology = {
        "format": "hoplite topology 1",
        "hosts": [{"name": host.name, "address": host.address, "groups": [f"rack-{host.rack}"]} for host in shuffled],
        "uplinks": {f"rack-{rack}": BITS for rack in range(len(RACKS))},
        "nic": BITS,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(topology))
        file.flush()
        command = [sys.executable, "-m", "hoplite.tools.cli", "topology", "plan", "--topology", file.name]
        command += ["--algorithm", "halving-doubling", "--library", "lightgbm", "--format", "lightgbm"]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
    by_address = {host.address: host for host in lab.hosts}
    return [by_address[line.split()[0]] for line in said.stdout.splitlines()]


def reversed_bits(order: list[Host]) -> list[Host]:
    """Moves the host of each rank to the rank whose bits are reversed."""
    bits = (len(order) - 1).bit_length()
    return [order[int(f"{rank:0{bits}b}"[::-1], 2)] for rank in range(len(order))]


def train(lab: Lab, python: Path, order: list[Host], port: int) -> Trained:
    """Trains with one rank on each host. Each rank bins its rows, then waits for all others.

    Raises:
        RuntimeError: if a rank ends early.
    """
    machines = ",".join(f"{host.address}:{port}" for host in order)
    ranks = [
        host.popen(
            [python, Path(__file__), "--rank", str(rank), "--machines", machines],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank, host in enumerate(order)
    ]  # fmt: skip

    def told() -> list[str]:
        answers = [next((line for line in rank.stdout or () if line.startswith(MARK)), "") for rank in ranks]
        if not all(answers):
            raise RuntimeError(f"rank {answers.index('')} of LightGBM ended")
        return [answer.removeprefix(MARK) for answer in answers]

    try:
        told()
        before = carried(lab)
        for rank in ranks:
            print("go", file=rank.stdin, flush=True)
        ends = [json.loads(line) for line in told()]
        uplinks, hosts = (now - then for now, then in zip(carried(lab), before, strict=True))
        for rank in ranks:
            rank.communicate(timeout=PATIENCE_S)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return Trained(ends[0]["seconds"], uplinks, hosts, [end["model"] for end in ends])


def carried(lab: Lab) -> tuple[int, int]:
    """Returns the bytes that have left the racks, and those that have left the hosts."""
    return sum(rack.moved().out_bytes for rack in lab.racks), sum(host.moved().out_bytes for host in lab.hosts)


def answer(words: str) -> None:
    """Prints a line for the program that started this rank."""
    print(MARK + words, flush=True)  # noqa: T201


def rank_main(rank: int, machines: str) -> None:
    """Runs one rank in the environment of LightGBM: generates its rows, and trains."""
    import lightgbm
    import numpy as np

    chance = np.random.default_rng(rank)
    rows = chance.standard_normal((ROWS, FEATURES))
    labels = rows[:, :20].sum(axis=1) + rows[:, 20] * rows[:, 21] + chance.standard_normal(ROWS)
    count = machines.count(",") + 1
    port = int(machines.rpartition(":")[2])
    network = {"machines": machines, "local_listen_port": port, "num_machines": count, "time_out": 2}
    booster = lightgbm.Booster({**SETTINGS, **network}, lightgbm.Dataset(rows, labels))
    booster.update()
    answer("ready")
    sys.stdin.readline()
    seconds = []
    for _ in range(ROUNDS):
        start = time.monotonic()
        booster.update()
        seconds.append(time.monotonic() - start)
    # Its parameters contain the machines in their order, which differs.
    model = booster.model_to_string().partition("\nparameters:")[0]
    answer(json.dumps({"seconds": seconds, "model": model}))


def main() -> None:
    """Trains in both orders alternately, compares the models, and prints a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options.add_argument("--machines", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.rank is not None:
        rank_main(given.rank, given.machines)
        return
    from hoplite_bench.environments import Environments
    from hoplite_bench.lab import Lab

    python = Environments().python("lightgbm", REQUIREMENTS)
    done: dict[str, list[Trained]] = {}
    with Lab(racks=RACKS, rate=RATE, uplink=RATE) as lab:
        order = planned(lab)
        orders = {"planned for LightGBM": order, "bits reversed": reversed_bits(order)}
        for turn in range(TURNS):
            for place, (name, hosts) in enumerate(orders.items()):
                port = PORT + turn * len(orders) + place
                done.setdefault(name, []).append(train(lab, python, hosts, port))
    show(orders, done)


def show(orders: dict[str, list[Host]], done: dict[str, list[Trained]]) -> None:
    """Prints a table, and fails if the result is not as expected.

    Raises:
        SystemExit: if the models differ, or the planned order is not faster.
    """
    lines = ["| order | hosts by rank | seconds per iteration | over the uplinks | out of hosts |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    medians = []
    for name, trainings in done.items():
        medians.append(statistics.median(second for one in trainings for second in one.seconds))
        places = " ".join(str(host.number) for host in orders[name])
        uplinks = statistics.median(one.uplink_bytes for one in trainings) / ROUNDS / 1e6
        sent = statistics.median(one.host_bytes for one in trainings) / ROUNDS / 1e6
        lines.append(f"| {name} | {places} | {medians[-1]:.2f} | {uplinks:.1f} MB | {sent:.1f} MB |")
    first, second = medians
    models = {model for trainings in done.values() for one in trainings for model in one.models}
    alike = "all models are the same" if len(models) == 1 else f"there are {len(models)} different models"
    lines.append(f"The reversed order takes {second / first:.2f} times as long; {alike}.")
    print("\n".join(lines))  # noqa: T201
    if len(models) != 1 or second <= first:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

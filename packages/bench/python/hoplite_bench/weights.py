"""Measures the delivery of model weights with `hoplite.torch` in a lab: from the hosts of a trainer to all others.

Starts the ranks of `ranks/weights_rank.py` like a system of the bench, and repeats each step next to one plain TCP
stream of the same bytes. All systems but the measured one are frozen meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from typing import TYPE_CHECKING, Any

from hoplite_bench import machine, plan, words
from hoplite_bench.group import Group
from hoplite_bench.hosts import Agents, of_lab
from hoplite_bench.places import python_path
from hoplite_bench.row import STREAM, WIRE
from hoplite_bench.systems.base import RANKS, System, Variant
from hoplite_bench.systems.hoplite import settings
from hoplite_bench.systems.pytorch import ENVIRONMENT, REQUIREMENTS, SETTINGS
from hoplite_bench.systems.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hoplite_bench.environments import Environments
    from hoplite_bench.hosts import Network
    from hoplite_bench.lab import Lab
    from hoplite_bench.systems.base import Launch

PORT = 17424
# Size of the round that precedes each measured one, to use every connection after a freeze.
SMALL_BYTES = 1 << 16
# Tensors of the step "tensors", of 64 bytes each.
TENSORS, TENSOR_BYTES = 20_000, 64
# Versions that fit into the store of a host: the retained one, the next one, and a third.
VERSIONS = 3
# The timed steps, and the steps whose memory is recorded; first without and then with a staged version.
TIMED = (("update", "join", "tensors"), ("switch", "memcpy"))
RECORDED = (("update",), ("stage",))
MEMORY = ("memory", "private memory")
# What the time of a step is compared with.
BASES = {"update": WIRE, "join": WIRE, "switch": "memcpy"}


class Weights(System):
    """A trainer on the first hosts and a receiver on each other host, each with an embedded node.

    Args:
        midway_s: time from the publication until the last receiver calls in "join".
        trainers: hosts of the trainer, which publish the same share of the rows of each tensor.
        parts: ranks of tensor parallelism that the receivers are in turn; each brings its part.
        bucket: bytes of an object of a publication; None is the default of `publish`.
        capacity: capacity of a receiver's store, in bytes; None is that of the publisher.
    """

    name = "weights"

    def __init__(
        self,
        midway_s: float,
        *,
        trainers: int = 1,
        parts: int = 1,
        bucket: int | None = None,
        capacity: int | None = None,
    ) -> None:
        self.midway_s = midway_s
        self.trainers = trainers
        self.parts = parts
        self.bucket = bucket
        self.capacity = capacity
        self.python: Path | None = None

    def prepare(self, environments: Environments) -> None:
        """Creates the environment of PyTorch.

        Raises:
            Unavailable: the wheels can't be installed.
        """
        self.python = environments.python(ENVIRONMENT, REQUIREMENTS)

    def variants(self, op: str) -> list[Variant]:  # noqa: ARG002 - all steps have one
        """One variant."""
        return [Variant()]

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it has one group
        """Starts a rank on each host; all nodes join the first."""
        assert self.python is not None, "start was called before prepare"
        for host in launch.hosts:
            is_small = self.capacity and host.number >= self.trainers
            capacity = self.capacity if is_small else launch.memory_bytes
            options = [
                *launch.rank_options(host),
                *("--listen", f"{host.address}:{PORT}", "--join", f"{launch.hosts[0].address}:{PORT}"),
                *("--nodes", str(len(launch.hosts))),
                *("--capacity", str(capacity), "--socket", str(launch.folder / f"{host.number}.sock")),
                *("--midway-ns", str(round(self.midway_s * 1e9))),
                *("--trainers", str(self.trainers), "--parts", str(self.parts)),
                *(["--bucket", str(self.bucket)] if self.bucket else []),
            ]
            environment = {**SETTINGS, **settings(), "PYTHONPATH": python_path()}
            launch.spawn(host, [self.python, RANKS / "weights_rank.py", *options], env=environment)


def measure(
    lab: Lab,
    environments: Environments,
    *,
    nbytes: int,
    repeats: int,
    trainers: int = 1,
    parts: int = 1,
    bucket: int | None = None,
    capacity: int | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measures all steps.

    Args:
        lab: the hosts: the trainers, and a receiver on each other host.
        environments: where PyTorch is installed.
        nbytes: size of the module; a multiple of 4.
        repeats: rounds of each step.
        trainers: hosts that publish, each its rows of all tensors, as with FSDP.
        parts: number of ranks of tensor parallelism. Each receiver is one in turn: it brings rows of some matrices and
            columns of others. With 1, it brings everything.
        bucket: bytes of an object of a publication; None is the default of `publish`.
        capacity: capacity of a receiver's store, in bytes; None has room for three versions, as the publisher's. If it
            has no room for one, nothing is staged.
        notify: called with a progress message when a step begins.

    Returns:
        "machine" and "settings"; for each step, and for "wire", a plain TCP stream of as many bytes as a receiver
        brings, its "seconds" of each round and their "median", where
        "update" runs from the publication until the last module is updated, "join" from the call of a receiver that
        joins midway until its module is updated, "tensors" publishes 20 000 tensors of 64 bytes and fetches them on
        one host, "switch" copies a staged version into the module, and "memcpy" copies the same bytes; "terms", the
        seconds of each of these tensors ("tensor"), and of each byte that a receiver brings in "update" ("byte");
        "ratios" of the first two to the wire, and of the switch to the copy; "memory", the most bytes
        that a receiver's process used beyond its module: "update" and "stage", with and without its node's store. If
        nothing is staged, "switch", "memcpy" and "stage" are missing.

    Raises:
        Unavailable: PyTorch can't be installed.
        GroupFailed: a rank failed, or a module is wrong.
        AgentFailed: a host can't be reached.
    """
    network = of_lab(lab)
    midway_s = nbytes // parts * 8 / network.rate / 2
    weights = Weights(midway_s, trainers=trainers, parts=parts, bucket=bucket, capacity=capacity)
    wire = Wire()
    weights.prepare(environments)
    # A staged version stays in the store.
    kinds = 2 if capacity is None or capacity > nbytes else 1
    timed, recorded = itertools.chain(*TIMED[:kinds]), itertools.chain(*RECORDED[:kinds])
    seconds: dict[str, list[float]] = {name: [] for name in (WIRE, *timed)}
    memory: dict[str, dict[str, int]] = {}
    with Agents(network) as agents, contextlib.ExitStack() as undo:
        groups = {}
        for system in (wire, weights):
            notify(f"starting {system.name}")
            # The small tensors need a store too.
            group = Group(system, "default", network, agents, VERSIONS * max(nbytes, 2 * TENSORS * TENSOR_BYTES))
            group.start()
            undo.callback(group.stop)
            group.freeze()
            # Norms are brought whole: less than a thousandth.
            groups[system.name] = Steps(group, network, nbytes // parts // 4 * 4 if system is wire else nbytes)
        for step in recorded:
            # They are the warm-up too: recording slows a step down.
            notify(f"memory of {step}")
            memory[step] = {what: groups[weights.name].run(step, what)[1] for what in MEMORY}
        # All rounds of a step in a row, as a program has them: a store keeps as much free memory as is used.
        for step, taken in seconds.items():
            notify(f"{repeats} rounds of {step}")
            size = TENSORS * TENSOR_BYTES if step == "tensors" else nbytes
            for _ in range(repeats):
                if step == WIRE:
                    found = groups[WIRE].run("broadcast", STREAM)
                else:
                    found = groups[weights.name].run(step, size=size)
                taken.append(found[0])
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    return {
        "machine": machine.facts(),
        "settings": {
            "trainers": trainers,
            "receivers": len(lab.hosts) - trainers,
            "parts": parts,
            "bytes": nbytes,
            "bucket": bucket,
            "capacity": capacity,
            "repeats": repeats,
            **{name: lab.facts()[name] for name in ("rate", "flow_cap")},
        },
        **{name: {"seconds": taken, "median": medians[name]} for name, taken in seconds.items()},
        "terms": {"tensor": medians["tensors"] / TENSORS, "byte": medians["update"] / (nbytes // parts)},
        "ratios": {step: medians[step] / medians[base] for step, base in BASES.items() if step in medians},
        "memory": memory,
    }


class Steps:
    """The rounds of one group, each alone on the machine.

    Args:
        group: the group; it is frozen.
        network: the hosts.
        nbytes: size of the module.
    """

    def __init__(self, group: Group, network: Network, nbytes: int) -> None:
        self._group = group
        self._nbytes = nbytes
        self._timeout_s = plan.step_timeout_s(plan.Cell("broadcast", nbytes), len(network.hosts), network.rate)
        self._seed = 0

    def run(self, step: str, variant: str = "default", size: int | None = None) -> tuple[float, int]:
        """Runs a step once, after a small one; returns its seconds and the memory that it recorded.

        Args:
            step: the step.
            variant: its variant.
            size: size of the module in bytes; None is that of the group.
        """
        self._group.thaw()
        self._round("update" if self._group.system.name == "weights" else step, "", min(SMALL_BYTES, self._nbytes))
        found = self._round(step, variant, self._nbytes if size is None else size)
        self._group.freeze()
        return found

    def _round(self, step: str, variant: str, nbytes: int) -> tuple[float, int]:
        self._seed += 1
        done = self._group.round(step, nbytes, variant=variant, seed=self._seed, timeout_s=self._timeout_s, weigh=False)
        return done.seconds, done.extra_bytes


def summary(found: dict[str, Any]) -> str:
    """Formats the results for people."""
    settings, ratios = found["settings"], found["ratios"]
    receivers = words.count(settings["receivers"], "receiver")
    steps = {
        WIRE: "one plain TCP stream of the same bytes",
        "update": "publish until the last module is updated",
        "join": "receiver that joins midway, from its call",
        "memcpy": "copy of the same bytes in memory",
        "switch": "switch() to the staged version",
    }
    trainers, parts = settings["trainers"], settings["parts"]
    source = "" if trainers == 1 else f" from {trainers} ranks of a trainer"
    share = "" if parts == 1 else f", each of which brings 1/{parts}"
    what = f"weights of {words.size(settings['bytes'])}{source} to {receivers}{share}"
    lines = [f"{what}, {settings['repeats']} rounds, verified:"]
    for name, what in steps.items():
        if name in found:
            taken = found[name]["seconds"]
            ratio = f", {ratios[name]:.2f} × {BASES[name]}" if name in BASES else ""
            lines.append(f"{what:42} {found[name]['median']:.3f} s ({min(taken):.3f} to {max(taken):.3f}){ratio}")
    tensor, byte = found["terms"]["tensor"] * 1e6, found["terms"]["byte"] * 1e9
    lines.append(
        f"a version takes {tensor:.1f} us for each tensor and {byte:.2f} ns for each byte that a receiver brings"
    )
    for step, memory in found["memory"].items():
        total, private = (words.memory(memory[kind]) for kind in MEMORY)
        lines.append(f"memory of a receiver, {step}, beyond its module: {total}, without the store {private}")
    return "\n".join(lines)

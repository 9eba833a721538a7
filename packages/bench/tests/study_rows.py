"""Rows of a synthetic study: times from a formula, with everything that a report must be able to show.

The fastest library of a gather between containers is another than elsewhere, NCCL has no GPU, Open MPI fails in one
cell of one set-up, and another set-up is unavailable if `without` names it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from bench_rows import row
from hoplite_bench.study import matrix

if TYPE_CHECKING:
    from hoplite_bench.row import Row

MACHINE = {"processor": "Some Processor @ 2.0 GHz", "cores": 2, "memory_gib": 24.0, "kernel": "6.1.0"}
VERSIONS = {
    "wire": "",
    "mpich": "5.0.2",
    "openmpi": "5.0.11",
    "gloo": "0.5",
    "hoplite": "0.1.0",
    "torch-mpi": "2.15.0, Open MPI 5.0.11",
    "torch-gloo": "2.15.0",
    "torch-hoplite": "2.15.0, 0.1.0",
}
# Seconds of a broadcast to one worker, in and between containers, and the transports there.
MODELS: dict[tuple[str, str], tuple[float, float, str, str]] = {
    ("wire", "stream"): (0.030, 0.045, "loopback TCP", "TCP"),
    ("mpich", "default"): (0.020, 0.110, "CMA", "TCP"),
    ("openmpi", "default"): (0.024, 0.120, "shared memory", "TCP"),
    ("gloo", "default"): (0.070, 0.080, "loopback TCP", "TCP"),
    ("hoplite", "default"): (0.009, 0.090, "shared memory", "TCP"),
    ("hoplite", "own memory"): (0.021, 0.100, "shared memory", "TCP"),
    ("torch-mpi", "default"): (0.030, 0.130, "shared memory", "TCP"),
    ("torch-gloo", "default"): (0.075, 0.090, "loopback TCP", "TCP"),
    ("torch-hoplite", "default"): (0.035, 0.110, "shared memory", "TCP"),
}
# Time of an operation with some workers, in multiples of a broadcast to one.
WEIGHTS = {"broadcast": 1.0, "gather": 1.4, "allgather": 1.8, "allreduce": 2.1, "train-ps": 4.0, "train-allreduce": 3.0}
SETUPS = {"bare": 1.0, "hpc": 1.03, "single": 0.97, "cross": 1.1}
# Relative distance of repeats from the median.
SPREAD = (1.01, 0.98, 1.0, 1.04, 0.99, 1.0, 1.02, 0.985, 1.0, 1.0)
NO_GPU = "needs 4 GPUs, this machine has none"
FAILED = "a process exited with status 1; its last line: 'no memory'"


def study_row(system: str, container: str, op: str, workers: int, **fields: Any) -> Row:  # noqa: ANN401
    """One row of the study; `fields` override its fields."""
    variant = "stream" if system == "wire" else "default"
    told: dict[str, Any] = {
        "system": system,
        "variant": variant,
        "version": VERSIONS.get(system, ""),
        "op": op,
        "hosts": matrix.ranks_of(op, workers),
        "bytes": 46_800_000 if op in matrix.TRAINING else 64 << 20,
        "repeats": 10,
        "container": container,
        "layer": matrix.layer_of(system),
        "machine": MACHINE,
        "lab": {"kind": "study", "container": container, "runtime": "none" if container == "bare" else "runc 1.1.5"},
        "wire_ratio": 1.0,
    }
    return row(**(told | fields))


def matrix_rows(*, workers: tuple[int, ...] = (1, 2, 3, 4), without: str = "") -> list[Row]:
    """All systems in all set-ups."""
    rows = []
    for container, op, count in itertools.product(matrix.CONTAINERS, (*matrix.OPS, *matrix.TRAINING), workers):
        if op in matrix.TRAINING and count != workers[-1]:
            continue
        for (system, variant), model in MODELS.items():
            if op in matrix.TRAINING and matrix.layer_of(system) != matrix.TORCH and system != "wire":
                continue
            rows.append(_row(system, variant, model, container, op, count, without))
        if op in matrix.OPS:
            rows.append(study_row("torch-nccl", container, op, count, samples=[], verified=False, note=NO_GPU))
    return rows


def _row(
    system: str, variant: str, model: tuple[float, float, str, str], container: str, op: str, workers: int, without: str
) -> Row:
    inside, between, near, far = model
    why = ""
    if matrix.ranks_of(op, workers) == 1:
        why = matrix.ALONE
    elif container == without:
        why = "the container set-up needs the command runc: install it with `apt-get install runc`"
    elif (system, container, op, workers) == ("openmpi", "single", "allgather", 4):
        why = FAILED
    if why:
        return study_row(system, container, op, workers, variant=variant, samples=[], verified=False, note=why)
    seconds = (between if container == "cross" else inside) * SETUPS[container] * WEIGHTS[op] * (0.4 + 0.6 * workers)
    samples = [seconds * one for one in SPREAD]
    return study_row(
        system,
        container,
        op,
        workers,
        variant=variant,
        samples=samples,
        transport=[far if container == "cross" else near],
        breakdown=_parts(system, op, seconds),
        lab={
            "kind": "study",
            "container": container,
            "runtime": "none" if container == "bare" else "runc 1.1.5",
            "transport_evidence": evidence(near, far, container, workers),
        },
    )


def _parts(system: str, op: str, seconds: float) -> dict[str, float]:
    if op == "train-ps":
        return {
            "train": 0.3 * seconds,
            "gather": 0.45 * seconds,
            "average": 0.05 * seconds,
            "broadcast": 0.22 * seconds,
        }
    if op == "train-allreduce":
        return {"train": 0.4 * seconds, "collective": 0.55 * seconds, "average": 0.04 * seconds}
    if system == "hoplite":
        return {"collective": 0.6 * seconds, "staging": 0.4 * seconds}
    return {} if system == "wire" else {"collective": seconds}


def evidence(near: str, far: str, container: str, workers: int) -> dict[str, int]:
    """Counters of the kernel that match a transport."""
    moved = {"loopback TCP": "loopback_bytes", "TCP": "interface_bytes", "CMA": "cma_bytes"}
    found = {"workers": workers, "payload_bytes": 64 << 20}
    transport = far if container == "cross" else near
    if transport in moved:
        return found | {moved[transport]: 66 << 20}
    return found | {"shared_segments": 3, "shared_touched_bytes": 48 << 20}

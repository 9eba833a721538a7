"""Rows of a synthetic measurement: times from a formula, with everything that a report must be able to show.

A round takes a delay of the system, plus a multiple of the bytes divided by the rate of the link. Ray fails at the
broadcast of the largest size, Gloo has no rtt, and Open MPI's other algorithm does not run on 4 hosts.
"""

from __future__ import annotations

import itertools
from typing import Any

from hoplite.tools import peace
from hoplite_bench.row import Row, spread, trend
from hoplite_bench.steady.figures import tenths
from hoplite_bench.steady.patterns import PATTERNS
from hoplite_bench.systems.base import OPS
from hoplite_bench.tables import limit

MACHINE = {"processor": "Some Processor @ 2.0 GHz", "cores": 2, "memory_gib": 24.0, "kernel": "6.1.0"}
VERSIONS = {
    "hoplite": "0.1.0",
    "mpich": "5.0.2",
    "openmpi": "5.0.11",
    "gloo": "0.5",
    "ray": "2.60.0",
    "dask": "2026.8.0",
}

# Seconds of delay, and the bytes of each operation in multiples of its limit.
WIRE = (40e-6, 1.0)
MODELS: dict[tuple[str, str], tuple[float, float]] = {
    ("hoplite", "default"): (900e-6, 1.12),
    ("hoplite", "racks configured"): (1100e-6, 1.09),
    ("mpich", "default"): (120e-6, 1.9),
    ("openmpi", "default"): (160e-6, 3.3),
    ("openmpi", "chain"): (400e-6, 1.5),
    ("gloo", "default"): (300e-6, 2.4),
    ("ray", "default"): (30e-3, 6.9),
    ("dask", "default"): (50e-3, 7.2),
}
SIZES = (2**10, 2**20, 2**25)
# Relative distance of the slowest and the fastest of five repeats from the median.
SPREAD = (1.02, 0.97, 1.0, 1.3, 0.99)


def row(**fields: Any) -> Row:  # noqa: ANN401
    """A row of Hoplite's broadcast to 8 hosts; `fields` override its fields. `seconds` follow from the samples."""
    usual: dict[str, Any] = {
        "system": "hoplite",
        "variant": "default",
        "version": "0.1.0",
        "op": "broadcast",
        "hosts": 8,
        "bytes": 2**20,
        "arrival_s": 0.0,
        "repeats": 5,
        "samples": [0.0125, 0.011, 0.012],
        "wire_ratio": 1.25,
        "verified": True,
        "cpu_seconds": 0.05,
        "peak_rss_bytes": 50 * 2**20,
        "lab": {"kind": "lab", "rate": "1gbit", "rtt_us": 80.0},
        "machine": MACHINE,
        "commit": "0123456789ab",
        "build": "release",
        "note": "",
    }
    told = usual | fields
    return Row(**(told | {"seconds": spread(told["samples"])}))


def matrix(
    *,
    labs: dict[int, str] | None = None,
    sizes: tuple[int, ...] = SIZES,
    ops: tuple[str, ...] = OPS,
    arrival_s: float = 0.0,
) -> list[Row]:
    """All systems in labs of one rate for each number of hosts."""
    rows = []
    for (hosts, rate), op, nbytes in itertools.product(
        (labs or {4: "1gbit", 8: "1gbit", 16: "500mbit"}).items(), ops, sizes
    ):
        same: dict[str, Any] = {
            "op": op,
            "hosts": hosts,
            "bytes": nbytes,
            "arrival_s": arrival_s,
            "lab": {"kind": "lab", "rate": rate, "rtt_us": 80.0},
        }
        transfer = nbytes * 8 / {"1gbit": 1e9, "500mbit": 5e8}[rate]
        wire = WIRE[0] + WIRE[1] * transfer
        streams = [("stream", 1.0), ("round trip", 2.0)] if op == "rtt" else [("stream", 1.0)]
        for variant, times in streams:
            taken = [wire * times * one for one in SPREAD]
            rows.append(
                row(
                    system="wire",
                    variant=variant,
                    version="",
                    samples=taken,
                    wire_ratio=times,
                    cpu_seconds=0.01,
                    **same,
                )
            )
        for (system, variant), (delay, times) in MODELS.items():
            about = {"system": system, "variant": variant, "version": VERSIONS[system], **same}
            why = _missing(system, variant, op, hosts, nbytes)
            if why == "no row":
                continue
            if why:
                rows.append(row(samples=[], verified=False, wire_ratio=None, note=why, **about))
                continue
            least = limit(op, hosts) or 1.0
            # A system with dynamic membership starts before the last participant has called.
            early = 0.4 * arrival_s if system == "hoplite" else 0.0
            median = delay + max(0.1 * transfer, times * least * transfer - early)
            note = "another process was busy" if (system, op, hosts, nbytes) == ("dask", "reduce", 8, 2**25) else ""
            rows.append(row(samples=[median * one for one in SPREAD], wire_ratio=median / wire, note=note, **about))
    return rows


def one_host() -> list[Row]:
    """Local cases, one of which failed."""
    same: dict[str, Any] = {"hosts": 1, "wire_ratio": None, "lab": {"kind": "local"}}
    large = {"bytes": 2**26, **same}
    return [
        row(system="memcpy", version="", op="memcpy", samples=[0.010, 0.011, 0.012], **large),
        row(op="put", samples=[0.011, 0.012, 0.013], **large),
        row(system="ray", version="2.60.0", op="put", samples=[0.03, 0.031, 0.032], **large),
        row(op="get", samples=[20e-6, 21e-6, 22e-6], **large),
        row(system="ray", version="2.60.0", op="get", samples=[], note="no room in /dev/shm", **large),
        row(op="reduce", samples=[0.03, 0.031, 0.032], **large),
        row(op="look_up", bytes=0, samples=[15e-6, 16e-6, 17e-6], **same),
        row(op="write_location", bytes=0, samples=[18e-6, 19e-6, 20e-6], **same),
    ]


def steady(samples: list[float], **facts: Any) -> Row:  # noqa: ANN401
    """A row of `bench steady` whose bound is one second; `facts` override facts of the run or fields of the row."""
    middle = PATTERNS[facts.get("op", "async")].middle
    parts = tenths(samples, len(samples), middle)
    own: dict[str, Any] = {
        "fault": "none",
        "survey": True,
        "workers": 7,
        "count": 4,
        "wire_s": 0.5,
        "bound_s": 1.0,
        "tenths": parts,
        "trend": trend(samples, middle),
        "undisturbed_s": None,
        "faults": [],
        "retries": 0,
        "direct": [1.0] * len(parts),
        "links": {"node0": [0.5, 0.25], "node1": [0.75, 1.0]},
        "counters": {"node0": dict.fromkeys(peace.COUNTERS, 0)},
    }
    about = {"op": "async", "repeats": len(samples), "lab": {"kind": "lab", "rate": "500mbit"}, "wire_ratio": 2.0}
    about |= {name: facts.pop(name) for name in list(facts) if name not in own and name != "speed"}
    return row(samples=samples, steady=own | facts, **about)


def _missing(system: str, variant: str, op: str, hosts: int, nbytes: int) -> str:
    """The reason why a system has no samples; "no row" if it has no row; empty if it has samples."""
    if system == "gloo" and op == "rtt":
        return "no row"
    if system == "ray" and op == "broadcast" and nbytes == 2**25:
        return "timed out after 60 s\n  in `get`"
    if variant == "chain" and (hosts == 4 or op == "rtt"):
        return "the algorithm needs more than 4 hosts" if op != "rtt" else "no row"
    return ""


def all_kinds() -> list[Row]:
    """Everything that a report can show."""
    late = [
        one
        for arrival_s in (0.05, 0.1)
        for one in matrix(
            labs={8: "1gbit"}, sizes=(2**25,), ops=("broadcast", "reduce", "allreduce"), arrival_s=arrival_s
        )
    ]
    other = [row(op="scatter", samples=[0.02], wire_ratio=2.0), row(system="mpich", op="scatter", samples=[0.03])]
    return [*matrix(), *late, *other, *long_runs(), *one_host()]


def long_runs() -> list[Row]:
    """A run at its bound, one that a fault slows down permanently, and two jobs side by side."""
    fault = {"host": "node4", "step": 9, "begin_s": 9.5, "end_s": 11.5, "recovery_steps": None}
    slowed = [1.1] * 9 + [3.0] + [1.6] * 30
    return [
        steady([1.1, 1.0, 1.2, 1.1] * 10),
        steady(slowed, variant="cut", fault="cut", undisturbed_s=1.1, faults=[fault], retries=1),
        steady([1.5] * 40, variant="job 1 of 2", speed=0.7),
        steady([0.0, 0.0, 0.6] * 12, op="eviction", bytes=2**18, bound_s=0.1),
    ]

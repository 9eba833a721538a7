"""Collectives on eight hosts: Hoplite next to one TCP stream and MPICH, with the session of `hoplite bench`.

One allreduce has four hosts: there a ring takes three quarters of a tree's time, and on eight hosts seven eighths.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from gate.figures import MPICH, WIRE, Failed, Figure, Group
from hoplite_bench import hosts, session
from hoplite_bench.lab import Lab
from hoplite_bench.plan import Cell
from hoplite_bench.results import Results
from hoplite_bench.row import STREAM

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from hoplite_bench.row import Row

HOSTS, RATE, SYSTEMS = 8, "1gbit", ("wire", "hoplite", "mpich")
OPS = ("broadcast", "reduce", "allreduce", "gather", "rtt")
# Sizes and their repeats: delays of small arrays vary most.
SIZES = {"1KiB": (1 << 10, 15), "64KiB": (1 << 16, 15), "1MiB": (1 << 20, 15), "32MiB": (1 << 25, 5)}
RING_HOSTS, RING_NBYTES, RING_REPEATS, RING_SYSTEMS = 4, 1 << 25, 9, ("wire", "hoplite")


def measure(cells: Collection[str]) -> Iterator[Figure | Failed]:
    """Measures operations with sizes: the time of each as a multiple of the wire's and of MPICH's."""
    with Lab(hosts=HOSTS, rate=RATE) as lab:
        network = hosts.of_lab(lab)
        # One session for each size, because the number of repeats is that of a session.
        for size, (nbytes, repeats) in SIZES.items():
            ops = [op for op in OPS if f"{op}-{size}" in cells]
            if not ops:
                continue
            settings = session.Settings(SYSTEMS, [Cell(op, nbytes) for op in ops], repeats)
            rows = session.measure(network, settings, Results(None))
            for op in ops:
                yield from _figures(f"{op}-{size}", [row for row in rows if row.op == op], SYSTEMS)


def ring(cells: Collection[str]) -> Iterator[Figure | Failed]:
    """Measures an allreduce on few hosts."""
    (cell,) = cells
    with Lab(hosts=RING_HOSTS, rate=RATE) as lab:
        settings = session.Settings(RING_SYSTEMS, [Cell("allreduce", RING_NBYTES)], RING_REPEATS)
        rows = session.measure(hosts.of_lab(lab), settings, Results(None))
    yield from _figures(cell, rows, RING_SYSTEMS)


def _figures(cell: str, rows: Sequence[Row], systems: Sequence[str]) -> Iterator[Figure | Failed]:
    """Hoplite's times over those of the wire, and of MPICH's fastest variant, each repeat over the one next to it.

    What slows the machine for a moment then changes both, and the noise of the other system counts in the spread.
    """
    of = {name: [row for row in rows if row.system == name and row.samples] for name in systems}
    of["wire"] = [row for row in of["wire"] if row.variant == STREAM]
    lacking = [name for name, own in of.items() if not own]
    if lacking:
        notes = {f"{row.system}: {row.note}" for row in rows if row.system in lacking and row.note}
        yield Failed(cell, "; ".join(sorted(notes)))
    for name, unit in (("wire", WIRE), ("mpich", MPICH)):
        if of["hoplite"] and of.get(name):
            (ours,) = of["hoplite"]
            other = min((row.samples for row in of[name]), key=statistics.median)
            shown = f"{1000 * statistics.median(ours.samples):.3g} ms"
            ratios = [own / base for own, base in zip(ours.samples, other, strict=True)]
            yield Figure(f"{cell}/{name}", ratios, unit, shown=shown)


GROUPS = [
    Group([f"{op}-{size}" for size in SIZES for op in OPS], measure),
    Group([f"allreduce-{RING_HOSTS}-hosts"], ring),
]

"""The problem for the search: the algorithm, the machines with their links, and the time limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hoplite.errors import InvalidArgument
from hoplite_topology import _native

ALGORITHMS = ("ring", "halving-doubling", "double-tree", "bcube")
LIBRARIES = ("mpi", "gloo", "lightgbm")
MODELS = ("paper", "alpha-beta", "congestion")
SOLVERS = ("search", "exact", "paper")
# Assumed rates, if a model needs rates that are unknown.
NIC_ASSUMED = 10e9
OVERSUBSCRIPTION_ASSUMED = 4
# The clock ends a search that takes this multiple of its expected time.
PATIENCE = 2.0
SECONDS = {"search": 2.0, "paper": 4.0, "exact": 20.0}


@dataclass(frozen=True)
class Wanted:
    """The collective.

    Attributes:
        algorithm: one of ALGORITHMS.
        library: library whose halving-doubling is used, one of LIBRARIES.
        base: base of a BCube.
        bytes: size of the array.
    """

    algorithm: str
    library: str = "mpi"
    base: int = 2
    bytes: float = 1e8


@dataclass(frozen=True)
class Searched:
    """The fields of a search that the extension reads; see `crates/topology/src/plan.rs`."""

    model: str
    ranks: int
    seed: int
    seconds: float
    seconds_max: float
    gap: float
    method: str
    start: list[int] | None


@dataclass(frozen=True)
class Options:
    """The options of the search for an order.

    Attributes:
        model: one of MODELS; None selects congestion if a rate is known, else the paper's model.
        solver: one of SOLVERS.
        choose: number of machines to use; None for all.
        seed: random seed.
        seconds: approximate duration of the search; None for the solver's default.
        seconds_max: time limit of the search; None for `seconds`, or twice the solver's default.
        start: an order to repair.
        nic: rate of each machine's link, in bit/s.
        uplink: rate of each cluster's link to the others, in bit/s.
        clusters: clustering method, "gaps" or "kmeans".
        cluster: cluster of each machine, if known; None derives clusters from the times.
        uplinks: uplink rate of each of these clusters, in bit/s; None where unknown.
        assumed: assumptions to report to people.
    """

    model: str | None = None
    solver: str = "search"
    choose: int | None = None
    seed: int = 0
    seconds: float | None = None
    seconds_max: float | None = None
    start: list[int] | None = None
    nic: float | None = None
    uplink: float | None = None
    clusters: str = "gaps"
    cluster: list[int] | None = None
    uplinks: list[float | None] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    @property
    def model_chosen(self) -> str:
        """The name of the model."""
        return self.model or ("congestion" if self.nic or self.uplink or any(self.uplinks) else "paper")


@dataclass(frozen=True)
class Machines:
    """The machines in the extension's representation, and their clusters.

    Attributes:
        native: object of the extension.
        cluster: cluster of each machine; all 0 if there are none.
    """

    native: _native.Topology
    cluster: list[int]

    @property
    def sizes(self) -> list[int]:
        """The number of machines in each cluster."""
        counts = [0] * (max(self.cluster) + 1)
        for cluster in self.cluster:
            counts[cluster] += 1
        return counts


def machines(rows: list[list[float]], options: Options) -> Machines:
    """Finds clusters, and assigns rates to links.

    Raises:
        InvalidArgument: a row is not valid.
    """
    flat = [time for row in rows for time in row]
    alone = _native.Topology(flat, len(rows), [0] * len(rows), math.inf, [math.inf])
    if options.cluster is not None:
        cluster = options.cluster
    elif options.clusters == "kmeans":
        cluster = alone.clusters_by_means(options.seed)
    else:
        cluster = next(iter(alone.clusters_by_gaps()), [0] * len(rows))
    if options.model_chosen == "paper":
        return Machines(alone, cluster)
    nic = options.nic
    if nic is None:
        nic = NIC_ASSUMED
        options.assumed.append("assuming 10 Gbit/s for the machines' links; set --nic to change it")
    found = Machines(alone, cluster)
    sizes = found.sizes
    known = options.uplinks or [None] * len(sizes)
    rates = [
        options.uplink or rate or nic * size / OVERSUBSCRIPTION_ASSUMED for rate, size in zip(known, sizes, strict=True)
    ]
    if options.uplink is None and None in known and len(sizes) > 1:
        options.assumed.append(
            "assuming that a cluster's uplink has a quarter of the rate of its machines' links; "
            "set --uplink to change it"
        )
    # Users specify bits per second, the search uses bytes per microsecond.
    uplinks = [rate / 8e6 for rate in rates]
    return Machines(_native.Topology(flat, len(rows), cluster, nic / 8e6, uplinks), cluster)


def search_of(wanted: Wanted, options: Options, count: int) -> Searched:
    """Validates options, and returns the search for this number of machines.

    Raises:
        InvalidArgument: an option is not valid.
    """
    ranks = options.choose or count
    if not 1 <= ranks <= count:
        raise InvalidArgument(f"--choose {ranks} of {count} machines is out of range: set 1 to {count}")
    if options.solver == "exact" and wanted.algorithm != "ring" and math.perm(count, ranks) > 50_000:
        raise InvalidArgument(
            f"the exact solver supports rings, and {wanted.algorithm} of {ranks} ranks has too many orders to try all: "
            "set --solver search"
        )
    seconds = options.seconds or SECONDS[options.solver]
    return Searched(
        model=options.model_chosen,
        ranks=ranks,
        seed=options.seed,
        seconds=seconds,
        seconds_max=options.seconds_max or (PATIENCE * seconds if options.seconds is None else seconds),
        gap=0.0,
        method="paper" if options.solver == "paper" else "search",
        start=options.start,
    )

"""What is asked of the search: the algorithm, the machines with their links, and how long to look."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hoplite.errors import InvalidArgument
from hoplite_topology import _native

ALGORITHMS = ("ring", "halving-doubling", "double-tree", "bcube")
LIBRARIES = ("mpi", "gloo", "lightgbm")
MODELS = ("paper", "alpha-beta", "congestion")
SOLVERS = ("search", "exact", "paper")
# What links are taken for if a model asks for rates and none is known.
NIC_ASSUMED = 10e9
OVERSUBSCRIPTION_ASSUMED = 4
# A clock ends a search that takes so many times what it was expected to.
PATIENCE = 2.0
SECONDS = {"search": 2.0, "paper": 4.0, "exact": 20.0}


@dataclass(frozen=True)
class Wanted:
    """The collective.

    Attributes:
        algorithm: one of ALGORITHMS.
        library: whose halving-doubling, one of LIBRARIES.
        base: of a BCube.
        bytes: of the array.
    """

    algorithm: str
    library: str = "mpi"
    base: int = 2
    bytes: float = 1e8


@dataclass(frozen=True)
class Searched:
    """What the extension reads of a search; see `crates/topology/src/plan.rs`."""

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
    """How an order is looked for.

    Attributes:
        model: one of MODELS; None takes congestion if a rate is known, else the paper's.
        solver: one of SOLVERS.
        choose: so many of the machines take part; None takes all.
        seed: what chance does.
        seconds: about how long the search takes; None takes the solver's.
        seconds_max: when the clock ends it, done or not; None takes `seconds`, or PATIENCE times the solver's.
        start: an order to mend.
        nic: of each machine's link, in bit/s.
        uplink: of each cluster's link to the others, in bit/s.
        clusters: "gaps" or "kmeans".
        cluster: the cluster of each machine, if it is known; None finds clusters by the times.
        uplinks: of each of these clusters, in bit/s; None where it isn't known.
        assumed: what was assumed, in words, to be told to people.
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
        """The model by its name."""
        return self.model or ("congestion" if self.nic or self.uplink or any(self.uplinks) else "paper")


@dataclass(frozen=True)
class Machines:
    """Machines as the extension has them, and their clusters.

    Attributes:
        native: of the extension.
        cluster: the cluster of each machine; all are 0 if there are none.
    """

    native: _native.Topology
    cluster: list[int]

    @property
    def sizes(self) -> list[int]:
        """How many machines each cluster has."""
        counts = [0] * (max(self.cluster) + 1)
        for cluster in self.cluster:
            counts[cluster] += 1
        return counts


def machines(rows: list[list[float]], options: Options) -> Machines:
    """Finds clusters, and gives links their rates.

    Raises:
        InvalidArgument: a row is none.
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
        options.assumed.append("links of machines are taken for 10 Gbit/s; --nic says what they are")
    found = Machines(alone, cluster)
    sizes = found.sizes
    known = options.uplinks or [None] * len(sizes)
    rates = [
        options.uplink or rate or nic * size / OVERSUBSCRIPTION_ASSUMED for rate, size in zip(known, sizes, strict=True)
    ]
    if options.uplink is None and None in known and len(sizes) > 1:
        options.assumed.append(
            "uplinks of clusters are taken for a quarter of their machines' links; --uplink says what they are"
        )
    # Rates are bits a second for people, bytes a microsecond for the search.
    uplinks = [rate / 8e6 for rate in rates]
    return Machines(_native.Topology(flat, len(rows), cluster, nic / 8e6, uplinks), cluster)


def search_of(wanted: Wanted, options: Options, count: int) -> Searched:
    """The search that options ask for, of so many machines.

    Raises:
        InvalidArgument: the options can't be meant.
    """
    ranks = options.choose or count
    if not 1 <= ranks <= count:
        raise InvalidArgument(f"--choose {ranks} of {count} machines: choose 1 to {count}")
    if options.solver == "exact" and wanted.algorithm != "ring" and math.perm(count, ranks) > 50_000:
        raise InvalidArgument(
            f"the exact solver is for rings; {wanted.algorithm} of {ranks} ranks has too many orders to try all"
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

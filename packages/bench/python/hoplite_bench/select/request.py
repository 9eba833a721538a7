"""What a selection is requested for: operations, size, ranks and limits. Imports little, as `plan.py`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from hoplite.errors import InvalidArgument
from hoplite_bench.select.plan import ARCHITECTURES, LAYERS, check_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BUDGET_S = 30.0
BARE = "bare"
CONTAINERS = (BARE, "hpc", "single", "cross")
# Operations that can be selected; those of the architecture always are.
KNOWN = ("broadcast", "gather", "reduce", "allreduce", "allgather")
# The candidates of each layer, in the order in which they are measured.
OF_LAYER = {
    "shell": ("mpich", "openmpi", "gloo", "hoplite", "ucc"),
    "torch": ("torch-gloo", "torch-mpi", "torch-hoplite"),
}


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for a plan.

    Attributes:
        arch: "ps" or "allreduce".
        nbytes: size of each rank's array in bytes, a multiple of 4.
        ranks: number of ranks, one on each host if there is a file of hosts.
        layer: "shell" or "torch".
        container: set-up in which candidates run on this machine: bare processes, or a container set-up of the study.
        hosts: file of hosts as of `hoplite bench --hosts`; None for this machine.
        ops: operations in addition to those of the architecture.
        budget_s: seconds for measurements.
        require_failures: whether a candidate must survive a killed and a frozen peer; None is the default of the
            architecture, which is true for "ps".
        install: whether libraries may be installed from package indexes.
        systems: the candidates, of those of the layer; empty is all of them.

    Raises:
        InvalidArgument: a value is not valid.
    """

    arch: str
    nbytes: int
    ranks: int
    layer: str = "shell"
    container: str = BARE
    hosts: Path | None = None
    ops: tuple[str, ...] = ()
    budget_s: float = BUDGET_S
    require_failures: bool | None = None
    install: bool = False
    systems: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, value, known in (
            ("architecture", self.arch, ARCHITECTURES),
            ("layer", self.layer, LAYERS),
            ("container set-up", self.container, CONTAINERS),
            *(("operation", op, KNOWN) for op in self.ops),
            *((f"system of the layer {self.layer}", name, OF_LAYER.get(self.layer, ())) for name in self.systems),
        ):
            if value not in known:
                raise InvalidArgument(f"unknown {what} {value!r}: set one of {', '.join(known)}")
        check_size(self.nbytes)
        if self.ranks < 2:
            raise InvalidArgument(f"{self.ranks} rank has no peers: select for at least 2 ranks")
        if not 0 < self.budget_s < float("inf"):
            raise InvalidArgument(f"a budget of {self.budget_s:g} s is out of range: set a number of seconds above 0")
        if self.hosts is not None and self.container != BARE:
            raise InvalidArgument(f"container set-up {self.container} is one of this machine: omit it or the hosts")

    @property
    def all_ops(self) -> Sequence[str]:
        """The operations of the architecture, then the additional ones."""
        return tuple(dict.fromkeys((*ARCHITECTURES[self.arch], *self.ops)))

    @property
    def all_systems(self) -> Sequence[str]:
        """The names of all candidates, in the order in which they are measured."""
        return tuple(name for name in OF_LAYER[self.layer] if name in self.systems or not self.systems)

    @property
    def safe(self) -> bool:
        """Whether candidates must survive failures."""
        return self.arch == "ps" if self.require_failures is None else self.require_failures

    @property
    def host_lines(self) -> list[list[str]]:
        """The words of each line of the file of hosts, of which the first is a name; empty for this machine.

        Raises:
            InvalidArgument: the file can't be read.
        """
        if self.hosts is None:
            return []
        try:
            lines = self.hosts.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"can't read the hosts in {self.hosts}: {error}; set another file") from None
        return [words for line in lines if (words := line.partition("#")[0].split())]

    def key(self) -> dict[str, Any]:
        """What distinguishes the plans of two requests in one environment; not the budget.

        Raises:
            InvalidArgument: the file of hosts can't be read.
        """
        return {
            "arch": self.arch,
            "bytes": self.nbytes,
            "ranks": self.ranks,
            "layer": self.layer,
            "container": self.container,
            "hosts": self.host_lines,
            "ops": list(self.all_ops),
            "safe": self.safe,
            "systems": list(self.all_systems),
        }

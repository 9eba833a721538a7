"""The candidates of each layer, its default, and the settings that make a library run a variant in other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench.plan import Contender
from hoplite_bench.select.request import OF_LAYER
from hoplite_bench.systems import SYSTEMS, registry
from hoplite_bench.systems.mpi import Mpich, OpenMpi

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.systems import System

# What applies without a choice: the first of these that is available. PyTorch uses Gloo for tensors in CPU memory.
DEFAULTS = {"shell": ("mpich", "openmpi", "gloo", "hoplite"), "torch": ("torch-gloo",)}
# Names of operations in the settings of both MPI libraries.
MPI_NAMES = {"broadcast": "bcast"}


def systems(layer: str) -> list[System]:
    """The systems of a layer; none of them is prepared."""
    names = [name for name in OF_LAYER[layer] if name in SYSTEMS]
    found = registry(names)
    return [found[name] for name in names]


def default(layer: str, available: Sequence[System]) -> Contender | None:
    """The candidate that applies without a choice; None if all such systems are unavailable."""
    names = {system.name for system in available}
    return next((Contender(name, "default", "default") for name in DEFAULTS[layer] if name in names), None)


def settings(system: System, op: str, one: Contender) -> dict[str, str]:
    """The environment variables with which a variant of an operation was measured."""
    # Ranks of Open MPI that spin would take the processors of others; its own choice was measured so too.
    yields = {"OMPI_MCA_mpi_yield_when_idle": "1"} if isinstance(system, OpenMpi) else {}
    if one.variant == "default":
        return yields
    name = MPI_NAMES.get(op, op)
    if isinstance(system, Mpich):
        starts = (f"{name}_".upper(), f"I{name}_".upper())
        return {f"MPIR_CVAR_{key}": value for key, value in _of(system.controls, one) if key.startswith(starts)}
    if isinstance(system, OpenMpi):
        tuned = {f"OMPI_MCA_coll_tuned_{key}": value for key, value in _of(system.tuned, one) if key.startswith(name)}
        return {**yields, "OMPI_MCA_coll": "^han", "OMPI_MCA_coll_tuned_use_dynamic_rules": "1", **tuned}
    return {}


def _of(groups: Mapping[str, Mapping[str, str]], one: Contender) -> list[tuple[str, str]]:
    return list(groups.get(one.group, {}).items())

"""The measured systems: how each is installed, started and controlled; one module per system."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hoplite_bench.systems.base import OPS, Host, Launch, System, Unavailable, Variant

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OPS", "SYSTEMS", "Host", "Launch", "System", "Unavailable", "Variant", "registry"]

# By the name in `--systems`: the baseline first, then in the order of the tables.
SYSTEMS = {
    "wire": ("wire", "Wire"),
    "hoplite": ("hoplite", "Hoplite"),
    "hoplite-cpp": ("hoplite_cpp", "HopliteCpp"),
    "mpich": ("mpi", "Mpich"),
    "openmpi": ("mpi", "OpenMpi"),
    "gloo": ("gloo", "Gloo"),
    "ray": ("ray", "Ray"),
    "dask": ("dask", "Dask"),
    "torch-gloo": ("pytorch", "TorchGloo"),
    "torch-mpi": ("pytorch", "TorchMpi"),
    "torch-hoplite": ("pytorch", "TorchHoplite"),
    "torch-nccl": ("pytorch", "TorchNccl"),
    "cuda-mpi": ("missing", "CudaMpi"),
    "ucc": ("missing", "Ucc"),
}


def registry(names: Iterable[str] = SYSTEMS) -> dict[str, System]:
    """Returns systems by name, in the order of the tables; none of them is prepared."""
    found: dict[str, System] = {}
    for name in sorted(names, key=list(SYSTEMS).index):
        module, kind = SYSTEMS[name]
        found[name] = getattr(importlib.import_module(f"hoplite_bench.systems.{module}"), kind)()
    return found

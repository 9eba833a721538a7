"""The backends of one group, and the plan that chooses among them.

All are created with the group, not with the first operation that needs one: creating a backend needs all ranks, and a
rank that has died since, or that calls another operation, would then make the others wait for the timeout of the store.
A backend that a rank can't create is left out on all ranks. The next fastest one of the plan takes its operations.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import hoplite
from hoplite.errors import HopliteError, InvalidArgument
from hoplite_bench.select.torch_auto import agreement, routes, source
from hoplite_bench.select.torch_auto.routes import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hoplite_bench.select.plan import Plan
    from hoplite_bench.select.torch_auto.source import Found


class Members:
    """The backends of a group.

    Args:
        options: torch's description of the group.

    Attributes:
        rank: this rank.
        size: number of ranks.
        backends: each backend in use, by its name.
        left_out: backends of the plan that some rank can't use, with the reason.
        source: where the plan is from, or why there is none.
        routes: the choices.

    Raises:
        Disagreement: the ranks have different plans or versions, or a plan is not valid.
    """

    def __init__(self, options: Any) -> None:
        if options.enable_reconfigure:
            raise InvalidArgument("hoplite_auto can't form a group anew: use the backend hoplite for that")
        self.rank: int = options.group_rank
        self.size: int = options.group_size
        # torch lists the ranks of a part of the default group, and none for that group itself.
        self._is_default = not options.global_ranks_in_group
        exchange = agreement.Exchange(options.store, self.rank, self.size)
        found = self._found(exchange, options.timeout.total_seconds())
        self.source = found.source
        self.left_out: dict[str, str] = {}
        self.backends: dict[str, Any] = {DEFAULT: _gloo(options)}
        while found.plan and (missing := self._missing(found.plan)):
            self._add(missing[0], options, exchange)
        self.routes = routes.Routes(found.plan, self.backends.keys())

    def _found(self, exchange: agreement.Exchange, timeout_s: float) -> Found:
        """Returns the plan of the group: one rank gets it, the others receive it."""
        mine, plan = agreement.facts(_version())
        known = exchange.all("facts", mine)
        try:
            publisher = agreement.check(known)
            if self.rank != publisher:
                return agreement.receive(exchange, publisher)
        except agreement.Disagreement:
            exchange.part()
            raise
        try:
            if plan is not None:
                found = source.of_file(plan, self.size, is_default=self._is_default)
            else:
                found = source.chosen(self.size, timeout_s, known, is_default=self._is_default, warn=_warn)
        except Exception as error:
            # The others wait for it.
            agreement.publish(exchange, f"{type(error).__name__}: {error}")
            exchange.part()
            raise
        agreement.publish(exchange, found)
        if found.warning:
            _warn(found.warning)
        return found

    def _missing(self, plan: Plan) -> list[str]:
        """Returns the backends that the plan still needs; one that is left out can make another necessary."""
        return [name for name in routes.needed(plan, self.left_out) if name not in self.backends]

    def _add(self, name: str, options: Any, exchange: agreement.Exchange) -> None:
        """Adds a backend if all ranks can create it."""
        lacks, error = _tried(LACKS[name], options)
        reason = self._reason(exchange.all(f"offer/{name}", error or lacks))
        if not reason:
            created, error = _tried(CREATORS[name], options)
            reason = self._reason(exchange.all(f"created/{name}", error))
            if not reason:
                self.backends[name] = created
            elif created is not None:
                created.shutdown()
        if reason:
            self.left_out[name] = reason
            if self.rank == 0 and self._is_default:
                _warn(
                    f"hoplite_auto uses the next fastest backend for the operations that its plan gives to {name}, "
                    f"because {reason}"
                )

    @staticmethod
    def _reason(reasons: list[str]) -> str:
        """Returns which ranks lack something, and why the first does; empty if none."""
        lacking = [str(rank) for rank, reason in enumerate(reasons) if reason]
        if not lacking:
            return ""
        first = next(filter(None, reasons))
        return f"rank{'s' if len(lacking) > 1 else ''} {', '.join(lacking)} can't create it: {first}"


def _tried(step: Callable[[Any], Any], options: Any) -> tuple[Any, str]:
    """Returns the result of a step, or its error as text: the other ranks wait for it, so it is not raised."""
    try:
        return step(options), ""
    except Exception as error:  # noqa: BLE001 - a broken library can raise anything
        return None, str(error) or type(error).__name__


def _version() -> str:
    return f"hoplite {hoplite.__version__} with torch {torch.__version__}"


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _gloo(options: Any) -> Any:
    store = dist.PrefixStore("gloo", options.store)
    return c10d.ProcessGroupGloo(store, options.group_rank, options.group_size, timeout=options.timeout)


def _hoplite_lacks(_options: Any) -> str:
    """Returns why this rank can't use Hoplite's backend; empty if it can."""
    try:
        import hoplite.torch

        hoplite.torch.register()
    except HopliteError as error:
        return str(error)
    return ""


def _hoplite(options: Any) -> Any:
    own = c10d._DistributedBackendOptions()
    for name in ("group_rank", "group_size", "timeout", "group_id", "global_ranks_in_group", "process_group"):
        setattr(own, name, getattr(options, name))
    own.store = dist.PrefixStore("hoplite", options.store)
    return dist.Backend._plugins["HOPLITE"].creator_fn(own, None)


def _mpi_lacks(options: Any) -> str:
    """Returns why this rank can't use MPI; empty if it can."""
    if not source.is_of_mpich():
        return "it was not started by MPICH's launcher: start the program with mpiexec of MPICH"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: run pip install mpi4py mpich"
    if not (library := _mpi().library()).startswith("MPICH"):
        return f"mpi4py uses {library}, but plans have times of MPICH: run pip install mpich"
    ours, of_mpi = (options.group_rank, options.group_size), _mpi().rank_and_size()
    if ours != of_mpi:
        return f"rank {ours[0]} of {ours[1]} is rank {of_mpi[0]} of {of_mpi[1]} in MPI"
    return ""


def _mpi() -> Any:
    return importlib.import_module("hoplite_bench.ranks.torch_mpi")


def _mpi_backend(options: Any) -> Any:
    return _mpi().MpiBackend(options.group_rank, options.group_size)


LACKS: Mapping[str, Any] = {"hoplite": _hoplite_lacks, "mpi4py": _mpi_lacks}
CREATORS: Mapping[str, Any] = {"hoplite": _hoplite, "mpi4py": _mpi_backend}

"""`hoplite.select`: imports hoplite-bench on demand, which measures; nothing of that is known here."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite.errors import PackageMissing
from hoplite.extras import install_package
from hoplite.sizes import check_size

if TYPE_CHECKING:
    import os

    from hoplite_bench.select.plan import Plan


def select(
    *,
    arch: str,
    nbytes: int | str,
    ranks: int,
    hosts: str | os.PathLike[str] | None = None,
    layer: str = "shell",
    ops: tuple[str, ...] = (),
    systems: tuple[str, ...] = (),
    budget: float = 30.0,
    require_failures: bool | None = None,
    refresh: bool = False,
    timeout: float | None = None,
) -> Plan:
    """Chooses the library that runs each operation and size fastest in this environment.

    The first call measures all installed libraries. Later calls read the plan from a cache, until the environment
    changes. Call it in one process, and send the plan to ranks that must agree. Needs the package hoplite-bench.
    Issues a RuntimeWarning if the cache can't be read or written.

    Args:
        arch: "ps" (parameter server: broadcast and gather) or "allreduce".
        nbytes: size of each rank's array, a multiple of 4, such as 4096 or "64MiB".
        ranks: number of ranks, at least 2.
        hosts: file of hosts with one rank each, as of `hoplite bench --hosts`; None is this machine.
        layer: "shell" for MPICH, Open MPI, Gloo and Hoplite themselves, "torch" for backends of torch.distributed.
        ops: operations in addition to those of `arch`: "broadcast", "gather", "reduce", "allreduce" or "allgather".
        systems: names of the only candidates, such as "openmpi"; empty is all of the layer.
        budget: seconds for measurements. Starts of hosts and failure checks take longer.
        require_failures: whether a library must pass checks in which a peer is killed and frozen. None requires it for
            "ps".
        refresh: whether to measure again although there is a plan.
        timeout: seconds to wait for everything; None waits without limit. Starts of hosts are not interrupted.

    Returns:
        The plan. `plan.rule(op, nbytes)` is the choice for one operation and one size in bytes. Its `system`, `variant`
        and `settings` name the library, its algorithm, and the environment variables that select this algorithm. Its
        `seconds` are predicted. `plan.candidates` has the time and the reason of every candidate.

    Raises:
        InvalidArgument: an argument is not valid.
        Timeout: the timeout passed.
        HopliteError: hoplite-bench is not installed, the budget is too small for a comparison, no library is left,
            or another selection did not end in time.
    """
    try:
        request = importlib.import_module("hoplite_bench.select.request")
        deciding = importlib.import_module("hoplite_bench.select.deciding")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "hoplite_bench":
            raise
        raise PackageMissing(
            f"hoplite.select needs hoplite-bench, which is not installed: run {install_package('hoplite-bench')}"
        ) from None
    wanted = request.Request(
        arch=arch,
        nbytes=check_size("nbytes", nbytes),
        ranks=ranks,
        layer=layer,
        hosts=None if hosts is None else Path(hosts),
        ops=tuple(ops),
        systems=tuple(systems),
        budget_s=budget,
        require_failures=require_failures,
    )
    found: list[str] = []
    limit_s = float("inf") if timeout is None else timeout
    plan: Plan = deciding.decide(wanted, refresh=refresh, timeout=limit_s, warn=found.append)
    for text in found:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return plan

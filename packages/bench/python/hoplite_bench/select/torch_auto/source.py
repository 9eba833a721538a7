"""Where the plan of a group comes from: a file, the cache, or a measurement. Does not know torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite.errors import HopliteError
from hoplite_bench.select.plan import BadPlan, Plan
from hoplite_bench.select.torch_auto import routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hoplite_bench.select.request import Request

VARIABLE = "HOPLITE_PLAN"
# A plan with a hundred candidates has 30 KB.
BYTES_MAX = 4 << 20
# What is measured for a group without a plan: gradients in buckets, and the operations around them.
NBYTES = 64 << 20
OPS = ("broadcast", "gather", "allgather")
BUDGET_S = 30.0
# Shares of a group's timeout, during which the other ranks wait: for the measurements, and for all of a selection.
BUDGET_SHARE, TIMEOUT_SHARE = 0.4, 0.8
# Variables that launchers of MPI set, and one that only Open MPI's sets.
LAUNCHED = ("PMI_RANK", "PMIX_RANK")
LAUNCHED_BY_OPEN_MPI = "OMPI_COMM_WORLD_RANK"
# Namespaces that decide which processes reach each other, and how.
NAMESPACES = ("net", "ipc", "pid", "mnt", "user")


class Found(NamedTuple):
    """A plan, or why there is none.

    Attributes:
        plan: the plan; None if there is none.
        source: where it is from, or why there is none.
        warning: a warning for the user; may be empty.
    """

    plan: Plan | None
    source: str
    warning: str = ""


def configured() -> Plan | None:
    """Returns the plan of the file that HOPLITE_PLAN names; None if it names none.

    Raises:
        BadPlan: the file can't be read, is not a plan, or is a plan for something else.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    try:
        with Path(name).open("rb") as file:
            text = file.read(BYTES_MAX + 1)
        if len(text) > BYTES_MAX:
            raise BadPlan(f"it has more than {BYTES_MAX} bytes")
        plan = Plan.from_json(json.loads(text))
        if why := routes.wrong(plan):
            raise BadPlan(why)
    except (OSError, ValueError, RecursionError, BadPlan) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadPlan(
            f"can't use the plan {name} of {VARIABLE}: {reason}; write it with hoplite select --export plan, or unset "
            f"{VARIABLE}"
        ) from None
    return plan


def digest(plan: Plan) -> str:
    """Identifies the content of a plan."""
    content = {**plan.to_json(), "cached": False}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def place() -> str:
    """Identifies what a measurement by this process is valid for: this machine, these namespaces and this user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    inodes = [str(Path(f"/proc/self/ns/{name}").stat().st_ino) for name in NAMESPACES]
    return "/".join((boot, *inodes, str(os.getuid())))


def cores() -> list[int]:
    """The cores on which this process may run: a launcher may have bound it to some."""
    return sorted(os.sched_getaffinity(0))


def is_of_mpich() -> bool:
    """Whether a launcher that MPICH supports started this process. Plans have no times of other MPI libraries."""
    return any(name in os.environ for name in LAUNCHED) and LAUNCHED_BY_OPEN_MPI not in os.environ


def systems() -> tuple[str, ...]:
    """The candidates for this process: MPI only if it can use it."""
    return tuple(name for name in routes.BACKENDS if name != routes.MPI or is_of_mpich())


def command(ranks: int) -> str:
    """The command that writes a plan for a group: the same request as in `chosen`."""
    return (
        f"hoplite select --arch allreduce --ops {','.join(OPS)} --bytes {NBYTES >> 20}MiB -n {ranks} --layer torch "
        f"--systems {','.join(systems())} --export plan --out DIR"
    )


def of_file(plan: Plan, ranks: int, *, is_default: bool) -> Found:
    """Applies the plan of HOPLITE_PLAN to a group.

    Args:
        plan: the plan.
        ranks: number of ranks of the group.
        is_default: whether it is the default group, not a part of it.
    """
    if plan.ranks == ranks:
        return Found(plan, f"the file {os.environ[VARIABLE]}")
    why = f"the plan of {VARIABLE} is for {plan.ranks} ranks, but the group has {ranks}"
    return Found(None, why, _advice(why, ranks) if is_default else "")


def chosen(
    ranks: int,
    timeout_s: float,
    known: Sequence[Mapping[str, Any]],
    *,
    is_default: bool,
    warn: Callable[[str], None],
) -> Found:
    """Returns the plan of this environment: a cached one, or a new one if the group is the default group.

    The environment has the cores of all ranks together, although a launcher may have bound this one to some of them.

    Args:
        ranks: number of ranks of the group.
        timeout_s: seconds that the other ranks wait.
        known: the facts of all ranks.
        is_default: whether it is the default group, not a part of it.
        warn: called with a warning about the cache.
    """
    if ranks < 2:
        return Found(None, "a group of one rank needs no plan")
    if len({one["place"] for one in known}) > 1:
        why = "the ranks run in several environments, which one rank can't measure"
        return Found(None, why, _advice(f"{why} (add --hosts FILE)", ranks) if is_default else "")
    try:
        with _on({core for one in known for core in one["cores"]}):
            plan = _measured(ranks, timeout_s, warn) if is_default else _cached(ranks, warn)
    except (HopliteError, ImportError, OSError) as error:
        why = f"hoplite select failed: {error}"
        return Found(None, why, _advice(why, ranks))
    if plan is None:
        return Found(None, "there is no cached plan for a group of this size")
    if why := routes.wrong(plan):
        return Found(None, f"the plan of hoplite select can't be used: {why}", _advice(why, ranks))
    return Found(plan, "the cache of hoplite select" if plan.cached else "hoplite select, measured now")


def _advice(why: str, ranks: int) -> str:
    return (
        f"hoplite_auto uses Gloo for all operations, because {why}. Run `{command(ranks)}` and set {VARIABLE} to its "
        "file."
    )


@contextlib.contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """Lets this thread, and the processes that it starts, run on these cores in the meantime."""
    before = os.sched_getaffinity(0)
    if cores != before:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        if cores != before:
            os.sched_setaffinity(0, before)


def _measured(ranks: int, timeout_s: float, warn: Callable[[str], None]) -> Plan:
    from hoplite_bench.select.deciding import decide

    request = _request(ranks, min(BUDGET_S, BUDGET_SHARE * timeout_s))
    return decide(request, timeout=TIMEOUT_SHARE * timeout_s, warn=warn)


def _cached(ranks: int, warn: Callable[[str], None]) -> Plan | None:
    from hoplite_bench.select import cache, fingerprint

    request = _request(ranks, BUDGET_S)
    return cache.load(fingerprint.key(fingerprint.environment(cache.root() / "bench"), request.key()), warn)


def _request(ranks: int, budget_s: float) -> Request:
    from hoplite_bench.select.request import Request

    return Request("allreduce", NBYTES, ranks, "torch", ops=OPS, budget_s=budget_s, systems=systems())

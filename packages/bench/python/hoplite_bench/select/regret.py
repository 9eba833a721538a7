"""How much slower the choices of a plan are than the best rows of a measurement of the same environment. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hoplite.errors import HopliteError
from hoplite_bench.select.candidates import DEFAULTS
from hoplite_bench.select.request import OF_LAYER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.select.plan import Plan


class BadRows(HopliteError):
    """Rows can't be compared with a plan: none of them is of its environment, or two are of one candidate."""


@dataclasses.dataclass(frozen=True)
class Regret:
    """One cell of a measurement.

    Attributes:
        op: the operation.
        nbytes: size of each rank's array in bytes.
        chosen: system and variant of the plan.
        best: system and variant of the fastest row.
        seconds: measured median of the chosen one; None if there is no such row.
        best_seconds: measured median of the fastest one.
        regret: how much longer the chosen one takes, as a share of the best; None without a row.
        to_default: time of the chosen one as a multiple of the default's; None without both rows.
    """

    op: str
    nbytes: int
    chosen: str
    best: str
    seconds: float | None
    best_seconds: float
    regret: float | None
    to_default: float | None


def regrets(plan: Plan, rows: Iterable[Row], *, container: str, names: Sequence[str] = ()) -> list[Regret]:
    """Compares a plan with rows.

    Rows of other numbers of ranks, operations, layers, container set-ups and hosts are ignored. So are systems that the
    plan excludes, because they failed or did not survive failures.

    Args:
        plan: the plan.
        rows: rows of `hoplite study`, or of `hoplite bench --hosts`.
        container: container set-up of the plan.
        names: hosts of the plan; empty for this machine.

    Raises:
        BadRows: no row is left, or two rows are of the same system, variant, operation and size.
    """
    network = {"kind": "hosts", "names": list(names)} if names else {"kind": "study", "container": container}
    excluded = {(one.library, one.variant, one.op) for one in plan.candidates if one.state == "excluded"}
    cells: dict[tuple[str, int], dict[tuple[str, str], float]] = {}
    for row in rows:
        if row.hosts != plan.ranks or row.op not in plan.ops or row.system not in OF_LAYER[plan.layer]:
            continue
        if any(row.lab.get(name) != value for name, value in network.items()):
            continue
        if row.arrival_s or row.inputs != 1 or row.seconds is None or (row.system, row.variant, row.op) in excluded:
            continue
        times = cells.setdefault((row.op, row.bytes), {})
        if (row.system, row.variant) in times:
            raise BadRows(
                f"two rows are of {row.system} {row.variant}, {row.op} of {row.bytes} bytes with {row.hosts} ranks: "
                "compare with the rows of one run"
            )
        times[row.system, row.variant] = row.seconds["median"]
    if not cells:
        place = f"the hosts {', '.join(names)}" if names else f"the container set-up {container}"
        command = "hoplite bench --hosts" if names else "hoplite study"
        raise BadRows(
            f"no row is of {', '.join(plan.ops)} with {plan.ranks} ranks in {place}: measure these with {command}"
        )
    return [_compare(plan, op, nbytes, times) for (op, nbytes), times in sorted(cells.items())]


def _compare(plan: Plan, op: str, nbytes: int, times: dict[tuple[str, str], float]) -> Regret:
    rule = plan.rule(op, nbytes)
    chosen = rule.system, rule.variant
    best = min(times, key=lambda one: times[one])
    own = times.get(chosen)
    default = next((times[name, "default"] for name in DEFAULTS[plan.layer] if (name, "default") in times), None)
    return Regret(
        op,
        nbytes,
        " ".join(chosen),
        " ".join(best),
        own,
        times[best],
        own / times[best] - 1 if own is not None else None,
        own / default if own is not None and default else None,
    )

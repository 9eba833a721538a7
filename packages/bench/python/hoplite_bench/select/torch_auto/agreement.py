"""How the ranks of a group get one plan and the same members, through torch's store.

Each rank writes facts and reads those of all, so that every rank finds the same errors and none waits for a rank that
has raised one. Then one rank publishes the plan.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError
from hoplite_bench.select.plan import Plan
from hoplite_bench.select.torch_auto import source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed import Store

    from hoplite_bench.select.torch_auto.source import Found

# Time for the other ranks to read an error from the store.
PART = dt.timedelta(seconds=10)


class Disagreement(HopliteError):
    """The ranks of a group have different plans or versions, or a rank has a plan that is not valid."""


class Exchange:
    """Facts that the ranks of a group exchange through a store.

    Args:
        store: the store of the group, whose timeout limits each wait.
        rank: this rank.
        size: number of ranks.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self.rank = rank
        self.size = size

    def all(self, key: str, fact: Any) -> list[Any]:
        """Passes a fact to all ranks; returns those of all, in order."""
        self._store.set(f"hoplite_auto/{key}/{self.rank}", json.dumps(fact))
        return [json.loads(self._store.get(f"hoplite_auto/{key}/{rank}")) for rank in range(self.size)]

    def announce(self, key: str, fact: Any) -> None:
        """Announces a fact to the ranks that call `get`."""
        self._store.set(f"hoplite_auto/{key}", json.dumps(fact))

    def get(self, key: str) -> Any:
        """Waits for a fact."""
        return json.loads(self._store.get(f"hoplite_auto/{key}"))

    def part(self) -> None:
        """Call it before an error that all ranks raise: rank 0, which often serves the store, ends after the others.

        It waits a bounded time, and raises nothing: the error is more important.
        """
        with contextlib.suppress(RuntimeError):
            self._store.set(f"hoplite_auto/parted/{self.rank}", "")
            if self.rank == 0:
                self._store.wait([f"hoplite_auto/parted/{rank}" for rank in range(self.size)], PART)


def facts(version: str) -> tuple[dict[str, Any], Plan | None]:
    """Returns the facts that this rank reports to the others, and the plan of its file.

    Args:
        version: the versions that must be the same on all ranks.
    """
    known: dict[str, Any] = {"version": version, "plan": None, "error": ""}
    plan = None
    try:
        plan = source.configured()
        known |= {"plan": plan and source.digest(plan), "place": source.place(), "cores": source.cores()}
    except HopliteError as error:
        known["error"] = str(error)
    except Exception as error:  # noqa: BLE001 - the other ranks wait for the facts
        known["error"] = f"can't describe its environment: {type(error).__name__}: {error}; mount /proc there"
    return known, plan


def check(known: Sequence[Mapping[str, Any]]) -> int:
    """Checks that all ranks can use one plan; returns the rank that publishes it.

    That is the first rank with a plan in HOPLITE_PLAN, and rank 0 if none has one. Ranks without one take that plan.

    Args:
        known: the facts of all ranks.

    Raises:
        Disagreement: versions or plans differ, or a rank's plan is not valid; the same on every rank.
    """
    version = known[0]["version"]
    for rank, one in enumerate(known):
        if one["version"] != version:
            raise Disagreement(
                f"the ranks have different versions: rank 0 has {version}, rank {rank} has {one['version']}; "
                "install the same versions on all hosts"
            )
    for rank, one in enumerate(known):
        if one["error"]:
            raise Disagreement(f"rank {rank} {one['error']}")
    owners = [rank for rank, one in enumerate(known) if one["plan"]]
    for rank in owners:
        first, other = known[owners[0]]["plan"], known[rank]["plan"]
        if first != other:
            raise Disagreement(
                f"the ranks have different plans: rank {owners[0]} has plan {first}, rank {rank} has plan {other}; set "
                f"{source.VARIABLE} to the same file on all ranks"
            )
    return owners[0] if owners else 0


def publish(exchange: Exchange, found: Found | str) -> None:
    """Passes the plan of this rank to the others, or why it has raised an error."""
    if isinstance(found, str):
        exchange.announce("plan", {"error": found})
        return
    plan = None if found.plan is None else found.plan.to_json()
    exchange.announce("plan", {"plan": plan, "source": found.source})


def receive(exchange: Exchange, publisher: int) -> Found:
    """Waits for the plan.

    Args:
        exchange: the group's exchange.
        publisher: the rank that publishes it.

    Raises:
        Disagreement: that rank has raised an error.
    """
    value = exchange.get("plan")
    if "error" in value:
        raise Disagreement(f"rank {publisher} failed to get a plan: {value['error']}; see its traceback")
    plan = None if value["plan"] is None else Plan.from_json(value["plan"])
    return source.Found(plan, value["source"])

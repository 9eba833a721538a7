"""Dask in the bench: its start, and one run of every operation."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench_pair import prepared
from bench_smoke import smoke
from hoplite_bench import dask_scatter
from hoplite_bench.environments import Environments
from hoplite_bench.lab import Lab
from hoplite_bench.systems import OPS
from hoplite_bench.systems.base import RANKS
from hoplite_bench.systems.dask import REPLICATE, Dask
from labs import needs_lab
from test_bench_ray import Installed, Spawns


def test_each_host_has_a_worker_and_the_first_also_the_scheduler_and_the_driver() -> None:
    launch = Spawns()
    dask = Dask()
    dask.prepare(Installed())
    dask.start(launch, "default")
    assert [number for number, _, _ in launch.spawned] == [0, 0, 1, 2, 0]
    (_, scheduler, _), *workers, (_, driver, _) = launch.spawned
    assert scheduler[2] == "distributed.cli.dask_scheduler"
    for number, command, environment in workers:
        assert command[2:4] == ["distributed.cli.dask_worker", "tcp://10.0.0.1:17440"]
        assert command[command.index("--host") + 1] == launch.hosts[number].address
        assert command[command.index("--nthreads") + 1] == "1"
        assert environment["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] == "null", "frozen workers are not dead"
    assert driver[1].endswith("dask_driver.py")
    assert "--shared-clock" in driver


def test_a_broadcast_is_also_measured_by_the_tree_that_dask_has() -> None:
    assert [[one.name for one in Dask().variants(op)] for op in OPS] == [
        ["default"],
        ["default", REPLICATE],
        ["default"],
        ["default"],
        ["default"],
    ]


@pytest.mark.parametrize("op", OPS)
def test_a_round_takes_at_least_its_inputs_and_results(op: str) -> None:
    inputs = {"rtt": 1, "broadcast": 1, "gather": 8, "reduce": 8, "allreduce": 8}
    results = {"rtt": 2, "broadcast": 7, "gather": 7, "reduce": 1, "allreduce": 8}
    assert Dask().memory(op, 8, 2**28) >= (inputs[op] + results[op]) * 2**28


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - a program, which mypy knows by another name
    """The driver's program; its tasks find a worker without Dask."""
    worker = SimpleNamespace()
    distributed = ModuleType("distributed")
    for name in ("Client", "Future", "Worker", "wait", "__version__"):
        setattr(distributed, name, None)
    distributed.get_worker = lambda: worker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "distributed", distributed)
    # The programs import each other by the names of their files.
    monkeypatch.syspath_prepend(str(RANKS))
    monkeypatch.delitem(sys.modules, "dask_driver", raising=False)
    yield importlib.import_module("dask_driver")
    monkeypatch.delitem(sys.modules, "dask_driver")


def task(driver: Any, op: str) -> Any:  # noqa: ANN401 - as above
    return driver.Task(op=op, nbytes=4096, variant="default", round=1, seed=5, ranks=3, rank=-1, arrival_ns=1)


def test_a_gather_is_correct_in_any_order_of_its_tasks(driver: Any) -> None:  # noqa: ANN401
    arrays = [driver.make(4096, rank, 5) for rank in range(3)]
    for rank in (2, 0, 1):
        driver.take(rank, arrays[rank])
    assert driver.compare(task(driver, "gather"), 0) == ""
    driver.take(0, arrays[1], arrays[0], arrays[2])
    assert "instead of" in driver.compare(task(driver, "gather"), 0)
    # Rank 1's array again instead of rank 2's.
    driver.take(0, arrays[0], arrays[1])
    driver.take(2, arrays[1])
    assert "instead of" in driver.compare(task(driver, "gather"), 0)


def test_of_sums_only_the_last_is_held(driver: Any) -> None:  # noqa: ANN401 - as above
    arrays = [driver.make(4096, rank, 5) for rank in range(3)]
    driver.add(driver.add(*arrays[:2]), arrays[2])
    assert driver.compare(task(driver, "reduce"), 0) == ""
    assert np.array_equal(arrays[0], driver.make(4096, 0, 5))


@needs_lab
# The first installation takes longer than the tests' minute; otherwise the test takes five seconds.
@pytest.mark.peers
@pytest.mark.timeout(600)
def test_every_operation_between_two_hosts() -> None:
    smoke(Dask())


def test_the_words_of_a_comparison_name_both_and_how_many_times_as_fast() -> None:
    found = {
        "settings": {"bytes": 2**26, "hosts": 8, "repeats": 2},
        "dask": {"seconds": [3.0, 4.0], "median": 3.5, "used": 3.6},
        "hoplite": {"seconds": [0.6, 0.8], "median": 0.7, "used": 0.75},
        "faster": 5.0,
    }
    first, dask, own, last = dask_scatter.summary(found).splitlines()
    assert "scatter of 64 MiB to 8 workers" in first
    assert "3.500 s (3.000 to 4.000), 3.600 s until every worker had used it" in dask
    assert "hoplite.dask.scatter" in own
    assert last == "hoplite.dask.scatter is 5.0 times as fast as Dask"


@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(600)
def test_scatter_is_compared_between_two_hosts() -> None:
    prepared(Dask())
    with Lab(hosts=2) as lab:
        found = dask_scatter.measure(lab, Environments(), nbytes=2**20, repeats=2)
    assert [len(found[system]["seconds"]) for system in ("dask", "hoplite")] == [2, 2]
    assert found["faster"] == found["dask"]["median"] / found["hoplite"]["median"]

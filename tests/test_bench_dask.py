"""Dask as the bench runs it: how it is started, and every operation once."""

from __future__ import annotations

import pytest

from bench_smoke import smoke
from hoplite.bench.systems import OPS
from hoplite.bench.systems.dask import REPLICATE, Dask
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


@needs_lab
# What is installed for the first time takes longer than the tests' minute; five seconds otherwise.
@pytest.mark.peers
@pytest.mark.timeout(600)
def test_every_operation_between_two_hosts() -> None:
    smoke(Dask())

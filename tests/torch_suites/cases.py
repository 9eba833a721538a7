"""PyTorch's test cases, bound to the backend that the environment names.

The cases are those of the installed wheel. This module only defines the classes that PyTorch's repository defines next
to them, chooses how the processes of the ranks start, and puts the backend in the place of the one that the tests want.
It knows no result that is expected.

The environment has SUITE_BACKEND, SUITE_CONDITIONS, SUITE_START and WORLD_SIZE: see `plan`.
"""

from __future__ import annotations

import multiprocessing
import os
import types
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.testing._internal import common_distributed

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKEND = os.environ["SUITE_BACKEND"]
CONDITIONS = os.environ["SUITE_CONDITIONS"]

if BACKEND == "hoplite":
    import hoplite.torch  # noqa: F401
dist.Backend._ensure_backend_registered(BACKEND)
if CONDITIONS == "gloo" != BACKEND:
    # Some tests name "gloo" as the backend of their groups.
    plugin = dist.Backend._plugins[BACKEND.upper()]
    dist.Backend.register_backend("gloo", plugin.creator_fn, extended_api=plugin.extended_api, devices=["cpu", "cuda"])
for feature, backends in common_distributed.DistTestCases.backend_feature.items():
    if "gloo" in backends or feature == "plugin":
        backends.add(BACKEND)

# While they are imported, these modules evaluate the conditions of their tests for the backend of the environment.
os.environ["BACKEND"] = CONDITIONS
from torch.testing._internal.distributed import distributed_test, rpc_utils  # noqa: E402
from torch.testing._internal.distributed.rpc import (  # noqa: E402
    faulty_rpc_agent_test_fixture,
    tensorpipe_rpc_agent_test_fixture,
)

os.environ["BACKEND"] = distributed_test.BACKEND = BACKEND


def _start_ranks(self: common_distributed.MultiProcessTestCase) -> None:
    context: Any = multiprocessing.get_context(os.environ["SUITE_START"])
    self._start_processes(context.Process)


common_distributed.MultiProcessTestCase._spawn_processes = _start_ranks


class Distributed(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """All collectives, and DistributedDataParallel."""

    def setUp(self) -> None:
        """Starts the ranks."""
        super().setUp()
        self._spawn_processes()


RPC = rpc_utils.generate_tests(
    "",
    tensorpipe_rpc_agent_test_fixture.TensorPipeRpcAgentTestFixture,
    rpc_utils.GENERIC_TESTS + rpc_utils.TENSORPIPE_TESTS,
    __name__,
) | rpc_utils.generate_tests(
    "", faulty_rpc_agent_test_fixture.FaultyRpcAgentTestFixture, rpc_utils.FAULTY_AGENT_TESTS, __name__
)
# Processes of ranks that are spawned, and RPC, find the classes by name.
globals().update(RPC)


def distributed() -> list[str]:
    """Lists the tests of `Distributed`."""
    return list(_tests(Distributed))


def spawned() -> list[str]:
    """Lists a few tests of `Distributed` for ranks that each import torch."""
    return [test for test in distributed() if "destroy" in test or test.endswith(("all_reduce_sum", "ParallelCPU"))]


def rpc() -> list[str]:
    """Lists the tests of remote procedure calls that also create a process group."""
    return [
        test
        for name, case in RPC.items()
        for test in _tests(case)
        if _creates_group(case, test.removeprefix(f"{name}."))
    ]


def _tests(case: type) -> Iterator[str]:
    return (f"{case.__name__}.{name}" for name in dir(case) if name.startswith("test_"))


def _creates_group(case: type, method: str) -> bool:
    """Returns whether a method, or one that it calls, initializes a group."""
    pending, seen = [method], set()
    while pending:
        function: Any = getattr(case, pending.pop(), None)
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        if not isinstance(function, types.FunctionType) or function in seen:
            continue
        seen.add(function)
        names = set(_names(function.__code__))
        if names & {"initialize_pg", "init_process_group"}:
            return True
        pending += names
    return False


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)

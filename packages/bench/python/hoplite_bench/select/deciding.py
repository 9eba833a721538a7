"""The whole of a selection: reads a plan from the cache, or measures and writes one.

Everything that only a measurement needs is imported when one starts, so that a cached plan takes milliseconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from hoplite_bench.select import cache, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hoplite_bench.hosts import Network
    from hoplite_bench.select.plan import Plan
    from hoplite_bench.select.request import Request
    from hoplite_bench.systems import System

# What only the request determines: the failure checks of an environment apply to all sizes.
FAILURES = ("arch", "ranks", "layer", "container", "hosts")


def decide(
    request: Request,
    *,
    refresh: bool = False,
    timeout: float = float("inf"),
    rsh: str = "ssh",
    notify: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Returns the plan for a request in this environment.

    Args:
        request: what to choose for.
        refresh: whether to measure again although there is a plan; its choices stay unless they are clearly slower.
        timeout: seconds for everything.
        rsh: remote shell for the hosts of a file.
        notify: called with a progress message when a step begins.
        warn: called with a warning about the cache.

    Raises:
        InvalidArgument: the file of hosts is not valid.
        BudgetTooSmall: the budget was spent before two candidates of every operation were measured.
        NoCandidate: no library is left for an operation.
        Busy: another selection did not end within the timeout.
        Unavailable: the container set-up can't be created here.
        AgentFailed: a host can't be reached.
        Timeout: the timeout passed.
    """
    deadline = time.monotonic() + timeout
    key, _ = _identify(request)
    earlier = cache.load(key, warn)
    if earlier is not None and not refresh:
        return earlier
    with cache.measuring(timeout):
        if not refresh and (other := cache.load(key, warn)) is not None:
            # Another process measured while this one waited.
            return other
        return _measure(request, earlier, deadline, rsh, notify, warn)


def _identify(request: Request) -> tuple[str, Mapping[str, object]]:
    """The key of a request in this environment, and a description of the environment."""
    parts = fingerprint.environment(cache.root() / "bench")
    return fingerprint.key(parts, request.key()), parts


def _measure(
    request: Request,
    earlier: Plan | None,
    deadline: float,
    rsh: str,
    notify: Callable[[str], None],
    warn: Callable[[str], None],
) -> Plan:
    from hoplite_bench.environments import Environments
    from hoplite_bench.hosts import Agents
    from hoplite_bench.select import candidates, search

    def unsafe(systems: Sequence[System]) -> dict[str, str]:
        return _unsafe(request, network, systems, notify, warn)

    notify("starting hosts")
    with _opened(request, rsh) as network, Agents(network) as agents:
        found = search.Search(
            network,
            agents,
            request,
            systems=candidates.systems(request.layer),
            environments=Environments(install=request.install),
            previous=earlier,
            unsafe=unsafe,
            notify=notify,
            deadline=deadline,
        )
        plan = found.run("")
    # Preparing libraries may have installed some, which changes the environment.
    key, parts = _identify(request)
    plan = dataclasses.replace(plan, fingerprint=key)
    cache.store(plan, parts, warn)
    return plan


@contextlib.contextmanager
def _opened(request: Request, rsh: str) -> Iterator[Network]:
    from hoplite.errors import InvalidArgument
    from hoplite_bench import containers
    from hoplite_bench.hosts import of_file

    if request.hosts is None:
        with containers.opened(request.container, request.ranks) as network:
            yield network
        return
    network = of_file(request.hosts, rsh=rsh)
    if len(network.hosts) < request.ranks:
        raise InvalidArgument(
            f"{request.hosts} lists {len(network.hosts)} hosts: list {request.ranks}, or select for fewer ranks"
        )
    yield dataclasses.replace(network, hosts=list(network.hosts)[: request.ranks])


def _unsafe(
    request: Request,
    network: Network,
    systems: Sequence[System],
    notify: Callable[[str], None],
    warn: Callable[[str], None],
) -> dict[str, str]:
    """The systems that do not survive failures, with reasons; reads earlier results from the cache."""
    from hoplite_bench.select import safety

    parts = fingerprint.environment(cache.root() / "bench")
    key = fingerprint.key(parts, {"failures": [request.key()[name] for name in FAILURES]})
    found = cache.load_unsafe(key, warn)
    if unknown := [system for system in systems if system.name not in found]:
        notify(f"killing and freezing peers of {', '.join(system.name for system in unknown)}")
        found |= safety.unsafe(network, unknown, request.arch)
        cache.store_unsafe(key, found, warn)
    return {system.name: reason for system in systems if (reason := found[system.name])}

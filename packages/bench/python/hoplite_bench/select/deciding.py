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
FAILURES = ("arch", "ranks", "layer", "container", "hosts", "ops")
# Reasons of unavailable candidates that an installation may change.
INSTALLABLE = ("is not installed", "can't install", "can't create the environment")


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
        refresh: whether to measure again, and to repeat failure checks, although there is a plan. Its choices stay
            unless they are clearly slower.
        timeout: seconds for everything. Starts of hosts and containers, and installations, are not interrupted.
        rsh: remote shell for the hosts of a file.
        notify: called with a progress message when a step begins.
        warn: called with a warning about the cache.

    Raises:
        InvalidArgument: the file of hosts is not valid.
        BudgetTooSmall: the budget was spent before two candidates of every operation were measured.
        NoCandidate: no library is left for an operation.
        Busy: another selection did not end within the timeout.
        NotWritable: the folder of the cache can't be created.
        Unavailable: the container set-up can't be created here.
        AgentFailed: a host can't be reached.
        Timeout: the timeout passed.
    """
    deadline = time.monotonic() + timeout
    key, _ = _identify(request)
    earlier = cache.load(key, warn)
    if earlier is not None and not refresh and _answers(earlier, request):
        return earlier
    with cache.measuring(timeout, notify):
        if not refresh and (other := cache.load(key, warn)) is not None and _answers(other, request):
            # Another process measured while this one waited.
            return other
        return _measure(request, earlier, deadline, rsh, notify, warn, refresh=refresh)


def _answers(plan: Plan, request: Request) -> bool:
    """Whether a plan of the cache answers a request: not if a larger budget or an installation may change it."""
    if plan.is_cut and request.budget_s > plan.budget_s:
        return False
    lacking = [one.reason for one in plan.candidates if one.state == "unavailable"]
    return not (request.install and any(text in reason for text in INSTALLABLE for reason in lacking))


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
    *,
    refresh: bool,
) -> Plan:
    from hoplite_bench.environments import Environments
    from hoplite_bench.hosts import Agents
    from hoplite_bench.select import candidates, search

    def unsafe(systems: Sequence[System]) -> dict[str, str]:
        return _unsafe(request, network, systems, deadline, notify, warn, refresh=refresh)

    notify("starting hosts")
    with _opened(request, rsh) as network, Agents(network) as agents:
        found = search.Search(
            network,
            agents,
            request,
            systems=[one for one in candidates.systems(request.layer) if one.name in request.all_systems],
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
    # Between hosts, too, libraries are measured with the transports that they use in other programs.
    yield dataclasses.replace(network, hosts=list(network.hosts)[: request.ranks], transports="own")


def _unsafe(
    request: Request,
    network: Network,
    systems: Sequence[System],
    deadline: float,
    notify: Callable[[str], None],
    warn: Callable[[str], None],
    *,
    refresh: bool,
) -> dict[str, str]:
    """The systems that do not survive failures, with reasons; reads earlier results from the cache.

    A check that failed is no result: the next measurement repeats it.
    """
    from hoplite_bench.select import safety

    parts = fingerprint.environment(cache.root() / "bench")
    key = fingerprint.key(parts, {"failures": [request.key()[name] for name in FAILURES]})
    known = cache.load_unsafe(key, warn)
    reasons = {} if refresh else known
    if unknown := [system for system in systems if system.name not in reasons]:
        notify(f"killing and freezing peers of {', '.join(system.name for system in unknown)}")
        checked = safety.unsafe(network, unknown, request.arch, request.all_ops, deadline=deadline)
        reasons |= {name: one.reason for name, one in checked.items()}
        final = {name: one.reason for name, one in checked.items() if not one.failed}
        kept = {name: reason for name, reason in known.items() if name not in checked}
        cache.store_unsafe(key, kept | final, warn)
    return {system.name: reason for system in systems if (reason := reasons[system.name])}

"""Nodes that tests share: after each test they are idle, empty and undisturbed, or the test fails.

`Lent` checks one test. `Cluster` starts nodes for the tests of a module, and new ones after a test that failed this
check, so that the next test is not affected. It does not depend on any test.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

from hoplite import testing
from hoplite.tools import peace
from support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

    from hoplite import Client, Node


@contextlib.contextmanager
def lent(clients: Sequence[Client], faults: bool = False) -> Iterator[None]:
    """Lends nodes to one test, and checks afterwards that it left nothing. Deletes the objects of the test.

    Args:
        clients: a client of each node.
        faults: whether the test injects faults, so that counters of `hoplite.tools.peace` may increase.
    """
    before = [_counters(client) for client in clients]
    yield
    try:
        wait_until_idle(clients)
        for client in clients:
            client.delete([row["ref"] for row in client.objects()])
        eventually(lambda: all(client.status()["store"]["used"] == 0 == len(client.objects()) for client in clients))
    except AssertionError:
        seen = [(client.status(), client.objects()) for client in clients]
        raise AssertionError(f"the test left something: {seen}") from None
    found = [peace.disturbances(_counters(client), then) for client, then in zip(clients, before, strict=True)]
    assert faults or not any(found), f"{found}: if the test injects a fault, mark it faults(REASON)"


def wait_until_idle(clients: Sequence[Client]) -> None:
    """Waits until the nodes of these clients have no pending request, no active reduce and no reader."""
    if not _is_idle(clients):
        # A caught error may still hold references.
        gc.collect()
        eventually(lambda: _is_idle(clients))


def _counters(client: Client) -> Mapping[str, int]:
    return peace.of(client.status()["counters"])


def _is_idle(clients: Sequence[Client]) -> bool:
    for client in clients:
        status = client.status()
        if status["waiting"] or status["reduces"] or any(row["readers"] for row in client.objects()):
            return False
    return True


class Cluster:
    """Three embedded nodes for the tests of a module."""

    def __init__(self) -> None:
        self._running = contextlib.ExitStack()
        self._nodes: list[Node] = []
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @contextlib.contextmanager
    def lent(self, faults: bool) -> Iterator[list[Node]]:
        """Lends the nodes to one test. If it leaves something, the next one gets new nodes."""
        if not self._nodes:
            self._nodes = self._running.enter_context(testing.cluster(3))
            self._clients = [node.client() for node in self._nodes]
        try:
            with lent(self._clients, faults):
                yield self._nodes
        except BaseException:
            self._running.close()
            self._nodes = []
            raise

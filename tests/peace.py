"""Detects disturbances of the nodes of a test: without a fault nothing restarts, fails or is rejected.

The counters of each node are read before it closes, whether it runs in the test, in a `hoplite node` of
`hoplite.testing`, or in a script of `programs`. `conftest` checks them after the test.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hoplite.node import Node
    from hoplite.node_status import Status
    from hoplite.settings import Values
    from hoplite.testing import NodeProcess

# Environment variable of scripts: the file to which they append their nodes' counters.
FILE_VARIABLE = "PEACE_FILE"

# Inserted by `programs` before a script.
PROLOGUE = f"""
import sys
sys.path.append({os.path.dirname(__file__)!r})
import peace
peace.watch_script()
"""  # noqa: PTH120 - runs before every script; pathlib would be imported for this alone


class Watch:
    """Records the counters of nodes from the moment when their methods are replaced.

    Args:
        note: called before each node closes, with its id ("node"), its "counters" and the "limits" that it reached.
    """

    def __init__(self, note: Callable[[dict[str, Any]], None]) -> None:
        self._note = note
        self._open: weakref.WeakSet[Node] = weakref.WeakSet()

    def install(self, replace: Callable[[Any, str, Any], None]) -> None:
        """Replaces the methods that start and stop nodes. `replace` sets an attribute, as `setattr` does."""
        from hoplite import testing
        from hoplite.node import Node

        start, close, stop = Node._start, Node.close, testing.NodeProcess.stop

        @functools.wraps(start)
        def started(node: Node, values: Values, usual: Path | None = None) -> None:
            start(node, values, usual)
            self._open.add(node)

        @functools.wraps(close)
        def closed(node: Node, timeout: float | None = None) -> None:
            self.look(node)
            close(node, timeout)

        @functools.wraps(stop)
        def stopped(process: NodeProcess) -> None:
            self.look_at_process(process)
            stop(process)

        cluster = testing.cluster

        @functools.wraps(cluster)
        @contextlib.contextmanager
        def watched(size: int = 3, *, capacity: int | str = "1GiB") -> Iterator[list[Node]]:
            with cluster(size, capacity=capacity) as nodes:
                try:
                    yield nodes
                finally:
                    # Before the first node closes: closing nodes get no time to hand over copies to each other.
                    for node in nodes:
                        self.look(node)

        replace(testing, "cluster", watched)
        replace(Node, "_start", started)
        replace(Node, "close", closed)
        replace(testing.NodeProcess, "stop", stopped)

    def look(self, node: Node) -> None:
        """Reads the counters of a node of this process, if it is open."""
        if node in self._open and os.getpid() == node._pid and not node.closed:
            self._open.discard(node)
            client = node._native.client()
            self._take(node.id, json.loads(client.start_status(None).result()))
            client.close()

    def look_at_process(self, process: NodeProcess) -> None:
        """Reads the counters of a node process, if it has not ended."""
        from hoplite.errors import HopliteError

        if process.process.poll() is None:
            # A leaving node does not reply any more.
            with contextlib.suppress(HopliteError), process.client() as client:
                self._take(process.id, client.status())

    def look_at_all(self) -> None:
        """Reads the counters of all open nodes of this process."""
        for node in list(self._open):
            self.look(node)

    def _take(self, node: str, status: Status) -> None:
        from hoplite.tools.peace import of

        # Small objects that do not fit their owner's inline cache are not a fault. They cost their readers a round
        # trip.
        limits = [row for row in status["limits"] if row["member"] and row["limit"] != "INLINE_SHARE"]
        self._note({"node": node, "counters": of(status["counters"]), "limits": limits})


def watch_script() -> None:
    """Watches the nodes of this script, if a test collects their counters."""
    path = os.environ.get(FILE_VARIABLE)
    if path is None:
        return

    def note(counted: dict[str, Any]) -> None:
        # A single write, because scripts of one test may end at the same time.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, json.dumps(counted).encode() + b"\n")
        os.close(descriptor)

    Watch(note).install(setattr)


def disturbances(noted: list[dict[str, Any]], file: Path) -> list[str]:
    """Describes the counters that only a fault increases."""
    from hoplite.tools.peace import disturbances as moved

    lines = file.read_text().splitlines() if file.exists() else []
    counts = [*noted, *(json.loads(line) for line in lines)]
    found = [f"node {counted['node']}: {line}" for counted in counts for line in moved(counted["counters"])]
    return found + [f"node {counted['node']}: {row}" for counted in counts for row in counted["limits"]]

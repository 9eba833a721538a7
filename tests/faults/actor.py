"""A process on a host of the lab: a node, and a client of it that does what it is told over standard input.

A line is a JSON object: {"number": 7, "do": "get", "ref": "x/1", ...}. The answer, in any order, is another one:
{"number": 7, "at": seconds, ...}, with "error" and "said" if it failed. `at` is the machine's monotonic clock,
which all hosts of a lab share, in the moment when the call returned; bytes are checked after that.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import hoplite
from faults import content
from hoplite.tools import peace


class Actor:
    """Does what it is told, each thing in a thread of its own."""

    def __init__(self, node: hoplite.Node) -> None:
        self.node = node
        self.client = node.client()
        self._writing = threading.Lock()

    def serve(self) -> None:
        """Reads orders until there are none any more."""
        for line in sys.stdin:
            order = json.loads(line)
            threading.Thread(target=self._obey, args=(order.pop("number"), order), daemon=True).start()

    def say(self, answer: dict[str, Any]) -> None:
        """Writes a line."""
        with self._writing:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    def _obey(self, number: int, order: dict[str, Any]) -> None:
        try:
            answer = getattr(self, f"do_{order.pop('do')}")(**order)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever gave the order judges it
            answer = {"error": type(error).__name__, "said": str(error)}
        self.say({"number": number, "at": time.monotonic()} | answer)

    def do_put(self, ref: str, count: int, seed: int) -> dict[str, Any]:
        """Makes an object of int64 [count]."""
        with self.client.create(count, content.DTYPE, name=ref) as buffer:
            content.fill(buffer.array, seed)
        return {"at": time.monotonic()}

    def do_get(self, ref: str, timeout: float, seeds: list[int] | None = None) -> dict[str, Any]:
        """Gets an object and says what is wrong with it; of a result without seeds, which element is its first."""
        array = self.client.get(ref, timeout=timeout)
        at = time.monotonic()
        if seeds is None:
            return {"at": at, "first": int(array[0])}
        return {"at": at, "wrong": content.wrong(array, seeds)}

    def do_reduce(
        self, refs: list[str], count: int, name: str, timeout: float, seeds: dict[str, int]
    ) -> dict[str, Any]:
        """Folds, gets the result, and compares it with the sum of its inputs."""
        result = self.client.reduce(refs, op="sum", count=count, name=name)
        array = self.client.get(result, timeout=timeout)
        at = time.monotonic()
        inputs = [str(ref) for ref in result.inputs(timeout=timeout)]
        said = content.wrong(array, [seeds[ref] for ref in inputs])
        if len(inputs) != count or len(set(inputs)) != count:
            said = f"{inputs} are not {count} inputs"
        return {"at": at, "wrong": said, "inputs": inputs}

    def do_delete(self, refs: list[str], timeout: float) -> dict[str, Any]:
        """Deletes objects."""
        self.client.delete(refs, timeout=timeout)
        return {}

    def do_owners(self, ref: str) -> dict[str, Any]:
        """Which nodes keep where an object is. Nobody but a test wants to know."""
        return {"owners": self.client._open().start_owners(ref).result()}

    def do_locate(self, ref: str) -> dict[str, Any]:
        """Which nodes hold an object, as its owner knows."""
        return {"holders": [location.node for location in self.client.locations(ref, timeout=5)]}

    def do_miss(self, member: str, timeout: float) -> dict[str, Any]:
        """Waits until a member is one no more."""
        until = time.monotonic() + timeout
        while any(other["id"] == member for other in self.client.status()["members"]):
            if time.monotonic() > until:
                return {"error": "Timeout", "said": f"{member} is still a member after {timeout:g} s"}
            time.sleep(0.001)
        return {}

    def do_status(self) -> dict[str, Any]:
        """What the node knows and holds, and what this process uses."""
        status = self.client.status()
        return {
            "members": [member["id"] for member in status["members"]],
            "suspected": sum(member["suspected"] is not None for member in status["members"]),
            "objects": [copy["ref"] for copy in self.client.objects()],
            "owned": status["owned"],
            "used": status["store"]["used"],
            "counters": peace.of(status["counters"]),
            "strangers": status["counters"]["strangers"],
            "memory": _private_bytes(),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "threads": len(list(Path("/proc/self/task").iterdir())),
        }

    def do_ways(self) -> dict[str, Any]:
        """By way of which other node each member is reached; none if directly."""
        return {"ways": {member["id"]: member["via"] for member in self.client.status()["members"]}}

    def do_leave(self, timeout: float) -> dict[str, Any]:
        """Leaves the cluster, and hands over what only this node holds."""
        self.node.close(timeout)
        return {}


def _private_bytes() -> int:
    """Memory of this process alone that is in use; not its store, which keeps what was taken for objects."""
    with contextlib.suppress(AttributeError, OSError):
        # What is free between what is used is given back: it would look like memory that is lost.
        ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Joins, and serves until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m faults.actor")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--join", action="append", default=[])
    parser.add_argument("--capacity", required=True)
    parser.add_argument("--detection-timeout", type=float, required=True)
    options = parser.parse_args()
    # The lab is a network of its own: without a token, but for one that the environment has.
    begun = time.monotonic()
    with hoplite.Node(
        listen=options.listen,
        join=options.join,
        capacity=options.capacity,
        detection_timeout=options.detection_timeout,
        no_auth=True,
    ) as node:
        actor = Actor(node)
        at = time.monotonic()
        actor.say({"id": node.id, "socket": node.socket, "took_s": at - begun, "at": at})
        actor.serve()


if __name__ == "__main__":
    main()

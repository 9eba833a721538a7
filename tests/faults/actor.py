"""A process on a host of the lab: a node and a client, controlled over standard input.

A request is a line with a JSON object: {"number": 7, "do": "get", "ref": "x/1", ...}. The replies are such lines in any
order: {"number": 7, "at": seconds, ...}, with "error" and "message" if the request failed. `at` is the time when the
call returned, on the machine's monotonic clock, which all hosts of a lab share. Bytes are checked after that time.
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
    """Runs each request in its own thread."""

    def __init__(self, node: hoplite.Node) -> None:
        self.node = node
        self.client = node.client()
        self._writing = threading.Lock()

    def serve(self) -> None:
        """Reads requests until standard input ends."""
        for line in sys.stdin:
            order = json.loads(line)
            threading.Thread(target=self._obey, args=(order.pop("number"), order), daemon=True).start()

    def write(self, answer: dict[str, Any]) -> None:
        """Writes a reply."""
        with self._writing:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    def _obey(self, number: int, order: dict[str, Any]) -> None:
        try:
            answer = getattr(self, f"do_{order.pop('do')}")(**order)
        except Exception as error:  # noqa: BLE001 - any error; the sender of the request evaluates it
            answer = {"error": type(error).__name__, "message": str(error)}
        self.write({"number": number, "at": time.monotonic()} | answer)

    def do_put(self, ref: str, count: int, seed: int) -> dict[str, Any]:
        """Puts an object of int64 [count]."""
        with self.client.create(count, content.DTYPE, name=ref) as buffer:
            content.fill(buffer.array, seed)
        return {"at": time.monotonic()}

    def do_get(self, ref: str, timeout: float, seeds: list[int] | None = None) -> dict[str, Any]:
        """Gets an object and reports where it is wrong. Without seeds, reports the first element of a result."""
        array = self.client.get(ref, timeout=timeout)
        at = time.monotonic()
        if seeds is None:
            return {"at": at, "first": int(array[0])}
        return {"at": at, "wrong": content.wrong(array, seeds)}

    def do_reduce(
        self, refs: list[str], count: int, name: str, timeout: float, seeds: dict[str, int]
    ) -> dict[str, Any]:
        """Reduce, get the result, and compare it with the sum of its inputs."""
        result = self.client.reduce(refs, op="sum", count=count, name=name)
        array = self.client.get(result, timeout=timeout)
        at = time.monotonic()
        inputs = [str(ref) for ref in result.inputs(timeout=timeout)]
        wrong = content.wrong(array, [seeds[ref] for ref in inputs])
        if len(inputs) != count or len(set(inputs)) != count:
            wrong = f"{inputs} are not {count} inputs"
        return {"at": at, "wrong": wrong, "inputs": inputs}

    def do_delete(self, refs: list[str], timeout: float) -> dict[str, Any]:
        """Deletes objects."""
        self.client.delete(refs, timeout=timeout)
        return {}

    def do_owners(self, ref: str) -> dict[str, Any]:
        """Returns the nodes that own an object's directory entry. Only tests need this."""
        return {"owners": self.client._open().start_owners(ref).result()}

    def do_locate(self, ref: str) -> dict[str, Any]:
        """Returns the nodes that hold an object, according to its owner."""
        return {"holders": [location.node for location in self.client.locations(ref, timeout=5)]}

    def do_miss(self, member: str, timeout: float) -> dict[str, Any]:
        """Waits until a node is no longer a member."""
        until = time.monotonic() + timeout
        while any(other["id"] == member for other in self.client.status()["members"]):
            if time.monotonic() > until:
                return {"error": "Timeout", "message": f"{member} is still a member after {timeout:g} s"}
            time.sleep(0.001)
        return {}

    def do_status(self) -> dict[str, Any]:
        """Returns what the node reports and holds, and the resources of this process."""
        status = self.client.status()
        return {
            "members": [member["id"] for member in status["members"]],
            "suspected": sum(member["suspected"] is not None for member in status["members"]),
            "objects": [copy["ref"] for copy in self.client.objects()],
            "owned": status["owned"],
            "used": status["store"]["used"],
            "connections": status["link"]["connections"],
            "counters": peace.of(status["counters"]),
            "strangers": status["counters"]["strangers"],
            "memory": _private_bytes(),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "threads": len(list(Path("/proc/self/task").iterdir())),
        }

    def do_ways(self) -> dict[str, Any]:
        """Returns the relay of each member; None where the node has a direct connection."""
        return {"ways": {member["id"]: member["via"] for member in self.client.status()["members"]}}

    def do_leave(self, timeout: float) -> dict[str, Any]:
        """Leaves the cluster and hands over the copies that only this node holds."""
        self.node.close(timeout)
        return {}


def _private_bytes() -> int:
    """Returns this process's private memory in use. Its store is not included: it retains memory taken for objects."""
    with contextlib.suppress(AttributeError, OSError):
        # Returns free memory inside the heap to the system. Otherwise it would look like a leak.
        ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Joins the cluster, and serves until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m faults.actor")
    parser.add_argument("--listen", required=True)
    parser.add_argument("--join", action="append", default=[])
    parser.add_argument("--capacity", required=True)
    parser.add_argument("--detection-timeout", type=float, required=True)
    options = parser.parse_args()
    # The lab is a separate network, so no token is needed unless the environment has one.
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
        actor.write({"id": node.id, "socket": node.socket, "took_s": at - begun, "at": at})
        actor.serve()


if __name__ == "__main__":
    main()

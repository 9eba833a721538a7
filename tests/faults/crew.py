"""Processes ("actors") on the hosts of a lab: starts them, sends them requests, kills them and restarts them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError
from hoplite.tools import peace

if TYPE_CHECKING:
    from typing import Self

    from hoplite_bench.lab import Host, Lab

# A start takes a second. Disconnected or paused hosts can't be used to join.
START_TIMEOUT_S = 30.0
POLL_S = 0.01
PORT = 7420

# Large allocations are returned at once; otherwise retained memory looks like a leak.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**17), "MALLOC_ARENA_MAX": "2"}


class ActorDied(HopliteError):
    """The process that received the request has ended."""


class LeftBehind(HopliteError):
    """Nodes hold objects that were deleted.

    Attributes:
        refs: the objects.
    """

    def __init__(self, message: str, refs: set[str]) -> None:
        super().__init__(message)
        self.refs = refs


@dataclass(frozen=True)
class Reply:
    """The result of a request.

    Attributes:
        at: the machine's monotonic clock when the call returned, in seconds.
        error: name of the error that was raised; empty without an error.
        message: its message.
        facts: the rest of the reply.
    """

    at: float
    error: str
    message: str
    facts: dict[str, Any]


class Actor:
    """A process on a host, and its pending requests."""

    def __init__(self, host: Host, seeds: list[str], *, capacity: str, detection_s: float) -> None:
        self.host = host
        self.id = ""
        # The path of its node's socket, and the seconds that the node took to start and join.
        self.socket, self.took_s = "", 0.0
        self.is_up = False
        self._numbers = itertools.count()
        self._pending: dict[int, Future[Reply]] = {}
        self._lock = threading.Lock()
        self._ready = threading.Event()
        listen = f"{host.address}:{PORT}"
        joins = [word for seed in seeds for word in ("--join", seed)]
        own = ["--listen", listen, "--capacity", capacity, "--detection-timeout", str(detection_s)]
        self.process: subprocess.Popen[str] = host.popen(
            [sys.executable, "-m", "faults.actor", *own, *joins],
            env=os.environ | ALLOCATOR | {"PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.address = listen
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        """Waits until its node has joined.

        Raises:
            HopliteError: it did not start; its error is on standard error.
        """
        if not self._ready.wait(START_TIMEOUT_S) or not self.is_up:
            raise HopliteError(f"the actor on {self.host.name} did not start")

    def send(self, do: str, **arguments: Any) -> Future[Reply]:  # noqa: ANN401 - the arguments of the request
        """Sends a request. The reply is `ActorDied` if the process ends before it replies."""
        reply: Future[Reply] = Future()
        with self._lock:
            number = next(self._numbers)
            self._pending[number] = reply
        line = json.dumps({"number": number, "do": do} | arguments)
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            self._end()
        return reply

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers:
            for line in answers:
                self._answered(json.loads(line))
        self._end()

    def _answered(self, answer: dict[str, Any]) -> None:
        if "id" in answer:
            self.id, self.is_up = answer["id"], True
            self.socket, self.took_s = answer["socket"], answer["took_s"]
            self._ready.set()
            return
        with self._lock:
            reply = self._pending.pop(answer.pop("number"), None)
        if reply is not None:
            at, error, message = answer.pop("at"), answer.pop("error", ""), answer.pop("message", "")
            reply.set_result(Reply(at, error, message, answer))

    def _end(self) -> None:
        self.is_up = False
        self._ready.set()
        with self._lock:
            pending, self._pending = self._pending, {}
        for reply in pending.values():
            reply.set_result(Reply(time.monotonic(), "ActorDied", f"the process on {self.host.name} ended", {}))

    def close(self) -> None:
        """Ends the process, if it is still running."""
        self.process.kill()
        self.process.wait()
        self._reader.join(START_TIMEOUT_S)
        if self.process.stdin is not None:
            # Requests that it did not read are lost.
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        self._end()


class Crew:
    """An actor on each host of a lab.

    Args:
        lab: the hosts.
        capacity: capacity of each node's store.
        detection_s: the detection timeout of the nodes, in seconds.
    """

    def __init__(self, lab: Lab, *, capacity: str = "1GiB", detection_s: float = 3.0) -> None:
        self.lab = lab
        self.detection_s = detection_s
        self._capacity = capacity
        self.actors: list[Actor] = []

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self.close)
            for host in self.lab.hosts:
                self.actors.append(self._started(host))
            for actor in self.actors:
                actor.wait_ready()
            self.wait_until_met()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all actors."""
        for actor in self.actors:
            actor.close()

    def _started(self, host: Host) -> Actor:
        seeds = [f"{other.address}:{PORT}" for other in self.lab.hosts if other is not host]
        known = [actor.address for actor in self.actors if actor.is_up and actor.host is not host]
        # The first actor has no node to join yet.
        return Actor(
            host, known or (seeds if self.actors else []), capacity=self._capacity, detection_s=self.detection_s
        )

    def restart(self, number: int) -> Actor:
        """Starts a new actor on a host whose actor has ended. It joins through the running actors."""
        self.actors[number].close()
        self.actors[number] = self._started(self.lab.hosts[number])
        return self.actors[number]

    def repair(self) -> None:
        """Undoes every fault, restarts actors that have ended, and waits until all are members of one cluster.

        Raises:
            HopliteError: the membership did not converge.
        """
        for host in self.lab.hosts:
            host.heal()
            host.thaw()
        for actor in [self.restart(number) for number, actor in enumerate(self.actors) if not actor.is_up]:
            actor.wait_ready()
        self.wait_until_met()

    def wait_until_met(self, timeout: float = 60.0) -> None:
        """Waits until every node's member list is exactly the nodes of all actors.

        Raises:
            HopliteError: the lists still differ after the timeout; the message has each node's list.
        """
        until = time.monotonic() + timeout
        ids = sorted(actor.id for actor in self.actors)
        while True:
            views = [sorted(reply.facts.get("members", [])) for reply in self.status()]
            if all(view == ids for view in views):
                return
            if time.monotonic() > until:
                lines = [
                    f"{actor.host.name} ({actor.id}) has {len(view)} members ({' '.join(view)})"
                    for actor, view in zip(self.actors, views, strict=True)
                ]
                raise HopliteError(f"{len(ids)} nodes do not agree after {timeout:g} s: {', '.join(lines)}")
            time.sleep(POLL_S)

    def wait_until_empty(self, timeout: float = 30.0) -> None:
        """Waits until no node holds or owns an object.

        Raises:
            LeftBehind: objects are left; the message names them and their nodes.
        """
        until = time.monotonic() + timeout
        while True:
            statuses = self.status()
            if all(reply.facts.get("objects") == [] and reply.facts["owned"] == 0 for reply in statuses):
                return
            if time.monotonic() > until:
                lines = [
                    f"{actor.host.name} ({actor.id}): {reply.error or self._located(reply.facts['objects'])}, "
                    f"{reply.facts.get('owned')} owned"
                    for actor, reply in zip(self.actors, statuses, strict=True)
                ]
                left = {ref for reply in statuses for ref in reply.facts.get("objects", [])}
                raise LeftBehind(f"left after {timeout:g} s: {'; '.join(lines)}", left)
            time.sleep(POLL_S)

    def _located(self, refs: list[str]) -> str:
        """Describes the owners of some objects, and the holders according to the owners."""
        lines = []
        for ref in refs:
            owners = self.actors[0].send("owners", ref=ref).result(START_TIMEOUT_S)
            holders = self.actors[0].send("locate", ref=ref).result(START_TIMEOUT_S)
            lines.append(f"{ref} of {owners.facts.get('owners')} at {holders.facts.get('holders') or holders.message}")
        return ", ".join(lines) or "nothing"

    def counters(self) -> dict[str, dict[str, int]]:
        """Returns each node's counters that only a fault increases, by the node's id."""
        replies = zip(self.actors, self.status(), strict=True)
        return {actor.id: reply.facts["counters"] for actor, reply in replies}

    def disturbances(self, before: dict[str, dict[str, int]]) -> list[str]:
        """Describes the counters that increased since `before`."""
        now = self.counters().items()
        return [f"node {node}: {line}" for node, own in now for line in peace.disturbances(own, before.get(node))]

    def status(self) -> list[Reply]:
        """Returns what each node reports and holds.

        Raises:
            TimeoutError: an actor did not reply.
        """
        pending = [actor.send("status") for actor in self.actors]
        return [reply.result(START_TIMEOUT_S) for reply in pending]

"""The actor that sees to it that each Ray node has a keeper whose node is a member of one Hoplite cluster.

It looks at the list of Ray nodes once in a second, and hears at once when a keeper dies. Only it and the keepers
know the cluster's secret. Members of a collective group meet here too. Knows nothing of objects.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import Any

import ray

from hoplite import Client, HopliteError, connect, new_token
from hoplite.ray._versions import NodeAffinitySchedulingStrategy
from hoplite.ray.keeper import CONCURRENCY, Keeper, Secret
from hoplite.ray.place import NAMESPACE, keeper_of

logger = logging.getLogger("hoplite.ray")

# Between two looks at the list of Ray nodes.
EVERY_S = 1.0
# A new worker process of Ray imports for seconds on a busy host.
START_S = 60.0
# Before a node that could not start is tried again.
AGAIN_S = 15.0
END_S = 10.0

# What Ray raises when its own processes do not answer, or are not what was asked for.
OF_RAY = (ray.exceptions.RayError, RuntimeError, ValueError, OSError)


class Supervisor:
    """Runs until `stop`.

    Args:
        cluster: the name of the Hoplite cluster.
        memory: most bytes of each node's store; None takes what Ray gives its object store on that Ray node.
        port: TCP port of each node; 0 takes any free one.
    """

    def __init__(self, cluster: str, memory: int | str | None, port: int) -> None:
        self._cluster, self._memory, self._port = cluster, memory, port
        self._secret: Secret | None = None
        self._lock = threading.Lock()
        self._nodes: dict[str, dict[str, Any]] = {}
        self._keepers: dict[str, Any] = {}
        # What each keeper's `watch` is to return, and of which Ray node.
        self._watches: dict[Any, str] = {}
        self._problems: dict[str, tuple[str, str]] = {}
        self._not_before: dict[str, float] = {}
        self._groups: dict[str, _Group] = {}
        # At the node of the head, once a group forms.
        self._client: Client | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hoplite-supervisor", daemon=True)
        self._thread.start()

    def facts(self) -> dict[str, Any]:
        """What runs, and what could not start.

        Returns:
            The "cluster", "memory" and "port" that were asked for; by the id of the Ray node the facts of its Hoplite
            node in "nodes", and in "problems" a pair of the error's class and text.
        """
        with self._lock:
            return {
                "cluster": self._cluster,
                "memory": self._memory,
                "port": self._port,
                "nodes": dict(self._nodes),
                "problems": dict(self._problems),
            }

    def meet(self, group: str, size: int, rank: int, promise: str) -> dict[str, Any]:
        """Takes the word of a member of a collective group that it is there; it asks again until all are.

        Args:
            group: the name of the group.
            size: how many members it has.
            rank: of the member.
            promise: the text of a ref that the member has promised, and which is lost when it dies.

        Returns:
            "generation", a text that no other group has had, and "promises" of all ranks; or "missing", the ranks that
            are not there yet.
        """
        with self._lock:
            found = self._groups.setdefault(group, _Group())
            known = found.promises_with(size, rank, promise)
        gone = self._broken(known)
        with self._lock:
            return found.meet(size, rank, promise, gone)

    def forming(self, group: str) -> list[int]:
        """The ranks of a collective group that wait for the others, and live."""
        with self._lock:
            forming = dict(self._groups[group].forming) if group in self._groups else {}
        gone = self._broken(list(forming.values()))
        return sorted(rank for rank, promise in forming.items() if promise not in gone)

    def _broken(self, promises: list[str]) -> set[str]:
        """Those of some promises whose makers have died."""
        with self._lock:
            here = self._nodes.get(ray.get_runtime_context().get_node_id())
        if here is None:
            return set()
        try:
            if self._client is None or self._client.closed:
                self._client = connect(f"unix:{here['socket']}", reconnect=True)
            return {str(each) for each in self._client.wait(promises, timeout=0)[0]}
        except HopliteError as error:
            logger.debug("promises were not looked at: %s", error)
            return set()

    def stop(self) -> None:
        """Ends all nodes."""
        self._stopping.set()
        self._thread.join(START_S)
        ending = [keeper.end.remote() for keeper in self._keepers.values()]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=END_S)
        for keeper in self._keepers.values():
            ray.kill(keeper)
        with self._lock:
            self._nodes.clear()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
                self._await_an_end()
            except OF_RAY as error:
                # The head of the cluster restarts, for instance: the next look may be answered.
                logger.warning("Hoplite could not look after the Ray nodes: %s", error)
                self._stopping.wait(EVERY_S)

    def _look(self) -> None:
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        if self._secret is None:
            self._adopt(alive)
        for gone in (self._keepers.keys() | self._problems.keys()) - alive.keys():
            self._forget(gone)
        now = time.monotonic()
        missing = [node for node in alive if node not in self._nodes and self._not_before.get(node, 0.0) <= now]
        while missing and not self._stopping.is_set():
            # The first begins the cluster, the others join it.
            batch = missing if self._nodes else missing[:1]
            missing = missing[len(batch) :]
            for node, asked in [(node, self._ask(alive[node])) for node in batch]:
                self._take(node, asked)

    def _adopt(self, alive: dict[str, Any]) -> None:
        """Finds the keepers of a supervisor that was killed; makes the secret if there are none."""
        secret = None
        for node in alive:
            try:
                keeper = ray.get_actor(keeper_of(node), namespace=NAMESPACE)
                secret = ray.get(keeper.secret.remote(), timeout=END_S) or secret
                found = ray.get(keeper.facts.remote(), timeout=END_S)
            except OF_RAY:
                continue
            if found is not None:
                self._keep(node, keeper, found)
        self._secret = secret or Secret(new_token())

    def _ask(self, node: dict[str, Any]) -> Any:
        """Has a keeper start on a Ray node, or finds the one that is there; returns what its node is to answer."""
        keeper = (
            ray.remote(Keeper)
            .options(
                name=keeper_of(node["NodeID"]),
                namespace=NAMESPACE,
                get_if_exists=True,
                lifetime="detached",
                num_cpus=0,
                max_restarts=0,
                max_concurrency=CONCURRENCY,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            )
            .remote()
        )
        self._keepers[node["NodeID"]] = keeper
        share = node["Resources"].get("object_store_memory")
        capacity = self._memory if self._memory is not None or not share else int(share)
        join = [facts["address"] for facts in self._nodes.values()]
        return keeper.begin.remote(self._secret, self._cluster, join, capacity, self._port)

    def _take(self, node: str, asked: Any) -> None:
        keeper = self._keepers[node]
        try:
            self._keep(node, keeper, ray.get(asked, timeout=START_S))
        except (*OF_RAY, HopliteError) as error:
            cause = getattr(error, "cause", None) or error
            logger.warning("Hoplite can't run on Ray node %s: %s", node, cause)
            with self._lock:
                self._problems[node] = (type(cause).__name__, str(cause))
            self._not_before[node] = time.monotonic() + AGAIN_S
            del self._keepers[node]
            ray.kill(keeper)

    def _keep(self, node: str, keeper: Any, facts: dict[str, Any]) -> None:
        self._keepers[node] = keeper
        self._watches[keeper.watch.remote()] = node
        with self._lock:
            self._nodes[node] = facts
            self._problems.pop(node, None)

    def _await_an_end(self) -> None:
        """Waits until a keeper or its node has ended, or it is time to look again."""
        if not self._watches:
            self._stopping.wait(EVERY_S)
            return
        ended, _ = ray.wait(list(self._watches), num_returns=1, timeout=EVERY_S)
        for watch in ended:
            node = self._watches.pop(watch)
            try:
                why = ray.get(watch)
            except ray.exceptions.RayError as error:
                why = str(error)
            if not self._stopping.is_set():
                logger.warning("the Hoplite node of Ray node %s has ended: %s", node, why)
                self._forget(node)

    def _forget(self, node: str) -> None:
        keeper = self._keepers.pop(node, None)
        for watch in [watch for watch, of in self._watches.items() if of == node]:
            del self._watches[watch]
        with self._lock:
            self._nodes.pop(node, None)
            self._problems.pop(node, None)
        self._not_before.pop(node, None)
        if keeper is not None:
            ray.kill(keeper)


class _Group:
    """The members of a collective group that have said that they are there."""

    def __init__(self) -> None:
        self.size = 0
        self.forming: dict[int, str] = {}
        # The last that was complete.
        self.generation = ""
        self.promises: list[str] = []

    def promises_with(self, size: int, rank: int, promise: str) -> list[str]:
        """The promises of members that would make the group complete with this one; none if members are missing."""
        forming = {**(self.forming if size == self.size else {}), rank: promise}
        return [] if len(forming) < size else list(forming.values())

    def meet(self, size: int, rank: int, promise: str, gone: set[str]) -> dict[str, Any]:
        """See `Supervisor.meet`.

        Args:
            size: how many members the group has.
            rank: of the member.
            promise: of the member.
            gone: promises of members that have died.
        """
        if promise in self.promises:
            return {"generation": self.generation, "promises": self.promises}
        if size != self.size:
            # Members that ask for another size are of an earlier attempt.
            self.size, self.forming = size, {}
        self.forming[rank] = promise
        self.forming = {rank: each for rank, each in self.forming.items() if each not in gone}
        if len(self.forming) < size:
            return {"missing": [number for number in range(size) if number not in self.forming]}
        self.generation = uuid.uuid4().hex
        self.promises = [self.forming[number] for number in range(size)]
        self.forming = {}
        return {"generation": self.generation, "promises": self.promises}

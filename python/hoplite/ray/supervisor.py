"""The supervisor: an actor that runs one keeper per Ray node, whose Hoplite nodes form one cluster.

It checks the list of Ray nodes once a second, and is notified at once when a keeper ends. Only the supervisor and the
keepers hold the cluster's secret. The supervisor also is the rendezvous of the members of collective groups. It does
not handle objects.
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

# Interval between checks of the list of Ray nodes.
EVERY_S = 1.0
# Timeout of a start. On a busy host, a new worker process of Ray takes seconds for its imports.
START_S = 60.0
# Delay before another attempt to start a node.
AGAIN_S = 15.0
END_S = 10.0

# Errors of Ray when its own processes do not reply, or no longer exist.
OF_RAY = (ray.exceptions.RayError, RuntimeError, ValueError, OSError)


class Supervisor:
    """Manages the keepers of a Ray cluster until `stop`.

    Args:
        cluster: the name of the Hoplite cluster.
        memory: capacity of each node's store; None uses the size of Ray's object store on that Ray node.
        port: TCP port of each node; 0 selects a free one.
    """

    def __init__(self, cluster: str, memory: int | str | None, port: int) -> None:
        self._cluster, self._memory, self._port = cluster, memory, port
        self._secret: Secret | None = None
        self._lock = threading.Lock()
        self._nodes: dict[str, dict[str, Any]] = {}
        self._keepers: dict[str, Any] = {}
        # The Ray node of each pending `watch` call of a keeper.
        self._watches: dict[Any, str] = {}
        self._problems: dict[str, tuple[str, str]] = {}
        self._not_before: dict[str, float] = {}
        self._groups: dict[str, _Group] = {}
        # Attached to the Hoplite node of the head node once a group forms.
        self._client: Client | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hoplite-supervisor", daemon=True)
        self._thread.start()

    def facts(self) -> dict[str, Any]:
        """Returns the running Hoplite nodes, and the errors of those that could not start.

        Returns:
            A dict of the configured "cluster", "memory" and "port"; "nodes", the facts of each Hoplite node by the id
            of its Ray node; and "problems", pairs of the error's class and text by the id of the Ray node.
        """
        with self._lock:
            return {
                "cluster": self._cluster,
                "memory": self._memory,
                "port": self._port,
                "nodes": dict(self._nodes),
                "problems": dict(self._problems),
            }

    def meet(self, group: str, size: int, rank: int, reservation: str) -> dict[str, Any]:
        """Registers a member of a collective group. Members call it repeatedly until all have registered.

        Args:
            group: the name of the group.
            size: the number of its members.
            rank: the rank of the member.
            reservation: a ref that the member has reserved, and that is lost when the member dies.

        Returns:
            "generation", a unique text, and "reservations", the reservations of all ranks; or "missing", the ranks that
            have not registered yet.
        """
        with self._lock:
            found = self._groups.setdefault(group, _Group())
            known = found.reservations_with(size, rank, reservation)
        gone = self._broken(known)
        with self._lock:
            return found.meet(size, rank, reservation, gone)

    def forming(self, group: str) -> list[int]:
        """Returns the live ranks of a collective group that wait for the others."""
        with self._lock:
            forming = dict(self._groups[group].forming) if group in self._groups else {}
        gone = self._broken(list(forming.values()))
        return sorted(rank for rank, reservation in forming.items() if reservation not in gone)

    def _broken(self, reservations: list[str]) -> set[str]:
        """Returns the reservations whose members have died."""
        with self._lock:
            here = self._nodes.get(ray.get_runtime_context().get_node_id())
        if here is None:
            return set()
        try:
            if self._client is None or self._client.closed:
                self._client = connect(f"unix:{here['socket']}", reconnect=True)
            return {str(each) for each in self._client.wait(reservations, timeout=0)[0]}
        except HopliteError as error:
            logger.debug("could not check the reservations of a group: %s", error)
            return set()

    def stop(self) -> None:
        """Stops all nodes."""
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
                # For example, the head node of the cluster restarts. The next check may succeed.
                logger.warning("the Hoplite supervisor could not check the Ray nodes and will retry: %s", error)
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
            # The first node creates the cluster; the others join it.
            batch = missing if self._nodes else missing[:1]
            missing = missing[len(batch) :]
            for node, asked in [(node, self._ask(alive[node])) for node in batch]:
                self._take(node, asked)

    def _adopt(self, alive: dict[str, Any]) -> None:
        """Finds the keepers of an earlier supervisor. Without any, generates the secret."""
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
        """Starts the keeper of a Ray node, or finds the running one; returns the ObjectRef of its `begin` call."""
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
            logger.warning("Hoplite can't run on Ray node %s and will retry: %s", node, cause)
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
        """Waits until a keeper or its node has ended, at most until the next check of the Ray nodes."""
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
    """The registered members of a collective group."""

    def __init__(self) -> None:
        self.size = 0
        self.forming: dict[int, str] = {}
        # The latest complete group.
        self.generation = ""
        self.reservations: list[str] = []

    def reservations_with(self, size: int, rank: int, reservation: str) -> list[str]:
        """Returns the reservations of the group if this member completes it; an empty list otherwise."""
        forming = {**(self.forming if size == self.size else {}), rank: reservation}
        return [] if len(forming) < size else list(forming.values())

    def meet(self, size: int, rank: int, reservation: str, gone: set[str]) -> dict[str, Any]:
        """Registers a member; see `Supervisor.meet`.

        Args:
            size: the number of members of the group.
            rank: the rank of the member.
            reservation: the reservation of the member.
            gone: reservations of members that have died.
        """
        if reservation in self.reservations:
            return {"generation": self.generation, "reservations": self.reservations}
        if size != self.size:
            # Members of another size belong to an earlier attempt.
            self.size, self.forming = size, {}
        self.forming[rank] = reservation
        self.forming = {rank: each for rank, each in self.forming.items() if each not in gone}
        if len(self.forming) < size:
            return {"missing": [number for number in range(size) if number not in self.forming]}
        self.generation = uuid.uuid4().hex
        self.reservations = [self.forming[number] for number in range(size)]
        self.forming = {}
        return {"generation": self.generation, "reservations": self.reservations}

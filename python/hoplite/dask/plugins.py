"""The Dask plugins: `Meeting` on the scheduler and `Host` on each worker.

`Meeting` lists the nodes for new ones, and has objects deleted when their futures end. `Host` finds or starts the node
of a worker's host. It contains the cluster's secret, which therefore travels like all data that a Dask client sends to
workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin

from hoplite._aside import in_own_thread
from hoplite.dask import arrays, keeper, process
from hoplite.dask.arrays import CAPABILITY, PREFIX
from hoplite.dask.needs import check_worker
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Hashable

NAME = "hoplite"
MEETING = "hoplite-meeting"

# After a ref could not be resolved, a worker gets bytes for this time.
STEP_BACK_S = 10.0
# Delay between the release of a task and the check that nothing needs it any more.
RELEASED_S = 2.0
# Delay between attempts to restart the node of a host: initially, and at most.
AGAIN_S = 1.0
AGAIN_S_MAX = 30.0

log = logging.getLogger("hoplite.dask")


class Meeting(SchedulerPlugin):  # type: ignore[misc] # Dask has no types here
    """Lists nodes for new ones, and has objects deleted when their futures end. It has no secret and no node."""

    name = MEETING
    idempotent = True

    async def start(self, scheduler: Any) -> None:  # noqa: ANN401 - Dask has no types here
        """Registers the handlers for requests of workers."""
        self._scheduler = scheduler
        # The address of its node, by the address of each worker with a node.
        self._nodes: dict[str, str] = {}
        # The worker that starts the first node, while others wait.
        self._founder: str | None = None
        self._changed = asyncio.Event()
        # By key: the refs of objects in addition to the one in the key itself.
        self._owned: dict[Hashable, set[str]] = {}
        self._to_delete: set[str] = set()
        # Keys of tasks for which a reduce waits.
        self._watched: set[Hashable] = set()
        self._moved = asyncio.Event()
        self._deleting: asyncio.Task[None] | None = None
        scheduler.handlers.update(
            hoplite_join=self.join,
            hoplite_joined=self.joined,
            hoplite_failed=self.failed,
            hoplite_ended=self.ended,
            hoplite_own=self.own,
            hoplite_settled=self.settled,
        )

    async def join(self, worker: str) -> list[str]:
        """Returns the nodes that a worker's node should join; an empty list for the first node."""
        while not self._nodes and self._founder not in (None, worker):
            await self._changed.wait()
        if not self._nodes:
            self._founder = worker
        return sorted(set(self._nodes.values()))

    def joined(self, worker: str, node: str) -> None:
        """Records the node of a worker's host."""
        if worker in self._scheduler.workers:
            self._nodes[worker] = node
        self.failed(worker)
        self._delete()

    def failed(self, worker: str) -> None:
        """Lets another worker start the first node, if this one failed to."""
        if self._founder == worker:
            self._founder = None
        self._changed.set()
        self._changed = asyncio.Event()

    def ended(self, node: str) -> None:
        """Forgets a node that has ended, so that no other node joins it."""
        self._nodes = {worker: address for worker, address in self._nodes.items() if address != node}

    def own(self, key: Hashable, ref: str) -> bool:
        """Ties the lifetime of an object to a key; returns False if the key no longer exists."""
        if key not in self._scheduler.tasks:
            return False
        self._owned.setdefault(key, set()).add(ref)
        return True

    async def settled(self, keys: list[Hashable], count: int) -> dict[str, Any] | None:
        """Waits until `count` of the tasks are complete, or until too few can complete.

        Returns:
            None on success; otherwise the "exception" of a failed task, if there is one, and "why", a message.
        """
        while True:
            tasks = {key: self._scheduler.tasks.get(key) for key in keys}
            failed = [key for key, task in tasks.items() if task is None or task.state == "erred"]
            if len(keys) - len(failed) < count:
                task = tasks[failed[0]]
                # The cause may be a task on which this one depends.
                failure = task and (task.exception_blame or task)
                return {
                    "exception": failure and failure.exception,
                    "why": f"{len(failed)} of {len(keys)} inputs have failed, but {count} are required: {failed[0]!r}",
                }
            if sum(task is not None and task.state == "memory" for task in tasks.values()) >= count:
                return None
            self._watched.update(keys)
            await self._moved.wait()

    def remove_worker(self, scheduler: Any, worker: str, **options: object) -> None:  # noqa: ANN401, ARG002
        """Forgets a worker that has left or failed."""
        self._nodes.pop(worker, None)
        self.failed(worker)

    def transition(self, key: Hashable, start: str, finish: str, *args: object, **options: object) -> None:  # noqa: ARG002
        """Deletes the objects of a key that no future and no waiting task needs any more."""
        if key in self._watched:
            self._watched.clear()
            # The waiting calls check the tasks after this transition.
            asyncio.get_running_loop().call_soon(self._tell_moved)
        if finish == "forgotten":
            self._end(key)
        elif finish == "released" and (key in self._owned or _ref_in(key)):
            # The scheduler does not forget the task while results computed from it exist. A task whose worker has
            # failed is released too, but then computed again.
            asyncio.get_running_loop().call_later(RELEASED_S, self._end_if_unwanted, key)

    def _tell_moved(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _end_if_unwanted(self, key: Hashable) -> None:
        task = self._scheduler.tasks.get(key)
        if task is not None and task.state == "released" and not task.who_wants and not task.waiters:
            self._end(key)

    def _end(self, key: Hashable) -> None:
        refs = self._owned.pop(key, set()) | _ref_in(key)
        if refs:
            self._to_delete |= refs
            self._delete()

    def _delete(self) -> None:
        if self._to_delete and (self._deleting is None or self._deleting.done()):
            self._deleting = asyncio.get_running_loop().create_task(self._have_deleted())

    async def _have_deleted(self) -> None:
        """Has a worker delete objects, or another one if that fails. Without workers, the next `joined` retries."""
        for worker in list(self._nodes):
            if not self._to_delete:
                return None
            refs, self._to_delete = self._to_delete, set()
            # A worker that still has such an array transfers its bytes from now on. A ref could not be resolved, and
            # Dask's log would keep the data that Dask failed to send.
            forgotten = (self._scheduler.rpc(one).hoplite_forget(refs=sorted(refs)) for one in list(self._nodes))
            await asyncio.gather(*forgotten, return_exceptions=True)
            try:
                is_done = await self._scheduler.rpc(worker).hoplite_delete(refs=sorted(refs))
            except OSError:
                # The worker has failed.
                is_done = False
            if is_done:
                # Delete the objects added meanwhile.
                return await self._have_deleted()
            self._to_delete |= refs
        return None


def _ref_in(key: Hashable) -> set[str]:
    """Returns the ref that a key contains, if any."""
    return {key.removeprefix(PREFIX)} if isinstance(key, str) and key.startswith(PREFIX) else set()


class Host(WorkerPlugin):  # type: ignore[misc] # Dask has no types here
    """Attaches a worker to the node of its host.

    Args:
        installation: a new id.
        token: the secret of the cluster.
        memory: capacity of each node's store; None is the node's default.
        port: the TCP port of each node; 0 is any free port.
    """

    name = NAME
    idempotent = True

    def __init__(self, installation: str, token: str, memory: int | str | None, port: int) -> None:
        self.installation = installation
        self.memory = memory
        self.port = port
        self._token = token
        self._link: keeper.Link | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def setup(self, worker: Any) -> None:  # noqa: ANN401 - Dask has no types here
        """Finds or starts the host's node.

        Raises:
            HopliteError: the node could not start; `install` raises it, and the worker logs it.
        """
        check_worker(worker)
        self._worker = worker
        await self._attach()
        process.reads_refs(self.installation, worker.address, self._step_back)
        worker.handlers["hoplite_delete"] = self.delete
        worker.handlers["hoplite_forget"] = self.forget
        self._watcher = asyncio.create_task(self._watch())

    async def teardown(self, worker: Any) -> None:  # noqa: ANN401 - as above
        """Detaches from the node. The last worker of the host waits until the node has ended."""
        if self._link is None:
            # The node could not start.
            return
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        process.reads_refs(self.installation, worker.address, None)
        self._read_refs(False)
        process.leave(self.installation, worker.address)
        await self._link.leave()

    async def delete(self, refs: list[str]) -> bool:
        """Deletes objects for the scheduler; returns False if this worker can't."""
        try:
            await process.member_of(self.installation).client.delete_async(refs)
        except HopliteError:
            # The worker is leaving, or its node is restarting.
            return False
        return True

    def forget(self, refs: list[str]) -> None:
        """Makes this worker transfer the arrays of these objects as bytes, because they are about to be deleted."""
        arrays.forget(self.installation, set(refs))

    @property
    def link(self) -> keeper.Link:
        """The link to the host's node."""
        assert self._link is not None
        return self._link

    async def _attach(self) -> None:
        paths = keeper.Paths.of(self.installation)
        try:
            self._link = await keeper.attach(paths, lambda: self._start(paths))
            process.enter(self.installation, paths.socket, self._worker.address)
        except BaseException:
            with contextlib.suppress(Exception):
                await self._worker.scheduler.hoplite_failed(worker=self._worker.address)
            raise
        await self._worker.scheduler.hoplite_joined(worker=self._worker.address, node=self._link.address)
        self._read_refs(True)

    async def _start(self, paths: keeper.Paths) -> None:
        seeds = await self._worker.scheduler.hoplite_join(worker=self._worker.address)
        settings = {
            "listen": listen_address(self._worker.address, self.port),
            "join": seeds,
            "cluster": f"dask-{self.installation}",
            "token": self._token,
            "capacity": self.memory,
            "socket": paths.socket,
            "keeper": paths.keeper,
        }
        await in_own_thread(keeper.start, settings)

    async def _watch(self) -> None:
        """Restarts the node if it ends unexpectedly."""
        while True:
            await self.link.ended()
            self._read_refs(False)
            log.warning("the Hoplite node of this host has ended unexpectedly: restarting it")
            pause = AGAIN_S
            while True:
                try:
                    await self._worker.scheduler.hoplite_ended(node=self.link.address)
                    await self._attach()
                    break
                except (HopliteError, OSError) as error:
                    log.warning("could not start the Hoplite node of this host, retrying in %g s: %s", pause, error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, AGAIN_S_MAX)

    def _read_refs(self, reads: bool) -> None:
        """Announces in the handshakes of future connections whether this worker can resolve refs."""
        arguments = self._worker.rpc.connection_args
        said = dict(arguments.get("handshake_overrides") or {})
        said.pop(CAPABILITY, None)
        if reads:
            said[CAPABILITY] = self.installation
        arguments["handshake_overrides"] = said
        # Close idle connections, whose handshakes had the old value.
        self._worker.rpc.collect()

    def _step_back(self) -> None:
        """Requests bytes instead of refs for a while. Any thread that could not resolve a ref calls it."""

        def again() -> None:
            if self._watcher is not None and not self._watcher.done() and self._link is not None:
                self._read_refs(True)

        loop = self._worker.loop.asyncio_loop
        loop.call_soon_threadsafe(self._read_refs, False)
        loop.call_soon_threadsafe(loop.call_later, STEP_BACK_S, again)

    def __repr__(self) -> str:
        return f"<hoplite.dask.Host {self.installation}>"


def listen_address(worker: str, port: int) -> str:
    """Returns where the node of a worker's host listens: the worker's own address, with another port."""
    scheme, _, place = worker.partition("://")
    name = "127.0.0.1" if scheme == "inproc" else place.rpartition(":")[0]
    return f"{name}:{port}"

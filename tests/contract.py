"""Clients for the contract cases: of one node or of three, with the synchronous or the asyncio verbs.

A case is written once, with the synchronous verbs. `Twin` offers the same verbs and runs their asyncio variants on an
event loop. After every case `shared` checks that no request is pending, and deletes the objects of the case. This
module does not depend on any case.

A module of cases loads it as a pytest plugin, for its fixtures.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

import hoplite
import shared
from hoplite import Client, testing
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from typing import Self

PLACES = ("embedded", "attached", "cluster")
# Each place and each kind of verbs. In a cluster, some clients are embedded and the getter is attached.
PAIRS = (("embedded", "sync"), ("attached", "async"), ("cluster", "sync"), ("cluster", "async"))


class Loop:
    """An event loop that runs in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - the result of the coroutine
        """Runs a coroutine on the loop and blocks the calling thread until it finishes."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(2 * SOON)

    def close(self) -> None:
        """Stops the loop. A remaining task is a bug of the case or of a verb."""
        left = self.run(_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SOON)
        self.loop.close()
        assert left == [], f"tasks are left on the loop: {left}"


async def _others() -> list[asyncio.Task[Any]]:
    # A task whose callback has just run may need a few more loop iterations to end.
    for _ in range(100):
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not left:
            break
        await asyncio.sleep(0.01)
    return left


class Twin:
    """A client with synchronous verbs that run the asyncio verbs and wait for their coroutines."""

    def __init__(self, client: Client, loop: Loop) -> None:
        self._client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a verb
        twin = getattr(self._client, f"{name}_async", None)
        if twin is None:
            return getattr(self._client, name)

        def verb(*args: object, **options: object) -> Any:  # noqa: ANN401 - the result of the verb
            answer = twin(*args, **options)
            if inspect.isasyncgen(answer):
                return _Iterated(answer, self._loop)
            value = self._loop.run(answer)
            return _TwinBuffer(value, self._loop) if isinstance(value, hoplite.Buffer) else value

        return verb

    def __enter__(self) -> Self:
        self._loop.run(self._client.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401, PYI036 - arguments of __exit__
        self._loop.run(self._client.__aexit__(*error))


class _Iterated:
    """An asynchronous generator as a plain iterator."""

    def __init__(self, generator: Any, loop: Loop) -> None:  # noqa: ANN401 - an async generator
        self._generator = generator
        self._loop = loop

    def __iter__(self) -> _Iterated:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - a generated value
        try:
            return self._loop.run(_next(self._generator))
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        self._loop.run(self._generator.aclose())


async def _next(generator: Any) -> Any:  # noqa: ANN401 - a generated value
    return await anext(generator)


class _TwinBuffer:
    """A buffer that is sealed on an event loop."""

    def __init__(self, buffer: hoplite.Buffer, loop: Loop) -> None:
        self._buffer = buffer
        self._loop = loop

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a buffer
        return getattr(self._buffer, name)

    def __setitem__(self, index: Any, value: Any) -> None:  # noqa: ANN401 - as for an array
        self._buffer[index] = value

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as for an array
        return self._buffer[index]

    def __len__(self) -> int:
        return len(self._buffer)

    def seal(self, *, timeout: float | None = None) -> hoplite.Ref:
        return cast("hoplite.Ref", self._loop.run(self._buffer.seal_async(timeout=timeout)))

    def __enter__(self) -> Self:
        self._loop.run(self._buffer.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401, PYI036 - arguments of __exit__
        self._loop.run(self._buffer.__aexit__(*error))


@dataclass
class Crew:
    """The clients of a case: of three nodes in a cluster, or of one node.

    Attributes:
        place: one of `PLACES`.
        how: "sync" or "async".
        putter: puts and deletes objects.
        getter: gets objects.
        reducer: runs reduces.
        nodes: the nodes of these clients.
        loop: the event loop of the asyncio variants.
        prefix: prefix of names that no other case uses. It has no slash, so `f"{prefix}/1"` is a valid name.
    """

    place: str
    how: str
    putter: Client
    getter: Client
    reducer: Client
    nodes: list[hoplite.Node]
    loop: Loop | None
    prefix: str

    @property
    def clients(self) -> list[Client]:
        """All three clients."""
        return [self.putter, self.getter, self.reducer]

    def name(self, text: object = "object") -> str:
        """Returns a name that no other case uses."""
        return f"{self.prefix}/{text}"

    def another(self) -> Client:
        """Returns a new client of the putter's node, of the same kind. The case must close it."""
        node = self.nodes[0]
        client = node.client() if self.place != "attached" else hoplite.connect(f"unix:{node.socket}")
        return client if self.loop is None else cast("Client", Twin(client, self.loop))

    def settled(self) -> None:
        """Waits until no node has a pending request, an active reduce or a reader."""
        shared.wait_until_idle(self.clients)


class Stage:
    """Three nodes and their clients, shared by all cases of a module: the first large put of a client takes 0.1 s.

    Args:
        nodes: the nodes.
    """

    def __init__(self, nodes: list[hoplite.Node]) -> None:
        self.nodes = nodes
        embedded, last = nodes[0].client(), nodes[2].client()
        process, neighbor, far = (hoplite.connect(f"unix:{nodes[number].socket}") for number in (0, 0, 1))
        self.clients = {
            "embedded": [embedded, embedded, embedded],
            "attached": [process, neighbor, process],
            # The getter is a separate process next to its node, as workers are.
            "cluster": [embedded, far, last],
        }

    @contextlib.contextmanager
    def crew(self, place: str, how: str, prefix: str, faults: bool) -> Iterator[Crew]:
        """Creates the clients of a case, and checks afterwards that nothing is left of it."""
        own = self.clients[place]
        nodes = self.nodes if place == "cluster" else self.nodes[:1]
        loop = Loop() if how == "async" else None
        faces = own if loop is None else [cast("Client", Twin(client, loop)) for client in own]
        try:
            with shared.lent(own, faults):
                yield Crew(place, how, faces[0], faces[1], faces[2], nodes, loop, prefix)
        finally:
            if loop is not None:
                loop.close()


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Three embedded nodes and their clients."""
    with testing.cluster(3, capacity="128MiB") as nodes:
        yield Stage(nodes)


@pytest.fixture(params=PAIRS, ids="-".join)
def crew(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Crew]:
    """The clients of one case, for each place and both kinds of verbs."""
    place, how = request.param
    with stage.crew(place, how, _prefix(request), _has_faults(request)) as made:
        yield made


@pytest.fixture(params=PLACES)
def plain(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Crew]:
    """The same with synchronous verbs only, for cases that choose the kind of verbs themselves."""
    with stage.crew(request.param, "sync", _prefix(request), _has_faults(request)) as made:
        yield made


def _prefix(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("/", "|")


def _has_faults(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("faults") is not None

"""Tenants of one node: what one of them leaves open is bounded, ends with it, and does not delay the others.

The limits are in `crates/node/src/local/limits.rs`, and docs/security-model.md explains them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
import programs
from hoplite import InvalidArgument, ObjectLost, testing
from hoplite.capabilities import grant, narrow
from support import SOON, eventually, same

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from subprocess import Popen

    from hoplite import Client
    from hoplite.testing import NodeProcess

TOKEN = hoplite.new_token()
MIB = 1 << 20

# The most objects of one wait or reduce, and what they take of a node by its own account.
OBJECTS = 65_536
OBJECTS_BYTES = OBJECTS * 1024
# Bytes of open requests of all programs of a node.
REQUESTS_BYTES = 512 * MIB

# A program of another tenant, which uses every limited call for each line of input.
OTHER = f"""
import asyncio, sys
import numpy as np
import hoplite
hp = hoplite.connect(sys.argv[1], capability=sys.argv[2])
async def newer(number):
    waiting = asyncio.create_task(hp.latest_async("b/v/", after=number, timeout={SOON}))
    await asyncio.sleep(0)
    hp.put(b"x", name=f"b/v/{{number + 1}}")
    return await waiting
for number, _ in enumerate(sys.stdin):
    assert hp.wait([hp.put(b"x", name=f"b/{{number}}")], timeout={SOON})
    assert str(asyncio.run(newer(number))) == f"b/v/{{number + 1}}"
    total = hp.reduce([hp.put(np.ones(4)), hp.put(np.ones(4))])
    assert hp.get(total, timeout={SOON})[0] == 2
    assert f"b/{{number}}" in [row["ref"] for row in hp.objects(timeout={SOON})]
    assert hp.status()["members"]
    print("served", flush=True)
"""

# A program of the same tenant with narrower rights: it begins a reduce and prints the error.
SAME = """
import sys
import hoplite
hp = hoplite.connect(sys.argv[1], capability=sys.argv[2])
try:
    hp.reduce([f"a/narrow/{index}" for index in range(8192)])
except hoplite.InvalidArgument as error:
    print(error)
"""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeProcess]:
    """A node that serves tenants."""
    monkeypatch.setenv("HOPLITE_TOKEN", TOKEN)
    with testing.node_process("--require-capability") as node:
        yield node


@pytest.fixture
def greedy(node: NodeProcess) -> Client:
    """A client of this process, of the tenant that uses all that it gets."""
    return hoplite.connect(node.socket, capability=grant(TOKEN, "a/"))


@pytest.fixture
def other(node: NodeProcess) -> Iterator[Popen[str]]:
    """A program of another tenant."""
    with programs.started(OTHER, str(node.socket), grant(TOKEN, "b/")) as process:
        yield process


def is_served(other: Popen[str]) -> bool:
    """Whether the other tenant can use every verb."""
    programs.go(other)
    return programs.line(other) == "served"


def memory(node: NodeProcess) -> int:
    """Returns the bytes of a node's private memory, without its store."""
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def absent(prefix: str, number: int) -> list[str]:
    """Names that nobody puts."""
    return [f"{prefix}{number}/{index}" for index in range(OBJECTS)]


def limits(client: Client) -> set[str]:
    return {row["limit"] for row in client.status()["limits"]}


def refusal(error: BaseException | None, limit: str) -> str:
    """Returns the text of an error that names a limit, what is used and what to do."""
    assert isinstance(error, InvalidArgument), error
    text = str(error)
    assert f"({limit})" in text
    assert "at most" in text
    assert "wait for some calls to finish, or cancel them" in text
    return text


async def refused(started: list[asyncio.Task[Any]]) -> list[BaseException | None]:
    """Waits until a call has failed, and returns the errors so far."""
    await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED, timeout=SOON)
    # The node has handled what was sent before.
    return [task.exception() for task in started if task.done()]


async def end(started: list[asyncio.Task[Any]]) -> None:
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)


def test_reduces_of_absent_names_are_bounded_and_end_with_their_client(
    node: NodeProcess, greedy: Client, other: Popen[str]
) -> None:
    assert is_served(other)
    before = memory(node)
    started: list[hoplite.Ref] = []

    def start_all(inputs: int) -> None:
        for number in range(REQUESTS_BYTES // OBJECTS_BYTES):
            started.append(greedy.reduce(absent("a/", number)[:inputs], count=2))  # noqa: PERF401 - the last one fails

    for inputs in (OBJECTS, OBJECTS // 8):
        with pytest.raises(InvalidArgument) as caught:
            start_all(inputs)
    assert "bytes of open requests and unfinished reduces" in refusal(caught.value, "REQUEST_BYTES_TOTAL_MAX")
    assert len(started) > REQUESTS_BYTES // OBJECTS_BYTES // 4
    during = memory(node) - before
    assert during < REQUESTS_BYTES
    # All programs of the tenant share the limit, and other tenants have the rest.
    narrowed = narrow(grant(TOKEN, "a/"), prefix="a/narrow/")
    assert "(REQUEST_BYTES_TOTAL_MAX)" in programs.run(SAME, str(node.socket), narrowed)
    assert is_served(other)
    assert limits(greedy) == {"REQUEST_BYTES_TOTAL_MAX"}

    again = hoplite.connect(node.socket, capability=grant(TOKEN, "a/"))
    greedy.close()
    with pytest.raises(ObjectLost, match="started its reduce and ended or detached before the result was complete"):
        again.get(str(started[0]), timeout=SOON)
    eventually(lambda: again.status()["reduces"] == 0)
    # What ended costs nothing: the tenant has its share again, and the node its memory.
    again.reduce(absent("a/", 0))
    again.close()
    eventually(lambda: memory(node) - before < during / 2)


def test_finished_reduces_take_no_share(greedy: Client) -> None:
    greedy.put(np.ones(4), name="a/here")
    names = ["a/here", *absent("a/", 0)[1:]]
    for number in range(REQUESTS_BYTES // OBJECTS_BYTES):
        if number % 2:
            total = greedy.reduce(names, count=1)
            same(greedy.get(total, timeout=SOON), np.ones(4))
        else:
            greedy.delete(greedy.reduce(names, count=2), timeout=SOON)
    assert greedy.status()["reduces"] == 0


@pytest.mark.parametrize("verb", ["wait", "get"])
def test_waits_for_absent_names_are_charged_what_they_cost(
    node: NodeProcess, greedy: Client, other: Popen[str], verb: str
) -> None:
    assert is_served(other)
    before = memory(node)

    def call(number: int) -> Coroutine[Any, Any, object]:
        if verb == "wait":
            return greedy.wait_async(absent("a/", number), timeout=None)
        return greedy.get_async(f"a/{number}", timeout=None)

    async def open_all() -> int:
        most = REQUESTS_BYTES // 2 // (OBJECTS_BYTES if verb == "wait" else 2048)
        started = [asyncio.create_task(call(number)) for number in range(most + 1)]
        errors = await refused(started)
        refusal(errors[0], "REQUEST_BYTES_TOTAL_MAX")
        # The others wait, and another tenant is served.
        assert len(errors) <= most / 2
        assert await asyncio.to_thread(is_served, other)
        during = memory(node) - before
        assert during < REQUESTS_BYTES
        await end(started)
        return during

    during = asyncio.run(open_all())
    assert limits(greedy) == {"REQUEST_BYTES_TOTAL_MAX"}
    greedy.put(b"x", name="a/there")
    assert greedy.get("a/there", timeout=SOON) == b"x"
    greedy.close()
    if verb == "wait":
        eventually(lambda: memory(node) - before < during / 2)


def test_calls_of_latest_that_wait_leave_places_to_others_and_existing_names_need_none(
    greedy: Client, other: Popen[str]
) -> None:
    greedy.put(b"x", name="a/v/7")

    async def open_all() -> None:
        calls = (greedy.latest_async(f"a/{number}/", timeout=None) for number in range(5000))
        started = [asyncio.create_task(call) for call in calls]
        errors = await refused(started)
        assert "calls of latest that wait" in refusal(errors[0], "LATEST_MAX")
        # Names that exist need no place.
        assert str(await greedy.latest_async("a/v/", timeout=SOON)) == "a/v/7"
        with pytest.raises(InvalidArgument, match="LATEST_MAX"):
            await greedy.latest_async("a/v/", after=7, timeout=SOON)
        assert await asyncio.to_thread(is_served, other)
        await end(started)
        # Ended calls give their places back.
        late = asyncio.create_task(greedy.latest_async("a/late/", timeout=SOON))
        await asyncio.sleep(0)
        greedy.put(b"x", name="a/late/1")
        assert str(await late) == "a/late/1"

    asyncio.run(open_all())
    assert "LATEST_MAX" in limits(greedy)


COUNT = 10_000


@pytest.fixture
def many(greedy: Client) -> Client:
    """The greedy tenant, with many objects."""

    async def put_all() -> None:
        for start in range(0, COUNT, 1000):
            await asyncio.gather(*(greedy.put_async(b"x", name=f"a/{start + more}") for more in range(1000)))

    asyncio.run(put_all())
    return greedy


@pytest.mark.parametrize("verb", ["objects", "directory"])
def test_other_programs_take_turns_with_listings(many: Client, other: Popen[str], verb: str) -> None:
    assert is_served(other)

    async def list_all() -> None:
        started = [asyncio.create_task(getattr(many, verb + "_async")()) for _ in range(50)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(is_served, other)
        assert not all(task.done() for task in started), "the other tenant did not wait for all listings"
        assert {len(rows) for rows in await asyncio.gather(*started)} == {COUNT}

    asyncio.run(list_all())


def test_few_listings_of_a_tenant_wait_for_other_members_at_a_time(
    node: NodeProcess, greedy: Client, other: Popen[str]
) -> None:
    async def list_all() -> list[object]:
        started = [asyncio.create_task(greedy.directory_async(timeout=SOON)) for _ in range(300)]
        errors = await refused(started)
        assert "open pages of listings" in refusal(errors[0], "LISTINGS_MAX")
        assert await asyncio.to_thread(is_served, other)
        results: list[object] = await asyncio.gather(*started, return_exceptions=True)
        return results

    with testing.node_process("--require-capability", "--join", node.address) as second:
        eventually(lambda: len(greedy.status()["members"]) == 2)
        with programs.frozen(second.process):
            results = asyncio.run(list_all())
        # The others end when the member is declared dead.
        assert any(isinstance(rows, list) for rows in results)
    assert "LISTINGS_MAX" in limits(greedy)
    assert greedy.directory() == []


def test_copies_are_listed_by_pages_below_a_prefix(node: NodeProcess, many: Client) -> None:
    names = sorted(f"a/{number}" for number in range(COUNT))
    assert [row["ref"] for row in many.objects()] == names
    under = [name for name in names if name.startswith("a/24")]
    assert [row["ref"] for row in asyncio.run(many.objects_async("a/24"))] == under
    second = hoplite.connect(node.socket, capability=grant(TOKEN, "b/"))
    second.put(b"x", name="b/1")
    assert [row["ref"] for row in second.objects()] == ["b/1"]
    # A copy that is deleted while it is read is listed too.
    ref = second.put(np.ones(100_000), name="b/2")
    view = second.get(ref, timeout=SOON)
    second.delete(ref, timeout=SOON)
    assert [(row["ref"], row["readers"]) for row in second.objects("b/2")] == [("b/2", 1)]
    del view

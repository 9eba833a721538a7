"""A user's program that uses every verb, blocking and for asyncio. tests/test_types.py type-checks and runs it."""

from __future__ import annotations

import asyncio

import numpy as np
import numpy.typing as npt

import hoplite
from hoplite.activity import Activity, Metrics
from hoplite.listing import DirectoryEntry, LocalObject
from hoplite.node_status import Status

Array = npt.NDArray[np.float32]


def blocking(hp: hoplite.Client) -> float:
    """Uses the blocking verbs."""
    reserved: hoplite.Ref = hp.reserve()
    ref: hoplite.Ref = hp.put(np.ones(4, "float32"), name=reserved, replicas=1, ttl=60.0, timeout=10)
    hp.put(np.ones(4, "float32"), name="user/1", retain=2, exist_ok=True)
    with hp.create(4, "float32", name="user/2") as buffer:
        buffer[...] = 2
    ready, rest = hp.wait([ref, "user/1", "user/2"], count=2, timeout=10)
    assert len(ready) == 2 and len(rest) == 1
    completed: list[hoplite.Ref] = list(hp.as_completed(ready, timeout=10))
    slots: list[hoplite.Ref] = hp.slots(2)
    answer: hoplite.Ref = hp.put(b"answer", name=slots[0])
    assert len(completed) == 2 and answer == slots[0]
    newest: hoplite.Ref = hp.latest("user/", after=1, timeout=10)
    number: int = newest.number
    total: hoplite.Ref = hp.reduce([ref, "user/1", newest], op="sum", count=3, timeout=10)
    inputs: list[hoplite.Ref] = total.inputs(timeout=10)
    lost: list[hoplite.Ref] = total.lost(timeout=10)
    assert len(inputs) == 3 and not lost and number == 2
    values: list[Array] = hp.get([ref, newest], timeout=10)
    into: Array = np.empty(4, "float32")
    hp.get(total, out=into, timeout=10)
    with hp.lease(total, timeout=10) as lease:
        assert lease.ref == total
    places: list[hoplite.Location] = hp.locations(ref, timeout=10)
    first: hoplite.Location = next(iter(hp.watch_locations(ref, timeout=10)))
    assert places[0].complete and first.complete
    status: Status = hp.status()
    activity: Activity = hp.inspect("activity", limit=10, timeout=10)
    metrics: Metrics = hp.inspect("metrics", node=activity["node"])
    assert metrics["status"]["id"] == status["id"]
    here: list[LocalObject] = hp.objects("user/", timeout=10)
    everywhere: list[DirectoryEntry] = hp.directory("user/", sort="bytes", limit=10, timeout=10)
    assert status["objects"] >= len(here) and everywhere[0]["bytes"] == 16
    hp.delete([ref, "user/1", newest], timeout=10)
    return float(into.sum() + values[0].sum())


async def for_asyncio(hp: hoplite.Client) -> float:
    """Uses the verbs for asyncio."""
    reserved: hoplite.Ref = await hp.reserve_async()
    ref: hoplite.Ref = await hp.put_async(np.ones(4, "float32"), name=reserved, timeout=10)
    async with await hp.create_async(4, name="user/3") as buffer:
        buffer[...] = 3
    ready, _ = await hp.wait_async([ref, "user/3"], timeout=10)
    completed: list[hoplite.Ref] = [one async for one in hp.as_completed_async(ready, timeout=10)]
    slots: list[hoplite.Ref] = await hp.slots_async(1)
    assert len(completed) == 2 and len(slots) == 1
    metrics: Metrics = await hp.inspect_async("metrics", timeout=10)
    assert metrics["totals"]["puts"] >= 2
    newest: hoplite.Ref = await hp.latest_async("user/", after=2, timeout=10)
    total: hoplite.Ref = await hp.reduce_async(ready, timeout=10)
    assert len(await total.inputs_async(timeout=10)) == 2
    assert await total.lost_async(timeout=10) == []
    value: Array = await hp.get_async(total, copy=True, timeout=10)
    async with await hp.lease_async(total, timeout=10):
        assert len(await hp.locations_async(total, timeout=10)) == 1
    async for location in hp.watch_locations_async(ref, timeout=10):
        assert location.complete
        break
    status: Status = await hp.status_async()
    assert status["members"]
    assert await hp.objects_async("user/", timeout=10)
    assert await hp.directory_async("user/", after="user/2", timeout=10)
    await hp.delete_async([ref, newest], timeout=10)
    return float(value.sum())


def main() -> None:
    """Starts a node in this process and uses it."""
    with hoplite.init(node=hoplite.Node(capacity="64MiB")) as hp:
        assert hp is hoplite.client()
        try:
            print(blocking(hp), asyncio.run(for_asyncio(hp)))
            hp.get("user/none", timeout=0)
        except hoplite.Timeout as error:
            print(error)
        assert hp.node is not None
        with hoplite.connect(f"unix:{hp.node.socket}") as other:
            other.close()
            try:
                other.status()
            except hoplite.ClientClosed as error:
                print(error)
    hoplite.shutdown()


if __name__ == "__main__":
    main()

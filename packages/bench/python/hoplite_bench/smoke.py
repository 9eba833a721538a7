"""A quick check of the main operations: one broadcast, one local get, one small object, and many clients.

Everything runs on this host over loopback, so the figures reflect the software and this machine's memory, not a
network. Compare them only with figures of the same machine.
"""

from __future__ import annotations

import concurrent.futures
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hoplite.errors import HopliteError
from hoplite.testing import cluster
from hoplite.tools.quantities import write_size
from hoplite_bench import clients as clients_bench
from hoplite_bench import machine

if TYPE_CHECKING:
    from hoplite import Client

NODES = 8
BROADCAST_BYTES = 256 * 2**20
BROADCAST_ROUNDS = 3
LOCAL_BYTES = 2**30
LOCAL_ROUNDS = 100
SMALL_BYTES = 1024
SMALL_WARM_UP = 50
SMALL_ROUNDS = 500

# Capacity of each node: enough for the broadcast, or for the local object with a margin.
CAPACITY = "2GiB"

# Longer than any round takes on a slow machine.
PATIENCE_S = 120.0


def main() -> dict[str, Any]:
    """Measures all operations.

    Returns:
        "machine" and "settings", "broadcast", "local_get", "small", "many_clients", "many_threads", "many_coroutines"
        and "import_time", as `hoplite bench smoke --json` prints them.

    Raises:
        HopliteError: the build is a debug one, or a result was wrong.
    """
    machine.refuse_debug_build()
    # Before this process puts load on the machine.
    import_time = clients_bench.import_time()
    with cluster(NODES, capacity=CAPACITY) as nodes:
        clients = [node.client() for node in nodes]
        # The small object first: the other operations change the state of the caches and the processor's clock.
        small = _small(clients[0], clients[1])
        broadcast = _broadcast(clients)
        local = _local_get(clients[0])
    of_clients = {
        "many_clients": clients_bench.many_clients(),
        "many_threads": clients_bench.many_threads(),
        "many_coroutines": clients_bench.many_coroutines(),
        "import_time": import_time,
    }
    return {
        "machine": machine.facts(),
        "settings": {"nodes": NODES, "capacity": CAPACITY, "network": "loopback, one process"},
        "broadcast": broadcast,
        "local_get": local,
        "small": small,
        **of_clients,
    }


def _broadcast(clients: list[Client]) -> dict[str, Any]:
    """Times a broadcast until all receivers have the object, and counts the copies that its source sent."""
    source, *receivers = clients
    value = np.random.default_rng(0).integers(0, 256, BROADCAST_BYTES, np.uint8)
    seconds = []
    copies = []
    relayed = 0
    with concurrent.futures.ThreadPoolExecutor(len(receivers)) as pool:
        # The first round warms memory and is not timed; its content is verified like that of all others.
        for number in range(1 + BROADCAST_ROUNDS):
            before = [client.status()["counters"] for client in clients]
            ref = source.put(value)
            start = time.perf_counter()
            arrived = list(pool.map(lambda client, ref=ref: client.get(ref, timeout=PATIENCE_S), receivers))
            took = time.perf_counter() - start
            after = [client.status()["counters"] for client in clients]
            if not all(np.array_equal(copy, value) for copy in arrived):
                raise HopliteError("a receiver of the broadcast got different bytes than were put")
            arrived.clear()
            source.delete(ref)
            if number:
                seconds.append(took)
                copies.append((after[0]["bytes_direct"] - before[0]["bytes_direct"]) / BROADCAST_BYTES)
                relayed = sum(
                    new["bytes_relayed"] - old["bytes_relayed"] for old, new in zip(before, after, strict=True)
                )
    return {
        "bytes": BROADCAST_BYTES,
        "receivers": len(receivers),
        "n": len(seconds),
        "source_copies": [round(copy, 3) for copy in copies],
        "bytes_relayed": relayed,
        "seconds_median": round(statistics.median(seconds), 4),
        "seconds_min": round(min(seconds), 4),
        "seconds_max": round(max(seconds), 4),
    }


def _local_get(client: Client) -> dict[str, Any]:
    """Times the get of an object that is already on this host."""
    value = np.arange(LOCAL_BYTES // 8, dtype=np.uint64)
    ref = client.put(value)
    if not np.array_equal(client.get(ref, timeout=PATIENCE_S), value):
        raise HopliteError("a local get returned different bytes than were put")
    del value
    times = []
    for _ in range(LOCAL_ROUNDS):
        start = time.perf_counter()
        view = client.get(ref, timeout=PATIENCE_S)
        times.append((time.perf_counter() - start) * 1e6)
        del view
    client.delete(ref)
    return {"bytes": LOCAL_BYTES, **_spread(times)}


def _small(putter: Client, getter: Client) -> dict[str, Any]:
    """Times put at one node and get at another, one object after the other."""
    times = []
    random = np.random.default_rng(1)
    for number in range(SMALL_WARM_UP + SMALL_ROUNDS):
        value = random.bytes(SMALL_BYTES)
        start = time.perf_counter()
        ref = putter.put(value)
        view = getter.get(ref, timeout=PATIENCE_S)
        took = (time.perf_counter() - start) * 1e6
        if view != value:
            raise HopliteError("a get of a small object returned different bytes than were put")
        putter.delete(ref)
        if number >= SMALL_WARM_UP:
            times.append(took)
    return {"bytes": SMALL_BYTES, **_spread(times)}


def _spread(times_us: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times_us, n=100)
    return {
        "n": len(times_us),
        "us_p50": round(statistics.median(times_us), 1),
        "us_p99": round(cuts[98], 1),
        "us_min": round(min(times_us), 1),
    }


def summary(report: dict[str, Any]) -> str:
    """Formats a report for people."""
    facts, settings = report["machine"], report["settings"]
    broadcast, local, small = report["broadcast"], report["local_get"], report["small"]
    return f"""\
broadcast of {write_size(broadcast["bytes"])} to {broadcast["receivers"]} receivers: \
the source sent {max(broadcast["source_copies"]):.2f} copies, {write_size(broadcast["bytes_relayed"])} were relayed
    {broadcast["seconds_median"]:.3f} s median of {broadcast["n"]} \
({broadcast["seconds_min"]:.3f} to {broadcast["seconds_max"]:.3f})
local get of {write_size(local["bytes"])}: {local["us_p50"]:.0f} us p50, {local["us_p99"]:.0f} us p99 of {local["n"]}
put and get of {write_size(small["bytes"])} across two nodes: \
{small["us_p50"]:.0f} us p50, {small["us_p99"]:.0f} us p99 of {small["n"]}
{clients_bench.summary(report)}
every result verified; {settings["nodes"]} nodes on {settings["network"]}, capacity {settings["capacity"]} each
{facts["processor"]}, {facts["cores"]} cores, {facts["memory_gib"]} GiB, Linux {facts["kernel"]}, \
Python {facts["python"]}
hoplite {facts["version"]}, commit {facts["commit"]}"""

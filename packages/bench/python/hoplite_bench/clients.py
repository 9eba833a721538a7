"""Measures many clients of one node: many attached clients, many threads, many coroutines; and the time of an import.

Everything runs on this host, against a node in its own process or, where stated, two nodes in this one. The figures
show whether something in a client serializes work that could run in parallel.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import resource
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hoplite.errors import HopliteError
from hoplite.testing import cluster, node_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hoplite import Client, Ref

CLIENTS = 1000
CLIENT_THREADS = 8
CLIENT_BYTES = 2**20

FEW_THREADS = 4
MANY_THREADS = 100
THREAD_OBJECTS = 100
THREAD_BYTES = 256 * 2**10
THREAD_SECONDS = 1.0

SMALL_OBJECTS = 10_000
SMALL_BYTES = 100

ROUNDS = 5

# Longer than any measurement takes on a slow machine.
PATIENCE_S = 120.0


def many_clients() -> dict[str, Any]:
    """Times until 1000 clients have attached to one node and got an object each; all stay attached until the end."""
    value = np.arange(CLIENT_BYTES // 4, dtype=np.uint32)
    with _descriptors(3 * CLIENTS), node_process() as node, node.client() as putter:
        ref = putter.put(value)
        with concurrent.futures.ThreadPoolExecutor(CLIENT_THREADS) as pool:

            def attach(_: int) -> Client:
                client = node.client()
                if not np.array_equal(client.get(ref, timeout=PATIENCE_S), value):
                    raise HopliteError("a get by an attached client returned different bytes than were put")
                return client

            start = time.perf_counter()
            clients = list(pool.map(attach, range(CLIENTS)))
            took = time.perf_counter() - start
        for client in clients:
            client.close()
    return {"clients": CLIENTS, "bytes": CLIENT_BYTES, "seconds": round(took, 3)}


def many_threads() -> dict[str, Any]:
    """Compares the gets per second of 100 threads, each with its own object, with those of 4; one attached client."""
    with node_process() as node, node.client() as client:
        values = [np.full(THREAD_BYTES, number, np.uint8) for number in range(THREAD_OBJECTS)]
        refs = [client.put(value) for value in values]
        if not all(np.array_equal(client.get(ref), value) for ref, value in zip(refs, values, strict=True)):
            raise HopliteError("a get returned different bytes than were put")
        few, many = [], []
        for _ in range(ROUNDS):
            few.append(_gets_per_second(client, refs, FEW_THREADS))
            many.append(_gets_per_second(client, refs, MANY_THREADS))
    return {
        "few": {"threads": FEW_THREADS, "gets_per_second": round(statistics.median(few))},
        "many": {"threads": MANY_THREADS, "gets_per_second": round(statistics.median(many))},
        "ratio": round(statistics.median(many) / statistics.median(few), 2),
        "n": ROUNDS,
    }


def _gets_per_second(client: Client, refs: list[Ref], threads: int) -> float:
    counts = [0] * threads
    end = threading.Event()
    ready = threading.Barrier(threads + 1)

    def get(thread: int) -> None:
        ready.wait()
        while not end.is_set():
            client.get(refs[thread % len(refs)], timeout=PATIENCE_S)
            counts[thread] += 1

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        done = [pool.submit(get, thread) for thread in range(threads)]
        ready.wait()
        start = time.perf_counter()
        time.sleep(THREAD_SECONDS)
        end.set()
        for thread in done:
            thread.result()
        return sum(counts) / (time.perf_counter() - start)


def many_coroutines() -> dict[str, Any]:
    """Compares 10 000 sequential gets of small objects with asyncio.gather, and with one get of a list.

    Measures three times: attached; from another node than that of the objects; and embedded, where a get takes a few
    microseconds in the same process. "gather" is the time of asyncio.gather for as many coroutines that do nothing, a
    lower bound for asynchronous gets.
    """
    figures: dict[str, Any] = {}
    with node_process() as node, node.client() as client:
        figures["attached"] = _sync_and_async(client, _small(client))
    with cluster(2) as nodes:
        here, other = (node.client() for node in nodes)
        refs = _small(here)
        figures["other_node"] = _sync_and_async(other, refs)
        figures["embedded"] = _sync_and_async(here, refs)
    figures["gather_seconds"] = round(asyncio.run(_gather_nothing()), 4)
    return {"gets": SMALL_OBJECTS, "bytes": SMALL_BYTES, **figures}


def _small(client: Client) -> list[Ref]:
    return [client.put(_content(number)) for number in range(SMALL_OBJECTS)]


def _content(number: int) -> bytes:
    return number.to_bytes(4, "little") * (SMALL_BYTES // 4)


def _sync_and_async(client: Client, refs: list[Ref]) -> dict[str, Any]:
    async def gather() -> list[Any]:
        return await asyncio.gather(*[client.get_async(ref, timeout=PATIENCE_S) for ref in refs])

    expected = [_content(number) for number in range(len(refs))]
    one_by_one, together, as_list = [], [], []
    for _ in range(ROUNDS):
        took, values = _timed(lambda: [client.get(ref, timeout=PATIENCE_S) for ref in refs])
        one_by_one.append(took)
        _verify(values, expected)
        took, values = _timed(lambda: asyncio.run(gather()))
        together.append(took)
        _verify(values, expected)
        took, values = _timed(lambda: client.get(refs, timeout=PATIENCE_S))
        as_list.append(took)
        _verify(values, expected)
    sync, asynchronous = statistics.median(one_by_one), statistics.median(together)
    return {
        "sync_seconds": round(sync, 4),
        "async_seconds": round(asynchronous, 4),
        "list_seconds": round(statistics.median(as_list), 4),
        "speedup": round(sync / asynchronous, 2),
        "n": ROUNDS,
    }


def _verify(values: list[Any], expected: list[bytes]) -> None:
    if values != expected:
        raise HopliteError("a get of a small object returned different bytes than were put")


def _timed(what: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
    start = time.perf_counter()
    values = what()
    return time.perf_counter() - start, values


async def _gather_nothing() -> float:
    async def nothing() -> None:
        return

    start = time.perf_counter()
    await asyncio.gather(*[nothing() for _ in range(SMALL_OBJECTS)])
    return time.perf_counter() - start


def import_time() -> dict[str, Any]:
    """Times `import hoplite` in a new interpreter, without the start of the interpreter."""
    times = []
    for _ in range(ROUNDS):
        code = (
            "import time; start = time.perf_counter(); import hoplite; took = time.perf_counter() - start; "
            "import sys; assert 'numpy' not in sys.modules; print(took)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
        )
        times.append(float(done.stdout) * 1000)
    return {"ms_median": round(statistics.median(times), 1), "ms_min": round(min(times), 1), "n": ROUNDS}


@contextlib.contextmanager
def _descriptors(count: int) -> Iterator[None]:
    """Raises the limit of open files: this process has as many clients as a host would have processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, count + 256)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise HopliteError(f"{wanted} open files exceed the limit of {hard}: raise it with ulimit -Hn {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def summary(report: dict[str, Any]) -> str:
    """Formats the figures for people."""
    clients, threads, coroutines = report["many_clients"], report["many_threads"], report["many_coroutines"]

    def compared(where: str) -> str:
        figures = coroutines[where]
        return (
            f"{figures['sync_seconds']:.3f} s, {figures['async_seconds']:.3f} s "
            f"({figures['speedup']:.2f} times as fast), {figures['list_seconds']:.3f} s"
        )

    return f"""\
connect and get by {clients["clients"]} attached clients: {clients["seconds"]:.2f} s in total
gets per second by one attached client: {threads["few"]["gets_per_second"]} with {threads["few"]["threads"]} threads, \
{threads["many"]["gets_per_second"]} with {threads["many"]["threads"]} ({threads["ratio"]:.2f} times as many)
{coroutines["gets"]} gets of {coroutines["bytes"]} B one by one, by asyncio.gather, and as a list:
    attached {compared("attached")}
    from another node {compared("other_node")}
    embedded {compared("embedded")}; gather alone {coroutines["gather_seconds"]:.3f} s
import hoplite: {report["import_time"]["ms_median"]:.0f} ms median of {report["import_time"]["n"]}"""

"""The cases of one host: each repeats one operation, returns the seconds of each run, and verifies the results.

Does not depend on how often, or in which order, they are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hoplite import __version__
from hoplite.errors import HopliteError
from hoplite.testing import cluster, node_process
from hoplite_bench.local_program import LocalProgram
from hoplite_bench.ranks.content import DTYPE, fill, wrong
from hoplite_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hoplite import Client, Ref

    # Seconds of the run, its result, and objects to delete afterwards.
    Done = tuple[float, Any, list[Ref | str]]

# Longer than any operation takes on a slow machine.
PATIENCE_S = 120.0
# Number of arrays that one reduce adds.
INPUTS = 8
# Number of nodes for the directory, in one process. Three of four names have another owner than the node that puts.
NODES = 4
TINY = b"12345678"
IN_FLIGHT = 64
IN_FLIGHT_EACH = 16
RAY_OPS = ("put", "get", "put_get")
# Number of gets of one object in a run of get_repeated.
GETS = 1000
CPP_OPS = ("put", "get", "get_repeated", "create_seal", "put_get")


class WrongResult(HopliteError):
    """An operation returned a wrong result; the message contains it."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One operation of one system.

    Attributes:
        system: hoplite, hoplite-cpp, ray or memcpy.
        variant: variant of the system.
        version: version of the system.
        op: the operation.
        nbytes: size of the array.
        seconds: repeats the operation and returns the seconds of each run; raises HopliteError if the last was wrong.
        unavailable: why it can't be measured; empty if it can.
        note: a remark for readers.
    """

    system: str
    variant: str
    version: str
    op: str
    nbytes: int
    seconds: Callable[[int], list[float]]
    unavailable: str = ""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.op} of {self.nbytes} bytes, {self.system} {self.variant}"


@contextlib.contextmanager
def of_size(nbytes: int, ray: LocalProgram | str, native: Path | str) -> Iterator[list[Case]]:
    """The cases of arrays of one size.

    Args:
        nbytes: size of an array.
        ray: a running Ray, or the reason why there is none.
        native: the program in C++, or the reason why there is none.
    """
    value = np.empty(nbytes // DTYPE.itemsize, DTYPE)
    fill(value, rank=0, seed=0)
    # Inputs and result of a reduce, and a few objects that are being deleted.
    capacity = (INPUTS + 6) * nbytes + 64 * 2**20
    with contextlib.ExitStack() as stack:
        (node,) = stack.enter_context(cluster(1, capacity=capacity))
        process = stack.enter_context(node_process("--capacity", str(capacity)))
        embedded = stack.enter_context(node.client())
        attached = stack.enter_context(process.client())
        cases = [Case("memcpy", "default", np.__version__, "memcpy", nbytes, _copies(value))]
        for variant, client in (("embedded", embedded), ("attached", attached)):
            for op, once in OPS.items():
                seconds = _repeated(client, once, value)
                cases.append(Case("hoplite", variant, __version__, op, nbytes, seconds))
        note = f"of {INPUTS} arrays"
        cases.append(Case("hoplite", "embedded", __version__, "reduce", nbytes, _reduces(embedded, nbytes), note=note))
        options = {"embedded": ["--capacity", str(capacity)], "attached": ["--socket", process.socket]}
        for variant, words in options.items():
            program = _started(stack, native, words)
            cases += [_of_program("hoplite-cpp", variant, op, nbytes, program) for op in CPP_OPS]
        cases += [_of_program("ray", "default", op, nbytes, ray) for op in RAY_OPS]
        yield cases


@contextlib.contextmanager
def of_directory() -> Iterator[list[Case]]:
    """The cases of the directory, with objects so small that only the directory matters."""
    with cluster(NODES) as nodes, contextlib.ExitStack() as stack:
        here, other, *_ = (stack.enter_context(node.client()) for node in nodes)
        names = (f"written-{number}/0" for number in itertools.count())
        written = f"puts under new names; three in four are owned by another of {NODES} nodes"
        asked = "locations of an object that another node owns"
        many = f"{IN_FLIGHT} in flight"
        yield [
            Case("hoplite", variant, __version__, op, len(TINY), seconds, note=note)
            for variant, op, seconds, note in (
                ("default", "write_location", _writes(here, other, names), written),
                (many, "write_location", _writes_in_flight(here, other, names), written),
                ("default", "look_up", _look_ups(here, other), asked),
                (many, "look_up", _look_ups_in_flight(here, other), asked),
            )
        ]


def _copies(value: np.ndarray) -> Callable[[int], list[float]]:
    out = np.zeros_like(value)

    def seconds(rounds: int) -> list[float]:
        took = []
        for _ in range(rounds):
            start = time.perf_counter()
            np.copyto(out, value)
            took.append(time.perf_counter() - start)
        _verify(out, value)
        return took

    return seconds


def _repeated(
    client: Client, once: Callable[[Client, np.ndarray], Done], value: np.ndarray
) -> Callable[[int], list[float]]:
    def seconds(rounds: int) -> list[float]:
        took = []
        for number in range(1, rounds + 1):
            one, found, refs = once(client, value)
            took.append(one)
            if number == rounds:
                _verify(found, value)
            del found
            client.delete(refs, timeout=PATIENCE_S)
        return took

    return seconds


def _put(client: Client, value: np.ndarray) -> Done:
    start = time.perf_counter()
    ref = client.put(value, timeout=PATIENCE_S)
    took = time.perf_counter() - start
    return took, client.get(ref, timeout=PATIENCE_S), [ref]


def _get(client: Client, value: np.ndarray) -> Done:
    ref = client.put(value, timeout=PATIENCE_S)
    start = time.perf_counter()
    found = client.get(ref, timeout=PATIENCE_S)
    return time.perf_counter() - start, found, [ref]


def _create_seal(client: Client, value: np.ndarray) -> Done:
    """Fills in place with a constant, in place of the computation of a producer."""
    start = time.perf_counter()
    buffer = client.create(value.shape, DTYPE, timeout=PATIENCE_S)
    buffer[...] = 1
    ref = buffer.seal(timeout=PATIENCE_S)
    took = time.perf_counter() - start
    found = client.get(ref, timeout=PATIENCE_S)
    return took, found + (value - 1), [ref]


def _put_get(client: Client, value: np.ndarray) -> Done:
    start = time.perf_counter()
    ref = client.put(value, timeout=PATIENCE_S)
    found = client.get(ref, timeout=PATIENCE_S)
    return time.perf_counter() - start, found, [ref]


def _get_repeated(client: Client, value: np.ndarray) -> Done:
    ref = client.put(value, timeout=PATIENCE_S)
    start = time.perf_counter()
    for _ in range(GETS):
        found = client.get(ref, timeout=PATIENCE_S)
    return (time.perf_counter() - start) / GETS, found, [ref]


OPS: dict[str, Callable[[Client, np.ndarray], Done]] = {
    "put": _put,
    "get": _get,
    "get_repeated": _get_repeated,
    "create_seal": _create_seal,
    "put_get": _put_get,
}


def _reduces(client: Client, nbytes: int) -> Callable[[int], list[float]]:
    inputs: list[Ref] = []

    def seconds(rounds: int) -> list[float]:
        if not inputs:
            for rank in range(INPUTS):
                buffer = client.create(nbytes // DTYPE.itemsize, DTYPE, timeout=PATIENCE_S)
                fill(buffer.array, rank=rank, seed=0)
                inputs.append(buffer.seal(timeout=PATIENCE_S))
        took = []
        for number in range(1, rounds + 1):
            start = time.perf_counter()
            ref = client.reduce(inputs, timeout=PATIENCE_S)
            found = client.get(ref, timeout=PATIENCE_S)
            took.append(time.perf_counter() - start)
            if number == rounds and (why := wrong(found, nbytes=nbytes, ranks=range(INPUTS), seed=0)):
                raise WrongResult(why)
            del found
            client.delete(ref, timeout=PATIENCE_S)
        return took

    return seconds


def _started(stack: contextlib.ExitStack, program: Path | str, options: list[str]) -> LocalProgram | str:
    """Starts the program in C++ until the stack is closed; returns the reason if that fails."""
    if isinstance(program, str):
        return program
    try:
        return stack.enter_context(LocalProgram("the program in C++", [program, *options]))
    except Unavailable as error:
        return str(error)


def _of_program(system: str, variant: str, op: str, nbytes: int, program: LocalProgram | str) -> Case:
    if isinstance(program, str):
        return Case(system, variant, "", op, nbytes, lambda _: [], unavailable=program)

    def seconds(rounds: int) -> list[float]:
        took, why = program.seconds(op, nbytes, rounds)
        if why:
            raise WrongResult(why)
        return took

    return Case(system, variant, program.version, op, nbytes, seconds)


def _writes(here: Client, other: Client, names: Iterator[str]) -> Callable[[int], list[float]]:
    def seconds(rounds: int) -> list[float]:
        took, refs = [], []
        for name in itertools.islice(names, rounds):
            start = time.perf_counter()
            refs.append(here.put(TINY, name=name, timeout=PATIENCE_S))
            took.append(time.perf_counter() - start)
        _verify_written(other, refs)
        return took

    return seconds


def _writes_in_flight(here: Client, other: Client, names: Iterator[str]) -> Callable[[int], list[float]]:
    def seconds(rounds: int) -> list[float]:
        took = []
        for _ in range(rounds):
            refs: list[Ref] = []

            async def write(refs: list[Ref] = refs) -> None:
                refs.append(await here.put_async(TINY, name=next(names), timeout=PATIENCE_S))

            took.append(asyncio.run(_in_flight(write)))
            _verify_written(other, refs)
        return took

    return seconds


def _verify_written(other: Client, refs: list[Ref]) -> None:
    if any(bytes(found) != TINY for found in other.get(refs, timeout=PATIENCE_S)):
        raise WrongResult("a get by another node returned different bytes than were put under a name")
    other.delete(refs, timeout=PATIENCE_S)


def _look_ups(here: Client, other: Client) -> Callable[[int], list[float]]:
    ref = other.put(TINY)
    node = other.status()["id"]

    def seconds(rounds: int) -> list[float]:
        took = []
        for _ in range(rounds):
            start = time.perf_counter()
            found = here.locations(ref, timeout=PATIENCE_S)
            took.append(time.perf_counter() - start)
            if [location.node for location in found] != [node]:
                raise WrongResult(f"the locations of an object of node {node} are {found}")
        return took

    return seconds


def _look_ups_in_flight(here: Client, other: Client) -> Callable[[int], list[float]]:
    ref = other.put(TINY)
    node = other.status()["id"]

    async def look_up() -> None:
        found = await here.locations_async(ref, timeout=PATIENCE_S)
        if [location.node for location in found] != [node]:
            raise WrongResult(f"the locations of an object of node {node} are {found}")

    return lambda rounds: [asyncio.run(_in_flight(look_up)) for _ in range(rounds)]


async def _in_flight(operation: Callable[[], Any]) -> float:
    """Seconds per operation, with IN_FLIGHT operations running at any time."""

    async def several() -> None:
        for _ in range(IN_FLIGHT_EACH):
            await operation()

    start = time.perf_counter()
    await asyncio.gather(*(several() for _ in range(IN_FLIGHT)))
    return (time.perf_counter() - start) / (IN_FLIGHT * IN_FLIGHT_EACH)


def _verify(found: np.ndarray, value: np.ndarray) -> None:
    if not np.array_equal(found, value):
        raise WrongResult("the result differs from the bytes that were put")

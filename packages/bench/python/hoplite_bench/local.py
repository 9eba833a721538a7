"""Measures operations of a single host: puts, gets and sums of Hoplite and Ray, plain copies, and the directory.

Determines the order of measurements and creates rows; `local_cases` has the operations. Systems are interleaved in
every repeat, so that other load on the machine affects all alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError, InvalidArgument
from hoplite_bench import local_cases, machine
from hoplite_bench.local_ray import local_ray
from hoplite_bench.row import Row, spread
from hoplite_bench.systems.base import Unavailable
from hoplite_bench.systems.hoplite_cpp import compiled_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hoplite_bench.environments import Environments
    from hoplite_bench.local_cases import Case
    from hoplite_bench.local_program import LocalProgram

# The network in a row.
NETWORK = {"kind": "local"}
SIZES = (2**10, 2**20, 2**28)
REPEATS = 5
# A sample is the median of as many operations as fit into this time, including their untimed parts.
SAMPLE_S = 0.2
ROUNDS_MAX = 1000


def measure(
    *,
    sizes: Sequence[int] = SIZES,
    repeats: int = REPEATS,
    environments: Environments,
    report_progress: Callable[[str], None] = lambda _: None,
    is_done: Callable[[Case], bool] = lambda _: False,
) -> Iterator[Row]:
    """Measures all cases, size by size.

    Args:
        sizes: sizes of an array in bytes, multiples of 4. A size needs about 15 times as much memory.
        repeats: samples of each case.
        environments: where Ray and the program in C++ are installed; without one, its rows contain the reason.
        report_progress: called with a progress message when a step begins.
        is_done: whether a case has a result already; interleaved cases are skipped only if all of them are done.

    Yields:
        A row for each case, as soon as all cases of its size are measured.

    Raises:
        InvalidArgument: a size is not a whole number of float32 values.
        HopliteError: the build is a debug one.
    """
    if wrong := [size for size in sizes if size < 4 or size % 4]:
        raise InvalidArgument(f"{wrong[0]} bytes are not a whole number of float32 values: set a multiple of 4")
    machine.refuse_debug_build()
    facts: dict[str, Any] = machine.facts()
    with contextlib.ExitStack() as stack:
        ray: LocalProgram | str
        native: Path | str
        try:
            report_progress("starting Ray")
            ray = stack.enter_context(local_ray(environments, store_bytes=4 * max(sizes)))
        except Unavailable as error:
            ray = str(error)
        try:
            report_progress("compiling the program in C++")
            native = compiled_program(environments, "hoplite_local.cpp")
        except Unavailable as error:
            native = str(error)
        for size in sizes:
            with local_cases.of_size(size, ray, native) as cases:
                if not all(map(is_done, cases)):
                    yield from _turns(cases, repeats, facts, report_progress)
        with local_cases.of_directory() as cases:
            if not all(map(is_done, cases)):
                yield from _turns(cases, repeats, facts, report_progress)


@dataclasses.dataclass
class _Measured:
    """The results of one case."""

    case: Case
    rounds: int = 0
    samples: list[float] = dataclasses.field(default_factory=list)
    failure: str = ""


def _turns(
    cases: Sequence[Case], repeats: int, facts: dict[str, Any], report_progress: Callable[[str], None]
) -> Iterator[Row]:
    measured = [_Measured(case, failure=case.unavailable) for case in cases]
    for repeat in range(-1, repeats):
        for one in measured:
            if one.failure:
                continue
            report_progress(f"{one.case}: {'warming up' if repeat < 0 else f'{repeat + 1} of {repeats}'}")
            try:
                if repeat < 0:
                    one.rounds = _rounds(one.case)
                else:
                    one.samples.append(statistics.median(one.case.seconds(one.rounds)))
            except HopliteError as error:
                one.failure = f"{type(error).__name__}: {error}"
    for one in measured:
        yield _row(one, repeats, facts)


def _rounds(case: Case) -> int:
    """Verifies a case, warms its memory, and computes the number of rounds in a sample."""
    case.seconds(1)
    start = time.perf_counter()
    case.seconds(1)
    return max(1, min(ROUNDS_MAX, int(SAMPLE_S / (time.perf_counter() - start))))


def _row(one: _Measured, repeats: int, facts: dict[str, Any]) -> Row:
    case = one.case
    samples = [] if one.failure else one.samples
    return Row(
        system=case.system,
        variant=case.variant,
        version=case.version,
        op=case.op,
        hosts=1,
        bytes=case.nbytes,
        arrival_s=0.0,
        repeats=repeats,
        seconds=spread(samples),
        samples=samples,
        wire_ratio=None,
        verified=bool(samples),
        cpu_seconds=None,
        peak_rss_bytes=None,
        lab=dict(NETWORK),
        machine={name: value for name, value in facts.items() if name != "commit"},
        commit=facts["commit"],
        build=machine.build(),
        note=one.failure or case.note,
    )

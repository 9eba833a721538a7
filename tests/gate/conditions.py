"""The machine and the checkout of a run: whether they are fit for it, and how the run describes them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from hoplite.errors import HopliteError
from hoplite_bench import machine, processes
from hoplite_bench.lab import LabError, needs

ROOT = Path(__file__).parents[2]
# Other programs may use this share of all processors; time for them to end, and time of one look.
BUSY_MAX, IDLE_TIMEOUT_S, LOOK_S = 0.10, 20.0, 1.0
# Processes named in the error.
NAMED = 3
TICKS = os.sysconf("SC_CLK_TCK")


class Unfit(HopliteError):
    """Nothing can be measured here; the message ends with what to do."""


def check(*, needs_root: bool) -> None:
    """Raises Unfit for a debug build, and if cells need root or tools that are missing."""
    try:
        machine.refuse_debug_build()
        if needs_root:
            needs.check()
    except LabError as error:
        raise Unfit(f'{error}. Without root, measure a part: make gate CELLS="small-objects busy-node"') from None
    except HopliteError as error:
        raise Unfit(str(error)) from None


def changed_crates() -> list[str]:
    """The files of `crates/` that differ from the commit."""
    done = subprocess.run(
        ["git", "status", "--porcelain", "crates"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10
    )
    return [line[3:] for line in done.stdout.splitlines()]


def wait_idle() -> None:
    """Waits until other programs use little of the processors.

    Raises:
        Unfit: they still use more after the timeout; names the busiest.
    """
    until = time.monotonic() + IDLE_TIMEOUT_S
    while True:
        before, begun = _ticks(), time.monotonic()
        time.sleep(LOOK_S)
        share = TICKS * (time.monotonic() - begun) * len(os.sched_getaffinity(0))
        used = {process: ticks - before.get(process, 0) for process, ticks in _ticks().items()}
        busy = sum(used.values()) / share
        if busy <= BUSY_MAX:
            return
        if time.monotonic() > until:
            names = ", ".join(
                f"{_command(process)} (process {process}, {used[process] / share:.0%})"
                for process in sorted(used, key=lambda process: -used[process])[:NAMED]
                if used[process]
            )
            raise Unfit(f"other programs use {busy:.0%} of the processors: {names}; end them, or wait for their end")


def _ticks() -> dict[int, int]:
    """The processor time of each process so far, in ticks."""
    found = {}
    for process in processes.all_ids():
        if (fields := processes.fields_of(process)) is not None:
            # Fields 14 and 15 of stat, counted from 1: user and system time.
            found[process] = int(fields[11]) + int(fields[12])
    return found


def _command(process: int) -> str:
    try:
        words = processes.read(f"/proc/{process}/cmdline").split(b"\0")
    except OSError:
        return "a process that has ended"
    return b" ".join(words).decode(errors="replace").strip()[:60] or "a kernel thread"

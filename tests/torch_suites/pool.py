"""Runs the tests of one attempt in a few processes at once.

A process that dies or hangs fails its test and is replaced. It knows neither torch nor what is expected.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch_suites.plan import Attempt

# After this many seconds PyTorch ends the ranks of a test; some tests of it have a longer limit, up to 500 seconds.
RANKS_TIMEOUT_S = 60
TEST_TIMEOUT_S = 520


@dataclass(frozen=True)
class Result:
    """What became of one test.

    Attributes:
        test: Class and method.
        outcome: "passed", "skipped" or "failed".
        seconds: How long it took.
        reason: Why it was skipped, or the traceback.
        attempt: The attempt that it belongs to.
    """

    test: str
    outcome: str
    seconds: float
    reason: str
    attempt: Attempt


class Died(Exception):
    """A child ended, or did not reply in time."""


class Child:
    """A process of `torch_suites.child`, and the names of the tests in its suite."""

    def __init__(self, suite: str, attempt: Attempt, start: str, log: Path, runtime_dir: str) -> None:
        settings = {
            "SUITE_BACKEND": attempt.backend,
            "SUITE_CONDITIONS": attempt.conditions,
            "SUITE_START": start,
            "WORLD_SIZE": str(attempt.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(RANKS_TIMEOUT_S),
            "XDG_RUNTIME_DIR": runtime_dir,
            # A store in a file, for tests that form the group of all ranks again.
            "INIT_METHOD": f"file://{runtime_dir}/store",
        }
        with log.open("a") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "torch_suites.child", suite],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | settings,
                start_new_session=True,
            )
        self.tests: list[str] = self._reply()

    def run(self, test: str) -> dict[str, Any]:
        """Runs one test and returns what `child.run` returns."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{test}\n".encode())
            self._process.stdin.flush()
        reply: dict[str, Any] = self._reply()
        return reply

    def close(self) -> None:
        """Ends the process and those that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _reply(self) -> Any:  # noqa: ANN401 - what JSON holds
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], TEST_TIMEOUT_S)[0]:
            raise Died(f"no result within {TEST_TIMEOUT_S} s")
        line = stdout.readline()
        if not line:
            raise Died("the process that ran the test has ended: see the log of its ranks")
        return json.loads(line)


def list_tests(suite: str, attempt: Attempt, log: Path) -> list[str]:
    """Lists the tests of a suite."""
    with tempfile.TemporaryDirectory() as runtime_dir:
        child = Child(suite, attempt, "fork", log, runtime_dir)
        child.close()
    return child.tests


def run(suite: str, attempt: Attempt, start: str, tests: Iterable[str], jobs: int, logs: Path) -> list[Result]:
    """Runs tests of a suite in up to `jobs` processes and returns their results."""
    pending: queue.SimpleQueue[str] = queue.SimpleQueue()
    for test in tests:
        pending.put(test)
    results: list[Result] = []

    def work(log: Path, runtime_dir: str) -> None:
        child: Child | None = None
        while True:
            try:
                test = pending.get_nowait()
            except queue.Empty:
                break
            try:
                child = child or Child(suite, attempt, start, log, runtime_dir)
                results.append(Result(test, **child.run(test), attempt=attempt))
            except Died as error:
                results.append(Result(test, "failed", TEST_TIMEOUT_S, str(error), attempt))
                if child:
                    child.close()
                child = None
        if child:
            child.close()

    with tempfile.TemporaryDirectory() as runtime_dir:
        threads = [
            threading.Thread(target=work, args=(logs / f"ranks-{number}.log", runtime_dir))
            for number in range(min(jobs, pending.qsize()))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results

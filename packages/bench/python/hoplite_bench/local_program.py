"""A program on this host that executes requests, so that it can be interleaved with other systems."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

from hoplite.tools.channels import Channel, Lost, gather
from hoplite_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Self

START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 120.0
END_TIMEOUT_S = 20.0


class LocalProgram:
    """One of the programs of `ranks/` that put and get; it ends at the end of a `with` block.

    Args:
        name: name for error messages.
        argv: the command.
        env: variables to set in addition to those of this process.

    Attributes:
        version: version of its system.

    Raises:
        Unavailable: it does not start; raised on entering the context.
    """

    def __init__(self, name: str, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
        self.version = ""
        self._name = name
        self._argv = argv
        self._env = env or {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                self._argv,
                env={**os.environ, **self._env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(_end, process)
            assert process.stdin is not None
            assert process.stdout is not None
            self._channel = Channel(self._name, process.stdout.fileno(), process.stdin.fileno())
            try:
                self.version = self._answer(START_TIMEOUT_S)["version"]
            except Lost as error:
                log.seek(0)
                said = [line for line in log.read().splitlines() if line.strip()]
                raise Unavailable(f"{error}; last output: {said[-1] if said else 'none'}") from None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def seconds(self, op: str, nbytes: int, rounds: int) -> tuple[list[float], str]:
        """Runs an operation repeatedly.

        Returns:
            The seconds of each run, and the error in the last result, or an empty text.

        Raises:
            Lost: the program has ended or does not respond.
        """
        self._channel.send(f"{op} {nbytes} {rounds}")
        answer = self._answer(ANSWER_TIMEOUT_S)
        return answer["seconds"], answer["wrong"]

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(gather([self._channel], timeout_s)[0])
        return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the program, and the processes that it started."""
    with process:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Ray's processes are in its session; the kernel ends those outside its process group after it.
            os.killpg(process.pid, signal.SIGKILL)

"""Counts calls of CMA (cross memory attach), by which one process copies from the memory of another, with strace."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

STRACE_TIMEOUT_S = 20.0
# Of the lines "123 process_vm_readv(...) = 4096" and "123 <... process_vm_readv resumed>...) = 4096".
CALL = re.compile(r"process_vm_(?:read|write)v\b.* = (-?\d+)(?: [A-Z].*)?$")
ATTACHED = re.compile(r"Process (\d+) attached|ptrace\(\w+, (\d+)\)")


class Calls:
    """Counts calls of CMA during a `with` block.

    Args:
        ranks: ids of the processes that are traced.

    Attributes:
        bytes: the bytes that they copied; -1 if calls can't be traced.
        calls: the number of successful calls; -1 likewise.
        refused: the number of calls that the kernel refused; -1 likewise.
        reason: why calls can't be traced; otherwise empty.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.bytes = self.calls = self.refused = -1
        self.reason = ""
        self._ranks = ranks
        self._strace: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if shutil.which("strace") is None:
            self.reason = "calls of CMA were not counted, because strace is missing: apt-get install strace"
            return self
        self._folder = tempfile.TemporaryDirectory(prefix="hoplite-transport-")
        self._output = Path(self._folder.name) / "calls"
        self._messages = Path(self._folder.name) / "messages"
        options = ["-f", "-e", "trace=process_vm_readv,process_vm_writev", "-e", "signal=none", "-o", str(self._output)]
        with self._messages.open("wb") as messages:
            self._strace = subprocess.Popen(
                ["strace", *options, *(word for rank in self._ranks for word in ("-p", str(rank)))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=messages,
                text=True,
                start_new_session=True,
            )
        try:
            self._wait_until_attached(self._strace)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_until_attached(self, strace: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + STRACE_TIMEOUT_S
        while True:
            ended = strace.poll() is not None
            said = self._messages.read_text(errors="replace")
            done = {int(one or other) for one, other in ATTACHED.findall(said)}
            if refused := [line for line in said.splitlines() if "Operation not permitted" in line]:
                self.reason = (
                    f"calls of CMA were not counted: {refused[0]}; run as root with CAP_SYS_PTRACE (in a container: "
                    "docker run --cap-add=SYS_PTRACE)"
                )
            if done.issuperset(self._ranks):
                return
            if ended or time.monotonic() > deadline:
                last = said.strip().splitlines()[-1:] or [f"no answer within {STRACE_TIMEOUT_S:.0f} s"]
                self.reason = self.reason or f"calls of CMA were not counted, because strace failed: {last[0]}"
                return
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        if self._strace is None:
            return
        # It detaches from all processes, which continue.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._strace.pid, signal.SIGINT)
        try:
            self._strace.wait(STRACE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._strace.kill()
            self._strace.wait()
        if not self.reason:
            returned = [int(match[1]) for line in self._output.read_text().splitlines() if (match := CALL.search(line))]
            moved = [count for count in returned if count >= 0]
            self.bytes, self.calls, self.refused = sum(moved), len(moved), len(returned) - len(moved)
        self._folder.cleanup()

"""Controls the hosts of a probe: starts an agent on each, sends requests to many at once, and leaves out failed hosts.

A failed host raises no error: its last output is stored, and the others continue. Independent of rounds and figures.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import selectors
import shlex
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from hoplite.errors import InvalidArgument
from hoplite.tools.channels import Channel, Lost
from hoplite_topology.probe_agent import KEY_BYTES, MARK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAUNCH = "ssh -o BatchMode=yes -- {host}"
# Includes a login by ssh and the start of an interpreter, for hundreds of hosts from one machine.
START_TIMEOUT_S = 60.0
# Time between an agent's last reply and the end of the command that reached it, whose output may contain the reason.
LAST_WORDS_S = 1.0
END_TIMEOUT_S = 5.0
# Reads its program of the given length, and runs it.
BOOTSTRAP = "import sys; exec(compile(sys.stdin.buffer.read({size}).decode(), 'hoplite-probe', 'exec'))"


@dataclass(frozen=True)
class Site:
    """A host to probe.

    Attributes:
        name: name for the launch command.
        address: address for the other hosts.
        slots: number of processes that a launcher will start on it.
    """

    name: str
    address: str
    slots: int = 1


class Reached:
    """The agents on all hosts that could be reached, for the duration of a `with` block.

    Args:
        sites: the hosts.
        launch: command with `{host}` in its words; the shell command to run there is appended as one word.
        python: interpreter on the hosts, 3.8 or later.
        port: port of the agents; 0 selects free ones.

    Attributes:
        absent: reason why a host was left out, by its number.
        hello: first reply of each host, by its number.

    Raises:
        InvalidArgument: the launch command is not valid.
    """

    def __init__(self, sites: Sequence[Site], launch: str = LAUNCH, python: str = "python3", port: int = 0) -> None:
        try:
            words = shlex.split(launch)
        except ValueError as error:
            raise InvalidArgument(f"--launch {launch!r} is not a command: {error}; check its quotes") from None
        if not any("{host}" in word for word in words):
            raise InvalidArgument(f"--launch {launch!r} has no {{host}}: add it in place of the host name")
        self.sites = list(sites)
        self.absent: dict[int, str] = {}
        self.hello: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count()
        self._processes: dict[int, tuple[subprocess.Popen[bytes], IO[bytes], Channel]] = {}
        # With this key, agents accept only streams of each other.
        key = secrets.token_hex(KEY_BYTES)
        program = Path(__file__).with_name("probe_agent.py").read_bytes()
        command = shlex.join(["exec", python, "-c", BOOTSTRAP.format(size=len(program))])
        try:
            for number, site in enumerate(self.sites):
                self._start(number, [word.replace("{host}", site.name) for word in words] + [command])
            for number in list(self._processes):
                begin = json.dumps({"address": self.sites[number].address, "port": port, "key": key}).encode() + b"\n"
                with self._leaving_out(number):
                    self._processes[number][2].send_bytes(program + begin)
            self.hello = self.ask({number: {"do": "hello"} for number in self._processes}, START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def present(self) -> list[int]:
        """The numbers of the hosts that respond."""
        return [number for number in range(len(self.sites)) if number not in self.absent]

    def leave_out(self, number: int, reason: str) -> None:
        """Ends the agent of a host, which gets no more requests."""
        self.absent.setdefault(number, reason)
        if number in self._processes:
            self._end(number)

    def ask(self, requests: Mapping[int, dict[str, Any]], timeout_s: float) -> dict[int, dict[str, Any]]:
        """Sends requests to hosts, all at once; leaves out hosts that disconnect or time out.

        Returns:
            The reply of each host, by its number; `{"error": why}` if it failed.
        """
        number_of = str(next(self._numbers))
        mark = f"{MARK} {number_of} "
        answers: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + timeout_s
        waiting: set[int] = set()
        with selectors.DefaultSelector() as selector:
            for number, request in requests.items():
                if number in self.absent:
                    continue
                channel = self._processes[number][2]
                with self._leaving_out(number):
                    channel.send(json.dumps({**request, "number": number_of}))
                    selector.register(channel.reader, selectors.EVENT_READ, number)
                    waiting.add(number)
            while waiting:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready and time.monotonic() >= deadline:
                    break
                for key, _ in ready:
                    number = key.data
                    channel = self._processes[number][2]
                    try:
                        channel.read()
                    except Lost as error:
                        selector.unregister(key.fd)
                        waiting.discard(number)
                        self._lose(number, str(error), is_over=True)
                        continue
                    while (line := channel.line()) is not None:
                        if line.startswith(mark):
                            waiting.discard(number)
                            selector.unregister(key.fd)
                            try:
                                answers[number] = dict(json.loads(line.removeprefix(mark)))
                            except (ValueError, TypeError, RecursionError) as error:
                                self._lose(number, f"{self.sites[number].name} sent a malformed reply: {error}")
                            break
        for number in sorted(waiting):
            self._lose(number, f"{self.sites[number].name} did not reply within {timeout_s:.0f} s")
        return answers

    def close(self) -> None:
        """Ends all agents."""
        # Closes all inputs first, so that the agents end in parallel.
        for process, _, _ in self._processes.values():
            _close_input(process)
        for number in list(self._processes):
            self._end(number)

    def _start(self, number: int, words: list[str]) -> None:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the agent lives
        try:
            # Ctrl-C goes to the probe, which then ends everything in order.
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            errors.close()
            raise InvalidArgument(f"can't run {words[0]}: {error.strerror}; install it or set --launch") from None
        assert process.stdin is not None
        assert process.stdout is not None
        channel = Channel(self.sites[number].name, process.stdout.fileno(), process.stdin.fileno())
        self._processes[number] = process, errors, channel

    @contextlib.contextmanager
    def _leaving_out(self, number: int) -> Any:  # noqa: ANN401 - a generator
        try:
            yield
        except Lost as error:
            self._lose(number, str(error), is_over=True)

    def _lose(self, number: int, what: str, *, is_over: bool = False) -> None:
        process, errors, _ = self._processes[number]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LAST_WORDS_S if is_over else 0.0)
        errors.seek(0)
        lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
        if is_over and lines:
            # One message for a failed read and a failed write, because either may fail first.
            what = f"{self.sites[number].name} has disconnected: {lines[-1]}"
        self.leave_out(number, what)

    def _end(self, number: int) -> None:
        process, errors, _ = self._processes.pop(number)
        _close_input(process)
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
        errors.close()


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    # Unsent bytes are dropped.
    with contextlib.suppress(OSError):
        process.stdin.close()

"""One running system: its processes on all hosts with one set of settings, and its ranks, which run rounds on request.

Any failure ends the group, because a collective with one failed rank leaves the others waiting. The module does not
decide which rounds to run, and does not interpret their times.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError
from hoplite.tools.channels import Channel, Lost, gather
from hoplite_bench import words
from hoplite_bench.hosts import AgentFailed
from hoplite_bench.ranks.rank import PART, TIMEOUT_VARIABLE, parse, write
from hoplite_bench.systems.base import Launch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.hosts import Agents, Network
    from hoplite_bench.systems.base import Host, System

# Starting sixteen Ray nodes takes a minute on two cores.
START_TIMEOUT_S = 240.0
POLL_S = 0.2
# Time between a rank's connection and its first message, on a machine that starts sixteen of them.
HELLO_TIMEOUT_S = 20.0
# Time between the end of a rank's connection and that of its process, whose last output may contain the reason.
LAST_WORDS_S = 0.5
# Time between the "go" message and the call, so that all ranks have read it by then: in ns, plus an amount per rank.
LEAD_NS = 4_000_000
LEAD_NS_RANK = 500_000
# An agent waits ten seconds for processes to end, and then reports those that have not.
KILL_TIMEOUT_S = 60.0
# Exceptions raised by a malformed reply, or by a missing one.
BROKEN = (Lost, AgentFailed, OSError, KeyError, ValueError)


class GroupFailed(HopliteError):
    """A system's processes failed; the message names them and includes their last output."""


@dataclasses.dataclass(frozen=True)
class Round:
    """The measurements of one round.

    Attributes:
        seconds: from the last participant's call to the end of the last participant.
        cpu_seconds: processor time of all processes of the group on all hosts, from call to end.
        peak_rss_bytes: most memory of its processes on one host.
        disturbed: what ranks report as retried, failed or refused, although no fault was injected.
        extra_bytes: most memory that a rank reports to have used temporarily; 0 for ranks that do not measure it.
        breakdown: seconds of each part of the operation, of the rank whose parts took longest; empty if the ranks do
            not report parts.
    """

    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    disturbed: str = ""
    extra_bytes: int = 0
    breakdown: dict[str, float] = dataclasses.field(default_factory=dict)


class Group(Launch):
    """The processes of one system.

    Args:
        system: the system to run.
        settings: name of the settings for its processes.
        network: the hosts.
        agents: agents of these hosts.
        memory_bytes: maximum size of its store on one host.
        timeout_s: timeout that rank programs pass to the system, if it has one; 0 is that of each program.

    Attributes:
        pids: the process of each rank, on its host.
    """

    def __init__(
        self,
        system: System,
        settings: str,
        network: Network,
        agents: Agents,
        memory_bytes: int,
        *,
        timeout_s: float = 0.0,
    ) -> None:
        self.system = system
        self.settings = settings
        self.hosts = network.hosts
        self.rsh = network.rsh
        self.network = network.cidr
        self.memory_bytes = memory_bytes
        self.shared_clock = network.shared_clock
        self.transports = network.transports
        self.version = ""
        self.pids: list[int] = []
        self._variables = {TIMEOUT_VARIABLE: str(timeout_s)} if timeout_s else {}
        self._place = network
        self._agents = agents
        self._id = f"{system.name}-{settings}-{secrets.token_hex(4)}".replace(" ", "-")
        self._channels: list[Channel] = []
        self._sockets: list[socket.socket] = []
        self._rounds = 0

    @property
    def id(self) -> str:
        """Its value of the variable that marks the processes of a group."""
        return self._id

    def spawn(self, host: Host, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
        """Starts a process on a host, as part of the group."""
        variables = {**self._variables, **(env or {})}
        request = {"do": "spawn", "group": self._id, "argv": [str(word) for word in argv], "env": variables}
        self._agents.one(host, request)

    def start(self, timeout_s: float | None = None) -> None:
        """Starts all processes and waits for all ranks.

        Args:
            timeout_s: seconds until all ranks must have connected; None is START_TIMEOUT_S.

        Raises:
            Unavailable: the system can't run on these hosts.
            GroupFailed: a process ended, or not all ranks connected in time.
        """
        # Set before the folder is created, so that cleanup removes it whatever happens.
        self.folder = Path(tempfile.gettempdir()) / f"hoplite-bench-{secrets.token_hex(4)}"
        try:
            self.folder.mkdir(mode=0o700)
            self._agents.all({"do": "folder", "group": self._id, "path": str(self.folder)})
            with self._listen() as listener:
                self.system.start(self, self.settings)
                self._accept(listener, 1 if self.system.driver else len(self.hosts), timeout_s or START_TIMEOUT_S)
        except BROKEN as error:
            raise self._failed(_why(error)) from None
        except BaseException:
            self.stop()
            raise

    def _listen(self) -> socket.socket:
        if self._place.shared_clock:
            listener = socket.socket(socket.AF_UNIX)
            path = self.folder / "control.sock"
            try:
                listener.bind(str(path))
            except OSError as error:
                listener.close()
                raise Lost(
                    f"can't bind a socket at {path}: {error}; set TMPDIR to a folder with a shorter path"
                ) from None
            self.control = f"unix:{path}"
        else:
            listener = socket.create_server((self._place.control, 0))
            self.control = f"{self._place.control}:{listener.getsockname()[1]}"
        listener.listen(len(self.hosts) + 1)
        listener.settimeout(POLL_S)
        return listener

    def _accept(self, listener: socket.socket, wanted: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        found: dict[int, Channel] = {}
        pids: dict[int, int] = {}
        while len(found) < wanted:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if any(answer["exited"] for answer in self._agents.all({"do": "exited", "group": self._id})):
                    raise Lost("a process ended before all ranks had connected") from None
                if time.monotonic() > deadline:
                    raise Lost(f"{len(found)} of {wanted} ranks connected within {timeout_s:.0f} s") from None
                continue
            self._sockets.append(connection)
            connection.setblocking(True)
            channel = Channel(f"{self.system.name}'s new rank", connection.fileno(), connection.fileno())
            word, fields = parse(gather([channel], HELLO_TIMEOUT_S)[0])
            if word != "hello":
                raise Lost(f"a rank sent {word!r} instead of hello: {fields}")
            number = 0 if self.system.driver else int(fields["rank"])
            if number in found or not 0 <= number < len(self.hosts):
                raise Lost(f"rank {number} connected twice, or is not one of the {len(self.hosts)} ranks")
            channel.name = (
                f"{self.system.name}'s driver" if self.system.driver else f"{self.system.name}'s rank {number}"
            )
            found[number] = channel
            pids[number] = int(fields["pid"])
            self.version = fields["version"]
        self._channels = [found[number] for number in sorted(found)]
        self.pids = [pids[number] for number in sorted(found)]

    def freeze(self) -> None:
        """Pauses all processes."""
        self._agents.all({"do": "freeze", "group": self._id})

    def thaw(self) -> None:
        """Resumes all processes."""
        self._agents.all({"do": "thaw", "group": self._id})

    @property
    def channels(self) -> list[Channel]:
        """The connection of each rank, for a caller that waits for each of them itself."""
        return list(self._channels)

    def signal(self, rank: int, number: int) -> None:
        """Sends a signal to the process of one rank; returns when SIGSTOP or SIGKILL has taken effect.

        The number 0 only finds the process, so that a later signal is sent at once.

        Raises:
            AgentFailed: the rank's process has ended.
        """
        request = {"do": "signal", "group": self._id, "pid": self.pids[rank], "signal": number}
        self._agents.one(self.hosts[rank], request)

    def prepare(self, op: str, nbytes: int, *, variant: str, seed: int, timeout_s: float) -> str:
        """Prepares a round of all ranks, and returns the request that makes a rank call.

        Raises:
            GroupFailed: a rank failed, disconnected or timed out; the group is stopped.
        """
        self._rounds += 1
        task = {"op": op, "bytes": nbytes, "variant": variant, "round": self._rounds, "seed": seed}
        # One nanosecond between calls, so that no rank contributes its input before it calls.
        task["arrival"] = 1
        try:
            ready = self._ask(write("prepare", **task), "ready", timeout_s)
        except BROKEN as error:
            raise self._failed(_why(error)) from None
        go: str = write("go", at=0, tokens=",".join(fields.get("token", "") for fields in ready))
        return go

    def round(
        self,
        op: str,
        nbytes: int,
        *,
        variant: str,
        seed: int,
        arrival_s: float = 0.0,
        inputs: int = 1,
        timeout_s: float,
        weigh: bool,
    ) -> Round:
        """Runs one operation and verifies its result.

        Args:
            op: one of OPS.
            nbytes: size of each rank's array.
            variant: variant of the operation.
            seed: seed of the content.
            arrival_s: seconds between the calls of successive ranks.
            inputs: arrays that each rank adds to a sum.
            timeout_s: timeout of each step.
            weigh: whether to measure processor time and memory, which takes longer than a small operation.

        Raises:
            GroupFailed: a rank failed, disconnected, timed out or had a wrong result; the group is stopped.
        """
        self._rounds += 1
        arrival_ns = round(arrival_s * 1e9)
        try:
            task = {"op": op, "bytes": nbytes, "variant": variant, "round": self._rounds, "seed": seed}
            # Rank programs that sum one array only do not parse this field.
            task |= {"inputs": inputs} if inputs > 1 else {}
            ready = self._ask(write("prepare", **task, arrival=arrival_ns), "ready", timeout_s)
            before = self._weigh("begin") if weigh else (0.0, 0)
            tokens = ",".join(fields.get("token", "") for fields in ready)
            at = time.monotonic_ns() + LEAD_NS + LEAD_NS_RANK * len(self.hosts) if self.shared_clock else 0
            called = time.monotonic()
            done = self._ask(write("go", at=at, tokens=tokens), "done", timeout_s)
            ended = time.monotonic()
            after = self._weigh("usage") if weigh else (0.0, 0)
            checked = self._ask("check", "checked", timeout_s)
            if len(done) != len(self._sockets):
                raise Lost(f"{len(done)} of {len(self._sockets)} ranks replied")
            seconds = self._seconds(op, done, ended - called, arrival_s)
            parts = _parts(done)
        except (*BROKEN, IndexError) as error:
            raise self._failed(_why(error)) from None
        for channel, fields in zip(self._channels, checked, strict=True):
            if fields["wrong"]:
                raise self._failed(f"wrong result: {channel.name}: {fields['wrong']}")
        disturbed = [
            f"{channel.name}: {said}"
            for channel, fields in zip(self._channels, checked, strict=True)
            if (said := fields.get("disturbed"))
        ]
        extra = max(int(fields.get("extra", 0)) for fields in checked)
        return Round(seconds, after[0] - before[0], after[1], "; ".join(disturbed), extra, parts)

    def _seconds(self, op: str, done: list[dict[str, str]], waited_s: float, arrival_s: float) -> float:
        """The time from the last participant's call to the last end, by the ranks' own clock if they share one."""
        pair = op == "rtt" and not self.system.driver
        if self.shared_clock:
            took = done[:2] if pair else done
            return (max(int(one["end"]) for one in took) - max(int(one["start"]) for one in took)) / 1e9
        seconds = waited_s - arrival_s * (1 if op == "rtt" else len(self.hosts) - 1)
        if seconds <= 0:
            raise Lost(f"the operation ended {-seconds:.3f} s before the last rank was due to call")
        return seconds

    def _ask(self, line: str, answer: str, timeout_s: float) -> list[dict[str, str]]:
        def look(channel: Channel, said: str) -> None:
            word, fields = parse(said)
            if word == "failed":
                raise Lost(f"{channel.name} failed: {fields['why']}")
            if word != answer:
                raise Lost(f"{channel.name} sent {word!r} instead of {answer!r}")

        for channel in self._channels:
            channel.send(line)
        return [parse(said)[1] for said in gather(self._channels, timeout_s, look=look)]

    def _weigh(self, what: str) -> tuple[float, int]:
        usage = self._agents.all({"do": what, "group": self._id})
        return sum(one["cpu_seconds"] for one in usage), max(one["peak_rss_bytes"] for one in usage)

    def _failed(self, why: str) -> GroupFailed:
        """Stops the group; returns the reason and the last output of its ended processes."""
        said: list[str] = []
        # If an agent fails here, it fails for the next group too, which then reports it.
        with contextlib.suppress(AgentFailed):
            said += self.last_output()
            self.stop()
        return GroupFailed("; ".join([why, *said[:2]]))

    def last_output(self, but: int = 0) -> list[str]:
        """The exit status and the last output of each process that has ended, except one; waits shortly for any."""
        answers = self._agents.all({"do": "exited", "group": self._id, "patience_s": LAST_WORDS_S})
        ended = [one for answer in answers for one in answer["exited"]]
        return [_last(one["said"], one["code"]) for one in ended if one["pid"] != but]

    def stop(self) -> None:
        """Ends all processes of the group."""
        for connection in self._sockets:
            connection.close()
        self._sockets.clear()
        self._channels.clear()
        try:
            answers: list[dict[str, Any]] = self._agents.all(
                {"do": "kill", "group": self._id}, timeout_s=KILL_TIMEOUT_S
            )
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        if left := [pid for answer in answers for pid in answer.get("left", [])]:
            raise AgentFailed(f"processes {left} of {self.system.name} did not exit after SIGKILL")


def _parts(done: list[dict[str, str]]) -> dict[str, float]:
    """The seconds of each part, as reported by the rank whose parts took longest."""
    reported = [
        {name.removeprefix(PART): int(value) / 1e9 for name, value in fields.items() if name.startswith(PART)}
        for fields in done
    ]
    return max(reported, key=lambda parts: sum(parts.values()))


def _why(error: Exception) -> str:
    """Formats an error; for a malformed reply, the exception that parsing it raised."""
    return str(error) if isinstance(error, HopliteError | OSError) else f"malformed reply: {error!r}"


def _last(said: str, code: int) -> str:
    # Open MPI ends its messages with a line of dashes, and its launcher writes zero bytes.
    lines = [line for part in said.splitlines() if any(map(str.isalnum, line := part.strip(" \t\0")))]
    return words.ended(code, lines[-1] if lines else "")

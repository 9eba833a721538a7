"""The hosts of a measurement and the agent on each; knows how to reach them, not what is measured on them."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hoplite.bench.channels import Channel, Lost, gather
from hoplite.bench.systems.base import Host
from hoplite.errors import HopliteError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from hoplite.lab import Lab

# Of a login by ssh and the start of an interpreter, on a machine with two cores and sixteen hosts.
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0
# Of the installation of a system on all hosts.
PREPARE_TIMEOUT_S = 900.0


@dataclasses.dataclass(frozen=True)
class Network:
    """Where a measurement takes place.

    Attributes:
        hosts: who takes part, in order of rank.
        rsh: an executable that takes a host's name and a command, like ssh.
        control: where ranks connect to: a folder for a Unix socket that all hosts see, or this machine's address.
        shared_clock: whether all hosts read one monotonic clock and one file system, as those of a lab do.
        cidr: the network of the hosts, "10.77.0.0/16"; empty if it is not known.
        rate: bits per second of a link; 0 if it is not known.
        facts: what a row says of it.
    """

    hosts: Sequence[Host]
    rsh: Path
    control: str
    shared_clock: bool
    cidr: str
    rate: int
    facts: dict[str, Any]


class AgentFailed(HopliteError):
    """An agent could not do what it was asked; names the host."""


class Agents:
    """One agent on each host, for as long as the block lasts; all that they started ends with it.

    Args:
        network: whose hosts.

    Raises:
        AgentFailed: a host can't be reached, or has no hoplite where this one has it.
    """

    def __init__(self, network: Network) -> None:
        self.hosts = list(network.hosts)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[Channel] = []
        command = shlex.join([sys.executable, "-m", "hoplite.bench.agent"])
        path = str(Path(__file__).parents[2])
        try:
            for host in self.hosts:
                process = subprocess.Popen(
                    [network.rsh, host.name, f"PYTHONPATH={shlex.quote(path)} exec {command}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # Ctrl-C is for the bench, which then ends what is there in order.
                    start_new_session=True,
                )
                self._processes.append(process)
                assert process.stdin is not None
                assert process.stdout is not None
                self._channels.append(Channel(host.name, process.stdout.fileno(), process.stdin.fileno()))
            self.hello = self.all({"do": "hello"}, timeout_s=START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def all(self, request: dict[str, Any], *, timeout_s: float = ANSWER_TIMEOUT_S) -> list[dict[str, Any]]:
        """Asks every agent the same, and waits for all answers, in order of the hosts."""
        return self._ask(list(range(len(self._channels))), request, timeout_s)

    def one(self, host: Host, request: dict[str, Any], *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Asks the agent of one host."""
        return self._ask([self.hosts.index(host)], request, timeout_s)[0]

    def _ask(self, numbers: list[int], request: dict[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        channels = [self._channels[number] for number in numbers]
        try:
            for channel in channels:
                channel.send(json.dumps(request))
            answers = [json.loads(line) for line in gather(channels, timeout_s)]
        except (Lost, json.JSONDecodeError) as error:
            raise AgentFailed(f"an agent failed at {request['do']!r}: {error}") from None
        for channel, answer in zip(channels, answers, strict=True):
            if "error" in answer:
                raise AgentFailed(f"the agent of {channel.name} can't {request['do']}: {answer['error']}")
        return answers

    def close(self) -> None:
        """Ends all agents, and they what they started."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(ANSWER_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def of_lab(lab: Lab) -> Network:
    """The hosts of a lab."""
    hosts = [Host(host.number, host.name, host.address, host.interface) for host in lab.hosts]
    # Without its name, which says nothing, and what it does not have.
    told = {name: value for name, value in lab.facts().items() if name != "name" and value is not None}
    facts = {"kind": "lab", **told}
    return Network(hosts, lab.agent, "", shared_clock=True, cidr=lab.network, rate=facts["rate"], facts=facts)


def of_file(path: Path, *, rsh: str = "ssh", rate: int = 0) -> Network:
    """Reads the hosts of a file: on each line a name that ssh reaches, and, if that is not it, the address to measure.

    A third word is the network interface. What follows "#" is a comment. The first is the root of all operations.

    Args:
        path: the file.
        rsh: the command that reaches a host, found on PATH.
        rate: bits per second of a host's link, if it is known.

    Raises:
        InvalidArgument: fewer than two hosts, or a line that is not understood.
    """
    executable = shutil.which(rsh)
    if executable is None:
        raise InvalidArgument(f"there is no {rsh!r} to reach the hosts with; install it or say --rsh")
    hosts: list[Host] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        if len(words) > 3:
            raise InvalidArgument(f"{path}:{number}: {line.strip()!r} is not: name [address [interface]]")
        if not words:
            continue
        try:
            address = socket.gethostbyname(words[1] if len(words) > 1 else words[0])
        except OSError as error:
            raise InvalidArgument(f"{path}:{number}: no address of {words[0]!r}: {error.strerror}") from None
        hosts.append(Host(len(hosts), words[0], address, words[2] if len(words) > 2 else ""))
    if len(hosts) < 2:
        raise InvalidArgument(f"{path} names {len(hosts)} hosts; a measurement needs two or more, one a line")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing: the kernel says which of our addresses it would send from.
        probe.connect((hosts[0].address, 9))
        own: str = probe.getsockname()[0]
    facts = {"kind": "hosts", "names": [host.name for host in hosts], "rate": rate, "clock": os.uname().nodename}
    return Network(hosts, Path(executable), own, shared_clock=False, cidr="", rate=rate, facts=facts)

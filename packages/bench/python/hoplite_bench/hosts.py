"""The hosts of a measurement and the agent on each: how to reach them, but not what is measured."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import itertools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from hoplite import __version__
from hoplite.addresses import check_host, is_interface
from hoplite.errors import HopliteError, InvalidArgument
from hoplite.tools.channels import Channel, Lost, gather
from hoplite_bench import machine
from hoplite_bench.agent import MARK
from hoplite_bench.places import python_path
from hoplite_bench.systems.base import Host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.environments import Environments
    from hoplite_bench.lab import Lab

# Includes a login by ssh and the start of an interpreter, on a machine with two cores and sixteen hosts.
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0
# Installation of a system, on all hosts at once.
PREPARE_TIMEOUT_S = 900.0
# Time between an agent's last reply and the end of the command that reached it, whose output may contain the reason.
LAST_WORDS_S = 1.0


@dataclasses.dataclass(frozen=True)
class Network:
    """The hosts and network of a measurement.

    Attributes:
        hosts: the participants, in order of rank.
        rsh: an executable that takes a host's name and a command, like ssh.
        control: this machine's address, to which ranks connect; empty with a shared clock, where a Unix socket is used.
        shared_clock: whether all hosts share one monotonic clock and one file system, like those of a lab.
        cidr: network of the hosts, "10.77.0.0/16"; empty if unknown.
        rate: rate of a link in bit/s, or of one connection if that is limited to less; 0 if unknown.
        facts: description of the network for the rows.
        topology: racks and pods, as in a topology file; None if unknown, or if all hosts are in one rack.
        transports: "tcp" if all systems must use TCP on the measured network; "own" if each uses what it chooses, such
            as shared memory between the ranks of one machine.
    """

    hosts: Sequence[Host]
    rsh: Path
    control: str
    shared_clock: bool
    cidr: str
    rate: int
    facts: dict[str, Any]
    topology: dict[str, Any] | None = None
    transports: str = "tcp"


class AgentFailed(HopliteError):
    """An agent could not execute a request; the message names the host."""


class Agents:
    """One agent at each address, for the duration of a `with` block; processes that agents started end with it.

    Hosts with one address share an agent, so that processor time and memory of their processes count once.

    Args:
        network: the network.

    Attributes:
        hosts: the first host at each address of the network, in order.
        hello: first reply of each agent.
        machine: description of the first host; "others" lists differences of the other hosts, if there are any.
        build: build of hoplite on the first host: release or debug.

    Raises:
        AgentFailed: a host can't be reached, has no hoplite at the same path, or has another version.
    """

    def __init__(self, network: Network) -> None:
        at: dict[str, Host] = {}
        for host in network.hosts:
            at.setdefault(host.address, host)
        self.hosts = list(at.values())
        self._addresses = list(at)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors: list[IO[bytes]] = []
        self._channels: list[Channel] = []
        self._numbers = itertools.count()
        # Uses only words that non-POSIX shells accept too. -P keeps Python from importing modules from the folder in
        # which it starts.
        path = f"PYTHONPATH={python_path()}"
        command = shlex.join(["exec", "env", path, sys.executable, "-P", "-m", "hoplite_bench.agent"])
        try:
            for host in self.hosts:
                errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the agent lives
                self._errors.append(errors)
                try:
                    process = subprocess.Popen(
                        [network.rsh, host.name, command],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        # Ctrl-C goes to the bench, which then ends everything in order.
                        start_new_session=True,
                    )
                except OSError as error:
                    raise AgentFailed(
                        f"can't start {network.rsh}, which reaches {host.name}: {error}; check free memory and the "
                        "limit of processes"
                    ) from None
                self._processes.append(process)
                assert process.stdin is not None
                assert process.stdout is not None
                self._channels.append(Channel(host.name, process.stdout.fileno(), process.stdin.fileno()))
            try:
                self.hello = self.all({"do": "hello"}, timeout_s=START_TIMEOUT_S)
            except AgentFailed as error:
                needs = f"install hoplite-bench {__version__} on each host, for the interpreter {sys.executable}"
                raise AgentFailed(f"{error}; check that `{network.rsh} HOST` works, and {needs}") from None
            if network.shared_clock:
                self.machine: dict[str, Any] = machine.facts()
                self.build = machine.build()
            else:
                self.machine, self.build = self._compare()
        except BaseException:
            self.close()
            raise

    def _compare(self) -> tuple[dict[str, Any], str]:
        told = self.all({"do": "machine"}, timeout_s=START_TIMEOUT_S)
        facts: dict[str, Any] = dict(told[0]["facts"])
        others = []
        for host, one in zip(self.hosts, told, strict=True):
            version = one["facts"]["version"]
            if version != __version__:
                raise AgentFailed(
                    f"{host.name} has hoplite {version}, this machine has {__version__}: install the same version"
                )
            if one["build"] != "release":
                raise AgentFailed(f"{host.name} has a {one['build']} build; run make build there")
            differs = [f"{name} {value}" for name, value in one["facts"].items() if value != facts[name]]
            if differs:
                others.append(f"{host.name} has {', '.join(differs)}")
        if others:
            facts["others"] = "; ".join(others)
        return facts, told[0]["build"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def all(self, request: dict[str, Any], *, timeout_s: float = ANSWER_TIMEOUT_S) -> list[dict[str, Any]]:
        """Sends a request to every agent and returns all replies, in order of their first hosts."""
        return self._ask(list(range(len(self._channels))), request, timeout_s)

    def one(self, host: Host, request: dict[str, Any], *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Sends a request to the agent at the address of one host."""
        return self._ask([self._addresses.index(host.address)], request, timeout_s)[0]

    def prepare(self, system: str, environments: Environments) -> str:
        """Installs a system on all hosts, at the same path as on this machine.

        Returns:
            The first host on which it is unavailable, with the reason; empty if all have it.
        """
        root = str(environments.root)
        request = {"do": "prepare", "system": system, "root": root, "install": environments.install}
        answers = self.all(request, timeout_s=PREPARE_TIMEOUT_S)
        reasons = zip(self.hosts, (one.get("unavailable", "") for one in answers), strict=True)
        return next((f"{host.name}: {why}" for host, why in reasons if why), "")

    def _ask(self, numbers: list[int], request: dict[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        channels = [self._channels[number] for number in numbers]
        # A late reply to an earlier request must not be taken for a reply to this one.
        number = next(self._numbers)
        mark = f"{MARK} {number} "
        try:
            for channel in channels:
                channel.send(json.dumps({**request, "number": number}))
            lines = gather(channels, timeout_s, wanted=lambda line: line.startswith(mark))
            answers = [json.loads(line.removeprefix(mark)) for line in lines]
        except (Lost, json.JSONDecodeError, RecursionError) as error:
            names = error.names if isinstance(error, Lost) else ()
            said = "".join(f"; {line}" for line in self._last_words(names))
            raise AgentFailed(f"the request {request['do']!r} failed: {error}{said}") from None
        for channel, answer in zip(channels, answers, strict=True):
            if "error" in answer:
                raise AgentFailed(f"the request {request['do']!r} failed on {channel.name}: {answer['error']}")
        return answers

    def _last_words(self, names: Sequence[str]) -> list[str]:
        """The last line that each of the lost agents wrote to stderr."""
        deadline = time.monotonic() + LAST_WORDS_S
        said = []
        for host, process, errors in zip(self.hosts, self._processes, self._errors, strict=True):
            if host.name in names:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
                errors.seek(0)
                lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
                said += [f"last output of {host.name}: {line!r}" for line in lines[-1:]]
        return said

    def close(self) -> None:
        """Ends all agents, which end the processes that they started."""
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
        for errors in self._errors:
            errors.close()


def of_lab(lab: Lab) -> Network:
    """Returns the network of a lab."""
    hosts = [Host(host.number, host.name, host.address, host.interface) for host in lab.hosts]
    topology = lab.topology() if len(lab.racks) > 1 else None
    # Without the lab's name, which carries no information, and without absent facts.
    told = {name: value for name, value in lab.facts().items() if name != "name" and value is not None}
    facts = {"kind": "lab", **told}
    return Network(
        hosts,
        lab.agent,
        "",
        shared_clock=True,
        cidr=lab.network,
        rate=min(facts["rate"], facts.get("flow_cap", facts["rate"])),
        facts=facts,
        topology=topology,
    )


def of_file(path: Path, *, rsh: str = "ssh", rate: int = 0) -> Network:
    """Reads the hosts of a file: on each line a name that ssh reaches, and the address to measure if it differs.

    A third word is the network interface of that address. Text after "#" is a comment. The first host is the root of
    all operations.

    Args:
        path: the file.
        rsh: command that reaches a host, found on PATH.
        rate: rate of a host's link in bit/s, if known.

    Raises:
        InvalidArgument: the file has fewer than two hosts, a duplicate, an address that others can't reach, or a
            malformed line.
    """
    executable = shutil.which(rsh)
    if executable is None:
        raise InvalidArgument(f"the remote shell {rsh!r} was not found: install it or set --rsh")
    hosts: list[Host] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.partition("#")[0].split()
        if len(words) > 3:
            raise InvalidArgument(f"{path}:{number}: {line.strip()!r} is malformed: write name [address [interface]]")
        if not words:
            continue
        for word in words[:2]:
            check_host(f"{path}:{number}", word)
        if len(words) > 2 and not is_interface(words[2]):
            raise InvalidArgument(
                f"{path}:{number}: {words[2]!r} is not a network interface: write a name such as eth0"
            )
        try:
            address = socket.gethostbyname(words[1] if len(words) > 1 else words[0])
        except OSError as error:
            raise InvalidArgument(
                f"{path}:{number}: can't resolve the address of {words[0]!r}: {error.strerror}; "
                "write an IP address after the name"
            ) from None
        for other in hosts:
            if words[0] == other.name or address == other.address:
                raise InvalidArgument(
                    f"{path}:{number}: {words[0]} at {address} is a duplicate of {other.name} at {other.address}: "
                    "remove one"
                )
        hosts.append(Host(len(hosts), words[0], address, words[2] if len(words) > 2 else ""))
    if len(hosts) < 2:
        raise InvalidArgument(f"{path} lists {len(hosts)} hosts: list at least two, one per line")
    loopback = [host for host in hosts if ipaddress.ip_address(host.address).is_loopback]
    if loopback and len(loopback) < len(hosts):
        raise InvalidArgument(
            f"{path}: {loopback[0].name} resolves to the loopback address {loopback[0].address} on this machine, which "
            "other hosts can't reach: write its address on the network after its name"
        )
    own = _own_address(hosts)
    facts = {"kind": "hosts", "names": [host.name for host in hosts], "rate": rate, "clock": os.uname().nodename}
    return Network(hosts, Path(executable).absolute(), own, shared_clock=False, cidr="", rate=rate, facts=facts)


def _own_address(hosts: Sequence[Host]) -> str:
    """The address of this machine on the route to the first host that is another machine."""
    own = ""
    for host in hosts:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                # Sends nothing: the kernel only selects the source address.
                probe.connect((host.address, 9))
            except OSError as error:
                raise InvalidArgument(
                    f"no route to {host.name} at {host.address}: {error.strerror}; check the address"
                ) from None
            own = probe.getsockname()[0]
        if own != host.address:
            break
    return own

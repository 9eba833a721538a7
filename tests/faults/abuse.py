"""The cost of attacks without the token: transfers between two hosts, and a node that joins during the attack.

A lab has four hosts. Objects are sent from the first to the second, a node joins on the third, and the fourth attacks
the first two. Every byte is verified. This module knows only the name of an attack and what the attacker reports.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hoplite
from faults import content
from faults.attacker import ATTACKS, LOCAL
from faults.crew import Actor
from hoplite.capabilities import grant
from hoplite.errors import HopliteError
from hoplite_bench.lab import Lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from faults.crew import Reply
    from hoplite_bench.lab import Host

RATE = "1gbit"
ROUNDS = 3
# A call that takes longer counts as hanging.
LIMIT_S = 120.0
# A node must close an attacker's connections within this time. A handshake may take 5 s.
SETTLE_S = 10.0
# The object that programs on the attacked host may get.
KEPT = "kept/1"
MIB = 1 << 20
# Share of its speed that a transfer may lose while a program on the same host attacks the node.
LOST_MAX = 0.2


@dataclass(frozen=True)
class Figure:
    """The cost of one attack.

    Attributes:
        attack: its name.
        seconds: the slowest of several transfers during the attack, because an attack may end before the last one.
        undisturbed_s: the median of the same transfers before the attack.
        join_s: time from the start of a node that joins during the attack until its first call.
        tries: connections or nodes that the attacker opened.
        refused: connections that both nodes together rejected as strangers.
        descriptors: growth of the two nodes' open descriptors after the attack.
        memory: growth of their private memory after the attack, in bytes.
    """

    attack: str
    seconds: float
    undisturbed_s: float
    join_s: float
    tries: int
    refused: int
    descriptors: int
    memory: int

    def __str__(self) -> str:
        lost = self.seconds / self.undisturbed_s - 1
        return (
            f"{self.attack}: {self.seconds:.2f} s for {self.undisturbed_s:.2f} s ({lost:+.0%}), a node joined in "
            f"{self.join_s:.2f} s; {self.tries} tries, {self.refused} refused; {self.descriptors:+} descriptors, "
            f"{self.memory / MIB:+.1f} MiB"
        )


@contextlib.contextmanager
def attacking(
    attack: str,
    targets: Sequence[str],
    lure: Callable[[str], None],
    start: Callable[..., subprocess.Popen[str]],
    listen: str = "127.0.0.1",
) -> Iterator[dict[str, Any]]:
    """Runs an attacker until the end of the `with` block, and fills its report then.

    Args:
        attack: one of `ATTACKS`.
        targets: what it attacks.
        lure: makes an honest node join through an address, for an attack that records the node's messages.
        start: starts a program, as subprocess.Popen does.
        listen: the attacker's own address.
    """
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    env.pop("HOPLITE_TOKEN", None)
    words = [sys.executable, "-m", "faults.attacker", attack, *targets, "--listen", listen]
    process = start(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = {}
    with process:
        assert process.stdout is not None
        try:
            line = _parsed(process.stdout.readline())
            if "lure" in line:
                lure(line["lure"])
                line = _parsed(process.stdout.readline())
            yield report
            output, _ = process.communicate(timeout=LIMIT_S)
            report |= _parsed(output)
        finally:
            process.kill()


def _parsed(line: str) -> dict[str, Any]:
    if not line:
        raise HopliteError("the attacker ended by itself; its error is on standard error")
    return json.loads(line)  # type: ignore[no-any-return]


class Victims:
    """Two nodes that transfer objects, on the first two hosts of a lab."""

    def __init__(self, hosts: Sequence[Host], nbytes: int) -> None:
        self.hosts = hosts
        self.count = nbytes // content.DTYPE.itemsize
        self._capacity = f"{max(256, 4 * nbytes // MIB)}MiB"
        self._refs = itertools.count()
        self.actors: list[Actor] = []
        for host in hosts[:2]:
            self.actors.append(self.start(host, [actor.address for actor in self.actors]))

    def start(self, host: Host, join: list[str]) -> Actor:
        """Starts a node and waits until it has joined."""
        actor = Actor(host, join, capacity=self._capacity, detection_s=3.0)
        actor.wait_ready()
        return actor

    def close(self) -> None:
        """Stops both nodes."""
        for actor in self.actors:
            actor.close()

    def transfer(self) -> float:
        """Returns the seconds that one object takes from the first node to the second."""
        ref = f"bystander/{next(self._refs)}"
        near, far = self.actors
        answer(near.send("put", ref=ref, count=self.count, seed=1).result(LIMIT_S))
        begun = time.monotonic()
        got = answer(far.send("get", ref=ref, timeout=LIMIT_S, seeds=[1]).result(LIMIT_S))
        answer(near.send("delete", refs=[ref], timeout=LIMIT_S).result(LIMIT_S))
        return got.at - begun

    def join(self) -> float:
        """Returns the seconds that an honest node takes to start and joins."""
        actor = self.start(self.hosts[2], [actor.address for actor in self.actors])
        try:
            return actor.took_s
        finally:
            actor.send("leave", timeout=LIMIT_S).result(LIMIT_S)
            actor.close()

    def facts(self) -> list[dict[str, Any]]:
        """Returns the status of both nodes."""
        return [answer(actor.send("status").result(LIMIT_S)).facts for actor in self.actors]

    def settled(self, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the status once the descriptors are back to their number before, or after a timeout."""
        until = time.monotonic() + SETTLE_S
        while True:
            now = self.facts()
            grown = _more(now, before, "descriptors")
            if grown <= 0 or time.monotonic() > until:
                return now
            time.sleep(0.1)


def local_targets(socket: str, token: str) -> list[str]:
    """Returns what a program on the host attacks, and its capability."""
    return [socket, KEPT, grant(token, "kept/", verbs=["get"])]


def answer(reply: Reply) -> Reply:
    """Checks that a reply is a success, and returns it."""
    if reply.error or reply.facts.get("wrong"):
        raise HopliteError(f"a call failed: {reply.error} {reply.message} {reply.facts.get('wrong', '')}")
    return reply


def _more(now: list[dict[str, Any]], before: list[dict[str, Any]], what: str) -> int:
    """Returns the growth of a value at the node where it grew most."""
    return max(int(one[what] - other[what]) for one, other in zip(now, before, strict=True))


def measure(lab: Lab, attack: str, nbytes: int, rounds: int = ROUNDS) -> Figure:
    """Attacks two nodes of a lab of four hosts while objects are sent from one to the other.

    Raises:
        HopliteError: a byte was wrong, a call failed, or the attacker became a member.
    """
    victims = Victims(lab.hosts, nbytes)
    try:
        victims.transfer()
        undisturbed = statistics.median(victims.transfer() for _ in range(rounds))
        before = victims.facts()
        targets, attacker = [actor.address for actor in victims.actors], lab.hosts[3]
        if attack in LOCAL:
            targets, attacker = local_targets(victims.actors[0].socket, os.environ["HOPLITE_TOKEN"]), lab.hosts[0]
            answer(victims.actors[0].send("put", ref=KEPT, count=MIB, seed=2).result(LIMIT_S))
            before = victims.facts()

        def lure(address: str) -> None:
            victims.start(lab.hosts[2], [address]).close()

        with attacking(attack, targets, lure, attacker.popen, attacker.address) as report:
            seconds = max(victims.transfer() for _ in range(rounds))
            joined = victims.join()
        after = victims.settled(before)
        ids = {actor.id for actor in victims.actors}
        if report["joined"] or any(not set(facts["members"]) <= ids for facts in after):
            raise HopliteError(f"the attacker became a member: {report}, {after}")
        if report["kept"]:
            raise HopliteError(f"the attacker has kept {report['kept']} bytes of the node's memory: {report}")
        return Figure(
            attack,
            seconds,
            undisturbed,
            joined,
            report["tries"],
            sum(facts["strangers"] for facts in after) - sum(facts["strangers"] for facts in before),
            _more(after, before, "descriptors"),
            _more(after, before, "memory"),
        )
    finally:
        victims.close()


def main() -> None:
    """Measure, and print a line or a row of JSON for each attack."""
    parser = argparse.ArgumentParser(prog="python -m faults.abuse", description="Attacks without the token.")
    parser.add_argument("--mib", type=int, default=256, help="MiB of each object")
    parser.add_argument("--only", action="append", choices=ATTACKS, help="run this attack only; can be repeated")
    parser.add_argument("--json", action="store_true", help="print rows of JSON instead of text")
    options = parser.parse_args()
    if not 1 <= options.mib <= 2048:
        parser.error(f"--mib {options.mib}: objects of 1 to 2048 MiB fit two stores on one machine")
    os.environ["HOPLITE_TOKEN"] = hoplite.new_token()
    with Lab(hosts=4, rate=RATE) as lab:
        for attack in options.only or ATTACKS:
            figure = measure(lab, attack, options.mib * MIB)
            row = asdict(figure) | {"mib": options.mib, "rate": RATE}
            print(json.dumps(row) if options.json else figure, flush=True)  # noqa: T201 - the program's output
            if attack in LOCAL and figure.seconds > (1 + LOST_MAX) * figure.undisturbed_s:
                sys.exit(
                    f"{attack}: a program of the host has slowed the transfers of others by more than {LOST_MAX:.0%}"
                )


if __name__ == "__main__":
    main()

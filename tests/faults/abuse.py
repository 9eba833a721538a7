"""What processes without the token cost a cluster: its transfers between two hosts, and a node that joins meanwhile.

A lab has four hosts. Objects go from the first to the second, a node joins on the third, and the fourth attacks the
first two. Each byte is verified. Knows of an attack only its name, and what the attacker reports.
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
# What is not over by then hangs.
LIMIT_S = 120.0
# Within that a node closes what an attacker has left; a handshake may take 5 s.
SETTLE_S = 10.0
# An object that programs of the attacked host may get.
KEPT = "kept/1"
MIB = 1 << 20
# The share of its speed that a transfer may lose beside a program that attacks the node of its host.
LOST_MAX = 0.2


@dataclass(frozen=True)
class Figure:
    """What one attack cost.

    Attributes:
        attack: its name.
        seconds: of the slowest of some transfers: an attack may be over before the last.
        undisturbed_s: of the same before the attack, the median.
        join_s: of a node that joined meanwhile; from its start to its first call.
        tries: connections, or nodes, of the attacker.
        refused: connections that the nodes count as strangers, of both together.
        descriptors: how many more the two nodes have, when the attack is over.
        memory: bytes that they use more then, of their own.
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
    """Runs an attacker until the end of the `with`; what it reports is there then.

    Args:
        attack: one of `ATTACKS`.
        targets: what it attacks.
        lure: has an honest node join by an address, for an attack that records what such a node says.
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
            said = _said(process.stdout.readline())
            if "lure" in said:
                lure(said["lure"])
                said = _said(process.stdout.readline())
            yield report
            output, _ = process.communicate(timeout=LIMIT_S)
            report |= _said(output)
        finally:
            process.kill()


def _said(line: str) -> dict[str, Any]:
    if not line:
        raise HopliteError("the attacker ended by itself; its error is on standard error")
    return json.loads(line)  # type: ignore[no-any-return]


class Victims:
    """Two nodes between which objects go, on the first two hosts of a lab."""

    def __init__(self, hosts: Sequence[Host], nbytes: int) -> None:
        self.hosts = hosts
        self.count = nbytes // content.DTYPE.itemsize
        self._capacity = f"{max(256, 4 * nbytes // MIB)}MiB"
        self._refs = itertools.count()
        self.actors: list[Actor] = []
        for host in hosts[:2]:
            self.actors.append(self.start(host, [actor.address for actor in self.actors]))

    def start(self, host: Host, join: list[str]) -> Actor:
        """A node that has joined."""
        actor = Actor(host, join, capacity=self._capacity, detection_s=3.0)
        actor.wait_ready()
        return actor

    def close(self) -> None:
        """Ends both."""
        for actor in self.actors:
            actor.close()

    def transfer(self) -> float:
        """Seconds of one object from the first to the second."""
        ref = f"bystander/{next(self._refs)}"
        near, far = self.actors
        answer(near.tell("put", ref=ref, count=self.count, seed=1).result(LIMIT_S))
        begun = time.monotonic()
        got = answer(far.tell("get", ref=ref, timeout=LIMIT_S, seeds=[1]).result(LIMIT_S))
        answer(near.tell("delete", refs=[ref], timeout=LIMIT_S).result(LIMIT_S))
        return got.at - begun

    def join(self) -> float:
        """Seconds that an honest node takes to start and join."""
        actor = self.start(self.hosts[2], [actor.address for actor in self.actors])
        try:
            return actor.took_s
        finally:
            actor.tell("leave", timeout=LIMIT_S).result(LIMIT_S)
            actor.close()

    def facts(self) -> list[dict[str, Any]]:
        """What both nodes say of themselves."""
        return [answer(actor.tell("status").result(LIMIT_S)).facts for actor in self.actors]

    def settled(self, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same, when they have as many descriptors as before, or will have more."""
        until = time.monotonic() + SETTLE_S
        while True:
            now = self.facts()
            grown = _more(now, before, "descriptors")
            if grown <= 0 or time.monotonic() > until:
                return now
            time.sleep(0.1)


def local_targets(socket: str, token: str) -> list[str]:
    """What a program of the host attacks, and the capability that it has."""
    return [socket, KEPT, grant(token, "kept/", verbs=["get"])]


def answer(reply: Reply) -> Reply:
    """An answer, which must be right."""
    if reply.error or reply.facts.get("wrong"):
        raise HopliteError(f"a call failed: {reply.error} {reply.said} {reply.facts.get('wrong', '')}")
    return reply


def _more(now: list[dict[str, Any]], before: list[dict[str, Any]], what: str) -> int:
    """How much more there is of something at the node that has grown most."""
    return max(int(one[what] - other[what]) for one, other in zip(now, before, strict=True))


def measure(lab: Lab, attack: str, nbytes: int, rounds: int = ROUNDS) -> Figure:
    """Attacks two nodes of a lab of four hosts while objects go from one to the other.

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
            answer(victims.actors[0].tell("put", ref=KEPT, count=MIB, seed=2).result(LIMIT_S))
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
    """Measures, prints a line for each attack, and writes rows of JSON if asked to."""
    parser = argparse.ArgumentParser(prog="python -m faults.abuse", description="Attacks without the token.")
    parser.add_argument("--mib", type=int, default=256, help="MiB of each object")
    parser.add_argument("--only", action="append", choices=ATTACKS, help="one of the attacks; may be said again")
    parser.add_argument("--json", action="store_true", help="rows of JSON instead of text")
    options = parser.parse_args()
    if not 1 <= options.mib <= 2048:
        parser.error(f"--mib {options.mib}: objects of 1 to 2048 MiB fit two stores on one machine")
    os.environ["HOPLITE_TOKEN"] = hoplite.new_token()
    with Lab(hosts=4, rate=RATE) as lab:
        for attack in options.only or ATTACKS:
            figure = measure(lab, attack, options.mib * MIB)
            row = asdict(figure) | {"mib": options.mib, "rate": RATE}
            print(json.dumps(row) if options.json else figure, flush=True)  # noqa: T201 - it is what it is for
            if attack in LOCAL and figure.seconds > (1 + LOST_MAX) * figure.undisturbed_s:
                sys.exit(
                    f"{attack}: a program of the host has slowed the transfers of others by more than {LOST_MAX:.0%}"
                )


if __name__ == "__main__":
    main()

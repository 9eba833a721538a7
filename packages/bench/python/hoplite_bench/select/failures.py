"""Whether a system survives a peer that is killed or frozen: every other rank must get an answer in time.

Each case has its own group of processes: after two good rounds, one rank gets SIGKILL or SIGSTOP before it calls, or in
the middle of an operation. Timeouts of the measured system, where it has one, are half of the limit. The module does
not decide which system is chosen.
"""

from __future__ import annotations

import dataclasses
import selectors
import signal
import time
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite.tools.channels import Lost
from hoplite_bench.group import Group
from hoplite_bench.ranks.rank import parse
from hoplite_bench.select.plan import ARCHITECTURES
from hoplite_bench.select.verdict import Answer, Case, Verdict, judge, worst
from hoplite_bench.systems.base import Variant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite.tools.channels import Channel
    from hoplite_bench.hosts import Agents, Network
    from hoplite_bench.systems.base import System

SIGNALS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
LIMIT_S = 10.0
# Long enough that an operation has a middle in shared memory too.
NBYTES = 64 << 20
RANKS = 3
ROUND_TIMEOUT_S = 60.0
# The store of a group: inputs and results of all ranks, and those of a round that are not deleted yet.
SPARE_BYTES = 256 << 20
# When to strike, as shares of the seconds of a good round: earlier if the operation ended first.
SHARES = (0.25, 0.1, 0.02)
# A launcher notices a dead rank, and ends the others, some time after these have their error.
LINGER_S = 0.5

# All cases of an architecture. Rank 1 passes data on in trees and chains.
CASES = {
    "allreduce": tuple(Case("allreduce", victim, moment) for victim in (1, 0) for moment in ("before", "during")),
    "ps": tuple(
        Case(op, victim, moment)
        for op in ("gather", "broadcast")
        for victim in (1, 0)
        for moment in ("before", "during")
    ),
}


def few_cases(arch: str, ops: Sequence[str]) -> list[Case]:
    """The cases that show most, the most likely to hang first.

    The root fails before its call of each operation. In the last operation of the architecture, rank 1 fails too, and
    the root in the middle.

    Args:
        arch: "ps" or "allreduce".
        ops: operations.
    """
    last = ARCHITECTURES[arch][-1]
    roots = [Case(op, 0, "before") for op in (last, *(op for op in ops if op != last))]
    return [Case(last, 1, "before"), *roots, Case(last, 0, "during")]


def survives(
    network: Network,
    agents: Agents,
    system: System,
    *,
    how: str,
    arch: str = "ps",
    ranks: int = RANKS,
    limit_s: float = LIMIT_S,
    variant: Variant | None = None,
    cases: Sequence[Case] | None = None,
    nbytes: int = NBYTES,
) -> Verdict:
    """Checks a prepared system with one kind of failure; stops at the first case that is not safe.

    Args:
        network: the hosts; the first ones of them take part.
        agents: agents of these hosts.
        system: the system, which must be prepared.
        how: "killed" (SIGKILL) or "frozen" (SIGSTOP).
        arch: "ps" or "allreduce": which operations must survive.
        ranks: number of ranks; fewer if the network has fewer hosts.
        limit_s: seconds within which every other rank must answer. The system's own timeout is half of it.
        variant: variant of the system.
        cases: the cases; None means all of this arch.
        nbytes: size of each rank's array.

    Returns:
        The worst verdict; of equally bad ones, that which took longest.

    Raises:
        InvalidArgument: `how` or `arch` is unknown, fewer than two ranks, or the system has no process of its own for
            each rank.
        Unavailable: the system can't run on these hosts.
        GroupFailed: the system failed although no rank did.
    """
    if how not in SIGNALS:
        raise InvalidArgument(f"unknown failure {how!r}: choose killed or frozen")
    if arch not in CASES:
        raise InvalidArgument(f"unknown arch {arch!r}: choose from {', '.join(CASES)}")
    if system.driver:
        raise InvalidArgument(f"{system.name} has one driver for all ranks: check systems with a process for each rank")
    few = dataclasses.replace(network, hosts=list(network.hosts)[:ranks])
    if len(few.hosts) < 2:
        raise InvalidArgument(f"{len(few.hosts)} rank has no other to survive: use at least two")
    found: list[Verdict] = []
    for case in CASES[arch] if cases is None else cases:
        found.append(strike(few, agents, system, case, how=how, limit_s=limit_s, variant=variant, nbytes=nbytes))
        if not found[-1].safe:
            break
    return worst(found)


def strike(
    network: Network,
    agents: Agents,
    system: System,
    case: Case,
    *,
    how: str,
    limit_s: float = LIMIT_S,
    variant: Variant | None = None,
    nbytes: int = NBYTES,
    start_timeout_s: float | None = None,
) -> Verdict:
    """Runs one case, with all hosts of the network; see `survives`.

    An operation that ends before the failure shows nothing: the case is repeated with an earlier one. A group whose
    ranks have not all connected after `start_timeout_s` fails.
    """
    variant = variant or Variant()
    memory = system.memory(case.op, len(network.hosts), nbytes) + SPARE_BYTES
    for share in SHARES:
        group = Group(system, variant.group, network, agents, memory, timeout_s=limit_s / 2)
        group.start(start_timeout_s)
        try:
            found, late = _run(group, case, how, limit_s, variant.name, nbytes, share)
        finally:
            # Ends the frozen rank too.
            group.stop()
        if not late:
            break
    return found


def _run(
    group: Group, case: Case, how: str, limit_s: float, variant: str, nbytes: int, share: float
) -> tuple[Verdict, bool]:
    """Runs one case in a group; returns the verdict, and whether all ranks had finished before the failure."""
    for seed in (1, 2):
        # The first one opens connections.
        good = group.round(case.op, nbytes, variant=variant, seed=seed, timeout_s=ROUND_TIMEOUT_S, weigh=False)
    go = group.prepare(case.op, nbytes, variant=variant, seed=3, timeout_s=ROUND_TIMEOUT_S)
    channels = dict(enumerate(group.channels))
    victim = channels.pop(case.victim)
    group.signal(case.victim, 0)
    if case.moment == "before":
        group.signal(case.victim, SIGNALS[how])
    answers = _send(channels, go)
    if case.moment == "during":
        _send({case.victim: victim}, go)
        time.sleep(good.seconds * share)
        group.signal(case.victim, SIGNALS[how])
    began = time.monotonic()
    answers |= _answers({rank: one for rank, one in channels.items() if rank not in answers}, limit_s)
    done = {rank: channels[rank] for rank, answer in answers.items() if answer.word == "done"}
    late = len(done) == len(channels) and "done" in (one.word for one in _answers({0: victim}, 0.0).values())
    waited = _last(answers, began) - began
    # Only now: a rank whose part ended early, such as that of a sender, would release what others still need.
    began = time.monotonic()
    checked = _send(done, "check")
    checked |= _answers({rank: one for rank, one in done.items() if rank not in checked}, limit_s)
    waited = max(waited, _last(checked, began) - began)
    final = {rank: answer for rank, answer in answers.items() if rank not in done} | checked
    living = {rank: channels[rank] for rank, answer in final.items() if answer.word != "ended"}
    final |= {rank: one for rank, one in _answers(living, LINGER_S).items() if one.word == "ended"}
    ended = any(one.word == "ended" for one in final.values())
    output = group.last_output(group.pids[case.victim]) if ended else []
    return judge(case, how, sorted(channels), final, limit_s=limit_s, waited_s=waited, output=output), late


def _send(channels: Mapping[int, Channel], line: str) -> dict[int, Answer]:
    """Sends a line to some ranks; returns those that have ended."""
    ended = {}
    for rank, channel in channels.items():
        try:
            channel.send(line)
        except Lost:
            ended[rank] = Answer("ended", {}, time.monotonic())
    return ended


def _answers(channels: Mapping[int, Channel], limit_s: float) -> dict[int, Answer]:
    """Waits for one answer of each rank; ranks without one within the limit are not in the result."""
    found: dict[int, Answer] = {}
    deadline = time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        for rank, channel in channels.items():
            selector.register(channel.reader, selectors.EVENT_READ, (rank, channel))
        while len(found) < len(channels):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                break
            for key, _ in ready:
                rank, channel = key.data
                try:
                    channel.read()
                except Lost:
                    found[rank] = Answer("ended", {}, time.monotonic())
                else:
                    if (line := channel.line()) is None:
                        continue
                    # An empty line is not valid either.
                    word, fields = parse(line.strip() or "nothing")
                    found[rank] = Answer(word, fields, time.monotonic())
                selector.unregister(channel.reader)
    return found


def _last(answers: Mapping[int, Answer], began: float) -> float:
    return max([began, *(one.at for one in answers.values())])

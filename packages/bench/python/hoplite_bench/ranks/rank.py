"""How a participant is told what to do: lines of text over one connection to the bench.

A line is a word and then key=value, percent-encoded, with spaces between, so that a C++ program reads it as easily:

    rank -> bench   hello    rank=3 version=5.0.2            once; a driver that speaks for all ranks says rank=all
    bench -> rank   prepare  op=reduce bytes=4096 variant=default round=7 seed=7 arrival=0 inputs=1
    rank -> bench   ready    token=...                       inputs are made, memory is warm; what others need to know
    bench -> rank   go       at=81723123123 tokens=a,b,c     all tokens in order of rank
    rank -> bench   done     start=... end=...               nanoseconds of the monotonic clock of this host
    bench -> rank   check                                    verify what came out, then let it all go
    rank -> bench   checked  wrong=... disturbed=...         empty if all is right, and nothing had to begin again
    rank -> bench   failed   why=...                         instead of any answer; the round is over for this rank

`go` says when rank 0 calls: at that instant of the monotonic clock, or at once if it is over or 0. Each other rank
calls `arrival` nanoseconds after the one before it; a driver sees to that itself. The connection's end is the rank's.
In a round trip rank 0 calls a little later, so that rank 1 is there: else what rank 1 comes too late would be cut off
the time. Knows neither what is measured nor how often.

The programs of this folder run in environments of their own, where hoplite is not installed: they import the standard
library, NumPy, what they measure and each other, by the name of the file; so the folder is no package.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
import time
import traceback
from urllib.parse import quote, unquote

# How much later the first calls, which the second waits for: some turns of a process on a busy processor.
HEAD_START_NS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Task:
    """One round of one operation.

    Attributes:
        op: rtt, broadcast, gather, reduce or allreduce. The root of all is rank 0; rtt is between ranks 0 and 1.
        nbytes: of the array of each rank; a multiple of 4.
        variant: how the system is to do it; "default" is its own choice.
        round: never the same twice in a connection.
        seed: of the content.
        ranks: how many take part.
        rank: which of them this is; -1 of a driver that speaks for all.
        arrival_ns: nanoseconds between the call of one rank and the next's.
        inputs: arrays of each rank that go into a sum.
    """

    op: str
    nbytes: int
    variant: str
    round: int
    seed: int
    ranks: int
    rank: int
    arrival_ns: int
    inputs: int = 1


class Rank:
    """What a system's program fills in; an exception of any of these ends the round with its message.

    Attributes:
        leads: whether, in every operation, rank 0 begins what the others wait for, as a stream's sender does.
    """

    leads = False

    def prepare(self, task: Task) -> str:
        """Makes the inputs and touches all memory that the operation writes; what it returns is told to all ranks."""
        raise NotImplementedError

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:
        """Does the operation.

        Returns:
            When it was called and when it was done, nanoseconds of the monotonic clock, if it took these itself, as a
            driver of many does; it then also waits for `at`, and lets rank after rank call, itself.
        """
        raise NotImplementedError

    def check(self, task: Task) -> str:
        """Says what is wrong with what came out, or nothing; then frees what the round held."""
        raise NotImplementedError

    def disturbed(self) -> str:
        """Says what had to begin again, failed or was refused since this was asked before; a system may not know."""
        return ""


def parse(line: str) -> tuple[str, dict[str, str]]:
    """Reads a line."""
    word, *pairs = line.split()
    return word, {key: unquote(value) for key, _, value in (pair.partition("=") for pair in pairs)}


def write(word: str, **fields: object) -> str:
    """Writes a line, without its end."""
    return " ".join([word, *(f"{key}={quote(str(value), safe=',:/')}" for key, value in fields.items())])


def connect(address: str) -> socket.socket:
    """Connects to "unix:/path" or "host:port"."""
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address.removeprefix("unix:"))
        return connection
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def arguments() -> argparse.ArgumentParser:
    """The options that every program of ranks takes; a launcher that numbers its own ranks leaves out --rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True, help="where the bench listens: unix:/path or host:port")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--rank", type=int, default=-1)
    return parser


def sleep_until(at: int) -> None:
    """Waits for an instant of the monotonic clock, in nanoseconds, without spinning."""
    while (left := at - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def serve(rank: Rank, *, control: str, number: int, ranks: int, version: str) -> None:
    """Does what the bench says until it hangs up.

    Args:
        rank: what to do.
        control: where the bench listens.
        number: of this rank, or -1 for a driver that speaks for all.
        ranks: how many there are.
        version: of the system, for the report.
    """
    with connect(control) as connection, connection.makefile("r") as lines:

        def say(word: str, **fields: object) -> None:
            connection.sendall((write(word, **fields) + "\n").encode())

        say("hello", rank="all" if number < 0 else number, version=version, pid=os.getpid())
        task: Task | None = None
        for line in lines:
            word, fields = parse(line)
            try:
                if word == "prepare":
                    task = Task(
                        op=fields["op"],
                        nbytes=int(fields["bytes"]),
                        variant=fields["variant"],
                        round=int(fields["round"]),
                        seed=int(fields["seed"]),
                        ranks=ranks,
                        rank=number,
                        arrival_ns=int(fields["arrival"]),
                        inputs=int(fields.get("inputs", 1)),
                    )
                    say("ready", token=rank.prepare(task))
                elif word == "go":
                    assert task is not None, "go came before prepare"
                    tokens = fields["tokens"].split(",")
                    at = int(fields["at"]) or time.monotonic_ns()
                    if number >= 0:
                        first = number == 0 and (rank.leads or task.op == "rtt")
                        sleep_until(at + number * task.arrival_ns + first * HEAD_START_NS)
                    start = time.monotonic_ns()
                    times = rank.run(task, tokens, at)
                    end = time.monotonic_ns()
                    start, end = times or (start, end)
                    say("done", start=start, end=end)
                elif word == "check":
                    assert task is not None, "check came before prepare"
                    say("checked", wrong=rank.check(task), disturbed=rank.disturbed())
                else:
                    raise ValueError(f"the bench said {word!r}, which this rank does not know")
            except Exception as error:  # noqa: BLE001 - whatever a system raises is told, and the next round may go well
                traceback.print_exc()
                say("failed", why=f"{type(error).__name__}: {error}"[:2000])

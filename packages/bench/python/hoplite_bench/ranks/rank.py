"""The protocol between the bench and a participant: lines of text over one connection.

A line is a word followed by key=value pairs, percent-encoded and separated by spaces, so that C++ programs can parse
it:

    rank -> bench   hello    rank=3 version=5.0.2 pid=71     once; a driver that represents all ranks sends rank=all
    bench -> rank   prepare  op=reduce bytes=4096 variant=default round=7 seed=7 arrival=0 inputs=1
    rank -> bench   ready    token=...                       inputs exist, memory is warm; data for the other ranks
    bench -> rank   go       at=81723123123 tokens=a,b,c     all tokens in order of rank
    rank -> bench   done     start=... end=... part_X=...    nanoseconds of the monotonic clock of this host; duration
                                                             in nanoseconds of each part of the operation, if known
    bench -> rank   check                                    verify the result, then release all memory
    rank -> bench   checked  wrong=... disturbed=... extra=0 empty if the result is correct and nothing was retried;
                                                             bytes of memory that the operation used temporarily
    rank -> bench   failed   why=...                         instead of any other reply; ends the round for this rank

`go` contains the time at which rank 0 calls: an instant of the monotonic clock; immediately if it is 0 or in the past.
Each other rank calls `arrival` nanoseconds after the previous one; a driver does that itself. A rank ends when the
connection ends. In a round trip, rank 0 calls a little later, so that rank 1 is ready: otherwise the delay of rank 1
would be missing in the time. This module does not depend on what is measured, or how often.

The programs in this folder run in their own environments, in which hoplite is not installed. They import the standard
library, NumPy, the measured system and each other by file name, so the folder is not a package.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
import time
import traceback
from urllib.parse import quote, unquote

# Delay of the first rank's call, so that the second rank is ready: several scheduler time slices on a busy processor.
HEAD_START_NS = 1_000_000
# Variable with a timeout in seconds, for programs that pass one to the measured system.
TIMEOUT_VARIABLE = "_HOPLITE_BENCH_TIMEOUT_S"

# Start of the names of fields with the duration of a part.
PART = "part_"


@dataclasses.dataclass(frozen=True)
class Task:
    """One round of one operation.

    Attributes:
        op: rtt, broadcast, gather, reduce, allreduce or allgather; for PyTorch also ddp, train-ps and train-allreduce.
            The root of all is rank 0; rtt is between ranks 0 and 1.
        nbytes: size of each rank's array; a multiple of 4.
        variant: variant of the system; "default" is its own choice.
        round: unique within a connection.
        seed: seed of the content.
        ranks: number of participants.
        rank: number of this participant; -1 for a driver that represents all.
        arrival_ns: nanoseconds between the calls of successive ranks.
        inputs: arrays that each rank adds to a sum.
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
    """The interface of a system's program; an exception in a method ends the round with its message.

    Attributes:
        leads: whether rank 0 starts what the others wait for in every operation, like the sender of a stream.
    """

    leads = False

    def prepare(self, task: Task) -> str:
        """Creates the inputs and touches all memory that the operation writes; returns a token for all ranks."""
        raise NotImplementedError

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:
        """Runs the operation.

        Returns:
            Start and end in nanoseconds of the monotonic clock, if the program measured them itself, as a driver of
            many ranks does. Such a driver also waits for `at`, and makes the ranks call one after another.
        """
        raise NotImplementedError

    def check(self, task: Task) -> str:
        """Returns the error in the result, or an empty text; then releases the memory of the round."""
        raise NotImplementedError

    def disturbed(self) -> str:
        """Returns what was retried, failed or refused since the last call; systems without such data return nothing."""
        return ""

    def extra(self) -> int:
        """Returns the most memory, in bytes, that the last operation used beyond that before it; 0 if not measured."""
        return 0

    def parts(self, took_ns: int) -> dict[str, int]:  # noqa: ARG002 - for a system without such data
        """Returns the nanoseconds of each part of the last operation, which took `took_ns`; empty if not measured."""
        return {}


def parse(line: str) -> tuple[str, dict[str, str]]:
    """Parses a line."""
    word, *pairs = line.split()
    return word, {key: unquote(value) for key, _, value in (pair.partition("=") for pair in pairs)}


def write(word: str, **fields: object) -> str:
    """Formats a line, without its end."""
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
    """The options of every rank program; launchers that number their own ranks omit --rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True, help="address of the bench: unix:/path or host:port")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--rank", type=int, default=-1)
    return parser


def timeout_s(default: float) -> float:
    """The timeout of the measured system's calls in seconds, if the bench sets one; else the default."""
    return float(os.environ.get(TIMEOUT_VARIABLE) or default)


def sleep_until(at: int) -> None:
    """Waits for an instant of the monotonic clock, in nanoseconds, without spinning."""
    while (left := at - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def serve(rank: Rank, *, control: str, number: int, ranks: int, version: str) -> None:
    """Executes requests of the bench until it disconnects.

    Args:
        rank: executes the requests.
        control: address of the bench.
        number: number of this rank, or -1 for a driver that represents all.
        ranks: number of ranks.
        version: version of the system, for the report.
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
                    assert task is not None, "the request go arrived before prepare"
                    tokens = fields["tokens"].split(",")
                    at = int(fields["at"]) or time.monotonic_ns()
                    if number >= 0:
                        first = number == 0 and (rank.leads or task.op == "rtt")
                        sleep_until(at + number * task.arrival_ns + first * HEAD_START_NS)
                    start = time.monotonic_ns()
                    times = rank.run(task, tokens, at)
                    end = time.monotonic_ns()
                    start, end = times or (start, end)
                    parts = rank.parts(end - start)
                    say("done", start=start, end=end, **{f"{PART}{name}": took for name, took in parts.items()})
                elif word == "check":
                    assert task is not None, "the request check arrived before prepare"
                    say("checked", wrong=rank.check(task), disturbed=rank.disturbed(), extra=rank.extra())
                else:
                    raise ValueError(f"unknown request {word!r}")
            except Exception as error:  # noqa: BLE001 - any error of a system is reported; the next round may succeed
                traceback.print_exc()
                say("failed", why=f"{type(error).__name__}: {error}"[:2000])

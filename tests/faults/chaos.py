"""Random kills, freezes, network cuts, leaves and joins while broadcasts, reduces and deletions run and are verified.

The allowed results of an operation depend on the faults during it. Without a fault, or long after one, every result
must be right. During a fault, a result is right or an error that names what a fault can cost. A call that hangs is
always wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from faults.crew import Crew, LeftBehind, Reply
from hoplite.errors import HopliteError
from hoplite_bench.lab import Lab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from faults.crew import Actor
    from hoplite_bench.lab.hosts import Direction

HOSTS = 5
DETECTION_S = 1.0
# Elements: 1 KiB, 128 KiB, and larger objects of up to 16 MiB, so that faults hit them in transfer.
SIZES = (2**7, 2**14, 2**19, 2**21)
# Slow enough that most large transfers meet a fault.
RATE = "300mbit"
WORKERS = 3

# Timeout of a call, and the time that it may take beyond the timeout: a paused host answers later.
CALL_S = 20.0
SLACK_S = 6.0
FREEZE_MAX_S = 4.0
# Two hosts that can reach each other only through other hosts: time until each has found a relay, and some more.
PART_MAX_S = 10.0

# Share of the faults that are rolling restarts of all nodes.
ROLLING = 0.1

# Operations without a fault before the resources of nodes are measured.
WARM_UP_S = 20.0

# Time after the end of a fault in which its errors can still occur: nodes reconnect within this time.
AFTER_S = 15.0

# What a fault can cost a call: the copy, the node or the process. A node that leaves in order costs no copy.
EXCUSED = {"ObjectLost", "NodeDown", "ActorDied"}
EXCUSED_BY_LEAVING = EXCUSED - {"ObjectLost"}
# Nodes recover from this within the detection timeout, so no node is declared dead.
SHORT_S = DETECTION_S / 2


@dataclass
class Tally:
    """Counts of the events so far.

    Attributes:
        operations: by kind and result.
        faults: by kind.
        wrong: descriptions of failures that no fault explains.
    """

    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Chaos:
    """Workers that run operations while one thread injects faults."""

    def __init__(self, crew: Crew, seed: int, *, spared: int = 0, is_verbose: bool = False) -> None:
        self.crew = crew
        self._spared = range(spared)
        self._is_verbose = is_verbose
        self._begun = time.monotonic()
        self.tally = Tally()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._end = 0.0
        self._troubles: list[Trouble] = []
        self._count = 0
        # Hosts that a fault is stopping. No operation starts on them.
        self._broken: set[int] = set()
        # Objects deleted during a partition: such a deletion reaches only the nodes of its side.
        self._deleted_in_part: list[str] = []
        # The events of each operation, by the common prefix of its objects' names.
        self._histories: dict[str, list[str]] = {}

    def run(self, seconds: float, *, is_calm: bool = False) -> Tally:
        """Runs for `seconds` and until all started operations have ended. If `is_calm`, injects no faults."""
        self._end = time.monotonic() + seconds
        seeds = [self._random.getrandbits(32) for _ in range(WORKERS)]
        workers = [threading.Thread(target=self._work, args=(random.Random(seed),)) for seed in seeds]
        for worker in workers:
            worker.start()
        try:
            if not is_calm:
                self._break_things()
        except BaseException:
            # End the workers.
            with self._lock:
                self.tally.wrong.append("the fault injection failed")
            raise
        finally:
            for worker in workers:
                worker.join()
        return self.tally

    def _is_over(self) -> bool:
        return time.monotonic() > self._end or bool(self.tally.wrong)

    # Operations.

    def _work(self, chance: random.Random) -> None:
        while not self._is_over():
            operation = chance.choice([self._broadcast, self._broadcast, self._reduce, self._allreduce])
            begun = time.monotonic()
            try:
                ended = operation(chance)
            except (HopliteError, TimeoutError) as error:
                ended = f"wrong: {error}"
            with self._lock:
                name = operation.__name__.strip("_")
                self.tally.operations[f"{name} {ended.partition(':')[0]}"] += 1
                if ended.startswith("wrong"):
                    self.tally.wrong.append(f"{name} that began {time.monotonic() - begun:.1f} s ago: {ended}")

    def _broadcast(self, chance: random.Random) -> str:
        """Puts an object on one node and gets it on others."""
        count, seed = chance.choice(SIZES), chance.randrange(1000)
        source, *receivers = self._choose(chance, chance.randint(2, HOSTS))
        ref = self._name()
        begun = time.monotonic()
        makes = [source.send("put", ref=ref, count=count, seed=seed)]
        gets = [actor.send("get", ref=ref, timeout=CALL_S, seeds=[seed]) for actor in receivers]
        return self._judged(begun, makes, gets, [ref], chance)

    def _reduce(self, chance: random.Random) -> str:
        """Puts inputs on several nodes, and reduces the first of them on one node."""
        caller, *_ = self._choose(chance, 1)
        return self._fold(chance, caller, [])

    def _allreduce(self, chance: random.Random) -> str:
        """Puts inputs on several nodes, reduces on one, and gets the result on all while it grows."""
        caller, *receivers = self._choose(chance, HOSTS)
        return self._fold(chance, caller, receivers)

    def _fold(self, chance: random.Random, caller: Actor, receivers: list[Actor]) -> str:
        count = chance.choice(SIZES)
        sources = self._choose(chance, chance.randint(2, HOSTS))
        ref = self._name()
        seeds = {f"{ref}-{number}": chance.randrange(1000) for number in range(len(sources))}
        wanted = chance.randint(1, len(seeds))
        begun = time.monotonic()
        makes = [
            actor.send("put", ref=of, count=count, seed=seed)
            for actor, (of, seed) in zip(sources, seeds.items(), strict=True)
        ]
        fold = {"refs": list(seeds), "count": wanted, "name": ref, "timeout": CALL_S, "seeds": seeds}
        makes.append(caller.send("reduce", **fold))
        gets = [actor.send("get", ref=ref, timeout=CALL_S) for actor in receivers]
        return self._judged(begun, makes, gets, [ref, *seeds], chance)

    def _judged(
        self,
        begun: float,
        makes: list[Future[Reply]],
        gets: list[Future[Reply]],
        refs: list[str],
        chance: random.Random,
    ) -> str:
        """Waits for the calls, deletes their objects, and returns the result in words."""
        replies = []
        for call in [*makes, *gets]:
            try:
                replies.append(call.result(max(0.0, begun + CALL_S + SLACK_S - time.monotonic())))
            except NotYet:
                return f"wrong: a call has not ended after {CALL_S + SLACK_S:g} s"
        self._note(refs[0], f"began at {begun - self._begun:.3f} s; " + self._calls(replies))
        text = self._wrong(begun, replies, replies[: len(makes)])
        if text:
            text += "; " + self._calls(replies)
        deleted = self._delete(refs, chance)
        if self.excused_since(begun):
            with self._lock:
                self._deleted_in_part += refs
            self._note(refs[0], "must be deleted again after the fault")
        errors = sorted({reply.error for reply in replies if reply.error})
        return text or deleted or (f"failed ({', '.join(errors)})" if errors else "right")

    def _calls(self, replies: list[Reply]) -> str:
        ends = [
            f"{reply.error or 'right'} {reply.message}".strip() + f" at {self._since(reply.at)}" for reply in replies
        ]
        return f"the calls: {', '.join(ends)}"

    def _since(self, at: float) -> str:
        return f"{at - self._begun:.3f} s"

    def _note(self, ref: str, text: str) -> None:
        with self._lock:
            self._histories.setdefault(_stem(ref), []).append(text)

    def history(self, refs: Iterable[str]) -> Iterable[str]:
        """Yields what happened to the operations that created these objects."""
        for stem in sorted({_stem(ref) for ref in refs}):
            yield f"{stem}: {'; '.join(self._histories.get(stem, ['no finished operation']))}"

    def _wrong(self, begun: float, replies: list[Reply], makes: list[Reply]) -> str:
        excused = self.excused_since(begun)
        if any(reply.error in excused for reply in makes):
            # A get of an object whose put failed times out, or the object was announced before it was lost.
            excused = excused | {"Timeout", "ObjectLost"}
        for reply in replies:
            if reply.facts.get("wrong"):
                return f"wrong: {reply.facts['wrong']}"
            if reply.error and reply.error not in excused:
                return f"wrong: {reply.error}: {reply.message}"
        firsts = {reply.facts["first"] for reply in replies if "first" in reply.facts}
        return f"wrong: results {sorted(firsts)} of one reduce" if len(firsts) > 1 else ""

    def _delete(self, refs: list[str], chance: random.Random) -> str:
        """Deletes with retries: a fault may cost a reply, but never a deletion."""
        until = time.monotonic() + 3 * (CALL_S + SLACK_S)
        while True:
            actor, *_ = self._choose(chance, 1)
            begun = time.monotonic()
            try:
                reply = actor.send("delete", refs=refs, timeout=CALL_S).result(CALL_S + SLACK_S)
            except NotYet:
                return "wrong: a deletion has not ended"
            how = reply.error or "done"
            self._note(refs[0], f"deletion by {actor.host.name} {how}, {self._since(begun)} to {self._since(reply.at)}")
            if not reply.error:
                return ""
            if time.monotonic() > until:
                return f"wrong: not deleted: {reply.error}: {reply.message}"

    def _name(self) -> str:
        with self._lock:
            self._count += 1
            return f"chaos{self._count}/x"

    def _choose(self, chance: random.Random, count: int) -> list[Actor]:
        """Picks up to `count` running actors in random order, at least one."""
        while True:
            with self._lock:
                up = [
                    actor for number, actor in enumerate(self.crew.actors) if actor.is_up and number not in self._broken
                ]
            if up:
                return chance.sample(up, min(count, len(up)))
            if self.tally.wrong:
                raise HopliteError("no actor is running any more")
            time.sleep(0.01)

    # Faults.

    def _break_things(self) -> None:
        pauses: list[Callable[[int], str]] = [self._freeze, self._cut, self._part]
        if shutil.which("ss"):
            pauses.append(self._reset)
        breaks = [self._kill, self._leave, *pauses]
        while not self._is_over():
            time.sleep(self._random.uniform(0.2, 3.0))
            if self._random.random() < 0.2:
                # Longer than the time in which a past fault excuses errors.
                time.sleep(AFTER_S)
            hosts = self._random.sample(range(HOSTS), self._random.choice([1, 1, 1, 2]))
            is_rolling = self._random.random() < ROLLING
            chosen = [(self._random.choice(pauses if host in self._spared else breaks), host) for host in hosts]
            trouble = Trouble(EXCUSED_BY_LEAVING if is_rolling else EXCUSED)
            if not is_rolling and {how for how, _ in chosen} == {self._part}:
                # All traffic continues through relays.
                trouble.excused = set()
            with self._lock:
                self._troubles.append(trouble)
            begun = time.monotonic()
            try:
                if is_rolling:
                    self._roll()
                else:
                    self._break_at_once(chosen)
                is_short = time.monotonic() - begun < SHORT_S
                self.undo_faults()
                if is_short and not {self._kill, self._leave} & {how for how, _ in chosen}:
                    trouble.excused = set()
            except (HopliteError, TimeoutError) as error:
                with self._lock:
                    self.tally.wrong.append(f"after {', '.join(how.__name__ for how, _ in chosen)}: {error}")
            with self._lock:
                trouble.over_at = time.monotonic() + AFTER_S
                self._broken.clear()

    def _break_at_once(self, breaks: list[tuple[Callable[[int], str], int]]) -> None:
        with ThreadPoolExecutor(len(breaks)) as pool:
            for broken in [pool.submit(self._broken_by, *args) for args in breaks]:
                broken.result()

    def _roll(self) -> None:
        """Restarts all nodes that are not spared, one after another, as an upgrade does."""
        for number in range(len(self._spared), HOSTS):
            self._broken_by(self._leave, number)
            self.crew.restart(number).wait_ready()
            with self._lock:
                self._broken.discard(number)
        with self._lock:
            self.tally.faults["rolling restart"] += 1

    def undo_faults(self) -> None:
        """Undoes all faults, and deletes the objects that could not be deleted everywhere during them.

        Raises:
            HopliteError: the repair or a deletion failed.
        """
        self.crew.repair()
        with self._lock:
            refs, self._deleted_in_part = self._deleted_in_part, []
        if refs:
            begun = time.monotonic()
            for stem in {_stem(ref) for ref in refs}:
                self._note(stem, f"deleted again by node0 at {self._since(begun)}")
            reply = self.crew.actors[0].send("delete", refs=refs, timeout=CALL_S).result(CALL_S + SLACK_S)
            if reply.error:
                raise HopliteError(f"{len(refs)} objects can't be deleted: {reply.message}")

    def _broken_by(self, how: Callable[[int], str], host: int) -> None:
        begun = time.monotonic()
        what = how(host)
        with self._lock:
            self.tally.faults[what] += 1
        if self._is_verbose:
            ended = time.monotonic()
            sys.stdout.write(f"{begun - self._begun:8.3f} s: node{host} {what} for {ended - begun:.3f} s\n")
            sys.stdout.flush()

    def _kill(self, number: int) -> str:
        with self._lock:
            self._broken.add(number)
        self.crew.lab.hosts[number].kill()
        time.sleep(self._random.uniform(0, 2))
        return "killed"

    def _freeze(self, number: int) -> str:
        self.crew.lab.hosts[number].freeze()
        time.sleep(self._random.uniform(0.05, FREEZE_MAX_S))
        self.crew.lab.hosts[number].thaw()
        return "frozen"

    def _cut(self, number: int) -> str:
        direction: Direction = self._random.choice(["both", "in", "out"])
        self.crew.lab.hosts[number].cut(direction)
        time.sleep(self._random.uniform(0.05, FREEZE_MAX_S))
        self.crew.lab.hosts[number].heal()
        return f"cut ({direction})"

    def _part(self, number: int) -> str:
        """Disconnects the host from one other; all other hosts reach both."""
        direction: Direction = self._random.choice(["both", "in", "out"])
        other = self.crew.lab.hosts[(number + self._random.randrange(1, HOSTS)) % HOSTS]
        self.crew.lab.hosts[number].cut(direction, other)
        time.sleep(self._random.uniform(0.05, PART_MAX_S))
        self.crew.lab.hosts[number].heal("both", other)
        return f"cut from one other ({direction})"

    def _reset(self, number: int) -> str:
        """Breaks all connections of the host, as a firewall that lost its state does.

        Needs CONFIG_INET_DIAG_DESTROY in the kernel.
        """
        for _ in range(self._random.randint(1, 5)):
            self.crew.lab.hosts[number].run(["ss", "--kill", "--tcp", "state", "established"])
            time.sleep(self._random.uniform(0, 0.5))
        return "all its connections broken"

    def _leave(self, number: int) -> str:
        with self._lock:
            self._broken.add(number)
        reply = self.crew.actors[number].send("leave", timeout=5.0)
        try:
            reply.result(CALL_S)
        except NotYet as error:
            raise HopliteError(f"node{number} does not leave") from error
        self.crew.actors[number].close()
        return "left"

    def excused_since(self, begun: float) -> set[str]:
        """Returns the errors that are explained by faults that were active, or had just ended, at or after `begun`."""
        with self._lock:
            troubles = [trouble for trouble in self._troubles if trouble.over_at > begun]
        return set().union(*(trouble.excused for trouble in troubles))


def _stem(ref: str) -> str:
    """Returns the common prefix of the names of one operation's objects."""
    return ref.partition("/")[0]


@dataclass
class Trouble:
    """A fault: the errors that it explains, and the time until which they can occur (monotonic clock)."""

    excused: set[str]
    over_at: float = float("inf")


@dataclass(frozen=True)
class Use:
    """Resources that an idle actor uses: bytes and counts."""

    memory: int
    descriptors: int
    threads: int


def uses(crew: Crew) -> dict[str, Use]:
    """Returns the resources of each actor by the id of its node. A restarted actor has a new id."""
    keys = ("memory", "descriptors", "threads")
    return {
        actor.id: Use(*(reply.facts[key] for key in keys))
        for actor, reply in zip(crew.actors, crew.status(), strict=True)
    }


def grown(before: dict[str, Use], after: dict[str, Use]) -> Iterable[str]:
    """Yields the growth of actors that were not restarted."""
    for node in before.keys() & after.keys():
        old, new = before[node], after[node]
        # An allocator may retain this much for each thread that ran; a few connections may come and go.
        if new.memory > old.memory + 128 * 2**20:
            yield f"node {node} grew from {old.memory >> 20} to {new.memory >> 20} MiB"
        if new.descriptors > old.descriptors + 20 or new.threads > old.threads + 8:
            yield f"node {node} grew from {old} to {new}"


def main() -> int:
    """Runs, and prints the events. Fails if a result was wrong."""
    parser = argparse.ArgumentParser(prog="python -m faults.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="duration in minutes (2)")
    parser.add_argument("--seed", type=int, default=None, help="seed of all random choices; random by default")
    parser.add_argument(
        "--spare",
        type=int,
        default=1,
        choices=range(HOSTS),
        help="number of hosts that are frozen and disconnected but never killed, so that their resources can be"
        " compared before and after a long run (1)",
    )
    parser.add_argument(
        "--no-faults",
        action="store_true",
        help="inject no faults: then no operation may fail and no node may restart anything",
    )
    parser.add_argument("--verbose", action="store_true", help="print the time and host of each fault")
    options = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    what = "peace" if options.no_faults else "chaos"
    sys.stdout.write(f"{what} of {options.minutes:g} min on {HOSTS} hosts, seed {seed}\n")
    try:
        used: dict[str, Use] = {}
        with Lab(hosts=HOSTS, rate=RATE) as lab, Crew(lab, detection_s=DETECTION_S) as crew:
            chaos = Chaos(crew, seed, spared=options.spare, is_verbose=options.verbose)
            counted = crew.counters()
            # Caches and pools are full after this.
            tally = chaos.run(WARM_UP_S, is_calm=True)
            before = uses(crew)
            if options.no_faults:
                tally = chaos.run(options.minutes * 60, is_calm=True)
            tally.wrong += crew.disturbances(counted)
            if not options.no_faults:
                tally = chaos.run(options.minutes * 60)
            if not tally.wrong:
                chaos.undo_faults()
                _wait_until_empty(crew, chaos)
                time.sleep(1)
                used = uses(crew)
                tally.wrong += grown(before, used)
    except (HopliteError, TimeoutError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    report(tally, before, used)
    return 1 if tally.wrong else 0


def _wait_until_empty(crew: Crew, chaos: Chaos) -> None:
    try:
        crew.wait_until_empty()
    except LeftBehind as left:
        raise HopliteError("\n".join([str(left), *chaos.history(left.refs)])) from left


def report(tally: Tally, before: dict[str, Use], used: dict[str, Use]) -> None:
    """Prints the events, and the resources of the nodes that were not restarted."""
    for title, counted in (("operations", tally.operations), ("faults", tally.faults)):
        sys.stdout.write(f"{sum(counted.values())} {title}\n")
        for what, count in sorted(counted.items()):
            sys.stdout.write(f"  {count:6} {what}\n")
    for node in sorted(before.keys() & used.keys()):
        old, new = before[node], used[node]
        sys.stdout.write(
            f"node {node}: {old.memory >> 20} then {new.memory >> 20} MiB, {old.descriptors} then {new.descriptors} "
            f"descriptors, {old.threads} then {new.threads} threads\n"
        )
    for text in tally.wrong:
        sys.stdout.write(f"WRONG {text}\n")


if __name__ == "__main__":
    sys.exit(main())

"""Random kills, freezes, cuts, leaves and joins while broadcasts, reduces and deletions run and are verified.

What may come of an operation follows from what was done while it ran: without a fault, or after one is long over, all
must be right; with one, right or an error that names what a fault can cost. A call that does not end is never right.
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
# Elements: 1 KiB and 128 KiB, and 4 MiB to be broken while they are on their way.
SIZES = (2**7, 2**14, 2**19, 2**21)
# So slow that most of what is large meets a fault.
RATE = "300mbit"
WORKERS = 3

# What a call is given, and what it may take longer than that: a host that stands still answers later.
CALL_S = 20.0
SLACK_S = 6.0
FREEZE_MAX_S = 4.0
# Two hosts that only others reach: until each has found a way by one of them, and a while more.
PART_MAX_S = 10.0

# Of all faults, how many are restarts of all nodes, one after the other.
ROLLING = 0.1

# Of operations without a fault, before it is looked at what nodes use.
WARM_UP_S = 20.0

# After a fault is undone, how long its errors may still come up: nodes find each other again within this.
AFTER_S = 15.0

# What a fault can cost a call: a copy, the answer in time, and the node itself. If nodes leave and come back, no copy.
EXCUSED = {"ObjectLost", "NodeDown", "ActorDied"}
EXCUSED_BY_LEAVING = EXCUSED - {"ObjectLost"}
# What nodes get over as long as nobody counts as dead.
SHORT_S = DETECTION_S / 2


@dataclass
class Tally:
    """What happened so far.

    Attributes:
        operations: by what they were and how they ended.
        faults: by what they were.
        wrong: what no fault explains; in words.
    """

    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Chaos:
    """Workers that run operations, and one that breaks things meanwhile."""

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
        # A host that is being broken or mended is nobody's to begin something at.
        self._broken: set[int] = set()
        # What was deleted while nodes were cut off from each other: a deletion reaches what its side knows.
        self._deleted_in_part: list[str] = []
        # What each operation did, by the name that all its objects begin with.
        self._histories: dict[str, list[str]] = {}

    def run(self, seconds: float, *, is_calm: bool = False) -> Tally:
        """Runs for so long, and until what has begun has ended; if it is to be calm, nothing breaks."""
        self._end = time.monotonic() + seconds
        seeds = [self._random.getrandbits(32) for _ in range(WORKERS)]
        workers = [threading.Thread(target=self._work, args=(random.Random(seed),)) for seed in seeds]
        for worker in workers:
            worker.start()
        try:
            if not is_calm:
                self._break_things()
        except BaseException:
            # Whoever has begun something is to end.
            with self._lock:
                self.tally.wrong.append("what breaks things broke itself")
            raise
        finally:
            for worker in workers:
                worker.join()
        return self.tally

    def _is_over(self) -> bool:
        return time.monotonic() > self._end or bool(self.tally.wrong)

    # What runs.

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
        """One puts, some get."""
        count, seed = chance.choice(SIZES), chance.randrange(1000)
        source, *receivers = self._choose(chance, chance.randint(2, HOSTS))
        ref = self._name()
        begun = time.monotonic()
        makes = [source.send("put", ref=ref, count=count, seed=seed)]
        gets = [actor.send("get", ref=ref, timeout=CALL_S, seeds=[seed]) for actor in receivers]
        return self._judged(begun, makes, gets, [ref], chance)

    def _reduce(self, chance: random.Random) -> str:
        """Some put, and one folds the first of them."""
        caller, *_ = self._choose(chance, 1)
        return self._fold(chance, caller, [])

    def _allreduce(self, chance: random.Random) -> str:
        """Some put, one folds, and all get the result while it grows."""
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
        """Waits for the calls, deletes what they made, and says how it went."""
        replies = []
        for call in [*makes, *gets]:
            try:
                replies.append(call.result(max(0.0, begun + CALL_S + SLACK_S - time.monotonic())))
            except NotYet:
                return f"wrong: a call has not ended after {CALL_S + SLACK_S:g} s"
        self._note(refs[0], f"began at {begun - self._begun:.3f} s; " + self._calls(replies))
        said = self._wrong(begun, replies, replies[: len(makes)])
        if said:
            said += "; " + self._calls(replies)
        deleted = self._delete(refs, chance)
        if self.excused_since(begun):
            with self._lock:
                self._deleted_in_part += refs
            self._note(refs[0], "is to be deleted again after the fault")
        errors = sorted({reply.error for reply in replies if reply.error})
        return said or deleted or (f"failed ({', '.join(errors)})" if errors else "right")

    def _calls(self, replies: list[Reply]) -> str:
        ends = [
            f"{reply.error or 'right'} {reply.message}".strip() + f" at {self._since(reply.at)}" for reply in replies
        ]
        return f"of the calls: {', '.join(ends)}"

    def _since(self, at: float) -> str:
        return f"{at - self._begun:.3f} s"

    def _note(self, ref: str, said: str) -> None:
        with self._lock:
            self._histories.setdefault(_stem(ref), []).append(said)

    def history(self, refs: Iterable[str]) -> Iterable[str]:
        """What became of the operations that objects are of, in words."""
        for stem in sorted({_stem(ref) for ref in refs}):
            yield f"{stem}: {'; '.join(self._histories.get(stem, ['of no operation that ended']))}"

    def _wrong(self, begun: float, replies: list[Reply], makes: list[Reply]) -> str:
        excused = self.excused_since(begun)
        if any(reply.error in excused for reply in makes):
            # What was not made is waited for in vain, or was heard of before it came to nothing.
            excused = excused | {"Timeout", "ObjectLost"}
        for reply in replies:
            if reply.facts.get("wrong"):
                return f"wrong: {reply.facts['wrong']}"
            if reply.error and reply.error not in excused:
                return f"wrong: {reply.error}: {reply.message}"
        firsts = {reply.facts["first"] for reply in replies if "first" in reply.facts}
        return f"wrong: results {sorted(firsts)} of one reduce" if len(firsts) > 1 else ""

    def _delete(self, refs: list[str], chance: random.Random) -> str:
        """Deletes, however often that takes: a fault may cost an answer, but no deletion."""
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
        """Some of the actors that are up, in any order; at least one."""
        while True:
            with self._lock:
                up = [
                    actor for number, actor in enumerate(self.crew.actors) if actor.is_up and number not in self._broken
                ]
            if up:
                return chance.sample(up, min(count, len(up)))
            if self.tally.wrong:
                raise HopliteError("nobody is there any more")
            time.sleep(0.01)

    # What breaks.

    def _break_things(self) -> None:
        pauses: list[Callable[[int], str]] = [self._freeze, self._cut, self._part]
        if shutil.which("ss"):
            pauses.append(self._reset)
        breaks = [self._kill, self._leave, *pauses]
        while not self._is_over():
            time.sleep(self._random.uniform(0.2, 3.0))
            if self._random.random() < 0.2:
                # Long enough that nothing excuses anything any more.
                time.sleep(AFTER_S)
            hosts = self._random.sample(range(HOSTS), self._random.choice([1, 1, 1, 2]))
            is_rolling = self._random.random() < ROLLING
            chosen = [(self._random.choice(pauses if host in self._spared else breaks), host) for host in hosts]
            trouble = Trouble(EXCUSED_BY_LEAVING if is_rolling else EXCUSED)
            if not is_rolling and {how for how, _ in chosen} == {self._part}:
                # All go on by way of others.
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
                self.mend()
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
        """All nodes that are not spared leave and come back, one after the other, as for a new release."""
        for number in range(len(self._spared), HOSTS):
            self._broken_by(self._leave, number)
            self.crew.restart(number).wait_ready()
            with self._lock:
                self._broken.discard(number)
        with self._lock:
            self.tally.faults["rolling restart"] += 1

    def mend(self) -> None:
        """Undoes all faults, and deletes what could not be deleted everywhere meanwhile.

        Raises:
            HopliteError: that did not work out.
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
        """The host and another one can't reach each other; all others reach both."""
        direction: Direction = self._random.choice(["both", "in", "out"])
        other = self.crew.lab.hosts[(number + self._random.randrange(1, HOSTS)) % HOSTS]
        self.crew.lab.hosts[number].cut(direction, other)
        time.sleep(self._random.uniform(0.05, PART_MAX_S))
        self.crew.lab.hosts[number].heal("both", other)
        return f"cut from one other ({direction})"

    def _reset(self, number: int) -> str:
        """All connections of the host break, as by a firewall that forgot them; needs CONFIG_INET_DIAG_DESTROY."""
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
        """The errors that faults explain which lasted, or had just been undone, at a moment or since."""
        with self._lock:
            troubles = [trouble for trouble in self._troubles if trouble.over_at > begun]
        return set().union(*(trouble.excused for trouble in troubles))


def _stem(ref: str) -> str:
    """What the names of all objects of one operation begin with."""
    return ref.partition("/")[0]


@dataclass
class Trouble:
    """Something that breaks: the errors that it explains, and until when they can come up, by the monotonic clock."""

    excused: set[str]
    over_at: float = float("inf")


@dataclass(frozen=True)
class Use:
    """What an actor uses at rest, in bytes and numbers."""

    memory: int
    descriptors: int
    threads: int


def uses(crew: Crew) -> dict[str, Use]:
    """What each actor uses, by the id of its node: one that was started anew is another."""
    keys = ("memory", "descriptors", "threads")
    return {
        actor.id: Use(*(reply.facts[key] for key in keys))
        for actor, reply in zip(crew.actors, crew.status(), strict=True)
    }


def grown(before: dict[str, Use], after: dict[str, Use]) -> Iterable[str]:
    """What actors use more than before, of those that were there all the time."""
    for node in before.keys() & after.keys():
        old, new = before[node], after[node]
        # An allocator may keep so much for each of the threads that it has seen; a few connections more or less.
        if new.memory > old.memory + 128 * 2**20:
            yield f"node {node} grew from {old.memory >> 20} to {new.memory >> 20} MiB"
        if new.descriptors > old.descriptors + 20 or new.threads > old.threads + 8:
            yield f"node {node} grew from {old} to {new}"


def main() -> int:
    """Runs, and prints what happened and a count of operations that went right and wrong."""
    parser = argparse.ArgumentParser(prog="python -m faults.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="for how long (2)")
    parser.add_argument("--seed", type=int, default=None, help="of what is done; another one each time by default")
    parser.add_argument(
        "--spare",
        type=int,
        default=1,
        choices=range(HOSTS),
        help="hosts that freeze and are cut off, but whose processes do not end, so that what they use after a long run"
        " can be compared with what they used before (1)",
    )
    parser.add_argument(
        "--no-faults",
        action="store_true",
        help="break nothing: then no operation may end in an error, and no node may have had to begin anything again",
    )
    parser.add_argument("--verbose", action="store_true", help="say of each fault when it came, and where")
    options = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    what = "peace" if options.no_faults else "chaos"
    sys.stdout.write(f"{what} of {options.minutes:g} min on {HOSTS} hosts, seed {seed}\n")
    try:
        used: dict[str, Use] = {}
        with Lab(hosts=HOSTS, rate=RATE) as lab, Crew(lab, detection_s=DETECTION_S) as crew:
            chaos = Chaos(crew, seed, spared=options.spare, is_verbose=options.verbose)
            counted = crew.counters()
            # Caches and pools are full after that.
            tally = chaos.run(WARM_UP_S, is_calm=True)
            before = uses(crew)
            if options.no_faults:
                tally = chaos.run(options.minutes * 60, is_calm=True)
            tally.wrong += crew.disturbances(counted)
            if not options.no_faults:
                tally = chaos.run(options.minutes * 60)
            if not tally.wrong:
                chaos.mend()
                _wait_until_empty(crew, chaos)
                time.sleep(1)
                used = uses(crew)
                tally.wrong += grown(before, used)
    except (HopliteError, TimeoutError) as error:
        sys.stderr.write(f"{error}\n0 passed, 1 failed\n")
        return 1
    report(tally, before, used)
    return 1 if tally.wrong else 0


def _wait_until_empty(crew: Crew, chaos: Chaos) -> None:
    try:
        crew.wait_until_empty()
    except LeftBehind as left:
        raise HopliteError("\n".join([str(left), *chaos.history(left.refs)])) from left


def report(tally: Tally, before: dict[str, Use], used: dict[str, Use]) -> None:
    """Prints what happened, and what the nodes used that were there all the time."""
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
    for said in tally.wrong:
        sys.stdout.write(f"WRONG {said}\n")
    sys.stdout.write("0 passed, 1 failed\n" if tally.wrong else "1 passed, 0 failed\n")


if __name__ == "__main__":
    sys.exit(main())

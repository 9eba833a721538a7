"""Groups of hosts that share a link to the others, from what streams bring when all hosts send at once.

Racks may have the same times inside and between them, and yet share an uplink that carries less than their hosts. In a
round each host exchanges with one other. Streams over an uplink share what it carries, and those inside a group have
their hosts' links for themselves; the groups are those that explain best which streams were slow in which round. Knows
hosts by number, and nothing of how a stream is measured.
"""

from __future__ import annotations

import math
import random
import statistics
from typing import TYPE_CHECKING

from hoplite_topology import tournament

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hoplite_topology.tournament import Pair

# A stream below this part of what both of its hosts have reached is slow: three streams on a link of two bring 0.67.
SLOW = 0.78
# Fewer hosts have no two pairs at once; for more, looking for the groups takes minutes.
HOSTS_MIN, HOSTS_MAX = 4, 64
# So many tournaments are looked at if no link was ever short, and at most if one was.
PASSES_QUIET, PASSES_MAX = 3, 8
# In so many rounds a link was short: enough to tell hosts apart.
SHORT_ENOUGH = 10
# A rate that is off by a factor of e costs 1. That a whole round was slow, since the machine or network had other work,
# costs so much; so does each group, or else chance would make some.
ROUND_COST, GROUP_COST = 2.5, 1.5
# Groups have to explain so much of what one group of all leaves unexplained, and at least this part of it.
EXPLAINED_MIN, EXPLAINED_PART = 2.0, 0.25
# How much a fast pair counts for being together, how many guesses are made with each, how many are looked at closely.
TOGETHER, STARTS, IMPROVED = (0.1, 0.3, 0.6), 16, 4
# Bits per second of each pair of a round, the slower direction.
Round = list[tuple[int, int, float]]


def schedule(count: int, seed: int) -> Iterator[list[Pair]]:
    """Rounds of disjoint pairs: each pair comes once in each tournament, and each tournament has its own mix."""
    chance = random.Random(seed)
    for _ in range(PASSES_MAX):
        hosts = chance.sample(range(count), count)
        turns = tournament.rounds(count)
        chance.shuffle(turns)
        for turn in turns:
            yield [(hosts[a], hosts[b]) for a, b in turn]


def is_slow(rounds: Sequence[Round], measured: Round) -> bool:
    """Whether a round has a slow pair: worth a second look, since other work of a machine makes pairs slow too."""
    best = _best([*rounds, measured])
    return any(rate < SLOW * min(best[a], best[b]) for a, b, rate in measured)


def is_enough(rounds: Sequence[Round], count: int) -> bool:
    """Whether more rounds would hardly change the groups."""
    each = len(tournament.rounds(count))
    best = _best(rounds)
    # One slow pair may be a host that was busy.
    short = sum(sum(rate < SLOW * min(best[a], best[b]) for a, b, rate in measured) >= 2 for measured in rounds)
    if not short:
        return len(rounds) >= PASSES_QUIET * each
    return len(rounds) >= 2 * each and short >= SHORT_ENOUGH


def groups(rounds: Sequence[Round], count: int) -> list[int] | None:
    """The group of each host, numbered from 0 by their first host; None if one group of all explains as much."""
    if not rounds:
        return None
    fit = _Fit(rounds, count)
    alone = fit.cost([0] * count)
    chance = random.Random(0)
    found, least = [0] * count, alone
    guesses: dict[tuple[int, ...], float] = {}
    for together in TOGETHER:
        starts = [list(range(count)), *([chance.randrange(2) for _ in range(count)] for _ in range(STARTS))]
        for start in starts:
            guess = tuple(_numbered(_guess(rounds, count, together, start)))
            guesses.setdefault(guess, fit.cost(guess))
    for guess in sorted(guesses, key=guesses.__getitem__)[:IMPROVED]:
        improved, cost = fit.improve(guess)
        if cost < least - 1e-9:
            found, least = improved, cost
    found = _numbered(found)
    if alone - least < max(EXPLAINED_MIN, EXPLAINED_PART * alone):
        return None
    return found


class _Fit:
    """How well groups explain rates: the sum of what each rate differs from what it should be, in powers of e."""

    def __init__(self, rounds: Sequence[Round], count: int) -> None:
        best = _best(rounds)
        self.count = count
        self.rounds = [
            [(a, b, math.log(max(rate, 1.0)), min(best[a], best[b])) for a, b, rate in measured] for measured in rounds
        ]
        # A median of streams that are all as fast as their hosts is below the best of them.
        usual = [rate - math.log(base) for measured in self.rounds for _, _, rate, base in measured]
        self.offset = statistics.quantiles(usual, n=10)[-2] if len(usual) > 1 else 0.0

    def cost(self, of: Sequence[int]) -> float:
        """What groups leave unexplained, and what they cost by themselves."""
        uplinks = self._uplinks(of)
        total = GROUP_COST * (len(set(of)) - 1)
        for measured in self.rounds:
            crossing = [0] * self.count
            for a, b, _, _ in measured:
                if of[a] != of[b]:
                    crossing[of[a]] += 1
                    crossing[of[b]] += 1
            misses = []
            for a, b, rate, base in measured:
                expected = base
                if of[a] != of[b]:
                    expected = min(base, uplinks[of[a]] / crossing[of[a]], uplinks[of[b]] / crossing[of[b]])
                misses.append(rate - math.log(expected) - self.offset)
            middle = statistics.median(misses)
            plain = sum(map(abs, misses))
            # All were slower than they should have been.
            total += min(plain, ROUND_COST + sum(abs(miss - middle) for miss in misses)) if middle < 0 else plain
        return total

    def improve(self, of: Sequence[int]) -> tuple[list[int], float]:
        """Moves hosts to other groups, joins groups, and swaps hosts, as long as that explains more."""
        now = _numbered(of)
        least = self.cost(now)
        is_better = True
        while is_better:
            is_better = False
            for tried in self._neighbours(now):
                cost = self.cost(tried)
                if cost < least - 1e-9:
                    now, least, is_better = _numbered(tried), cost, True
                    break
        return now, least

    def _neighbours(self, of: list[int]) -> Iterator[list[int]]:
        size = max(of) + 1
        for one in range(size):
            for other in range(one):
                yield [other if group == one else group for group in of]
        hosts = list(range(self.count))
        # Another first host each time, so that the first ones aren't looked at again and again.
        random.Random(hash(tuple(of))).shuffle(hosts)
        for host in hosts:
            for group in range(min(size + 1, self.count)):
                if group != of[host]:
                    yield [group if at == host else other for at, other in enumerate(of)]
        if self.count <= HOSTS_MAX // 2:
            for one in hosts:
                for other in range(one):
                    if of[one] != of[other]:
                        tried = list(of)
                        tried[one], tried[other] = of[other], of[one]
                        yield tried

    def _uplinks(self, of: Sequence[int]) -> list[float]:
        """What each group's uplink carried at most; noise makes rates smaller and hardly ever larger."""
        most = [0.0] * self.count
        for measured in self.rounds:
            carried = [0.0] * self.count
            for a, b, rate, _ in measured:
                if of[a] != of[b]:
                    carried[of[a]] += math.exp(rate)
                    carried[of[b]] += math.exp(rate)
            most = [max(pair) for pair in zip(most, carried, strict=True)]
        return most


def _best(rounds: Sequence[Round]) -> dict[int, float]:
    """What each host has reached: what its own link carries, even if streams over uplinks never get that."""
    best: dict[int, float] = {}
    for measured in rounds:
        for a, b, rate in measured:
            best[a], best[b] = max(best.get(a, 1.0), rate), max(best.get(b, 1.0), rate)
    return best


def _guess(rounds: Sequence[Round], count: int, together: float, start: Sequence[int]) -> list[int]:
    """Groups by pairs alone: a pair that was slow votes for being apart, one that was fast for being together.

    Args:
        rounds: what was measured.
        count: of hosts.
        together: how much a fast pair counts against a slow one, for streams between groups are fast in some rounds.
        start: groups from which hosts are moved, one after the other.
    """
    best = _best(rounds)
    votes = [[0.0] * count for _ in range(count)]
    for measured in rounds:
        for a, b, rate in measured:
            vote = -1.0 if rate < SLOW * min(best[a], best[b]) else together
            votes[a][b] += vote
            votes[b][a] += vote
    of = list(start)
    is_better = True
    while is_better:
        is_better = False
        for host in range(count):
            gains = [0.0] * (count + 1)
            for other, group in enumerate(of):
                if other != host:
                    gains[group] += votes[host][other]
            free = next(group for group in range(count + 1) if group not in of)
            wanted = max({*of, free}, key=lambda group: gains[group])
            if gains[wanted] > gains[of[host]] + 1e-9:
                of[host], is_better = wanted, True
    return of


def _numbered(of: Sequence[int]) -> list[int]:
    known: dict[int, int] = {}
    return [known.setdefault(group, len(known)) for group in of]

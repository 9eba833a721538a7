"""Detects groups of hosts that share an uplink, from stream rates when all hosts send at once.

Racks may have the same times inside and between them, and still share an uplink with less bandwidth than their hosts
have together. In each round, each host exchanges data with one other. Streams over an uplink share its bandwidth;
streams inside a group can use the full links of their hosts. The result is the grouping that best explains which
streams were slow in which rounds. Identifies hosts by number; independent of how streams are measured.
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

# A stream below this share of what both of its hosts have reached is slow; three streams on a link for two reach 0.67.
SLOW = 0.78
# Minimum: fewer hosts have no two pairs at once. Maximum: for more, the search for groups takes minutes.
HOSTS_MIN, HOSTS_MAX = 4, 64
# Number of tournaments if no link was ever short of bandwidth, and maximum number if one was.
PASSES_QUIET, PASSES_MAX = 3, 8
# Number of rounds with a short link that suffices to separate hosts.
SHORT_ENOUGH = 10
# A rate that differs by a factor of e costs 1. A round that was slow as a whole, because of other load, costs
# ROUND_COST. Each group costs GROUP_COST, because otherwise noise would create groups.
ROUND_COST, GROUP_COST = 2.5, 1.5
# Groups must explain at least this amount, and this share, of what a single group leaves unexplained.
EXPLAINED_MIN, EXPLAINED_PART = 2.0, 0.25
# Weights of a fast pair for being in one group, number of guesses for each weight, and number of guesses to improve.
TOGETHER, STARTS, IMPROVED = (0.1, 0.3, 0.6), 16, 4
# Bits per second of each pair of a round, in the slower direction.
Round = list[tuple[int, int, float]]


def schedule(count: int, seed: int) -> Iterator[list[Pair]]:
    """Yields rounds of disjoint pairs: each pair once per tournament, each tournament in a random order."""
    chance = random.Random(seed)
    for _ in range(PASSES_MAX):
        hosts = chance.sample(range(count), count)
        turns = tournament.rounds(count)
        chance.shuffle(turns)
        for turn in turns:
            yield [(hosts[a], hosts[b]) for a, b in turn]


def is_slow(rounds: Sequence[Round], measured: Round) -> bool:
    """Whether a round has a slow pair, and should be repeated, because other load makes pairs slow too."""
    best = _best([*rounds, measured])
    return any(rate < SLOW * min(best[a], best[b]) for a, b, rate in measured)


def is_enough(rounds: Sequence[Round], count: int) -> bool:
    """Whether more rounds are unlikely to change the groups."""
    each = len(tournament.rounds(count))
    best = _best(rounds)
    # A single slow pair may be due to a busy host.
    short = sum(sum(rate < SLOW * min(best[a], best[b]) for a, b, rate in measured) >= 2 for measured in rounds)
    if not short:
        return len(rounds) >= PASSES_QUIET * each
    return len(rounds) >= 2 * each and short >= SHORT_ENOUGH


def groups(rounds: Sequence[Round], count: int) -> list[int] | None:
    """Returns the group of each host, numbered by first host; None if a single group explains the rates as well."""
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
    """Evaluates groupings: sums the deviations of rates from their expectation, in powers of e."""

    def __init__(self, rounds: Sequence[Round], count: int) -> None:
        best = _best(rounds)
        self.count = count
        self.rounds = [
            [(a, b, math.log(max(rate, 1.0)), min(best[a], best[b])) for a, b, rate in measured] for measured in rounds
        ]
        # The median of streams at their hosts' full rate is below the best of them.
        usual = [rate - math.log(base) for measured in self.rounds for _, _, rate, base in measured]
        self.offset = statistics.quantiles(usual, n=10)[-2] if len(usual) > 1 else 0.0

    def cost(self, of: Sequence[int]) -> float:
        """The unexplained deviations of a grouping, plus the cost of its groups."""
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
            # All were slower than expected.
            total += min(plain, ROUND_COST + sum(abs(miss - middle) for miss in misses)) if middle < 0 else plain
        return total

    def improve(self, of: Sequence[int]) -> tuple[list[int], float]:
        """Moves hosts to other groups, joins groups, and swaps hosts, while that reduces the cost."""
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
        # A different order each time, so that the first hosts are not tried again and again.
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
        """The maximum that each group's uplink carried; noise makes rates smaller, and hardly ever larger."""
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
    """The best rate of each host, an estimate of its own link, even if streams over uplinks never reach it."""
    best: dict[int, float] = {}
    for measured in rounds:
        for a, b, rate in measured:
            best[a], best[b] = max(best.get(a, 1.0), rate), max(best.get(b, 1.0), rate)
    return best


def _guess(rounds: Sequence[Round], count: int, together: float, start: Sequence[int]) -> list[int]:
    """Groups hosts by pairs alone: a slow pair votes for different groups, a fast pair for the same group.

    Args:
        rounds: measured rounds.
        count: number of hosts.
        together: weight of a fast pair relative to a slow one, because streams between groups are fast in some rounds.
        start: initial groups, from which hosts are moved one after the other.
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

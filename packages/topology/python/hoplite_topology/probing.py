"""Runs a probe: echoes between all hosts in rounds of disjoint pairs, then groups, then link rates.

Results are handed out after each round, so that an interrupted probe can be resumed. The module uses the agents on the
hosts, but no options of a command.
"""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError, InvalidArgument
from hoplite.topology import Placed
from hoplite_topology import _native, contention, layout, samples, tournament
from hoplite_topology.landmarks import Landmarks
from hoplite_topology.layout import Layout
from hoplite_topology.rates import Streams
from hoplite_topology.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hoplite_topology.rates import Rates
    from hoplite_topology.reach import Reached, Site
    from hoplite_topology.samples import Quality, Times
    from hoplite_topology.tournament import Pair

# Quick probe: number of echoes per pair at first, and number of nearest hosts that then get all echoes.
QUICK_COUNT, QUICK_NEAREST = 8, 8
# Number of hosts above which a quick probe uses landmarks, and number of landmarks.
QUICK_HOSTS_MAX, QUICK_LANDMARKS = 128, 24
# A host that has replied to none of this many others counts as unreachable.
SILENT_PAIRS = 3
ANSWER_SLACK_S = 30.0
# Labels of group levels, the innermost last.
LEVELS = ("zone", "pod", "rack")
LOOPBACK_US_LEAST = 1e-3


class ProbeFailed(HopliteError):
    """Nothing could be measured; the message contains the reason."""


@dataclass(frozen=True)
class Settings:
    """The settings of a probe.

    Attributes:
        count: number of echoes per direction of a pair.
        estimator: quantile that represents the time of a pair.
        symmetric: how to combine the two directions, "max", "mean" or "min".
        backend: "udp", or "fping".
        timeout_s: time without any reply after which a host counts as unreachable.
        quick: whether only near pairs get all echoes.
        landmarks: number of hosts that probe all others, after which only relevant pairs are probed; 0 probes all
            pairs. None is 0, but 24 for a quick probe of more than 128 hosts.
        seed: seed of the order of rounds with streams.
        bandwidth: whether to measure streams too.
        budget_s: time limit for all streams.
        connections: number of connections per stream.
    """

    count: int = 100
    estimator: str = "p10"
    symmetric: str = "max"
    backend: str = "udp"
    timeout_s: float = 1.0
    quick: bool = False
    landmarks: int | None = None
    seed: int = 0
    bandwidth: bool = False
    budget_s: float = 30.0
    connections: int = 1


@dataclass
class Probed:
    """The results of a probe so far.

    Attributes:
        sites: the hosts.
        settings: the settings.
        samples: samples of echoes.
        estimated: times of pairs that were not probed, from other pairs of their groups, in microseconds.
        absent: reason why a host was left out, by its number.
        rates: rates of streams; None if none was measured.
        groups: groups of each host, the outermost first.
        quality: reliability of the results.
        notes: remarks for people.
        begun: start of the probe.
        seconds: duration of the probe.
        is_whole: whether all requested echoes were measured.
        lab: facts of the lab in which it was measured, if any.
    """

    sites: list[Site]
    settings: Settings
    samples: Samples
    estimated: dict[Pair, float] = field(default_factory=dict)
    absent: dict[int, str] = field(default_factory=dict)
    rates: Rates | None = None
    groups: list[tuple[str, ...]] = field(default_factory=list)
    quality: Quality | None = None
    notes: list[str] = field(default_factory=list)
    begun: str = ""
    seconds: float = 0.0
    is_whole: bool = False
    lab: dict[str, Any] | None = None

    @property
    def times_us(self) -> Times:
        """One time for each pair."""
        times = self.samples.times_us(self.settings.estimator, self.settings.symmetric)
        for (a, b), time_us in self.estimated.items():
            times[a][b] = times[b][a] = time_us
        return times

    def clusters(self) -> list[int | None]:
        """The cluster (innermost group) of each host, numbered in the order of hosts; None for an absent host."""
        known: dict[str, int] = {}
        groups = self.groups or [()] * len(self.sites)
        return [
            None if host in self.absent else known.setdefault(groups[host][-1] if groups[host] else "", len(known))
            for host in range(len(self.sites))
        ]

    def layout(self) -> Layout:
        """Converts the results to the file's format."""
        groups = self.groups or [()] * len(self.sites)
        hosts = [Placed(site.name, (site.address,), groups[n], site.slots) for n, site in enumerate(self.sites)]
        measured: dict[str, Any] = {
            "begun": self.begun,
            "seconds": round(self.seconds, 3),
            "whole": self.is_whole,
            **vars(self.settings),
            "asked": self.samples.asked,
            "late": self.samples.late,
            "absent": [{"name": self.sites[n].name, "reason": why} for n, why in sorted(self.absent.items())],
            "notes": self.notes,
        }
        if self.lab is not None:
            measured["lab"] = self.lab
        more: dict[str, Any] = {
            "quantiles_us": self.samples.quantiles_us,
            "lost": self.samples.lost,
            "measured": measured,
        }
        if self.quality is not None:
            more["quality"] = {**vars(self.quality), "words": self.quality.words()}
        rates = self.rates
        return Layout(hosts, self.times_us, rates.uplinks if rates else {}, rates.nic if rates else None, more)


def resumed(found: Layout) -> Probed:
    """Restores an interrupted probe from its file.

    Raises:
        InvalidArgument: the file is not from a probe.
    """
    from hoplite_topology.reach import Site

    told = found.more.get("measured", {})
    count = len(found.hosts)
    try:
        settings = Settings(**{name: told.get(name, usual) for name, usual in vars(Settings()).items()})
        taken = Samples(
            count,
            asked=told["asked"],
            lost=found.more["lost"],
            late=told["late"],
            quantiles_us={name: found.more["quantiles_us"][name] for name in samples.QUANTILES},
        )
        tables: list[list[Any]] = [taken.asked, taken.lost, *taken.quantiles_us.values()]
        if any(len(table) != count or any(len(row) != count for row in table) for table in tables):
            raise ValueError("the tables do not match the number of hosts")
        sites = [Site(host.name, host.addresses[0], host.slots) for host in found.hosts]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InvalidArgument(
            f"can't resume from this file: {type(error).__name__}: {error}; start a new probe"
        ) from None
    return Probed(sites, settings, taken, begun=str(told["begun"]), seconds=float(told["seconds"]))


def run(
    probed: Probed,
    reached: Reached,
    *,
    done: Callable[[Probed, int, int], None] = lambda *_: None,
    notify: Callable[[str], None] = lambda _: None,
) -> Probed:
    """Measures what is missing.

    Args:
        probed: existing results.
        reached: the hosts.
        done: called after each round with the probe, the number of finished rounds, and the number of rounds.
        notify: called with the current step.

    Raises:
        ProbeFailed: no host replies to another one.
    """
    probed.begun = probed.begun or dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    earlier_s, begun = probed.seconds, time.monotonic()
    probed.absent = dict(reached.absent)
    _note_twins(probed, reached)
    if len(reached.present) < min(2, len(probed.sites)):
        first = next(iter(reached.absent.values()))
        raise ProbeFailed(f"only {len(reached.present)} of {len(probed.sites)} hosts can be reached; {first}")
    marks = _landmarks(probed, reached)
    for count, wanted in _stages(probed, marks):
        pairs = [pair for pair in wanted if _is_missing(probed, pair, count)]
        rounds = tournament.packed(pairs, len(probed.sites))
        for at, turn in enumerate(rounds):
            notify(f"echoes of {len(turn)} pairs")
            _round(probed, reached, turn, count)
            probed.absent = dict(reached.absent)
            probed.seconds = earlier_s + time.monotonic() - begun
            done(probed, at + 1, len(rounds))
    # In a resumed probe, silent hosts may have been probed before.
    _leave_out_silent(probed, reached)
    _again(probed, reached)
    probed.is_whole = True
    if len(reached.present) < 2 <= len(probed.sites):
        raise ProbeFailed(f"no host received a reply from another host; {next(iter(reached.absent.values()))}")
    if marks is not None:
        probed.estimated = marks.estimates(probed.times_us)
        probed.notes.append(_said(probed, marks))
    loads = _loads(probed, reached)
    probed.quality = samples.judge(probed.samples, probed.settings.estimator, loads)
    probed.groups = _by_times(probed)
    if probed.settings.bandwidth and probed.quality.is_doubtful and len(reached.present) <= contention.HOSTS_MAX:
        # Times of busy hosts form random groups; streams are measured twice where they are slow.
        probed.groups = [()] * len(probed.sites)
    if probed.settings.bandwidth and len(reached.present) > 1:
        _rates(probed, reached, notify)
    elif len(reached.present) >= contention.HOSTS_MIN and not any(probed.groups):
        probed.notes.append("the times show no groups; add --bandwidth to detect links that hosts share")
    probed.absent = dict(reached.absent)
    probed.seconds = earlier_s + time.monotonic() - begun
    return probed


def _landmarks(probed: Probed, reached: Reached) -> Landmarks | None:
    """Selects the hosts that probe all others; None if all do."""
    settings = probed.settings
    count = settings.landmarks
    if count is None:
        count = QUICK_LANDMARKS if settings.quick and len(probed.sites) > QUICK_HOSTS_MAX else 0
    return Landmarks(reached.present, count, settings.seed) if 0 < count < len(reached.present) else None


def _said(probed: Probed, marks: Landmarks) -> str:
    hosts = len(marks.hosts)
    every, asked = hosts * (hosts - 1) // 2, sum(1 for _ in _asked(probed))
    return (
        f"{asked} of {every} pairs were probed, starting with {len(marks.chosen)} landmarks; the times "
        f"of {len(probed.estimated)} are estimated as the median of other pairs of the same two groups: "
        "set --landmarks 0 to probe all pairs"
    )


def _asked(probed: Probed) -> Iterator[Pair]:
    """The probed pairs, in the order of rounds of all pairs."""
    every = (pair for turn in tournament.rounds(len(probed.sites)) for pair in turn)
    return ((a, b) for a, b in every if probed.samples.asked[a][b] or probed.samples.asked[b][a])


def _stages(probed: Probed, marks: Landmarks | None) -> Iterator[tuple[int, Sequence[Pair]]]:
    """Yields the number of echoes and the pairs of each stage."""
    count = probed.settings.count
    is_quick = probed.settings.quick and count > QUICK_COUNT
    first = QUICK_COUNT if is_quick else count
    if marks is None:
        yield first, [pair for turn in tournament.rounds(len(probed.sites)) for pair in turn]
    else:
        for pairs in marks.stages(lambda: probed.times_us):
            yield first, pairs
    if not is_quick:
        return
    times = probed.times_us
    near: set[Pair] = set()
    for a in range(len(probed.sites)):
        known = [(time, b) for b, time in enumerate(times[a]) if b != a and time is not None]
        near.update((min(a, b), max(a, b)) for _, b in sorted(known)[:QUICK_NEAREST])
    yield count, sorted(near)


def _is_missing(probed: Probed, pair: Pair, count: int) -> bool:
    a, b = pair
    return any(probed.samples.asked[one][other] < count for one, other in ((a, b), (b, a)))


def _round(probed: Probed, reached: Reached, turn: Sequence[Pair], count: int) -> None:
    """Measures both directions of each pair, one after the other; all pairs at once."""
    for pairs in (list(turn), [(b, a) for a, b in turn]):
        for (a, b), answer in _echoes(probed, reached, pairs, count):
            probed.samples.take(a, b, count, answer)
    _leave_out_silent(probed, reached)


def _leave_out_silent(probed: Probed, reached: Reached) -> None:
    """Leaves out hosts that several others have probed, and from or to which no echo arrived."""
    needed = min(SILENT_PAIRS, len(reached.present) - 1)
    for host in reached.present:
        asked = sum(1 for other in range(len(probed.sites)) if probed.samples.asked[other][host])
        if needed and asked >= needed and not probed.samples.has(host):
            name = probed.sites[host].name
            reached.leave_out(host, f"{name} does not reply to echoes: allow UDP from the other hosts to it (--port)")


def _echoes(probed: Probed, reached: Reached, pairs: Sequence[Pair], count: int) -> list[tuple[Pair, dict[str, Any]]]:
    settings = probed.settings
    requests: dict[int, dict[str, Any]] = {
        a: {
            "do": "fping" if settings.backend == "fping" else "probe",
            "peer": [probed.sites[b].address, reached.hello[b]["echo"]],
            "count": count,
            "timeout_s": settings.timeout_s,
        }
        for a, b in pairs
        if a not in reached.absent and b not in reached.absent
    }
    # No echo takes longer than the initial timeout of an echo.
    answers = reached.ask(requests, ANSWER_SLACK_S + count * settings.timeout_s / 4)
    found = []
    for a, b in pairs:
        answer = answers.get(a)
        if answer is not None and "error" in answer:
            reached.leave_out(a, f"{probed.sites[a].name} can't send echoes: {answer['error']}")
        elif answer is not None and b not in reached.absent:
            found.append(((a, b), answer))
    return found


def _again(probed: Probed, reached: Reached) -> None:
    """Probes some pairs again, to detect whether times have changed since."""
    turns = tournament.packed(_asked(probed), len(probed.sites))
    before = probed.samples.quantiles_us[probed.settings.estimator]
    count = min(probed.settings.count, 50)
    for (a, b), answer in _echoes(probed, reached, turns[0] if turns else [], count):
        times = sorted(answer["times_ns"])
        after = samples.quantile_us(times, samples.QUANTILES[probed.settings.estimator])
        earlier = before[a][b]
        if after and earlier:
            probed.samples.again.append((earlier, after))


def _by_times(probed: Probed) -> list[tuple[str, ...]]:
    """Derives the groups of each host from gaps between times, the outermost first."""
    hosts = [host for host in range(len(probed.sites)) if host not in probed.absent]
    groups: list[tuple[str, ...]] = [()] * len(probed.sites)
    if len(hosts) < 2:
        return groups
    times = probed.times_us
    rows, _ = layout.filled([[times[a][b] for b in hosts] for a in hosts])
    flat = [max(time, LOOPBACK_US_LEAST) for row in rows for time in row]
    native = _native.Topology(flat, len(hosts), [0] * len(hosts), float("inf"), [float("inf")])
    levels = [level for level in native.clusters_by_gaps() if max(level) > 0][: len(LEVELS)]
    # The smallest groups are found first, and get the innermost label.
    for name, level in zip(LEVELS[len(LEVELS) - len(levels) :], reversed(levels), strict=True):
        for place, host in enumerate(hosts):
            groups[host] += (f"{name}-{level[place]}",)
    return groups


def _rates(probed: Probed, reached: Reached, notify: Callable[[str], None]) -> None:
    """Measures streams: hosts' links, groups if the times show none, and uplinks of groups."""
    settings = probed.settings
    longest = max((time for row in probed.times_us for time in row if time is not None), default=0.0)
    streams = Streams(reached, longest, settings.budget_s, settings.connections, notify)
    hosts = reached.present
    inner = [groups[-1] if groups else "" for groups in probed.groups]
    pairs = [(a, b) for turn in tournament.rounds(len(hosts)) for a, b in turn]
    alone = [(hosts[a], hosts[b]) for a, b in pairs]
    alone.sort(key=lambda pair: inner[pair[0]] != inner[pair[1]])
    streams.alone(alone)
    probed.rates = streams.found
    hosts = reached.present
    if not any(probed.groups) and streams.found.nic is not None:
        if contention.HOSTS_MIN <= len(hosts) <= contention.HOSTS_MAX:
            streams.all_at_once(hosts, settings.seed)
            notify("detecting shared links")
            place = {host: at for at, host in enumerate(hosts)}
            rounds = [[(place[a], place[b], rate) for a, b, rate in turn] for turn in streams.found.rounds]
            for host, group in zip(hosts, contention.groups(rounds, len(hosts)) or (), strict=False):
                probed.groups[host] = (f"{LEVELS[-1]}-{group}",)
            if not any(probed.groups):
                probed.notes.append(
                    "times and rates show no groups: with all hosts sending at once, each reached its full link rate"
                )
        elif len(hosts) > contention.HOSTS_MAX:
            probed.notes.append(
                f"detection of shared links was skipped: it supports at most {contention.HOSTS_MAX} hosts"
            )
    inner = [groups[-1] if groups else "" for groups in probed.groups]
    for label in sorted({label for groups in probed.groups for label in groups}):
        members = [host for host in reached.present if label in probed.groups[host]]
        others = _spread([host for host in reached.present if label not in probed.groups[host]], inner)
        if members and others:
            streams.uplink(label, members, others)
    probed.notes += streams.found.failed
    if streams.found.is_cut:
        probed.notes.append(f"not all streams were measured within {settings.budget_s:g} s: increase --budget")


def _spread(hosts: Sequence[int], inner: Sequence[str]) -> list[int]:
    """Orders hosts so that the first ones are from as many groups as possible."""
    met: dict[str, int] = {}
    turn = {}
    for host in hosts:
        turn[host] = met[inner[host]] = met.get(inner[host], -1) + 1
    return sorted(hosts, key=lambda host: turn[host])


def _note_twins(probed: Probed, reached: Reached) -> None:
    """Notes hosts that are the same machine with two addresses."""
    seen: dict[str, str] = {}
    for number in reached.present:
        machine, name = reached.hello[number]["machine"], probed.sites[number].name
        if machine and machine in seen:
            probed.notes.append(
                f"{seen[machine]} and {name} are the same machine, so times between them involve no network"
            )
        seen.setdefault(machine, name)


def _loads(probed: Probed, reached: Reached) -> list[tuple[str, float, int]]:
    """The load of each host before the probe, so that the probe's own load does not count."""
    said = ((number, reached.hello[number]) for number in reached.present)
    return [(probed.sites[number].name, hello["load"], hello["cores"] or 1) for number, hello in said]


def begin(sites: Sequence[Site], settings: Settings) -> Probed:
    """Creates a probe without results."""
    return Probed(list(sites), settings, Samples(len(sites)))


def going_on(probed: Probed, settings: Settings) -> Probed:
    """Returns a probe with other settings for the steps after the echoes."""
    kept = replace(
        probed.settings,
        bandwidth=settings.bandwidth,
        budget_s=settings.budget_s,
        connections=settings.connections,
        timeout_s=settings.timeout_s,
    )
    return replace(probed, settings=kept)

"""Measured rates and delays of a lab's links: run by `make test-long` on an idle machine.

test_lab checks with the kernel's counters that links have their rates and limit faster traffic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hoplite_bench.lab import Host, Lab
from labs import needs_lab, surveyed

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [needs_lab, pytest.mark.lab, pytest.mark.long]


def test_a_link_brings_its_rate_and_no_more() -> None:
    with Lab(hosts=2, rate="10mbit") as lab:
        a, b = lab.hosts
        # Without a limit it would be a thousand times that; the exact figure is for `hoplite lab check`.
        assert 2e6 < lab.measure_rate(a, b) < 10.1e6
        assert all(2e6 < rate < 10.1e6 for rate in lab.measure_rates_at_once([(a, b), (b, a)]))


def test_latency_is_added() -> None:
    """On a fast machine a bridge adds less delay than assumed, so the limit is a part of the 400 us."""
    with Lab(hosts=2) as plain, Lab(hosts=2, latency="200us") as far:
        best = [min(lab.measure_rtt(*lab.hosts) for _ in range(5)) for lab in (plain, far)]
        assert best[1] - best[0] > 20e-6


def test_each_connection_is_capped_and_together_they_fill_the_link() -> None:
    with Lab(hosts=3, rate="40mbit", flow_cap="10mbit") as lab:
        a, b, c = lab.hosts
        assert all(2e6 < rate < 10.1e6 for rate in lab.measure_rates_at_once([(a, b), (b, a)]))
        assert 10.5e6 < sum(lab.measure_rates_at_once([(a, b), (a, b), (a, c)])) < 30.3e6
        assert sum(lab.measure_rates_at_once([(a, b), (a, c)] * 4)) < 40.4e6
        a.cut()
        a.heal()
        assert 2e6 < lab.measure_rate(a, b) < 10.1e6
        a.slow("4mbit")
        assert lab.measure_rate(a, b) < 4.1e6


def test_racks_share_what_their_uplink_brings() -> None:
    with Lab(racks=[2, 2], rate="20mbit", uplink="10mbit") as lab:
        a, b, c, d = lab.hosts
        assert sum(lab.measure_rates_at_once([(a, c), (b, d)])) < 10.5e6
        assert lab.measure_rate(a, b) > 10.5e6


def test_racks_of_a_pod_share_what_its_uplink_brings() -> None:
    with Lab(racks=[2, 1, 2], pods=[2, 1], rate="40mbit", uplink="20mbit", pod_uplink="10mbit") as lab:
        a, b, c, d, e = lab.hosts
        # Each path has the rate of its narrowest link, and two streams share that.
        assert lab.measure_rate(a, b) > 20.5e6
        assert 10.5e6 < lab.measure_rate(a, c) < 20.5e6
        assert sum(lab.measure_rates_at_once([(a, d), (c, e)])) < 10.5e6
        assert sum(lab.measure_rates_at_once([(d, a), (e, c)])) < 10.5e6


def test_a_slow_link_brings_little_and_others_what_they_did() -> None:
    with Lab(racks=[2, 2], rate="50mbit") as lab:
        a, b, c, d = lab.hosts
        # The others are twelve times as fast.
        most = 8e6
        a.slow("4mbit")
        assert all(rate < most for rate in lab.measure_rates_at_once([(a, b), (b, a)]))
        a.slow(None)
        lab.racks[1].slow(4e6)
        rates = lab.measure_rates_at_once([(a, c), (b, a)])
        assert rates[0] < most < rates[1]
        lab.racks[1].cut()
        lab.racks[1].heal()
        assert lab.measure_rate(d, b) < most


# Clusters, each of which surveys the same hosts: a busy moment can hide a link from one survey.
SURVEYS = 3


def _found(lab: Lab, order: Sequence[int]) -> list[tuple[set[str], ...]]:
    """What the nodes of hosts that start in this order detect: per host, who shares its groups, outermost first."""
    members = surveyed(lab, order)["members"]
    shares: dict[str, set[str]] = {}
    places = {member["address"].partition(":")[0]: member["place"] or [] for member in members}
    for address, place in places.items():
        for label in place:
            shares.setdefault(label, set()).add(lab.host(address).name)
    return [tuple(shares[label] for label in places[host.address]) for host in lab.hosts]


def _is_found(lab: Lab, order: Sequence[int], expected: Sequence[tuple[set[str], ...]]) -> bool:
    """Whether nodes that start in this order detect this."""
    return any(_found(lab, order) == list(expected) for _ in range(SURVEYS))


def _names(hosts: list[Host]) -> set[str]:
    return {host.name for host in hosts}


def test_nodes_without_configured_racks_detect_racks_that_share_a_link() -> None:
    """Joined in a cloud's order, which is independent of racks."""
    with Lab(racks=[3, 3], rate="200mbit", uplink="200mbit") as lab:
        assert _is_found(lab, (0, 3, 4, 1, 5, 2), [(_names(lab.racks[host.rack].hosts),) for host in lab.hosts])


def test_nodes_without_configured_racks_detect_racks_in_pods() -> None:
    rate = "200mbit"
    with Lab(racks=[2, 2, 2, 2], pods=[2, 2], rate=rate, uplink=rate, pod_uplink=rate) as lab:
        pods = {rack.number: pod for pod in lab.pods for rack in pod.racks}
        expected = [(_names(pods[host.rack].hosts), _names(lab.racks[host.rack].hosts)) for host in lab.hosts]
        assert _is_found(lab, (0, 3, 6, 1, 4, 7, 2, 5), expected)

"""Fault injection in a lab: links cut in one direction or both, slow links, hosts frozen and killed."""

from __future__ import annotations

import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from hoplite import InvalidArgument
from hoplite_bench.lab import Host, Lab, LabError, namespaces
from labs import held_back, needs_lab, rates
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [needs_lab, pytest.mark.lab]

# A packet arrives after about 30 us; a busy machine may take a thousand times as long.
ARRIVAL_S = 2.0
LOSS_S = 0.1


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Two racks of two hosts, all of which have exchanged packets."""
    with Lab(racks=[2, 2], rate="50mbit") as lab:
        for a in lab.hosts:
            for b in lab.hosts[a.number + 1 :]:
                lab.measure_rtt(a, b)
        yield lab


def arrives(a: Host, b: Host, timeout: float = ARRIVAL_S) -> bool:
    """Whether a datagram gets from host to host."""
    target = namespaces.inside(b.keeper, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    source = namespaces.inside(a.keeper, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with target, source:
        target.bind((b.address, 0))
        target.settimeout(timeout)
        # A sender gets no error when its packets are dropped.
        assert source.sendto(b"x", target.getsockname()) == 1
        try:
            return target.recv(10) == b"x"
        except TimeoutError:
            return False


def is_lost(a: Host, b: Host) -> bool:
    return not arrives(a, b, LOSS_S)


def test_a_cut_host_neither_sends_nor_receives_until_it_is_healed(lab: Lab) -> None:
    a, b, c, _ = lab.hosts
    a.cut()
    assert a.is_cut() == ["out", "in"]
    assert is_lost(a, b)
    assert is_lost(b, a)
    assert is_lost(c, a)
    assert arrives(b, c)
    assert arrives(a, a)
    # Cutting twice equals cutting once.
    a.cut()
    a.heal()
    assert a.is_cut() == []
    assert arrives(a, b)
    assert arrives(c, a)


def test_one_way_cuts_lose_one_way_only(lab: Lab) -> None:
    a, b, _, _ = lab.hosts
    a.cut("out")
    assert a.is_cut() == ["out"]
    assert is_lost(a, b)
    assert arrives(b, a)
    a.heal("in")
    assert is_lost(a, b)
    a.heal("out")
    a.cut("in")
    assert arrives(a, b)
    assert is_lost(b, a)
    a.cut("out")
    a.heal("in")
    assert is_lost(a, b)
    assert arrives(b, a)
    a.heal()
    assert arrives(a, b)


def test_two_hosts_are_cut_off_from_each_other_alone(lab: Lab) -> None:
    a, b, c, _ = lab.hosts
    a.cut("out", b)
    assert is_lost(a, b)
    assert arrives(b, a)
    a.cut("both", c)
    assert is_lost(a, c)
    assert is_lost(c, a)
    assert a.lost_to() == {b.address, c.address}
    assert arrives(b, c)
    assert a.is_cut() == []
    a.heal(other=b)
    assert arrives(a, b)
    assert is_lost(c, a)
    # Healing twice equals healing once, and cutting twice equals cutting once.
    a.cut(other=c)
    a.heal(other=c)
    a.heal(other=c)
    assert arrives(c, a)
    assert arrives(a, c)
    assert a.lost_to() == set()
    with pytest.raises(InvalidArgument, match="can't be cut off from itself"):
        a.cut(other=a)
    with pytest.raises(InvalidArgument, match="direction must be"):
        a.cut("up", b)  # type: ignore[arg-type]


def test_a_cut_rack_is_whole_inside(lab: Lab) -> None:
    a, b, c, d = lab.hosts
    lab.racks[0].cut()
    assert is_lost(a, c)
    assert is_lost(d, b)
    assert arrives(a, b)
    assert arrives(c, d)
    lab.racks[0].heal("out")
    assert lab.racks[0].is_cut() == ["in"]
    assert arrives(a, c)
    assert is_lost(c, a)
    lab.racks[0].heal()
    assert arrives(c, a)


def test_a_cut_pod_is_whole_inside() -> None:
    with Lab(racks=[1, 1, 1], pods=[2, 1], rate="50mbit") as lab:
        a, b, c = lab.hosts
        for one, other in ((a, b), (a, c), (b, c)):
            lab.measure_rtt(one, other)
        lab.pods[0].cut()
        assert is_lost(a, c)
        assert is_lost(c, b)
        assert arrives(a, b)
        found = Lab.find(lab.name)
        assert [pod.is_cut() for pod in found.pods] == [["out", "in"], []]
        found.pods[0].heal("out")
        assert arrives(a, c)
        assert is_lost(c, a)
        found.pods[0].heal()
        assert arrives(c, b)


def test_a_stream_goes_on_after_a_cut(lab: Lab) -> None:
    a, b, _, _ = lab.hosts
    listener = namespaces.inside(b.keeper, lambda: socket.create_server((b.address, 0)))
    source = namespaces.inside(a.keeper, lambda: socket.create_connection(listener.getsockname(), 10))
    with listener, source:
        target, _ = listener.accept()
        with target:
            target.settimeout(LOSS_S)
            a.cut()
            source.sendall(b"late")
            with pytest.raises(TimeoutError):
                target.recv(4)
            a.heal()
            target.settimeout(30)
            assert target.recv(4) == b"late"


def test_measurements_of_a_cut_host_say_which(lab: Lab) -> None:
    a, b, _, _ = lab.hosts
    a.cut("in")
    with pytest.raises(LabError, match="no echo from node1 to node0"):
        lab.measure_rtt(b, a)


def test_a_slow_link_is_slow_both_ways_and_fast_again(lab: Lab) -> None:
    """According to the kernel's settings; the measured rate of a slow link is in test_lab_rates."""
    a, b, c, d = lab.hosts
    uplink = lab.racks[1]
    a.slow("4mbit")
    assert rates(a) == {4_000_000}
    before = held_back(a)
    lab.measure_rates_at_once([(a, b), (b, a)])
    assert all(now > then for now, then in zip(held_back(a), before, strict=True))
    a.slow(None)
    assert rates(a) == {50_000_000}
    uplink.slow(4e6)
    # A cut preserves the rate of a link.
    uplink.cut()
    uplink.heal()
    assert [rates(host) for host in (a, b, c, d)] == [{50_000_000}] * 4
    assert [rates(rack) for rack in lab.racks] == [{100_000_000}, {4_000_000}]
    before = held_back(uplink)
    lab.measure_rate(d, b)
    assert held_back(uplink)[0] > before[0]


def test_a_frozen_host_stands_still_until_it_is_thawed(lab: Lab) -> None:
    a, b, _, _ = lab.hosts
    echo = ["sh", "-c", "sleep 100 & cat; wait"]
    with (
        a.popen(echo, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as frozen,
        b.popen(echo, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as running,
    ):
        for process in (frozen, running):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"1\n")
            assert process.stdout.readline() == b"1\n"
        processes = a.processes()
        assert len(processes) == 3
        a.freeze()
        assert all(namespaces.is_stopped(process) for process in processes)
        assert not any(namespaces.is_stopped(process) for process in b.processes())
        # Its kernel still replies, like that of a host whose programs hang.
        assert lab.measure_rtt(b, a) > 0
        a.thaw()
        assert frozen.stdin is not None
        assert frozen.stdout is not None
        frozen.stdin.write(b"2\n")
        assert frozen.stdout.readline() == b"2\n"
        a.kill()
        b.kill()


def test_a_killed_host_runs_nothing_and_can_be_used_again(lab: Lab) -> None:
    a, b, _, _ = lab.hosts
    # Frozen processes are killed too, and so are those that have left the session.
    with a.popen(["sh", "-c", "setsid sleep 100 & trap '' TERM HUP; echo; exec sleep 100"], stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        a.freeze()
        a.kill()
        assert process.wait(SOON) == -signal.SIGKILL
    assert a.processes() == []
    assert a.run(["hostname"]).stdout == "node0\n"
    assert arrives(a, b)

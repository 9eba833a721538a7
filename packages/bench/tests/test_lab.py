"""A lab from its creation to its end: hosts with names and rates, programs on them, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hoplite import topology
from hoplite.errors import InvalidArgument
from hoplite_bench.lab import Host, Lab, LabError, links, namespaces, needs, records
from labs import flow_rates, flows, held_back, needs_lab, rates, start_node, surveyed
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite_bench.lab.namespaces import Keeper

pytestmark = pytest.mark.lab

# More bytes than the kernels of a lab's hosts exchange by themselves, and less than a stream carries at once.
UNASKED_BYTES = 100_000


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts at 10 Mbit/s that no test breaks."""
    with Lab(hosts=2, rate="10mbit") as lab:
        yield lab


def machine_links() -> tuple[list[str], list[str]]:
    """The links and the named namespaces of the machine itself."""
    names = Path("/run/netns")
    return sorted(name for _, name in socket.if_nameindex()), sorted(
        path.name for path in names.glob("*")
    ) if names.exists() else []


def keepers(lab: Lab) -> list[Keeper]:
    return next(record for record in records.read_all() if record.name == lab.name).keepers()


def queues(keeper: Keeper, interface: str) -> list[str]:
    """The kinds of queues through which an interface sends."""

    def work(netlink: Any) -> list[str]:  # noqa: ANN401 - pyroute2 has no types
        (index,) = netlink.link_lookup(ifname=interface)
        return [queue.get_attr("TCA_KIND") for queue in netlink.get_qdiscs(index=index)]

    return links._with_netlink(keeper, work)


def sleeping(host: Host) -> subprocess.Popen[str]:
    """A program that already runs on a host."""
    process = host.popen(["sh", "-c", "echo; exec sleep 1000 >&-"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "\n"
    return process


@needs_lab
def test_a_host_has_its_name_address_and_interface(lab: Lab) -> None:
    host = lab.hosts[1]
    assert (host.name, host.number, host.rack, host.interface) == ("node1", 1, 0, "e0")
    assert host.run(["hostname"]).stdout == "node1\n"
    # Of /sys, the files of the host's own links.
    assert host.run(["ls", "/sys/class/net"]).stdout.split() == ["e0", "lo"]
    assert host.run(["hostname", "--all-ip-addresses"]).stdout.split()[0] == host.address


@needs_lab
def test_hosts_find_each_other_by_name(lab: Lab) -> None:
    for host in lab.hosts:
        for other in lab.hosts:
            assert host.run(["getent", "ahostsv4", other.name]).stdout.split()[0] == other.address


@needs_lab
def test_a_host_has_shared_memory_of_its_own_and_all_other_files_are_the_machines(lab: Lab, tmp_path: Path) -> None:
    lab.hosts[0].run(["touch", "/dev/shm/hoplite-lab-test"], check=True)
    assert not Path("/dev/shm/hoplite-lab-test").exists()
    assert lab.hosts[1].run(["test", "-e", "/dev/shm/hoplite-lab-test"]).returncode == 1
    lab.hosts[0].run(["touch", str(tmp_path / "file")], check=True)
    assert (tmp_path / "file").exists()


@needs_lab
def test_a_link_holds_back_what_is_faster_than_its_rate(lab: Lab) -> None:
    """In both directions. Measured rates are in test_lab_rates."""
    a, b = lab.hosts
    assert rates(a) == rates(b) == {10_000_000}
    before = held_back(a)
    lab.measure_rates_at_once([(a, b), (b, a)])
    assert all(now > then for now, then in zip(held_back(a), before, strict=True))


@needs_lab
def test_connections_of_a_capped_lab_have_classes_of_their_own() -> None:
    with Lab(hosts=3, rate="20mbit", flow_cap="5mbit") as lab:
        a, b, c = lab.hosts
        assert lab.facts()["flow_cap"] == 5_000_000
        assert rates(a) == {20_000_000}
        assert all(flow_rates(host) == {5_000_000} for host in lab.hosts)
        before = flows(a)
        lab.measure_rate(a, b)
        assert sum(sent - before[flow] > UNASKED_BYTES for flow, sent in flows(a).items()) == 1
        a.slow("10mbit")
        a.cut()
        assert flow_rates(a) == set()
        a.heal()
        assert rates(a) == {10_000_000}
        assert flow_rates(a) == {5_000_000}
        lab.measure_rate(a, c)
        assert sum(sent > UNASKED_BYTES for sent in flows(a).values()) == 1


@needs_lab
@pytest.mark.parametrize("opens", ["sender", "receiver"])
def test_connections_in_a_row_are_capped_one_by_one(opens: str) -> None:
    """Whether they were opened or accepted by the host that sends."""
    with Lab(hosts=2, rate="20mbit", flow_cap="5mbit") as lab, contextlib.ExitStack() as stack:
        a, b = lab.hosts
        client, server = (a, b) if opens == "sender" else (b, a)
        listener = stack.enter_context(
            namespaces.inside(server.keeper, lambda: socket.create_server((server.address, 7420)))
        )
        before = flows(a)
        for _ in range(8):
            opened = stack.enter_context(
                namespaces.inside(client.keeper, lambda: socket.create_connection((server.address, 7420), SOON))
            )
            accepted = stack.enter_context(listener.accept()[0])
            source, target = (opened, accepted) if opens == "sender" else (accepted, opened)
            source.sendall(bytes(20_000))
            target.setblocking(True)
            assert len(target.recv(20_000, socket.MSG_WAITALL)) == 20_000
        assert sum(sent - before[flow] > 20_000 for flow, sent in flows(a).items()) == 8


@needs_lab
def test_packets_other_than_tcp_are_not_capped() -> None:
    with Lab(hosts=2, rate="20mbit", flow_cap="5mbit") as lab:
        a, b = lab.hosts
        before = flows(a)
        with namespaces.inside(a.keeper, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as source:
            for _ in range(100):
                source.sendto(bytes(1000), (b.address, 9))
        lab.measure_rtt(a, b)
        assert flows(a) == before


@needs_lab
def test_latency_by_netem_is_added_at_the_other_end_of_a_capped_link(lab: Lab) -> None:
    """A host's end has one queue; packets to a host are delayed instead of packets from it."""
    record = replace(
        next(record for record in records.read_all() if record.name == lab.name), latency_s=0.001, latency_by="netem"
    )
    for flow_cap, delays in ((None, [0.001, 0.0]), (5_000_000, [0.0, 0.001])):
        ends = Host(replace(record, flow_cap=flow_cap), 0)._ends.values()
        assert [end.delay_s for end in ends] == delays
        assert [end.flow_cap for end in ends] == [flow_cap, None]


@needs_lab
def test_facts_are_json_and_name_the_round_trip(lab: Lab) -> None:
    facts = json.loads(json.dumps(lab.facts()))
    assert facts.pop("rtt_us") > 0
    assert facts == {
        "name": lab.name,
        "hosts": 2,
        "racks": [2],
        "rate": 10_000_000,
        "uplink": None,
        "pods": None,
        "pod_uplink": None,
        "flow_cap": None,
        "latency_s": 0.0,
        "latency_by": "none",
        "bridges_per_link": 0,
    }


@needs_lab
def test_latency_is_added_and_its_method_is_recorded() -> None:
    """By a delaying queue or by chained bridges; the measured delay is in test_lab_rates."""
    with Lab(hosts=2) as plain, Lab(hosts=2, latency="50us") as far:
        assert plain.facts()["latency_by"] == "none"
        record = next(record for record in records.read_all() if record.name == far.name)
        if far.facts()["latency_by"] == "netem":
            assert all("netem" in queues(host.keeper, host.interface) for host in far.hosts)
            return
        assert far.facts()["latency_by"] == "chained bridges"
        assert far.facts()["bridges_per_link"] > 0
        assert record.switch is not None
        ends = [f"f{host.number}-{extra}" for host in far.hosts for extra in range(record.bridges)]
        before = [links.sent_bytes(record.switch, end) for end in ends]
        far.measure_rtt(*far.hosts)
        assert all(links.sent_bytes(record.switch, end) > sent for end, sent in zip(ends, before, strict=True))


@needs_lab
def test_a_program_gets_exit_code_input_environment_and_folder(lab: Lab, tmp_path: Path) -> None:
    host = lab.hosts[0]
    assert host.run(["sh", "-c", "exit 7"]).returncode == 7
    assert host.run(["cat"], input="words").stdout == "words"
    assert host.run(["sh", "-c", "echo $COLOUR"], env={**os.environ, "COLOUR": "red"}).stdout == "red\n"
    assert host.run(["pwd"], cwd=tmp_path).stdout == f"{tmp_path}\n"
    assert host.run(["pwd"]).stdout == f"{Path.cwd()}\n"
    assert host.run(["no-such-program"]).returncode == 127
    with pytest.raises(subprocess.CalledProcessError):
        host.run(["false"], check=True)


@needs_lab
def test_a_program_that_takes_too_long_is_killed_with_its_children(lab: Lab) -> None:
    host = lab.hosts[0]
    with pytest.raises(subprocess.TimeoutExpired):
        host.run(["sh", "-c", "sleep 100 & sleep 100"], timeout=0.2)
    namespaces.wait_until(host.processes, lambda _: None, "are children that were not killed")


@needs_lab
def test_programs_are_started_by_any_nsenter(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # nsenter of util-linux 2.37 has no --wdns.
    old = tmp_path / "nsenter"
    old.write_text('#!/bin/sh\ncase "$*" in *--wd*) exit 1 ;; esac\nexec /usr/bin/nsenter "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    assert lab.hosts[1].run(["sh", "-c", "hostname; pwd"]).stdout == f"node1\n{tmp_path}\n"
    assert lab.hosts[1].run(["pwd"], cwd=".").stdout == f"{tmp_path}\n"
    agent = subprocess.run([*lab.rsh, "node1", "hostname; pwd"], capture_output=True, text=True, timeout=30, check=True)
    assert agent.stdout == f"node1\n{tmp_path}\n"


@needs_lab
def test_bridges_ask_no_filter(lab: Lab) -> None:
    def asks() -> set[str]:
        return {path.read_text().strip() for path in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*")}

    assert namespaces.inside(keepers(lab)[-1], asks) <= {"0"}


@needs_lab
def test_popen_is_the_program_itself(lab: Lab) -> None:
    host = lab.hosts[0]
    with host.popen(["sh", "-c", "echo $$; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        assert host.processes() == [process.pid]
        assert lab.hosts[1].processes() == []
        assert os.getsid(process.pid) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON) == -signal.SIGTERM


@needs_lab
@pytest.mark.parametrize(
    "words",
    [
        ["node1", "hostname; exit", "3"],
        ["-x", "-T", "-n", "-q", "node1", "hostname;", "exit 3"],
        ["-o", "StrictHostKeyChecking=no", "-oBatchMode=yes", "-l", "root", "-p22", "root@node1", "hostname; exit 3"],
        ["node1", "-x", "-o", "A=b", "hostname; exit 3"],
        ["-x", "--", "node1", "hostname; exit 3"],
        ["10.77.0.2", "hostname; exit 3"],
    ],
    ids=" ".join,
)
def test_the_agent_drops_what_is_for_ssh_and_runs_the_rest(lab: Lab, words: list[str]) -> None:
    for shell in ([], ["bash"]):
        done = subprocess.run([*shell, *lab.rsh, *words], capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stdout) == (3, "node1\n"), done.stderr


@needs_lab
def test_the_agent_passes_input_environment_folder_and_options_of_the_command(lab: Lab, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        return subprocess.run(
            [str(lab.agent), *words],
            input="words\n",
            env={**os.environ, "COLOUR": "red"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout

    assert run("node0", "cat") == "words\n"
    assert run("-n", "node0", "cat") == ""
    assert run("node0", "echo $COLOUR; pwd") == f"red\n{tmp_path}\n"
    assert run("node0", "echo", "-n", "-x") == "-x"


@needs_lab
def test_a_program_is_on_its_host_once_it_is_started(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a machine so busy that nsenter enters the namespace late.
    late = tmp_path / "nsenter"
    late.write_text('#!/bin/sh\nsleep 0.2\nexec /usr/bin/nsenter "$@"\n')
    late.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with lab.hosts[0].popen(["sleep", "100"]) as process:
        assert lab.hosts[0].processes() == [process.pid]
        lab.hosts[0].kill()


@needs_lab
def test_the_agent_works_from_host_to_host(lab: Lab) -> None:
    # Like a launcher on the first host that starts daemons on the others, which start programs on further ones.
    assert lab.hosts[0].run([lab.agent, "node1", "hostname"]).stdout == "node1\n"
    assert lab.hosts[0].run([lab.agent, "node1", f"{lab.agent} node0 hostname"]).stdout == "node0\n"


@needs_lab
def test_a_signal_to_the_agent_ends_the_command(lab: Lab) -> None:
    with subprocess.Popen([*lab.rsh, "node0", "echo here; exec sleep 100"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        assert lab.hosts[0].processes() == [process.pid]
        process.terminate()
        assert process.wait(SOON) == -signal.SIGTERM


@needs_lab
def test_the_agent_names_a_host_that_is_not_there(lab: Lab) -> None:
    for words, complaint in ((["node9", "true"], "has no host node9"), (["-x"], "usage:"), (["-:"], "")):
        done = subprocess.run([*lab.rsh, *words], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 255
        assert complaint in done.stderr


@needs_lab
def test_nothing_is_left_at_the_end_nor_shown_on_the_machine_meanwhile() -> None:
    before = machine_links()
    with Lab(racks=[1, 1], pods=[1, 1]) as lab:
        assert machine_links() == before
        process = lab.hosts[0].popen(["sh", "-c", "sleep 100 & exec sleep 100"])
        networks = [keeper.network() for keeper in keepers(lab)]
        assert len(set(networks)) == 3
        files = lab.agent.parent
        assert files.exists()
    assert process.returncode == -signal.SIGKILL
    assert namespaces.processes_in(networks) == []
    assert machine_links() == before
    assert not files.exists()
    assert lab.name not in [record.name for record in records.read_all()]
    with pytest.raises(LabError, match="the lab was closed"):
        lab.hosts[0].run(["true"])
    lab.close()


@needs_lab
def test_an_error_in_the_block_ends_the_lab_too() -> None:
    held: list[Keeper] = []

    def fail() -> None:
        with Lab(hosts=1) as lab:
            held.extend(keepers(lab))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert held
    assert not any(keeper.is_alive() for keeper in held)


@needs_lab
def test_a_lab_that_can_not_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "KEEPER", "echo no such thing >&2; exit 1")
    before = [record.name for record in records.read_all()]
    with pytest.raises(LabError, match=r"node0 could not be created: no such thing; .* grant CAP_SYS_ADMIN"):
        Lab(hosts=2)
    assert [record.name for record in records.read_all()] == before


@needs_lab
def test_the_next_lab_takes_away_what_a_killed_one_left() -> None:
    program = """
import sys
from hoplite_bench.lab import Lab
lab = Lab(racks=[2, 1], pods=[1, 1])
lab.hosts[0].popen(["sh", "-c", "sleep 1000 & echo; exec sleep 1000"], stdout=sys.stdout).pid
print(lab.name, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        lines = {owner.stdout.readline().strip(), owner.stdout.readline().strip()}
        record = next(record for record in records.read_all() if record.name in lines)
        networks = [keeper.network() for keeper in record.keepers()]
        assert len(namespaces.processes_in(networks)) == 4 + 2
        # While its owner is alive, no other lab removes it.
        with Lab(hosts=1):
            assert all(keeper.is_alive() for keeper in record.keepers())
        owner.kill()
    assert record.is_abandoned()
    assert len(namespaces.processes_in(networks)) == 4 + 2
    with Lab(hosts=1):
        assert namespaces.processes_in(networks) == []
        assert record.name not in [record.name for record in records.read_all()]
        assert not records.folder_of(record.name).exists()


@needs_lab
def test_what_runs_on_a_host_whose_keeper_was_killed_goes_with_the_lab() -> None:
    with Lab(hosts=2) as lab:
        process = sleeping(lab.hosts[0])
        held = keepers(lab)[0]
        network = held.network()
        os.kill(held.process, signal.SIGKILL)
        namespaces.wait_until(lambda: [held.process] if held.is_alive() else [], lambda _: None, "is not gone")
        assert namespaces.processes_in([network]) == [process.pid]
    assert process.returncode == -signal.SIGKILL
    assert namespaces.processes_in([network]) == []


@needs_lab
def test_processes_of_a_lab_whose_record_is_cut_short_are_found() -> None:
    lab = Lab(hosts=1)
    networks = [keepers(lab)[0].network()]
    (records.FOLDER / f"{lab.name}.json").write_text('{"name": "')
    process = sleeping(lab.hosts[0])
    assert lab.name in records.abandoned()
    assert lab.name in records.remove_abandoned()
    assert process.wait(SOON) == -signal.SIGKILL
    assert namespaces.processes_in(networks) == []
    assert not lab.agent.parent.exists()
    lab.close()


@needs_lab
def test_a_lab_that_was_killed_while_it_began_or_ended_is_no_obstacle() -> None:
    name = f"test-began-{os.getpid()}"
    records.folder_of(name).mkdir(parents=True)
    with Lab(hosts=1, name=name) as lab:
        assert lab.hosts[0].run(["hostname"]).stdout == "node0\n"
    assert not records.folder_of(name).exists()


def test_a_record_is_there_before_the_folder_and_after_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # If its creator is killed in between, a folder without a record belongs to no lab.
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    seen: list[bool] = []
    make, take = Path.mkdir, shutil.rmtree

    def mkdir(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path != tmp_path:
            seen.append((tmp_path / "one.json").exists())
        make(path, mode, parents, exist_ok)

    def rmtree(path: Path, *, ignore_errors: bool) -> None:
        seen.append((tmp_path / "one.json").exists())
        take(path, ignore_errors)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr("shutil.rmtree", rmtree)
    tmp_path.chmod(0o755)
    owner = records.this_process()
    record = records.Record("one", owner, records.boot_id(), namespaces.own_network(), 10**9, None, 0.0)
    records.begin(record)
    with pytest.raises(LabError, match="already exists"):
        records.begin(record)
    records.remove(record)
    assert seen
    assert all(seen)
    assert list(tmp_path.iterdir()) == []


def test_a_record_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    (tmp_path / "one.json").write_text('{"name": "one"}')
    with pytest.raises(LabError, match=r"one\.json was written by another version of hoplite"):
        records.read_all()


def test_a_record_without_a_flow_cap_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    record = records.Record("one", None, records.boot_id(), 1, 10**9, None, 0.0)
    fields = asdict(record)
    assert fields.pop("flow_cap") is None
    (tmp_path / "one.json").write_text(json.dumps(fields))
    assert records.read_all() == [record]


def test_records_that_another_user_can_change_are_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They determine which processes root kills, and contain a program that root runs."""
    folder = tmp_path / "hoplite" / "labs"
    monkeypatch.setattr(records, "FOLDER", folder)
    assert records.read_all() == []
    mask = os.umask(0)
    try:
        owner = records.this_process()
        records.begin(records.Record("one", owner, records.boot_id(), namespaces.own_network(), 10**9, None, 0.0))
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in (folder.parent, folder)} == {0o755}
    assert [record.name for record in records.read_all()] == ["one"]
    for changed in (folder, folder.parent):
        changed.chmod(0o777)
        for read in (records.read_all, records.abandoned, records.remove_abandoned):
            with pytest.raises(LabError, match=rf"{changed} must belong to root and be writable by root alone"):
                read()
        changed.chmod(0o755)


def test_a_record_that_is_nested_too_deep_is_unreadable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    (tmp_path / "one.json").write_text("[" * 200_000)
    assert (records.read_all(), records.abandoned()) == ([], ["one"])


@needs_lab
def test_two_labs_at_once_do_not_see_each_other() -> None:
    with Lab(hosts=2, rate="20mbit") as one, Lab(hosts=2, rate="20mbit") as other:
        assert one.name != other.name
        with one.hosts[0].popen(["sleep", "100"]) as process:
            assert other.hosts[0].processes() == []
            other.close()
            assert process.poll() is None
            assert one.measure_rtt(*one.hosts) > 0
            one.hosts[0].kill()


@needs_lab
def test_racks_share_their_uplink() -> None:
    with Lab(racks=[2, 2], rate="20mbit", uplink="10mbit") as lab:
        a, b, c, d = lab.hosts
        assert [host.rack for host in lab.hosts] == [0, 0, 1, 1]
        assert [rack.hosts for rack in lab.racks] == [[a, b], [c, d]]
        uplink = lab.racks[0]
        assert (rates(a), rates(uplink), lab.facts()["uplink"]) == ({20_000_000}, {10_000_000}, 10_000_000)
        # Traffic inside a rack does not cross its uplink.
        lab.measure_rate(a, b)
        assert sum(uplink.moved()) < UNASKED_BYTES
        before = held_back(uplink)
        lab.measure_rates_at_once([(a, c), (b, d)])
        assert held_back(uplink)[0] > before[0]
        assert uplink.moved().out_bytes > UNASKED_BYTES


@needs_lab
def test_racks_of_a_pod_share_its_uplink() -> None:
    with Lab(racks=[2, 1, 2], pods=[2, 1], rate="40mbit", uplink="20mbit", pod_uplink="10mbit") as lab:
        a, b, c, d, e = lab.hosts
        assert [[rack.number for rack in pod.racks] for pod in lab.pods] == [[0, 1], [2]]
        assert [pod.hosts for pod in lab.pods] == [[a, b, c], [d, e]]
        assert [rack.pod for rack in lab.racks] == [0, 0, 1]
        rack, pod = lab.racks[0], lab.pods[0]
        assert (rates(a), rates(rack), rates(pod)) == ({40_000_000}, {20_000_000}, {10_000_000})
        assert (lab.facts()["pods"], lab.facts()["pod_uplink"]) == ([2, 1], 10_000_000)
        # Traffic inside a rack does not cross its uplink, nor does traffic inside a pod cross the pod's.
        lab.measure_rate(a, b)
        assert sum(rack.moved()) < UNASKED_BYTES
        lab.measure_rate(a, c)
        assert rack.moved().out_bytes > UNASKED_BYTES
        assert sum(pod.moved()) < UNASKED_BYTES
        before = held_back(pod)
        lab.measure_rates_at_once([(a, d), (e, c)])
        assert all(now > then for now, then in zip(held_back(pod), before, strict=True))
        assert min(pod.moved()) > UNASKED_BYTES


@needs_lab
def test_a_lab_exports_its_racks_as_a_topology_file(tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    with Lab(racks=[1, 1, 1], pods=[2, 1], rate="20mbit", pod_uplink="10mbit") as lab:
        file.write_text(json.dumps(lab.topology()))
    told = topology.read(file)
    assert [host.groups for host in told.hosts] == [("pod0", "rack0"), ("pod0", "rack1"), ("pod1", "rack2")]
    assert told.uplinks == {"rack0": 20e6, "rack1": 20e6, "rack2": 20e6, "pod0": 10e6, "pod1": 10e6}
    with Lab(hosts=2) as lab:
        file.write_text(json.dumps(lab.topology()))
    assert [host.groups for host in topology.read(file).hosts] == [(), ()]


@needs_lab
def test_a_lab_that_is_to_stay_is_found_again_by_its_name() -> None:
    name = f"test-{os.getpid()}"
    made = Lab(hosts=1, name=name, keep=True)
    try:
        with pytest.raises(LabError, match="already exists"):
            Lab(hosts=1, name=name)
        found = Lab.find(name)
        assert found.host("node0").run(["hostname"]).stdout == "node0\n"
        assert found.owner is None
    finally:
        Lab.find(name).close()
    with pytest.raises(LabError, match=f"no lab named '{name}' is up"):
        Lab.find(name)
    made.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "hosts=8 or racks="),
        ({"hosts": 2, "racks": [1, 1]}, "hosts=8 or racks="),
        ({"hosts": 0}, "hosts must be a number of 1 or more, not 0"),
        ({"hosts": "8"}, "not '8'"),
        ({"hosts": True}, "not True"),
        ({"racks": []}, r"racks must be a list of numbers of 1 or more, not \[\]"),
        ({"racks": [4, 0]}, r"not \[4, 0\]"),
        ({"racks": 4}, "racks must be"),
        ({"hosts": 201}, "201 hosts are too many for a lab: set hosts to at most 200 in total"),
        ({"hosts": 2, "rate": "1GB"}, "rate must be a rate such as \"1gbit\".* not '1GB'"),
        ({"hosts": 2, "rate": -1}, "rate must be between 100kbit and 34gbit, not -1"),
        ({"hosts": 2, "rate": "100gbit"}, "34gbit"),
        ({"hosts": 2, "rate": float("nan")}, "rate must be"),
        ({"hosts": 2, "rate": None}, "not None"),
        ({"hosts": 2, "uplink": "1gbit"}, "two or more racks"),
        ({"racks": [1, 1], "uplink": "fast"}, "uplink must be a rate"),
        ({"racks": [1, 1], "pods": [2]}, r"pods must list the number of racks of two or more pods, .* not \[2\]"),
        ({"racks": [1, 1], "pods": [1, 0]}, r"pods must list .* not \[1, 0\]"),
        ({"racks": [1, 1], "pods": 2}, "pods must list .* not 2"),
        ({"racks": [1, 1], "pods": [1, 2]}, r"pods=\[1, 2\] needs 3 racks, but the lab has 2: list 3 in racks="),
        ({"hosts": 2, "pods": [1, 1]}, r"pods=\[1, 1\] needs 2 racks, but the lab has 1: list 2 in racks="),
        ({"racks": [1, 1], "pod_uplink": "1gbit"}, "pod_uplink='1gbit' applies to pods: set"),
        ({"racks": [1, 1], "pods": [1, 1], "pod_uplink": "fast"}, "pod_uplink must be a rate"),
        ({"hosts": 2, "flow_cap": "fast"}, "flow_cap must be a rate such as .* not 'fast'"),
        ({"hosts": 2, "flow_cap": 0}, "flow_cap must be between 100kbit and 34gbit, not 0"),
        ({"hosts": 2, "latency": "1 minute"}, "latency must be a time"),
        ({"hosts": 2, "latency": -1}, "latency must be a time"),
        ({"hosts": 2, "name": "../x"}, "name must be"),
    ],
    ids=str,
)
def test_a_bad_argument_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        Lab(**options)


@needs_lab
def test_bad_arguments_of_a_lab_that_is_up_are_named(lab: Lab) -> None:
    a, b = lab.hosts
    with pytest.raises(InvalidArgument, match="'sideways'"):
        a.cut("sideways")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="'fast'"):
        b.slow("fast")
    with pytest.raises(InvalidArgument, match="the lab has no host 'node9': use node0 to node1"):
        lab.host("node9")
    with pytest.raises(InvalidArgument, match="from node0 to itself"):
        lab.measure_rate(a, a)
    with pytest.raises(LabError, match="rack0 is the only rack"):
        lab.racks[0].cut()


@needs_lab
def test_without_root_the_error_names_root() -> None:
    program = """
import os
from hoplite_bench.lab import Lab, LabError

os.setuid(65534)
try:
    Lab(hosts=2)
except LabError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("a lab needs root")


def test_the_error_names_a_missing_system_tool_or_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", str)
    with pytest.raises(LabError, match=r"pip install pyroute2"):
        needs.check()
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(LabError, match="apt-get install util-linux"):
        needs.check()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(LabError, match="Linux network namespaces, but this is darwin"):
        needs.check()


@needs_lab
def test_a_lab_is_made_inside_a_running_event_loop_and_on_a_thread() -> None:
    import asyncio

    async def use() -> str:
        with Lab(hosts=1) as lab:
            return lab.hosts[0].run(["hostname"]).stdout

    assert asyncio.run(use()) == "node0\n"
    assert asyncio.run(asyncio.wait_for(asyncio.to_thread(lambda: asyncio.run(use())), 30)) == "node0\n"


@needs_lab
def test_each_host_runs_a_node_of_its_own_at_the_usual_address_and_socket() -> None:
    with Lab(hosts=2) as lab:
        nodes = [start_node(lab, host) for host in lab.hosts]
        put = "import hoplite; hoplite.init().put(b'here', name='from/1')"
        get = "import hoplite; print(bytes(hoplite.init().get('from/1', timeout=20)))"
        lab.hosts[0].run([sys.executable, "-c", put], check=True)
        assert lab.hosts[1].run([sys.executable, "-c", get], check=True).stdout == "b'here'\n"
        for host, node in zip(lab.hosts, nodes, strict=True):
            host.kill()
            node.communicate(timeout=SOON)


@needs_lab
def test_nodes_without_configured_racks_survey_their_links() -> None:
    """That they finish; what they find is checked in test_lab_rates, because a busy machine can hide a link."""
    with Lab(racks=[2, 2], rate="200mbit", uplink="200mbit") as lab:
        told = surveyed(lab, (0, 2, 1, 3))
        assert told["survey"] in ("found", "even")
        places = [member["place"] for member in told["members"]]
        assert all(places) if told["survey"] == "found" else not any(places)


@needs_lab
def test_nodes_with_configured_racks_send_an_object_and_a_sum_from_rack_to_rack_once() -> None:
    megabytes = 32
    with Lab(racks=[3, 3], rate="1gbit") as lab, contextlib.ExitStack() as stack:
        where = {host.name: rack.name for rack in lab.racks for host in rack.hosts}
        nodes = [start_node(lab, host, "--rack", where[host.name]) for host in lab.hosts]
        for host in lab.hosts:
            stack.callback(host.kill)
        # From rack to rack and back, in order of receivers and inputs.
        order = [lab.hosts[number] for number in (0, 3, 1, 4, 2, 5)]
        script = f"""
import sys, numpy, hoplite
hp = hoplite.init()
while len(hp.status()["members"]) < 6: pass
rank = int(sys.argv[1])
hp.put(numpy.full({megabytes} * 2**18, rank, numpy.float32), name=f"input/{{rank}}")
print("ready", flush=True)
for line in sys.stdin:
    if line == "reduce\\n":
        hp.reduce([f"input/{{rank}}" for rank in range(6)], name="sum")
    value = hp.get("input/0" if line == "get\\n" else "sum", timeout=60)
    assert (value == (0 if line == "get\\n" else 15)).all(), value
    print("done", flush=True)
"""
        ranks = [
            host.popen(
                [sys.executable, "-c", script, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for rank, host in enumerate(order)
        ]
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"

        def crossed(what: str, who: list[subprocess.Popen[str]]) -> list[float]:
            before = lab.racks[0].moved()
            for rank in who:
                assert rank.stdin is not None
                print(what, file=rank.stdin, flush=True)
                # One after the other, each before the previous one is done.
                time.sleep(0.02)
            for rank in who:
                assert rank.stdout is not None
                assert rank.stdout.readline() == "done\n"
            return [(now - then) / (megabytes * 2**20) for now, then in zip(lab.racks[0].moved(), before, strict=True)]

        # A receiver that gets another source receives what was in flight again.
        assert crossed("get", ranks[1:]) == pytest.approx([1.1, 0], abs=0.2)
        assert crossed("reduce", ranks[:1]) == pytest.approx([0, 1.1], abs=0.2)
        for process in [*ranks, *nodes]:
            process.kill()
            process.communicate(timeout=SOON)

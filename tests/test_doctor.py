"""`hoplite doctor`: what each check finds, on made-up hosts and a fake cluster, and the command without a node."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from commands import run
from fake_activity import FakeCluster
from hoplite import __version__, tokens
from hoplite.tools.doctor import Finding, cluster, host
from hoplite.tools.doctor.facts import HUGE_PAGES, Facts, gather

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


def facts(**changed: Any) -> Facts:  # noqa: ANN401 - fields of Facts
    """A host where everything is right, but for what a test changes."""
    sysctls = {
        "net.core.somaxconn": "4096",
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "net.ipv4.tcp_wmem": "4096 16384 4194304",
        "vm.max_map_count": "65530",
        "vm.overcommit_memory": "0",
    }
    limits = {"nofile": (1 << 20, 1 << 20), "fsize": (None, None), "as": (None, None)}
    good = {"kernel": "6.1.0-13-amd64", "limits": limits, "sysctls": sysctls}
    return Facts(**{**good, "huge_pages": "advise", "memory": 16 * GIB, "available": 12 * GIB, **changed})


def view(fake: FakeCluster) -> cluster.View:
    """What the nodes report, if the clock of the first is that of this process."""
    client: Any = fake.client()
    seen = cluster.View.of(client)
    base = seen.snapshot.reports[0].offset.seconds
    for report in seen.snapshot.reports:
        report.offset = report.offset._replace(seconds=round(report.offset.seconds - base))
    return seen


def of_host(of: Facts) -> list[Finding]:
    return [
        host.kernel(of),
        host.shared_memory(of),
        host.huge_pages(of),
        *host.limits(of),
        host.memory(of, GIB),
        *host.kernel_settings(of),
    ]


def test_a_good_host_is_ok() -> None:
    assert {finding.level for finding in of_host(facts())} == {"ok"}


@pytest.mark.parametrize(
    ("changed", "check", "level", "fix"),
    [
        ({"kernel": "4.18.0-372.el8"}, "kernel", "problem", "uname -r"),
        ({"shared_memory": "memfd_create: Operation not permitted"}, "shared memory", "problem", "memfd_create"),
        ({"limits": {"nofile": (512, 512)}}, "open files", "problem", "ulimit -Hn 16384"),
        ({"limits": {"nofile": (1024, 4096)}}, "open files", "warning", "LimitNOFILE=16384"),
        ({"limits": {"fsize": (1 << 20, None)}}, "file size", "problem", "ulimit -f unlimited"),
        ({"limits": {"as": (1 << 32, None)}}, "address space", "warning", "ulimit -v unlimited"),
        ({"group": (GIB // 2, "/pod")}, "memory", "problem", "--capacity 153MiB"),
        ({"group": (GIB + GIB // 8, "/pod")}, "memory", "warning", "--capacity 345MiB"),
        ({"available": GIB // 4}, "memory", "warning", "ps aux --sort=-rss"),
        ({"sysctls": {"net.core.somaxconn": "128"}}, "sysctl", "warning", "net.core.somaxconn=1024"),
        ({"sysctls": {"net.ipv4.tcp_rmem": "4096 87380 212992"}}, "sysctl", "warning", "net.ipv4.tcp_rmem="),
        ({"sysctls": {"vm.max_map_count": "1000"}}, "sysctl", "warning", "vm.max_map_count=65530"),
        ({"sysctls": {"vm.overcommit_memory": "2"}}, "sysctl", "warning", "vm.overcommit_memory=0"),
    ],
)
def test_what_is_wrong_with_a_host_is_found(changed: dict[str, Any], check: str, level: str, fix: str) -> None:
    (found,) = [finding for finding in of_host(facts(**changed)) if finding.level != "ok"]
    assert (found.check, found.level) == (check, level)
    assert found.fix is not None
    assert fix in found.fix


@pytest.mark.parametrize(
    ("kernel", "setting", "level", "wanted"),
    [
        ("6.1.0", "never", "ok", "advise"),
        ("6.1.0", "deny", "ok", "advise"),
        ("6.1.0", "advise", "ok", None),
        ("6.1.0", "within_size", "ok", None),
        # It would give small objects huge pages too.
        ("6.1.0", "always", "warning", "advise"),
        # This kernel has no call by which a node can request them.
        ("5.10.0", "advise", "ok", "within_size"),
        ("5.10.0", "within_size", "ok", None),
    ],
)
def test_a_host_gets_the_command_for_huge_pages(kernel: str, setting: str, level: str, wanted: str | None) -> None:
    found = host.huge_pages(facts(kernel=kernel, huge_pages=setting))
    assert found.level == level
    command = f"echo {wanted} > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
    assert (found.fix or "").endswith(command if wanted else "")
    assert (found.fix is None) == (wanted is None)


def test_the_setting_of_huge_pages_is_read(tmp_path: Path) -> None:
    assert gather(None, tmp_path).huge_pages is None
    assert host.huge_pages(gather(None, tmp_path)).level == "unchecked"
    file = tmp_path / HUGE_PAGES
    file.parent.mkdir(parents=True)
    for setting, line in [("advise", "always within_size [advise] never deny force"), ("always", "[always] never")]:
        file.write_text(line + "\n")
        assert gather(None, tmp_path).huge_pages == setting


def test_settings_of_the_kernel_that_cannot_be_read_are_unchecked() -> None:
    assert [finding.level for finding in host.kernel_settings(facts(sysctls={}))] == ["unchecked"]


def test_the_facts_of_this_process_are_read() -> None:
    read = gather(None)
    assert read.memory >= read.available > 0
    assert read.shared_memory is None
    assert "nofile" in read.limits


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        # Version 2: the parent has the smaller limit.
        ("0::/a/b", {"a/memory.max": "1000", "a/b/memory.max": "max"}, (1000, "/a")),
        # Version 1, with a value that means no limit.
        ("4:memory:/x\n0::/", {"memory/x/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("4:memory:/x\n0::/", {"memory/x/memory.limit_in_bytes": "2000"}, (2000, "/x")),
        # In a container, the path is that of the host.
        ("0::/docker/1", {"memory.max": "3000"}, (3000, "/")),
    ],
)
def test_the_limit_of_control_groups_is_read(
    tmp_path: Path, lines: str, files: dict[str, str], expected: tuple[int, str] | None
) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(lines)
    (tmp_path / "proc/7/limits").write_text(
        "Max open files            1024                 4096                 files\n"
    )
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    read = gather(7, tmp_path)
    assert read.group == expected
    assert read.limits == {"nofile": (1024, 4096)}


def test_a_token_that_others_can_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "hoplite.token"
    run("token", "new", "--out", token)
    monkeypatch.setenv("HOPLITE_TOKEN_FILE", str(token))
    assert [one.level for one in host.node_settings()[0] if one.check == "token"] == ["ok"]
    token.chmod(0o644)
    (found,) = [one for one in host.node_settings()[0] if one.check == "secrets"]
    assert (found.level, found.fix) == ("problem", f"Run: chmod 600 {token}")


@pytest.mark.parametrize(
    ("name", "value", "check", "level"),
    [
        ("HOPLITE_CAPACITY", "5", "settings", "problem"),
        ("HOPLITE_CAPACTY", "5GiB", "settings", "warning"),
        ("HOPLITE_SPILL", "/missing/spill", "spill folder", "problem"),
        ("HOPLITE_KEY", "/missing/key", "secrets", "problem"),
    ],
)
def test_a_wrong_setting_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, check: str, level: str
) -> None:
    monkeypatch.setattr("hoplite.settings._warned", set())
    monkeypatch.setenv(name, value)
    (found,) = [finding for finding in host.node_settings()[0] if finding.level != "ok"]
    assert (found.check, found.level) == (check, level)
    assert found.fix is not None


def test_the_spill_folder_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOPLITE_SPILL", str(tmp_path / "spill"))
    assert host.node_settings()[0][-1].level == "ok"
    monkeypatch.setenv("HOPLITE_SPILL_LIMIT", "1000TiB")
    assert host.node_settings()[0][-1].level == "warning"


def test_a_port_in_use_is_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert host.port(address).level == "problem"
    assert host.port(address).level == "ok"
    assert host.peer(address, None).level == "problem"
    assert host.port("lo:0").level == "ok"
    assert host.port("192.0.2.1:7420").fix == "Choose an address of this host with --listen: ip -brief address"
    for address in ("a..b:7420", f"{'x' * 64}.example:7420"):
        assert "is not a name of a host" in host.port(address).text
        assert "empty or too long" in host.peer(address, None).text


def test_a_peer_is_ok_only_if_it_admits_a_node_of_this_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judged(address: str, **variables: str) -> Finding:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return host.peer(address, host.node_settings()[1])

    with hoplite.Node(listen="127.0.0.1:0") as node, node.client() as client:
        before = client.status()
        found = judged(node.address)
        assert (found.level, found.text) == ("ok", f"the node at {node.address} admits nodes with these settings")
        other = judged(node.address, HOPLITE_TOKEN=tokens.new_token())
        assert other.level == "problem"
        assert "did not prove this cluster's token: set the same token on all nodes" in other.text
        other = judged(node.address, HOPLITE_CLUSTER="another")
        assert other.level == "problem"
        assert 'this is a node of cluster "default", not "another"' in other.text
        after = client.status()
        assert [member["id"] for member in after["members"]] == [member["id"] for member in before["members"]]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            # The check whether the port is open, and the handshake.
            for _ in range(2):
                with server.accept()[0] as connection, contextlib.suppress(OSError):
                    connection.sendall(b"HTTP/1.1 400 Bad Request")
                    connection.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        found = judged(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert found.level == "problem"
    assert 'its stream begins with "HTTP"' in found.text


def test_a_good_cluster_is_ok() -> None:
    fake = FakeCluster(4)
    fake.advance(5)
    seen = view(fake)
    findings = [*cluster.members(seen), *cluster.clocks(seen), *cluster.reachability(seen), *cluster.rates(seen)]
    assert {finding.level for finding in findings} == {"ok"}
    assert cluster.corruption(seen) == []


def test_the_clock_that_differs_is_named() -> None:
    found = cluster.clocks(view(FakeCluster(4, skews={1: 5.0, 2: -7200.0})))
    assert [(one.level, one.text, one.fix) for one in found] == [
        (
            "warning",
            "the clock of 10.0.0.2:7420 is 5.00 s ahead",
            "Synchronize the clock of 10.0.0.2:7420: timedatectl set-ntp true",
        ),
        (
            "problem",
            "the clock of 10.0.0.3:7420 is 7200 s behind",
            "Synchronize the clock of 10.0.0.3:7420: timedatectl set-ntp true",
        ),
    ]


def test_a_failed_and_an_old_node_are_warnings() -> None:
    fake = FakeCluster(5, failed={4: 1.0}, old=(3,))
    fake.advance(3)
    found = cluster.members(view(fake))
    assert [(one.level, one.text) for one in found] == [
        ("warning", "10.0.0.5:7420 failed 2 s ago: closed"),
        ("warning", f"10.0.0.4:7420 did not report: node {fake.ids[3]} does not support inspect"),
    ]
    assert found[0].fix == "Restart it: hoplite node --join 10.0.0.1:7420"


def test_versions_that_differ_are_a_warning() -> None:
    seen = view(FakeCluster(4))
    for reply in seen.metrics.values():
        reply["version"] = __version__
    assert cluster.versions(seen).level == "ok"
    next(iter(seen.metrics.values()))["version"] = "0.0.1"
    found = cluster.versions(seen)
    assert found.level == "warning"
    assert "but 10.0.0.1:7420 has 0.0.1" in found.text


def test_a_pair_without_a_connection_is_a_problem() -> None:
    fake = FakeCluster(4)
    seen = view(fake)
    members = seen.metrics[fake.ids[2]]["status"]["members"]
    members[1]["via"] = fake.ids[0]
    del members[3]
    assert [(one.level, one.text) for one in cluster.reachability(seen)] == [
        ("warning", "10.0.0.3:7420 reaches 10.0.0.2:7420 only through 10.0.0.1:7420"),
        ("problem", "10.0.0.3:7420 does not see 10.0.0.4:7420"),
    ]


def test_a_slow_link_is_named() -> None:
    fake = FakeCluster(4)
    seen = view(fake)
    for number in range(4):
        if number != 2:
            seen.metrics[fake.ids[number]]["status"]["members"][2]["bytes_per_second"] = 1e7
    (found,) = cluster.rates(seen)
    assert found.level == "warning"
    assert found.text == "10.0.0.3:7420 had only 80 Mbit/s, others 10 Gbit/s"


def test_rates_within_a_host_are_not_those_of_links() -> None:
    fake = FakeCluster(4)
    seen = view(fake)
    # The third and the fourth node share a host.
    seen.snapshot.status["members"][3]["address"] = "10.0.0.3:7421"
    for number, other in ((2, 3), (3, 2)):
        seen.metrics[fake.ids[number]]["status"]["members"][other]["bytes_per_second"] = 1e6
    (found,) = cluster.rates(seen)
    assert (found.level, found.text) == ("ok", "earlier transfers had 10 Gbit/s to 10 Gbit/s")


def test_corrupt_blocks_are_a_warning() -> None:
    seen = view(FakeCluster(4))
    seen.snapshot.status["members"][1]["blocks_corrupt"] = 3
    (found,) = cluster.corruption(seen)
    assert found.text == "10.0.0.2:7420 sent 3 corrupt blocks"


def test_without_a_node_the_host_is_checked(tmp_path: Path) -> None:
    done = run("doctor", "--json", "--socket", tmp_path / "none.sock")
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert found["kernel"]["level"] == "ok"
    assert found["node"]["level"] == found["cluster"]["level"] == "unchecked"
    assert found["node"]["fix"] == "Start a node: hoplite node"


def test_a_problem_is_exit_code_1(tmp_path: Path) -> None:
    nothing = tmp_path / "none.sock"
    done = run("doctor", "--socket", nothing, "--peer", "127.0.0.1:1", code=1)
    assert "problem    peer            127.0.0.1:1 can't be reached: Connection refused" in done.stdout
    assert "-> Start a node there: hoplite node --listen 127.0.0.1:1" in done.stdout


def test_a_peer_that_is_no_address_is_wrong_use(tmp_path: Path) -> None:
    done = run("doctor", "--socket", tmp_path / "none.sock", "--peer", "10.0.0.1", code=2)
    assert "--peer '10.0.0.1' is not an address" in done.stderr
